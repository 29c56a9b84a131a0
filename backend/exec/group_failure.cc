#include "backend/exec/group_failure.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/base/log.h"
#include "backend/exec/one_sided.h"
#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kMaxNotice = 8 << 10;

}  // namespace

GroupFailure::GroupFailure(const RunContext& context, Operations& operations, PeerLinks& links, OneSided& oneSided,
                           FailureCallback& callback, std::atomic<bool>& hasWork)
    : context_(context),
      operations_(operations),
      links_(links),
      oneSided_(oneSided),
      callback_(callback),
      hasWork_(hasWork),
      isNoticeDue_(static_cast<std::size_t>(context.worldSize)) {}

void GroupFailure::fail(Status why) {
  if (operations_.failure().isOk()) {
    notifyPeers(fmt::format("rank {} gave up: {}", context_.rank, why.message()));
    end(std::move(why));
  }
}

void GroupFailure::end(Status why) {
  if (!operations_.failure().isOk()) {
    return;
  }
  logInfo("{}: {}", context_.label, why.message());
  if (why.code() == StatusCode::kPeerFailed) {
    addProcessFailure(context_.inProcess(), fmt::format("{}: {}", context_.label, why.message()).substr(0, kMaxNotice));
  }
  count(why.code());
  operations_.fail(std::move(why));
  oneSided_.end();
  stopFetches();
  sendNotices();
}

// A rank's own first reason stays, and the notice is sent once more: peers may wait outside of the group's operations.
void GroupFailure::revoke(std::string why) {
  if (!revocation_.empty()) {
    return;
  }
  revocation_ = std::move(why);
  notifyPeers(revocation_);
  if (operations_.failure().isOk()) {
    end({StatusCode::kAborted, revocation_});
  } else {
    sendNotices();
  }
}

void GroupFailure::onFail(Rank /*from*/, const Received<FailFrame>& frame) {
  if (frame.isRevoked == 1) {
    revoke(std::string(textOf(frame.payload)));
  } else if (operations_.failure().isOk()) {
    Status status(static_cast<StatusCode>(frame.code), std::string(textOf(frame.payload)));
    notifyPeers(status.message());
    end(std::move(status));
  }
}

void GroupFailure::stopFetches() {
  if (!links_.stopFetches()) {
    operations_.keepTensors();
  }
}

void GroupFailure::notifyPeers(std::string notice) {
  notice_ = std::move(notice);
  notice_.resize(std::min(notice_.size(), kMaxNotice));
  hasNotices_ = true;
  hasWork_.store(true, std::memory_order_seq_cst);
  isNoticeDue_.assign(isNoticeDue_.size(), true);
  isNoticeDue_[static_cast<std::size_t>(context_.rank)] = false;
}

void GroupFailure::addNoticeTo(Rank peer) {
  isNoticeDue_[static_cast<std::size_t>(peer)] = !notice_.empty();
  hasNotices_ |= !notice_.empty();
}

void GroupFailure::sendNotices() {
  const bool isRevoked = !revocation_.empty();
  const auto code = static_cast<std::uint32_t>(
      isRevoked || operations_.failure().isOk() ? StatusCode::kAborted : operations_.failure().code());
  hasNotices_ = false;
  for (const Rank peer : links_.joined()) {
    const auto p = static_cast<std::size_t>(peer);
    isNoticeDue_[p] =
        isNoticeDue_[p] && !context_.sendText(peer, FailFrame{.code = code, .isRevoked = isRevoked ? 1U : 0U}, notice_);
    hasNotices_ |= isNoticeDue_[p];
  }
}

}  // namespace shardwire::internal
