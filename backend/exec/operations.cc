// Each operation gets the next number when the user calls the operation. Frames carry this number, by which all ranks
// find the same operation. A frame arrives at one of three times. While the operation is in flight, the operation takes
// the frame; before the call, the frame is kept (EarlyFrames); after the end, the frame is of no use. In each case the
// fingerprint shows whether both ranks mean the same operation. step() goes from the oldest operation to the newest,
// and each operation notes to which peers later operations may not send yet. Finished operations are retired at once,
// in any order; the callbacks run later, outside of the lock. While nothing is in flight, a short operation moves
// inside its call (moveNow), and is taken only if a peer is late.
#include "backend/exec/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shardwire::internal {

namespace {

// Of many operations in flight, the newer ones mostly wait for the same peers.
constexpr std::size_t kMostLookedAt = 16;

}  // namespace

std::string labelOf(const Activity& activity) {
  return activity.ordered() ? fmt::format("{} (operation #{})", activity.description.text(), activity.call)
                            : activity.description.text();
}

Operations::Operations(RunContext& context, OpRecorder& recorder, Duration timeout)
    : context_(context),
      recorder_(recorder),
      timeout_(timeout),
      blockedBulk_(static_cast<std::size_t>(context.worldSize)),
      traffic_(static_cast<std::size_t>(context.worldSize)) {}

void Operations::number(Activity& activity, std::uint64_t call) {
  activity.seq = nextSeq_++;
  activity.call = call;
  activity.record = 0;
  if (activity.timeout.count() == 0) {
    activity.timeout = timeout_;
  }
  history_.note(activity.seq, call, activity.fingerprint, activity.description);
}

void Operations::take(const std::shared_ptr<Activity>& activity) {
  activity->started = activity->timed ? Clock::now() : Clock::time_point{};
  activity->deadline = kNoDeadline;
  activity->askedPeersAt = {};
  activity->noticeAfter = {};
  activity->isInCall = false;
  if (activity->timeout.count() == 0) {
    activity->timeout = timeout_;
  }
  inFlight_.push_back(activity);
}

void Operations::record(Activity& activity, const CallRecord& record) {
  if (recorder_.isOn()) {
    activity.record = recorder_.call(record, activity);
  }
}

bool Operations::moveNow(Activity& activity, int polls) {
  // A frame that came before the call may be a peer's question about this operation.
  if (!inFlight_.empty() || !early_.empty() || !activity.mayEndInCall() || !activity.moveNow(polls)) {
    return false;
  }
  Status ended;
  recordEnd(activity, ended);
  return activity.endInCall(ended);
}

void Operations::recordOver(const CallRecord& record, Duration timeout, std::size_t bytes) {
  if (!recorder_.isOn()) {
    return;
  }
  const bool isSend = !record.inputs.empty();
  const TensorView& tensor = isSend ? record.inputs[0] : record.outputs[0];
  const Rank peer = isSend ? record.destination : record.source;
  EdgeBytes& moved = traffic_[static_cast<std::size_t>(peer)];
  (isSend ? moved.sends : moved.receives) += bytes;
  const auto describe = isSend ? Description::ofSend : Description::ofRecv;
  recorder_.over(record, describe(tensor.dtype, numElements(tensor.shape), peer, record.tag),
                 timeout.count() == 0 ? timeout_ : timeout);
}

Clock::time_point Operations::startClocks() {
  const auto now = Clock::now();
  // One time for all: of equal timeouts, the oldest operation's ends first, and the oldest operation knows the cause.
  for (auto it = inFlight_.rbegin(); it != inFlight_.rend() && (*it)->deadline == kNoDeadline; ++it) {
    Activity& activity = **it;
    if (activity.started == Clock::time_point{}) {
      activity.started = now;
    }
    activity.deadline = deadlineAfter(activity.timeout, now);
    activity.isInCall = false;  // the call may return from here on
  }
  return now;
}

bool Operations::step() {
  bool progress = false;
  if (!failure_.isOk()) {
    while (!inFlight_.empty()) {
      retire(0, failureOf(*inFlight_.front(), failure_));
      progress = true;
    }
    return progress;
  }
  if (inFlight_.empty()) {
    return false;
  }
  std::fill(blockedBulk_.begin(), blockedBulk_.end(), false);
  for (std::size_t i = 0; i < inFlight_.size() && failure_.isOk(); ++i) {
    progress |= inFlight_[i]->step(blockedBulk_);
  }
  for (std::size_t i = 0; i < inFlight_.size();) {
    if (inFlight_[i]->finished()) {
      retire(i, Status::ok());
      progress = true;
    } else {
      ++i;
    }
  }
  return progress || !failure_.isOk();
}

void Operations::begin(const Activity& activity) {
  if (activity.record != 0) {
    recorder_.start(activity.record);
  }
}

void Operations::finish(const Activity& activity, Status status) {
  for (std::size_t i = 0; i < inFlight_.size(); ++i) {
    if (inFlight_[i].get() == &activity) {
      retire(i, std::move(status));
      return;
    }
  }
}

void Operations::retire(std::size_t index, Status status) {
  // Without memory the operation stays in flight, and fails with the group. So the allocations come first.
  if (completions_.size() == completions_.capacity()) {
    completions_.reserve(2 * completions_.size() + 1);
  }
  if (keepsTensors_) {
    // Leaked on purpose, with the tensors: the wire may write to the tensors as long as the process lives.
    new std::pair(inFlight_[index], inFlight_[index]->keepAlive);
  }
  recordEnd(*inFlight_[index], status);
  std::shared_ptr<Activity> activity = std::move(inFlight_[index]);
  inFlight_.erase(inFlight_.begin() + static_cast<std::ptrdiff_t>(index));
  if (!status.isOk()) {
    activity->forgetEarlier();
  }
  if (!activity->isInCall || !activity->endInCall(status)) {
    completions_.push_back(Activity::complete(std::move(activity), std::move(status)));
  }
}

