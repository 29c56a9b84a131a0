// A plan is built from both ends by the same rules. The receiving half assigns sources to each of this rank's output
// boxes. The sending half assigns sources to every other rank's boxes that touch this rank's inputs and keeps the
// pieces supplied by this rank. Both ends take boxes by (output, slice) and pieces in the order of the assignment,
// which defines the order of an edge.
#include "ops/plan/redistribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ops/plan/assign_sources.h"
#include "ops/plan/check_cover.h"
#include "ops/plan/hash.h"

namespace shardwire::internal {

namespace {

// Where global `row` begins in a local tensor that holds `placed`.
Dims localOffsetOf(const PlacedSlice& placed, int numDims, const std::int64_t* row) {
  Dims offset = Dims::filled(numDims, 0);
  for (int d = 0; d < numDims; ++d) {
    offset[d] = row[d] - placed.slice.offset[d] + placed.localOffset[d];
  }
  return offset;
}

Dims shapeOf(int numDims, const std::int64_t* row) {
  Dims shape = Dims::filled(numDims, 0);
  for (int d = 0; d < numDims; ++d) {
    shape[d] = row[numDims + d] - row[d];
  }
  return shape;
}

std::vector<PlanTensor> planTensors(const GlobalSpec& spec, const std::vector<LocalTensor>& locals, bool areOutputs) {
  std::vector<PlanTensor> tensors;
  tensors.reserve(locals.size());
  for (const LocalTensor& local : locals) {
    const GlobalTensor& tensor = spec.tensors[static_cast<std::size_t>(local.tensor)];
    tensors.push_back({areOutputs ? tensor.dtypeOfOutputs() : tensor.dtype, local.localShape});
  }
  return tensors;
}

// The inputs used on one edge: gathered in any order, then ascending and distinct; slots are found by search.
void sortInputs(std::vector<std::int32_t>& inputs) {
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
}
std::int32_t slotOf(const std::vector<std::int32_t>& inputs, std::int32_t input) {
  return static_cast<std::int32_t>(std::lower_bound(inputs.begin(), inputs.end(), input) - inputs.begin());
}

class PlanBuilder {
 public:
  PlanBuilder(const GlobalSpec& spec, Rank rank, const SourceIndex& index)
      : spec_(spec),
        rank_(rank),
        worldSize_(static_cast<std::int32_t>(spec.ranks.size())),
        index_(index),
        assigner_(index) {}

  Plan build() {
    plan_.rank = rank_;
    plan_.worldSize = worldSize_;
    const RankSpec& own = spec_.ranks[static_cast<std::size_t>(rank_)];
    plan_.inputs = planTensors(spec_, own.inputs, false);
    plan_.outputs = planTensors(spec_, own.outputs, true);
    buildReceives();
    if (!own.inputs.empty()) {
      buildSends();
    }
    return std::move(plan_);
  }

 private:
  // A piece of one of my outputs before its place in the plan is known.
  struct Draft {
    std::int32_t distance = 0;  // of the only source's rank; copies only
    std::int32_t output = 0;
    std::int32_t slice = 0;
    std::uint32_t box = 0;  // of draftBoxes_[tensor]
    std::uint32_t firstSource = 0;
    std::uint32_t numSources = 0;
  };

  std::int32_t distanceTo(Rank peer) const { return peer >= rank_ ? peer - rank_ : peer - rank_ + worldSize_; }
  Rank rankAt(std::int32_t distance) const {
    return static_cast<Rank>((static_cast<std::int64_t>(rank_) + distance) % worldSize_);
  }

  // visit(pieces, output, slice index) for every non-empty box of that rank's outputs. `ask` gives the pieces, or null
  // to pass over the box.
  template <typename Ask, typename Visit>
  void forEachBox(Rank wanting, Ask ask, Visit visit) {
    assigner_.startRank();
    const std::vector<LocalTensor>& outputs = spec_.ranks[static_cast<std::size_t>(wanting)].outputs;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const int numDims = index_[outputs[o].tensor].numDims;
      for (std::size_t s = 0; s < outputs[o].slices.size(); ++s) {
        BoxRow row;
        rowOf(outputs[o].slices[s].slice, row.data());
        if (isEmptyRow(numDims, row.data())) {
          continue;
        }
        const WantedBox wanted{wanting, outputs[o].tensor, static_cast<std::int32_t>(o), row.data()};
        if (const Pieces* pieces = ask(wanted)) {
          visit(*pieces, wanted, static_cast<std::int32_t>(s));
        }
      }
    }
  }

