// Fetches over a TCP stream of their own: bytes go from the owner's tensors to the socket and from the socket into the fetcher's, with no
// buffer between. Both ends ask, by notes on the frames' stream; the bytes come back in the order of the asking, so they need no headers.
//
//   request (a note)   space u32 | number of runs u32 | then for each run: address u64, bytes u64      (little-endian)
//
// An owner sends what it exposed and nothing else. One thread at a time. Nothing blocks.
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
  // Of one send() or receive(): others want to be served too, frames of the same peer among them.
  static constexpr std::size_t kMaxTurnBytes = std::size_t{4} << 20;

  explicit FetchStream(Fd socket) : socket_(std::move(socket)) {}

  const Fd& socket() const { return socket_; }
  bool isOpen() const { return socket_.isOpen(); }
  // Forgets all fetches, both ways, and closes the socket.
  void close();

  // Owner: what the peer may ask for, from here until conceal().
  RemoteAddress expose(const void* bytes, std::size_t size) { return exposed_.expose(bytes, size); }
  // False: the peer is still being sent bytes of it.
  bool conceal(std::uint32_t space);
  // Takes a request. kMismatch for one that is garbled or asks for what is not exposed to it.
  Status serve(std::string_view request);
  Status send(bool* moved);
  // send() stopped because the socket takes no more.
  bool isBlocked() const { return isBlocked_; }

  // Fetcher: starts a fetch; what to tell the owner is appended to *requests. False: too many are under way.
  bool ask(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count, std::vector<std::string>* requests);
  bool isFetching() const { return !fetches_.empty(); }
  Status receive(bool* moved);
  // The owner hung up.
  bool isEnded() const { return isEnded_; }

 private:
  struct Run {
    std::byte* bytes;
    std::size_t size;
  };
  // Runs that are sent or received one after the other.
  struct Transfer {
    std::uint32_t space = 0;
    FetchCount* count = nullptr;  // null: of the owner
    std::vector<Run> runs;
    std::size_t next = 0;  // run; its bytes and size move on as they are transferred
  };

  Transfer takeSpare();
  // Up to so many bytes and pieces, from the first transfer on.
  std::size_t gather(std::deque<Transfer>& transfers, std::size_t maxBytes, std::span<iovec> pieces) const;
  // Moves on by `bytes`; transfers that are over go.
  void advance(std::deque<Transfer>& transfers, std::size_t bytes);

  Fd socket_;
  ExposedMemory exposed_;
  std::deque<Transfer> serving_;
  std::size_t numServedRuns_ = 0;
  std::deque<Transfer> fetches_;
  std::vector<Transfer> spare_;  // their memory is used again
  bool isBlocked_ = false;
  bool isEnded_ = false;
};

}  // namespace shardwire::internal
