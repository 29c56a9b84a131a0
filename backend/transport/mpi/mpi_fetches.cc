// Owner: serve() checks a request and cuts the runs into messages; startSends() sends long runs from the tensor and
// packs short runs, as far as the limit of bytes in flight permits; sent() counts finished messages, confirms requests
// in order, and starts the next messages. Asker: fetch() cuts its runs into the same messages and encodes the requests;
// startReceives() posts the first receives; received() posts the next, and with confirmedByPeer() ends a fetch when all
// bytes have arrived and the owner has confirmed all requests. stop() ends both sides.
#include "backend/transport/mpi/mpi_fetches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace shardwire::internal {
namespace {

constexpr std::uint16_t kNotPacked = 0xffff;  // value of a cookie's lane; otherwise the index of the packed message

template <typename Run>
bool hasLongRun(std::span<const Run> runs) {
  return std::ranges::any_of(runs, [](const Run& run) { return run.bytes >= kMpiLongRun; });
}

std::size_t totalBytes(std::span<const MpiRun> message) {
  return std::accumulate(message.begin(), message.end(), std::size_t{0},
                         [](std::size_t bytes, const MpiRun& run) { return bytes + run.size; });
}

}  // namespace

// Checks the runs of a request, and stores them in runs_.
Status MpiFetches::takeRuns(const FetchRequest& request) {
  runs_.clear();
  std::uint64_t numRuns = 0;  // with the pieces of long runs
  const Status may = exposed_.check(request.space, request.runs.size(), [&](std::size_t i) {
    runs_.push_back({reinterpret_cast<std::byte*>(request.runs[i].address), request.runs[i].bytes});
    numRuns += request.runs[i].bytes / kMpiLongestMessage + 1;
    return request.runs[i];
  });
  if (!may.isOk()) {
    return {may.code(), "asked for " + may.message()};
  }
  if (numServedRuns_ + numRuns > kMostServedRuns) {
    return {StatusCode::kPeerFailed, fmt::format("asked for {} runs beside {}, where {} are the most", numRuns,
                                                 numServedRuns_, kMostServedRuns)};
  }
  return Status::ok();
}

Status MpiFetches::serve(std::string_view body) {
  const auto request = decodeRequest(body);
  if (!request.has_value()) {
    return {StatusCode::kPeerFailed, "sent a malformed request for memory"};
  }
  if (isStopped_) {
    return Status::ok();  // callers' memory is not read after the stop, and the peer's fetch need not end
  }
  SW_RETURN_IF_ERROR(takeRuns(*request));
  const std::uint64_t number = numConfirmed_ + unconfirmed_.size();
  std::uint32_t numFromTensor = 0;
  SW_RETURN_IF_ERROR(forEachMessage(runs_, kMpiLongestMessage, &message_, [&](std::span<const MpiRun> message) {
    outgoing_.push_back({request->space, number, {message.begin(), message.end()}});
    numServedRuns_ += message.size();
    numFromTensor += isSentFromTensor(message) ? 1 : 0;
    return Status::ok();
  }));
  if (hasLongRun(std::span<const RemoteRun>(request->runs))) {
    unconfirmed_.push_back(numFromTensor);
  }
  return startSends();
}

MpiFetches::Packed* MpiFetches::freePacked() {
  const auto found = std::ranges::find_if(packed_, [](const Packed& each) { return !each.isInFlight; });
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
    if (!exposed_.find(next.space).isOk()) {
      return {StatusCode::kPeerFailed, "acknowledged a tensor while more bytes of this tensor were requested"};
    }
    const std::size_t bytes = totalBytes(next.runs);
    if (numSends_ > 0 && bytesInFlight_ + bytes > kMostBytesInFlight) {
      return Status::ok();  // continues when a message was sent
    }
    MpiCookie cookie{owner_, kSendKind, kNotPacked, static_cast<std::uint32_t>(next.request)};
    MpiRun message = next.runs[0];
    if (!isSentFromTensor(next.runs)) {
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
    SW_RETURN_IF_ERROR(wire_->operations().send(*pair_, tag_, message, cookie));
    ++numSends_;
    bytesInFlight_ += bytes;
    numServedRuns_ -= next.runs.size();
  }
  return Status::ok();
}

Status MpiFetches::sent(const MpiDone& done) {
  --numSends_;
  bytesInFlight_ -= done.bytes;
  if (done.cookie.lane != kNotPacked) {
    packed_[done.cookie.lane].isInFlight = false;
  } else if (!isStopped_ && done.error.empty()) {
    --unconfirmed_[done.cookie.index - static_cast<std::uint32_t>(numConfirmed_)];
    for (; !unconfirmed_.empty() && unconfirmed_.front() == 0; unconfirmed_.pop_front()) {
      ++numConfirmed_;
    }
  }
  return startSends();
}

