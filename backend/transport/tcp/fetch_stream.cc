// Both sides of fetches over one TCP stream. The fetcher encodes requests (ask()), which the connection sends as notes
// on the stream of frames. The owner checks each request against the exposed memory (serve()), then writes the
// requested runs to the socket (send()). The fetcher reads the bytes straight into the tensors (receive()). Both sides
// keep a queue of transfers and handle the transfers in the order of the requests.
#include "backend/transport/tcp/fetch_stream.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>

#include "backend/base/wire.h"
#include "backend/fabric/link_message.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxFetches = 32;
// Limit of one request, so that the request fits a note. A longer fetch is several requests.
constexpr std::size_t kMaxRequestRuns = std::size_t{1} << 16;
// Limit of requested runs that are not sent yet. The limit bounds this rank's memory; honest peers stay far below.
constexpr std::size_t kMaxServedRuns = std::size_t{1} << 23;
constexpr std::size_t kPieces = 64;
// System calls of one send() or receive(). Each call gets no more bytes than the turn has left: on loopback a call
// continues while the other end keeps up, through hundreds of MiB if permitted.
constexpr int kMaxFetchCalls = 8;

}  // namespace

void FetchStream::close() {
  socket_.reset();
  exposed_.concealAll();
  serving_.clear();
  fetches_.clear();
  numServedRuns_ = 0;
  isBlocked_ = false;
}

bool FetchStream::conceal(std::uint32_t space) {
  exposed_.conceal(space);
  return std::none_of(serving_.begin(), serving_.end(), [&](const Transfer& each) { return each.space == space; });
}

FetchStream::Transfer FetchStream::takeSpare() {
  Transfer transfer;
  if (!spare_.empty()) {
    transfer = std::move(spare_.back());
    spare_.pop_back();
    transfer.runs.clear();
  }
  transfer.next = 0;
  return transfer;
}

Status FetchStream::serve(std::string_view request) {
  ByteReader reader(request);
  const std::uint32_t space = reader.u32();
  const std::uint32_t numRuns = reader.u32();
  if (!reader.ok() || request.size() != 8 + std::size_t{numRuns} * 16 || numServedRuns_ + numRuns > kMaxServedRuns) {
    return {StatusCode::kMismatch, "a malformed request"};
  }
  Transfer transfer = takeSpare();
  transfer.space = space;
  transfer.count = nullptr;
  bool isAnyEmpty = false;
  const Status may = exposed_.check(space, numRuns, [&](std::size_t) {
    const RemoteRun run{reader.u64(), reader.u64()};
    isAnyEmpty |= run.bytes == 0;
    transfer.runs.push_back({reinterpret_cast<std::byte*>(run.address), run.bytes});
    return run;
  });
  if (isAnyEmpty || !may.isOk()) {
    return {StatusCode::kMismatch, isAnyEmpty ? "a malformed request" : "a request for " + may.message()};
  }
  numServedRuns_ += numRuns;
  if (numRuns > 0) {
    serving_.push_back(std::move(transfer));
  }
  return Status::ok();
}

bool FetchStream::ask(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count,
                      std::vector<std::string>* requests) {
  if (fetches_.size() >= kMaxFetches) {
    return false;
  }
  Transfer transfer = takeSpare();
  transfer.space = space;
  transfer.count = count;
  // Adjacent runs are joined, separately for local and remote memory.
  struct Remote {
    std::uint64_t address;
    std::uint64_t bytes;
  };
  std::vector<Remote> remote;
  for (const MemoryRun& run : runs) {
    if (!transfer.runs.empty() && transfer.runs.back().bytes + transfer.runs.back().size == run.local) {
      transfer.runs.back().size += run.bytes;
    } else {
      transfer.runs.push_back({run.local, run.bytes});
    }
    if (!remote.empty() && remote.back().address + remote.back().bytes == run.remote) {
      remote.back().bytes += run.bytes;
    } else {
      remote.push_back({run.remote, run.bytes});
    }
  }
  for (std::size_t first = 0; first < remote.size(); first += kMaxRequestRuns) {
    const std::size_t some = std::min(remote.size() - first, kMaxRequestRuns);
    ByteWriter writer;
    writer.u32(space);
    writer.u32(static_cast<std::uint32_t>(some));
    for (std::size_t i = first; i < first + some; ++i) {
      writer.u64(remote[i].address);
      writer.u64(remote[i].bytes);
    }
    requests->push_back(writer.bytes());
  }
  ++count->pending;
  fetches_.push_back(std::move(transfer));
  return true;
}

std::size_t FetchStream::gather(std::deque<Transfer>& transfers, std::size_t maxBytes, std::span<iovec> pieces) const {
  std::size_t numPieces = 0;
  for (Transfer& transfer : transfers) {
    for (std::size_t i = transfer.next; i < transfer.runs.size(); ++i) {
      if (numPieces == pieces.size() || maxBytes == 0) {
        return numPieces;
      }
      const std::size_t some = std::min(transfer.runs[i].size, maxBytes);
      pieces[numPieces++] = {transfer.runs[i].bytes, some};
      maxBytes -= some;
    }
  }
  return numPieces;
}

void FetchStream::advance(std::deque<Transfer>& transfers, std::size_t bytes) {
  while (!transfers.empty()) {
    Transfer& first = transfers.front();
    while (bytes > 0 && first.next < first.runs.size()) {
      Run& run = first.runs[first.next];
      const std::size_t some = std::min(bytes, run.size);
      run.bytes += some;
      run.size -= some;
      bytes -= some;
      first.next += run.size == 0 ? 1 : 0;
    }
    if (first.next < first.runs.size()) {
      return;
    }
    if (first.count != nullptr) {
      --first.count->pending;
    } else {
      numServedRuns_ -= first.runs.size();
    }
    spare_.push_back(std::move(first));
    transfers.pop_front();
  }
}

Status FetchStream::send(bool* moved) {
  isBlocked_ = false;
  std::size_t total = 0;
  for (int call = 0; call < kMaxFetchCalls && total < kMaxTurnBytes; ++call) {
    if (serving_.empty() || !isOpen()) {
      return Status::ok();
    }
    std::array<iovec, kPieces> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = gather(serving_, kMaxTurnBytes - total, pieces);
    const ssize_t size = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size >= 0) {
      advance(serving_, static_cast<std::size_t>(size));
      total += static_cast<std::size_t>(size);
      *moved = true;
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return peerError("sending fetched bytes", errno);
    }
  }
  isBlocked_ = !serving_.empty();
  return Status::ok();
}

Status FetchStream::receive(bool* moved) {
  std::size_t total = 0;
  for (int call = 0; call < kMaxFetchCalls && total < kMaxTurnBytes && isOpen() && !isEnded_; ++call) {
    std::array<iovec, kPieces> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = gather(fetches_, kMaxTurnBytes - total, pieces);
    std::byte tooMuch{};
    if (message.msg_iovlen == 0) {  // no fetch is under way: only the end of the stream may arrive
      pieces[0] = {&tooMuch, 1};
      message.msg_iovlen = 1;
    }
    const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size < 0 && errno == EAGAIN) {
      return Status::ok();
    }
    if (size < 0) {
      return peerError("receiving fetched bytes", errno);
    }
    if (size > 0 && fetches_.empty()) {
      return {StatusCode::kMismatch, "sent bytes that this rank did not request"};
    }
    isEnded_ = size == 0;
    *moved |= size > 0;
    total += static_cast<std::size_t>(size);
    advance(fetches_, static_cast<std::size_t>(size));
  }
  return Status::ok();
}

}  // namespace shardwire::internal
