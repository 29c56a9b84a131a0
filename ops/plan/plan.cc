// The rules of a plan, checked in one pass (validate). Plans also come from decoders and fuzzers, so every index is
// checked before use.
#include "ops/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace shardwire::internal {

namespace {

Status broken(std::string message) {
  return Status(StatusCode::kInternal, "plan: " + std::move(message));
}

// True when offset + shape lies in [0, tensor) and every extent is positive; never overflows.
bool isInside(const Dims& offset, const Dims& shape, const Dims& tensor) {
  if (offset.size() != tensor.size() || shape.size() != tensor.size()) {
    return false;
  }
  for (int d = 0; d < tensor.size(); ++d) {
    if (offset[d] < 0 || shape[d] <= 0 || shape[d] > tensor[d] || offset[d] > tensor[d] - shape[d]) {
      return false;
    }
  }
  return true;
}

// One pass over a plan, in order. Every index is checked before use, so a plan from any origin may be given.
class Validator {
 public:
  explicit Validator(const Plan& plan) : plan_(plan) {}

  Status run() {
    if (plan_.worldSize < 1 || plan_.rank < 0 || plan_.rank >= plan_.worldSize) {
      return broken(fmt::format("rank {} does not fit a world of {}", plan_.rank, plan_.worldSize));
    }
    SW_RETURN_IF_ERROR(checkTensors("inputs", plan_.inputs));
    SW_RETURN_IF_ERROR(checkTensors("outputs", plan_.outputs));
    if (plan_.numOwnCopies > plan_.firstCombine || plan_.firstCombine > plan_.moves.size()) {
      return broken(fmt::format("{} own copies and first combine {} do not fit {} moves", plan_.numOwnCopies,
                                plan_.firstCombine, plan_.moves.size()));
    }
    SW_RETURN_IF_ERROR(checkEdges("receives", plan_.receives, plan_.numOwnCopies, plan_.firstCombine));
    SW_RETURN_IF_ERROR(checkEdges("sends", plan_.sends, 0, static_cast<std::uint32_t>(plan_.sendItems.size())));
    SW_RETURN_IF_ERROR(checkMoves());
    if (numSources_ != plan_.sources.size()) {
      return broken(
          fmt::format("{} of {} sources belong to no move", plan_.sources.size() - numSources_, plan_.sources.size()));
    }
    SW_RETURN_IF_ERROR(checkReceiveTotals());
    return checkSends();
  }

