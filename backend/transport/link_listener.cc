#include <errno.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/transport/interfaces.h"
#include "backend/transport/link.h"
#include "backend/transport/link_message.h"
#include "backend/transport/net_socket.h"

namespace shardwire::internal {
namespace {

// How long somebody who dialed may take to prove itself. Ranks need a round trip; the rest is for hosts with more to do than cores.
constexpr Duration kProveWithin = std::chrono::seconds(10);
// Addresses of a host beyond these are not offered: hosts of containers have hundreds.
constexpr std::size_t kMaxAddresses = 16;
// Dialers that wait in the kernel for this rank to look: many may come at once, wanted or not.
constexpr int kMinBacklog = 1024;
// Callers beyond the ranks of the group; the oldest is turned away for the next.
constexpr std::size_t kMaxStrangers = 64;

Status watch(const Fd& ready, const Fd& socket, void* tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  return ::epoll_ctl(ready.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0 ? Status::ok() : systemError("watching a socket", errno);
}

// The text goes after "it ".
Status checkHello(const LinkHello& hello, Rank self, int worldSize) {
  if (hello.to != self) {
    return {StatusCode::kMismatch, fmt::format("is rank {}, looked for rank {} and found rank {}", hello.from, hello.to, self)};
  }
  if (hello.worldSize != static_cast<std::uint32_t>(worldSize)) {
    return {StatusCode::kMismatch, fmt::format("is rank {} of {}, and rank {} is one of {}", hello.from, hello.worldSize, self, worldSize)};
  }
  if (hello.from < 0 || hello.from >= worldSize || hello.from == self) {
    return {StatusCode::kMismatch, fmt::format("calls itself rank {} of {} to rank {}", hello.from, worldSize, self)};
  }
  return Status::ok();
}

}  // namespace

struct LinkListener::Caller {
  Caller(Fd fd, std::string name, Deadline until) : socket(std::move(fd)), remote(std::move(name)), deadline(until) {}

  Fd socket;
  std::string remote;
  Deadline deadline;
  MessageReader reader{kMaxHandshakeBytes};
  bool saidHello = false;
  LinkHello hello;
  Challenge theirs;
  Challenge mine;

