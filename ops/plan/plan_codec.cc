// Plans as bytes. Layout, version 3, all fields fixed-width little-endian (dims = u8 count + i64 each; a list = u32
// count + records):
//   u32 magic "SWPL", u8 version, i32 rank, i32 worldSize, u64 fingerprint, u32 numOwnCopies, u32 firstCombine,
//   inputs, outputs: { u8 dtype, dims shape }; sources: { i32 rank, i32 input, i32 slot, dims offset },
//   moves: { i32 output, dims offset, dims shape, u32 firstSource, u32 numSources, u8 reduction, u8 sourceDtype },
//   receives: edges; sendItems: { i32 input, i32 slot, dims offset, dims shape, u8 withPrevious, u8 stagedDtype };
//   sends: edges edge: i32 peer, u32 first, u32 count, u32 numCopies, u64 bytes, u64 numItems, list of i32 inputs
#include "ops/plan/plan.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {

namespace {

constexpr std::uint32_t kPlanMagic = 0x4c505753;  // "SWPL"
constexpr std::uint8_t kPlanVersion = 3;

template <typename T, typename Write>
void writeList(ByteWriter& out, const std::vector<T>& items, Write write) {
  out.fixed(static_cast<std::uint32_t>(items.size()));
  for (const T& item : items) {
    write(item);
  }
}

// minBytes: of one record, so that a count never makes us allocate for more records than the bytes left can hold.
template <typename T, typename Read>
void readList(ByteReader& in, std::vector<T>& items, std::size_t minBytes, Read read) {
  const std::size_t count = in.count(in.fixed<std::uint32_t>(), minBytes);
  items.resize(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    read(items[i]);
  }
}

void writeTensors(ByteWriter& out, const std::vector<PlanTensor>& tensors) {
  writeList(out, tensors, [&out](const PlanTensor& tensor) {
    out.fixed(static_cast<std::uint8_t>(tensor.dtype));
    out.fixedDims(tensor.shape);
  });
}
void readTensors(ByteReader& in, std::vector<PlanTensor>& tensors) {
  readList(in, tensors, 2, [&in](PlanTensor& tensor) {
    tensor.dtype = in.enumerator<DType>(kNumDTypes);
    tensor.shape = in.fixedDims();
  });
}

void writeEdges(ByteWriter& out, const std::vector<PlanEdge>& edges) {
  writeList(out, edges, [&out](const PlanEdge& edge) {
    out.fixed(edge.peer);
    out.fixed(edge.first);
    out.fixed(edge.count);
    out.fixed(edge.numCopies);
    out.fixed(edge.bytes);
    out.fixed(edge.numItems);
    writeList(out, edge.inputs, [&out](std::int32_t input) { out.fixed(input); });
  });
}
void readEdges(ByteReader& in, std::vector<PlanEdge>& edges) {
  readList(in, edges, 36, [&in](PlanEdge& edge) {
    edge.peer = in.fixed<Rank>();
    edge.first = in.fixed<std::uint32_t>();
    edge.count = in.fixed<std::uint32_t>();
    edge.numCopies = in.fixed<std::uint32_t>();
    edge.bytes = in.fixed<std::uint64_t>();
    edge.numItems = in.fixed<std::uint64_t>();
    readList(in, edge.inputs, 4, [&in](std::int32_t& input) { input = in.fixed<std::int32_t>(); });
  });
}

void writeSteps(ByteWriter& out, const Plan& plan) {
  writeList(out, plan.sources, [&out](const PlanSource& source) {
    out.fixed(source.rank);
    out.fixed(source.input);
    out.fixed(source.slot);
    out.fixedDims(source.offset);
  });
  writeList(out, plan.moves, [&out](const PlanMove& move) {
    out.fixed(move.output);
    out.fixedDims(move.offset);
    out.fixedDims(move.shape);
    out.fixed(move.firstSource);
    out.fixed(move.numSources);
    out.fixed(static_cast<std::uint8_t>(move.reduction));
    out.fixed(static_cast<std::uint8_t>(move.sourceDtype));
  });
  writeEdges(out, plan.receives);
  writeList(out, plan.sendItems, [&out](const PlanSendItem& item) {
    out.fixed(item.input);
    out.fixed(item.slot);
    out.fixedDims(item.offset);
    out.fixedDims(item.shape);
    out.fixed(static_cast<std::uint8_t>(item.withPrevious));
    out.fixed(static_cast<std::uint8_t>(item.stagedDtype));
  });
  writeEdges(out, plan.sends);
}

void readSteps(ByteReader& in, Plan& plan) {
  readList(in, plan.sources, 13, [&in](PlanSource& source) {
    source.rank = in.fixed<Rank>();
    source.input = in.fixed<std::int32_t>();
    source.slot = in.fixed<std::int32_t>();
    source.offset = in.fixedDims();
  });
  readList(in, plan.moves, 16, [&in](PlanMove& move) {
    move.output = in.fixed<std::int32_t>();
    move.offset = in.fixedDims();
    move.shape = in.fixedDims();
    move.firstSource = in.fixed<std::uint32_t>();
    move.numSources = in.fixed<std::uint32_t>();
    move.reduction = in.enumerator<ReduceOp>(kNumReduceOps);
    move.sourceDtype = in.enumerator<DType>(kNumDTypes);
  });
  readEdges(in, plan.receives);
  readList(in, plan.sendItems, 12, [&in](PlanSendItem& item) {
    item.input = in.fixed<std::int32_t>();
    item.slot = in.fixed<std::int32_t>();
    item.offset = in.fixedDims();
    item.shape = in.fixedDims();
    item.withPrevious = in.boolean();
    item.stagedDtype = in.enumerator<DType>(kNumDTypes);
  });
  readEdges(in, plan.sends);
}

}  // namespace

