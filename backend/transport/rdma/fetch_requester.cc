// fetch() registers the local memory of the runs (pinRuns()), encodes one request for each registered group of runs,
// and sends the requests on the request lane, or queues the requests when the lane or this rank's receives have no
// room. advance() sends queued requests. onArrival() counts the parts that the owner has written; the last part ends
// the fetch and unpins the memory. stop() unpins the memory of all fetches.
#include "backend/transport/rdma/fetch_requester.h"

#include <algorithm>
#include <cstring>

namespace shardwire::internal {
namespace {

// A fetch of at least this size uses all rails at once. Smaller fetches use one rail each, in turn.
constexpr std::uint64_t kStripeFrom = std::uint64_t{512} << 10;
constexpr std::size_t kMostFetches = 4096;

std::uint64_t totalBytes(std::span<const MemoryRun> runs) {
  std::uint64_t total = 0;
  for (const MemoryRun& run : runs) {
    total += run.bytes;
  }
  return total;
}

}  // namespace

std::size_t FetchRequester::takePlace() {
  if (free_.empty()) {
    fetches_.emplace_back();
    return fetches_.size() - 1;
  }
  const std::size_t place = free_.back();
  free_.pop_back();
  return place;
}

// Groups of consecutive runs, each group in one registration. Usually all runs lie in one registered tensor.
Status FetchRequester::pinRuns(std::span<const MemoryRun> runs,
                               std::vector<std::pair<std::size_t, Registration*>>* groups) {
  RegistrationCache& cache = fabric_.registrations();
  std::size_t begin = 0;
  while (begin < runs.size()) {
    std::uintptr_t low = reinterpret_cast<std::uintptr_t>(runs[begin].local);
    std::uintptr_t high = low + runs[begin].bytes;
    std::size_t end = begin + 1;
    const auto pinned = [&](std::size_t size) { return cache.isReady(reinterpret_cast<const void*>(low), size, true); };
    const bool isKnown = pinned(high - low);
    for (; end < runs.size(); ++end) {
      const auto at = reinterpret_cast<std::uintptr_t>(runs[end].local);
      const std::uintptr_t newLow = std::min(low, at);
      const std::uintptr_t newHigh = std::max(high, at + runs[end].bytes);
      // Unless the memory between two runs is registered already, only adjacent runs are joined: the addresses between
      // distant runs may be unmapped.
      const bool joins =
          isKnown ? cache.isReady(reinterpret_cast<const void*>(newLow), newHigh - newLow, true) : at == high;
      if (!joins) {
        break;
      }
      low = newLow;
      high = newHigh;
    }
    auto pin = cache.pin(reinterpret_cast<const void*>(low), high - low, true, nullptr);
    if (!pin.isOk()) {
      for (const auto& [groupEnd, registration] : *groups) {
        cache.unpin(registration);
      }
      return pin.status();
    }
    groups->emplace_back(end, *pin);
    begin = end;
  }
  return Status::ok();
}

std::string FetchRequester::encode(std::uint32_t id, std::uint32_t space, std::span<const MemoryRun> runs,
                                   const Registration& memory, std::uint32_t* numParts) {
  RequestHeader header;
  header.id = id;
  header.space = space;
  header.numRuns = static_cast<std::uint32_t>(runs.size());
  header.numQueues = totalBytes(runs) >= kStripeFrom ? static_cast<std::uint32_t>(devices_.size()) : 1;
  header.firstQueue = nextQueue_;
  nextQueue_ = (nextQueue_ + 1) % static_cast<std::uint32_t>(devices_.size());
  for (std::size_t queue = 0; queue < devices_.size(); ++queue) {
    header.remoteKeys[queue] = memory.regions[devices_[queue]]->rkey;
  }
  *numParts = header.numQueues;
  std::string request(sizeof(header) + runs.size() * sizeof(RunRecord), '\0');
  std::memcpy(request.data(), &header, sizeof(header));
  char* at = request.data() + sizeof(header);
  for (const MemoryRun& run : runs) {
    const RunRecord record{run.remote, reinterpret_cast<std::uintptr_t>(run.local), run.bytes};
    std::memcpy(at, &record, sizeof(record));
    at += sizeof(record);
  }
  return request;
}

bool FetchRequester::send(const std::string& request, std::uint32_t numParts) {
  if (partsUnderWay_ + numParts > kMostParts) {
    return false;
  }
  const auto room = lanes_.reserve(kRequestLane, request.size(), request.size());
  if (room.empty()) {
    return false;
  }
  std::memcpy(room.data(), request.data(), request.size());
  lanes_.commit(kRequestLane, request.size());
  partsUnderWay_ += numParts;
  return true;
}

Result<bool> FetchRequester::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
  if (!waiting_.empty() || partsUnderWay_ + devices_.size() > kMostParts ||
      fetches_.size() - free_.size() >= kMostFetches) {
    return false;
  }
  std::vector<std::pair<std::size_t, Registration*>> groups;
  SW_RETURN_IF_ERROR(pinRuns(runs, &groups));
  const std::size_t place = takePlace();
  Fetch& fetch = fetches_[place];
  ++count->pending;
  fetch.count = count;
  fetch.missing = 0;
  const auto id = static_cast<std::uint32_t>(place) | std::uint32_t{++fetch.generation} << 16;
  const std::size_t mostRuns = (lanes_.maxFrameBytes(kRequestLane) - sizeof(RequestHeader)) / sizeof(RunRecord);
  std::size_t begin = 0;
  for (const auto& [end, memory] : groups) {
    fetch.pins.push_back(memory);
    while (begin < end) {
      const std::size_t number = std::min(end - begin, mostRuns);
      std::uint32_t numParts = 0;
      std::string request = encode(id, space, runs.subspan(begin, number), *memory, &numParts);
      fetch.missing += numParts;
      begin += number;
      if (!waiting_.empty() || !send(request, numParts)) {
        waiting_.push_back({std::move(request), numParts});
      }
    }
  }
  return true;
}

void FetchRequester::advance() {
  while (!waiting_.empty() && send(waiting_.front().request, waiting_.front().numParts)) {
    waiting_.pop_front();
  }
}

bool FetchRequester::onArrival(std::uint32_t id) {
  const std::size_t place = id & 0xffff;
  if (place >= fetches_.size() || fetches_[place].count == nullptr || fetches_[place].generation != id >> 16 ||
      fetches_[place].missing == 0 || partsUnderWay_ == 0) {
    return false;
  }
  Fetch& fetch = fetches_[place];
  --partsUnderWay_;
  if (--fetch.missing == 0) {
    --fetch.count->pending;
    fetch.count = nullptr;
    for (Registration* pin : fetch.pins) {
      fabric_.registrations().unpin(pin);
    }
    fetch.pins.clear();
    free_.push_back(place);
  }
  return true;
}

void FetchRequester::stop() {
  for (Fetch& fetch : fetches_) {
    for (Registration* pin : fetch.pins) {
      fabric_.registrations().unpin(pin);
    }
  }
  fetches_.clear();
  free_.clear();
  waiting_.clear();
}

}  // namespace shardwire::internal
