// Joins two ranks by tcp over their link. The link becomes the stream of frames; a second socket between the same two
// addresses becomes the stream of fetches. Each step() does what is possible without waiting, so many set-ups may be
// under way at once.
//
//   listener                                        dialer
//   setup, with the listener's port      <------->  setup                         (over the link)
//                                        <-------   proof of the link's secret    (over the new socket)
//   proof of the link's secret           ------->
//   verdict                              <------->  verdict                       (over the link: both ends agree)
//
// With TLS these follow:
//
//   TLS handshake, as the server         <------->  TLS handshake, as the client  (over both sockets)
//   one byte                             ------->                                 (over each: the server agrees)
//
// The keys for TLS come from the link's secret, which both ends derived from the tokens of the store and of the job and
// from random challenges, and from both set-ups. So an attacker who changes a set-up makes the handshake fail.
#include "backend/transport/tcp/tcp_joining.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/base/crc32c.h"
#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/base/wire.h"
#include "backend/transport/lanes.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kMagic = 0x50545753;  // "SWTP"
// The text of a status, and a whole message: a set-up or a verdict has few further bytes.
constexpr std::size_t kMaxTextBytes = 1024;
constexpr std::size_t kMaxMessageBytes = 2 * kMaxTextBytes;
constexpr std::size_t kMaxUnknownCallers = 32;
constexpr Duration kSuspectFor = std::chrono::seconds(1);
constexpr std::string_view kDialerProof = "tcp fetches, dialer";
constexpr std::string_view kListenerProof = "tcp fetches, listener";

enum class TlsWish : std::uint8_t { kNever = 0, kMay = 1, kMust = 2 };

// Both ends of the connection have one address: the bytes leave neither the kernel nor the network namespace. The
// kernel accepts no packet from outside with an own address as the sender's.
bool isWithinHost(const Fd& socket) {
  auto here = localAddress(socket);
  auto there = remoteAddress(socket);
  if (!here.isOk() || !there.isOk()) {
    return false;
  }
  here->setPort(0);
  there->setPort(0);
  return toString(*here) == toString(*there);
}

TlsWish wishFor(const TcpJoint& joint, const Fd& link) {
  if (joint.tls == TcpTls::kOff) {
    return TlsWish::kNever;
  }
  const bool must = joint.tls == TcpTls::kOn || (joint.hasJobToken && !isWithinHost(link));
  return must ? TlsWish::kMust : TlsWish::kMay;
}

Result<bool> agreeOnTls(Rank self, TlsWish mine, Rank peer, TlsWish theirs) {
  const Rank must = mine == TlsWish::kMust ? self : peer;
  if (std::min(mine, theirs) == TlsWish::kNever && std::max(mine, theirs) == TlsWish::kMust) {
    return Status{StatusCode::kInvalidArgument,
                  fmt::format("rank {} must encrypt its tcp connections (SHARDWIRE_TCP_TLS=on, or auto with "
                              "SHARDWIRE_JOB_TOKEN between two hosts), and rank {} must not (SHARDWIRE_TCP_TLS=off): "
                              "set SHARDWIRE_TCP_TLS to one value on all ranks",
                              must, must == self ? peer : self)};
  }
  return std::max(mine, theirs) == TlsWish::kMust;
}

struct Setup {
  std::array<std::uint64_t, kNumLanes> capacities{};
  std::uint16_t port = 0;       // of the listener
  bool wantsChecksums = false;  // the connection has checksums if either end wants them
  TlsWish tls = TlsWish::kMay;
  Status status;  // an error when the sender rejects the set-up
};

constexpr auto kSetupFields = [](auto& codec, auto& setup) {
  for (auto& capacity : setup.capacities) {
    codec.field(capacity);
  }
  codec.wideField(setup.port);
  codec.field(setup.wantsChecksums);
  codec.enumField(setup.tls, static_cast<int>(TlsWish::kMust) + 1);
  statusField(codec, setup.status, kMaxTextBytes);
};

std::string encodeSetup(const Setup& setup) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u8(kTcpVersion);
  kSetupFields(writer, setup);
  writer.u32(crc32c(writer.bytes().data(), writer.bytes().size()));
  return writer.bytes();
}

