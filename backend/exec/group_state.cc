#include "backend/exec/group_state.h"

#include <fmt/format.h>

#include "backend/exec/control_frames.h"

namespace shardwire::internal {

GroupState::GroupState(Peers& peers, const GroupFacts& facts, OpRecorder& recorder, FailureCallback& callback,
                       std::atomic<bool>& hasWork)
    : context{.host = *this,
              .rank = facts.rank,
              .worldSize = facts.worldSize,
              .label = facts.label,
              .inlineBytes = facts.options.inlineBytes,
              .eagerBytes = eagerBytes(facts.options),
              .segmentBytes = facts.segmentBytes,
              .hasCorePerRank = facts.hasCorePerRank,
              .connections = peers.connections,
              .wires = peers.wires,
              .process = peers.doorbell == nullptr ? nullptr : peers.doorbell->progressBell().get()},
      operations(context, recorder, facts.options.timeout),
      links(peers, context),
      points(context),
      oneSided(context),
      failure(context, operations, links, oneSided, callback, hasWork),
      disagreements(context, operations),
      questions(context, operations, links, facts.options.grace),
      warnAfter(facts.options.warnAfter) {}

bool GroupState::poll() {
  if (links.isClosed()) {
    return false;
  }
  bool progress = false;
  for (const auto& wire : context.wires) {
    progress |= wire->poll();
  }
  if (links.joinsLate()) {
    progress |= takeLateLinks();
  }
  for (const Rank peer : links.joined()) {
    if (!context.connection(peer).peek(Lane::kControl).empty()) {
      drainControl(*this, peer);
      progress = true;
    }
  }
  if (failure.hasNotices()) {
    failure.sendNotices();
  }
  if (oneSided.isOwing()) {
    progress |= oneSided.pay();
  }
  return operations.step() || progress;
}

bool GroupState::moveNow(Activity& activity, int polls) {
  if (!activity.isIn(context)) {
    activity.enter(context, driver);
  }
  return operations.moveNow(activity, context.wires.empty() ? polls : 1);  // without poll() no frame comes by a wire
}

void GroupState::take(const std::shared_ptr<Activity>& activity) {
  if (!activity->isIn(context)) {
    activity->enter(context, driver);
  }
  operations.take(activity);
  want(*activity);
}

void GroupState::want(Activity& activity) {
  if (links.joinsLate()) {
    links.want(activity);
  }
}

// A late peer gets the earlier notices and advice of the other peers, too.
bool GroupState::takeLateLinks() {
  std::vector<Rank> joined;
  const bool progress = links.takeLate(&joined);
  for (const Rank peer : joined) {
    failure.addNoticeTo(peer);
    questions.addAdviceTo(peer);
    const std::size_t theirs = context.connection(peer).maxFrameBytes(Lane::kBulk) - kHeadBytes<StagedFrame>;
    if (theirs < context.segmentBytes) {
      failure.fail(
          {StatusCode::kMismatch,
           fmt::format("rank {} has shorter rings than rank {} ({} and {} bytes at most at once): SHARDWIRE_RING_BYTES "
                       "must be the same on all ranks",
                       peer, context.rank, theirs, context.segmentBytes)});
    }
  }
  return progress;
}

}  // namespace shardwire::internal
