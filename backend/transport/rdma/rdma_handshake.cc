// One side of the set-up. begin() pairs the ports, makes the rings and the queue pairs (makeQueues()), and sends the
// offer. The peer's offer is checked (takeOffer()), the queue pairs are connected, and the ready message is sent. The
// peer's ready message completes the connection (finish()). A failure on this side is sent to the peer, and the link
// stays open for kReportWithin, so that the peer can read the reason.
#include "backend/transport/rdma/rdma_handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/base/wire.h"
#include "backend/fabric/link_message.h"
#include "backend/transport/lanes.h"
#include "backend/transport/rdma/rdma_address.h"

namespace shardwire::internal {
namespace {

constexpr std::uint8_t kVersion = 2;
// Kinds of messages: the sender's queue pairs, the sender is ready, or the sender failed.
enum class Message : std::uint8_t { kQueuePairs = 1, kReady = 2, kFailure = 3 };
constexpr std::size_t kMaxTextBytes = 4096;
constexpr Duration kReportWithin = std::chrono::milliseconds(500);
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

constexpr auto kOfferFields = [](auto& codec, auto& offer) {
  for (auto& bytes : offer.laneBytes) {
    codec.field(bytes);
  }
  codec.field(offer.memory);
  codec.field(offer.memoryKey);
  codec.listField(offer.queues, 1 + kMaxRails, [](auto& each, auto& queue) {
    each.field(queue.number);
    each.field(queue.firstPacket);
  });
};

std::string encodeOffer(const Offer& offer) {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(Message::kQueuePairs));
  kOfferFields(writer, offer);
  return writer.bytes();
}

std::string encodeFailure(const Status& failure) {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(Message::kFailure));
  writer.text(std::string_view(failure.message()).substr(0, kMaxTextBytes));
  return writer.bytes();
}

class RdmaJoining final : public Joining {
 public:
  RdmaJoining(RdmaHandshake handshake, Link link)
      : h_(std::move(handshake)), link_(std::move(link)), fromLink_(Link::kMaxMessageBytes) {
    if (const Status begun = begin(); !begun.isOk()) {
      giveUp(begun);
    }
  }
  ~RdmaJoining() override {
    if (slot_.has_value()) {
      h_.fabric->giveBackSlot(*slot_);
    }
  }

  std::optional<Outcome> step() override;
  void appendSockets(std::vector<pollfd>* entries) const override {
    entries->push_back({link_.socket().get(), POLLIN, 0});
  }
  std::string awaited() const override { return "waiting for the peer's part of the RDMA set-up"; }
  void giveUp(const Status& why) override;

 private:
  enum class Stage : unsigned char { kOffer, kReady, kReported, kOver };

  Status begin();
  Status makeQueues();
  Status advance();
  Status takeOffer(std::string_view body);
  Status connectQueues();
  Status sayReady();
  void finish();
  // The body of the peer's message, which must be of this kind.
  Result<std::string_view> bodyOf(std::string_view message, Message kind) const;

  const RdmaHandshake h_;
  std::vector<RailAddress> theirRails_;
  Link link_;
  MessageReader fromLink_;
  Stage stage_ = Stage::kOffer;
  Deadline reportUntil_ = kNoDeadline;
  std::optional<std::uint32_t> slot_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // (own rail, the peer's)
  std::unique_ptr<FrameMemory> memory_;
  std::unique_ptr<QueuePair> frames_;
  std::vector<std::unique_ptr<QueuePair>> payload_;
  Offer offer_;
  Offer theirs_;
  std::optional<Outcome> outcome_;
};

Status RdmaJoining::begin() {
  auto theirs = decodeRailAddresses(h_.theirs);
  if (!theirs.isOk()) {
    return {theirs.status().code(), fmt::format("{} {}", h_.who, theirs.status().message())};
  }
  theirRails_ = std::move(*theirs);
  SW_RETURN_IF_ERROR(makeQueues());
  // A failure to send is ignored here: the peer may have closed the link after sending the reason, which is read later.
  static_cast<void>(sendAtOnce(link_.socket(), encodeOffer(offer_)));
  return Status::ok();
}

std::optional<Joining::Outcome> RdmaJoining::step() {
  while (stage_ != Stage::kOver) {
    const auto whole = fromLink_.readOn(link_.socket());
    if (stage_ == Stage::kReported) {
      if (whole.isOk() && !*whole && Clock::now() < reportUntil_) {
        return std::nullopt;
      }
      stage_ = Stage::kOver;
    } else if (!whole.isOk()) {
      giveUp(whole.status());
    } else if (!*whole) {
      return std::nullopt;
    } else if (const Status taken = advance(); !taken.isOk()) {
      giveUp(taken);
    }
  }
  return std::exchange(outcome_, std::nullopt);
}

// Handles the peer's next message.
Status RdmaJoining::advance() {
  const std::string message = fromLink_.take();
  const auto body = bodyOf(message, stage_ == Stage::kOffer ? Message::kQueuePairs : Message::kReady);
  SW_RETURN_IF_ERROR(body.status());
  if (stage_ == Stage::kReady) {
    finish();
    return Status::ok();
  }
  SW_RETURN_IF_ERROR(takeOffer(*body));
  SW_RETURN_IF_ERROR(connectQueues());
  stage_ = Stage::kReady;
  return sayReady();
}

