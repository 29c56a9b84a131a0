// One peer over MPI. create() posts one receive for each lane and one for service messages. MpiWire::poll() then calls
// onDone() for each finished operation: a frame is checked and made visible, its head updates credit and confirmed
// fetches, a service message is handled, and the receive is posted again. Sent messages free their memory. health()
// reads the link for the peer's farewell or the end of its process. The destructor sends a farewell with the bytes sent
// on each lane, cancels the receives, and polls until MPI holds no memory of the connection. Memory that MPI still
// holds when no message has ended for kStaysAfterProgress is leaked on purpose.
#include "backend/transport/mpi/mpi_connection.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/base/wire.h"
#include "backend/transport/lanes.h"

namespace shardwire::internal {
namespace {

// Checking the link costs a system call.
constexpr Duration kLinkLookEvery = std::chrono::milliseconds(5);
// A leaving peer's last frames may arrive this much later than its farewell, which takes another path, and than each
// other.
constexpr Duration kArriveWithin = std::chrono::seconds(2);
// A leaving connection waits for MPI to finish its messages: for kStaysAfterProgress after each message that ends,
// because the network may be slow, and for at most kMostFlush.
constexpr Duration kStaysAfterProgress = std::chrono::seconds(1);
constexpr Duration kMostFlush = std::chrono::seconds(60);
constexpr char kFarewellMark = 'L';
constexpr std::size_t kFarewellBytes = 1 + 8 * kNumLanes;

// Offsets from the connection's first tag.
constexpr int kServiceTag = kNumLanes;
constexpr int kFetchTag = kNumLanes + 1;
static_assert(kFetchTag < MpiProcess::kTagsPerConnection);

}  // namespace

MpiConnection::MpiConnection(MpiJoint joint, MpiWire* wire)
    : joint_(std::move(joint)),
      wire_(wire),
      writers_{MpiLaneWriter(joint_.laneBytes[0]), MpiLaneWriter(joint_.laneBytes[1]),
               MpiLaneWriter(joint_.laneBytes[2])},
      readers_{MpiLaneReader(joint_.laneBytes[0]), MpiLaneReader(joint_.laneBytes[1]),
               MpiLaneReader(joint_.laneBytes[2])},
      fetches_(wire, joint_.pair, joint_.firstTag + kFetchTag, this),
      serviceIn_(std::make_unique_for_overwrite<std::byte[]>(kMpiServiceBytes)) {}

Result<std::unique_ptr<Connection>> MpiConnection::create(MpiJoint joint, MpiWire* wire) {
  std::unique_ptr<MpiConnection> made(new MpiConnection(std::move(joint), wire));
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    made->post(lane);
  }
  made->postService();
  SW_RETURN_IF_ERROR(made->failure_);
  return std::unique_ptr<Connection>(std::move(made));
}

MpiConnection::~MpiConnection() {
  sayFarewell();
  flush();
  if (numInFlight() > 0) {
    logDebug("{} messages of the connection to {} are left to MPI", numInFlight(), joint_.who);
    wire_->operations().forget(static_cast<MpiReceiver*>(this));
    // MPI may still access this memory, and also tensors, if the caller did not call stopFetches().
    std::for_each(writers_.begin(), writers_.end(), [](MpiLaneWriter& writer) { writer.abandon(); });
    std::for_each(readers_.begin(), readers_.end(), [](MpiLaneReader& reader) { reader.abandon(); });
    std::for_each(serviceOut_.begin(), serviceOut_.end(), [](auto& message) { static_cast<void>(message.release()); });
    static_cast<void>(serviceIn_.release());
    fetches_.abandon();
  }
}

