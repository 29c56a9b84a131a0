#include "backend/transport/mpi/mpi_fetches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardwire::internal {
namespace {

// The reader of an exposure acknowledged all of it, so its messages are over but for MPI noticing here.
constexpr int kPollsToEnd = 1000;
constexpr std::uint16_t kNotPacked = 0xffff;  // a cookie's lane: else the number of the packed message

}  // namespace

RemoteAddress MpiFetches::expose(const void* bytes, std::size_t size) {
  while (nextSpace_ < kFirstExposure || exposures_.contains(nextSpace_)) {
    ++nextSpace_;  // after 2^32 exposures
  }
  const RemoteAddress address{nextSpace_++, reinterpret_cast<std::uint64_t>(bytes)};
  exposures_[address.space] = {address.value, size, 0};
  return address;
}

void MpiFetches::conceal(std::uint32_t space) {
  const auto found = exposures_.find(space);
  if (found == exposures_.end()) {
    return;
  }
  for (int polls = 0; found->second.numSends > 0 && polls < kPollsToEnd && wire_->failure().isOk(); ++polls) {
    wire_->poll();
  }
  exposures_.erase(space);
}

Status MpiFetches::checkExposed(const FetchRequest& request, const Exposure* exposure) const {
  for (const RemoteRun& run : request.runs) {
    if (exposure == nullptr || run.bytes > exposure->size || run.address < exposure->base ||
        run.address - exposure->base > exposure->size - run.bytes) {
      return {StatusCode::kPeerFailed, fmt::format("asked for {} bytes at {:#x} of exposure {}, which were not exposed to it", run.bytes,
                                                   run.address, request.space)};
    }
  }
  return Status::ok();
}

Status MpiFetches::serve(std::string_view body) {
  const auto request = decodeRequest(body);
  if (!request.has_value()) {
    return {StatusCode::kPeerFailed, "sent a request for memory that cannot be read"};
  }
  if (isStopped_) {
    return Status::ok();  // nothing is read from callers' memory any more, and nobody waits for it
  }
  const auto found = exposures_.find(request->space);
  SW_RETURN_IF_ERROR(checkExposed(*request, found == exposures_.end() ? nullptr : &found->second));
  runs_.clear();
  for (const RemoteRun& run : request->runs) {
    runs_.push_back({reinterpret_cast<std::byte*>(run.address), run.bytes});
  }
  SW_RETURN_IF_ERROR(forEachMessage(runs_, kMpiLongestMessage, &message_, [&](std::span<const MpiRun> message) {
    outgoing_.push_back({request->space, {message.begin(), message.end()}});
    return Status::ok();
  }));
  return startSends();
}

MpiFetches::Packed* MpiFetches::freePacked() {
  const auto found = std::find_if(packed_.begin(), packed_.end(), [](const Packed& each) { return !each.isInFlight; });
  if (found == packed_.end()) {
    return nullptr;
  }
  if (found->bytes == nullptr) {
    found->bytes = std::make_unique_for_overwrite<std::byte[]>(kMpiPackedBytes);
  }
  return &*found;
}

Status MpiFetches::startSends() {
  for (; !outgoing_.empty(); outgoing_.pop_front()) {
    const Outgoing& next = outgoing_.front();
    const auto exposure = exposures_.find(next.space);
    if (exposure == exposures_.end()) {
      return {StatusCode::kPeerFailed, "acknowledged a tensor of which it had asked for more"};
    }
    std::size_t bytes = 0;
    std::for_each(next.runs.begin(), next.runs.end(), [&](const MpiRun& run) { bytes += run.size; });
    if (numSends_ > 0 && bytesInFlight_ + bytes > kMostBytesInFlight) {
      return Status::ok();  // goes on when one was sent
    }
    MpiCookie cookie{owner_, kSendKind, kNotPacked, next.space};
    MpiRun message = next.runs[0];
    if (next.runs.size() > 1) {
      Packed* const packed = freePacked();
      if (packed == nullptr) {
        return Status::ok();
      }
      message = {packed->bytes.get(), 0};
      for (const MpiRun& run : next.runs) {
        std::memcpy(message.bytes + message.size, run.bytes, run.size);
        message.size += run.size;
      }
      packed->isInFlight = true;
      cookie.lane = static_cast<std::uint16_t>(packed - packed_.data());
    }
    SW_RETURN_IF_ERROR(wire_->operations().send(*pair_, tag_, {&message, 1}, cookie));
    ++exposure->second.numSends;
    ++numSends_;
    bytesInFlight_ += bytes;
  }
  return Status::ok();
}

Status MpiFetches::sent(const MpiDone& done) {
  --numSends_;
  bytesInFlight_ -= done.bytes;
  if (const auto found = exposures_.find(done.cookie.index); found != exposures_.end()) {
    --found->second.numSends;
  }
  if (done.cookie.lane != kNotPacked) {
    packed_[done.cookie.lane].isInFlight = false;
  }
  return startSends();
}

void MpiFetches::abandon() {
  for (Packed& packed : packed_) {
    static_cast<void>(packed.isInFlight ? packed.bytes.release() : nullptr);
  }
}

Status MpiFetches::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count, std::vector<std::string>* requests) {
  std::vector<MemoryRun> wanted;
  wanted.reserve(runs.size());
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(wanted), [](const MemoryRun& run) { return run.bytes > 0; });
  if (wanted.empty()) {
    return Status::ok();
  }
  const auto place = std::find_if(fetches_.begin(), fetches_.end(), [](const Fetch& each) { return each.count == nullptr; });
  *place = {count, 0, 0};
  ++numFetches_;
  ++count->pending;
  const MpiCookie cookie{owner_, kReceiveKind, 0, static_cast<std::uint32_t>(place - fetches_.begin())};
  for (std::span<const MemoryRun> left = wanted; !left.empty();) {
    const std::size_t asked = encodeRequest(space, left, &requests->emplace_back());
    runs_.clear();
    for (const MemoryRun& run : left.first(asked)) {
      runs_.push_back({run.local, run.bytes});
      place->bytes += run.bytes;
    }
    SW_RETURN_IF_ERROR(forEachMessage(runs_, kMpiLongestMessage, &message_, [&](std::span<const MpiRun> message) -> Status {
      SW_RETURN_IF_ERROR(wire_->operations().receive(*pair_, tag_, message, cookie));
      ++place->numMessages;
      ++numReceives_;
      return Status::ok();
    }));
    left = left.subspan(asked);
  }
  return Status::ok();
}

Status MpiFetches::received(const MpiDone& done) {
  --numReceives_;
  if (done.isCancelled) {
    return Status::ok();  // the fetch stays pending
  }
  Fetch& fetch = fetches_[done.cookie.index];
  --fetch.numMessages;
  if (done.bytes > fetch.bytes || (fetch.numMessages == 0 && done.bytes != fetch.bytes)) {
    return {StatusCode::kPeerFailed, "sent fewer bytes than were fetched"};
  }
  fetch.bytes -= done.bytes;
  if (fetch.numMessages == 0) {
    --fetch.count->pending;
    fetch = {};
    --numFetches_;
  }
  return Status::ok();
}

bool MpiFetches::stop() {
  isStopped_ = true;
  outgoing_.clear();
  exposures_.clear();
  if (numReceives_ > 0) {
    wire_->operations().cancelReceives(owner_, kReceiveKind);
  }
  // A few looks: what MPI gave up ends in the next one.
  for (int polls = 0; polls < 4 && numInFlight() > 0; ++polls) {
    wire_->poll();
  }
  return numInFlight() == 0;
}

}  // namespace shardwire::internal
