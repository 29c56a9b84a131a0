// Makes the shared objects of this process: the arena for the groups' inboxes, with the process's page, the liveness
// mark, and the shared heap. The fabric's thread holds the mark, gives these objects to processes that present the
// right token (welcome()), and makes links to other processes (ShmDialer). A link is kept as long as a connection uses
// it, and found by the name of the other process's socket. Memory of an ended group is given back when no peer can
// write there any more, which is checked again when a peer's process hangs up.
#include "backend/transport/shm/shm_fabric.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "backend/transport/shm/cross_memory.h"

namespace shardwire::internal {
namespace {

constexpr Duration kBetweenDials = std::chrono::milliseconds(1);

}  // namespace

ShmFabric::ShmFabric(Fabric& fabric, ShmArena arena, Mapping page, OwnLiveness liveness, std::uint64_t probeSecret)
    : fabric_(fabric),
      arena_(std::move(arena)),
      page_(std::move(page)),
      liveness_(std::move(liveness)),
      heap_(SharedHeap::instance()),
      probe_(kProbeBytes),
      probeSecret_(probeSecret),
      dialer_(fabric.address().process) {
  fillProbe(probe_, probeSecret);
  fabric.progressBell().moveTo(this->page().bell);
}

Result<std::unique_ptr<FabricPart>> ShmFabric::create(Fabric& fabric) {
  auto arena = ShmArena::create();
  SW_RETURN_IF_ERROR(arena.status());
  const auto probeSecret = makeRandomId();
  SW_RETURN_IF_ERROR(probeSecret.status());
  auto page = Mapping::shared(arena->fd(), 0, kShmPage, Access::kReadWrite, "the page of this process");
  SW_RETURN_IF_ERROR(page.status());
  (new (page->bytes()) ShmProcessPage{})->magic = kShmPageMagic;
  auto liveness = OwnLiveness::create();
  SW_RETURN_IF_ERROR(liveness.status());
  return std::unique_ptr<FabricPart>(
      new ShmFabric(fabric, std::move(*arena), std::move(*page), std::move(*liveness), probeSecret->words[0]));
}

Result<std::shared_ptr<ShmFabric>> ShmFabric::instance() {
  auto fabric = Fabric::instance();
  SW_RETURN_IF_ERROR(fabric.status());
  const auto part = (*fabric)->part([&] { return create(**fabric); });
  SW_RETURN_IF_ERROR(part.status());
  return std::shared_ptr<ShmFabric>(*fabric, static_cast<ShmFabric*>(*part));
}

// ---- on the fabric's thread

bool ShmFabric::appendSockets(std::vector<pollfd>* entries) {
  dialer_.appendSockets(*entries);
  return dialer_.isPressed();
}

void ShmFabric::serve() {
  dialer_.serve(
      [this](const ProcessAddress& to, const std::shared_ptr<const ShmLink>& link) { return keep(to, link); });
}

HostWelcome ShmFabric::welcome() {
  const std::uint64_t heapBytes = heap_.isOk() ? (*heap_)->reservedBytes() : 0;
  HostWelcome welcome;
  welcome.bytes = encodeShmWelcome(
      {address().process, arena_.bytes(), heapBytes, reinterpret_cast<std::uint64_t>(probe_.data()), probeSecret_});
  welcome.fds = {arena_.fd(), liveness_.fd()};
  if (heapBytes > 0) {
    welcome.fds.push_back((*heap_)->fd());
  }
  return welcome;
}

// ---- links to other processes

std::shared_ptr<const ShmLink> ShmFabric::knownLink(const ProcessAddress& to) {
  const MutexLock lock(mutex_);
  std::erase_if(links_, [](const auto& each) { return each.second.expired(); });
  const auto found = links_.find(to.socketName);
  auto link = found == links_.end() ? nullptr : found->second.lock();
  return link != nullptr && !link->isHungUp() ? link : nullptr;
}

// Returns the link to use from now on, perhaps another link made at the same time.
std::shared_ptr<const ShmLink> ShmFabric::keep(const ProcessAddress& to, const std::shared_ptr<const ShmLink>& made) {
  const MutexLock lock(mutex_);
  std::weak_ptr<const ShmLink>& place = links_[to.socketName];
  if (auto other = place.lock(); other != nullptr && !other->isHungUp()) {
    return other;
  }
  place = made;
  return made;
}

std::shared_ptr<ShmLinkRequest> ShmFabric::linkSoon(const ProcessAddress& to, std::string_view jobToken,
                                                    std::function<void()> onDone) {
  auto request = std::make_shared<ShmLinkRequest>(to, std::string(jobToken), std::move(onDone));
  if (auto link = knownLink(to); link != nullptr) {
    request->settle(std::move(link));
    return request;
  }
  dialer_.add(request);
  fabric_.wake();
  return request;
}

Result<std::shared_ptr<const ShmLink>> ShmFabric::linkTo(const ProcessAddress& to, std::string_view jobToken,
                                                         const WaitLimit& limit) {
  if (auto link = knownLink(to); link != nullptr) {
    return link;
  }
  auto made = ShmLink::dial(to, jobToken, address().process, limit);
  // The other process rejects a connection too slow to send the hello while too many dial, and a connection whose
  // answer finds too many descriptors of the user under way.
  while (made.status().code() == StatusCode::kTimeout && !limit.isOver()) {
    std::this_thread::sleep_for(kBetweenDials);
    made = ShmLink::dial(to, jobToken, address().process, limit);
  }
  SW_RETURN_IF_ERROR(made.status());
  return keep(to, *made);
}

// ---- memory of groups that have ended

void ShmFabric::keepUntilFree(Remains remains) {
  {
    const MutexLock lock(mutex_);
    remains_.push_back(std::move(remains));
  }
  clearRemains();
}

// Not under the lock: isFree() asks the listener of the process. A call that comes meanwhile finds nothing to look at,
// so this call looks again.
void ShmFabric::clearRemains() {
  std::uint64_t seen = 0;
  {
    const MutexLock lock(mutex_);
    ++numLooks_;
  }
  while (true) {
    std::vector<Remains> all;
    {
      const MutexLock lock(mutex_);
      if (seen == numLooks_) {
        return;
      }
      seen = numLooks_;
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
}

std::size_t ShmFabric::numRemains() {
  const MutexLock lock(mutex_);
  return remains_.size();
}

}  // namespace shardwire::internal
