#include "backend/exec/run.h"

#include <algorithm>

#include "backend/bootstrap/summary.h"

namespace shardwire::internal {

bool Run::isHeldBack() {
  if (gate_ != nullptr && gate_->isOpen()) {
    if (!gate_->failure().isOk()) {
      context().fail(gate_->failure());
      return true;
    }
    gate_ = nullptr;
    context().begin(*this);
  }
  return gate_ != nullptr || (startsAfter_ && previous_ != nullptr && !previous_->isDone());
}

void Run::holdBack(std::vector<bool>& blockedBulk) const {
  for (const PlanEdge& edge : plan_->sends) {
    blockedBulk[static_cast<std::size_t>(edge.peer)] = true;
  }
}

bool Run::hasSentItsPart(Rank peer) const {
  const auto staged = readFrame<StagedFrame>(context().connection(peer).peek(Lane::kBulk));
  return staged.has_value() && staged->operation.seq <= seq;
}

bool Run::hasArrivedFrom(Rank peer) const {
  const auto staged = readFrame<StagedFrame>(context().connection(peer).peek(Lane::kBulk));
  return staged.has_value() && staged->operation.seq >= seq;
}

EdgeBytes Run::edgeBytes(Rank peer) const {
  const auto bytesOf = [&](const std::vector<PlanEdge>& edges) {
    const auto found =
        std::find_if(edges.begin(), edges.end(), [&](const PlanEdge& edge) { return edge.peer == peer; });
    return found == edges.end() ? std::uint64_t{0} : found->bytes;
  };
  return {bytesOf(plan_->sends), bytesOf(plan_->receives)};
}

void Run::addTraffic(std::span<EdgeBytes> byPeer) const {
  for (const PlanEdge& edge : plan_->sends) {
    byPeer[static_cast<std::size_t>(edge.peer)].sends += edge.bytes;
  }
  for (const PlanEdge& edge : plan_->receives) {
    byPeer[static_cast<std::size_t>(edge.peer)].receives += edge.bytes;
  }
}

std::string Run::waitingFor() const {
  if (gate_ != nullptr) {
    return gate_->waitingFor();
  }
  std::vector<Rank> absent;
  std::vector<Rank> slow;
  std::vector<Rank> readers;
  for (Rank peer = 0; peer < context().worldSize; ++peer) {
    if (peer != context().rank && isOpen(peer)) {
      (hasArrivedFrom(peer) ? slow : edgeBytes(peer).receives == 0 ? readers : absent).push_back(peer);
    }
  }
  std::string text;
  if (!absent.empty()) {
    text = rankList(absent) + " did not arrive";
  }
  if (!readers.empty()) {
    text += (text.empty() ? "" : "; ") + (rankList(readers) + " did not arrive, or did not take what is theirs");
  }
  if (!slow.empty()) {
    text += (text.empty() ? "" : "; ") + (rankList(slow) + " arrived but did not finish");
  }
  if (!text.empty()) {
    return text;
  }
  if (previous_ != nullptr && !previous_->isDone()) {
    return previous_->waitingFor();
  }
  return "what its own tensors wait for (work queued on their device) is not done";
}

}  // namespace shardwire::internal
