// Each accepted connection is in one of two states. A new connection has a limited time to send its only message: a
// hello, after which the connection is a guest as long as the sender has links to this process, or a request for the
// secret, after which the connection is closed. Connections beyond a limit are not accepted until others were proved or
// rejected, so foreign processes can neither fill this process's descriptors nor keep ranks out. serve() reads the
// bytes present and never waits; the caller calls serve() again when the socket is readable, or after a while as long
// as isPressed().
#include "backend/fabric/host_listener.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/fabric/fd_watches.h"

namespace shardwire::internal {
namespace {

// A rank sends its hello as soon as it is connected.
constexpr Duration kHelloWithin = std::chrono::seconds(5);
constexpr std::size_t kMaxUnproved = 128;
// Each connection has at least this long to send a hello, however many connections arrive.
constexpr Duration kLeastToSpeak = std::chrono::milliseconds(500);
// Connections that wait in the kernel for this process to accept them: many may arrive at once, wanted or not.
constexpr int kHostBacklog = 4096;

// The most connections accepted between two checks of the other connections: processes of other users may dial without
// end.
constexpr int kMostAtOnce = 16;

// A message fits the empty buffer of a socket: a message that cannot be sent at once can never be sent.
Status sendNow(const Fd& socket, std::string_view message, std::span<const int> fds = {}) {
  const Status sent = sendUnix(socket, message, fds, Clock::now());
  if (!sent.isOk()) {
    logDebug("a caller could not be answered: {}", sent.message());
  }
  return sent;
}

}  // namespace

Result<UnixPeer> checkUser(const Fd& socket) {
  const auto who = unixPeer(socket);
  if (who.isOk() && who->uid != ::geteuid()) {
    return Status{StatusCode::kUnsupported,
                  fmt::format("the process runs as user {}, this rank as user {}", who->uid, ::geteuid())};
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
      return Status{
          why.code(),
          fmt::format(
              "{}; the process has ended, or is in another network namespace (containers of one host must share one: "
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
  return sendUnix(socket, encodeSecretRequest(token), {}, limit);
}

Result<std::string> receiveSecret(const Fd& socket, const WaitLimit& limit) {
  const auto message = receiveUnix(socket, limit);
  SW_RETURN_IF_ERROR(message.status());
  return decodeSecret(message->bytes);
}

struct HostListener::Caller {
  Fd socket;
  UnixPeer peer;
  Deadline since;
  bool isGuest = false;
  RandomId process;  // of a guest
};

HostListener::HostListener() = default;
HostListener::HostListener(HostListener&&) noexcept = default;
HostListener& HostListener::operator=(HostListener&&) noexcept = default;
HostListener::~HostListener() = default;

Result<HostListener> HostListener::create(const std::string& name, HostAnswers answers) {
  HostListener made;
  made.answers_ = std::move(answers);
  auto listener = listenUnix(name, kHostBacklog);
  SW_RETURN_IF_ERROR(listener.status());
  made.listener_ = std::move(*listener);
  made.ready_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!made.ready_.isOpen()) {
    return systemError("making an epoll set", errno);
  }
  made.ready_.closeInChildren();
  SW_RETURN_IF_ERROR(watchSocket(made.ready_, EPOLL_CTL_ADD, made.listener_, EPOLLIN | EPOLLRDHUP, nullptr));
  return made;
}

std::size_t HostListener::numUnproved() const {
  return static_cast<std::size_t>(std::ranges::count_if(callers_, [](const auto& each) { return !each->isGuest; }));
}

bool HostListener::serve() {
  if (const Status accepted = acceptAll(); !accepted.isOk()) {
    if (whyNobody_ != accepted.message()) {
      whyNobody_ = accepted.message();
      logWarn("connections from processes of this host are not accepted now: {}", accepted.message());
    }
    // Until the next call; otherwise the listener would wake the thread for nothing.
    static_cast<void>(setListening(false));
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
      reject(*caller, {StatusCode::kTimeout, "no hello came in the given time"});
    }
    isAnyGone |= caller->isGuest && !caller->socket.isOpen();
  }
  std::erase_if(callers_, [](const auto& caller) { return !caller->socket.isOpen(); });
  return isAnyGone;
}

// A listener that must not accept now would wake the thread for nothing.
Status HostListener::setListening(bool on) {
  if (on == isListening_) {
    return Status::ok();
  }
  isListening_ = on;
  return watchSocket(ready_, EPOLL_CTL_MOD, listener_, on ? std::uint32_t{EPOLLIN} : 0U, nullptr);
}

Status HostListener::acceptAll() {
  std::size_t unproved = numUnproved();
  if (unproved >= kMaxUnproved) {
    for (const auto& caller : callers_) {
      if (!caller->isGuest && Clock::now() >= caller->since + kLeastToSpeak) {
        reject(*caller, {StatusCode::kTimeout, "no hello came while too many dialed"});
      }
    }
    std::erase_if(callers_, [](const auto& caller) { return !caller->socket.isOpen(); });
    unproved = numUnproved();
  }
  for (int i = 0; i < kMostAtOnce && unproved < kMaxUnproved; ++i) {
    auto socket = acceptUnix(listener_, Clock::now());
    if (socket.status().code() == StatusCode::kTimeout) {
      break;
    }
    SW_RETURN_IF_ERROR(socket.status());
    const auto peer = unixPeer(*socket);
    SW_RETURN_IF_ERROR(peer.status());
    if (peer->uid != ::geteuid()) {
      rejections_.log(LogLevel::kWarn, "rejected a process of user {} (pid {})", peer->uid, peer->pid);
      continue;
    }
    auto caller = std::make_unique<Caller>(Caller{std::move(*socket), *peer, Clock::now(), false, {}});
    SW_RETURN_IF_ERROR(watchSocket(ready_, EPOLL_CTL_ADD, caller->socket, EPOLLIN | EPOLLRDHUP, caller.get()));
    callers_.push_back(std::move(caller));
    ++unproved;
  }
  return setListening(unproved < kMaxUnproved);
}

// Closing alone is not enough: a child forked just now may hold the socket, and with it the epoll entry that points to
// the caller.
void HostListener::close(Caller& caller) {
  ::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
  caller.socket.reset();
}

void HostListener::reject(Caller& caller, const Status& why) {
  const bool isGone = why.code() == StatusCode::kPeerFailed;
  rejections_.log(isGone ? LogLevel::kDebug : LogLevel::kWarn, "rejected pid {}: {}", caller.peer.pid, why.message());
  refuse(caller, why);
}

void HostListener::refuse(Caller& caller, const Status& why) {
  if (why.code() != StatusCode::kPeerFailed) {
    static_cast<void>(
        sendNow(caller.socket, encodeHostRefusal({why.code(), fmt::format("refused: {}", why.message())})));
  }
  close(caller);
}

// A new connection sends one message, and is a guest or closed afterwards. A guest sends nothing more.
void HostListener::advance(Caller& caller) {
  auto message = receiveUnix(caller.socket, Clock::now());
  if (message.status().code() == StatusCode::kTimeout) {
    return;
  }
  if (caller.isGuest) {
    if (message.isOk()) {
      rejections_.log(LogLevel::kWarn, "rejected pid {}: more than a hello came", caller.peer.pid);
    }
    if (const auto guest = guests_.find(caller.process); --guest->second == 0) {
      guests_.erase(guest);
    }
    return close(caller);
  }
  if (!message.isOk()) {
    return reject(caller, message.status());
  }
  isSecretRequest(message->bytes) ? answerSecret(caller, message->bytes) : answerHello(caller, message->bytes);
}

void HostListener::answerSecret(Caller& caller, std::string_view bytes) {
  const auto token = decodeSecretRequest(bytes);
  if (!token.isOk()) {
    return reject(caller, token.status());
  }
  if (!answers_.maySeeSecret(*token)) {
    return reject(caller, {StatusCode::kMismatch,
                           "the process may not have the requested secret (another job, or a stale store)"});
  }
  static_cast<void>(sendNow(caller.socket, encodeSecret(answers_.secret)));
  close(caller);
}

void HostListener::answerHello(Caller& caller, std::string_view bytes) {
  const auto hello = decodeHostHello(bytes);
  if (!hello.isOk()) {
    return reject(caller, hello.status());
  }
  if (!answers_.isWelcome(hello->token)) {
    return reject(caller, {StatusCode::kMismatch,
                           "the token is wrong (another job, a stale store, or another SHARDWIRE_JOB_TOKEN)"});
  }
  const auto welcome = answers_.welcome();
  if (!welcome.isOk()) {
    return reject(caller, welcome.status());
  }
  if (const Status sent = sendNow(caller.socket, welcome->bytes, welcome->fds); !sent.isOk()) {
    logDebug("pid {} could not be answered: {}", caller.peer.pid, sent.message());
    return refuse(caller, sent);  // kTimeout: the caller dials again
  }
  caller.isGuest = true;
  caller.process = hello->process;
  ++guests_[hello->process];
}

}  // namespace shardwire::internal
