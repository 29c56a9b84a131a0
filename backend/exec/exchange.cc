#include "backend/exec/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/exec/engine.h"

namespace shardwire::internal {

namespace {
// A peer that announces more than this is broken: no spec comes near it.
constexpr std::uint64_t kMaxBlobBytes = std::uint64_t{1} << 31;
}  // namespace

Exchange::Exchange(std::string mine, int worldSize, Rank rank)
    : rank_(rank),
      blobs_(static_cast<std::size_t>(worldSize)),
      sent_(blobs_.size()),
      sentAll_(blobs_.size()),
      received_(blobs_.size()),
      receivedAll_(blobs_.size()),
      numSent_(1),
      numReceived_(1) {
  const auto self = static_cast<std::size_t>(rank);
  blobs_[self] = std::move(mine);
  sentAll_[self] = true;
  receivedAll_[self] = true;
}

bool Exchange::sendTo(Engine& engine, Rank peer) {
  const auto p = static_cast<std::size_t>(peer);
  const std::string& mine = blobs_[static_cast<std::size_t>(rank_)];
  const std::size_t room = engine.connection(peer)->maxFrameBytes(Lane::kControl) - sizeof(FrameHeader);
  bool moved = false;
  while (!sentAll_[p]) {
    const std::size_t part = std::min(room, mine.size() - sent_[p]);
    const FrameHeader header{.kind = FrameKind::kBlob,
                             .seq = seq,
                             .fingerprint = fingerprint,
                             .a = static_cast<std::uint32_t>(sent_[p]),
                             .b = static_cast<std::uint32_t>(mine.size())};
    if (!engine.sendControl(peer, header, std::as_bytes(std::span(mine.data() + sent_[p], part)))) {
      break;
    }
    moved = true;
    sent_[p] += part;
    if (sent_[p] == mine.size()) {
      sentAll_[p] = true;
      ++numSent_;
    }
  }
  return moved;
}

bool Exchange::step(Engine& engine, std::vector<bool>&) {
  bool moved = false;
  for (Rank peer = 0; peer < static_cast<Rank>(blobs_.size()); ++peer) {
    if (!sentAll_[static_cast<std::size_t>(peer)]) {
      moved |= sendTo(engine, peer);
    }
  }
  return moved;
}

Status Exchange::onFrame(Engine& engine, Rank from, const FrameHeader& header, std::span<const std::byte> payload) {
  const auto p = static_cast<std::size_t>(from);
  if (header.kind == FrameKind::kCancel) {
    if (finished()) {
      return Status::ok();
    }
    const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
    engine.finish(*this, {StatusCode::kTimeout,
                          fmt::format("{} was given up by rank {} before {} came: it {}", *description, from, engine.groupLabel(), text)});
    return Status::ok();
  }
  if (header.kind != FrameKind::kBlob || receivedAll_[p] || header.a != received_[p] || header.b > kMaxBlobBytes ||
      received_[p] + payload.size() > header.b) {
    return {StatusCode::kInternal, fmt::format("rank {} sent a part of a message that does not fit (offset {} of {}, expected {})", from,
                                               header.a, header.b, received_[p])};
  }
  blobs_[p].append(reinterpret_cast<const char*>(payload.data()), payload.size());
  received_[p] += payload.size();
  if (received_[p] == header.b) {
    receivedAll_[p] = true;
    ++numReceived_;
  }
  return Status::ok();
}

bool Exchange::needs(Rank peer) const {
  const auto p = static_cast<std::size_t>(peer);
  return !receivedAll_[p] || !sentAll_[p];
}

std::string Exchange::waitingFor() const {
  std::string missing;
  int count = 0;
  for (std::size_t p = 0; p < blobs_.size(); ++p) {
    if (!receivedAll_[p]) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", p);
      ++count;
    }
  }
  if (count > 0) {
    return fmt::format("rank{} {} did not arrive", count > 1 ? "s" : "", missing);
  }
  return "peers read nothing";
}

}  // namespace shardwire::internal
