// Fetches over a separate TCP stream: bytes go from the owner's tensors to the socket, and from the socket into the
// fetcher's tensors, with no buffer between. Both ends send requests, as notes on the stream of frames. The bytes come
// back in the order of the requests, so the stream has no headers.
//
//   request (a note)   space u32 | number of runs u32 | then for each run: address u64, bytes u64      (little-endian)
//
// An owner sends exposed memory and nothing else. One thread at a time. Nothing blocks.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/fd.h"
#include "backend/transport/exposed_memory.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class FetchStream {
 public:
  // Limit of one send() or receive(), since other connections and the frames of the same peer must be served too.
  static constexpr std::size_t kMaxTurnBytes = std::size_t{4} << 20;

  explicit FetchStream(Fd socket) : socket_(std::move(socket)) {}

  const Fd& socket() const { return socket_; }
  bool isOpen() const { return socket_.isOpen(); }
  // Forgets all fetches, both ways, and closes the socket.
  void close();

  // Owner: the peer may request these bytes until conceal().
  RemoteAddress expose(const void* bytes, std::size_t size) { return exposed_.expose(bytes, size); }
  // False: bytes of this exposure are still being sent to the peer.
  bool conceal(std::uint32_t space);
  // Takes a request. kMismatch when the request is malformed or names memory that is not exposed to the peer.
  Status serve(std::string_view request);
  Status send(bool* moved);
  // send() stopped because the socket takes no more.
  bool isBlocked() const { return isBlocked_; }

  // Fetcher: starts a fetch, and appends the requests for the owner to *requests. False: too many fetches are under
  // way.
  bool ask(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count, std::vector<std::string>* requests);
  bool isFetching() const { return !fetches_.empty(); }
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
    std::vector<Run> runs;
    std::size_t next = 0;  // index of the current run; the run's bytes and size advance with the transfer
  };

  Transfer takeSpare();
  // Fills `pieces` from the first transfer on, with at most maxBytes. Returns the number of pieces.
  std::size_t gather(std::deque<Transfer>& transfers, std::size_t maxBytes, std::span<iovec> pieces) const;
  // Advances by `bytes` and removes finished transfers.
  void advance(std::deque<Transfer>& transfers, std::size_t bytes);

  Fd socket_;
  ExposedMemory exposed_;
  std::deque<Transfer> serving_;
  std::size_t numServedRuns_ = 0;
  std::deque<Transfer> fetches_;
  std::vector<Transfer> spare_;  // finished transfers, kept to reuse the memory
  bool isBlocked_ = false;
  bool isEnded_ = false;
};

}  // namespace shardwire::internal
