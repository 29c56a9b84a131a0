#include "tests/simulate/join_watch.h"

namespace shardwire::simulate {

bool JoinWatch::isDead(Rank rank, const internal::RankAddress& address) {
  const auto [entry, isNew] = watched_.try_emplace(rank);
  Watched& watched = entry->second;
  const JoinEnd& theirs = ends_.find(address.lifeName);
  const bool isGone = theirs.process->isDead() || theirs.signGoneAt <= process_.time();
  if (address.kernel == kernel_) {
    return isGone;
  }
  if (isNew) {
    watched.nextAnswer = process_.time() + kMillisecond;
  }
  if (process_.time() < watched.nextAnswer || theirs.isSilent) {
    return false;
  }
  watched.isRefused |= isGone && !watched.hasAnswered;
  watched.hasAnswered |= !isGone;
  return isGone && watched.hasAnswered;
}

}  // namespace shardwire::simulate
