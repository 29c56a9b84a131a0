// Tries a peer's addresses side by side, each started 250 ms after the previous address: an address may lead nowhere,
// or to another host with the same address. Each attempt goes through connecting, hello and proof. Only one attempt at
// a time sends a proof, so the listener never waits on a link that this rank drops; the other attempts stay at the
// listener's challenge in case the first attempt fails. The first welcomed attempt is the link. Otherwise whyNot()
// lists the answer of each address. Nothing waits in step().
#include <errno.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/link.h"
#include "backend/fabric/link_message.h"
#include "backend/fabric/net_socket.h"

namespace shardwire::internal {
namespace {

// The next address is tried while this one may still answer: an address may lead nowhere, or to another host with the
// same address.
constexpr Duration kNextAddressAfter = std::chrono::milliseconds(250);
// A connection not made by then will not be made. Between hosts a connection takes a round trip, plus seconds where
// packets are lost.
constexpr Duration kConnectWithin = std::chrono::seconds(15);
// The same limit for a neighbour on the same cable, where two lost packets cost 3 s: a link-local address is tried
// through each interface, and most interfaces lead nowhere.
constexpr Duration kConnectToNeighbourWithin = std::chrono::seconds(4);

// Whether the error of connect() means that no host answers at the address.
bool isSilence(int error) {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN || error == ETIMEDOUT;
}

}  // namespace

// The attempt to make a link over one address.
struct LinkDial::Attempt {
  enum class Stage { kWaiting, kConnecting, kHello, kProof, kWelcome, kFailed };

  SocketAddress address;
  std::string name;
  Fd socket;
  Stage stage = Stage::kWaiting;
  Duration patience{};  // the time allowed for connecting
  // The deadline for connecting. The later stages have none: a listener may be stopped for a while, and holds a proved
  // link until its rank opens the endpoint.
  Deadline until = kNoDeadline;
  MessageReader reader{kMaxHandshakeBytes};
  Challenge mine;
  Challenge theirs;
  Status failure;
  bool isRefused = false;     // no process listens there, or none for this group
  bool isUnanswered = false;  // no host answers there
  bool isOfThisHost = false;  // this host could not start the connection, which says nothing of the peer
  bool isCrowdedOut = false;  // too many callers dialed there

