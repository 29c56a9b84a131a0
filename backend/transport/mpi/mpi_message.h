// The bytes of messages between two MpiConnections: the head of every message, and requests for runs of exposed memory.
// Pure functions; the decoders check all bytes of the peer. Fixed width, little-endian.
//
//   head      u32 released[3]: bytes of each incoming lane that the sender of this message has released, modulo 2^32;
//             u8 kind; u24 confirmed: MpiFetches::numConfirmed(), modulo 2^24
//   request   head, u32 space, u32 form, u64 count, then
//             form 0: count times u64 address, u64 bytes
//             form 1: u64 address, u64 bytes, u64 stride: count runs of equal length, stride apart (modulo 2^64)
//   refusal   head, text
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/transport/exposed_memory.h"
#include "backend/transport/mpi/mpi_api.h"
#include "backend/transport/mpi/mpi_lane.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// A notice is a head without a body. It carries the counts when no frame does.
enum class MpiKind : std::uint8_t { kFrame = 0, kNotice = 1, kRequest = 2, kRefusal = 3 };

struct MpiHead {
  static constexpr std::uint32_t kConfirmedModulo = 1U << 24;

  std::array<std::uint32_t, kNumLanes> released{};
  MpiKind kind = MpiKind::kFrame;
  std::uint32_t confirmed = 0;  // below kConfirmedModulo
  friend bool operator==(const MpiHead&, const MpiHead&) = default;
};

// Precondition: room for kMpiHeadBytes.
void encodeHead(const MpiHead& head, std::byte* to);
std::optional<MpiHead> decodeHead(std::span<const std::byte> message);

// Messages outside of the lanes are at most this long.
inline constexpr std::size_t kMpiServiceBytes = std::size_t{64} << 10;

// Appends a request for the first runs to `to`, as many as one request holds, and returns their number. Precondition:
// no run is empty.
std::size_t encodeRequest(std::uint32_t space, std::span<const MemoryRun> runs, std::string* to);
struct FetchRequest {
  std::uint32_t space = 0;
  std::vector<RemoteRun> runs;
};
// `body`: the bytes after the head. Nothing: the bytes are malformed.
std::optional<FetchRequest> decodeRequest(std::string_view body);

// Both ends cut the runs of a request into the same messages, from the runs' lengths alone. A long run is a separate
// message, since MPI moves contiguous memory in one copy (CMA, RDMA). Short runs share messages, which the owner packs.
// A very long run is several messages, since MPI may copy a whole message inside of a single poll, while everything
// else of this rank waits.
inline constexpr std::size_t kMpiLongRun = std::size_t{64} << 10;
inline constexpr std::size_t kMpiPackedBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMpiLongestMessage = std::size_t{8} << 20;

// Whether MPI reads this message from the owner's tensor while the message is under way. Otherwise the owner packs the
// message, and later changes of the tensor do not affect the bytes.
inline bool isSentFromTensor(std::span<const MpiRun> message) {
  return message.size() == 1 && message[0].size >= kMpiLongRun;
}

template <typename Visit>
Status forEachMessage(std::span<const MpiRun> runs, std::size_t longest, std::vector<MpiRun>* scratch, Visit&& visit) {
  scratch->clear();
  std::size_t bytes = 0;
  const auto finish = [&]() -> Status {
    const Status done = scratch->empty() ? Status::ok() : visit(std::span<const MpiRun>(*scratch));
    scratch->clear();
    bytes = 0;
    return done;
  };
  for (MpiRun run : runs) {
    const bool isLong = run.size >= kMpiLongRun;
    if (isLong || bytes + run.size > kMpiPackedBytes) {
      SW_RETURN_IF_ERROR(finish());
    }
    while (isLong && run.size > 0) {
      scratch->push_back({run.bytes, std::min(run.size, longest)});
      run = {run.bytes + scratch->back().size, run.size - scratch->back().size};
      SW_RETURN_IF_ERROR(finish());
    }
    if (!isLong) {
      scratch->push_back(run);
      bytes += run.size;
    }
  }
  return finish();
}

}  // namespace shardwire::internal
