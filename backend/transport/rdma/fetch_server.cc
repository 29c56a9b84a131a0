// The owner registers exposed memory (expose()). advance() takes the oldest request from the request lane, copies its
// runs, checks them against the exposures (begin()), and posts the writes of each part on the part's queue pair
// (servePart()). The last write of a part carries the request's id as an immediate. When a queue pair is full, the next
// advance() continues. Requests that fail the check are refused. conceal() keeps memory pinned until all writes posted
// before are complete; these may be writes of other memory, so the memory's owner may be faster, and free the memory.
#include "backend/transport/rdma/fetch_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardwire::internal {
namespace {

constexpr std::size_t kMostRefusalBytes = 512;

}  // namespace

Result<std::uint32_t> FetchServer::expose(const void* bytes, std::size_t size) {
  auto memory = fabric_.registrations().pin(bytes, std::max<std::size_t>(size, 1), false, nullptr);
  SW_RETURN_IF_ERROR(memory.status());
  const std::uint32_t space = exposed_.expose(bytes, size).space;
  registrations_[space] = *memory;
  return space;
}

void FetchServer::conceal(std::uint32_t space) {
  const auto found = registrations_.find(space);
  if (found == registrations_.end()) {
    return;  // stop() was called before
  }
  if (isServing_ && header_.space == space) {
    // The operation failed on this side before the peer's request was served.
    refuse(header_.id, fmt::format("exposure {} was withdrawn", space));
    isServing_ = false;
    lanes_.release(kRequestLane);
  }
  Retired retired;
  retired.memory = found->second;
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    retired.posted[i] = queues_[i]->posted();
  }
  registrations_.erase(found);
  exposed_.conceal(space);
  fabric_.registrations().close(retired.memory);
  retired_.push_back(retired);
  giveBackRetired();
}

void FetchServer::giveBackRetired() {
  std::erase_if(retired_, [&](const Retired& retired) {
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      // The counts wrap around.
      if (static_cast<std::int32_t>(queues_[i]->completed() - retired.posted[i]) < 0) {
        return false;
      }
    }
    fabric_.registrations().unpinClosed(retired.memory);
    return true;
  });
}

std::string FetchServer::begin(std::span<const std::byte> frame) {
  const std::uint64_t numQueues = queues_.size();
  if (frame.size() != sizeof(header_) + std::uint64_t{header_.numRuns} * sizeof(RunRecord) || header_.numRuns < 1 ||
      header_.numQueues < 1 || header_.numQueues > numQueues || header_.firstQueue >= numQueues) {
    return "a malformed request";
  }
  runs_.resize(header_.numRuns);
  std::memcpy(runs_.data(), frame.data() + sizeof(header_), runs_.size() * sizeof(RunRecord));
  std::uint64_t total = 0;
  const Status may = exposed_.check(header_.space, runs_.size(), [&](std::size_t i) {
    total += runs_[i].bytes;
    return RemoteRun{runs_[i].remote, runs_[i].bytes};
  });
  if (!may.isOk()) {
    return "asked for " + may.message();
  }
  memory_ = registrations_.at(header_.space);
  std::uint32_t at = 0;
  std::uint64_t before = 0;  // bytes of the runs before `at`
  for (std::uint32_t part = 0; part < header_.numQueues; ++part) {
    const std::uint64_t from = partBegin(total, part, header_.numQueues);
    const std::uint64_t to = partBegin(total, part + 1, header_.numQueues);
    if (to == from) {
      return "a request with an empty part";
    }
    while (before + runs_[at].bytes <= from) {
      before += runs_[at++].bytes;
    }
    cursors_[part] = {.run = at, .offset = from - before, .left = to - from};
  }
  return {};
}

bool FetchServer::servePart(std::uint32_t part) {
  Cursor& cursor = cursors_[part];
  const std::size_t index = (header_.firstQueue + part) % queues_.size();
  QueuePair& queue = *queues_[index];
  while (cursor.left > 0) {
    const RunRecord& record = runs_[cursor.run];
    const std::uint64_t bytes =
        std::min({record.bytes - cursor.offset, cursor.left, std::uint64_t{QueuePair::kMaxWriteBytes}});
    if (bytes > 0) {
      RdmaWrite write;
      write.local = reinterpret_cast<const void*>(record.remote + cursor.offset);
      write.localKey = memory_->regions[queue.rail().device]->lkey;
      write.remote = record.local + cursor.offset;
      write.remoteKey = header_.remoteKeys[index];
      write.bytes = bytes;
      if (bytes == cursor.left) {
        write.immediate = header_.id;
        write.isSignalled = true;
      }
      if (!queue.write(write)) {
        return false;
      }
    }
    cursor.left -= bytes;
    cursor.offset += bytes;
    if (cursor.offset == record.bytes) {
      ++cursor.run;
      cursor.offset = 0;
    }
  }
  return true;
}

std::string FetchServer::advance() {
  if (!retired_.empty()) {
    giveBackRetired();
  }
  while (true) {
    if (!isServing_) {
      const auto frame = lanes_.peek(kRequestLane);
      if (frame.empty()) {
        return {};
      }
      if (frame.size() < sizeof(header_)) {
        lanes_.release(kRequestLane);
        return "the peer sent a request that is too short";
      }
      std::memcpy(&header_, frame.data(), sizeof(header_));
      if (header_.kind == RequestKind::kRefusal) {
        const auto text = frame.subspan(sizeof(header_));
        std::string why(reinterpret_cast<const char*>(text.data()), std::min(text.size(), kMostRefusalBytes));
        lanes_.release(kRequestLane);
        return "the peer refused a fetch: " + why;
      }
      if (queues_.empty()) {
        lanes_.release(kRequestLane);  // stopped; a note reports this to the peer
        continue;
      }
      if (const std::string why = begin(frame); !why.empty()) {
        refuse(header_.id, why);
        lanes_.release(kRequestLane);
        continue;
      }
      isServing_ = true;
    }
    bool isServed = true;
    for (std::uint32_t part = 0; part < header_.numQueues; ++part) {
      isServed = servePart(part) && isServed;
    }
    if (!isServed) {
      return {};  // until a completion makes room
    }
    isServing_ = false;
    lanes_.release(kRequestLane);
  }
}

void FetchServer::refuse(std::uint32_t id, const std::string& why) {
  RequestHeader header;
  header.kind = RequestKind::kRefusal;
  header.id = id;
  header.numRuns = static_cast<std::uint32_t>(why.size());
  const std::size_t size = sizeof(header) + why.size();
  const auto room = lanes_.reserve(kRequestLane, size, size);
  if (!room.empty()) {  // otherwise the peer's fetch ends at the peer's deadline
    std::memcpy(room.data(), &header, sizeof(header));
    std::memcpy(room.data() + sizeof(header), why.data(), why.size());
    lanes_.commit(kRequestLane, size);
  }
}

void FetchServer::stop() {
  for (const auto& [space, memory] : registrations_) {
    fabric_.registrations().unpin(memory);
  }
  for (const Retired& retired : retired_) {
    fabric_.registrations().unpinClosed(retired.memory);
  }
  exposed_.concealAll();
  registrations_.clear();
  retired_.clear();
  if (isServing_) {
    isServing_ = false;
    lanes_.release(kRequestLane);
  }
}

}  // namespace shardwire::internal
