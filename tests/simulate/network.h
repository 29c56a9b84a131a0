// The links between the simulated ranks: frames, reads and fetches with delays, short writes, full lanes, cuts and ends
// of processes, all drawn by the seed. Implements what the product asks of a transport (transport.h). Ranks of one host
// read each other's memory at once, as over shared memory; others fetch, as over a wire.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/bootstrap/peers.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"
#include "tests/simulate/direction.h"
#include "tests/simulate/process.h"

namespace shardwire::simulate {

// Which ranks are joined only when an operation first needs the link.
enum class Lateness : std::uint8_t { kNone, kOtherHosts, kSameHost, kAll };

// How the wires between hosts serve fetches. As not drawn: an answer leaves at once and whole, in the order of the
// requests.
struct FetchOptions {
  bool isDrawn = false;
  std::uint64_t seed = 0;  // of the pairs
  int withoutPercent = 0;  // of the pairs of ranks, whose wires serve no fetches
  int mostParts = 1;       // of an answer; the owner reads a part of its memory when the part leaves
  Time longestPause = 0;   // between two parts
  bool overtakes = false;  // an answer may pass an older one
  int refusedPercent = 0;  // of the requests, for which there is no room for a moment
  std::size_t mostRequests = 16;
  std::size_t minEdgeBytes = 0;  // ReadLimits
  std::size_t minRunBytes = 0;
  std::size_t minLocalRunBytes = 0;
};

struct NetworkOptions {
  Lateness lateness = Lateness::kNone;
  std::array<std::uint64_t, internal::kNumLanes> capacities{};
  int spikePercent = 0;  // of the frames, which take up to `longestSpike`
  Time longestSpike = kMillisecond;
  int numStalls = 0;                // delays of seconds
  int exposedPercent = 50;          // of the tensors that a peer may read or fetch
  std::size_t shortWriteBytes = 0;  // the most bytes that arrive at once; 0: any number
  int fullPercent = 0;              // of the requests for room, which find a full lane for a moment
  FetchOptions fetches{};
};

class SimulatedConnection;

// The links of one group.
class Network {
 public:
  // `hosts`: by rank. `label`: the name of the group where there are several, else empty.
  Network(World& world, NetworkOptions options, std::vector<std::int32_t> hosts, std::size_t group, std::string label);
  ~Network();

  // All ranks' processes, before the first peersOf().
  void setProcesses(std::vector<Process*> processes) { processes_ = std::move(processes); }
  internal::Peers peersOf(Rank rank, const Options& options);
  // A line of the trace about this rank.
  template <typename... Args>
  void note(Rank rank, fmt::format_string<Args...> format, Args&&... args) {
    const Process& process = *processes_[static_cast<std::size_t>(rank)];
    if (label_.empty()) {
      world_.note(nowOf(rank), process.rank(), format, std::forward<Args>(args)...);
    } else if (world_.isTraced()) {
      world_.note(nowOf(rank), process.rank(), "{} rank {}: {}", label_, rank,
                  fmt::format(format, std::forward<Args>(args)...));
    }
  }

  // Whether note() and recordFrame() keep anything: where the text of each frame would cost more than the frame.
  bool isTraced() const { return world_.isTraced(); }

  // Between two processes on two hosts.
  Time drawWireDelay();
  // For the page that plays the run.
  void recordFrame(Rank from, Rank to, Time arrives, const std::string& what);

  // ---- faults. Ranks outside of the group do not matter here: -1
  // The rank's process ended.
  void end(Rank rank, End end);
  // Nothing passes between the two any more; both see silence.
  void cut(Rank a, Rank b);
  // Nothing arrives between the two before `until`.
  void holdUntil(Rank a, Rank b, Time until);

  // Of all ranks, so far.
  bool hasConnections() const;
  // "" if the ranks of a group without failures left nothing in the links, else the first remains.
  std::string findLeftover() const;
  std::uint64_t numFrames() const { return numFrames_; }

 private:
  friend class JoinEndpoint;
  friend class JoinMachine;
  friend class SimulatedConnection;
  friend class SimulatedLateLinks;
  friend class SimulatedWire;

  Direction& direction(Rank from, Rank to);
  const Direction& direction(Rank from, Rank to) const;
  bool areOnOneHost(Rank a, Rank b) const;
  bool servesFetches(Rank a, Rank b) const;
  Time drawDelay(Rank a, Rank b);
  void ringAt(Time when, Rank rank);
  void ringIfArmed(Rank rank) { processes_[static_cast<std::size_t>(rank)]->ringIfArmed(group_); }
  void ringForNewsAt(Time when, Rank rank);
  // Looks, behind the ring, whether the receiver is about to take the control frame.
  void checkWakesAt(Time when, Rank from, Rank to, std::uint64_t frame);
  // Likewise whether the owner is about to serve the request.
  void checkServedAt(Time when, Rank from, Rank to);
  bool isLate(Rank a, Rank b) const;
  Time nowOf(Rank rank) const;
  void noteEnd(Rank from, Rank to, End end);
  // A frame of this rank was sent; the rank's process may end now.
  void countFrame(Rank rank);

  World& world_;
  const NetworkOptions options_;
  int numStalls_ = 0;  // so far
  const std::vector<std::int32_t> hosts_;
  const int size_;
  const std::size_t group_;
  const std::string label_;
  std::vector<Process*> processes_;
  std::vector<std::unique_ptr<Direction>> directions_;          // [from * size + to]
  std::vector<std::vector<SimulatedConnection*>> connections_;  // by rank, of the joined peers
  std::uint64_t numFrames_ = 0;
  std::set<std::uint64_t> pins_;
  std::uint64_t lastPin_ = 0;
};

}  // namespace shardwire::simulate
