// The bytes by which processes of one host find each other's memory: what a rank says of itself in the store, and the messages over a Unix
// socket, fixed-width fields behind a magic, a version and a kind. Pure. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "shardwire/options.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kShmVersion = 4;
inline constexpr std::size_t kMaxShmTextBytes = 2048;

// Where a process is asked for its memory.
struct ShmDoor {
  RandomId process;        // see processId()
  std::string socketName;  // abstract; of one fabric
  RandomId token;          // a secret; who dials shows that it knows it
};

// What a rank says of itself (Endpoint::address()).
struct ShmAddress {
  ShmDoor door;
  std::uint64_t inboxOffset = 0;  // in the arena
  RandomId inboxId;
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
};

// The dialer's first and only message.
struct ShmHello {
  RandomId process;
  RandomId token;  // the door's, with the job's token: makeHostToken()
};

// The answer; the arena's descriptor comes with it, the liveness's, and the heap's, if there is one.
struct ShmWelcome {
  RandomId process;
  std::uint64_t arenaBytes = 0;
  std::uint64_t heapBytes = 0;  // 0: no heap
  std::uint64_t probeAddress = 0;
  std::uint64_t probeSecret = 0;
};

std::string encodeShmAddress(const ShmAddress& address);
std::string encodeShmHello(const ShmHello& hello);
std::string encodeShmWelcome(const ShmWelcome& welcome);
std::string encodeShmRefusal(const Status& reason);
// Asks for the secret that a process gives to processes of its user only (see ShmListener). `token` as in ShmHello.
std::string encodeShmSecretRequest(const RandomId& token);
std::string encodeShmSecret(std::string_view secret);

// kMismatch for garbage, kUnsupported for another version; a refusal comes back as its error.
Result<ShmAddress> decodeShmAddress(std::string_view bytes);
Result<ShmHello> decodeShmHello(std::string_view bytes);
Result<ShmWelcome> decodeShmWelcome(std::string_view bytes);
Result<RandomId> decodeShmSecretRequest(std::string_view bytes);
Result<std::string> decodeShmSecret(std::string_view bytes);

bool isShmSecretRequest(std::string_view bytes);

}  // namespace shardwire::internal
