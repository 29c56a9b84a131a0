// One peer over RDMA. The fabric delivers completions (onCompletion()): immediates on the first queue pair are frames,
// credits and notes; immediates on the payload queue pairs end parts of fetches. advance() sends waiting requests and
// serves the peer's requests. A failed request is recorded, and health() decides what the failure means: the peer left,
// the peer's process died (the link closed), or the network or a device failed. A silent peer is probed after
// kProbeAfter. The destructor sends the remaining frames and a leave, then destroys the queue pairs, then unpins
// memory.
#include "backend/transport/rdma/rdma_connection.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/fabric/net_socket.h"
#include "backend/transport/endpoint.h"

namespace shardwire::internal {
namespace {

// A peer without a completion for this time is probed. When the probe's retries fail too, the peer counts as dead (1 s
// in all).
constexpr Duration kProbeAfter = std::chrono::milliseconds(300);
// How long a normal end waits until all sent frames have arrived.
constexpr Duration kLeaveWithin = std::chrono::seconds(1);
// Runs shorter than this, on average, are packed and sent: a write for each run costs the device more than copying the
// run costs this rank.
constexpr std::size_t kMinFetchRun = std::size_t{16} << 10;
constexpr std::size_t kMinFetchEdge = std::size_t{32} << 10;
constexpr char kLeavingByte = 'L';

std::vector<std::size_t> devicesOf(const std::vector<std::unique_ptr<QueuePair>>& queues) {
  std::vector<std::size_t> devices;
  for (const auto& queue : queues) {
    devices.push_back(queue->rail().device);
  }
  return devices;
}

// The most likely cause of an error.
const char* likelyCause(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return "its process or machine is down, a cable or switch port is down, or the two ports are in separate "
             "networks";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer receives nothing any more";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return "the peer withdrew memory that was still in use, or one of the two sides has a bug";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
      return "a tensor was freed while it was in use, or shardwire has a bug";
    case IBV_WC_WR_FLUSH_ERR:
      return "the connection was shut down by the device after another error";
    default:
      return "a fault of the device or its driver: see dmesg";
  }
}

bool meansGone(ibv_wc_status status) {
  return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RESP_TIMEOUT_ERR || status == IBV_WC_REM_ABORT_ERR;
}

}  // namespace

RdmaConnection::RdmaConnection(std::shared_ptr<RdmaFabric> fabric, std::uint32_t slot, RdmaJoin join)
    : fabric_(std::move(fabric)),
      join_(std::move(join)),
      slot_(slot),
      requester_(*fabric_, *join_.lanes, devicesOf(join_.payload)),
      server_(*fabric_, *join_.lanes, join_.payload),
      lastArrival_(Clock::now()) {
  setKeepAlive(join_.link, false);  // health() probes the devices, and the link may be on another network
  fabric_->take(slot_, this, join_.link.get());
}

RdmaConnection::~RdmaConnection() {
  sendLastFrames();
  fabric_->leave(slot_, join_.link.get());
  join_.payload.clear();  // the queue pairs must be destroyed before their memory is unpinned
  server_.stop();
  requester_.stop();
}