  bool isUnderWay() const { return stage != Stage::kWaiting && stage != Stage::kFailed && stage != Stage::kWelcome; }
  void fail(const Status& why) {
    failure = why;
    stage = Stage::kFailed;
    socket.reset();
  }
};
using Stage = LinkDial::Attempt::Stage;

LinkDial::LinkDial(std::span<const NetAddress> addresses, const LinkKey& key, const LinkHello& hello)
    : key_(key), hello_(hello) {
  for (const NetAddress& to : addresses) {
    Attempt& attempt = attempts_.emplace_back();
    attempt.patience = isLinkLocal(to.ip) ? kConnectToNeighbourWithin : kConnectWithin;
    const auto address = makeSocketAddress(to.ip, to.scope, to.port);
    attempt.name = address.isOk() ? toString(*address) : to.ip;
    if (address.isOk()) {
      attempt.address = *address;
    } else {
      attempt.fail(address.status());
    }
  }
}

LinkDial::LinkDial(LinkDial&&) noexcept = default;
LinkDial::~LinkDial() = default;

bool LinkDial::isAnyProving() const {
  return std::ranges::any_of(attempts_, [](const Attempt& each) { return each.stage == Stage::kProof; });
}

void LinkDial::startNext() {
  const auto next = std::ranges::find_if(attempts_, [](const Attempt& each) { return each.stage == Stage::kWaiting; });
  const bool anyUnderWay = std::ranges::any_of(attempts_, [](const Attempt& each) { return each.isUnderWay(); });
  const Deadline now = Clock::now();
  if (next == attempts_.end() || (anyUnderWay && now < nextStart_)) {
    return;
  }
  nextStart_ = now + kNextAddressAfter;
  int error = 0;
  auto socket = startTcp(next->address, &error);
  if (!socket.isOk()) {
    next->isRefused = error == ECONNREFUSED;
    next->isUnanswered = isSilence(error);
    next->isOfThisHost = !next->isRefused && !next->isUnanswered;
    next->fail(socket.status());
    return;
  }
  next->socket = std::move(*socket);
  next->stage = Stage::kConnecting;
  next->until = now + next->patience;
}

Deadline LinkDial::appendSockets(std::vector<pollfd>* entries) const {
  Deadline until = kNoDeadline;
  const bool anyProving = isAnyProving();
  for (const Attempt& each : attempts_) {
    if (each.stage == Stage::kWaiting) {
      until = std::min(until, nextStart_);
    } else if (each.isUnderWay() && !(each.stage == Stage::kHello && anyProving)) {
      entries->push_back(
          {each.socket.get(), static_cast<short>(each.stage == Stage::kConnecting ? POLLOUT : POLLIN), 0});
      until = each.stage == Stage::kConnecting ? std::min(until, each.until) : until;
    }
  }
  return until;
}

Status LinkDial::greet(Attempt& attempt) {
  const auto challenge = makeChallenge();
  SW_RETURN_IF_ERROR(challenge.status());
  attempt.mine = *challenge;
  attempt.stage = Stage::kHello;
  LinkMessage hello;
  hello.type = LinkMessageType::kHello;
  hello.hello = hello_;
  hello.challenge = *challenge;
  return sendAtOnce(attempt.socket, encodeLinkMessage(hello));
}

Status LinkDial::answer(Attempt& attempt, const LinkMessage& message) {
  if (message.type == LinkMessageType::kRefusal) {
    const StatusCode code = message.refusal.code();
    attempt.isCrowdedOut = code == StatusCode::kTimeout;  // too slow among many callers: a later dial may succeed
    attempt.isRefused = code == StatusCode::kPeerFailed;  // the listener does not have the endpoint
    return {attempt.isCrowdedOut ? StatusCode::kPeerFailed
            : attempt.isRefused  ? StatusCode::kUnsupported
                                 : StatusCode::kMismatch,
            fmt::format("refused, because this rank {}", message.refusal.message())};
  }
  if (attempt.stage == Stage::kHello && message.type == LinkMessageType::kChallenge) {
    // Only one attempt at a time sends a proof, so no listener is left waiting on a proved link.
    attempt.theirs = message.challenge;
    attempt.stage = Stage::kProof;
    LinkMessage proof;
    proof.type = LinkMessageType::kProof;
    proof.proof = proveLink(key_, LinkRole::kDialer, hello_, attempt.mine, attempt.theirs);
    return sendAtOnce(attempt.socket, encodeLinkMessage(proof));
  }
  if (attempt.stage == Stage::kProof && message.type == LinkMessageType::kWelcome) {
    if (!sameDigest(asText(message.proof),
                    proveLink(key_, LinkRole::kListener, hello_, attempt.mine, attempt.theirs))) {
      return {StatusCode::kMismatch, "it does not know the group's token (another job, or a stale store)"};
    }
    attempt.stage = Stage::kWelcome;
    return Status::ok();
  }
  return {StatusCode::kMismatch, "it sent the handshake's messages in another order"};
}

void LinkDial::advance(Attempt& attempt) {
  if (attempt.stage == Stage::kConnecting) {
    pollfd entry{attempt.socket.get(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) {
      if (Clock::now() >= attempt.until) {
        attempt.isUnanswered = true;
        attempt.fail({StatusCode::kTimeout, "connecting: no answer"});
      }
      return;
    }
    const int error = socketError(attempt.socket);
    attempt.isRefused = error == ECONNREFUSED;
    attempt.isUnanswered = isSilence(error);
    const Status greeted = error != 0 ? systemError("connecting", error) : greet(attempt);
    if (!greeted.isOk()) {
      attempt.fail(greeted);
    }
    return;
  }
  // The attempt at another address is further: this attempt waits, unread, in case the other fails.
  if (attempt.stage == Stage::kHello && isAnyProving()) {
    return;
  }
  const auto whole = attempt.reader.readOn(attempt.socket);
  if (whole.isOk() && !*whole) {
    return;
  }
  Status status = whole.status();
  if (status.isOk()) {
    const auto message = decodeLinkMessage(attempt.reader.take());
    status = message.isOk() ? answer(attempt, *message)
                            : Status{message.status().code(), "it " + message.status().message()};
  }
  if (!status.isOk()) {
    attempt.fail(status);
  }
}

Status LinkDial::whyNot() const {
  std::string reasons;
  bool anyMismatch = false;
  bool anyPending = false;
  for (const Attempt& each : attempts_) {
    const bool isPending = each.stage != Stage::kFailed;
    anyPending |= isPending;
    anyMismatch |= each.failure.code() == StatusCode::kMismatch;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.name,
                           isPending ? "no answer in time" : each.failure.message());
  }
  const std::string text = fmt::format("no link to rank {} ({})", hello_.to,
                                       reasons.empty() ? "it has no address that leads there from here" : reasons);
  if (anyPending) {
    return {StatusCode::kTimeout, text};
  }
  return {
      anyMismatch ? StatusCode::kMismatch : StatusCode::kUnsupported,
      anyMismatch ? text : text + "; is a firewall between the hosts? SHARDWIRE_SOCKET_IFNAME chooses the interface"};
}

bool LinkDial::wasHungUp() const {
  return std::ranges::any_of(attempts_,
                             [](const Attempt& each) { return each.failure.code() == StatusCode::kPeerFailed; });
}

bool LinkDial::wasRefused() const {
  return std::ranges::any_of(attempts_, [](const Attempt& each) { return each.isRefused; });
}

bool LinkDial::wasUnanswered() const {
  return std::ranges::any_of(attempts_, &Attempt::isUnanswered) &&
         std::ranges::all_of(attempts_, [](const Attempt& each) { return each.isUnanswered || each.isOfThisHost; });
}

bool LinkDial::wasCrowdedOut() const {
  return std::ranges::any_of(attempts_, [](const Attempt& each) { return each.isCrowdedOut; });
}

std::optional<Result<Link>> LinkDial::step() {
  startNext();
  bool anyLeft = false;
  for (Attempt& each : attempts_) {
    if (each.isUnderWay()) {
      advance(each);
    }
    if (each.stage == Stage::kWelcome) {
      return Link(std::move(each.socket), each.name, linkSecret(key_, hello_, each.mine, each.theirs));
    }
    anyLeft |= each.stage != Stage::kFailed;
  }
  return anyLeft ? std::nullopt : std::optional<Result<Link>>(whyNot());
}

std::vector<NetAddress> orderByReach(std::span<const NetAddress> addresses, const std::vector<InterfaceAddress>& mine) {
  std::vector<NetAddress> near;
  std::vector<NetAddress> far;
  for (NetAddress to : addresses) {
    if (!isLinkLocal(to.ip)) {
      to.scope = 0;
      (isInSubnet(mine, to.ip) ? near : far).push_back(std::move(to));
      continue;
    }
    for (const InterfaceAddress& each : mine) {
      if (each.scope != 0) {
        to.scope = each.scope;
        far.push_back(to);
      }
    }
  }
  std::move(far.begin(), far.end(), std::back_inserter(near));
  return near;
}

std::vector<NetAddress> orderByReachElsewhere(std::span<const NetAddress> addresses,
                                              const std::vector<InterfaceAddress>& mine) {
  std::vector<NetAddress> reach = orderByReach(addresses, mine);
  std::erase_if(reach, [&](const NetAddress& to) {
    return std::ranges::any_of(mine, [&](const InterfaceAddress& each) { return each.ip == to.ip; });
  });
  return reach;
}

}  // namespace shardwire::internal
