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

template <typename T, typename Fields>
void list(ByteWriter& out, const std::vector<T>& items, std::size_t, Fields fields) {
  out.fixed(static_cast<std::uint32_t>(items.size()));
  for (const T& item : items) {
    fields(out, item);
  }
}
// minBytes: of one record, so that a count never makes us allocate for more records than the bytes left can hold.
template <typename T, typename Fields>
void list(ByteReader& in, std::vector<T>& items, std::size_t minBytes, Fields fields) {
  const std::size_t count = in.count(in.fixed<std::uint32_t>(), minBytes);
  items.resize(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    fields(in, items[i]);
  }
}

constexpr auto kTensorFields = [](auto& codec, auto& tensor) {
  codec.enumField(tensor.dtype, kNumDTypes);
  codec.field(tensor.shape);
};

constexpr auto kEdgeFields = [](auto& codec, auto& edge) {
  codec.field(edge.peer);
  codec.field(edge.first);
  codec.field(edge.count);
  codec.field(edge.numCopies);
  codec.field(edge.bytes);
  codec.field(edge.numItems);
  list(codec, edge.inputs, 4, [](auto& each, auto& input) { each.field(input); });
};

constexpr auto kSourceFields = [](auto& codec, auto& source) {
  codec.field(source.rank);
  codec.field(source.input);
  codec.field(source.slot);
  codec.field(source.offset);
};

constexpr auto kMoveFields = [](auto& codec, auto& move) {
  codec.field(move.output);
  codec.field(move.offset);
  codec.field(move.shape);
  codec.field(move.firstSource);
  codec.field(move.numSources);
  codec.enumField(move.reduction, kNumReduceOps);
  codec.enumField(move.sourceDtype, kNumDTypes);
};

constexpr auto kSendItemFields = [](auto& codec, auto& item) {
  codec.field(item.input);
  codec.field(item.slot);
  codec.field(item.offset);
  codec.field(item.shape);
  codec.field(item.withPrevious);
  codec.enumField(item.stagedDtype, kNumDTypes);
};

constexpr auto kPlanFields = [](auto& codec, auto& plan) {
  codec.field(plan.rank);
  codec.field(plan.worldSize);
  codec.field(plan.fingerprint);
  codec.field(plan.numOwnCopies);
  codec.field(plan.firstCombine);
  list(codec, plan.inputs, 2, kTensorFields);
  list(codec, plan.outputs, 2, kTensorFields);
  list(codec, plan.sources, 13, kSourceFields);
  list(codec, plan.moves, 16, kMoveFields);
  list(codec, plan.receives, 36, kEdgeFields);
  list(codec, plan.sendItems, 12, kSendItemFields);
  list(codec, plan.sends, 36, kEdgeFields);
};

}  // namespace

std::string serialise(const Plan& plan) {
  ByteWriter out;
  out.fixed(kPlanMagic);
  out.fixed(kPlanVersion);
  kPlanFields(out, plan);
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
  kPlanFields(in, plan);
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
