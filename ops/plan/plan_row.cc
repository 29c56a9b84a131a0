// Layout, version 1: u32 magic "SWPR", u8 version, u64 checksum of all that follows, u64 hosts, v length + the agreed
// spec (spec_codec.cc), then the plan (plan_codec.cc) to the end.
#include "ops/plan/plan_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/plan/hash.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {

namespace {

constexpr std::uint32_t kRowMagic = 0x52505753;  // "SWPR"
constexpr std::uint8_t kRowVersion = 1;
constexpr std::size_t kRowHeadBytes = 4 + 1 + 8;

std::uint64_t checksumOf(std::string_view bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.value();
}

Status unusable(const std::string& why) {
  return {StatusCode::kInvalidArgument, why + ": compile it again"};
}

DType typeOnSide(const TensorDecl& tensor, bool isInput) {
  return isInput ? *tensor.dtype : *tensor.outputDtype;
}

// The plan is of these lists: as many tensors, of these shapes and types.
bool fits(const LocalSpec& agreed, const std::vector<LocalTensor>& locals, const std::vector<PlanTensor>& planned,
          bool areInputs) {
  return std::ranges::equal(locals, planned, [&](const LocalTensor& local, const PlanTensor& tensor) {
    return local.tensor >= 0 && static_cast<std::size_t>(local.tensor) < agreed.tensors.size() &&
           local.localShape == tensor.shape &&
           typeOnSide(agreed.tensors[static_cast<std::size_t>(local.tensor)], areInputs) == tensor.dtype;
  });
}

bool hasAllFacts(const LocalSpec& agreed) {
  return std::ranges::all_of(agreed.tensors, [](const TensorDecl& tensor) {
    return tensor.shape.has_value() && tensor.dtype.has_value() && tensor.outputDtype.has_value();
  });
}

// Tensors have the numbers of all ranks in the one and of this rank in the other.
bool isSameList(const LocalSpec& agreed, const std::vector<LocalTensor>& own, const LocalSpec& asked,
                const std::vector<LocalTensor>& wanted) {
  return std::ranges::equal(own, wanted, [&](const LocalTensor& mine, const LocalTensor& other) {
    return mine.slices == other.slices && mine.localShape == other.localShape &&
           agreed.tensors[static_cast<std::size_t>(mine.tensor)].name ==
               asked.tensors[static_cast<std::size_t>(other.tensor)].name;
  });
}

}  // namespace

std::uint64_t hashOf(HostMap hosts, std::size_t worldSize) {
  Hasher hasher;
  for (std::size_t rank = 0; rank < worldSize; ++rank) {
    hasher.add(static_cast<std::uint64_t>(hosts.empty() ? 0 : hosts[rank]));
  }
  return hasher.value();
}

std::string encodeRow(const PlanRow& row) {
  ByteWriter body;
  body.fixed(row.hosts);
  body.varintText(encodeSpec(row.agreed));
  const std::string rest = body.take() + serialise(row.plan);
  ByteWriter out;
  out.fixed(kRowMagic);
  out.fixed(kRowVersion);
  out.fixed(checksumOf(rest));
  return out.take() + rest;
}

Result<PlanRow> decodeRow(std::string_view bytes) {
  ByteReader in(bytes);
  const auto magic = in.fixed<std::uint32_t>();
  const auto version = in.fixed<std::uint8_t>();
  const auto checksum = in.fixed<std::uint64_t>();
  if (!in.ok() || magic != kRowMagic) {
    return unusable(fmt::format("these {} bytes are no rank's plan: they do not begin with its mark", bytes.size()));
  }
  if (version != kRowVersion) {
    return unusable(
        fmt::format("a rank's plan has format version {}, this build reads version {}", version, kRowVersion));
  }
  const std::string_view rest = bytes.substr(kRowHeadBytes);
  if (checksum != checksumOf(rest)) {
    return unusable(
        fmt::format("a rank's plan of {} bytes was cut short or damaged: its checksum is {:016x}, it says {:016x}",
                    bytes.size(), checksumOf(rest), checksum));
  }
  const auto hosts = in.fixed<std::uint64_t>();
  const std::string agreedBytes = in.varintText();
  if (!in.ok()) {
    return unusable("a rank's plan is malformed");
  }
  Result<LocalSpec> agreed = decodeSpec(agreedBytes);
  SW_RETURN_IF_ERROR(agreed.status());
  Result<Plan> plan = deserialise(in.rest());
  SW_RETURN_IF_ERROR(plan.status());
  if (!hasAllFacts(*agreed) || !fits(*agreed, agreed->inputs, plan->inputs, true) ||
      !fits(*agreed, agreed->outputs, plan->outputs, false)) {
    return unusable("a rank's plan is of other tensors than the lists beside it");
  }
  return PlanRow{std::move(*agreed), hosts, std::move(*plan)};
}

Status checkRow(const PlanRow& row, Rank rank, int worldSize, const LocalSpec& asked) {
  if (row.plan.rank != rank || row.plan.worldSize != worldSize) {
    return unusable(fmt::format("the plan is of rank {} of {}, not of rank {} of {}", row.plan.rank, row.plan.worldSize,
                                rank, worldSize));
  }
  if (!isSameList(row.agreed, row.agreed.inputs, asked, asked.inputs) ||
      !isSameList(row.agreed, row.agreed.outputs, asked, asked.outputs)) {
    return unusable("the plan is of other boxes than this rank gave");
  }
  return Status::ok();
}

}  // namespace shardwire::internal