 private:
  static Status checkTensors(const char* list, const std::vector<PlanTensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (static_cast<int>(tensors[i].dtype) >= kNumDTypes) {
        return broken(fmt::format("{}[{}] has unknown dtype {}", list, i, static_cast<int>(tensors[i].dtype)));
      }
      auto bytes = static_cast<std::int64_t>(elementBytes(tensors[i].dtype));
      bool overflows = false;
      bool isEmpty = false;
      for (const std::int64_t extent : tensors[i].shape) {
        if (extent < 0) {
          return broken(fmt::format("{}[{}] has shape {}", list, i, toString(tensors[i].shape)));
        }
        isEmpty |= extent == 0;
        overflows |= __builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes);
      }
      if (overflows && !isEmpty) {
        return broken(fmt::format("{}[{}] of shape {} has more than 2^63 bytes", list, i, toString(tensors[i].shape)));
      }
    }
    return Status::ok();
  }

  // Peers by distance, ranges one after the other from `first` to `last`, inputs ascending.
  Status checkEdges(const char* list, const std::vector<PlanEdge>& edges, std::uint32_t first,
                    std::uint32_t last) const {
    std::int64_t previousDistance = 0;
    std::uint64_t next = first;
    for (std::size_t e = 0; e < edges.size(); ++e) {
      const PlanEdge& edge = edges[e];
      const bool isPeer = edge.peer >= 0 && edge.peer < plan_.worldSize && edge.peer != plan_.rank;
      const std::int64_t distance =
          (static_cast<std::int64_t>(edge.peer) - plan_.rank + plan_.worldSize) % plan_.worldSize;
      if (!isPeer || distance <= previousDistance) {
        return broken(fmt::format("{}[{}] has peer {}: peers are other ranks, by distance from rank {}", list, e,
                                  edge.peer, plan_.rank));
      }
      previousDistance = distance;
      if (edge.first != next) {
        return broken(fmt::format("{}[{}] begins at {}, the one before it ends at {}", list, e, edge.first, next));
      }
      next += edge.count;
      if (edge.numCopies > edge.count) {
        return broken(fmt::format("{}[{}] copies {} of {} items", list, e, edge.numCopies, edge.count));
      }
      if (edge.inputs.empty() || edge.inputs.front() < 0 ||
          std::adjacent_find(edge.inputs.begin(), edge.inputs.end(), std::greater_equal<>()) != edge.inputs.end()) {
        return broken(fmt::format("{}[{}]: the inputs used are not ascending or there are none", list, e));
      }
    }
    if (next != last) {
      return broken(fmt::format("{} end at {} instead of {}", list, next, last));
    }
    return Status::ok();
  }

  Status checkMoves() {
    std::vector<std::uint64_t> written(plan_.outputs.size(), 0);  // elements
    std::size_t edge = 0;
    received_.assign(plan_.receives.size(), {});
    for (const PlanEdge& receive : plan_.receives) {
      received_[edge].isUsed.assign(receive.inputs.size(), false);
      received_[edge++].firstMove.assign(receive.inputs.size(), nullptr);
    }
    edge = 0;
    for (std::uint32_t m = 0; m < plan_.moves.size(); ++m) {
      const PlanMove& move = plan_.moves[m];
      if (move.output < 0 || static_cast<std::size_t>(move.output) >= plan_.outputs.size()) {
        return broken(fmt::format("moves[{}] writes output {} of {}", m, move.output, plan_.outputs.size()));
      }
      const PlanTensor& output = plan_.outputs[static_cast<std::size_t>(move.output)];
      if (!isInside(move.offset, move.shape, output.shape)) {
        return broken(fmt::format("moves[{}] writes {} at {} of outputs[{}] of shape {}", m, toString(move.shape),
                                  toString(move.offset), move.output, toString(output.shape)));
      }
      const auto elements = static_cast<std::uint64_t>(numElements(move.shape));
      std::uint64_t& sum = written[static_cast<std::size_t>(move.output)];
      if (elements > static_cast<std::uint64_t>(numElements(output.shape)) - sum) {
        return broken(fmt::format("moves[{}] writes outputs[{}] for a second time", m, move.output));
      }
      sum += elements;
      while (edge < plan_.receives.size() && m >= plan_.receives[edge].first + plan_.receives[edge].count) {
        ++edge;
      }
      const Rank supplier =
          m < plan_.numOwnCopies ? plan_.rank : (m < plan_.firstCombine ? plan_.receives[edge].peer : -1);
      SW_RETURN_IF_ERROR(checkMoveSources(m, supplier));
    }
    return Status::ok();
  }

  // supplier: of a copy; -1 for a combine.
  Status checkMoveSources(std::uint32_t m, Rank supplier) {
    const PlanMove& move = plan_.moves[m];
    const bool isCopy = supplier >= 0;
    const PlanTensor& output = plan_.outputs[static_cast<std::size_t>(move.output)];
    if (static_cast<int>(move.sourceDtype) >= kNumDTypes) {
      return broken(fmt::format("moves[{}] reads unknown dtype {}", m, static_cast<int>(move.sourceDtype)));
    }
    if (isCopy ? move.numSources != 1 : move.numSources < 2) {
      return broken(fmt::format("moves[{}] is a {} of {} sources", m, isCopy ? "copy" : "combine", move.numSources));
    }
    if (move.firstSource != numSources_ || move.numSources > plan_.sources.size() - numSources_) {
      return broken(fmt::format("moves[{}] has {} sources from {}, {} are left from {}", m, move.numSources,
                                move.firstSource, plan_.sources.size() - numSources_, numSources_));
    }
    numSources_ += move.numSources;
    if (static_cast<int>(move.reduction) >= kNumReduceOps || (move.reduction == ReduceOp::kNone) != isCopy ||
        !supportsReduction(move.sourceDtype, move.reduction)) {
      return broken(fmt::format("moves[{}] with {} sources of {} has reduction {}", m, move.numSources,
                                dtypeName(move.sourceDtype), static_cast<int>(move.reduction)));
    }
    if (!supportsCast(move.sourceDtype, output.dtype)) {
      return broken(fmt::format("moves[{}] casts {} to {}", m, dtypeName(move.sourceDtype), dtypeName(output.dtype)));
    }
    for (std::uint32_t s = move.firstSource; s < move.firstSource + move.numSources; ++s) {
      const PlanSource& source = plan_.sources[s];
      if (isCopy && source.rank != supplier) {
        return broken(
            fmt::format("moves[{}] copies from rank {} among the copies from rank {}", m, source.rank, supplier));
      }
      SW_RETURN_IF_ERROR(source.rank == plan_.rank ? checkOwnSource(m, s) : checkRemoteSource(m, s));
    }
    return Status::ok();
  }

  Status checkOwnSource(std::uint32_t m, std::uint32_t s) const {
    const PlanMove& move = plan_.moves[m];
    const PlanSource& source = plan_.sources[s];
    if (source.input < 0 || static_cast<std::size_t>(source.input) >= plan_.inputs.size() ||
        source.slot != source.input) {
      return broken(fmt::format("sources[{}] is own input {} in slot {} of {}", s, source.input, source.slot,
                                plan_.inputs.size()));
    }
    const PlanTensor& input = plan_.inputs[static_cast<std::size_t>(source.input)];
    if (!isInside(source.offset, move.shape, input.shape) || input.dtype != move.sourceDtype) {
      return broken(fmt::format("sources[{}] reads {} at {} of inputs[{}], {} of shape {}", s, toString(move.shape),
                                toString(source.offset), source.input, dtypeName(input.dtype), toString(input.shape)));
    }
    return Status::ok();
  }

  Status checkRemoteSource(std::uint32_t m, std::uint32_t s) {
    const PlanSource& source = plan_.sources[s];
    const auto edge = edgeOf(source.rank);
    if (edge >= plan_.receives.size()) {
      return broken(fmt::format("sources[{}] is on rank {}, from which nothing is received", s, source.rank));
    }
    const std::vector<std::int32_t>& inputs = plan_.receives[edge].inputs;
    if (source.slot < 0 || static_cast<std::size_t>(source.slot) >= inputs.size() ||
        inputs[static_cast<std::size_t>(source.slot)] != source.input) {
      return broken(fmt::format("sources[{}] is input {} of rank {}, which is not in slot {}", s, source.input,
                                source.rank, source.slot));
    }
    const PlanMove& move = plan_.moves[m];
    bool isPlace = source.offset.size() == move.shape.size();
    for (int d = 0; isPlace && d < source.offset.size(); ++d) {
      isPlace = source.offset[d] >= 0 && source.offset[d] <= INT64_MAX - move.shape[d];
    }
    if (!isPlace) {
      return broken(fmt::format("sources[{}] begins at {} for a box of shape {}", s, toString(source.offset),
                                toString(move.shape)));
    }
    Received& received = received_[edge];
    const auto slot = static_cast<std::size_t>(source.slot);
    // The peer posts one set of strides for each slot.
    if (received.isUsed[slot] && (received.firstMove[slot]->shape.size() != move.shape.size() ||
                                  received.firstMove[slot]->sourceDtype != move.sourceDtype)) {
      return broken(
          fmt::format("sources[{}] reads slot {} of rank {} as a tensor of {} dimensions of {}, and another "
                      "source reads the slot otherwise",
                      s, source.slot, source.rank, move.shape.size(), dtypeName(move.sourceDtype)));
    }
    received.isUsed[slot] = true;
    received.firstMove[slot] = &move;
    if (__builtin_add_overflow(received.bytes, stagedBytes(plan_, move), &received.bytes)) {
      return broken(fmt::format("receives[{}] has more than 2^64 bytes", edge));
    }
    ++received.numItems;
    return Status::ok();
  }

  std::size_t edgeOf(Rank peer) const {
    const auto distance = [this](Rank other) {
      return (static_cast<std::int64_t>(other) - plan_.rank + plan_.worldSize) % plan_.worldSize;
    };
    const auto at = std::partition_point(plan_.receives.begin(), plan_.receives.end(),
                                         [&](const PlanEdge& edge) { return distance(edge.peer) < distance(peer); });
    return at != plan_.receives.end() && at->peer == peer ? static_cast<std::size_t>(at - plan_.receives.begin())
                                                          : plan_.receives.size();
  }

  Status checkReceiveTotals() const {
    for (std::size_t e = 0; e < plan_.receives.size(); ++e) {
      const PlanEdge& edge = plan_.receives[e];
      if (edge.numCopies != edge.count) {
        return broken(fmt::format("receives[{}] says {} copies, and has {}", e, edge.numCopies, edge.count));
      }
      if (received_[e].bytes != edge.bytes || received_[e].numItems != edge.numItems) {
        return broken(fmt::format("receives[{}] says {} bytes in {} items, its moves need {} in {}", e, edge.bytes,
                                  edge.numItems, received_[e].bytes, received_[e].numItems));
      }
      if (std::find(received_[e].isUsed.begin(), received_[e].isUsed.end(), false) != received_[e].isUsed.end()) {
        return broken(fmt::format("receives[{}] names an input that no move uses", e));
      }
    }
    return Status::ok();
  }

  Status checkSends() const {
    for (std::size_t e = 0; e < plan_.sends.size(); ++e) {
      const PlanEdge& edge = plan_.sends[e];
      std::uint64_t bytes = 0;
      std::vector<bool> isUsed(edge.inputs.size(), false);
      for (std::uint32_t i = edge.first; i < edge.first + edge.count; ++i) {
        const PlanSendItem& item = plan_.sendItems[i];
        if (item.slot < 0 || static_cast<std::size_t>(item.slot) >= edge.inputs.size() ||
            edge.inputs[static_cast<std::size_t>(item.slot)] != item.input ||
            static_cast<std::size_t>(item.input) >= plan_.inputs.size()) {
          return broken(fmt::format("sendItems[{}] is input {} of {}, which is not in slot {}", i, item.input,
                                    plan_.inputs.size(), item.slot));
        }
        const PlanTensor& input = plan_.inputs[static_cast<std::size_t>(item.input)];
        if (!isInside(item.offset, item.shape, input.shape)) {
          return broken(fmt::format("sendItems[{}] reads {} at {} of inputs[{}] of shape {}", i, toString(item.shape),
                                    toString(item.offset), item.input, toString(input.shape)));
        }
        if (item.withPrevious && (i == edge.first || plan_.sendItems[i - 1].shape != item.shape ||
                                  plan_.sendItems[i - 1].stagedDtype != item.stagedDtype)) {
          return broken(
              fmt::format("sendItems[{}] goes with the item before it, which is of another shape, dtype or edge", i));
        }
        if (static_cast<int>(item.stagedDtype) >= kNumDTypes || !supportsCast(input.dtype, item.stagedDtype) ||
            elementBytes(item.stagedDtype) > elementBytes(input.dtype)) {
          return broken(fmt::format("sendItems[{}] sends {} as dtype {}", i, dtypeName(input.dtype),
                                    static_cast<int>(item.stagedDtype)));
        }
        isUsed[static_cast<std::size_t>(item.slot)] = true;
        if (__builtin_add_overflow(
                bytes, static_cast<std::uint64_t>(numElements(item.shape)) * elementBytes(item.stagedDtype), &bytes)) {
          return broken(fmt::format("sends[{}] has more than 2^64 bytes", e));
        }
      }
      if (bytes != edge.bytes || edge.count != edge.numItems) {
        return broken(fmt::format("sends[{}] says {} bytes in {} items, its items have {} in {}", e, edge.bytes,
                                  edge.numItems, bytes, edge.count));
      }
      if (std::find(isUsed.begin(), isUsed.end(), false) != isUsed.end()) {
        return broken(fmt::format("sends[{}] names an input that no item uses", e));
      }
    }
    return Status::ok();
  }

  // The bytes, items and slots that the moves take from one receive edge.
  struct Received {
    std::uint64_t bytes = 0;
    std::uint64_t numItems = 0;
    std::vector<bool> isUsed;  // by slot
    std::vector<const PlanMove*> firstMove;
  };

  const Plan& plan_;
  std::vector<Received> received_;  // by receive edge
  std::uint32_t numSources_ = 0;    // of the moves so far
};

}  // namespace

Status validate(const Plan& plan) {
  return Validator(plan).run();
}

std::uint64_t edgeBytes(const std::vector<PlanEdge>& edges) {
  return std::accumulate(edges.begin(), edges.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const PlanEdge& edge) { return sum + edge.bytes; });
}

std::uint64_t memoryBytes(const Plan& plan) {
  const auto bytesOf = [](const auto& items) { return items.capacity() * sizeof(items[0]); };
  std::uint64_t bytes = sizeof plan + bytesOf(plan.inputs) + bytesOf(plan.outputs) + bytesOf(plan.sources) +
                        bytesOf(plan.moves) + bytesOf(plan.receives) + bytesOf(plan.sendItems) + bytesOf(plan.sends);
  for (const std::vector<PlanEdge>* edges : {&plan.receives, &plan.sends}) {
    for (const PlanEdge& edge : *edges) {
      bytes += bytesOf(edge.inputs);
    }
  }
  return bytes;
}

}  // namespace shardwire::internal
