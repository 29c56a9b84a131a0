// Both sides of fetches over one TCP stream. The fetcher encodes requests (ask()), which the connection sends as notes
// on the stream of frames. The owner checks each request against the exposed memory (serve()), then writes the
// requested runs to the socket (send()). The fetcher reads the bytes straight into the tensors (receive()). Both sides
// keep a queue of transfers and handle the transfers in the order of the requests. With checksums the owner copies a
// block and sends the copy (fillBlock()), and the fetcher reads one block a call and compares before the fetch advances
// over the block's end (takeBlock()).
#include "backend/transport/tcp/fetch_stream.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/base/crc32c.h"
#include "backend/base/wire.h"
#include "backend/transport/tcp/changed_bytes.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxFetches = 32;
// Limit of one request, so that the request fits a note. A longer fetch is several requests.
constexpr std::size_t kMaxRequestRuns = std::size_t{1} << 16;
// Limit of requested runs that are not sent yet. The limit bounds this rank's memory. Honest peers stay below: a fetch
// has 4 MiB where it has runs of one byte (kCopySegment).
constexpr std::size_t kMaxServedRuns = 2 * FetchStream::kMaxAskedRuns;
constexpr std::size_t kPieces = 64;
// System calls of one send() or receive(). Each call gets no more bytes than the turn has left: on loopback a call
// continues while the other end keeps up, through hundreds of MiB if permitted.
constexpr int kMaxFetchCalls = 8;
// With checksums a call moves one block at most.
constexpr int kMaxBlockCalls = static_cast<int>(FetchStream::kMaxTurnBytes / FetchStream::kBlockBytes);

// A longer memcpy uses `rep movsb`, which is six times slower on a Zen 4 where the destination lies up to 63 bytes
// behind the source, counted within their pages (2.8 instead of 17 GB/s).
void copyInPieces(std::byte* to, const std::byte* from, std::size_t size) {
  constexpr std::size_t kPieceBytes = 1024;
  for (; size > kPieceBytes; size -= kPieceBytes, to += kPieceBytes, from += kPieceBytes) {
    std::memcpy(to, from, kPieceBytes);
  }
  std::memcpy(to, from, size);
}

}  // namespace

void FetchStream::drop() {
  isDropped_ = true;
  exposed_.concealAll();
  serving_.clear();
  fetches_.clear();
  blockOut_ = {};
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
  if (!reader.ok() || request.size() != 8 + std::size_t{numRuns} * 16) {
    return {StatusCode::kMismatch, "a malformed request"};
  }
  if (numServedRuns_ + numRuns > kMaxServedRuns) {
    return {StatusCode::kMismatch, fmt::format("a request for {} runs beside {}, where {} are the most", numRuns,
                                               numServedRuns_, kMaxServedRuns)};
  }
  Transfer transfer = takeSpare();
  transfer.space = space;
  transfer.count = nullptr;
  transfer.numRuns = numRuns;
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
  if (fetches_.size() >= kMaxFetches || (isFetching() && numAskedRuns_ + runs.size() > kMaxAskedRuns)) {
    return false;
  }
  Transfer transfer = takeSpare();
  transfer.space = space;
  transfer.count = count;
  transfer.numRuns = runs.size();
  // Adjacent runs are joined, separately for local and remote memory.
  std::vector<RemoteRun> remote;
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
    std::uint64_t total = 0;
    for (std::size_t i = first; i < first + some; ++i) {
      writer.u64(remote[i].address);
      writer.u64(remote[i].bytes);
      total += remote[i].bytes;
    }
    requests->push_back(writer.bytes());
    if (hasChecksums_) {
      requested_.push_back(total);
    }
  }
  ++count->pending;
  numAskedRuns_ += transfer.numRuns;
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
      numAskedRuns_ -= first.numRuns;
    } else {
      numServedRuns_ -= first.numRuns;
    }
    spare_.push_back(std::move(first));
    transfers.pop_front();
  }
}

// The next block of the first request.
void FetchStream::fillBlock() {
  const Transfer& first = serving_.front();
  std::vector<std::byte>& block = blockOut_.bytes;
  block.resize(sizeof blockOut_.sum + kBlockBytes);
  std::byte* const begin = block.data() + sizeof blockOut_.sum;
  std::size_t size = 0;
  for (std::size_t i = first.next; i < first.runs.size() && size < kBlockBytes; ++i) {
    const std::size_t some = std::min(first.runs[i].size, kBlockBytes - size);
    copyInPieces(begin + size, first.runs[i].bytes, some);
    size += some;
  }
  blockOut_.sum = crc32c(begin, size, blockOut_.sum);
  std::memcpy(block.data(), &blockOut_.sum, sizeof blockOut_.sum);
  blockOut_.at = 0;
  blockOut_.size = sizeof blockOut_.sum + size;
  advance(serving_, size);
}

