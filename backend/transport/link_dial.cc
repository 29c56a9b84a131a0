#include <errno.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/transport/interfaces.h"
#include "backend/transport/link.h"
#include "backend/transport/link_message.h"
#include "backend/transport/net_socket.h"

namespace shardwire::internal {
namespace {

// The next address gets its chance while this one still may answer: an address may lead nowhere, or to another host that has it too.
constexpr Duration kNextAddressAfter = std::chrono::milliseconds(250);
// A connection that is not made by then will not be. Between hosts it takes a round trip, plus seconds where packets are lost.
constexpr Duration kConnectWithin = std::chrono::seconds(15);

enum class Stage { kWaiting, kConnecting, kHello, kProof, kWelcome, kFailed };

// One address on its way to a link.
struct Attempt {
  SocketAddress address;
  std::string name;
  Fd socket;
  Stage stage = Stage::kWaiting;
  Deadline until = kNoDeadline;  // of the connecting
  MessageReader reader{kMaxHandshakeBytes};
  Challenge mine;
  Challenge theirs;
  Status failure;

  bool isUnderWay() const { return stage != Stage::kWaiting && stage != Stage::kFailed && stage != Stage::kWelcome; }
  void fail(const Status& why) {
    failure = why;
    stage = Stage::kFailed;
    socket.reset();
  }
};

class Dialer {
 public:
  Dialer(std::vector<Attempt> attempts, const LinkKey& key, const LinkHello& hello)
      : attempts_(std::move(attempts)), key_(key), hello_(hello) {}

  Result<Link> run(Deadline deadline);

 private:
  void startNext();
  void wait(Deadline deadline);
  void advance(Attempt& attempt);
  Status greet(Attempt& attempt);
  Status say(Attempt& attempt, const LinkMessage& message);
  Status answer(Attempt& attempt, const LinkMessage& message);
  Status failure(Deadline deadline) const;
  bool isAnyProving() const {
    return std::any_of(attempts_.begin(), attempts_.end(), [](const Attempt& each) { return each.stage == Stage::kProof; });
  }

