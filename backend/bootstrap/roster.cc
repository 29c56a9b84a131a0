#include "backend/bootstrap/roster.h"

#include <utility>

#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxAddressBytes = std::size_t{64} << 10;

}  // namespace

Result<std::optional<std::string>> askStore(Gathering& group, const std::string& key) {
  auto bytes = group.store.get(key, Clock::now());  // with a deadline in the past, get() looks once
  if (bytes.isOk()) {
    return std::optional(std::move(*bytes));
  }
  if (bytes.status().code() == StatusCode::kTimeout) {
    return std::optional<std::string>();
  }
  group.storeFailed = true;
  return bytes.status();
}

Status putStore(Gathering& group, const std::string& key, std::string_view value) {
  Status done = group.store.set(key, value);
  group.storeFailed |= !done.isOk();
  return done;
}

Status writeRoster(Gathering& group) {
  ByteWriter writer;
  writer.u32(static_cast<std::uint32_t>(group.worldSize));
  for (const RankAddress& address : group.addresses) {
    writer.text(encodeAddress(address));
  }
  return putStore(group, kRosterKey, writer.bytes());
}

std::optional<std::vector<std::string>> rosterWith(const Gathering& group, const std::string& bytes) {
  ByteReader reader(bytes);
  const std::uint32_t size = reader.u32();
  std::vector<std::string> addresses;
  for (std::uint32_t i = 0; i < size && size == static_cast<std::uint32_t>(group.worldSize); ++i) {
    addresses.push_back(reader.text(kMaxAddressBytes));
  }
  if (addresses.empty() || !reader.isDone() || addresses[Gathering::index(group.rank)] != group.published) {
    return std::nullopt;
  }
  return addresses;
}

bool usesRoster(const Gathering& group) {
  return group.worldSize > kFewAddresses || !group.attempt.isSure;
}

bool isAllPublished(Gathering& group) {
  if (usesRoster(group) && group.rank != 0) {
    const auto bytes = askStore(group, kRosterKey);
    return bytes.isOk() && bytes->has_value() && rosterWith(group, **bytes).has_value();
  }
  for (Rank rank = 0; rank < group.worldSize; ++rank) {
    const auto bytes = askStore(group, addressKey(rank));
    if (!bytes.isOk() || !bytes->has_value()) {
      return false;
    }
  }
  return true;
}

}  // namespace shardwire::internal
