#include "backend/exec/disagreements.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace shardwire::internal {

namespace {

// Calls may have different lengths: the same activity may be of call 5 here and of call 6 on the peer. The ranks part
// in the first of the two, and both report that number.
std::uint64_t firstCall(std::uint64_t mine, std::uint32_t theirs) {
  if (mine == 0 || theirs == 0) {
    return std::max<std::uint64_t>(mine, theirs);
  }
  const auto ahead = static_cast<std::int32_t>(theirs - static_cast<std::uint32_t>(mine));
  return ahead < 0 ? mine - static_cast<std::uint64_t>(-static_cast<std::int64_t>(ahead)) : mine;
}

}  // namespace

bool Disagreements::ask(Rank peer, std::uint64_t seq) {
  Question& question = questions_[static_cast<std::size_t>(peer)];
  if (question.isSent || !operations_.failure().isOk()) {
    return true;
  }
  question.seq = seq;
  const DesyncFrame frame{.seq = seq, .wantsAnswer = 1, .call = static_cast<std::uint32_t>(operations_.callOf(seq))};
  question.isSent = context_.sendText(peer, frame, operations_.describe(seq));
  return question.isSent;
}

Status Disagreements::unanswered(Rank peer, const Status& whyGone) const {
  const std::uint64_t seq = questions_[static_cast<std::size_t>(peer)].seq;
  if (seq == 0) {
    return Status::ok();
  }
  return {
      StatusCode::kMismatch,
      fmt::format("the ranks disagree about operation #{}: rank {} called {}, and rank {} called something else, but "
                  "was gone before it said what: {}. All ranks of a group must call the same operations in the "
                  "same order with the same shapes and dtypes",
                  operations_.callOf(seq), context_.rank, operations_.describe(seq), peer, whyGone.message())};
}

bool Disagreements::refuseStale(Rank peer) {
  const auto frame = context_.connection(peer).peek(Lane::kBulk);
  if (frame.empty()) {
    return false;
  }
  const auto staged = readFrame<StagedFrame>(frame);
  if (!staged.has_value()) {
    context_.fail(unreadableFrame(peer, Lane::kBulk, frame));
    return true;
  }
  const std::uint64_t seq = staged->operation.seq;
  if (seq >= operations_.nextSeq() || operations_.find(seq) != nullptr) {
    return false;
  }
  ask(peer, seq);
  return true;
}

void Disagreements::onDesync(Rank from, const Received<DesyncFrame>& frame) {
  const std::string theirs(textOf(frame.payload));
  const std::string mine = operations_.describe(frame.seq);
  if (frame.wantsAnswer == 1) {
    context_.sendText(
        from, DesyncFrame{.seq = frame.seq, .call = static_cast<std::uint32_t>(operations_.callOf(frame.seq))}, mine);
  }
  const std::uint64_t call = firstCall(operations_.callOf(frame.seq), frame.call);
  questions_[static_cast<std::size_t>(from)] = {};
  const Rank rank = context_.rank;
  const bool mineFirst = rank < from;
  // The peers are notified, too: a third rank may be waiting for either of the two.
  context_.fail({StatusCode::kMismatch, fmt::format("the ranks disagree about operation #{}: rank {} called {}, but "
                                                    "rank {} called {}. All ranks of a group must call the "
                                                    "same operations in the same order with the same shapes and dtypes",
                                                    call, std::min(rank, from), mineFirst ? mine : theirs,
                                                    std::max(rank, from), mineFirst ? theirs : mine)});
}

}  // namespace shardwire::internal
