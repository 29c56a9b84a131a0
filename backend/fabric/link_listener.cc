// A caller is a connection on its way through the handshake: silent until the hello names an endpoint (of one rank of
// one group), known until the proof arrives, proved until the rank opens the endpoint, which happens once the rank
// knows the group's addresses. Then the proof is checked, and the link waits until the rank takes the link. Limits on
// the silent callers, on the callers of one endpoint, and on the time of each keep foreign connections from using up
// descriptors or keeping ranks out. The fabric's thread serves all callers; nothing here waits.
#include "backend/fabric/link_listener.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/base/log.h"
#include "backend/fabric/link_message.h"
#include "backend/fabric/net_socket.h"

namespace shardwire::internal {
namespace {

// Callers that have not named an endpoint. A rank names the endpoint as soon as the rank is connected.
constexpr std::size_t kMaxSilent = 128;
// Callers at one endpoint, beyond the ranks of the group.
constexpr std::size_t kMaxUnknownCallers = 64;
// At the limit, a caller is rejected after this time, in which a rank would have sent its proof.
constexpr Duration kLeastStay = std::chrono::milliseconds(500);

// The text goes after "it ".
Status checkHello(const LinkHello& hello, Rank self, int worldSize) {
  if (hello.to != self) {
    return {StatusCode::kMismatch,
            fmt::format("is rank {}, looked for rank {} and found rank {}", hello.from, hello.to, self)};
  }
  if (hello.worldSize != static_cast<std::uint32_t>(worldSize)) {
    return {StatusCode::kMismatch,
            fmt::format("is rank {} of {}, and rank {} is one of {}", hello.from, hello.worldSize, self, worldSize)};
  }
  if (hello.from < 0 || hello.from >= worldSize || hello.from == self) {
    return {StatusCode::kMismatch, fmt::format("calls itself rank {} of {} to rank {}", hello.from, worldSize, self)};
  }
  return Status::ok();
}

}  // namespace

const LinkKey& LinkGuests::keyOf(Rank from) const {
  const auto place = static_cast<std::size_t>(from);
  return from >= 0 && place < sharesSecret.size() && from != self && sharesSecret[place] ? keyOfUser : key;
}

struct LinkListener::EndpointState {
  std::size_t mostCallers = 0;
  std::function<void()> onCall;
  std::optional<LinkGuests> guests;  // none: not open yet
  std::vector<AcceptedLink> accepted;
  Status failure;
  std::string reported;  // the last failure, as long as the cause lasts
};

struct LinkListener::Caller {
  enum class Stage : unsigned char { kSilent, kKnown, kProved };

  Caller(Fd fd, std::string name, Deadline until)
      : socket(std::move(fd)), remote(std::move(name)), since(Clock::now()), deadline(until) {}

  Fd socket;  // not open: the caller has finished, with or without success
  std::string remote;
  Deadline since;     // the time of the dial, or of the hello
  Deadline deadline;  // of all callers, except callers waiting for the endpoint to open
  Stage stage = Stage::kSilent;
  EndpointState* endpoint = nullptr;
  MessageReader reader{kMaxHandshakeBytes};
  LinkHello hello;
  Challenge theirs;
  Challenge mine;
  Digest proof{};

