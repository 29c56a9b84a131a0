#include "backend/exec/run.h"

#include <fmt/format.h>

#include "backend/exec/engine.h"

namespace shardwire::internal {

bool Run::hasSentItsPart(Rank peer) const {
  const auto frame = engine().connection(peer)->peek(Lane::kBulk);
  return !frame.empty() && readHeader(frame).seq <= seq;
}

bool Run::heardFrom(Rank peer) const {
  const auto frame = engine().connection(peer)->peek(Lane::kBulk);
  return !frame.empty() && readHeader(frame).seq >= seq;
}

Status Run::unreadable(const Engine& engine, Rank peer, const FrameHeader& header) const {
  return {StatusCode::kInternal, fmt::format("rank {} sent a staged frame that cannot be read: segments of {} bytes there, {} here. "
                                             "SHARDWIRE_RING_BYTES must be the same on all ranks",
                                             peer, header.a, engine.segmentBytes())};
}

std::string Run::waitingFor() const {
  std::string absent;
  std::string slow;
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    if (peer != engine().rank() && isOpen(peer)) {
      std::string& list = heardFrom(peer) ? slow : absent;
      list += fmt::format("{}{}", list.empty() ? "" : ", ", peer);
    }
  }
  std::string text;
  if (!absent.empty()) {
    text = "rank(s) " + absent + " did not arrive";
  }
  if (!slow.empty()) {
    text += (text.empty() ? "" : "; ") + ("rank(s) " + slow + " arrived but did not finish");
  }
  return text.empty() ? "an earlier operation" : text;
}

}  // namespace shardwire::internal