Result<Setup> decodeSetup(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kMagic) {
    return Status{StatusCode::kMismatch, "the peer does not speak shardwire's tcp protocol"};
  }
  if (const int version = reader.u8(); version != kTcpVersion) {
    return Status{
        StatusCode::kMismatch,
        fmt::format("the peer speaks version {} of the tcp protocol, this build version {}: use one release on "
                    "all hosts",
                    version, static_cast<int>(kTcpVersion))};
  }
  Setup setup;
  kSetupFields(reader, setup);
  const std::uint32_t sent = reader.u32();
  if (!reader.isDone()) {
    return Status{StatusCode::kMismatch, "the peer's tcp set-up is malformed"};
  }
  // Without this a changed bit could have one end send checksums and the other end read them as bytes.
  if (sent != crc32c(bytes.data(), bytes.size() - sizeof sent)) {
    return Status{StatusCode::kMismatch, "the peer's tcp set-up was changed on the way"};
  }
  return setup;
}

Status decodeVerdict(std::string_view bytes) {
  ByteReader reader(bytes);
  Status theirs = readStatus(reader, kMaxTextBytes);
  return reader.isDone() ? theirs : Status{StatusCode::kMismatch, "the peer's tcp verdict is malformed"};
}

}  // namespace

void refuseByTcp(Link link, const Status& why) {
  static_cast<void>(sendAtOnce(link.socket(), encodeSetup({.status = why})));
}

TcpJoining::TcpJoining(Link link, bool isDialer, TcpJoint joint)
    : link_(std::move(link)),
      isDialer_(isDialer),
      joint_(std::move(joint)),
      fromLink_(kMaxMessageBytes),
      fromSecond_(sizeof(Digest)) {
  if (const Status begun = begin(); !begun.isOk()) {
    judge(begun);
  }
}

Status TcpJoining::begin() {
  Setup mine{joint_.capacities, 0, joint_.hasChecksums, wishFor(joint_, link_.socket()), Status::ok()};
  if (!isDialer_) {
    mine.status = listen(&mine.port);
  }
  setups_ = encodeSetup(mine);
  SW_RETURN_IF_ERROR(sendAtOnce(link_.socket(), setups_));
  return mine.status;
}

Status TcpJoining::listen(std::uint16_t* port) {
  auto address = localAddress(link_.socket());
  SW_RETURN_IF_ERROR(address.status());
  address->setPort(0);
  auto socket = listenTcp(*address, 16);
  SW_RETURN_IF_ERROR(socket.status());
  const auto bound = localAddress(*socket);
  SW_RETURN_IF_ERROR(bound.status());
  *port = bound->port();
  listener_ = std::move(*socket);
  return Status::ok();
}

std::optional<Joining::Outcome> TcpJoining::step() {
  while (stage_ != Stage::kOver) {
    const Stage before = stage_;
    if (const Status done = advance(); !done.isOk()) {
      stage_ >= Stage::kVerdict ? end(done) : judge(done);
    }
    if (stage_ == before) {
      return std::nullopt;
    }
  }
  return std::exchange(outcome_, std::nullopt);
}

Status TcpJoining::advance() {
  switch (stage_) {
    case Stage::kSetup:
      return takeSetup();
    case Stage::kConnecting:
      return connected();
    case Stage::kSuspecting:
      return receiveReason();
    case Stage::kProving:
      return takeProof();
    case Stage::kAccepting:
      return acceptSecond();
    case Stage::kVerdict:
      return takeVerdict();
    case Stage::kSecuring:
      return secure();
    case Stage::kOver:
      break;
  }
  return Status::ok();
}

