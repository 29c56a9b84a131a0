// Rank 0 is done when all blobs are sent, another rank when the rank's blob is here. A rank that waits too long gives
// the handout up and notifies rank 0, which notifies the other ranks: if one rank lacks its plan of an operation, no
// rank can use the other plans.
#include "backend/exec/handout.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwire::internal {

Handout::Handout(int worldSize, Rank rank) : rank_(rank), numOpen_(static_cast<std::size_t>(worldSize) - 1) {
  if (rank == 0) {
    given_.resize(static_cast<std::size_t>(worldSize));
    outs_.resize(static_cast<std::size_t>(worldSize));
  }
}

// ---- sending

void Handout::give(Rank to, std::string blob) {
  if (isDone()) {
    return;
  }
  const auto index = static_cast<std::size_t>(to);
  given_[index] = std::move(blob);
  outs_[index] = {.peer = to, .bytes = &given_[index]};
  (void)sendTo(to);
  if (!outs_[index].isSent) {
    waiting_.push_back(to);
  }
}

bool Handout::step(std::vector<bool>&) {
  bool moved = false;
  for (const Rank peer : waiting_) {
    moved |= sendTo(peer);
  }
  std::erase_if(waiting_, [this](Rank peer) { return outs_[static_cast<std::size_t>(peer)].isSent; });
  return moved;
}

bool Handout::sendTo(Rank peer) {
  Out& out = outs_[static_cast<std::size_t>(peer)];
  const bool moved = sendParts(out, out.bytes->size());
  if (out.isSent) {
    std::string().swap(given_[static_cast<std::size_t>(peer)]);  // plans of many ranks are large together
    --numOpen_;
  }
  return moved;
}

// ---- receiving

Status Handout::onBlob(Rank from, const Received<BlobFrame>& frame) {
  return takePart(from, frame, rank_ != 0 && from == 0 ? &in_ : nullptr);
}

Status Handout::onCancel(Rank from, const Received<CancelFrame>& frame) {
  if (finished()) {
    return Status::ok();
  }
  RunContext& context = this->context();
  const bool isPassedOn = frame.origin != CancelFrame::kSender;
  if (isPassedOn && frame.origin >= static_cast<std::uint32_t>(context.worldSize)) {
    return misfit(from, FrameKind::kCancel);
  }
  const Rank origin = isPassedOn ? static_cast<Rank>(frame.origin) : from;
  const std::string why(textOf(frame.payload));
  for (Rank peer = 1; rank_ == 0 && peer < context.worldSize; ++peer) {
    // If the lane is full, the rank reads nothing, and learns of the cancel by its own timeout.
    if (peer != origin && context.connections[static_cast<std::size_t>(peer)] != nullptr) {
      (void)context.sendText(peer, CancelFrame{.operation = tag(), .origin = static_cast<std::uint32_t>(origin)}, why);
    }
  }
  context.finish(*this, {StatusCode::kTimeout, fmt::format("{} was given up by rank {} while {} waited, too: it {}",
                                                           description.text(), origin, context.label, why)});
  return Status::ok();
}

// ---- waiting

bool Handout::needs(Rank peer) const {
  return rank_ == 0 ? std::ranges::find(waiting_, peer) != waiting_.end() : peer == 0 && !in_.isWhole;
}

std::string Handout::waitingFor() const {
  if (rank_ != 0) {
    return "rank 0 did not send this rank's plan";
  }
  return waiting_.empty() ? "rank 0 itself is still planning" : fmt::format("rank {} reads nothing", waiting_[0]);
}

}  // namespace shardwire::internal
