// What symmetric memory asks of the engine: its waits are outside of operations, since peers change its words behind the back of the
// engine; and its requests to peers that do not share memory.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "backend/exec/engine.h"
#include "backend/exec/one_sided_requests.h"
#include "backend/exec/point_to_point.h"

namespace shardwire::internal {

Status Engine::lookFor(std::span<const Rank> peers) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel()));
  Completions done;
  Status status;
  {
    const MutexLock lock(mutex_);
    pollLocked();
    checkSlow(false);
    std::vector<Rank> gone;
    for (const Rank peer : peers) {
      if (peer != rank_ && !peerDown_[static_cast<std::size_t>(peer)].isOk()) {
        gone.push_back(peer);
      }
    }
    if (!gone.empty()) {
      pollLocked();  // what they sent before they went: perhaps why
    }
    if (operations_.failure().has_value()) {
      status = *operations_.failure();
    } else if (!gone.empty()) {
      status = goneError(gone);
    }
    takeCompletions(&done);
  }
  flush(&done);
  return status;
}

void Engine::help() {
  Completions done;
  pollOrNot(false, &done);
  flush(&done);
}

Status Engine::request(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel()));
  return submitPoint(request, [&](PointToPoint&) {
    mutex_.assertHeld();
    std::vector<Rank> gone;
    std::ranges::copy_if(peers, std::back_inserter(gone), [&](Rank peer) {
      mutex_.assertHeld();
      return !peerDown_[static_cast<std::size_t>(peer)].isOk();
    });
    if (!gone.empty()) {
      poison(goneError(gone), true);  // and the request fails with it
      return;
    }
    oneSided_->start(request, peers);
  });
}

Rank Engine::firstAhead(std::span<const Rank> peers, std::span<const std::uint64_t> fingerprints) const {
  const MutexLock lock(mutex_);
  return operations_.early().firstBlobFrom(operations_.nextSeq(), peers, fingerprints);
}

Status Engine::quiet(std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel()));
  std::vector<Rank> peers;
  {
    const MutexLock lock(mutex_);
    peers = oneSided_->unquiet();
  }
  if (peers.empty()) {
    return Status::ok();
  }
  const auto all = std::make_shared<QuietRequest>(peers);
  all->description = std::make_shared<const std::string>("quiet of symmetric memory");
  all->timeout = timeout.value_or(Duration{0});
  Status status = request(all, peers);
  status = status.isOk() ? all->wait(kNoDeadline) : status;
  if (!status.isOk() && status.code() != StatusCode::kInterrupted) {
    const MutexLock lock(mutex_);
    oneSided_->forget();
  }
  return status;
}

void Engine::serve(std::uint64_t block, std::shared_ptr<ServedPart> part) {
  const MutexLock lock(mutex_);
  oneSided_->serve(block, std::move(part));
}

void Engine::expectRequests(std::uint64_t block, std::vector<Rank> askers) {
  {
    const MutexLock lock(mutex_);
    oneSided_->expectRequests(block, std::move(askers));
  }
  wakeProgress();
}

void Engine::withdraw(std::uint64_t block) {
  const MutexLock lock(mutex_);
  oneSided_->withdraw(block);
}

void Engine::drop(Rank peer, std::uint64_t block) {
  const MutexLock lock(mutex_);
  if (!isClosed_ && !operations_.failure().has_value()) {
    oneSided_->drop(peer, block);
  }
}

bool Engine::areAllJoined() const {
  const MutexLock lock(mutex_);
  return isJoinedToAll();
}

Result<std::shared_ptr<HeldMemory>> Engine::hold(Rank peer, const HeapPlace& place, std::size_t size) {
  const MutexLock lock(mutex_);
  if (isClosed_) {
    return operations_.failure().value_or(Status{StatusCode::kAborted, "the group was shut down on " + groupLabel()});
  }
  return connection(peer).hold(place, size);
}

}  // namespace shardwire::internal
