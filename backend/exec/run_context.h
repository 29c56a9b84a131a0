// What an operation may use of its group while it runs: the links to the peers, numbers that hold for as long as the group does, scratch,
// and four words to say that it cannot go on as planned. The engine makes one; tests make theirs over connections of their own.
//
// Threads: all of it under the group's lock, whose holder steps the operations. Nothing here waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/exec/frame.h"
#include "backend/transport/transport.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class Activity;

// The words. Each is heard at once, and acted upon when the operation's step is over.
class RunHost {
 public:
  // Everything in the group fails with `why`, here and on the peers. The first reason stays.
  virtual void fail(Status why) = 0;
  // The peer is doing something else as operation `seq`: learns what, then fails the group on both with the same text.
  virtual void desync(Rank peer, std::uint64_t seq) = 0;
  // Whether the next staged bytes of the peer belong to an operation that is over here and did not take them: the ranks disagree. Asks the
  // peer, and is true until it has answered.
  virtual bool refuseStale(Rank peer) = 0;
  // This operation ends now, and the group goes on.
  virtual void finish(Activity& activity, Status status) = 0;
  // What the operation waited for before it moved anything is over.
  virtual void begin(Activity& activity) { static_cast<void>(activity); }

 protected:
  ~RunHost() = default;
};

struct RunContext {
  RunHost& host;
  Rank rank = 0;
  int worldSize = 1;
  std::string label;                                         // "rank 1 of 4, group "dp"": for messages
  std::size_t inlineBytes = 0;                               // edges and messages up to this are sent, not read (Options::inlineBytes)
  std::size_t segmentBytes = 0;                              // of one staged segment: both ends of an edge cut boxes alike
  std::span<const std::unique_ptr<Connection>> connections;  // by rank; null for this rank itself
  std::span<const std::unique_ptr<Wire>> wires;
  std::vector<std::byte> scratchBytes;

  Connection& connection(Rank peer) const { return *connections[static_cast<std::size_t>(peer)]; }

  // Scratch of at least `bytes`, kept for later; valid until the next call.
  std::span<std::byte> scratch(std::size_t bytes) {
    if (scratchBytes.size() < bytes) {
      scratchBytes.resize(bytes);
    }
    return std::span(scratchBytes).first(bytes);
  }

  // Sends one control frame; false when there is no room now.
  template <typename F>
  bool sendControl(Rank peer, const F& frame, Payload payload = {}) const {
    PeerFrames& to = connection(peer);
    const std::size_t bytes = kHeadBytes<F> + payload.size();
    const auto room = to.reserve(Lane::kControl, bytes, bytes);
    if (room.empty()) {
      return false;
    }
    writeFrame(room, frame, payload.size());
    std::copy(payload.begin(), payload.end(), room.begin() + kHeadBytes<F>);
    to.commit(Lane::kControl, bytes);
    return true;
  }

  // The same with a text, of which as much goes as a frame takes: some texts grow with the number of ranks.
  template <typename F>
  bool sendText(Rank peer, const F& frame, std::string_view text) const {
    return sendControl(peer, frame, bytesOf(text.substr(0, connection(peer).maxFrameBytes(Lane::kControl) - kHeadBytes<F>)));
  }

  // The next staged bytes of the peer, if they are this operation's: the one place where bulk frames are read. Nothing while none are here,
  // while another operation's turn comes first, and where the ranks disagree or the peer is broken, which is told.
  std::optional<Received<StagedFrame>> nextStaged(Rank peer, const OperationTag& operation) const {
    const auto frame = connection(peer).peek(Lane::kBulk);
    if (frame.empty()) {
      return std::nullopt;
    }
    auto staged = readFrame<StagedFrame>(frame);
    const bool isOurs = staged.has_value() && staged->operation.seq == operation.seq &&
                        staged->operation.fingerprint == operation.fingerprint && staged->segmentBytes == segmentBytes;
    if (!isOurs) {
      refuseStaged(peer, operation, frame);
      staged.reset();
    }
    return staged;
  }

  void fail(Status why) const { host.fail(std::move(why)); }
  void desync(Rank peer, std::uint64_t seq) const { host.desync(peer, seq); }
  bool refuseStale(Rank peer) const { return host.refuseStale(peer); }
  void finish(Activity& activity, Status status) const { host.finish(activity, std::move(status)); }
  void begin(Activity& activity) const { host.begin(activity); }

 private:
  // Tells what is wrong with staged bytes that are not this operation's, if anything is.
  void refuseStaged(Rank peer, const OperationTag& operation, std::span<const std::byte> frame) const;
};

}  // namespace shardwire::internal
