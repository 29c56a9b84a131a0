// LocalSpec on the wire. Layout, version 1 (v = varint, z = zigzag varint, dims = count byte + z each, text = v length + bytes):
//   u8 version, u8 allowGaps, u8 error code, [text error message when the code is not ok], text name,
//   v numTensors x { text name, u8 dtype, u8 reduction, u8 hasShape, [dims shape] },
//   v numInputs x local tensor, v numOutputs x local tensor
//   local tensor: v tensor, u8 hasReplicaClass, [u64 replicaClass], dims localShape, v numSlices x slice
//   slice: u8 flags (kFillsLocal: shape == localShape; kAtOrigin: localOffset is zeros), dims offset, [dims shape], [dims localOffset]
// Wrong specs (negative extents, dims that do not fit together) are carried as they are: mergeSpecs tells every rank about them.
#include "ops/plan/byte_codec.h"
#include "ops/plan/global_spec.h"

namespace shardwire::internal {

namespace {

constexpr std::uint8_t kSpecVersion = 1;
constexpr std::uint8_t kFillsLocal = 1;
constexpr std::uint8_t kAtOrigin = 2;
// Fewest bytes of a record, to bound counts before anything is allocated.
constexpr std::size_t kMinTensorBytes = 4;
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
  for (std::size_t i = 0; i < numSlices && !in.failed(); ++i) {
    decodeSlice(in, local, local.slices[i]);
  }
}

void decodeLocalTensors(ByteReader& in, std::vector<LocalTensor>& locals) {
  const std::size_t count = in.count(in.varint(), kMinLocalTensorBytes);
  locals.resize(count);
  for (std::size_t i = 0; i < count && !in.failed(); ++i) {
    decodeLocalTensor(in, locals[i]);
  }
}

void decodeTensorDecls(ByteReader& in, std::vector<TensorDecl>& tensors) {
  const std::size_t count = in.count(in.varint(), kMinTensorBytes);
  tensors.resize(count);
  for (std::size_t i = 0; i < count && !in.failed(); ++i) {
    TensorDecl& decl = tensors[i];
    decl.name = in.text();
    decl.dtype = in.enumerator<DType>(kNumDTypes);
    decl.reduction = in.enumerator<ReduceOp>(kNumReduceOps);
    if (in.boolean()) {
      decl.shape = in.varintDims();
    }
  }
}

}  // namespace

std::string encodeSpec(const LocalSpec& spec) {
  ByteWriter out;
  out.fixed(kSpecVersion);
  out.fixed(static_cast<std::uint8_t>(spec.allowGaps));
  out.fixed(static_cast<std::uint8_t>(spec.localError.code()));
  if (!spec.localError.isOk()) {
    out.text(spec.localError.message());
  }
  out.text(spec.name);
  out.varint(spec.tensors.size());
  for (const TensorDecl& decl : spec.tensors) {
    out.text(decl.name);
    out.fixed(static_cast<std::uint8_t>(decl.dtype));
    out.fixed(static_cast<std::uint8_t>(decl.reduction));
    out.fixed(static_cast<std::uint8_t>(decl.shape.has_value()));
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
  if (!in.failed() && version != kSpecVersion) {
    return Status(StatusCode::kInvalidArgument, "an encoded spec has format version " + std::to_string(version) +
                                                    ", this build reads version " + std::to_string(kSpecVersion) +
                                                    ": run the same shardwire version on all ranks");
  }
  LocalSpec spec;
  spec.allowGaps = in.boolean();
  const auto code = in.enumerator<StatusCode>(static_cast<int>(StatusCode::kInternal) + 1);
  if (code != StatusCode::kOk) {
    spec.localError = Status(code, in.text());
  }
  spec.name = in.text();
  decodeTensorDecls(in, spec.tensors);
  decodeLocalTensors(in, spec.inputs);
  decodeLocalTensors(in, spec.outputs);
  if (in.failed() || !in.atEnd()) {
    return Status(StatusCode::kInvalidArgument,
                  "an encoded spec of " + std::to_string(bytes.size()) +
                      " bytes is malformed: it was cut short or damaged on its way, or written by another program");
  }
  return spec;
}

}  // namespace shardwire::internal