void Operations::recordEnd(const Activity& activity, const Status& status) {
  if (!recorder_.isOn()) {
    return;
  }
  if (status.isOk()) {
    activity.addTraffic(traffic_);
  }
  if (activity.record != 0) {
    recorder_.end(activity.record, status.code(), activity.matchedRank());
  }
}

Status Operations::failureOf(const Activity& activity, const Status& cause) const {
  return {cause.code(), fmt::format("{} failed on {}: {}", labelOf(activity), context_.label, cause.message())};
}

Status Operations::refusal() const {
  if (failure_.isOk() || failure_.code() == StatusCode::kAborted) {
    return failure_;  // kAborted: by a call of a user, and the text says so
  }
  return {failure_.code(),
          fmt::format("{} failed before this call, and takes no more calls: {}", context_.label, failure_.message())};
}

Activity* Operations::find(std::uint64_t seq) const {
  const auto found = std::find_if(inFlight_.begin(), inFlight_.end(),
                                  [&](const auto& each) { return each->ordered() && each->seq == seq; });
  return found == inFlight_.end() ? nullptr : found->get();
}

Activity* Operations::oldestThatNeeds(Rank peer) const {
  const auto found =
      std::find_if(inFlight_.begin(), inFlight_.end(), [&](const auto& each) { return each->needs(peer); });
  return found == inFlight_.end() ? nullptr : found->get();
}

std::string Operations::describe(std::uint64_t seq) const {
  if (const OpHistory::Entry* entry = history_.find(seq); entry != nullptr && !entry->description.isEmpty()) {
    return entry->description.text();
  }
  return seq >= nextSeq_ ? "nothing yet" : "an operation too long ago to name";
}

std::string Operations::describeNow() const {
  if (!inFlight_.empty()) {
    const Activity& oldest = *inFlight_.front();
    return fmt::format("is in {}: {}", labelOf(oldest), oldest.waitingFor());
  }
  return nextSeq_ == 1
             ? "has called nothing in this group"
             : fmt::format("has called nothing in this group since {} (operation #{})", describeLatest(), calls_);
}

std::vector<Rank> Operations::awaited(std::size_t most) const {
  std::vector<Rank> ranks;
  const auto take = [&](const Activity& activity, bool isMissed) {
    for (Rank peer = 0; peer < context_.worldSize && ranks.size() < most; ++peer) {
      if (peer != context_.rank && std::ranges::find(ranks, peer) == ranks.end() &&
          (isMissed ? activity.misses(peer) : activity.needs(peer) || activity.needsSomePeer())) {
        ranks.push_back(peer);
      }
    }
  };
  for (const bool isMissed : {true, false}) {
    for (std::size_t i = 0; i < std::min(inFlight_.size(), kMostLookedAt) && ranks.size() < most; ++i) {
      take(*inFlight_[i], isMissed);
    }
  }
  return ranks;
}

// Only an exchange leaves the group usable after its timeout, and later operations do not wait for an exchange.
const Activity* Operations::earlierThan(const Activity& activity) const {
  const auto isAnyNeeded = [&](const Activity& each) {
    for (Rank peer = 0; peer < context_.worldSize; ++peer) {
      if (peer != context_.rank && each.needs(peer)) {
        return true;
      }
    }
    return false;
  };
  if (!activity.ordered() || activity.cancellable()) {
    return nullptr;
  }
  for (const auto& each : inFlight_) {
    if (each.get() == &activity) {
      break;
    }
    if (each->ordered() && !each->cancellable() && isAnyNeeded(*each)) {
      return each.get();
    }
  }
  return nullptr;
}

std::uint64_t Operations::callOf(std::uint64_t seq) const {
  const OpHistory::Entry* const entry = history_.find(seq);
  return entry == nullptr ? 0 : entry->call;
}

bool Operations::isForNow(Rank from, const OperationTag& operation, std::span<const std::byte> frame) {
  if (operation.seq >= nextSeq_) {
    early_.keep(from, operation.seq, frame);
    return false;
  }
  if (isOther(operation)) {
    context_.desync(from, operation.seq);
    return false;
  }
  return true;
}

bool Operations::isOther(const OperationTag& operation) const {
  if (const Activity* const activity = find(operation.seq); activity != nullptr) {
    return activity->fingerprint != operation.fingerprint;
  }
  const OpHistory::Entry* const past = history_.find(operation.seq);
  return past != nullptr && past->fingerprint != operation.fingerprint;
}

void Operations::noteGivenUp(const OperationTag& operation, Rank by, std::string_view why) {
  history_.noteGivenUp(operation.seq, by, why);
}

bool Operations::isGivenUp(const OperationTag& operation) const {
  return history_.givenUp(operation.seq) != nullptr;
}

bool Operations::sendGivenUp(Rank to, const OperationTag& operation) const {
  const OpHistory::GivenUp* const givenUp = history_.givenUp(operation.seq);
  if (givenUp == nullptr) {
    return false;
  }
  const CancelFrame frame{
      .operation = operation,
      .origin = givenUp->by == context_.rank ? CancelFrame::kSender : static_cast<std::uint32_t>(givenUp->by)};
  return context_.sendText(to, frame, givenUp->why);
}

}  // namespace shardwire::internal