void MpiFetches::abandon() {
  for (Packed& packed : packed_) {
    static_cast<void>(packed.isInFlight ? packed.bytes.release() : nullptr);
  }
}

Status MpiFetches::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count,
                         std::vector<std::string>* requests) {
  const auto place = std::ranges::find_if(fetches_, [](const Fetch& each) { return each.count == nullptr; });
  *place = {count, runs.size(), 0, 0, 0};
  ++numFetches_;
  numAskedRuns_ += runs.size();
  ++count->pending;
  const auto index = static_cast<std::uint32_t>(place - fetches_.begin());
  while (!runs.empty()) {
    const auto asked = runs.first(encodeRequest(space, runs, &requests->emplace_back()));
    if (hasLongRun(asked)) {
      place->confirmedAt = ++numLongAsked_;
    }
    runs_.clear();
    for (const MemoryRun& run : asked) {
      runs_.push_back({run.local, run.bytes});
      place->bytes += run.bytes;
    }
    SW_RETURN_IF_ERROR(forEachMessage(runs_, kMpiLongestMessage, &message_, [&](std::span<const MpiRun> message) {
      incoming_.push_back({index, {message.begin(), message.end()}});
      ++place->numMessages;
      return Status::ok();
    }));
    runs = runs.subspan(asked.size());
  }
  return startReceives();
}

Status MpiFetches::startReceives() {
  for (; !incoming_.empty(); incoming_.pop_front()) {
    const Incoming& next = incoming_.front();
    const std::size_t bytes = totalBytes(next.runs);
    if (numReceives_ > 0 && bytesPosted_ + bytes > kMostBytesPosted) {
      return Status::ok();  // continues when a message has arrived
    }
    const MpiCookie cookie{owner_, kReceiveKind, 0, next.fetch};
    SW_RETURN_IF_ERROR(wire_->operations().receive(*pair_, tag_, next.runs, cookie));
    ++numReceives_;
    bytesPosted_ += bytes;
  }
  return Status::ok();
}

Status MpiFetches::received(const MpiDone& done) {
  --numReceives_;
  if (done.isCancelled || !done.error.empty()) {
    return Status::ok();  // the fetch stays pending
  }
  bytesPosted_ -= done.bytes;
  Fetch& fetch = fetches_[done.cookie.index];
  --fetch.numMessages;
  if (done.bytes > fetch.bytes || (fetch.numMessages == 0 && done.bytes != fetch.bytes)) {
    return {StatusCode::kPeerFailed, "sent fewer bytes than were fetched"};
  }
  fetch.bytes -= done.bytes;
  endIfOver(fetch);
  return startReceives();
}

void MpiFetches::endIfOver(Fetch& fetch) {
  if (fetch.numMessages == 0 && numConfirmedByPeer_ >= fetch.confirmedAt && !isStopped_) {
    --fetch.count->pending;
    numAskedRuns_ -= fetch.numRuns;
    fetch = {};
    --numFetches_;
  }
}

bool MpiFetches::confirmedByPeer(std::uint32_t total) {
  const std::uint32_t more = (total - static_cast<std::uint32_t>(numConfirmedByPeer_)) % MpiHead::kConfirmedModulo;
  if (more == 0) {
    return true;
  }
  if (more > numLongAsked_ - numConfirmedByPeer_) {
    // An older count is ignored, since messages of two tags may overtake each other. Far fewer requests than half of
    // the modulo are ever under way.
    return more > MpiHead::kConfirmedModulo / 2 && MpiHead::kConfirmedModulo - more <= numConfirmedByPeer_;
  }
  numConfirmedByPeer_ += more;
  for (Fetch& fetch : fetches_) {
    if (fetch.count != nullptr) {
      endIfOver(fetch);
    }
  }
  return true;
}

bool MpiFetches::stop() {
  outgoing_.clear();
  incoming_.clear();
  exposed_.concealAll();
  if (!std::exchange(isStopped_, true) && numReceives_ > 0) {
    wire_->operations().cancelReceives(owner_, kReceiveKind);
  }
  // A few polls, since receives that MPI has cancelled end in the next poll.
  for (int polls = 0; polls < 4 && numInFlight() > 0; ++polls) {
    wire_->poll();
  }
  return numInFlight() == 0;
}

}  // namespace shardwire::internal
