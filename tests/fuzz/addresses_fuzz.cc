// The entries of a group's store: addresses of ranks and of transports, the roster, failures and attempts. The first
// byte of an input chooses the kind of entry.
#include "backend/bootstrap/address.h"
#include "backend/bootstrap/failure_board.h"
#include "backend/bootstrap/roster.h"
#include "backend/bootstrap/store_attempts.h"
#include "backend/transport/rdma/rdma_address.h"
#include "backend/transport/shm/shm_message.h"
#include "shardwire/stores.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {

using namespace internal;

namespace {

constexpr int kRosterRanks = 5;

RankAddress addressOfRank(Rank rank) {
  RankAddress address;
  address.worldSize = kRosterRanks;
  address.pid = static_cast<std::uint32_t>(rank);
  return address;
}

// Rank 1 of a group, which has published its address.
Gathering gatheringAt(Store& store) {
  Gathering group{thisMachine(), store, store, Attempt{}, 0, 1, kRosterRanks, Clock::now()};
  group.published = encodeAddress(addressOfRank(1));
  return group;
}

}  // namespace

void parse(std::string_view input) {
  const std::string bytes(input.substr(std::min<std::size_t>(input.size(), 1)));
  switch (input.empty() ? 0 : static_cast<unsigned char>(input[0]) % 6) {
    case 0: {
      const auto address = decodeAddress(bytes);
      require(!address.isOk() || *decodeAddress(encodeAddress(*address)) == *address);
      return;
    }
    case 1: {
      const auto address = decodeShmAddress(bytes);
      require(!address.isOk() || encodeShmAddress(*address) == bytes);
      return;
    }
    case 2: {
      const std::string half = bytes.substr(0, bytes.size() / 2);
      const auto both = decodeRailAddresses(bytes);
      const auto one = decodeRailAddresses(half);
      const std::vector<RailAddress> own = {{.device = "a", .isEthernet = true}, {.device = "b"}};
      require(!both.isOk() || *decodeRailAddresses(encodeRailAddresses(*both)) == *both);
      static_cast<void>(both.isOk() ? whyNoPair(*both, own) : std::string());
      return;
    }
    case 3: {
      const auto failure = decodeFailure(bytes);
      require(!failure.has_value() || !failure->isOk());
      return;
    }
    case 4: {
      MemoryStore store;
      const Gathering group = gatheringAt(store);
      const auto addresses = rosterWith(group, bytes);
      require(!addresses.has_value() || (addresses->size() == kRosterRanks && (*addresses)[1] == group.published));
      for (const std::string& each : addresses.value_or(std::vector<std::string>())) {
        static_cast<void>(decodeAddress(each));
      }
      return;
    }
    default: {
      MemoryStore store;
      require(store.set("shardwire/attempt", bytes).isOk());
      const auto attempt = findAttempt(store, 1, Clock::now());
      static_cast<void>(isOutdated(store, attempt.isOk() ? *attempt : Attempt{}));
    }
  }
}

std::vector<std::string> seeds() {
  RankAddress address;
  address.worldSize = 3;
  address.bootId = "boot";
  address.socketName = "socket";
  address.lifeLinks = {{"10.0.0.1", 0, 4000, "eth0"}, {"fe80::1", 2, 4001, "eth1"}};
  address.links = address.lifeLinks;
  address.transports[1] = {"bytes", "why not"};
  RankAddress failed = address;
  failed.failure = {StatusCode::kSystem, "no memory"};
  MemoryStore store;
  require(findAttempt(store, 0, Clock::now()).isOk());
  Gathering group = gatheringAt(store);
  for (Rank rank = 0; rank < kRosterRanks; ++rank) {
    group.addresses.push_back(addressOfRank(rank));
  }
  require(writeRoster(group).isOk());
  return {std::string(1, '\0') + encodeAddress(address),
          std::string(1, '\0') + encodeAddress(failed),
          "\1" + encodeShmAddress({.owner = {.socketName = "socket"}, .inboxOffset = 64}),
          "\2" + encodeRailAddresses({{.device = "mlx5_0", .isEthernet = true}, {.device = "mlx5_1", .lid = 7}}),
          "\3" + encodeFailure(failed.failure),
          "\4" + *store.get(kRosterKey, Clock::now()),
          "\5" + *store.get("shardwire/attempt", Clock::now())};
}

}  // namespace shardwire::fuzz