  void buildReceives() {
    draftBoxes_.resize(index_.numTensors());
    for (std::size_t t = 0; t < draftBoxes_.size(); ++t) {
      draftBoxes_[t].reset(index_[static_cast<std::int32_t>(t)].numDims);
    }
    forEachBox(
        rank_, [this](const WantedBox& wanted) { return &assigner_.assign(wanted); },
        [this](const Pieces& pieces, const WantedBox& wanted, std::int32_t slice) { draft(pieces, wanted, slice); });
    std::stable_sort(copies_.begin(), copies_.end(),
                     [](const Draft& a, const Draft& b) { return a.distance < b.distance; });
    makeReceiveEdges();
    plan_.moves.reserve(copies_.size() + combines_.size());
    plan_.sources.reserve(draftSources_.size());
    for (const Draft& copy : copies_) {
      addMove(copy);
    }
    plan_.firstCombine = static_cast<std::uint32_t>(plan_.moves.size());
    for (const Draft& combine : combines_) {
      addMove(combine);
    }
  }

  void draft(const Pieces& pieces, const WantedBox& wanted, std::int32_t slice) {
    BoxList& boxes = draftBoxes_[static_cast<std::size_t>(wanted.tensor)];
    for (const Piece& piece : pieces.pieces) {
      Draft draft{0,
                  wanted.output,
                  slice,
                  static_cast<std::uint32_t>(boxes.size()),
                  static_cast<std::uint32_t>(draftSources_.size()),
                  piece.numSources};
      boxes.add(pieces.boxes[piece.box]);
      const auto first = pieces.sources.begin() + piece.firstSource;
      draftSources_.insert(draftSources_.end(), first, first + piece.numSources);
      if (piece.numSources == 1) {
        draft.distance = distanceTo(first->rank);
        copies_.push_back(draft);
      } else {
        combines_.push_back(draft);
      }
    }
  }

  // Edges with their ranges, bytes and inputs; edgeAt_ finds them by distance.
  void makeReceiveEdges() {
    edgeAt_.assign(static_cast<std::size_t>(worldSize_), -1);
    std::vector<bool> isUsed(static_cast<std::size_t>(worldSize_), false);
    for (const PieceSource& source : draftSources_) {
      isUsed[static_cast<std::size_t>(distanceTo(source.rank))] = true;
    }
    for (std::int32_t distance = 1; distance < worldSize_; ++distance) {
      if (isUsed[static_cast<std::size_t>(distance)]) {
        edgeAt_[static_cast<std::size_t>(distance)] = static_cast<std::int32_t>(plan_.receives.size());
        plan_.receives.emplace_back().peer = rankAt(distance);
      }
    }
    for (const std::vector<Draft>* drafts : {&copies_, &combines_}) {
      for (const Draft& draft : *drafts) {
        account(draft);
      }
    }
    while (plan_.numOwnCopies < copies_.size() && copies_[plan_.numOwnCopies].distance == 0) {
      ++plan_.numOwnCopies;
    }
    std::uint32_t first = plan_.numOwnCopies;
    for (PlanEdge& edge : plan_.receives) {
      edge.first = first;
      first += edge.count;
      sortInputs(edge.inputs);
    }
  }