  bool waitsForEndpoint() const { return stage == Stage::kProved; }
};

LinkListener::LinkListener(ListeningPorts ports, Fd ready, Duration proveWithin)
    : ports_(std::move(ports)), ready_(std::move(ready)), proveWithin_(proveWithin) {}

LinkListener::~LinkListener() = default;

Result<std::shared_ptr<LinkListener>> LinkListener::create(ListeningPorts ports, std::shared_ptr<FdWatches> watches,
                                                           Duration proveWithin) {
  auto ready = makeEpollSet();
  SW_RETURN_IF_ERROR(ready.status());
  ready->closeInChildren();
  for (const Fd& port : ports.sockets) {
    SW_RETURN_IF_ERROR(watchSocket(*ready, EPOLL_CTL_ADD, port, EPOLLIN, nullptr));
  }
  std::shared_ptr<LinkListener> made(new LinkListener(std::move(ports), std::move(*ready), proveWithin));
  auto watched = FdWatch::create(std::move(watches), made->ready_.get(), EPOLLIN, [raw = made.get()] {
    raw->serve();
    return true;
  });
  SW_RETURN_IF_ERROR(watched.status());
  made->watch_ = std::move(*watched);
  return made;
}

// ---- callers

void LinkListener::serve() {
  const MutexLock lock(mutex_);
  if (const Status let = letIn(); !let.isOk()) {
    for (const auto& [id, endpoint] : endpoints_) {
      if (endpoint->reported != let.message()) {
        endpoint->reported = let.message();
        endpoint->failure = let;
        endpoint->onCall();
      }
    }
    static_cast<void>(setListening(false));  // until the next call, or the ports would wake the thread for nothing
  } else if (isListening_) {
    for (const auto& [id, endpoint] : endpoints_) {
      endpoint->reported.clear();
    }
  }
  std::array<epoll_event, 64> events;
  const int numEvents = ::epoll_wait(ready_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < numEvents; ++i) {
    auto* caller = static_cast<Caller*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (caller != nullptr && caller->socket.isOpen()) {
      advance(*caller);
    }
  }
  const Deadline now = Clock::now();
  for (const auto& caller : callers_) {
    if (caller->socket.isOpen() && !caller->waitsForEndpoint() && now >= caller->deadline) {
      reject(*caller, {StatusCode::kTimeout, "said too little in the given time"}, true);
    }
  }
  clearGone();
}

bool LinkListener::isPressed() {
  const MutexLock lock(mutex_);
  return !isListening_ || std::ranges::any_of(callers_, [](const auto& each) { return !each->waitsForEndpoint(); });
}

std::size_t LinkListener::numSilent() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(callers_, [](const auto& each) { return each->stage == Caller::Stage::kSilent; }));
}

void LinkListener::clearGone() {
  std::erase_if(callers_, [](const auto& caller) { return !caller->socket.isOpen(); });
}

// Ports that must not accept now would wake the watching thread for nothing.
Status LinkListener::setListening(bool on) {
  if (on == isListening_) {
    return Status::ok();
  }
  isListening_ = on;
  for (const Fd& port : ports_.sockets) {
    SW_RETURN_IF_ERROR(watchSocket(ready_, EPOLL_CTL_MOD, port, on ? std::uint32_t{EPOLLIN} : 0U, nullptr));
  }
  return Status::ok();
}

Status LinkListener::letIn() {
  std::size_t silent = numSilent();
  if (silent >= kMaxSilent) {
    const Deadline now = Clock::now();
    for (const auto& caller : callers_) {
      if (caller->stage == Caller::Stage::kSilent && now >= caller->since + kLeastStay) {
        reject(*caller, {StatusCode::kTimeout, "said nothing while too many dialed"}, true);
      }
    }
    clearGone();
    silent = numSilent();
  }
  // One caller of each port in turn: many silent callers at one port must not keep out the callers at another.
  for (std::size_t numEmpty = 0; silent < kMaxSilent && numEmpty < ports_.sockets.size();) {
    lastPort_ = (lastPort_ + 1) % ports_.sockets.size();
    auto socket = acceptTcp(ports_.sockets[lastPort_]);
    SW_RETURN_IF_ERROR(socket.status());
    if (!socket->isOpen()) {
      ++numEmpty;
      continue;
    }
    numEmpty = 0;
    const auto remote = remoteAddress(*socket);
    auto caller = std::make_unique<Caller>(std::move(*socket), remote.isOk() ? toString(*remote) : "a gone peer",
                                           Clock::now() + proveWithin_);
    SW_RETURN_IF_ERROR(watchSocket(ready_, EPOLL_CTL_ADD, caller->socket, EPOLLIN, caller.get()));
    callers_.push_back(std::move(caller));
    ++silent;
  }
  return setListening(silent < kMaxSilent);
}