void MpiConnection::sayFarewell() {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(kFarewellMark));
  for (const MpiLaneWriter& lane : writers_) {
    writer.u64(lane.totalBytes());
  }
  (void)!::send(joint_.socket.get(), writer.bytes().data(), writer.bytes().size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Polls until MPI holds no memory of this connection, or the peer's process has ended.
void MpiConnection::flush() {
  auto* const owner = static_cast<MpiReceiver*>(this);
  fetches_.stop();
  for (const std::uint16_t kind : {std::uint16_t{kFrameReceive}, std::uint16_t{kServiceReceive}}) {
    wire_->operations().cancelReceives(owner, kind);
  }
  const Deadline atMost = Clock::now() + kMostFlush;
  Deadline until = Clock::now() + kStaysAfterProgress;
  do {
    const std::size_t before = numInFlight();
    wire_->poll();
    static_cast<void>(lookAtLink().isOk());
    until = numInFlight() < before ? std::min(atMost, Clock::now() + kStaysAfterProgress) : until;
  } while (numInFlight() > 0 && wire_->failure().isOk() && !isPeerGone_ && Clock::now() < until);
}

// ---- frames out

MpiHead MpiConnection::head(MpiKind kind) {
  MpiHead head{{}, kind, static_cast<std::uint32_t>(fetches_.numConfirmed() % MpiHead::kConfirmedModulo)};
  reportedConfirmed_ = fetches_.numConfirmed();
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    reportedReleased_[lane] = readers_[lane].releasedBytes();
    head.released[lane] = static_cast<std::uint32_t>(reportedReleased_[lane]);
  }
  return head;
}

void MpiConnection::commit(Lane lane, std::size_t bytes) {
  if (bytes == 0 || isPeerGone_) {
    return;  // the reservation is dropped, or the peer's process has ended
  }
  std::uint32_t number = 0;
  const std::span<std::byte> message = writers_[indexOf(lane)].commit(bytes, &number);
  encodeHead(head(MpiKind::kFrame), message.data());
  const Status sent =
      wire_->operations().send(*joint_.pair, joint_.firstTag + static_cast<int>(lane), {message.data(), message.size()},
                               {static_cast<MpiReceiver*>(this), kFrameSend, static_cast<std::uint16_t>(lane), number});
  sent.isOk() ? static_cast<void>(++numSends_) : fail(sent);
}

void MpiConnection::sendService(MpiKind kind, std::string_view body) {
  auto place = std::ranges::find_if(serviceOut_, [](const auto& message) { return !message->isInFlight; });
  if (place == serviceOut_.end()) {
    serviceOut_.push_back(std::make_unique<ServiceMessage>());
    place = serviceOut_.end() - 1;
  }
  ServiceMessage& message = **place;
  message.bytes.resize(kMpiHeadBytes);
  encodeHead(head(kind), reinterpret_cast<std::byte*>(message.bytes.data()));
  message.bytes += body;
  const MpiRun run{reinterpret_cast<std::byte*>(message.bytes.data()), message.bytes.size()};
  const Status sent =
      wire_->operations().send(*joint_.pair, joint_.firstTag + kServiceTag, run,
                               {static_cast<MpiReceiver*>(this), kServiceSend, static_cast<std::uint16_t>(kind),
                                static_cast<std::uint32_t>(place - serviceOut_.begin())});
  if (!sent.isOk()) {
    return fail(sent);
  }
  message.isInFlight = true;
  isNoticeInFlight_ |= kind == MpiKind::kNotice;
  ++numSends_;
}

// At once when the notice may end a fetch of the peer; otherwise only when an eighth of a lane was released.
void MpiConnection::sendNoticeIfDue() {
  if (isNoticeInFlight_ || isPeerGone_) {
    return;
  }
  if (reportedConfirmed_ != fetches_.numConfirmed()) {
    return sendService(MpiKind::kNotice, {});
  }
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    if (readers_[lane].releasedBytes() - reportedReleased_[lane] >= readers_[lane].capacity() / 8) {
      return sendService(MpiKind::kNotice, {});
    }
  }
}

// ---- frames in