  void account(const Draft& draft) {
    const std::int32_t tensor = tensorOf(draft);
    const TensorSources& sources = index_[tensor];
    const std::uint64_t bytes = rowElements(sources.numDims, draftBoxes_[static_cast<std::size_t>(tensor)][draft.box]) *
                                sources.elemBytes(draft.numSources);
    for (std::uint32_t s = draft.firstSource; s < draft.firstSource + draft.numSources; ++s) {
      const std::int32_t edgeIndex = edgeAt_[static_cast<std::size_t>(distanceTo(draftSources_[s].rank))];
      if (edgeIndex < 0) {
        continue;  // from myself
      }
      PlanEdge& edge = plan_.receives[static_cast<std::size_t>(edgeIndex)];
      edge.count += draft.numSources == 1 ? 1 : 0;
      edge.numCopies = edge.count;
      edge.bytes += bytes;
      ++edge.numItems;
      edge.inputs.push_back(draftSources_[s].input);
    }
  }

  std::int32_t tensorOf(const Draft& draft) const {
    return spec_.ranks[static_cast<std::size_t>(rank_)].outputs[static_cast<std::size_t>(draft.output)].tensor;
  }

  void addMove(const Draft& draft) {
    const LocalTensor& output =
        spec_.ranks[static_cast<std::size_t>(rank_)].outputs[static_cast<std::size_t>(draft.output)];
    const TensorSources& sources = index_[output.tensor];
    const GlobalTensor& tensor = spec_.tensors[static_cast<std::size_t>(output.tensor)];
    const std::int64_t* row = draftBoxes_[static_cast<std::size_t>(output.tensor)][draft.box];
    plan_.moves.push_back(
        {draft.output, localOffsetOf(output.slices[static_cast<std::size_t>(draft.slice)], sources.numDims, row),
         shapeOf(sources.numDims, row), static_cast<std::uint32_t>(plan_.sources.size()), draft.numSources,
         draft.numSources == 1 ? ReduceOp::kNone : sources.reduction, tensor.dtype});
    for (std::uint32_t s = draft.firstSource; s < draft.firstSource + draft.numSources; ++s) {
      const PieceSource& source = draftSources_[s];
      const LocalTensor& input =
          spec_.ranks[static_cast<std::size_t>(source.rank)].inputs[static_cast<std::size_t>(source.input)];
      const std::int32_t edge = edgeAt_[static_cast<std::size_t>(distanceTo(source.rank))];
      const std::int32_t slot =
          edge < 0 ? source.input : slotOf(plan_.receives[static_cast<std::size_t>(edge)].inputs, source.input);
      plan_.sources.push_back(
          {source.rank, source.input, slot,
           localOffsetOf(input.slices[static_cast<std::size_t>(source.slice)], sources.numDims, row)});
    }
  }

  void buildSends() {
    assigner_.setSupplier(rank_);
    for (std::int32_t distance = 1; distance < worldSize_; ++distance) {
      const Rank peer = rankAt(distance);
      lateItems_.clear();
      PlanEdge edge;
      edge.peer = peer;
      edge.first = static_cast<std::uint32_t>(plan_.sendItems.size());
      forEachBox(
          peer,
          [this](const WantedBox& wanted) {
            return assigner_.supplies(wanted.tensor) ? &assigner_.assignFromSupplier(wanted) : nullptr;
          },
          [&](const Pieces& pieces, const WantedBox& wanted, std::int32_t) {
            sendPieces(pieces, wanted.tensor, edge);
          });
      edge.numCopies = static_cast<std::uint32_t>(plan_.sendItems.size()) - edge.first;
      plan_.sendItems.insert(plan_.sendItems.end(), lateItems_.begin(), lateItems_.end());
      finishSendEdge(edge);
    }
  }