// Sends the reason to the peer, which then need not wait. The link stays open until the peer's message is read, or
// until kReportWithin has passed: closing a socket with unread bytes would discard the sent reason.
void RdmaJoining::giveUp(const Status& why) {
  if (stage_ == Stage::kReported) {
    stage_ = Stage::kOver;
    return;
  }
  outcome_ = why;
  reportUntil_ = Clock::now() + kReportWithin;
  stage_ = sendAtOnce(link_.socket(), encodeFailure(why)).isOk() ? Stage::kReported : Stage::kOver;
}

Status RdmaJoining::makeQueues() {
  pairs_ = h_.isDialer ? pairRails(h_.own, theirRails_) : pairRails(theirRails_, h_.own);
  if (!h_.isDialer) {
    for (auto& [own, other] : pairs_) {
      std::swap(own, other);
    }
  }
  if (pairs_.empty()) {
    return {StatusCode::kUnsupported, whyNoPair(h_.own, theirRails_)};
  }
  slot_ = h_.fabric->reserveSlot();
  const std::vector<Rail>& rails = h_.fabric->rails();
  auto memory = FrameMemory::create(*h_.fabric, rails[pairs_[0].first], wireLaneBytes(*h_.options));
  SW_RETURN_IF_ERROR(memory.status());
  memory_ = std::move(*memory);
  WorkId id{.slot = *slot_};
  auto frames = QueuePair::create(*h_.fabric, rails[pairs_[0].first], FrameLanes::kDepth, id);
  SW_RETURN_IF_ERROR(frames.status());
  frames_ = std::move(*frames);
  offer_ = {memory_->laneBytes(),
            reinterpret_cast<std::uintptr_t>(memory_->bytes()),
            memory_->remoteKey(),
            {frames_->address()}};
  for (const auto& [own, other] : pairs_) {
    ++id.queue;
    auto queue = QueuePair::create(*h_.fabric, rails[own], kPayloadDepth, id);
    SW_RETURN_IF_ERROR(queue.status());
    offer_.queues.push_back((*queue)->address());
    payload_.push_back(std::move(*queue));
  }
  return Status::ok();
}

Result<std::string_view> RdmaJoining::bodyOf(std::string_view message, Message kind) const {
  ByteReader reader(message);
  const std::uint8_t version = reader.u8();
  const auto said = static_cast<Message>(reader.u8());
  if (version != kVersion) {
    return Status{StatusCode::kMismatch,
                  fmt::format("{} speaks version {} of the RDMA set-up, this rank {}", h_.who, version, kVersion)};
  }
  if (said == Message::kFailure) {
    return Status{StatusCode::kUnsupported, fmt::format("{} says: {}", h_.who, reader.text(kMaxTextBytes))};
  }
  if (!reader.ok() || said != kind) {
    return Status{StatusCode::kMismatch, fmt::format("{} sent a message {} of the RDMA set-up where {} was due", h_.who,
                                                     static_cast<int>(said), static_cast<int>(kind))};
  }
  return message.substr(2);
}

Status RdmaJoining::takeOffer(std::string_view body) {
  ByteReader reader(body);
  kOfferFields(reader, theirs_);
  if (!reader.isDone() || theirs_.queues.size() != offer_.queues.size()) {
    return {StatusCode::kMismatch, fmt::format("{} sent {} RDMA queue pairs, this rank {}", h_.who,
                                               theirs_.queues.size(), offer_.queues.size())};
  }
  if (theirs_.laneBytes != offer_.laneBytes) {
    return {
        StatusCode::kMismatch,
        fmt::format(
            "{} has rings of other sizes: SHARDWIRE_RING_BYTES and SHARDWIRE_INLINE_BYTES must be equal on all ranks",
            h_.who)};
  }
  return Status::ok();
}

Status RdmaJoining::connectQueues() {
  SW_RETURN_IF_ERROR(frames_->connect(theirRails_[pairs_[0].second], theirs_.queues[0]));
  for (std::size_t i = 0; i < payload_.size(); ++i) {
    SW_RETURN_IF_ERROR(payload_[i]->connect(theirRails_[pairs_[i].second], theirs_.queues[i + 1]));
  }
  return Status::ok();
}

Status RdmaJoining::sayReady() {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(Message::kReady));
  return sendAtOnce(link_.socket(), writer.bytes());
}

void RdmaJoining::finish() {
  RdmaJoin join;
  join.self = h_.self;
  join.peer = h_.peer;
  join.who = h_.who;
  join.ordinaryPath = h_.options->ordinaryPath;
  join.link = link_.takeSocket();
  join.lanes = std::make_unique<FrameLanes>(std::move(memory_), std::move(frames_), theirs_.memory, theirs_.memoryKey);
  join.payload = std::move(payload_);
  for (const auto& [own, other] : pairs_) {
    join.peerPorts.push_back(toString(theirRails_[other]));
  }
  outcome_ = std::unique_ptr<Connection>(
      std::make_unique<RdmaConnection>(h_.fabric, *std::exchange(slot_, std::nullopt), std::move(join)));
  stage_ = Stage::kOver;
}

}  // namespace

void refuseByRdma(Link link, const Status& why) {
  static_cast<void>(sendAtOnce(link.socket(), encodeFailure(why)));
}

std::unique_ptr<Joining> joinByRdma(RdmaHandshake handshake, Link link) {
  return std::make_unique<RdmaJoining>(std::move(handshake), std::move(link));
}

}  // namespace shardwire::internal