void MpiConnection::release(Lane lane) {
  readers_[indexOf(lane)].release();
  post(indexOf(lane));
  sendNoticeIfDue();
}

void MpiConnection::post(std::size_t lane) {
  const std::span<std::byte> room = readers_[lane].post();
  if (room.empty()) {
    return;
  }
  const MpiRun run{room.data(), room.size()};
  const Status posted = wire_->operations().receive(
      *joint_.pair, joint_.firstTag + static_cast<int>(lane), {&run, 1},
      {static_cast<MpiReceiver*>(this), kFrameReceive, static_cast<std::uint16_t>(lane), 0});
  if (!posted.isOk()) {
    readers_[lane].cancelled();
    return fail(posted);
  }
  ++numReceives_;
}

void MpiConnection::postService() {
  const MpiRun run{serviceIn_.get(), kMpiServiceBytes};
  const Status posted = wire_->operations().receive(*joint_.pair, joint_.firstTag + kServiceTag, {&run, 1},
                                                    {static_cast<MpiReceiver*>(this), kServiceReceive, 0, 0});
  posted.isOk() ? static_cast<void>(++numReceives_) : fail(posted);
}

void MpiConnection::takeHead(const MpiHead& head) {
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    if (!writers_[lane].releasedByPeer(head.released[lane])) {
      return fail({StatusCode::kPeerFailed, "released more bytes than were sent"});
    }
  }
  if (!fetches_.confirmedByPeer(head.confirmed)) {
    fail({StatusCode::kPeerFailed, "confirmed more fetches than were requested"});
  }
}

void MpiConnection::onFrame(std::size_t lane, std::size_t bytes) {
  const auto head = decodeHead(readers_[lane].received(bytes));
  if (!head.has_value() || head->kind != MpiKind::kFrame || bytes <= kMpiHeadBytes) {
    readers_[lane].cancelled();
    return fail({StatusCode::kPeerFailed, "sent a malformed frame"});
  }
  takeHead(*head);
  readers_[lane].arrived(bytes);
  goneSince_ = goneSince_ == Deadline{} ? goneSince_ : Clock::now();
  post(lane);
}

void MpiConnection::onService(std::size_t bytes) {
  const auto head = decodeHead({serviceIn_.get(), bytes});
  if (!head.has_value() || head->kind == MpiKind::kFrame) {
    return fail({StatusCode::kPeerFailed, "sent a malformed message"});
  }
  takeHead(*head);
  const std::string_view body(reinterpret_cast<const char*>(serviceIn_.get()) + kMpiHeadBytes, bytes - kMpiHeadBytes);
  if (head->kind == MpiKind::kRequest) {
    if (const Status served = fetches_.serve(body); !served.isOk()) {
      sendService(MpiKind::kRefusal, served.message());
      fail(served);
    }
  } else if (head->kind == MpiKind::kRefusal) {
    fail({StatusCode::kPeerFailed, fmt::format("refused a fetch: this rank {}", body)});
  }
  postService();
}

void MpiConnection::onDone(const MpiDone& done) {
  const std::uint16_t kind = done.cookie.kind;
  if (kind == MpiFetches::kSendKind) {
    if (const Status sent = fetches_.sent(done); !sent.isOk()) {
      fail(sent);
    }
    sendNoticeIfDue();
  } else if (kind == MpiFetches::kReceiveKind) {
    if (const Status received = fetches_.received(done); !received.isOk()) {
      fail(received);
    }
  } else {
    (kind == kFrameSend || kind == kServiceSend ? numSends_ : numReceives_) -= 1;
    if (kind == kFrameReceive && (done.isCancelled || !done.error.empty())) {
      readers_[done.cookie.lane].cancelled();
    } else if (kind == kFrameReceive) {
      onFrame(done.cookie.lane, done.bytes);
    } else if (kind == kServiceReceive && !done.isCancelled && done.error.empty()) {
      onService(done.bytes);
    } else if (kind == kFrameSend) {
      writers_[done.cookie.lane].sent(done.cookie.index);
    } else if (kind == kServiceSend) {
      serviceOut_[done.cookie.index]->isInFlight = false;
      if (done.cookie.lane == static_cast<std::uint16_t>(MpiKind::kNotice)) {
        isNoticeInFlight_ = false;
        sendNoticeIfDue();
      }
    }
  }
  if (!done.error.empty()) {
    fail({StatusCode::kSystem, fmt::format("a message failed in MPI: {}", done.error)});
  }
}

