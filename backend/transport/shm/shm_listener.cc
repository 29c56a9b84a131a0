#include "backend/transport/shm/shm_listener.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "backend/base/log.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

// A rank says hello as soon as it is connected.
constexpr Duration kHelloWithin = std::chrono::seconds(5);
constexpr std::size_t kMaxStrangers = 128;
// However many come: a rank that was let in has this long to say its hello.
constexpr Duration kLeastStay = std::chrono::milliseconds(500);
// Dialers that wait in the kernel for this process to look: many may come at once, wanted or not.
constexpr int kBacklog = 4096;

// Let in between two looks at the others, who may be of other users and dial without end.
constexpr int kMostAtOnce = 16;
constexpr Duration kBetweenWarnings = std::chrono::minutes(1);

Status watch(const Fd& ready, const Fd& socket, void* tag) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.ptr = tag;
  return ::epoll_ctl(ready.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0 ? Status::ok() : systemError("watching a socket", errno);
}

// A message fits an empty socket's buffer: what does not go at once never will.
Status tell(const Fd& socket, std::string_view message, std::span<const int> fds = {}) {
  const Status told = sendUnix(socket, message, fds, Clock::now());
  if (!told.isOk()) {
    logDebug("a dialer could not be told: {}", told.message());
  }
  return told;
}

}  // namespace

Result<UnixPeer> checkUser(const Fd& socket) {
  const auto who = unixPeer(socket);
  if (who.isOk() && who->uid != ::geteuid()) {
    return Status{StatusCode::kUnsupported, fmt::format("it runs as user {}, this rank as user {}", who->uid, ::geteuid())};
  }
  return who;
}

Result<Fd> dialProcess(const std::string& socketName, const WaitLimit& limit) {
  constexpr Duration kPause = std::chrono::milliseconds(1);
  while (true) {
    auto socket = tryDialUnix(socketName);
    if (socket.isOk() && socket->isOpen()) {
      return socket;
    }
    if (socket.status().code() != StatusCode::kTimeout) {
      const Status why = socket.isOk() ? systemError("connecting to a Unix socket", ECONNREFUSED) : socket.status();
      return Status{why.code(),
                    fmt::format("{}; its process has ended, or is in another network namespace (containers of one host must share it: "
                                "--network=host or one pod)",
                                why.message())};
    }
    if (limit.isOver()) {
      return socket;
    }
    SW_RETURN_IF_ERROR(limit.sooner(Clock::now() + kPause).poll({}).status());
  }
}

Status askForSecret(const Fd& socket, const RandomId& token, const WaitLimit& limit) {
  SW_RETURN_IF_ERROR(checkUser(socket).status());
  return sendUnix(socket, encodeShmSecretRequest(token), {}, limit);
}

Result<std::string> receiveSecret(const Fd& socket, const WaitLimit& limit) {
  const auto message = receiveUnix(socket, limit);
  SW_RETURN_IF_ERROR(message.status());
  return decodeShmSecret(message->bytes);
}

struct ShmListener::Caller {
  Fd socket;
  UnixPeer peer;
  Deadline since;
  bool isGuest = false;
  RandomId process;  // a guest's
};

ShmListener::ShmListener() = default;
ShmListener::ShmListener(ShmListener&&) noexcept = default;
ShmListener& ShmListener::operator=(ShmListener&&) noexcept = default;
ShmListener::~ShmListener() = default;

Result<ShmListener> ShmListener::create(const std::string& name, ShmAnswers answers) {
  ShmListener made;
  made.answers_ = std::move(answers);
  auto listener = listenUnix(name, kBacklog);
  SW_RETURN_IF_ERROR(listener.status());
  made.listener_ = std::move(*listener);
  made.ready_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!made.ready_.isOpen()) {
    return systemError("making an epoll set", errno);
  }
  made.ready_.closeInChildren();
  SW_RETURN_IF_ERROR(watch(made.ready_, made.listener_, nullptr));
  return made;
}

std::size_t ShmListener::numStrangers() const {
  return static_cast<std::size_t>(std::count_if(callers_.begin(), callers_.end(), [](const auto& each) { return !each->isGuest; }));
}

