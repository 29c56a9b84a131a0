// The machine of a simulated rank while the rank joins a group. The ends are entries of a table instead of sockets and
// inboxes, and deaths show as in the kernel. Ranks of one host attach to each other; ranks of two hosts dial.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/bootstrap/machine.h"
#include "tests/simulate/network.h"
#include "tests/simulate/sockets.h"

namespace shardwire::simulate {

// A call of a dialing rank.
struct Dial {
  Rank from = 0;
  internal::TransportKind kind{};
  Time arrives = 0;
  Time answerArrives = kNever;  // the answering rank has the connection
  Time closedAt = kNever;       // the dialing rank sees that the answering rank hung up
  bool isTaken = false;
  bool isOver = false;  // the dialing rank gave up
};

// The end of one rank of one group, as seen by the other ranks.
struct JoinEnd {
  Rank rank = 0;
  Process* process = nullptr;
  Network* network = nullptr;
  std::size_t bell = 0;
  bool isSilent = false;     // the host died
  bool isOpen = true;        // until the group ended or was not made
  Time signGoneAt = kNever;  // of the sign of life, which lasts while the group is made
  internal::RandomId token{};
  std::set<Rank> halves;  // peers with their half of the join done
  std::list<Dial> dials;
};

// The ends of all ranks by name. Addresses contain the names.
struct JoinEnds {
  JoinEnd& find(std::string_view name) { return *byName.find(name)->second; }
  std::map<std::string, std::unique_ptr<JoinEnd>, std::less<>> byName;
  std::vector<std::string> faults;   // a rank was joined to an end of another group
  std::unique_ptr<Sockets> sockets;  // where ranks of two hosts are joined late; else null
};

class JoinMachine final : public internal::Machine {
 public:
  // Makes one group once. `bell`: the number of the process's bell for the group.
  JoinMachine(JoinEnds& ends, Network& network, Process& process, std::size_t bell, std::int32_t host, bool cannotStart)
      : ends_(ends), network_(network), process_(process), bell_(bell), host_(host), cannotStart_(cannotStart) {}

  Status prepare(internal::OwnEnds& own, Rank rank, int worldSize, const Options& options) override;
  std::unique_ptr<internal::Doorbell> makeDoorbell(const internal::OwnEnds& own) override;
  Result<internal::Link> dial(internal::OwnEnds& own, Rank peer, internal::TransportKind kind,
                              const internal::WaitLimit& limit) override;
  Result<std::vector<internal::Caller>> callers(internal::OwnEnds& own) override;
  std::unique_ptr<internal::LifeWatch> watch(const internal::OwnEnds& own, const Options& options) override;

  // The longest time of this rank between a call and its answer.
  void setLongestHandshake(Time longest) { longestHandshake_ = longest; }
  // From here on this rank cannot join another rank late.
  void failLateJoins() { failsLateJoins_ = true; }
  // The group has ended, or was not made.
  void close();
  // The group is made: what the engine needs beside the connections.
  void complete(internal::Peers& peers, const std::vector<std::int32_t>& hosts);

 private:
  friend class JoinEndpoint;

  Time now() const { return network_.nowOf(self_); }
  Time arrivalAt(Rank peer) const { return now() + network_.drawDelay(self_, peer); }
  // Whether the peer's process answers: an error after the process's end, or after the limit.
  Status awaitProcess(const JoinEnd& theirs, const internal::WaitLimit& limit);
  bool isDeadFor(const JoinEnd& theirs) const;

  JoinEnds& ends_;
  Network& network_;
  Process& process_;
  const std::size_t bell_;
  const std::int32_t host_;
  const bool cannotStart_;
  bool failsLateJoins_ = false;
  Time longestHandshake_ = 0;
  Rank self_ = 0;
  std::string name_;
  JoinEnd* end_ = nullptr;
};

}  // namespace shardwire::simulate