// ---- memory

Reach MpiConnection::expose(const void* bytes, std::size_t size, RemoteAddress* address) {
  if (joint_.isStaged) {
    return Reach::kNone;
  }
  *address = fetches_.expose(bytes, size);
  return Reach::kFetch;
}

Status MpiConnection::read(std::span<const MemoryRun>) {
  return {StatusCode::kUnsupported, fmt::format("the memory of {} cannot be read at once over MPI", joint_.who)};
}

bool MpiConnection::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
  if (!fetches_.hasRoom(runs.size()) || isPeerGone_) {
    return false;
  }
  std::vector<std::string> requests;
  if (const Status asked = fetches_.fetch(space, runs, count, &requests); !asked.isOk()) {
    fail(asked);
    return true;
  }
  for (const std::string& request : requests) {
    sendService(MpiKind::kRequest, request);
  }
  return true;
}

// ---- the peer's health

Status MpiConnection::named(const Status& failure) const {
  return {failure.code(), fmt::format("{} {}", joint_.who, failure.message())};
}

void MpiConnection::fail(const Status& failure) {
  if (failure_.isOk()) {
    failure_ =
        failure.code() == StatusCode::kPeerFailed
            ? named(failure)
            : Status{failure.code(), fmt::format("the MPI connection to {} failed: {}", joint_.who, failure.message())};
  }
}

bool MpiConnection::allArrived() const {
  ByteReader reader(farewell_);
  reader.u8();
  for (const MpiLaneReader& lane : readers_) {
    if (lane.receivedBytes() < reader.u64()) {
      return false;
    }
  }
  return true;
}

Status MpiConnection::lookAtLink() {
  while (!isPeerGone_) {
    char bytes[64];
    const ssize_t size = ::recv(joint_.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size > 0) {
      farewell_.append(bytes, static_cast<std::size_t>(size));
      continue;
    }
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    }
    isPeerGone_ = true;
  }
  const bool hasLeft = farewell_.size() == kFarewellBytes && farewell_[0] == kFarewellMark;
  if (!hasLeft && !isPeerGone_) {
    return Status::ok();
  }
  if (!hasLeft) {
    wire_->process().notePeerFailed();
    return named({StatusCode::kPeerFailed, "died"});
  }
  const Deadline now = Clock::now();
  goneSince_ = goneSince_ == Deadline{} ? now : goneSince_;
  if (!allArrived() && now - goneSince_ < kArriveWithin) {
    return Status::ok();  // the peer's last frames are under way
  }
  return named({StatusCode::kPeerFailed, "left the group"});
}

Status MpiConnection::health() {
  SW_RETURN_IF_ERROR(failure_);
  if (!wire_->failure().isOk()) {
    fail(wire_->failure());
    return failure_;
  }
  const Deadline now = Clock::now();
  if (now < nextLinkLook_) {
    return Status::ok();
  }
  nextLinkLook_ = now + kLinkLookEvery;
  failure_ = lookAtLink();
  return failure_;
}

std::string MpiConnection::describe() const {
  return fmt::format("rank {}: mpi ({}, MPI rank {}){}", joint_.peer, wire_->process().api().library(),
                     joint_.worldRank, joint_.isStaged ? ", staged (SHARDWIRE_ORDINARY_PATH)" : "");
}

}  // namespace shardwire::internal
