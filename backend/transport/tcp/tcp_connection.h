// Two ranks joined by TCP: frames over one stream, fetches over another. Made by the endpoint, driven by the wire.
// Threads: see Connection.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/transport/tcp/fetch_stream.h"
#include "backend/transport/tcp/frame_stream.h"
#include "backend/transport/tcp/socket_state.h"
#include "backend/transport/tcp/tcp_stream.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

class TcpConnection;

// State shared by the connections of a rank and their wire.
struct TcpPoller {
  Fd epoll;
  int numWatched = 0;  // sockets in the epoll set
};

// The endpoint's set-up for one connection.
struct TcpJoint {
  Rank self = 0;
  Rank peer = 0;
  std::string who;     // the peer for messages: "rank 1 (pid 7 on host a)"
  std::string remote;  // "10.0.0.2:41234"
  std::array<std::uint64_t, kNumLanes> capacities{};
  bool hasChecksums = false;                        // of this rank's options; after the set-up: of the connection
  TcpTls tls = TcpTls::kAuto;                       // of this rank's options
  bool hasJobToken = false;                         // of this rank's options
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;  // kStaged: no fetches; kCrossMemory: all allowed fetches
  TcpStream frames;
  TcpStream fetches;
  Fd listener;  // where the kernel takes further paths of Multipath TCP for `fetches`; accepts no connection
  std::shared_ptr<TcpPoller> poller;
};

class TcpConnection final : public Connection {
 public:
  static Result<std::unique_ptr<Connection>> create(TcpJoint joint);
  ~TcpConnection() override;

  Rank peer() const override { return joint_.peer; }
  const char* transportName() const override { return "tcp"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override;
  void commit(Lane lane, std::size_t bytes) override;
  std::size_t maxFrameBytes(Lane lane) const override { return maxLaneFrameBytes(joint_.capacities[indexOf(lane)]); }
  std::span<const std::byte> peek(Lane lane) override { return frames_.reader(lane).peek(); }
  void release(Lane lane) override;
  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override;
  void conceal(const RemoteAddress& address) override;
  ReadLimits readLimits() const override;
  Status read(std::span<const MemoryRun> runs) override;
  bool fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) override;
  bool stopFetches() override;
  bool leave() override;
  Status health() override;
  std::string describe() const override;

  // For the wire: handles epoll's events for one of the two sockets. True when bytes arrived or were sent.
  bool onReady(bool isFetches, std::uint32_t events);

 private:
  // The target of epoll's user pointer.
  struct Watch {
    TcpConnection* connection = nullptr;
    bool isFetches = false;
    std::uint32_t events = 0;  // requested from epoll; 0: not in the set
  };
  friend class TcpWire;

  explicit TcpConnection(TcpJoint joint);
  bool receiveFrames();
  bool sayLeave();
  bool isAcknowledged();
  void stayFor(Duration time);
  bool flushFrames();
  void take(const StreamNote& note);
  bool sendFetched();
  bool receiveFetched();
  void setEvents(Watch& watch, const Fd& socket, std::uint32_t events);
  void updateWatches();
  void fail(Status why);
  void giveUp(Status why, std::string note);
  void giveUp(const Status& why) { giveUp(why, "the connection: " + why.message()); }
  void refuse(const char* stream, const Status& why);
  Status died(const std::string& how) const;
  void endOfFrames(const std::string& how) { fail(died(how)); }
  void checkLanes();
  void fetchesBroke(const Status& why);
  void look();
  Duration silence(Deadline now);

  TcpJoint joint_;
  FrameStream frames_;
  FetchStream fetches_;
  Watch frameWatch_;
  Watch fetchWatch_;
  std::vector<std::string> requests_;  // scratch of fetch()
  bool stopped_ = false;               // stopFetches() was called
  bool peerStopped_ = false;
  Deadline nextLook_{};
  Deadline nextPathLook_{};
  Silence frameSilence_;
  Silence fetchSilence_;
  Deadline fetchesBrokeAt_ = kNoDeadline;  // or the time of the last frame since
  Deadline fetchesBrokeFirst_{};
  std::string howFetchesBroke_;
  // The normal end: see leave().
  enum class Leaving : unsigned char { kNotYet, kSending, kAwaitsAcknowledgement, kOver };
  Leaving leaving_ = Leaving::kNotYet;
  bool hasSaidLeave_ = false;
  int unacknowledged_ = 0;  // bytes, by the last step
  Deadline staysUntil_{};
  Deadline staysAtMost_{};
  Status failure_;  // the first failure is kept
};

}  // namespace shardwire::internal
