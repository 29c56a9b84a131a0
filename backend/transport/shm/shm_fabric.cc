#include "backend/transport/shm/shm_fabric.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "backend/base/futex.h"
#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/fabric/longest_sleep.h"
#include "backend/fabric/proof.h"
#include "backend/transport/shm/cross_memory.h"

namespace shardwire::internal {
namespace {

// How often those are looked at who have only so long to speak.
constexpr int kPressedMs = 100;
// Between two tries at a door that had no room.
constexpr int kFullDoorMs = 1;

struct Known {
  Mutex mutex;
  std::weak_ptr<ShmFabric> fabric SW_GUARDED_BY(mutex);
};
Known& known() {
  static PerProcess<Known> instance;
  return instance.get();
}

}  // namespace

ShmFabric::ShmFabric(ShmArena arena, Mapping page, OwnLiveness liveness, ShmDoor door, std::string secret, Result<SharedHeap*> heap,
                     std::shared_ptr<FdWatches> watches)
    : arena_(std::move(arena)),
      page_(std::move(page)),
      liveness_(std::move(liveness)),
      bell_(this->page()),
      door_(std::move(door)),
      secret_(std::move(secret)),
      heap_(std::move(heap)),
      dialer_(door_.process),
      watches_(std::move(watches)) {}

Result<std::shared_ptr<ShmFabric>> ShmFabric::instance() {
  Known& one = known();
  const MutexLock lock(one.mutex);
  if (auto there = one.fabric.lock(); there != nullptr) {
    return there;
  }
  auto arena = ShmArena::create();
  SW_RETURN_IF_ERROR(arena.status());
  const auto process = processId();
  const auto name = makeRandomId();
  const auto token = makeRandomId();
  const auto probeSecret = makeRandomId();
  const auto secret = makeChallenge();
  for (const Status& status : {process.status(), name.status(), token.status(), probeSecret.status(), secret.status()}) {
    SW_RETURN_IF_ERROR(status);
  }
  auto page = Mapping::shared(arena->fd(), 0, kShmPage, Access::kReadWrite, "the page of this process");
  SW_RETURN_IF_ERROR(page.status());
  (new (page->bytes()) ShmProcessPage{})->magic = kShmPageMagic;
  auto liveness = OwnLiveness::create();
  SW_RETURN_IF_ERROR(liveness.status());
  auto watches = FdWatches::create();
  SW_RETURN_IF_ERROR(watches.status());
  std::shared_ptr<ShmFabric> made(new ShmFabric(std::move(*arena), std::move(*page), std::move(*liveness),
                                                {*process, "shardwire-" + toString(*name), *token}, std::string(asText(*secret)),
                                                SharedHeap::instance(), std::move(*watches)));
  made->layOutProbe(probeSecret->words[0]);
  one.fabric = made;
  return made;
}

void ShmFabric::layOutProbe(std::uint64_t secret) {
  probeSecret_ = secret;
  probe_.resize(kProbeBytes);
  fillProbe(probe_, secret);
}

ShmFabric::~ShmFabric() {
  if (!owner_.isHere()) {  // a child of fork() has no such thread
    static_cast<void>(new std::thread(std::move(thread_)));
    return;
  }
  if (thread_.joinable()) {
    mustStop_.store(true, std::memory_order_seq_cst);
    wake();
    thread_.join();
  }
}

void ShmFabric::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wakeFd_.get(), &one, sizeof one);
}

// ---- the bell

std::uint32_t ShmFabric::Bell::ticket() const {
  return page_.bell.load(std::memory_order_seq_cst);
}

void ShmFabric::Bell::sleep(std::uint32_t ticket, Deadline until) {
  const Deadline now = Clock::now();
  if (until <= now) {
    return;
  }
  // seq_cst with the load in ring(): either it sees this sleeper, or the wait below sees its ring.
  numSleeping_.fetch_add(1, std::memory_order_seq_cst);
  futexWait(page_.bell, ticket, std::min<Duration>(until - now, longestSleep()));
  numSleeping_.fetch_sub(1, std::memory_order_relaxed);
}

