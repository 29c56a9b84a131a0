#include "backend/transport/mpi/mpi_message.h"

#include <algorithm>
#include <cstring>

#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kReleasedBytes = sizeof(MpiHead::released);
constexpr std::uint32_t kListed = 0;
constexpr std::uint32_t kRegular = 1;
constexpr std::size_t kRequestHeadBytes = 16;
constexpr std::size_t kMostListed = (kMpiServiceBytes - kMpiHeadBytes - kRequestHeadBytes) / 16;
// Limits the memory that a request makes the owner allocate.
constexpr std::size_t kMostRegular = std::size_t{1} << 20;
constexpr std::size_t kWorthRegular = 16;  // fewer runs are listed, together with the runs that follow

// The number of first runs that are equally long and equally far apart in the peer's memory.
std::size_t countRegular(std::span<const MemoryRun> runs) {
  std::size_t count = std::min<std::size_t>(runs.size(), 2);
  if (count < 2 || runs[1].bytes != runs[0].bytes) {
    return 1;
  }
  const std::uint64_t stride = runs[1].remote - runs[0].remote;
  while (count < std::min(runs.size(), kMostRegular) && runs[count].bytes == runs[0].bytes &&
         runs[count].remote - runs[count - 1].remote == stride) {
    ++count;
  }
  return count;
}

}  // namespace

void encodeHead(const MpiHead& head, std::byte* to) {
  const std::uint32_t kindAndConfirmed =
      static_cast<std::uint32_t>(head.kind) | (head.confirmed % MpiHead::kConfirmedModulo) << 8;
  std::memcpy(to, head.released.data(), kReleasedBytes);
  std::memcpy(to + kReleasedBytes, &kindAndConfirmed, sizeof kindAndConfirmed);
}

std::optional<MpiHead> decodeHead(std::span<const std::byte> message) {
  if (message.size() < kMpiHeadBytes) {
    return std::nullopt;
  }
  MpiHead head;
  std::uint32_t kindAndConfirmed = 0;
  std::memcpy(head.released.data(), message.data(), kReleasedBytes);
  std::memcpy(&kindAndConfirmed, message.data() + kReleasedBytes, sizeof kindAndConfirmed);
  const std::uint32_t kind = kindAndConfirmed & 0xff;
  if (kind > static_cast<std::uint32_t>(MpiKind::kRefusal)) {
    return std::nullopt;
  }
  head.kind = static_cast<MpiKind>(kind);
  head.confirmed = kindAndConfirmed >> 8;
  return head;
}

std::size_t encodeRequest(std::uint32_t space, std::span<const MemoryRun> runs, std::string* to) {
  ByteWriter writer;
  writer.u32(space);
  std::size_t count = countRegular(runs);
  if (count >= kWorthRegular) {
    writer.u32(kRegular);
    writer.u64(count);
    writer.u64(runs[0].remote);
    writer.u64(runs[0].bytes);
    writer.u64(runs[1].remote - runs[0].remote);
  } else {
    count = std::min(runs.size(), kMostListed);
    writer.u32(kListed);
    writer.u64(count);
    for (const MemoryRun& run : runs.first(count)) {
      writer.u64(run.remote);
      writer.u64(run.bytes);
    }
  }
  *to += writer.bytes();
  return count;
}

std::optional<FetchRequest> decodeRequest(std::string_view body) {
  ByteReader reader(body);
  FetchRequest request;
  request.space = reader.u32();
  const std::uint32_t form = reader.u32();
  const std::uint64_t count = reader.u64();
  if (!reader.ok() || count == 0 || count > (form == kRegular ? kMostRegular : kMostListed)) {
    return std::nullopt;
  }
  request.runs.reserve(count);
  if (form == kRegular) {
    const std::uint64_t first = reader.u64();
    const std::uint64_t bytes = reader.u64();
    const std::uint64_t stride = reader.u64();
    for (std::uint64_t i = 0; i < count; ++i) {
      request.runs.push_back({first + i * stride, bytes});
    }
  } else if (form == kListed) {
    for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
      const std::uint64_t address = reader.u64();
      request.runs.push_back({address, reader.u64()});
    }
  }
  const bool anyEmpty = std::ranges::any_of(request.runs, [](const RemoteRun& run) { return run.bytes == 0; });
  return reader.isDone() && !request.runs.empty() && !anyEmpty ? std::optional(std::move(request)) : std::nullopt;
}

}  // namespace shardwire::internal
