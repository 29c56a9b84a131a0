// The parts of a group that an operation may use while running: the links to the peers, numbers that hold for the life
// of the group, scratch, and calls for reports to the group (RunHost). The engine makes one RunContext; tests make
// separate contexts over separate connections.
//
// Threads: everything runs under the group's lock, whose holder steps the operations. Nothing here waits.
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

#include "backend/base/copy_few.h"
#include "backend/exec/frame.h"
#include "backend/exec/process_failures.h"
#include "backend/transport/transport.h"
#include "ops/boxes/copy_box.h"
#include "ops/reduce/isa_kernels.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class Activity;

// From this size on, staged payloads are packed past the cache on hosts where the dirty lines in this core's cache
// reach the reading core more slowly than lines in memory. Shorter payloads stay in the cache everywhere.
inline constexpr std::size_t kStreamStagedFrom = std::size_t{256} << 10;

inline StoreHint stagedHint(std::size_t payloadBytes) {
  return payloadBytes >= kStreamStagedFrom && streamsStaged() ? StoreHint::kStream : StoreHint::kCached;
}

// The reports of an operation. Each report is noted at once, and takes effect when the operation's step is over.
class RunHost {
 public:
  // Everything in the group fails with `why`, here and on the peers. The first reason stays.
  virtual void fail(Status why) = 0;
  // The peer calls another operation as operation `seq`: asks for the peer's call, then fails the group on both ranks
  // with the same text. False: there was no room to ask, and the caller asks again with a later look.
  virtual bool desync(Rank peer, std::uint64_t seq) = 0;
  // Whether the next staged bytes of the peer belong to an operation that is over here and did not take the bytes: the
  // ranks disagree. Asks the peer, and returns true until the peer has answered.
  virtual bool refuseStale(Rank peer) = 0;
  // This operation ends now, and the group goes on.
  virtual void finish(Activity& activity, Status status) = 0;
  // The operation needs further peers from now on, whose links may be missing.
  virtual void want(Activity& /*activity*/) {}
  // The wait of the operation before its first move is over.
  virtual void begin(Activity& /*activity*/) {}

 protected:
  ~RunHost() = default;
};

struct RunContext {
  RunHost& host;
  Rank rank = 0;
  int worldSize = 1;
  std::string label;             // "rank 1 of 4, group "dp"": for messages
  std::size_t inlineBytes = 0;   // edges and messages up to this are sent, not read (Options::inlineBytes)
  std::size_t eagerBytes = 0;    // messages up to this are sent, too, while the peer takes messages
  std::size_t segmentBytes = 0;  // of one staged segment: both ends of an edge cut boxes alike
  bool hasCorePerRank = true;    // this host has a core for each of the group's ranks here
  std::span<const std::unique_ptr<Connection>> connections;  // by rank; null for this rank
  std::span<const std::unique_ptr<Wire>> wires;
  const void* process = nullptr;  // ProcessGroup::process
  std::vector<std::byte> scratchBytes;

  ProcessGroup inProcess() const { return {process, this}; }

  // Frames of the bulk lane, to and from one peer so far; the counts wrap.
  struct BulkFrames {
    std::uint32_t sent = 0;
    std::uint32_t taken = 0;
  };
  std::vector<BulkFrames> bulkFrames;  // by peer

  Connection& connection(Rank peer) const { return *connections[static_cast<std::size_t>(peer)]; }

  // All bulk frames are sent and released by these two.
  void commitBulk(Rank peer, std::size_t bytes) {
    connection(peer).commit(Lane::kBulk, bytes);
    ++bulkFramesOf(peer).sent;
  }
  void releaseBulk(Rank peer) {
    connection(peer).release(Lane::kBulk);
    ++bulkFramesOf(peer).taken;
  }
  BulkFrames& bulkFramesOf(Rank peer) {
    if (bulkFrames.empty()) {
      bulkFrames.resize(static_cast<std::size_t>(worldSize));
    }
    return bulkFrames[static_cast<std::size_t>(peer)];
  }

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
    copyFew(room.data() + kHeadBytes<F>, payload.data(), payload.size());
    to.commit(Lane::kControl, bytes);
    return true;
  }

  // The same with a text, cut to the length of one frame: some texts grow with the number of ranks.
  template <typename F>
  bool sendText(Rank peer, const F& frame, std::string_view text) const {
    return sendControl(peer, frame,
                       bytesOf(text.substr(0, connection(peer).maxFrameBytes(Lane::kControl) - kHeadBytes<F>)));
  }

  // The next staged bytes of the peer, if the bytes belong to this operation: the only place where bulk frames are
  // read. Nothing while no bytes are here or another operation's bytes come first. Nothing and a report where the ranks
  // disagree or the peer is broken.
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
  bool desync(Rank peer, std::uint64_t seq) const { return host.desync(peer, seq); }
  bool refuseStale(Rank peer) const { return host.refuseStale(peer); }
  void finish(Activity& activity, Status status) const { host.finish(activity, std::move(status)); }
  void begin(Activity& activity) const { host.begin(activity); }

 private:
  // Reports the error in staged bytes that do not belong to this operation, if there is an error.
  void refuseStaged(Rank peer, const OperationTag& operation, std::span<const std::byte> frame) const;
};

}  // namespace shardwire::internal
