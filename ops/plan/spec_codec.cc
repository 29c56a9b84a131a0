// LocalSpec on the wire. Layout, version 4 (v = varint, z = zigzag varint, dims = count byte + z each, text = v length
// + bytes):
//   u8 version, u8 allowGaps | overlap << 1 | whoPlans << 3, u8 error code, [text error message when the code is not
//   ok], text name, v numTensors x { text name, u8 given, [u8 dtype], [u8 outputDtype], u8 reduction, [dims shape] },
//   given: kHasShape, kHasDtype, ..., v numInputs x local tensor, v numOutputs x local tensor local tensor: v tensor,
//   u8 hasReplicaClass, [u64 replicaClass], dims localShape, v numSlices x slice slice: u8 flags (kFillsLocal: shape ==
//   localShape; kAtOrigin: localOffset is zeros), dims offset, [dims shape], [dims localOffset]
// Wrong specs (negative extents, dims that do not fit together) are carried unchanged: mergeSpecs reports them on every
// rank.
#include "ops/plan/global_spec.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {

namespace {

constexpr std::uint8_t kSpecVersion = 4;
constexpr int kOverlapAt = 1;
constexpr int kWhoPlansAt = 3;
constexpr std::uint8_t kHasShape = 1;
constexpr std::uint8_t kHasDtype = 2;
constexpr std::uint8_t kHasOutputDtype = 4;
constexpr std::uint8_t kFillsLocal = 1;
constexpr std::uint8_t kAtOrigin = 2;
// Fewest bytes of a record, to bound counts before anything is allocated.
constexpr std::size_t kMinTensorBytes = 3;
constexpr std::size_t kMinLocalTensorBytes = 4;
constexpr std::size_t kMinSliceBytes = 2;

void encodeLocalTensor(const LocalTensor& local, ByteWriter& out) {
  out.varint(static_cast<std::uint32_t>(local.tensor));
  out.fixed(static_cast<std::uint8_t>(local.replicaClass != 0));
  if (local.replicaClass != 0) {
    out.fixed(local.replicaClass);
  }
  out.varintDims(local.localShape);
  out.varint(local.slices.size());
  for (const PlacedSlice& placed : local.slices) {
    const bool fillsLocal = placed.slice.shape == local.localShape;
    const bool atOrigin = placed.localOffset == Dims::filled(placed.slice.offset.size(), 0);
    out.fixed(static_cast<std::uint8_t>((fillsLocal ? kFillsLocal : 0) | (atOrigin ? kAtOrigin : 0)));
    out.varintDims(placed.slice.offset);
    if (!fillsLocal) {
      out.varintDims(placed.slice.shape);
    }
    if (!atOrigin) {
      out.varintDims(placed.localOffset);
    }
  }
}

void decodeSlice(ByteReader& in, const LocalTensor& local, PlacedSlice& placed) {
  const auto flags = in.fixed<std::uint8_t>();
  if (flags > (kFillsLocal | kAtOrigin)) {
    in.fail();
    return;
  }
  placed.slice.offset = in.varintDims();
  placed.slice.shape = (flags & kFillsLocal) != 0 ? local.localShape : in.varintDims();
  placed.localOffset = (flags & kAtOrigin) != 0 ? Dims::filled(placed.slice.offset.size(), 0) : in.varintDims();
}

void decodeLocalTensor(ByteReader& in, LocalTensor& local) {
  const std::uint64_t tensor = in.varint();
  if (tensor > UINT32_MAX) {
    in.fail();
    return;
  }
  local.tensor = static_cast<std::int32_t>(static_cast<std::uint32_t>(tensor));
  if (in.boolean()) {
    local.replicaClass = in.fixed<std::uint64_t>();
    if (local.replicaClass == 0) {
      in.fail();
    }
  }
  local.localShape = in.varintDims();
  const std::size_t numSlices = in.count(in.varint(), kMinSliceBytes);
  local.slices.resize(numSlices);
  for (std::size_t i = 0; i < numSlices && in.ok(); ++i) {
    decodeSlice(in, local, local.slices[i]);
  }
}

void decodeLocalTensors(ByteReader& in, std::vector<LocalTensor>& locals) {
  const std::size_t count = in.count(in.varint(), kMinLocalTensorBytes);
  locals.resize(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    decodeLocalTensor(in, locals[i]);
  }
}

void decodeTensorDecls(ByteReader& in, std::vector<TensorDecl>& tensors) {
  const std::size_t count = in.count(in.varint(), kMinTensorBytes);
  tensors.resize(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    TensorDecl& decl = tensors[i];
    decl.name = in.varintText();
    const auto given = in.fixed<std::uint8_t>();
    if (given > (kHasShape | kHasDtype | kHasOutputDtype)) {
      in.fail();
      return;
    }
    const auto dtype = [&](std::uint8_t flag) {
      return (given & flag) != 0 ? std::optional(in.enumerator<DType>(kNumDTypes)) : std::nullopt;
    };
    decl.dtype = dtype(kHasDtype);
    decl.outputDtype = dtype(kHasOutputDtype);
    decl.reduction = in.enumerator<ReduceOp>(kNumReduceOps);
    if ((given & kHasShape) != 0) {
      decl.shape = in.varintDims();
    }
  }
}

}  // namespace