  // Copies are sent at once; the items that the peer combines follow after all copies.
  void sendPieces(const Pieces& pieces, std::int32_t tensor, PlanEdge& edge) {
    const TensorSources& sources = index_[tensor];
    const GlobalTensor& sent = spec_.tensors[static_cast<std::size_t>(tensor)];
    for (const Piece& piece : pieces.pieces) {
      bool isFirstOfPiece = true;
      for (std::uint32_t s = piece.firstSource; s < piece.firstSource + piece.numSources; ++s) {
        const PieceSource& source = pieces.sources[s];
        if (source.rank != rank_) {
          continue;
        }
        const std::int64_t* row = pieces.boxes[piece.box];
        const LocalTensor& input =
            spec_.ranks[static_cast<std::size_t>(rank_)].inputs[static_cast<std::size_t>(source.input)];
        std::vector<PlanSendItem>& items = piece.numSources == 1 ? plan_.sendItems : lateItems_;
        items.push_back({source.input, 0,
                         localOffsetOf(input.slices[static_cast<std::size_t>(source.slice)], sources.numDims, row),
                         shapeOf(sources.numDims, row), !isFirstOfPiece,
                         stagedDtype(sent.dtype, sent.dtypeOfOutputs(), piece.numSources > 1)});
        isFirstOfPiece = false;
        edge.bytes += rowElements(sources.numDims, row) * sources.elemBytes(piece.numSources);
        edge.inputs.push_back(source.input);
      }
    }
  }

  void finishSendEdge(PlanEdge& edge) {
    edge.count = static_cast<std::uint32_t>(plan_.sendItems.size()) - edge.first;
    edge.numItems = edge.count;
    if (edge.count == 0) {
      return;
    }
    sortInputs(edge.inputs);
    for (std::uint32_t i = edge.first; i < edge.first + edge.count; ++i) {
      plan_.sendItems[i].slot = slotOf(edge.inputs, plan_.sendItems[i].input);
    }
    plan_.sends.push_back(std::move(edge));
  }

  const GlobalSpec& spec_;
  const Rank rank_;
  const std::int32_t worldSize_;
  const SourceIndex& index_;
  Assigner assigner_;
  Plan plan_;
  std::vector<BoxList> draftBoxes_;  // by tensor
  std::vector<Draft> copies_;
  std::vector<Draft> combines_;
  std::vector<PieceSource> draftSources_;
  std::vector<std::int32_t> edgeAt_;     // by distance: index into plan_.receives, -1 for none
  std::vector<PlanSendItem> lateItems_;  // items that the current peer combines
};

Status checkHosts(const GlobalSpec& spec, HostMap hosts) {
  if (!hosts.empty() && hosts.size() != spec.ranks.size()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the host map has {} entries for a group of {} ranks: give one per rank, or none",
                              hosts.size(), spec.ranks.size()));
  }
  return Status::ok();
}

// The boxes of one tensor wanted by a rank, by (output, slice).
struct WantedBoxes {
  BoxList boxes;
  BoxSearch search;
  std::uint32_t numDone = 0;
};

std::map<std::int32_t, WantedBoxes> wantedBoxes(const RankSpec& rank, const SourceIndex& index) {
  std::map<std::int32_t, WantedBoxes> wanted;
  for (const LocalTensor& output : rank.outputs) {
    const int numDims = index[output.tensor].numDims;
    const auto [at, isFirst] = wanted.try_emplace(output.tensor);
    if (isFirst) {
      at->second.boxes.reset(numDims);
    }
    for (const PlacedSlice& placed : output.slices) {
      BoxRow row;
      rowOf(placed.slice, row.data());
      if (!isEmptyRow(numDims, row.data())) {
        at->second.boxes.add(row.data());
      }
    }
  }
  for (auto& [tensor, all] : wanted) {
    std::vector<std::uint32_t> members(all.boxes.size());
    std::iota(members.begin(), members.end(), 0U);
    all.search.build(all.boxes, members, index[tensor].grid.busiestDim());
  }
  return wanted;
}

// Elements of `row` outside of all boxes done.
std::uint64_t newElements(const WantedBoxes& wanted, const std::int64_t* row) {
  const int numDims = wanted.boxes.numDims();
  BoxList rest;
  BoxList kept;
  rest.reset(numDims);
  rest.add(row);
  wanted.search.forEachOverlap(row, [&](std::uint32_t box) {
    if (box < wanted.numDone) {
      cutOut(rest, wanted.boxes[box], kept);
      std::swap(rest, kept);
    }
  });
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    elements += rowElements(numDims, rest[i]);
  }
  return elements;
}

}  // namespace

struct Planner::Common {
  Common(const GlobalSpec& ofAll, HostMap hosts) : spec(ofAll), index(ofAll, hosts) {}