// Closing alone is not enough: a child forked just now may hold the socket, and with it the epoll entry that points to
// the caller.
void LinkListener::forget(Caller& caller) {
  ::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
  caller.socket.reset();
}

void LinkListener::reject(Caller& caller, const Status& why, bool notifies) {
  // A dialer tries several addresses and drops the unneeded connections; a rank may look for a rank which has just
  // left.
  const bool isOrdinary = why.code() == StatusCode::kPeerFailed;
  const LogLevel level = !isOrdinary ? LogLevel::kWarn : notifies ? LogLevel::kInfo : LogLevel::kDebug;
  rejections_.log(level, "rejected {}: it {}", caller.remote, why.message());
  if (notifies) {
    LinkMessage refusal;
    refusal.type = LinkMessageType::kRefusal;
    refusal.refusal = why;
    if (const Status reported = sendAtOnce(caller.socket, encodeLinkMessage(refusal)); !reported.isOk()) {
      logDebug("{} could not be notified: {}", caller.remote, reported.message());
    }
  }
  forget(caller);
}

// ---- the handshake of a caller

void LinkListener::advance(Caller& caller) {
  const auto whole = caller.reader.readOn(caller.socket);
  if (!whole.isOk()) {
    const bool isGone = whole.status().code() == StatusCode::kPeerFailed;
    return reject(caller,
                  isGone ? Status{StatusCode::kPeerFailed, "hung up before the end of the proof"}
                         : Status{StatusCode::kMismatch, "does not speak shardwire's link protocol"},
                  !isGone);
  }
  if (!*whole) {
    return;
  }
  const auto message = decodeLinkMessage(caller.reader.take());
  if (!message.isOk()) {
    return reject(caller, message.status(), true);
  }
  const bool isHello = message->type == LinkMessageType::kHello && caller.stage == Caller::Stage::kSilent;
  const bool isProof = message->type == LinkMessageType::kProof && caller.stage == Caller::Stage::kKnown;
  if (!isHello && !isProof) {  // a caller that waits for the endpoint has nothing to send
    return reject(caller, {StatusCode::kMismatch, "sent the handshake's messages in another order"}, true);
  }
  if (isHello) {
    return takeHello(caller, *message);
  }
  caller.proof = message->proof;
  caller.stage = Caller::Stage::kProved;
  if (caller.endpoint->guests.has_value()) {
    welcome(caller);
  }
}

void LinkListener::takeHello(Caller& caller, const LinkMessage& message) {
  const auto endpoint = endpoints_.find(message.hello.endpoint);
  if (endpoint == endpoints_.end()) {
    return reject(
        caller,
        {StatusCode::kPeerFailed, "asks for a group that is not here: its rank has left, or the store is stale"}, true);
  }
  if (!makeRoomAt(*endpoint->second)) {
    return reject(caller, {StatusCode::kTimeout, "came while too many dialed"}, true);
  }
  const auto challenge = makeChallenge();
  if (!challenge.isOk()) {
    return reject(caller, challenge.status(), false);
  }
  caller.stage = Caller::Stage::kKnown;
  caller.since = Clock::now();
  caller.endpoint = endpoint->second.get();
  caller.hello = message.hello;
  caller.theirs = message.challenge;
  caller.mine = *challenge;
  LinkMessage answer;
  answer.type = LinkMessageType::kChallenge;
  answer.challenge = *challenge;
  if (const Status said = sendAtOnce(caller.socket, encodeLinkMessage(answer)); !said.isOk()) {
    reject(caller, said, false);
  }
}

