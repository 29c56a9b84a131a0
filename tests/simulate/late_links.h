// The peers of one rank that are joined when an operation first needs them, in place of the sockets and inboxes of the
// product's late links. A rank that needs a peer sends a request; the peer's progress thread takes the request, is
// joined, and consents; with the consent the first rank is joined. Requests may cross: each counts as consent.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/transport/late_links.h"
#include "tests/simulate/network.h"

namespace shardwire::simulate {

class SimulatedLateLinks final : public internal::LateLinks {
 public:
  SimulatedLateLinks(Network& network, Rank self);
  ~SimulatedLateLinks() override;

  bool isLate(Rank peer) const override { return states_[static_cast<std::size_t>(peer)] != State::kNotLate; }
  void want(Rank peer) override;
  std::vector<News> poll() override;
  bool hasNews() const override;
  bool isAnyUnderWay() const override;
  std::string whyNotYet(Rank peer) const override;

 private:
  enum class State : unsigned char { kNotLate, kIdle, kWanted, kOver };

  bool isDue(Rank peer) const;
  Result<std::unique_ptr<internal::Connection>> join(Rank peer);
  Time arrivalAt(Rank peer) const;

  Network& network_;
  const Rank self_;
  std::vector<State> states_;  // by rank
};

}  // namespace shardwire::simulate
