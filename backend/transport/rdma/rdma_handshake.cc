#include "backend/transport/rdma/rdma_handshake.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/base/wire.h"
#include "backend/transport/lanes.h"
#include "backend/transport/rdma/rdma_address.h"

namespace shardwire::internal {
namespace {

constexpr std::uint8_t kVersion = 2;
// What a message is: the queue pairs of its sender, that it is ready, or that it cannot go on.
enum class Message : std::uint8_t { kQueuePairs = 1, kReady = 2, kFailure = 3 };
constexpr std::size_t kMaxTextBytes = 4096;
constexpr Duration kTellWithin = std::chrono::milliseconds(500);
constexpr std::uint64_t kRequestLaneBytes = std::uint64_t{256} << 10;
constexpr QueuePairDepth kPayloadDepth = {128, FetchRequester::kMostParts + 16};

LaneBytes wireLaneBytes(const Options& options) {
  const auto lanes = laneCapacities(options);
  LaneBytes bytes{};
  std::copy(lanes.begin(), lanes.end(), bytes.begin());
  bytes[kRequestLane] = kRequestLaneBytes;
  return bytes;
}

struct Offer {
  LaneBytes laneBytes{};
  std::uint64_t memory = 0;
  std::uint32_t memoryKey = 0;
  std::vector<QueuePairAddress> queues;  // of the lanes, then of the payload
};

std::string encodeOffer(const Offer& offer) {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(Message::kQueuePairs));
  for (const std::uint64_t bytes : offer.laneBytes) {
    writer.u64(bytes);
  }
  writer.u64(offer.memory);
  writer.u32(offer.memoryKey);
  writer.u32(static_cast<std::uint32_t>(offer.queues.size()));
  for (const QueuePairAddress& queue : offer.queues) {
    writer.u32(queue.number);
    writer.u32(queue.firstPacket);
  }
  return writer.bytes();
}

std::string encodeFailure(const Status& failure) {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(Message::kFailure));
  writer.text(std::string_view(failure.message()).substr(0, kMaxTextBytes));
  return writer.bytes();
}

class Joining {
 public:
  Joining(const RdmaHandshake& handshake, Link link, Deadline deadline) : h_(handshake), link_(std::move(link)), deadline_(deadline) {}

  Result<std::unique_ptr<Connection>> run();
  // The peer need not wait for what will not come, and says why. Its own message is taken first: a socket that is closed with something
  // unread takes what was sent with it.
  void tell(const Status& failure) {
    const Deadline deadline = std::min(deadline_, Clock::now() + kTellWithin);
    if (link_.send(encodeFailure(failure), deadline).isOk()) {
      static_cast<void>(link_.receive(deadline));
    }
  }

 private:
  Status makeQueues();
  Status exchangeOffers();
  Status connectQueues();
  Status exchangeReady();
  // The body of the peer's next message, which must be of this kind.
  Result<std::string> receive(Message kind);

  const RdmaHandshake& h_;
  Link link_;
  const Deadline deadline_;
  std::uint32_t slot_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // (own rail, the peer's)
  std::unique_ptr<FrameMemory> memory_;
  std::unique_ptr<QueuePair> frames_;
  std::vector<std::unique_ptr<QueuePair>> payload_;
  Offer offer_;
  Offer theirs_;
};

Status Joining::makeQueues() {
  pairs_ = h_.isDialer ? pairRails(h_.own, h_.theirs) : pairRails(h_.theirs, h_.own);
  if (!h_.isDialer) {
    for (auto& [own, other] : pairs_) {
      std::swap(own, other);
    }
  }
  if (pairs_.empty()) {
    return {StatusCode::kUnsupported, whyNoPair(h_.own, h_.theirs)};
  }
  slot_ = h_.fabric->reserveSlot();
  const std::vector<Rail>& rails = h_.fabric->rails();
  auto memory = FrameMemory::create(*h_.fabric, rails[pairs_[0].first], wireLaneBytes(h_.options));
  SW_RETURN_IF_ERROR(memory.status());
  memory_ = std::move(*memory);
  WorkId id{.slot = slot_};
  auto frames = QueuePair::create(*h_.fabric, rails[pairs_[0].first], FrameLanes::kDepth, id);
  SW_RETURN_IF_ERROR(frames.status());
  frames_ = std::move(*frames);
  offer_ = {memory_->laneBytes(), reinterpret_cast<std::uintptr_t>(memory_->bytes()), memory_->remoteKey(), {frames_->address()}};
  for (const auto& [own, other] : pairs_) {
    ++id.queue;
    auto queue = QueuePair::create(*h_.fabric, rails[own], kPayloadDepth, id);
    SW_RETURN_IF_ERROR(queue.status());
    offer_.queues.push_back((*queue)->address());
    payload_.push_back(std::move(*queue));
  }
  return Status::ok();
}