  std::vector<Attempt> attempts_;
  const LinkKey key_;
  const LinkHello hello_;
  Deadline nextStart_{};
};

// The peer's addresses as this host reaches them: those in a subnet of ours first, a link-local one through each interface that may lead
// there.
std::vector<Attempt> planAttempts(std::span<const NetAddress> addresses, const std::vector<InterfaceAddress>& mine) {
  std::vector<Attempt> near;
  std::vector<Attempt> far;
  const auto add = [&](std::vector<Attempt>& list, const NetAddress& to, std::uint32_t scope) {
    Attempt attempt;
    const auto address = makeSocketAddress(to.ip, scope, to.port);
    attempt.name = address.isOk() ? toString(*address) : to.ip;
    if (address.isOk()) {
      attempt.address = *address;
    } else {
      attempt.fail(address.status());
    }
    list.push_back(std::move(attempt));
  };
  for (const NetAddress& to : addresses) {
    if (!isLinkLocal(to.ip)) {
      add(isInSubnet(mine, to.ip) ? near : far, to, 0);
      continue;
    }
    for (const InterfaceAddress& each : mine) {
      if (each.scope != 0) {
        add(far, to, each.scope);
      }
    }
  }
  std::move(far.begin(), far.end(), std::back_inserter(near));
  return near;
}

void Dialer::startNext() {
  const auto next = std::find_if(attempts_.begin(), attempts_.end(), [](const Attempt& each) { return each.stage == Stage::kWaiting; });
  const bool anyUnderWay = std::any_of(attempts_.begin(), attempts_.end(), [](const Attempt& each) { return each.isUnderWay(); });
  const Deadline now = Clock::now();
  if (next == attempts_.end() || (anyUnderWay && now < nextStart_)) {
    return;
  }
  nextStart_ = now + kNextAddressAfter;
  auto socket = startTcp(next->address);
  if (!socket.isOk()) {
    next->fail(socket.status());
    return;
  }
  next->socket = std::move(*socket);
  next->stage = Stage::kConnecting;
  next->until = now + kConnectWithin;
}

// Until a socket is ready, the next address is due, or the deadline.
void Dialer::wait(Deadline deadline) {
  std::vector<pollfd> entries;
  Deadline until = deadline;
  const bool anyProving = isAnyProving();
  for (const Attempt& each : attempts_) {
    if (each.stage == Stage::kWaiting) {
      until = std::min(until, nextStart_);
    } else if (each.isUnderWay() && !(each.stage == Stage::kHello && anyProving)) {
      entries.push_back({each.socket.get(), static_cast<short>(each.stage == Stage::kConnecting ? POLLOUT : POLLIN), 0});
      until = each.stage == Stage::kConnecting ? std::min(until, each.until) : until;
    }
  }
  ::poll(entries.data(), entries.size(), pollTimeout(until));  // interrupted or failed: the looks that follow tell
}

Status Dialer::say(Attempt& attempt, const LinkMessage& message) {
  const std::string bytes = framed(encodeLinkMessage(message));
  const auto sent = sendSome(attempt.socket, bytes);
  SW_RETURN_IF_ERROR(sent.status());
  return *sent == bytes.size() ? Status::ok() : Status{StatusCode::kPeerFailed, "it takes no bytes"};
}

Status Dialer::greet(Attempt& attempt) {
  const auto challenge = makeChallenge();
  SW_RETURN_IF_ERROR(challenge.status());
  attempt.mine = *challenge;
  attempt.stage = Stage::kHello;
  LinkMessage hello;
  hello.type = LinkMessageType::kHello;
  hello.hello = hello_;
  hello.challenge = *challenge;
  return say(attempt, hello);
}

Status Dialer::answer(Attempt& attempt, const LinkMessage& message) {
  if (message.type == LinkMessageType::kRefusal) {
    return {StatusCode::kMismatch, fmt::format("refused, because this rank {}", message.refusal.message())};
  }
  if (attempt.stage == Stage::kHello && message.type == LinkMessageType::kChallenge) {
    // A proof is given to one at a time, so that no other is left hanging with it.
    attempt.theirs = message.challenge;
    attempt.stage = Stage::kProof;
    LinkMessage proof;
    proof.type = LinkMessageType::kProof;
    proof.proof = proveLink(key_, LinkRole::kDialer, hello_, attempt.mine, attempt.theirs);
    return say(attempt, proof);
  }
  if (attempt.stage == Stage::kProof && message.type == LinkMessageType::kWelcome) {
    if (!sameDigest(asText(message.proof), proveLink(key_, LinkRole::kListener, hello_, attempt.mine, attempt.theirs))) {
      return {StatusCode::kMismatch, "it does not know the group's token (another job, or a stale store)"};
    }
    attempt.stage = Stage::kWelcome;
    return Status::ok();
  }
  return {StatusCode::kMismatch, "it sent the handshake's messages in another order"};
}

void Dialer::advance(Attempt& attempt) {
  if (attempt.stage == Stage::kConnecting) {
    pollfd entry{attempt.socket.get(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) {
      if (Clock::now() >= attempt.until) {
        attempt.fail({StatusCode::kTimeout, "connecting: no answer"});
      }
      return;
    }
    const int error = socketError(attempt.socket);
    const Status greeted = error != 0 ? systemError("connecting", error) : greet(attempt);
    if (!greeted.isOk()) {
      attempt.fail(greeted);
    }
    return;
  }
  // Another address is further on: this one waits, unread, in case that fails.
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
    status = message.isOk() ? answer(attempt, *message) : Status{message.status().code(), "it " + message.status().message()};
  }
  if (!status.isOk()) {
    attempt.fail(status);
  }
}

Status Dialer::failure(Deadline deadline) const {
  std::string reasons;
  bool anyMismatch = false;
  bool anyPending = false;
  for (const Attempt& each : attempts_) {
    const bool isPending = each.stage != Stage::kFailed;
    anyPending |= isPending;
    anyMismatch |= each.failure.code() == StatusCode::kMismatch;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.name, isPending ? "no answer in time" : each.failure.message());
  }
  const std::string text =
      fmt::format("no link to rank {} ({})", hello_.to, reasons.empty() ? "it has no address that leads there from here" : reasons);
  if (anyPending && Clock::now() >= deadline) {
    return {StatusCode::kTimeout, text};
  }
  return {anyMismatch ? StatusCode::kMismatch : StatusCode::kUnsupported,
          anyMismatch ? text : text + "; is a firewall between the hosts? SHARDWIRE_SOCKET_IFNAME chooses the interface"};
}

Result<Link> Dialer::run(Deadline deadline) {
  while (true) {
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
    if (!anyLeft || Clock::now() >= deadline) {
      return failure(deadline);
    }
    wait(deadline);
  }
}

}  // namespace

Result<Link> dialLink(std::span<const NetAddress> addresses, const RandomId& token, const LinkHello& hello, const Options& options,
                      Deadline deadline) {
  const auto interfaces = listInterfaces();
  SW_RETURN_IF_ERROR(interfaces.status());
  Dialer dialer(planAttempts(addresses, chooseInterfaces(*interfaces, options.socketIfname)), makeLinkKey(token, options.jobToken), hello);
  return dialer.run(deadline);
}

}  // namespace shardwire::internal