bool ShmListener::serve() {
  if (const Status let = letIn(); !let.isOk()) {
    if (whyNobody_ != let.message()) {
      whyNobody_ = let.message();
      logWarn("processes of this host that dial are not let in now: {}", let.message());
    }
    static_cast<void>(setListening(false));  // until the next call, or the thread would be woken for nothing
  } else {
    whyNobody_.clear();
  }
  std::array<epoll_event, 64> events;
  const int numEvents = ::epoll_wait(ready_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool isAnyGone = false;
  for (int i = 0; i < numEvents; ++i) {
    if (auto* caller = static_cast<Caller*>(events[static_cast<std::size_t>(i)].data.ptr); caller != nullptr) {
      advance(*caller);
    }
  }
  const Deadline now = Clock::now();
  for (const auto& caller : callers_) {
    if (caller->socket.isOpen() && !caller->isGuest && now >= caller->since + kHelloWithin) {
      turnAway(*caller, {StatusCode::kTimeout, "it said nothing in the time it had"});
    }
    isAnyGone |= caller->isGuest && !caller->socket.isOpen();
  }
  std::erase_if(callers_, [](const auto& caller) { return !caller->socket.isOpen(); });
  return isAnyGone;
}

// While the listener is not looked at, it would wake whoever waits for nothing.
Status ShmListener::setListening(bool on) {
  if (on == isListening_) {
    return Status::ok();
  }
  isListening_ = on;
  epoll_event event{};
  event.events = on ? static_cast<std::uint32_t>(EPOLLIN) : 0U;
  return ::epoll_ctl(ready_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0 ? Status::ok() : systemError("watching a socket", errno);
}

Status ShmListener::letIn() {
  std::size_t strangers = numStrangers();
  if (strangers >= kMaxStrangers) {
    for (const auto& caller : callers_) {
      if (!caller->isGuest && Clock::now() >= caller->since + kLeastStay) {
        turnAway(*caller, {StatusCode::kTimeout, "it said nothing while too many dialed"});
      }
    }
    std::erase_if(callers_, [](const auto& caller) { return !caller->socket.isOpen(); });
    strangers = numStrangers();
  }
  for (int i = 0; i < kMostAtOnce && strangers < kMaxStrangers; ++i) {
    auto socket = acceptUnix(listener_, Clock::now());
    if (socket.status().code() == StatusCode::kTimeout) {
      break;
    }
    SW_RETURN_IF_ERROR(socket.status());
    const auto peer = unixPeer(*socket);
    SW_RETURN_IF_ERROR(peer.status());
    if (peer->uid != ::geteuid()) {
      turnAwayUser(*peer);
      continue;
    }
    auto caller = std::make_unique<Caller>(Caller{std::move(*socket), *peer, Clock::now(), false, {}});
    SW_RETURN_IF_ERROR(watch(ready_, caller->socket, caller.get()));
    callers_.push_back(std::move(caller));
    ++strangers;
  }
  return setListening(strangers < kMaxStrangers);
}

// They may dial as often as they like: that must not fill the log.
void ShmListener::turnAwayUser(const UnixPeer& peer) {
  ++numOtherUsers_;
  if (const Deadline now = Clock::now(); now >= nextWarning_) {
    nextWarning_ = now + kBetweenWarnings;
    logWarn("turned away a process of user {} (pid {}); {} of other users so far", peer.uid, peer.pid, numOtherUsers_);
  }
}

// Closing would not do: a child forked just now may hold the socket, and with it the entry that points to the caller.
void ShmListener::forget(Caller& caller) {
  ::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
  caller.socket.reset();
}

void ShmListener::turnAway(Caller& caller, const Status& why) {
  const bool isGone = why.code() == StatusCode::kPeerFailed;
  logAt(isGone ? LogLevel::kDebug : LogLevel::kWarn, "turned away pid {}: {}", caller.peer.pid, why.message());
  if (!isGone) {
    static_cast<void>(tell(caller.socket, encodeShmRefusal({why.code(), fmt::format("refused: {}", why.message())})));
  }
  forget(caller);
}

// A stranger says one thing, and is then a guest or gone. A guest says nothing more.
void ShmListener::advance(Caller& caller) {
  auto message = receiveUnix(caller.socket, Clock::now());
  if (message.status().code() == StatusCode::kTimeout) {
    return;
  }
  if (caller.isGuest) {
    if (message.isOk()) {
      logWarn("pid {}, which has a link to this process, says what it should not; the link is ended", caller.peer.pid);
    }
    if (const auto guest = guests_.find(caller.process); --guest->second == 0) {
      guests_.erase(guest);
    }
    return forget(caller);
  }
  if (!message.isOk()) {
    return turnAway(caller, message.status());
  }
  isShmSecretRequest(message->bytes) ? answerSecret(caller, message->bytes) : answerHello(caller, message->bytes);
}

void ShmListener::answerSecret(Caller& caller, std::string_view bytes) {
  const auto token = decodeShmSecretRequest(bytes);
  if (!token.isOk()) {
    return turnAway(caller, token.status());
  }
  if (!answers_.maySeeSecret(*token)) {
    return turnAway(caller, {StatusCode::kMismatch, "it asks for a secret that is not for it (another job, or a stale store)"});
  }
  static_cast<void>(tell(caller.socket, encodeShmSecret(answers_.secret)));
  forget(caller);
}

void ShmListener::answerHello(Caller& caller, std::string_view bytes) {
  const auto hello = decodeShmHello(bytes);
  if (!hello.isOk()) {
    return turnAway(caller, hello.status());
  }
  if (!answers_.isWelcome(hello->token)) {
    return turnAway(caller, {StatusCode::kMismatch, "the token is wrong (another job, a stale store, or another SHARDWIRE_JOB_TOKEN)"});
  }
  if (!tell(caller.socket, encodeShmWelcome(answers_.welcome), answers_.fds).isOk()) {
    return forget(caller);
  }
  caller.isGuest = true;
  caller.process = hello->process;
  ++guests_[hello->process];
}

}  // namespace shardwire::internal