Result<std::string> Joining::receive(Message kind) {
  auto message = link_.receive(deadline_);
  SW_RETURN_IF_ERROR(message.status());
  ByteReader reader(*message);
  const std::uint8_t version = reader.u8();
  const auto said = static_cast<Message>(reader.u8());
  if (version != kVersion) {
    return Status{StatusCode::kMismatch, fmt::format("{} speaks version {} of the RDMA set-up, this rank {}", h_.who, version, kVersion)};
  }
  if (said == Message::kFailure) {
    return Status{StatusCode::kUnsupported, fmt::format("{} says: {}", h_.who, reader.text(kMaxTextBytes))};
  }
  if (!reader.ok() || said != kind) {
    return Status{StatusCode::kMismatch, fmt::format("{} sent a message {} of the RDMA set-up where {} was due", h_.who,
                                                     static_cast<int>(said), static_cast<int>(kind))};
  }
  return message->substr(2);
}

Status Joining::exchangeOffers() {
  const Status sent = link_.send(encodeOffer(offer_), deadline_);
  const auto body = receive(Message::kQueuePairs);  // also when it could not be sent: the peer may have said why it closed the link
  SW_RETURN_IF_ERROR(body.status());
  SW_RETURN_IF_ERROR(sent);
  ByteReader reader(*body);
  for (std::uint64_t& bytes : theirs_.laneBytes) {
    bytes = reader.u64();
  }
  theirs_.memory = reader.u64();
  theirs_.memoryKey = reader.u32();
  const std::uint32_t numQueues = reader.u32();
  for (std::uint32_t i = 0; i < numQueues && reader.ok(); ++i) {
    const std::uint32_t number = reader.u32();
    theirs_.queues.push_back({number, reader.u32()});
  }
  if (!reader.isDone() || theirs_.queues.size() != offer_.queues.size()) {
    return {StatusCode::kMismatch, fmt::format("{} sent {} RDMA queue pairs, this rank {}", h_.who, numQueues, offer_.queues.size())};
  }
  if (theirs_.laneBytes != offer_.laneBytes) {
    return {StatusCode::kMismatch,
            fmt::format("{} has rings of other sizes: SHARDWIRE_RING_BYTES and SHARDWIRE_INLINE_BYTES must be equal on all ranks", h_.who)};
  }
  return Status::ok();
}

Status Joining::connectQueues() {
  SW_RETURN_IF_ERROR(frames_->connect(h_.theirs[pairs_[0].second], theirs_.queues[0]));
  for (std::size_t i = 0; i < payload_.size(); ++i) {
    SW_RETURN_IF_ERROR(payload_[i]->connect(h_.theirs[pairs_[i].second], theirs_.queues[i + 1]));
  }
  return Status::ok();
}

Status Joining::exchangeReady() {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(Message::kReady));
  SW_RETURN_IF_ERROR(link_.send(writer.bytes(), deadline_));
  return receive(Message::kReady).status();
}

Result<std::unique_ptr<Connection>> Joining::run() {
  SW_RETURN_IF_ERROR(makeQueues());
  SW_RETURN_IF_ERROR(exchangeOffers());
  SW_RETURN_IF_ERROR(connectQueues());
  SW_RETURN_IF_ERROR(exchangeReady());
  RdmaJoin join;
  join.self = h_.self;
  join.peer = h_.peer;
  join.who = h_.who;
  join.ordinaryPath = h_.options.ordinaryPath;
  join.link = link_.takeSocket();
  join.lanes = std::make_unique<FrameLanes>(std::move(memory_), std::move(frames_), theirs_.memory, theirs_.memoryKey);
  join.payload = std::move(payload_);
  for (const auto& [own, other] : pairs_) {
    join.peerPorts.push_back(toString(h_.theirs[other]));
  }
  return std::unique_ptr<Connection>(std::make_unique<RdmaConnection>(h_.fabric, slot_, std::move(join)));
}

}  // namespace

Result<std::unique_ptr<Connection>> joinByRdma(const RdmaHandshake& handshake, Link link, Deadline deadline) {
  Joining joining(handshake, std::move(link), deadline);
  auto connection = joining.run();
  if (!connection.isOk()) {
    joining.tell(connection.status());
  }
  return connection;
}

}  // namespace shardwire::internal