  const GlobalSpec& spec;
  const SourceIndex index;
  std::uint64_t fingerprint = 0;
};

Planner::Planner(std::unique_ptr<const Common> common) : common_(std::move(common)) {}

Planner::~Planner() = default;

Result<std::unique_ptr<Planner>> Planner::create(const GlobalSpec& spec, HostMap hosts) {
  SW_RETURN_IF_ERROR(checkHosts(spec, hosts));
  auto common = std::make_unique<Common>(spec, hosts);
  SW_RETURN_IF_ERROR(checkCover(spec, common->index));
  Hasher hasher;
  hasher.add(fingerprint(spec));
  common->fingerprint = hasher.value();
  return std::unique_ptr<Planner>(new Planner(std::move(common)));
}

Plan Planner::planOf(Rank rank) const {
  SW_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < common_->spec.ranks.size());
  Plan plan = PlanBuilder(common_->spec, rank, common_->index).build();
  plan.fingerprint = common_->fingerprint;
  return plan;
}

Result<Plan> redistribute(const GlobalSpec& spec, Rank rank, HostMap hosts) {
  SW_RETURN_IF_ERROR(checkHosts(spec, hosts));
  if (rank < 0 || static_cast<std::size_t>(rank) >= spec.ranks.size()) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("rank {} is out of range: the group has {} ranks, counted from 0", rank, spec.ranks.size()));
  }
  const Result<std::unique_ptr<Planner>> planner = Planner::create(spec, hosts);
  return planner.isOk() ? Result<Plan>((*planner)->planOf(rank)) : Result<Plan>(planner.status());
}

Result<Traffic> trafficOf(const GlobalSpec& spec, HostMap hosts) {
  SW_RETURN_IF_ERROR(checkHosts(spec, hosts));
  const SourceIndex index(spec, hosts);
  SW_RETURN_IF_ERROR(checkCover(spec, index));
  Traffic traffic;
  Assigner assigner(index);
  for (std::size_t rank = 0; rank < spec.ranks.size(); ++rank) {
    std::map<Rank, Traffic::Edge> edges;
    assigner.startRank();
    const std::vector<LocalTensor>& outputs = spec.ranks[rank].outputs;
    std::map<std::int32_t, WantedBoxes> wanted = wantedBoxes(spec.ranks[rank], index);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const TensorSources& sources = index[outputs[o].tensor];
      WantedBoxes& all = wanted.at(outputs[o].tensor);
      for (const PlacedSlice& placed : outputs[o].slices) {
        BoxRow row;
        rowOf(placed.slice, row.data());
        if (isEmptyRow(sources.numDims, row.data())) {
          continue;
        }
        const Pieces& pieces =
            assigner.assign({static_cast<Rank>(rank), outputs[o].tensor, static_cast<std::int32_t>(o), row.data()});
        for (const Piece& piece : pieces.pieces) {
          const std::int64_t* box = pieces.boxes[piece.box];
          const std::uint64_t bytes = rowElements(sources.numDims, box) * sources.elemBytes(piece.numSources);
          const std::uint64_t newBytes = newElements(all, box) * sources.elemBytes(piece.numSources);
          for (std::uint32_t s = piece.firstSource; s < piece.firstSource + piece.numSources; ++s) {
            const Rank source = pieces.sources[s].rank;
            Traffic::Edge& edge =
                edges.try_emplace(source, Traffic::Edge{source, static_cast<Rank>(rank), 0, 0}).first->second;
            edge.bytes += bytes;
            ++edge.pieces;
            // Own holders come first, so each piece from another rank is missing on this rank.
            traffic.lowerBoundBytes += source == static_cast<Rank>(rank) ? 0 : newBytes;
          }
        }
        ++all.numDone;
      }
    }
    for (const auto& [source, edge] : edges) {
      traffic.edges.push_back(edge);
    }
  }
  std::ranges::sort(traffic.edges, {},
                    [](const Traffic::Edge& edge) { return std::pair(edge.source, edge.destination); });
  return traffic;
}

}  // namespace shardwire::internal