// All committed frames arrive first, then the leave, then the close of the link.
void RdmaConnection::sendLastFrames() {
  const Deadline until = Clock::now() + kLeaveWithin;
  bool isReported = false;
  while (failure_.isOk() && transportFailure_.empty() && !isHungUp_ && Clock::now() < until) {
    join_.lanes->flush();
    if (join_.lanes->isFlushed() && !isReported) {
      isReported = join_.lanes->sendNote(Note::kLeaving);
    }
    if (isReported && join_.lanes->isIdle()) {
      break;
    }
    fabric_->poll();
    fabric_->lookAround(Clock::now());
    std::this_thread::yield();
  }
  static_cast<void>(::send(join_.link.get(), &kLeavingByte, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

void RdmaConnection::release(Lane lane) {
  if (join_.lanes->release(indexOf(lane))) {
    fabric_->activate(slot_);
  }
}

Reach RdmaConnection::expose(const void* bytes, std::size_t size, RemoteAddress* address) {
  *address = {kVirtualSpace, reinterpret_cast<std::uint64_t>(bytes)};
  if (hasStopped_) {
    return Reach::kNone;
  }
  const auto space = server_.expose(bytes, size);
  if (!space.isOk()) {
    if (!hasWarnedOfStaging_) {
      logWarn("rank {}: a tensor of {} bytes is staged for {}, which is slower: {}", join_.self, size, join_.who,
              space.status().message());
      hasWarnedOfStaging_ = true;
    }
    return Reach::kNone;
  }
  address->space = *space;
  return Reach::kFetch;
}

ReadLimits RdmaConnection::readLimits() const {
  return wireReadLimits(join_.ordinaryPath, kMinFetchEdge, kMinFetchRun);
}

Status RdmaConnection::read(std::span<const MemoryRun> /*runs*/) {
  return {StatusCode::kUnsupported,
          fmt::format("the memory of {} is fetched over rdma, and cannot be read at once", join_.who)};
}

bool RdmaConnection::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
  if (hasStopped_ || peerHasStopped_ || !failure_.isOk()) {
    return false;
  }
  const auto asked = requester_.fetch(space, runs, count);
  if (!asked.isOk()) {
    ++count->pending;
    fail(asked.status().code(),
         fmt::format("rank {} cannot fetch from {}: {}", join_.self, join_.who, asked.status().message()));
    return true;
  }
  if (requester_.hasWork()) {
    fabric_->activate(slot_);
  }
  return *asked;
}

bool RdmaConnection::stopFetches() {
  if (!hasStopped_) {
    hasStopped_ = true;
    if (!join_.lanes->sendNote(Note::kStopsFetches)) {
      logDebug("rank {}: {} was not notified that fetches stop", join_.self, join_.who);
    }
    join_.payload.clear();  // a destroyed queue pair neither reads nor writes memory
    server_.stop();
    requester_.stop();
  }
  return true;
}

void RdmaConnection::onCompletion(const WorkId& id, const ibv_wc& completion) {
  if (id.queue > join_.payload.size()) {
    return;  // the payload queue pair was stopped
  }
  if (completion.status != IBV_WC_SUCCESS) {
    return onFailedCompletion(id, completion);
  }
  hasArrived_ = true;
  if (id.isReceive) {
    return onImmediate(id, be32toh(completion.imm_data));
  }
  if (id.queue == 0) {
    join_.lanes->onSendCompleted(id.sequence);
    if (!join_.lanes->isFlushed()) {
      join_.lanes->flush();
    }
  } else {
    join_.payload[id.queue - 1U]->onSendCompleted(id.sequence);
    fabric_->activate(slot_);
  }
}

void RdmaConnection::onImmediate(const WorkId& id, std::uint32_t immediate) {
  if (id.queue > 0) {
    join_.payload[id.queue - 1U]->postReceives(1);
    if (!requester_.onArrival(immediate)) {
      fail(StatusCode::kPeerFailed, fmt::format("{} answered an unknown fetch", join_.who));
    }
    if (requester_.hasWork()) {
      fabric_->activate(slot_);
    }
    return;
  }
  const Note note = join_.lanes->onImmediate(immediate);
  peerHasStopped_ = peerHasStopped_ || note == Note::kStopsFetches;
  peerIsLeaving_ = peerIsLeaving_ || note == Note::kLeaving;
  if (!join_.lanes->peek(kRequestLane).empty() || requester_.hasWork()) {
    fabric_->activate(slot_);
  }
}

void RdmaConnection::advance() {
  requester_.advance();
  if (const std::string wrong = server_.advance(); !wrong.empty()) {
    fail(StatusCode::kPeerFailed, fmt::format("{}: {}", join_.who, wrong));
  }
  join_.lanes->flush();  // sends credit that is due
}

void RdmaConnection::onFailedCompletion(const WorkId& id, const ibv_wc& completion) {
  const bool isExpected = peerIsLeaving_ || (id.queue > 0 && (hasStopped_ || peerHasStopped_));
  if (isExpected || !transportFailure_.empty()) {
    return;
  }
  const Rail& rail = id.queue == 0 ? join_.lanes->queue().rail() : join_.payload[id.queue - 1U]->rail();
  const std::string& port = join_.peerPorts[id.queue == 0 ? 0 : id.queue - 1U];
  transportFailure_ =
      fmt::format("{}{}: an RDMA {} from {} to its {} failed with status {}, {} (vendor error {:#x}): {}{}", join_.who,
                  meansGone(completion.status) ? " died or cannot be reached" : " cannot be reached any more",
                  id.isReceive ? "receive" : "write", toString(rail.address), port, static_cast<int>(completion.status),
                  fabric_->api().wcStatusStr(completion.status), completion.vendor_err, likelyCause(completion.status),
                  deviceTrouble_.empty() ? "" : fmt::format("; {}", deviceTrouble_));
}

void RdmaConnection::onLinkReadable() {
  char byte = 0;
  const ssize_t number = ::recv(join_.link.get(), &byte, 1, MSG_DONTWAIT);
  peerIsLeaving_ = peerIsLeaving_ || (number == 1 && byte == kLeavingByte);
  // The leaving byte is followed by the close of the link.
  isHungUp_ = isHungUp_ || number >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void RdmaConnection::onDeviceTrouble(const std::string& what, bool isFatal) {
  deviceTrouble_ = what;
  if (isFatal) {
    fail(StatusCode::kPeerFailed, fmt::format("{} cannot be reached any more: RDMA device {}", join_.who, what));
  }
}

void RdmaConnection::fail(StatusCode code, std::string text) {
  if (failure_.isOk()) {
    failure_ = {code, std::move(text)};
  }
}

Status RdmaConnection::lastWords() {
  // The peer's last frames are in the completion queue. The number of polls is bounded, since other peers may continue
  // to send.
  for (int i = 0; i < 64 && fabric_->poll(); ++i) {
  }
  return {StatusCode::kPeerFailed, fmt::format("{} {}", join_.who, peerIsLeaving_ ? "left the group" : "died")};
}

void RdmaConnection::probeIfSilent(Deadline now) {
  if (hasArrived_) {
    hasArrived_ = false;
    isProbing_ = false;
    lastArrival_ = now;
  } else if (!isProbing_ && now - lastArrival_ > kProbeAfter) {
    isProbing_ = join_.lanes->probe();
  }
}

Status RdmaConnection::health() {
  SW_RETURN_IF_ERROR(failure_);
  const Deadline now = Clock::now();
  fabric_->lookAround(now);
  if (isHungUp_ || peerIsLeaving_) {
    const Status words = lastWords();
    fail(words.code(), words.message());
  } else if (!transportFailure_.empty()) {
    onLinkReadable();  // the peer's process may have ended just now, normally or not
    if (isHungUp_) {
      const Status words = lastWords();
      fail(words.code(), peerIsLeaving_ ? words.message() : fmt::format("{} ({})", words.message(), transportFailure_));
    } else {
      fail(StatusCode::kPeerFailed, transportFailure_);
    }
  } else if (const std::string broken = join_.lanes->whatIsBroken(); !broken.empty()) {
    fail(StatusCode::kPeerFailed, fmt::format("rdma to {}: {}", join_.who, broken));
  } else if (const auto refused =
                 std::ranges::find_if(join_.payload, [](const auto& queue) { return queue->error() != 0; });
             refused != join_.payload.end()) {
    // A probe uses the other queue pair, and would find nothing.
    fail(StatusCode::kPeerFailed, fmt::format("rdma to {}: the device refused a request of a fetch ({})", join_.who,
                                              errnoText((*refused)->error())));
  } else {
    probeIfSilent(now);
  }
  return failure_;
}

std::string RdmaConnection::describe() const {
  std::string rails;
  for (std::size_t i = 0; i < join_.payload.size(); ++i) {
    rails += fmt::format("{}{}", i == 0 ? "" : ", ", toString(join_.payload[i]->rail().address));
  }
  // Registrations are counted for the rank, not for the pair. A number that grows from run to run costs time.
  return fmt::format("rank {}: rdma over {}, {} registrations so far", join_.peer,
                     rails.empty() ? toString(join_.lanes->queue().rail().address) : rails,
                     fabric_->registrations().numRegistered());
}

}  // namespace shardwire::internal