void ShmFabric::Bell::ring() {
  page_.bell.fetch_add(1, std::memory_order_seq_cst);
  if (numSleeping_.load(std::memory_order_seq_cst) > 0) {
    futexWakeAll(page_.bell);
  }
}

// ---- answering

Status ShmFabric::welcome(const std::string& jobToken) {
  {
    const MutexLock lock(mutex_);
    jobTokens_.insert(jobToken);
  }
  const MutexLock lock(listenerMutex_);
  return listener_.has_value() ? Status::ok() : open();
}

bool ShmFabric::isWelcome(const RandomId& token) {
  const MutexLock lock(mutex_);
  bool knows = false;
  for (const std::string& jobToken : jobTokens_) {
    const RandomId wanted = makeHostToken(door_.token, jobToken);
    // In constant time, so that a token cannot be guessed word by word.
    knows |= ((wanted.words[0] ^ token.words[0]) | (wanted.words[1] ^ token.words[1])) == 0;
  }
  return knows;
}

Status ShmFabric::open() {
  ShmAnswers answers;
  answers.isWelcome = [this](const RandomId& token) { return isWelcome(token); };
  // Ranks of a job that has a token of its own need no other secret.
  answers.maySeeSecret = [this](const RandomId& token) { return token == makeHostToken(door_.token, "") && isWelcome(token); };
  const std::uint64_t heapBytes = heap_.isOk() ? (*heap_)->reservedBytes() : 0;
  answers.welcome = {door_.process, arena_.bytes(), heapBytes, reinterpret_cast<std::uint64_t>(probe_.data()), probeSecret_};
  answers.fds = {arena_.fd(), liveness_.fd()};
  if (heapBytes > 0) {
    answers.fds.push_back((*heap_)->fd());
  }
  answers.secret = secret_;
  auto listener = ShmListener::create(door_.socketName, std::move(answers));
  SW_RETURN_IF_ERROR(listener.status());
  wakeFd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeFd_.isOpen()) {
    return systemError("making an eventfd", errno);
  }
  listener_.emplace(std::move(*listener));
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    listener_.reset();  // or the next group would take it for served
    return systemError("starting the thread that answers at this process's door", error.code().value());
  }
  return Status::ok();
}

void ShmFabric::serve() {
  liveness().hold();
  bool isPressed = false;
  std::vector<pollfd> fds;
  {
    const MutexLock lock(listenerMutex_);
    fds = {pollfd{wakeFd_.get(), POLLIN, 0}, pollfd{listener_->socket().get(), POLLIN, 0}, pollfd{watches_->socket().get(), POLLIN, 0}};
  }
  const std::size_t numOwn = fds.size();
  while (true) {
    fds.resize(numOwn);
    dialer_.appendSockets(fds);
    const int ready = ::poll(fds.data(), fds.size(), dialer_.isPressed() ? kFullDoorMs : isPressed ? kPressedMs : -1);
    if (ready > 0 && fds[2].revents != 0) {
      watches_->serve();
    }
    if (ready > 0 && fds[0].revents != 0) {
      std::uint64_t count = 0;
      (void)!::read(wakeFd_.get(), &count, sizeof count);
      if (mustStop_.load(std::memory_order_seq_cst)) {
        return liveness().release();
      }
    }
    bool isAnyGone = false;
    if (isPressed || (ready > 0 && fds[1].revents != 0)) {
      const MutexLock lock(listenerMutex_);
      isAnyGone = listener_->serve();
      isPressed = listener_->isPressed();
    }
    isPressed |= serveLinks();
    dialer_.serve([this](const ShmDoor& door, const std::shared_ptr<const ShmLink>& link) { return keep(door, link); });
    if (isAnyGone) {
      clearRemains();
    }
  }
}

Result<std::vector<InterfaceAddress>> ShmFabric::interfaces(std::uint64_t networkNamespace) {
  const MutexLock lock(interfacesMutex_);
  if (const auto found = interfaces_.find(networkNamespace); found != interfaces_.end()) {
    return found->second;
  }
  auto all = listInterfaces();
  SW_RETURN_IF_ERROR(all.status());
  interfaces_[networkNamespace] = *all;
  return all;
}

