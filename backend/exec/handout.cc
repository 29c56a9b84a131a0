// A blob goes in parts, as large as a control frame may be, each with an offset. Rank 0 is done when all blobs are
// sent, another rank when the rank's blob is here. A rank that waits too long gives the handout up and notifies rank 0,
// which notifies the other ranks: if one rank lacks its plan of an operation, no rank can use the other plans.
#include "backend/exec/handout.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwire::internal {

Handout::Handout(int worldSize, Rank rank)
    : rank_(rank), numOpen_(rank == 0 ? static_cast<std::size_t>(worldSize) - 1 : 1) {
  if (rank == 0) {
    outs_.resize(static_cast<std::size_t>(worldSize));
  }
}

// ---- sending

void Handout::give(Rank to, std::string blob) {
  if (isDone()) {
    return;
  }
  Out& out = outs_[static_cast<std::size_t>(to)];
  out.bytes = std::move(blob);
  out.isGiven = true;
  (void)sendTo(to, out);
  if (!out.isSent) {
    waiting_.push_back(to);
  }
}

bool Handout::step(std::vector<bool>&) {
  bool moved = false;
  for (const Rank peer : waiting_) {
    moved |= sendTo(peer, outs_[static_cast<std::size_t>(peer)]);
  }
  std::erase_if(waiting_, [this](Rank peer) { return outs_[static_cast<std::size_t>(peer)].isSent; });
  return moved;
}

bool Handout::sendTo(Rank peer, Out& out) {
  RunContext& context = this->context();
  const std::size_t room = context.connection(peer).maxFrameBytes(Lane::kControl) - kHeadBytes<BlobFrame>;
  bool moved = false;
  while (!out.isSent) {
    const std::string_view part = std::string_view(out.bytes).substr(out.numSent, room);
    const BlobFrame frame{.operation = tag(), .offset = out.numSent, .totalBytes = out.bytes.size()};
    if (!context.sendControl(peer, frame, bytesOf(part))) {
      return moved;
    }
    moved = true;
    out.numSent += part.size();
    out.isSent = out.numSent == out.bytes.size();
  }
  std::string().swap(out.bytes);  // plans of many ranks are large together
  --numOpen_;
  return moved;
}

// ---- receiving

Status Handout::misplaced(Rank from, const BlobFrame& frame) const {
  return {StatusCode::kInternal,
          fmt::format("rank {} sent a part of a message that does not fit {} (offset {} of {}, expected {})", from,
                      description.text(), frame.offset, frame.totalBytes, received_.size())};
}

Status Handout::onBlob(Rank from, const Received<BlobFrame>& frame) {
  if (rank_ == 0 || from != 0 || numOpen_ == 0 || frame.offset != received_.size() ||
      (hasBegun_ && frame.totalBytes != totalBytes_) || (frame.payload.empty() && frame.totalBytes > 0)) {
    return misplaced(from, frame);
  }
  hasBegun_ = true;
  totalBytes_ = frame.totalBytes;
  received_.append(textOf(frame.payload));
  if (received_.size() == totalBytes_) {
    numOpen_ = 0;
  }
  return Status::ok();
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
  return rank_ == 0 ? outs_[static_cast<std::size_t>(peer)].isGiven && !outs_[static_cast<std::size_t>(peer)].isSent
                    : peer == 0 && numOpen_ > 0;
}

std::string Handout::waitingFor() const {
  if (rank_ != 0) {
    return "rank 0 did not send this rank's plan";
  }
  const auto unread =
      std::find_if(outs_.begin() + 1, outs_.end(), [](const Out& out) { return out.isGiven && !out.isSent; });
  return unread == outs_.end() ? "rank 0 itself is still planning"
                               : fmt::format("rank {} reads nothing", unread - outs_.begin());
}

}  // namespace shardwire::internal