Status TcpJoining::takeSetup() {
  const auto whole = fromLink_.readOn(link_.socket());
  SW_RETURN_IF_ERROR(whole.status());
  if (!*whole) {
    return Status::ok();
  }
  const std::string bytes = fromLink_.take();
  const auto theirs = decodeSetup(bytes);
  SW_RETURN_IF_ERROR(theirs.status());
  SW_RETURN_IF_ERROR(theirs->status);
  if (theirs->capacities != joint_.capacities) {
    return {StatusCode::kMismatch,
            "the two ranks have different lane lengths: SHARDWIRE_RING_BYTES and SHARDWIRE_INLINE_BYTES must be "
            "equal on all ranks"};
  }
  const auto hasTls = agreeOnTls(joint_.self, wishFor(joint_, link_.socket()), joint_.peer, theirs->tls);
  SW_RETURN_IF_ERROR(hasTls.status());
  hasTls_ = *hasTls;
  setups_ = isDialer_ ? setups_ + bytes : bytes + setups_;
  joint_.hasChecksums |= theirs->wantsChecksums;
  if (!isDialer_) {
    stage_ = Stage::kAccepting;
    return Status::ok();
  }
  auto address = remoteAddress(link_.socket());
  if (!address.isOk()) {
    return suspect(address.status());
  }
  address->setPort(theirs->port);
  secondName_ = toString(*address);
  int error = 0;
  auto socket = startTcp(*address, &error);
  if (!socket.isOk()) {
    return error == 0 ? socket.status() : suspect(socket.status());
  }
  second_ = std::move(*socket);
  stage_ = Stage::kConnecting;
  return Status::ok();
}

// The peer's port is closed to this rank. The reason may still arrive over the link: an ending process closes its
// descriptors one by one, so the link may close a moment later, and a peer that gave up sends its reason.
Status TcpJoining::suspect(Status why) {
  suspicion_ = std::move(why);
  suspectUntil_ = Clock::now() + kSuspectFor;
  stage_ = Stage::kSuspecting;
  return Status::ok();
}

Status TcpJoining::receiveReason() {
  const auto whole = fromLink_.readOn(link_.socket());
  if (!whole.isOk()) {
    return {StatusCode::kPeerFailed, fmt::format("the peer closed the connection ({})", suspicion_.message())};
  }
  if (*whole) {
    const Status said = decodeVerdict(fromLink_.take());
    return said.isOk() ? suspicion_ : said;
  }
  return Clock::now() < suspectUntil_ ? Status::ok() : suspicion_;
}

Status TcpJoining::connected() {
  pollfd entry{second_.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) {
    return Status::ok();
  }
  if (const int error = socketError(second_); error != 0) {
    return suspect(
        systemError(fmt::format("connecting a second socket to {} (is a firewall between?)", secondName_), error));
  }
  stage_ = Stage::kProving;
  return sendAtOnce(second_, asText(proveSocket(link_.secret(), kDialerProof)));
}

Status TcpJoining::takeProof() {
  const auto whole = fromSecond_.readOn(second_);
  if (!whole.isOk()) {
    return suspect(whole.status());  // the listener's end may have failed, and sends the reason over the link
  }
  if (!*whole) {
    return Status::ok();
  }
  if (!sameDigest(fromSecond_.take(), proveSocket(link_.secret(), kListenerProof))) {
    return {StatusCode::kMismatch, fmt::format("{} is not the process at the other end of the link", secondName_)};
  }
  judge(Status::ok());
  return Status::ok();
}