Result<std::shared_ptr<LinkListener>> ShmFabric::linkListener(std::uint64_t networkNamespace, const Options& options) {
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

std::vector<std::shared_ptr<LinkListener>> ShmFabric::linkListeners() {
  std::vector<std::shared_ptr<LinkListener>> all;
  const MutexLock lock(linkListenersMutex_);
  for (const auto& [key, each] : linkListeners_) {
    if (auto listener = each.lock(); listener != nullptr) {
      all.push_back(std::move(listener));
    }
  }
  return all;
}

// Not under the lock: this thread may be the last to hold one. True: some are to be looked at after a while, although nothing is readable.
bool ShmFabric::serveLinks() {
  bool isPressed = false;
  for (const auto& listener : linkListeners()) {
    if (listener->isPressed()) {
      listener->serve();
      isPressed |= listener->isPressed();
    }
  }
  return isPressed;
}

bool ShmFabric::isLinkedHere(const RandomId& process) {
  const MutexLock lock(listenerMutex_);
  return listener_.has_value() && listener_->isGuest(process);
}

// ---- asking

std::shared_ptr<const ShmLink> ShmFabric::knownLink(const ShmDoor& door) {
  const MutexLock lock(mutex_);
  std::erase_if(links_, [](const auto& each) { return each.second.expired(); });
  const auto found = links_.find(door.socketName);
  auto link = found == links_.end() ? nullptr : found->second.lock();
  return link != nullptr && !link->isHungUp() ? link : nullptr;
}

// The one that is used from now on: another that was made at the same time, perhaps.
std::shared_ptr<const ShmLink> ShmFabric::keep(const ShmDoor& door, const std::shared_ptr<const ShmLink>& made) {
  const MutexLock lock(mutex_);
  std::weak_ptr<const ShmLink>& place = links_[door.socketName];
  if (auto other = place.lock(); other != nullptr && !other->isHungUp()) {
    return other;
  }
  place = made;
  return made;
}

std::shared_ptr<ShmLinkRequest> ShmFabric::linkSoon(const ShmDoor& door, std::string_view jobToken, std::function<void()> onDone) {
  auto request = std::make_shared<ShmLinkRequest>(door, std::string(jobToken), std::move(onDone));
  if (auto link = knownLink(door); link != nullptr) {
    request->settle(std::move(link));
    return request;
  }
  dialer_.add(request);
  wake();
  return request;
}

Result<std::shared_ptr<const ShmLink>> ShmFabric::linkTo(const ShmDoor& door, std::string_view jobToken, const WaitLimit& limit) {
  if (auto link = knownLink(door); link != nullptr) {
    return link;
  }
  auto made = ShmLink::dial(door, jobToken, door_.process, limit);
  while (made.status().code() == StatusCode::kTimeout && !limit.isOver()) {
    made = ShmLink::dial(door, jobToken, door_.process,
                         limit);  // it took this process for one of too many strangers, since it was slow to speak
  }
  SW_RETURN_IF_ERROR(made.status());
  return keep(door, *made);
}

// ---- what groups left

void ShmFabric::bury(Remains remains) {
  {
    const MutexLock lock(mutex_);
    remains_.push_back(std::move(remains));
  }
  clearRemains();
}

// isFree may ask for the listener: not under the lock.
void ShmFabric::clearRemains() {
  std::vector<Remains> all;
  {
    const MutexLock lock(mutex_);
    all.swap(remains_);
  }
  std::vector<Remains> kept;
  for (Remains& each : all) {
    if (each.isFree(*this)) {
      arena_.giveBack(each.offset, each.bytes);
    } else {
      kept.push_back(std::move(each));
    }
  }
  const MutexLock lock(mutex_);
  std::move(kept.begin(), kept.end(), std::back_inserter(remains_));
}

std::size_t ShmFabric::numRemains() {
  const MutexLock lock(mutex_);
  return remains_.size();
}

}  // namespace shardwire::internal
