// The signs of life of simulated ranks, as one rank sees them. An end on the same host shows at once, and on other
// hosts only after one answer.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "backend/bootstrap/liveness.h"
#include "tests/simulate/join_machine.h"

namespace shardwire::simulate {

class JoinWatch final : public internal::LifeWatch {
 public:
  JoinWatch(JoinEnds& ends, const Process& process, std::string kernel)
      : internal::LifeWatch(internal::RankAddress{}, {}), ends_(ends), process_(process), kernel_(std::move(kernel)) {}
  bool isDead(Rank rank, const internal::RankAddress& address) override;
  bool refuses(Rank rank) const override {
    const auto found = watched_.find(rank);
    return found != watched_.end() && found->second.isRefused;
  }
  void forget(Rank rank) override { watched_.erase(rank); }

 private:
  struct Watched {
    bool hasAnswered = false;
    bool isRefused = false;
    Time nextAnswer = 0;
  };

  JoinEnds& ends_;
  const Process& process_;
  const std::string kernel_;
  std::map<Rank, Watched> watched_;
};

}  // namespace shardwire::simulate
