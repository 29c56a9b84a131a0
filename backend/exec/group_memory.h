// The part of a group for symmetric memory. The waits are outside of operations, since peers change words of the memory
// without the engine. Requests go to peers that do not share memory (one_sided.h). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/exec/driving.h"
#include "backend/exec/group_state.h"

namespace shardwire::internal {

class GroupMemory {
 public:
  GroupMemory(Driving& driving, const GroupFacts& facts) : driving_(driving), facts_(facts) {}

  // Moves everything that can move, and returns the reason if a wait is in vain: the group failed, or one of `peers` is
  // gone.
  Status lookFor(std::span<const Rank> peers);
  // Moves everything that can move, unless another thread does. Does not look for gone peers.
  void help() { driving_.help(); }
  // Whether this rank is joined to all other ranks.
  bool areAllJoined() const;
  // The first of `peers` that began the next exchange of this group, with one of the fingerprints, before this rank
  // called the exchange; -1: none.
  Rank firstAhead(std::span<const Rank> peers, std::span<const std::uint64_t> fingerprints) const;
  // Starts a request to the peers. Fails as Engine::submit() does.
  Status request(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers);
  // Returns when all peers have carried out all requests. absent: the group's timeout.
  Status quiet(std::optional<Duration> timeout);
  // Peers may use this rank's part of a block from now on, until withdraw() or the end of the group. expectRequests:
  // the peers that will send requests, so that a thread polls for these requests.
  void serve(std::uint64_t block, std::shared_ptr<ServedPart> part);
  void expectRequests(std::uint64_t block, std::vector<Rank> askers);
  void withdraw(std::uint64_t block);
  // Notifies the peer that this rank does not use the peer's part any more.
  void drop(Rank peer, std::uint64_t block);
  // See Connection::hold(). The group's failure when the group is closed.
  Result<std::shared_ptr<HeldMemory>> hold(Rank peer, const HeapPlace& place, std::size_t size);

 private:
  Driving& driving_;
  const GroupFacts& facts_;
};

}  // namespace shardwire::internal