std::string encodeSpec(const LocalSpec& spec) {
  ByteWriter out;
  out.fixed(kSpecVersion);
  out.fixed(static_cast<std::uint8_t>(static_cast<unsigned>(spec.allowGaps) |
                                      static_cast<unsigned>(spec.overlap) << kOverlapAt |
                                      static_cast<unsigned>(spec.whoPlans) << kWhoPlansAt));
  out.fixed(static_cast<std::uint8_t>(spec.localError.code()));
  if (!spec.localError.isOk()) {
    out.varintText(spec.localError.message());
  }
  out.varintText(spec.name);
  out.varint(spec.tensors.size());
  for (const TensorDecl& decl : spec.tensors) {
    out.varintText(decl.name);
    out.fixed(static_cast<std::uint8_t>((decl.shape ? kHasShape : 0) | (decl.dtype ? kHasDtype : 0) |
                                        (decl.outputDtype ? kHasOutputDtype : 0)));
    for (const std::optional<DType>& dtype : {decl.dtype, decl.outputDtype}) {
      if (dtype) {
        out.fixed(static_cast<std::uint8_t>(*dtype));
      }
    }
    out.fixed(static_cast<std::uint8_t>(decl.reduction));
    if (decl.shape) {
      out.varintDims(*decl.shape);
    }
  }
  for (const std::vector<LocalTensor>* locals : {&spec.inputs, &spec.outputs}) {
    out.varint(locals->size());
    for (const LocalTensor& local : *locals) {
      encodeLocalTensor(local, out);
    }
  }
  return out.take();
}

Result<LocalSpec> decodeSpec(std::string_view bytes) {
  ByteReader in(bytes);
  const auto version = in.fixed<std::uint8_t>();
  if (in.ok() && version != kSpecVersion) {
    return Status(StatusCode::kInvalidArgument, "an encoded spec has format version " + std::to_string(version) +
                                                    ", this build reads version " + std::to_string(kSpecVersion) +
                                                    ": run the same shardwire version on all ranks");
  }
  LocalSpec spec;
  const auto flags = in.fixed<std::uint8_t>();
  const int overlap = flags >> kOverlapAt & 3;
  if (overlap > static_cast<int>(Overlap::kError) || flags >> kWhoPlansAt > static_cast<int>(WhoPlans::kEachRank)) {
    in.fail();
  }
  spec.allowGaps = (flags & 1) != 0;
  spec.overlap = static_cast<Overlap>(overlap);
  spec.whoPlans = static_cast<WhoPlans>(flags >> kWhoPlansAt & 3);
  const auto code = in.enumerator<StatusCode>(kNumStatusCodes);
  if (code != StatusCode::kOk) {
    spec.localError = Status(code, in.varintText());
  }
  spec.name = in.varintText();
  decodeTensorDecls(in, spec.tensors);
  decodeLocalTensors(in, spec.inputs);
  decodeLocalTensors(in, spec.outputs);
  if (!in.isDone()) {
    return Status(StatusCode::kInvalidArgument,
                  "an encoded spec of " + std::to_string(bytes.size()) +
                      " bytes is malformed: it was cut short or damaged on its way, or written by another program");
  }
  return spec;
}

std::optional<WhoPlans> whoPlansOf(std::string_view encodedSpec) {
  if (encodedSpec.size() < 2 || static_cast<std::uint8_t>(encodedSpec[0]) != kSpecVersion ||
      static_cast<std::uint8_t>(encodedSpec[1]) >> kWhoPlansAt > static_cast<int>(WhoPlans::kEachRank)) {
    return std::nullopt;
  }
  return static_cast<WhoPlans>(static_cast<std::uint8_t>(encodedSpec[1]) >> kWhoPlansAt);
}

Result<GlobalSpec> mergeEncoded(std::span<const std::string> encoded) {
  std::vector<LocalSpec> specs;
  specs.reserve(encoded.size());
  for (std::size_t rank = 0; rank < encoded.size(); ++rank) {
    Result<LocalSpec> decoded = decodeSpec(encoded[rank]);
    if (!decoded.isOk()) {
      return Status(decoded.status().code(),
                    "the spec of rank " + std::to_string(rank) + " cannot be read: " + decoded.status().message());
    }
    specs.push_back(std::move(*decoded));
  }
  return mergeSpecs(specs);
}

}  // namespace shardwire::internal