// A rank rejected in this way dials again.
bool LinkListener::makeRoomAt(const EndpointState& endpoint) {
  std::size_t numCallers = 0;
  const auto isThere = [&](const Caller& each) { return each.endpoint == &endpoint && each.socket.isOpen(); };
  for (const auto& each : callers_) {
    numCallers += isThere(*each) ? 1 : 0;
  }
  const Deadline now = Clock::now();
  for (auto each = callers_.begin(); numCallers >= endpoint.mostCallers && each != callers_.end(); ++each) {
    if (isThere(**each) && now >= (*each)->since + kLeastStay) {
      reject(**each, {StatusCode::kTimeout, "was not let in while too many dialed"}, true);
      --numCallers;
    }
  }
  return numCallers < endpoint.mostCallers;
}

void LinkListener::welcome(Caller& caller) {
  const LinkGuests& guests = *caller.endpoint->guests;
  const LinkKey& key = guests.keyOf(caller.hello.from);
  if (!sameDigest(asText(caller.proof), proveLink(key, LinkRole::kDialer, caller.hello, caller.theirs, caller.mine))) {
    return reject(caller,
                  {StatusCode::kMismatch,
                   "does not know the group's token (another job, a stale store, or another SHARDWIRE_JOB_TOKEN)"},
                  true);
  }
  if (const Status fits = checkHello(caller.hello, guests.self, guests.worldSize); !fits.isOk()) {
    return reject(caller, fits, true);
  }
  LinkMessage answer;
  answer.type = LinkMessageType::kWelcome;
  answer.proof = proveLink(key, LinkRole::kListener, caller.hello, caller.theirs, caller.mine);
  if (const Status said = sendAtOnce(caller.socket, encodeLinkMessage(answer)); !said.isOk()) {
    return reject(caller, said, false);
  }
  ::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
  caller.endpoint->accepted.push_back(
      {Link(std::move(caller.socket), caller.remote, linkSecret(key, caller.hello, caller.theirs, caller.mine)),
       caller.hello});
  caller.endpoint->onCall();
}

// ---- endpoints

Result<std::unique_ptr<LinkEndpoint>> LinkListener::addEndpoint(const RandomId& id, int worldSize,
                                                                std::function<void()> onCall) {
  auto endpoint = std::make_unique<EndpointState>();
  endpoint->mostCallers = static_cast<std::size_t>(worldSize) + kMaxUnknownCallers;
  endpoint->onCall = std::move(onCall);
  const MutexLock lock(mutex_);
  if (!endpoints_.try_emplace(id, std::move(endpoint)).second) {
    return Status{StatusCode::kInternal, "two ranks of this process have one token"};
  }
  return std::unique_ptr<LinkEndpoint>(new LinkEndpoint(shared_from_this(), id));
}

void LinkListener::open(const RandomId& id, LinkGuests guests) {
  const MutexLock lock(mutex_);
  EndpointState& endpoint = *endpoints_.at(id);
  endpoint.guests = std::move(guests);
  for (const auto& caller : callers_) {
    if (caller->endpoint == &endpoint && caller->socket.isOpen() && caller->waitsForEndpoint()) {
      welcome(*caller);
    }
  }
  clearGone();
}

Result<std::vector<AcceptedLink>> LinkListener::take(const RandomId& id) {
  const MutexLock lock(mutex_);
  EndpointState& endpoint = *endpoints_.at(id);
  SW_RETURN_IF_ERROR(std::exchange(endpoint.failure, Status::ok()));
  return std::exchange(endpoint.accepted, {});
}

// A child of fork() lacks the thread that may have held the lock.
void LinkListener::remove(const RandomId& id) {
  if (!owner_.isHere()) {
    return;
  }
  const MutexLock lock(mutex_);
  const EndpointState* const endpoint = endpoints_.at(id).get();
  for (const auto& caller : callers_) {
    if (caller->endpoint == endpoint && caller->socket.isOpen()) {
      reject(*caller, {StatusCode::kPeerFailed, "asks for a group that its rank has just left"}, true);
    }
  }
  clearGone();
  endpoints_.erase(id);
}

LinkEndpoint::~LinkEndpoint() {
  listener_->remove(id_);
}

}  // namespace shardwire::internal