  // A handshake's messages fit an empty socket's buffer: what does not go at once never will.
  Status say(const LinkMessage& message) {
    const std::string bytes = framed(encodeLinkMessage(message));
    const auto sent = sendSome(socket, bytes);
    SW_RETURN_IF_ERROR(sent.status());
    return *sent == bytes.size() ? Status::ok() : Status{StatusCode::kMismatch, "does not take what it is sent"};
  }
};

LinkListener::LinkListener() = default;
LinkListener::LinkListener(LinkListener&&) noexcept = default;
LinkListener& LinkListener::operator=(LinkListener&&) noexcept = default;
LinkListener::~LinkListener() = default;

Result<LinkListener> LinkListener::create(const Options& options, int backlog) {
  const auto interfaces = listInterfaces();
  SW_RETURN_IF_ERROR(interfaces.status());
  LinkListener made;
  made.jobToken_ = options.jobToken;
  made.ready_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!made.ready_.isOpen()) {
    return systemError("making an epoll set", errno);
  }
  std::string whyNot;
  for (const InterfaceAddress& each : chooseInterfaces(*interfaces, options.socketIfname)) {
    if (made.listeners_.size() == kMaxAddresses) {
      logInfo("this host has more addresses than {}: {} ({}) and what follows are not offered", kMaxAddresses, each.interface, each.ip);
      break;
    }
    const auto address = makeSocketAddress(each.ip, each.scope, 0);
    SW_RETURN_IF_ERROR(address.status());
    auto socket = listenTcp(*address, std::max(backlog, kMinBacklog));
    if (!socket.isOk()) {  // an address may be on its way in or out
      whyNot += fmt::format("; {}: {}", each.interface, socket.status().message());
      continue;
    }
    const auto bound = localAddress(*socket);
    SW_RETURN_IF_ERROR(bound.status());
    SW_RETURN_IF_ERROR(watch(made.ready_, *socket, nullptr));
    made.addresses_.push_back({each.ip, each.scope, bound->port(), each.interface});
    made.listeners_.push_back(std::move(*socket));
  }
  if (made.listeners_.empty()) {
    return Status{StatusCode::kUnsupported,
                  fmt::format("no network interface to listen on{}{}; this host has {}",
                              options.socketIfname.empty() ? "" : fmt::format(" fits SHARDWIRE_SOCKET_IFNAME={}", options.socketIfname),
                              whyNot, toString(*interfaces))};
  }
  return made;
}

Result<std::vector<LinkListener::Accepted>> LinkListener::accept(const RandomId& token, Rank self, int worldSize, Deadline deadline) {
  const Gate gate{token, self, worldSize, deadline};
  SW_RETURN_IF_ERROR(letIn(gate));
  std::array<epoll_event, 64> events;
  const int numEvents = ::epoll_wait(ready_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::vector<Accepted> accepted;
  for (int i = 0; i < numEvents; ++i) {
    if (auto* caller = static_cast<Caller*>(events[static_cast<std::size_t>(i)].data.ptr); caller != nullptr) {
      for (Accepted& each : advance(*caller, gate)) {
        accepted.push_back(std::move(each));
      }
    }
  }
  const Deadline now = Clock::now();
  for (std::size_t i = 0; i < callers_.size();) {
    if (!callers_[i]->socket.isOpen()) {
      callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (now >= callers_[i]->deadline) {
      turnAway(*callers_[i], {StatusCode::kTimeout, "said too little in the time it had"}, true);
    } else {
      ++i;
    }
  }
  return accepted;
}

Status LinkListener::letIn(const Gate& gate) {
  for (const Fd& listener : listeners_) {
    while (true) {
      auto socket = acceptTcp(listener);
      SW_RETURN_IF_ERROR(socket.status());
      if (!socket->isOpen()) {
        break;
      }
      const auto remote = remoteAddress(*socket);
      auto caller = std::make_unique<Caller>(std::move(*socket), remote.isOk() ? toString(*remote) : "a peer that is gone",
                                             std::min(gate.deadline, Clock::now() + kProveWithin));
      if (callers_.size() >= static_cast<std::size_t>(gate.worldSize) + kMaxStrangers) {
        turnAway(*callers_.front(), {StatusCode::kTimeout, "waited longest of too many that dialed at once"}, true);
        callers_.erase(callers_.begin());
      }
      SW_RETURN_IF_ERROR(watch(ready_, caller->socket, caller.get()));
      callers_.push_back(std::move(caller));
    }
  }
  return Status::ok();
}

// Closing would not do: a child forked just now may hold the socket, and with it the entry that points to the caller.
void LinkListener::forget(const Caller& caller) {
  ::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
}

void LinkListener::turnAway(Caller& caller, const Status& why, bool tell) {
  // A dialer tries several addresses and drops those that it does not need.
  const LogLevel level = why.code() == StatusCode::kPeerFailed ? LogLevel::kDebug : LogLevel::kWarn;
  logAt(level, "turned away {}: it {}", caller.remote, why.message());
  if (tell) {
    LinkMessage refusal;
    refusal.type = LinkMessageType::kRefusal;
    refusal.refusal = why;
    if (const Status told = caller.say(refusal); !told.isOk()) {
      logDebug("{} could not be told: {}", caller.remote, told.message());
    }
  }
  forget(caller);
  caller.socket.reset();
}

std::vector<LinkListener::Accepted> LinkListener::advance(Caller& caller, const Gate& gate) {
  const auto whole = caller.reader.readOn(caller.socket);
  if (!whole.isOk()) {
    const bool isGone = whole.status().code() == StatusCode::kPeerFailed;
    turnAway(caller,
             isGone ? Status{StatusCode::kPeerFailed, "hung up before it had proved anything"}
                    : Status{StatusCode::kMismatch, "does not speak shardwire's link protocol"},
             !isGone);
    return {};
  }
  if (!*whole) {
    return {};
  }
  const auto message = decodeLinkMessage(caller.reader.take());
  if (!message.isOk()) {
    turnAway(caller, message.status(), true);
    return {};
  }
  const LinkMessageType expected = caller.saidHello ? LinkMessageType::kProof : LinkMessageType::kHello;
  if (message->type != expected) {
    turnAway(caller, {StatusCode::kMismatch, "sent the handshake's messages in another order"}, true);
    return {};
  }
  if (!caller.saidHello) {
    const auto challenge = makeChallenge();
    caller.saidHello = true;
    caller.hello = message->hello;
    caller.theirs = message->challenge;
    Status said = challenge.status();
    if (said.isOk()) {
      caller.mine = *challenge;
      LinkMessage answer;
      answer.type = LinkMessageType::kChallenge;
      answer.challenge = *challenge;
      said = caller.say(answer);
    }
    if (!said.isOk()) {
      turnAway(caller, said, false);
    }
    return {};
  }
  return welcome(caller, message->proof, gate);
}

std::vector<LinkListener::Accepted> LinkListener::welcome(Caller& caller, const Digest& proof, const Gate& gate) {
  const LinkKey key = makeLinkKey(gate.token, jobToken_);
  if (!sameDigest(asText(proof), proveLink(key, LinkRole::kDialer, caller.hello, caller.theirs, caller.mine))) {
    turnAway(caller,
             {StatusCode::kMismatch, "does not know the group's token (another job, a stale store, or another SHARDWIRE_JOB_TOKEN)"}, true);
    return {};
  }
  const Status fits = checkHello(caller.hello, gate.self, gate.worldSize);
  if (!fits.isOk()) {
    turnAway(caller, fits, true);
    return {};
  }
  LinkMessage answer;
  answer.type = LinkMessageType::kWelcome;
  answer.proof = proveLink(key, LinkRole::kListener, caller.hello, caller.theirs, caller.mine);
  const Status said = caller.say(answer);
  if (!said.isOk()) {
    turnAway(caller, said, false);
    return {};
  }
  forget(caller);
  std::vector<Accepted> accepted;
  accepted.push_back(
      {Link(std::move(caller.socket), caller.remote, linkSecret(key, caller.hello, caller.theirs, caller.mine)), caller.hello});
  return accepted;
}

}  // namespace shardwire::internal
