#include "backend/exec/group_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/exec/one_sided_requests.h"
#include "backend/exec/slow_checks.h"

namespace shardwire::internal {

Status GroupMemory::lookFor(std::span<const Rank> peers) {
  SW_RETURN_IF_ERROR(facts_.owner.check(facts_.label));
  Status status;
  driving_.act([&](GroupState& state) {
    state.poll();
    checkSlow(state, false);
    const std::vector<Rank> gone = state.links.goneOf(peers);
    if (!gone.empty()) {
      state.poll();  // takes the last frames of gone peers: perhaps with the reason
    }
    if (!state.operations.failure().isOk()) {
      status = state.operations.failure();
    } else if (!gone.empty()) {
      status = goneError(state, gone);
    }
  });
  return status;
}

bool GroupMemory::areAllJoined() const {
  return driving_.locked([](const GroupState& state) { return state.links.isJoinedToAll(); });
}

Rank GroupMemory::firstAhead(std::span<const Rank> peers, std::span<const std::uint64_t> fingerprints) const {
  return driving_.locked([&](const GroupState& state) {
    return state.operations.early().firstBlobFrom(state.operations.nextSeq(), peers, fingerprints);
  });
}

Status GroupMemory::request(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers) {
  SW_RETURN_IF_ERROR(facts_.owner.check(facts_.label));
  const auto begin = [&](GroupState& state) -> const Activity* {
    state.take(request);
    if (const std::vector<Rank> gone = state.links.goneOf(peers); !gone.empty()) {
      state.failure.fail(goneError(state, gone));  // the request fails with the group
    } else {
      state.oneSided.start(request, peers);
    }
    return nullptr;
  };
  return driving_.start(begin, Duration::zero());
}

Status GroupMemory::quiet(std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(facts_.owner.check(facts_.label));
  const std::vector<Rank> peers = driving_.locked([](const GroupState& state) { return state.oneSided.unquiet(); });
  if (peers.empty()) {
    return Status::ok();
  }
  const auto all = std::make_shared<QuietRequest>(peers);
  all->description = std::make_shared<const std::string>("quiet of symmetric memory");
  if (timeout.has_value()) {  // a wait may be longer than the group's timeout; a shorter wait ends alone
    all->timeout =
        std::max(*timeout, driving_.locked([](const GroupState& state) { return state.operations.timeout(); }));
  }
  Status status = request(all, peers);
  const bool isAsked = status.isOk();
  status = isAsked ? all->wait(timeout.has_value() ? deadlineAfter(*timeout) : kNoDeadline) : status;
  if (status.isOk()) {
    return status;
  }
  const bool isDone = all->isDone();        // before the status, which is then final
  if (!isAsked || !all->status().isOk()) {  // the group has failed
    driving_.locked([](GroupState& state) { state.oneSided.forget(); });
    return status;
  }
  if (isDone) {  // just after the wait had ended alone; an interrupt still belongs to the caller
    return status.code() == StatusCode::kTimeout ? Status::ok() : status;
  }
  const auto reason = driving_.locked([&](const GroupState&) { return all->waitingFor(); });  // the wait ended alone
  return {status.code(), fmt::format("{}; {}", status.message(), reason)};
}

void GroupMemory::serve(std::uint64_t block, std::shared_ptr<ServedPart> part) {
  driving_.locked([&](GroupState& state) { state.oneSided.serve(block, std::move(part)); });
}

void GroupMemory::expectRequests(std::uint64_t block, std::vector<Rank> askers) {
  driving_.locked([&](GroupState& state) { state.oneSided.expectRequests(block, std::move(askers)); });
  driving_.wakeProgress();
}

void GroupMemory::withdraw(std::uint64_t block) {
  driving_.locked([&](GroupState& state) { state.oneSided.withdraw(block); });
}

void GroupMemory::drop(Rank peer, std::uint64_t block) {
  driving_.locked([&](GroupState& state) {
    if (!state.links.isClosed() && state.operations.failure().isOk()) {
      state.oneSided.drop(peer, block);
    }
  });
}

Result<std::shared_ptr<HeldMemory>> GroupMemory::hold(Rank peer, const HeapPlace& place, std::size_t size) {
  return driving_.locked([&](GroupState& state) -> Result<std::shared_ptr<HeldMemory>> {
    if (state.links.isClosed()) {
      return state.operations.refusal();
    }
    return state.context.connection(peer).hold(place, size);
  });
}

}  // namespace shardwire::internal
