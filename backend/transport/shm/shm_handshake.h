// The first words of two ranks over a Unix socket: who they are, that they belong together, their memory (inbox and heap descriptors), and
// whether each can read the other's ordinary memory. The dialer speaks first. One thread at a time.
//
//   dialer                         listener
//   hello + descriptors  ------->  checks version, ranks, world size, token
//                        <-------  hello + descriptors, or a refusal with its reason
//   (each reads the other's probe buffer)
//   probe result         <------>  probe result
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "backend/memory/shared_heap.h"
#include "backend/transport/shm/inbox.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kShmHandshakeVersion = 1;

// What a rank brings to each of its handshakes.
struct ShmEndpoint {
  Rank rank = 0;
  int worldSize = 0;
  RandomId token;    // proves that the other side read the same store
  RandomId process;  // see processId()
  std::string host;
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
  std::shared_ptr<Inbox> inbox;
  const SharedHeap* heap = nullptr;
  std::vector<std::byte> probe;  // peers try their reads on it until the last handshake is over
  std::uint64_t probeSecret = 0;

  static Result<ShmEndpoint> create(Rank rank, int worldSize, const RandomId& token, const std::string& host, const Options& options);
};

// `socket` leads to rank `peer`, who listens.
Result<std::unique_ptr<Connection>> dialShm(Fd socket, const ShmEndpoint& self, Rank peer, Deadline deadline);

// `socket` was accepted. No connection and no error: a stranger (another user, or without the token) was turned away.
Result<std::unique_ptr<Connection>> answerShm(Fd socket, const ShmEndpoint& self, Deadline deadline);

}  // namespace shardwire::internal
