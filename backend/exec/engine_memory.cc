// Symmetric memory waits outside of operations, since peers change its words without the engine; and it sends requests to peers that do not
// share memory.
#include <algorithm>

#include "backend/exec/engine.h"
#include "backend/exec/one_sided_requests.h"
#include "backend/exec/slow_checks.h"

namespace shardwire::internal {

Status Engine::lookFor(std::span<const Rank> peers) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel()));
  Status status;
  driving_.act([&](GroupState& state) {
    state.poll();
    checkSlow(state, false);
    const std::vector<Rank> gone = state.links.goneOf(peers);
    if (!gone.empty()) {
      state.poll();  // what they sent before they went: perhaps why
    }
    if (state.operations.failure().has_value()) {
      status = *state.operations.failure();
    } else if (!gone.empty()) {
      status = goneError(state, gone);
    }
  });
  return status;
}

Status Engine::request(const std::shared_ptr<OneSidedRequest>& request, std::span<const Rank> peers) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel()));
  const auto begin = [&](GroupState& state) {
    take(state, request);
    state.operations.record(*request, {});
    state.operations.startClocks();
    if (const std::vector<Rank> gone = state.links.goneOf(peers); !gone.empty()) {
      state.failure.fail(goneError(state, gone));  // and the request fails with it
      return;
    }
    state.oneSided.start(request, peers);
  };
  return driving_.start(begin, nullptr, Duration::zero());
}

Status Engine::quiet(std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel()));
  const std::vector<Rank> peers = driving_.locked([](const GroupState& state) { return state.oneSided.unquiet(); });
  if (peers.empty()) {
    return Status::ok();
  }
  const auto all = std::make_shared<QuietRequest>(peers);
  all->description = std::make_shared<const std::string>("quiet of symmetric memory");
  all->timeout = timeout.value_or(Duration{0});
  Status status = request(all, peers);
  status = status.isOk() ? all->wait(kNoDeadline) : status;
  if (!status.isOk() && status.code() != StatusCode::kInterrupted) {
    driving_.locked([](GroupState& state) { state.oneSided.forget(); });
  }
  return status;
}

void Engine::serve(std::uint64_t block, std::shared_ptr<ServedPart> part) {
  driving_.locked([&](GroupState& state) { state.oneSided.serve(block, std::move(part)); });
}

void Engine::expectRequests(std::uint64_t block, std::vector<Rank> askers) {
  driving_.locked([&](GroupState& state) { state.oneSided.expectRequests(block, std::move(askers)); });
  driving_.wakeProgress();
}

void Engine::withdraw(std::uint64_t block) {
  driving_.locked([&](GroupState& state) { state.oneSided.withdraw(block); });
}

void Engine::drop(Rank peer, std::uint64_t block) {
  driving_.locked([&](GroupState& state) {
    if (!state.links.isClosed() && !state.operations.failure().has_value()) {
      state.oneSided.drop(peer, block);
    }
  });
}

Result<std::shared_ptr<HeldMemory>> Engine::hold(Rank peer, const HeapPlace& place, std::size_t size) {
  return driving_.locked([&](GroupState& state) -> Result<std::shared_ptr<HeldMemory>> {
    if (state.links.isClosed()) {
      return state.operations.failure().value_or(Status{StatusCode::kAborted, "the group was shut down on " + groupLabel()});
    }
    return state.context.connection(peer).hold(place, size);
  });
}

}  // namespace shardwire::internal