// Foreign processes may connect to the port before the peer does, so each connection must prove the link's secret. The
// link is read too: before its second socket is joined, the dialer sends a message there only to report a failure.
Status TcpJoining::acceptSecond() {
  auto socket = acceptTcp(listener_);
  SW_RETURN_IF_ERROR(socket.status());
  if (socket->isOpen()) {
    if (callers_.size() == kMaxUnknownCallers) {
      callers_.erase(callers_.begin());
    }
    callers_.push_back({std::move(*socket), MessageReader(sizeof(Digest))});
  }
  for (std::size_t i = 0; i < callers_.size();) {
    const auto whole = callers_[i].reader.readOn(callers_[i].socket);
    if (whole.isOk() && !*whole) {
      ++i;
      continue;
    }
    if (whole.isOk() && sameDigest(callers_[i].reader.take(), proveSocket(link_.secret(), kDialerProof))) {
      second_ = std::move(callers_[i].socket);
      callers_.clear();
      if (isMultipath()) {
        joint_.listener = std::move(listener_);
      }
      listener_.reset();
      SW_RETURN_IF_ERROR(sendAtOnce(second_, asText(proveSocket(link_.secret(), kListenerProof))));
      judge(Status::ok());
      return Status::ok();
    }
    if (whole.isOk()) {  // else the other process, perhaps the peer, closed the connection
      rejections_.log(LogLevel::kWarn, "rejected a connection of a foreign process to the port of a second socket");
    }
    callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const auto whole = fromLink_.readOn(link_.socket());
  SW_RETURN_IF_ERROR(whole.status());
  if (!*whole) {
    return Status::ok();
  }
  return {StatusCode::kPeerFailed,
          fmt::format("the peer has no second socket: {}", decodeVerdict(fromLink_.take()).message())};
}

// Sends this end's verdict, and waits for the peer's verdict when this end agrees.
void TcpJoining::judge(const Status& mine) {
  ByteWriter verdict;
  statusField(verdict, mine, kMaxTextBytes);
  const Status sent = sendAtOnce(link_.socket(), verdict.bytes());
  if (!mine.isOk() || !sent.isOk()) {
    return end(mine.isOk() ? sent : mine);
  }
  stage_ = Stage::kVerdict;
}

Status TcpJoining::takeVerdict() {
  const auto whole = fromLink_.readOn(link_.socket());
  SW_RETURN_IF_ERROR(whole.status());
  if (!*whole) {
    return Status::ok();
  }
  SW_RETURN_IF_ERROR(decodeVerdict(fromLink_.take()));
  joint_.remote = link_.remote();
  joint_.frames = TcpStream(link_.takeSocket());
  joint_.fetches = TcpStream(std::move(second_));
  if (hasTls_) {
    return beginTls();
  }
  finish();
  return Status::ok();
}

void TcpJoining::finish() {
  outcome_ = TcpConnection::create(std::move(joint_));
  stage_ = Stage::kOver;
}

Status TcpJoining::beginTls() {
  stage_ = Stage::kSecuring;
  SW_RETURN_IF_ERROR(joint_.frames.beginTls(isDialer_, proveSocket(link_.secret(), "tcp tls, frames" + setups_)));
  return joint_.fetches.beginTls(isDialer_, proveSocket(link_.secret(), "tcp tls, fetches" + setups_));
}

Status TcpJoining::secure() {
  for (const auto& [stream, isSafe] :
       {std::pair{&joint_.frames, &isFramesSafe_}, std::pair{&joint_.fetches, &isFetchesSafe_}}) {
    if (!*isSafe) {
      const auto done = stream->handshake();
      SW_RETURN_IF_ERROR(done.status());
      *isSafe = *done;
    }
  }
  if (isFramesSafe_ && isFetchesSafe_) {
    finish();
  }
  return Status::ok();
}

void TcpJoining::end(const Status& why) {
  outcome_ = why;
  stage_ = Stage::kOver;
}

// This end's verdict is sent only once: a peer that agrees goes on with frames or a TLS handshake, and would take a
// second verdict for bytes of these. The peer then notices that the sockets close.
void TcpJoining::giveUp(const Status& why) {
  stage_ >= Stage::kVerdict ? end(why) : judge(why);
}

void TcpJoining::appendSockets(std::vector<pollfd>* entries) const {
  const auto add = [&](const Fd& socket, short events) { entries->push_back({socket.get(), events, 0}); };
  if (stage_ == Stage::kConnecting || stage_ == Stage::kProving) {
    return add(second_, stage_ == Stage::kConnecting ? POLLOUT : POLLIN);
  }
  if (stage_ == Stage::kSecuring) {
    if (!isFramesSafe_) {
      add(joint_.frames.socket(), joint_.frames.handshakeEvents());
    }
    if (!isFetchesSafe_) {
      add(joint_.fetches.socket(), joint_.fetches.handshakeEvents());
    }
    return;
  }
  add(link_.socket(), POLLIN);
  if (stage_ == Stage::kAccepting) {
    add(listener_, POLLIN);
    for (const Caller& each : callers_) {
      add(each.socket, POLLIN);
    }
  }
}

std::string TcpJoining::awaited() const {
  switch (stage_) {
    case Stage::kConnecting:
      return fmt::format("connecting a second socket to {}", secondName_);
    case Stage::kSuspecting:
      return fmt::format("waiting for the peer to say why {} is closed", secondName_);
    case Stage::kProving:
      return "waiting for the second socket's proof";
    case Stage::kAccepting:
      return "waiting for the peer's second socket";
    case Stage::kSecuring:
      return "waiting for the peer's part of the TLS handshake";
    default:
      return "waiting for the peer to answer over the link";
  }
}

}  // namespace shardwire::internal
