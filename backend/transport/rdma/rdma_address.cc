#include "backend/transport/rdma/rdma_address.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

constexpr auto kRailFields = [](auto& codec, auto& rail) {
  codec.field(rail.device, kMaxNameBytes);
  codec.field(rail.port);
  codec.field(rail.isEthernet);
  codec.wideField(rail.lid);
  for (auto& byte : rail.gid) {
    codec.field(byte);
  }
  codec.field(rail.mtu);
  codec.field(rail.mbps);
};

int commonPrefixBits(const Gid& a, const Gid& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      return static_cast<int>(i * 8) + std::countl_zero(static_cast<std::uint8_t>(a[i] ^ b[i]));
    }
  }
  return static_cast<int>(a.size() * 8);
}

std::string layersOf(const std::vector<RailAddress>& rails) {
  std::vector<std::string> names;
  for (const RailAddress& rail : rails) {
    names.push_back(toString(rail));
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string encodeRailAddresses(const std::vector<RailAddress>& rails) {
  ByteWriter writer;
  writer.u8(kRdmaAddressVersion);
  writer.u8(static_cast<std::uint8_t>(rails.size()));
  for (const RailAddress& rail : rails) {
    kRailFields(writer, rail);
  }
  return writer.bytes();
}

Result<std::vector<RailAddress>> decodeRailAddresses(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (version != kRdmaAddressVersion) {
    return Status{StatusCode::kMismatch,
                  fmt::format("speaks version {} of the RDMA set-up, this rank {}", version, kRdmaAddressVersion)};
  }
  const std::size_t numRails = reader.u8();
  std::vector<RailAddress> rails;
  for (std::size_t i = 0; i < numRails && reader.ok(); ++i) {
    kRailFields(reader, rails.emplace_back());
  }
  if (!reader.isDone() || rails.empty() || rails.size() > kMaxRails) {
    return Status{StatusCode::kMismatch, "published a malformed RDMA address"};
  }
  return rails;
}

std::vector<std::pair<std::size_t, std::size_t>> pairRails(const std::vector<RailAddress>& dialer,
                                                           const std::vector<RailAddress>& listener) {
  struct Candidate {
    int worth;
    std::size_t a;
    std::size_t b;
  };
  std::vector<Candidate> candidates;
  for (std::size_t a = 0; a < dialer.size(); ++a) {
    for (std::size_t b = 0; b < listener.size(); ++b) {
      if (dialer[a].isEthernet == listener[b].isEthernet) {
        candidates.push_back({dialer[a].isEthernet ? commonPrefixBits(dialer[a].gid, listener[b].gid) : 0, a, b});
      }
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& x, const Candidate& y) { return x.worth > y.worth; });
  std::vector<bool> isUsedA(dialer.size());
  std::vector<bool> isUsedB(listener.size());
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (const Candidate& candidate : candidates) {
    if (!isUsedA[candidate.a] && !isUsedB[candidate.b]) {
      isUsedA[candidate.a] = isUsedB[candidate.b] = true;
      pairs.emplace_back(candidate.a, candidate.b);
    }
  }
  return pairs;
}

std::string whyNoPair(const std::vector<RailAddress>& one, const std::vector<RailAddress>& other) {
  if (!pairRails(one, other).empty()) {
    return {};
  }
  std::string a = layersOf(one);
  std::string b = layersOf(other);
  if (b < a) {
    std::swap(a, b);
  }
  return fmt::format("their RDMA ports have different link layers: {} on one side, {} on the other", a, b);
}

}  // namespace shardwire::internal
