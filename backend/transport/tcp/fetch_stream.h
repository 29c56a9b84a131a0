// Fetches over a separate TCP stream: bytes go from the owner's tensors to the socket, and from the socket into the
// fetcher's tensors, with no buffer between. Both ends send requests, as notes on the stream of frames. The bytes come
// back in the order of the requests, so the stream has no headers.
//
//   request (a note)   space u32 | number of runs u32 | then for each run: address u64, bytes u64      (little-endian)
//
// With checksums the bytes of each request come in blocks: CRC-32C u32 | up to kBlockBytes. Each block but a request's
// last has kBlockBytes. The checksum continues the checksum of the block before, so a lost or repeated block is
// noticed, too. The owner sends a copy of each block: bytes that a third rank writes meanwhile (symmetric memory) must
// not count as bytes changed on the way. A fetch ends after the comparison of its last block.
//
// An owner sends exposed memory and nothing else. One thread at a time. Nothing blocks.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/transport/exposed_memory.h"
#include "backend/transport/tcp/tcp_stream.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class FetchStream {
 public:
  // Limit of one send() or receive(), since other connections and the frames of the same peer must be served too.
  static constexpr std::size_t kMaxTurnBytes = std::size_t{4} << 20;

  static constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

  // Runs of all fetches under way. A single fetch may have more. Each run costs memory on both ends.
  static constexpr std::size_t kMaxAskedRuns = std::size_t{1} << 22;

  // hasChecksums: equal on both ends.
  explicit FetchStream(TcpStream stream, bool hasChecksums = false)
      : stream_(std::move(stream)), hasChecksums_(hasChecksums) {}

  const Fd& socket() const { return stream_.socket(); }
  bool isOpen() const { return stream_.isOpen() && !isDropped_; }
  // Forgets all fetches, both ways, for ever. The socket stays open: the peer takes its close for a failure until the
  // reason has come on the other stream.
  void drop();

  // Owner: the peer may request these bytes until conceal().
  RemoteAddress expose(const void* bytes, std::size_t size) { return exposed_.expose(bytes, size); }
  // False: bytes of this exposure are still being sent to the peer.
  bool conceal(std::uint32_t space);
  // Takes a request. kMismatch when the request is malformed or names memory that is not exposed to the peer.
  Status serve(std::string_view request);
  Status send(bool* moved);
  // send() stopped because the socket takes no more.
  bool isBlocked() const { return isBlocked_; }

  // Fetcher: starts a fetch, and appends the requests for the owner to *requests. False: too many fetches or runs are
  // under way.
  bool ask(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count, std::vector<std::string>* requests);
  bool isFetching() const { return !fetches_.empty(); }
  // Errors: the system broke the stream, the peer sent bytes without a request, or bytes were changed on the way. The
  // stream is then over.
  Status receive(bool* moved);
  // The owner closed the stream.
  bool isEnded() const { return isEnded_; }

 private:
  struct Run {
    std::byte* bytes;
    std::size_t size;
  };
  // Runs that are sent or received one after the other.
  struct Transfer {
    std::uint32_t space = 0;
    FetchCount* count = nullptr;  // null on the owner's side
    std::size_t numRuns = 0;      // as requested
    std::vector<Run> runs;
    std::size_t next = 0;  // index of the current run; the run's bytes and size advance with the transfer
  };

  // With checksums. Out: [at, size) of `bytes` is not sent yet.
  struct BlockOut {
    std::vector<std::byte> bytes;
    std::size_t at = 0;
    std::size_t size = 0;
    std::uint32_t sum = 0;  // of the last block
  };
  // In: the current block. Empty (numSumBytes == 0 and missing == 0) between blocks.
  struct BlockIn {
    std::array<std::byte, 4> sent{};  // the block's checksum, of which numSumBytes have arrived
    std::size_t numSumBytes = 0;
    std::size_t missing = 0;  // bytes behind the checksum
    std::uint32_t sum = 0;    // of all bytes that have arrived
  };

  bool hasUnsent() const { return !serving_.empty() || blockOut_.at < blockOut_.size; }
  std::size_t gatherOut(std::size_t maxBytes, std::span<iovec> pieces);
  void advanceOut(std::size_t bytes);
  void fillBlock();
  std::size_t gatherBlock(std::span<iovec> pieces);
  // `bytes` arrived in the pieces of gatherBlock().
  Status takeBlock(std::span<const iovec> pieces, std::size_t bytes);

  Transfer takeSpare();
  // Fills `pieces` from the first transfer on, with at most maxBytes. Returns the number of pieces.
  std::size_t gather(std::deque<Transfer>& transfers, std::size_t maxBytes, std::span<iovec> pieces) const;
  // Advances by `bytes` and removes finished transfers.
  void advance(std::deque<Transfer>& transfers, std::size_t bytes);

  TcpStream stream_;
  ExposedMemory exposed_;
  std::deque<Transfer> serving_;
  std::size_t numServedRuns_ = 0;
  std::deque<Transfer> fetches_;
  std::size_t numAskedRuns_ = 0;
  std::vector<Transfer> spare_;  // finished transfers, kept to reuse the memory
  const bool hasChecksums_;
  BlockOut blockOut_;
  BlockIn blockIn_;
  std::deque<std::uint64_t> requested_;  // with checksums: bytes of each request that are not in a block yet
  bool isBlocked_ = false;
  bool isEnded_ = false;
  bool isDropped_ = false;
};

}  // namespace shardwire::internal
