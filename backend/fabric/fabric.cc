// One thread serves all requests that must not wait for the groups' own threads: the thread answers other processes of
// the host at the Unix socket, accepts ranks that dial for links, calls the watches with ready descriptors, and goes on
// with the work of the transport that shares memory (FabricPart). The thread sleeps in poll(2) until one of these is
// readable, or until wake(). No function called by the thread waits, so a process that does not answer delays no other
// process. The thread runs from the first group of several ranks until the fabric's end. The Unix socket and the part
// are made when a group first needs them, and wake() makes the thread watch them from then on.
#include "backend/fabric/fabric.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/fabric/listening_ports.h"
#include "backend/fabric/proof.h"

namespace shardwire::internal {
namespace {

// The interval between checks of connections with a limited time to prove themselves.
constexpr int kPressedMs = 100;
// The pause requested by a part.
constexpr int kPartMs = 1;

struct KnownFabric {
  Mutex mutex;
  std::weak_ptr<Fabric> fabric SW_GUARDED_BY(mutex);
};

}  // namespace

Fabric::Fabric(ProcessAddress address, std::string secret, std::shared_ptr<FdWatches> watches, Fd wakeFd)
    : address_(std::move(address)),
      secret_(std::move(secret)),
      watches_(std::move(watches)),
      wakeFd_(std::move(wakeFd)) {}

Result<std::shared_ptr<Fabric>> Fabric::instance() {
  KnownFabric& one = PerProcess<KnownFabric>::get();
  const MutexLock lock(one.mutex);
  if (auto there = one.fabric.lock(); there != nullptr) {
    return there;
  }
  const auto process = processId();
  const auto name = makeRandomId();
  const auto token = makeRandomId();
  const auto secret = makeChallenge();
  for (const Status& status : {process.status(), name.status(), token.status(), secret.status()}) {
    SW_RETURN_IF_ERROR(status);
  }
  auto watches = FdWatches::create();
  SW_RETURN_IF_ERROR(watches.status());
  Fd wakeFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeFd.isOpen()) {
    return systemError("making an eventfd", errno);
  }
  std::shared_ptr<Fabric> made(new Fabric({*process, "shardwire-" + toString(*name), *token},
                                          std::string(asText(*secret)), std::move(*watches), std::move(wakeFd)));
  one.fabric = made;
  return made;
}

Fabric::~Fabric() {
  const MutexLock lock(threadMutex_);
  if (!owner_.isHere()) {  // a child of fork() does not have this thread
    static_cast<void>(new std::thread(std::move(thread_)));
    return;
  }
  if (thread_.joinable()) {
    mustStop_.store(true, std::memory_order_seq_cst);
    wake();
    thread_.join();
  }
}

void Fabric::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wakeFd_.get(), &one, sizeof one);
}

Status Fabric::start() {
  const MutexLock lock(threadMutex_);
  if (thread_.joinable()) {
    return Status::ok();
  }
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    return threadError("starting the thread that serves this process's groups", error);
  }
  return Status::ok();
}

// ---- the Unix socket

Status Fabric::listen(const std::string& jobToken) {
  SW_RETURN_IF_ERROR(start());
  {
    const MutexLock lock(tokensMutex_);
    jobTokens_.insert(jobToken);
  }
  const MutexLock lock(listenerMutex_);
  if (listener_.has_value()) {
    return Status::ok();
  }
  HostAnswers answers;
  answers.isWelcome = [this](const RandomId& token) { return isWelcome(token); };
  // Ranks of a job with a token need no other secret.
  answers.maySeeSecret = [this](const RandomId& token) {
    return token == makeHostToken(address_.token, "") && isWelcome(token);
  };
  answers.welcome = [this] {
    FabricPart* const part = madePart();
    return part == nullptr ? Result<HostWelcome>(Status{StatusCode::kUnsupported, "it shares no memory"})
                           : part->welcome();
  };
  answers.secret = secret_;
  auto listener = HostListener::create(address_.socketName, std::move(answers));
  SW_RETURN_IF_ERROR(listener.status());
  listener_.emplace(std::move(*listener));
  wake();
  return Status::ok();
}

bool Fabric::isWelcome(const RandomId& token) {
  const MutexLock lock(tokensMutex_);
  bool knows = false;
  for (const std::string& jobToken : jobTokens_) {
    const RandomId wanted = makeHostToken(address_.token, jobToken);
    // In constant time, so that a token cannot be guessed word by word.
    knows |= ((wanted.words[0] ^ token.words[0]) | (wanted.words[1] ^ token.words[1])) == 0;
  }
  return knows;
}

bool Fabric::isGuest(const RandomId& process) {
  const MutexLock lock(listenerMutex_);
  return listener_.has_value() && listener_->isGuest(process);
}