std::string serialise(const Plan& plan) {
  ByteWriter out;
  out.fixed(kPlanMagic);
  out.fixed(kPlanVersion);
  out.fixed(plan.rank);
  out.fixed(plan.worldSize);
  out.fixed(plan.fingerprint);
  out.fixed(plan.numOwnCopies);
  out.fixed(plan.firstCombine);
  writeTensors(out, plan.inputs);
  writeTensors(out, plan.outputs);
  writeSteps(out, plan);
  return out.take();
}

Result<Plan> deserialise(std::string_view bytes) {
  ByteReader in(bytes);
  const auto magic = in.fixed<std::uint32_t>();
  const auto version = in.fixed<std::uint8_t>();
  if (!in.ok() || magic != kPlanMagic) {
    return Status(StatusCode::kInvalidArgument,
                  "these bytes are not a shardwire plan: they do not begin with its mark");
  }
  if (version != kPlanVersion) {
    return Status(StatusCode::kInvalidArgument, "a plan has format version " + std::to_string(version) +
                                                    ", this build reads version " + std::to_string(kPlanVersion) +
                                                    ": compile it again");
  }
  Plan plan;
  plan.rank = in.fixed<Rank>();
  plan.worldSize = in.fixed<std::int32_t>();
  plan.fingerprint = in.fixed<std::uint64_t>();
  plan.numOwnCopies = in.fixed<std::uint32_t>();
  plan.firstCombine = in.fixed<std::uint32_t>();
  readTensors(in, plan.inputs);
  readTensors(in, plan.outputs);
  readSteps(in, plan);
  if (!in.isDone()) {
    return Status(StatusCode::kInvalidArgument,
                  "a plan of " + std::to_string(bytes.size()) +
                      " bytes is malformed: it was cut short or damaged, compile it again");
  }
  if (const Status status = validate(plan); !status.isOk()) {
    return Status(StatusCode::kInvalidArgument,
                  "a plan was read that breaks its own rules (" + status.message() + "): compile it again");
  }
  return plan;
}

}  // namespace shardwire::internal
