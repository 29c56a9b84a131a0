// All ranks' LocalSpecs together: the one input of planning. Every rank holds the same GlobalSpec and so derives the
// same answers and errors.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/op_spec.h"

namespace shardwire::internal {

struct RankSpec {
  std::vector<LocalTensor> inputs;  // LocalTensor::tensor indexes GlobalSpec::tensors
  std::vector<LocalTensor> outputs;
  friend bool operator==(const RankSpec&, const RankSpec&) = default;
};

// A tensor after all ranks' declarations were merged.
struct GlobalTensor {
  std::string name;
  Dims shape;
  DType dtype = DType::kFloat32;  // of inputs
  ReduceOp reduction = ReduceOp::kNone;
  std::optional<DType> outputDtype = std::nullopt;  // absent: dtype; never equal to dtype

  DType dtypeOfOutputs() const { return outputDtype.value_or(dtype); }
  friend bool operator==(const GlobalTensor&, const GlobalTensor&) = default;
};

struct GlobalSpec {
  std::string name;
  bool allowGaps = false;
  Overlap overlap = Overlap::kLast;
  std::vector<GlobalTensor> tensors;  // in order of first mention: by rank, then by index in the rank's declaration
  std::vector<RankSpec> ranks;
  friend bool operator==(const GlobalSpec&, const GlobalSpec&) = default;
};

// One rank's spec on the wire: version byte, then fixed-width little-endian fields with varint extents; <= 64 bytes per
// ordinary slice.
std::string encodeSpec(const LocalSpec& spec);
// Bounds-checked; kInvalidArgument on anything malformed (overflowing extents, counts larger than the bytes left,
// unknown enumerators).
Result<LocalSpec> decodeSpec(std::string_view bytes);

// The value of LocalSpec::whoPlans in an encoded spec, read without decoding the rest. nullopt for bytes that are no
// encoded spec.
std::optional<WhoPlans> whoPlansOf(std::string_view encodedSpec);

// Merges and checks: localErrors (the lowest rank's error wins, the others are counted), declarations that disagree,
// wrong number of dimensions, negative or overflowing extents, boxes outside their tensor or their local tensor,
// reductions that the dtype does not have, outputs whose own boxes overlap in one local tensor. Every message names
// rank, list, index, the mistake and how to fix it. The text is the same on all ranks. A shape that no rank gave
// becomes the bounding box of all regions.
SHARDWIRE_EXPORT Result<GlobalSpec> mergeSpecs(std::span<const LocalSpec> specs);
// The same for encoded specs, by rank. kInvalidArgument for a spec that cannot be read.
Result<GlobalSpec> mergeEncoded(std::span<const std::string> encoded);

// Rank `rank`'s part of `spec`, written as one rank's spec: everything all ranks agreed on, and the rank's own lists.
// Every tensor has a shape and both dtypes.
LocalSpec specOf(const GlobalSpec& spec, Rank rank);
// The same for `own`, the lists of one rank, which are moved from.
LocalSpec specOf(const GlobalSpec& spec, RankSpec&& own);

// Hash of everything above; equal on all ranks.
std::uint64_t fingerprint(const GlobalSpec& spec);

}  // namespace shardwire::internal