std::size_t FetchStream::gatherOut(std::size_t maxBytes, std::span<iovec> pieces) {
  if (!hasChecksums_) {
    return gather(serving_, maxBytes, pieces);
  }
  if (blockOut_.at == blockOut_.size) {
    fillBlock();
  }
  pieces[0] = {blockOut_.bytes.data() + blockOut_.at, blockOut_.size - blockOut_.at};
  return 1;
}

void FetchStream::advanceOut(std::size_t bytes) {
  if (hasChecksums_) {
    blockOut_.at += bytes;
  } else {
    advance(serving_, bytes);
  }
}

Status FetchStream::send(bool* moved) {
  isBlocked_ = false;
  std::size_t total = 0;
  const int maxCalls = hasChecksums_ ? kMaxBlockCalls : kMaxFetchCalls;
  for (int call = 0; call < maxCalls && total < kMaxTurnBytes; ++call) {
    if (!hasUnsent() || !isOpen()) {
      return Status::ok();
    }
    std::array<iovec, kPieces> pieces;
    const ssize_t size = stream_.send(std::span(pieces).first(gatherOut(kMaxTurnBytes - total, pieces)));
    if (size >= 0) {
      advanceOut(static_cast<std::size_t>(size));
      total += static_cast<std::size_t>(size);
      *moved = true;
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return stream_.error("sending fetched bytes");
    }
  }
  isBlocked_ = hasUnsent();
  return Status::ok();
}

// The rest of the current block, or the next block.
std::size_t FetchStream::gatherBlock(std::span<iovec> pieces) {
  if (fetches_.empty()) {
    return 0;
  }
  if (blockIn_.numSumBytes == 0 && blockIn_.missing == 0) {
    blockIn_.missing = std::min<std::uint64_t>(requested_.front(), kBlockBytes);
    requested_.front() -= blockIn_.missing;
    if (requested_.front() == 0) {
      requested_.pop_front();
    }
  }
  std::size_t numPieces = 0;
  if (const std::size_t rest = blockIn_.sent.size() - blockIn_.numSumBytes; rest > 0) {
    pieces[numPieces++] = {blockIn_.sent.data() + blockIn_.numSumBytes, rest};
  }
  return numPieces + gather(fetches_, blockIn_.missing, pieces.subspan(numPieces));
}

Status FetchStream::takeBlock(std::span<const iovec> pieces, std::size_t bytes) {
  const std::size_t ofSum = std::min(bytes, blockIn_.sent.size() - blockIn_.numSumBytes);
  if (blockIn_.numSumBytes < blockIn_.sent.size()) {
    pieces = pieces.subspan(1);
  }
  blockIn_.numSumBytes += ofSum;
  bytes -= ofSum;
  blockIn_.missing -= bytes;
  for (std::size_t rest = bytes; rest > 0; pieces = pieces.subspan(1)) {
    const std::size_t some = std::min(rest, pieces.front().iov_len);
    blockIn_.sum = crc32c(pieces.front().iov_base, some, blockIn_.sum);
    rest -= some;
  }
  if (bytes > 0 && blockIn_.missing == 0) {
    std::uint32_t sent = 0;
    std::memcpy(&sent, blockIn_.sent.data(), sizeof sent);
    if (sent != blockIn_.sum) {
      return changedBytes("fetched bytes", blockIn_.sum, sent);
    }
    blockIn_.numSumBytes = 0;
  }
  advance(fetches_, bytes);
  return Status::ok();
}

Status FetchStream::receive(bool* moved) {
  std::size_t total = 0;
  const int maxCalls = hasChecksums_ ? kMaxBlockCalls : kMaxFetchCalls;
  const auto isInTurn = [&](int call) { return call < maxCalls && total < kMaxTurnBytes; };
  for (int call = 0; (isInTurn(call) || stream_.holdsBytes()) && isOpen() && !isEnded_; ++call) {
    std::array<iovec, kPieces> pieces;
    const std::size_t most = total < kMaxTurnBytes ? kMaxTurnBytes - total : kBlockBytes;
    std::size_t numPieces = hasChecksums_ ? gatherBlock(pieces) : gather(fetches_, most, pieces);
    std::byte tooMuch{};
    if (numPieces == 0) {  // no fetch is under way: only the end of the stream may arrive
      pieces[numPieces++] = {&tooMuch, 1};
    }
    const std::span<const iovec> places = std::span(pieces).first(numPieces);
    const ssize_t size = isInTurn(call) ? stream_.receive(places) : stream_.receiveHeld(places);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size < 0 && errno == EAGAIN) {
      return Status::ok();
    }
    if (size < 0) {
      return stream_.error("receiving fetched bytes");
    }
    if (size > 0 && fetches_.empty()) {
      return {StatusCode::kMismatch, "sent bytes that this rank did not request"};
    }
    isEnded_ = size == 0;
    *moved |= size > 0;
    total += static_cast<std::size_t>(size);
    if (hasChecksums_ && size > 0) {
      SW_RETURN_IF_ERROR(takeBlock(places, static_cast<std::size_t>(size)));
    } else {
      advance(fetches_, static_cast<std::size_t>(size));
    }
  }
  return Status::ok();
}

}  // namespace shardwire::internal