int Fabric::listenerSocket() {
  const MutexLock lock(listenerMutex_);
  return listener_.has_value() ? listener_->socket().get() : -1;
}

// ---- the part of a transport

Result<FabricPart*> Fabric::part(const std::function<Result<std::unique_ptr<FabricPart>>()>& make) {
  const MutexLock lock(partMutex_);
  if (part_ == nullptr) {
    auto made = make();
    SW_RETURN_IF_ERROR(made.status());
    part_ = std::move(*made);
    wake();
  }
  return part_.get();
}

FabricPart* Fabric::madePart() {
  if (begun_ != nullptr) {
    return begun_;
  }
  const MutexLock lock(partMutex_);
  return part_.get();
}

// Without a lock: shm's part locks its liveness for as long as the thread runs.
FabricPart* Fabric::begunPart() {
  if (begun_ == nullptr) {
    begun_ = madePart();
    if (begun_ != nullptr) {
      begun_->begin();
    }
  }
  return begun_;
}

// ---- the thread

void Fabric::serve() {
  bool isPressed = false;
  std::vector<pollfd> fds;
  while (true) {
    fds.assign({pollfd{wakeFd_.get(), POLLIN, 0}, pollfd{watches_->socket().get(), POLLIN, 0},
                pollfd{listenerSocket(), POLLIN, 0}});
    const bool mustGoOn = begun_ != nullptr && begun_->appendSockets(&fds);
    const int ready = ::poll(fds.data(), fds.size(), mustGoOn ? kPartMs : isPressed ? kPressedMs : -1);
    if (ready > 0 && fds[1].revents != 0) {
      watches_->serve();
    }
    if (ready > 0 && fds[0].revents != 0) {
      std::uint64_t count = 0;
      (void)!::read(wakeFd_.get(), &count, sizeof count);
      if (mustStop_.load(std::memory_order_seq_cst)) {
        if (begun_ != nullptr) {
          begun_->end();
        }
        return;
      }
    }
    // Looked up behind the wake-ups: these may announce both a new part and the part's first request.
    FabricPart* const part = begunPart();
    bool isAnyGone = false;
    if (isPressed || (ready > 0 && fds[2].revents != 0)) {
      const MutexLock lock(listenerMutex_);
      isAnyGone = listener_.has_value() && listener_->serve();
      isPressed = listener_.has_value() && listener_->isPressed();
    }
    isPressed |= serveLinks();
    if (part != nullptr) {
      part->serve();
      if (isAnyGone) {
        part->guestLeft();
      }
    }
  }
}

// ---- interfaces and listeners for links

Result<std::vector<InterfaceAddress>> Fabric::interfaces(std::uint64_t networkNamespace) {
  const MutexLock lock(interfacesMutex_);
  if (const auto found = interfaces_.find(networkNamespace); found != interfaces_.end()) {
    return found->second;
  }
  auto all = listInterfaces();
  SW_RETURN_IF_ERROR(all.status());
  interfaces_[networkNamespace] = *all;
  return all;
}

Result<std::shared_ptr<LinkListener>> Fabric::linkListener(std::uint64_t networkNamespace, const Options& options) {
  const std::string key = fmt::format("{} {}", networkNamespace, options.socketIfname);
  const MutexLock lock(linkListenersMutex_);
  std::erase_if(linkListeners_, [](const auto& each) { return each.second.expired(); });
  if (const auto found = linkListeners_.find(key); found != linkListeners_.end()) {
    if (auto there = found->second.lock(); there != nullptr) {
      return there;
    }
  }
  const auto all = interfaces(networkNamespace);
  SW_RETURN_IF_ERROR(all.status());
  auto ports = listenOnInterfaces(*all, options);
  SW_RETURN_IF_ERROR(ports.status());
  auto made = LinkListener::create(std::move(*ports), watches_);
  SW_RETURN_IF_ERROR(made.status());
  linkListeners_[key] = *made;
  return made;
}

std::vector<std::shared_ptr<LinkListener>> Fabric::linkListeners() {
  std::vector<std::shared_ptr<LinkListener>> all;
  const MutexLock lock(linkListenersMutex_);
  for (const auto& [key, each] : linkListeners_) {
    if (auto listener = each.lock(); listener != nullptr) {
      all.push_back(std::move(listener));
    }
  }
  return all;
}

// Not under the lock: this thread may hold the last reference to a listener. True: some connections have only a limited
// time.
bool Fabric::serveLinks() {
  bool isPressed = false;
  for (const auto& listener : linkListeners()) {
    if (listener->isPressed()) {
      listener->serve();
      isPressed |= listener->isPressed();
    }
  }
  return isPressed;
}

}  // namespace shardwire::internal
