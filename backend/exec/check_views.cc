// The tensors of a call are checked against the plan in three steps. First each list alone: number, dtypes, shapes, and
// strides suitable for kernels. Then outputs: no output may overlap itself or another output, since both would be
// written. Last, inputs against outputs: a sweep over the addresses finds the pairs with shared memory. For these pairs
// a second sweep compares the boxes that the plan reads with the boxes that the plan writes. A move may read and write
// the same element, because the read comes first.
#include "backend/exec/check_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/boxes/strided_runs.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

namespace {

Status checkList(const std::vector<PlanTensor>& expected, std::span<const TensorView> given, const char* list,
                 const std::string& opName, Rank rank) {
  if (given.size() != expected.size()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: rank {} got {} {} tensor{}, but the spec has {} {} entr{}", opName, rank, given.size(),
                        list, given.size() == 1 ? "" : "s", expected.size(), list, expected.size() == 1 ? "y" : "ies")};
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].dtype != expected[i].dtype) {
      return {StatusCode::kTypeError, fmt::format("{}: {}s[{}] of rank {} is {}, but the spec says {}", opName, list, i,
                                                  rank, dtypeName(given[i].dtype), dtypeName(expected[i].dtype))};
    }
    if (!(given[i].shape == expected[i].shape)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: {}s[{}] of rank {} has shape {}, but the spec says {}", opName, list, i, rank,
                          toString(given[i].shape), toString(expected[i].shape))};
    }
    if (!hasStrides(given[i])) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: {}s[{}] of rank {} {}", opName, list, i, rank, wrongStridesText(given[i]))};
    }
    if (!isAddressable(given[i])) {
      return {StatusCode::kInvalidArgument, fmt::format("{}: {}s[{}] of rank {} has strides {}, more bytes than any "
                                                        "memory has; where an extent is 1, pass a smaller stride",
                                                        opName, list, i, rank, toString(given[i].strides))};
    }
    if (std::any_of(given[i].strides.begin(), given[i].strides.end(), [](std::int64_t stride) { return stride < 0; })) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: {}s[{}] of rank {} has negative strides; pass a copy", opName, list, i, rank)};
    }
  }
  return Status::ok();
}

Status sharedMemory(const std::string& opName, Rank rank, std::size_t input, std::size_t output) {
  return {StatusCode::kInvalidArgument, fmt::format("{}: inputs[{}] and outputs[{}] of rank {} share memory that would "
                                                    "be overwritten before the reading; pass an output without "
                                                    "overlap with the input",
                                                    opName, input, output, rank)};
}

// A box that the plan reads or writes.
struct Access {
  TensorView box;
  const PlanMove* move = nullptr;  // null: a peer reads
  bool isWrite = false;
};

// An element read and written by one move at the same place is safe: the read comes first.
bool areInOrder(const Access& a, const Access& b) {
  return a.move == b.move && a.box.bytes == b.box.bytes && a.box.strides == b.box.strides && a.box.dtype == b.box.dtype;
}

// A copy onto itself moves nothing, so peers may read the box meanwhile.
bool staysInPlace(const Access& read, const Access& write, const PlanMove& move) {
  return move.numSources == 1 && areInOrder(read, write);
}

// Compares the reads of `input` with the writes of `output`.
bool mayRun(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
            std::size_t input, std::size_t output) {
  std::vector<Access> accesses;
  const auto add = [&](const TensorView& tensor, const Dims& offset, const Dims& shape, const PlanMove* move,
                       bool isWrite) {
    accesses.push_back({{boxOf(tensor, offset).bytes, tensor.dtype, shape, tensor.strides}, move, isWrite});
  };
  const PlanSendItem* before = nullptr;  // mostly all peers read one box
  for (const PlanSendItem& item : plan.sendItems) {
    if (static_cast<std::size_t>(item.input) == input &&
        (before == nullptr || before->offset != item.offset || before->shape != item.shape)) {
      add(inputs[input], item.offset, item.shape, nullptr, false);
      before = &item;
    }
  }
  for (const PlanMove& move : plan.moves) {
    const std::size_t numBefore = accesses.size();
    if (static_cast<std::size_t>(move.output) == output) {
      add(outputs[output], move.offset, move.shape, &move, true);
    }
    for (std::uint32_t s = move.firstSource; s < move.firstSource + move.numSources; ++s) {
      const PlanSource& source = plan.sources[s];
      if (source.rank == plan.rank && static_cast<std::size_t>(source.input) == input) {
        add(inputs[input], source.offset, move.shape, &move, false);
      }
    }
    if (accesses.size() == numBefore + 2 && staysInPlace(accesses[numBefore], accesses[numBefore + 1], move)) {
      accesses.resize(numBefore);
    }
  }
  bool isSafe = true;
  const auto boxAt = [&](std::size_t i) -> const TensorView& { return accesses[i].box; };
  visitMeetings(accesses.size(), boxAt, [&](std::size_t first, std::size_t second) {
    const Access& a = accesses[first];
    const Access& b = accesses[second];
    isSafe = a.isWrite == b.isWrite || areInOrder(a, b) || !shareMemory(a.box, b.box);
    return !isSafe;
  });
  return isSafe;
}

}  // namespace

Status checkViews(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                  const std::string& opName) {
  SW_RETURN_IF_ERROR(checkList(plan.inputs, inputs, "input", opName, plan.rank));
  SW_RETURN_IF_ERROR(checkList(plan.outputs, outputs, "output", opName, plan.rank));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (overlapsItself(outputs[i])) {
      return {
          StatusCode::kInvalidArgument,
          fmt::format(
              "{}: outputs[{}] of rank {} has elements that share memory (strides {}); pass a tensor without overlap",
              opName, i, plan.rank, toString(outputs[i].strides))};
    }
  }
  if (const auto pair = findShared(outputs)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: outputs[{}] and outputs[{}] of rank {} share memory; pass separate tensors", opName,
                        pair->first, pair->second, plan.rank)};
  }
  return Status::ok();
}

Status checkAliasing(const Plan& plan, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const std::string& opName) {
  Status status;
  visitMeetings(inputs, outputs, [&](std::size_t input, std::size_t output) {
    if (shareMemory(inputs[input], outputs[output]) && !mayRun(plan, inputs, outputs, input, output)) {
      status = sharedMemory(opName, plan.rank, input, output);
    }
    return !status.isOk();
  });
  return status;
}

}  // namespace shardwire::internal
