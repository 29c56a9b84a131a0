#include "backend/communicator/list_memory.h"

#include <fmt/format.h>

#include <string>

#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

namespace {

std::string nameOf(const char* list, std::size_t index, std::size_t count) {
  return count == 1 ? fmt::format("the {}", list) : fmt::format("{}s[{}]", list, index);
}

}  // namespace

Status checkListMemory(const ListNames& names, Rank rank, std::span<const TensorView> inputs,
                       std::span<const TensorView> outputs) {
  const ViewsExtent written = extentOf(outputs);
  if (const auto pair = written.ascend ? std::nullopt : findShared(outputs)) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format(
            "{}: {} and {} of rank {} share memory, and the operation writes both; give each output memory of its own",
            names.call, nameOf(names.outputs, pair->first, outputs.size()),
            nameOf(names.outputs, pair->second, outputs.size()), rank)};
  }
  const AddressRange read = extentOf(inputs).whole;
  if (!read.meets(written.whole)) {
    return Status::ok();
  }
  const auto isOwn = [&](std::size_t index, std::size_t count) {
    return count == 1 || index == static_cast<std::size_t>(rank);
  };
  Status status;
  visitMeetings(inputs, outputs, [&](std::size_t i, std::size_t o) {
    const bool inPlace = isOwn(i, inputs.size()) && isOwn(o, outputs.size()) && areOneTensor(inputs[i], outputs[o]);
    if (!inPlace && shareMemory(inputs[i], outputs[o])) {
      status = {StatusCode::kInvalidArgument,
                fmt::format("{}: {} and {} of rank {} share memory, and the operation would write there before it has "
                            "read everything; give the output memory of its own, or pass a clone of the input",
                            names.call, nameOf(names.inputs, i, inputs.size()),
                            nameOf(names.outputs, o, outputs.size()), rank)};
    }
    return !status.isOk();
  });
  return status;
}

}  // namespace shardwire::internal
