// open() opens the ports, and makes one completion queue and channel for each device and one epoll set for all
// descriptors. poll() delivers completions to the connections by slot: first the early completions of new connections,
// then the completion queues; then it advances the active connections. prepareToSleep() arms the completion channels,
// so that the epoll set becomes readable. lookAround() reads the epoll set: links of peers, and events of devices.
#include "backend/transport/rdma/rdma_fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "backend/base/log.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(2);
// The most completions that one peer can cause: when all posted requests of the peer's queue pairs are flushed.
constexpr int kCompletionsPerPeer = 2048;
constexpr int kBatch = 32;
// Completions that one poll() takes from a queue before the engine handles the arrived frames.
constexpr int kMostPerPoll = 256;

// Kinds of descriptors in epoll's tags.
enum class Ready : std::uint64_t { kChannel = 0, kAsync = 1, kLink = 2 };
std::uint64_t tagOf(Ready ready, std::uint64_t number) {
  return static_cast<std::uint64_t>(ready) << 32 | number;
}

Status setNonBlocking(int fd, const char* what) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? Status::ok() : systemError(what, errno);
}

}  // namespace

Result<std::shared_ptr<RdmaFabric>> RdmaFabric::create(const VerbsApi& api, const Options& options, int worldSize,
                                                       const StorageWatch* watch) {
  std::shared_ptr<RdmaFabric> fabric(new RdmaFabric(api));
  SW_RETURN_IF_ERROR(fabric->open(options, worldSize, watch));
  return fabric;
}

Status RdmaFabric::watchFd(int fd, std::uint64_t tag, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? Status::ok() : systemError("epoll_ctl", errno);
}

Status RdmaFabric::open(const Options& options, int worldSize, const StorageWatch* watch) {
  auto ports = openRdmaPorts(api_, options);
  SW_RETURN_IF_ERROR(ports.status());
  ports_ = std::move(*ports);
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.isOpen()) {
    return systemError("epoll_create1", errno);
  }
  for (std::size_t i = 0; i < ports_.devices.size(); ++i) {
    const RdmaDevice& device = *ports_.devices[i];
    CompletionQueue& queue = queues_.emplace_back();
    queue.channel = api_.createCompChannel(device.context());
    if (queue.channel == nullptr) {
      return systemError(fmt::format("{}: ibv_create_comp_channel", device.name()), errno);
    }
    const std::int64_t wanted = std::int64_t{kCompletionsPerPeer} * std::max(worldSize - 1, 1);
    const int numEntries = static_cast<int>(std::min<std::int64_t>(wanted, device.attributes().max_cqe));
    queue.cq = api_.createCq(device.context(), numEntries, nullptr, queue.channel, 0);
    if (queue.cq == nullptr) {
      const char* advice = errno == ENOMEM ? " (is the memlock limit too low? ulimit -l unlimited)" : "";
      return systemError(fmt::format("{}: ibv_create_cq of {} entries{}", device.name(), numEntries, advice), errno);
    }
    SW_RETURN_IF_ERROR(setNonBlocking(queue.channel->fd, "the completion channel"));
    SW_RETURN_IF_ERROR(setNonBlocking(device.context()->async_fd, "the device's event channel"));
    SW_RETURN_IF_ERROR(watchFd(queue.channel->fd, tagOf(Ready::kChannel, i), EPOLLIN));
    // Edge-triggered: an unread event must not keep the epoll set readable for ever.
    SW_RETURN_IF_ERROR(watchFd(device.context()->async_fd, tagOf(Ready::kAsync, i), EPOLLIN | EPOLLET));
  }
  registrations_ = std::make_unique<RegistrationCache>(api_, ports_.devices, watch);
  return Status::ok();
}

RdmaFabric::~RdmaFabric() {
  registrations_.reset();
  for (CompletionQueue& queue : queues_) {
    if (queue.cq != nullptr) {
      drainEvents(&queue);
      api_.destroyCq(queue.cq);
    }
    if (queue.channel != nullptr) {
      api_.destroyCompChannel(queue.channel);
    }
  }
}

std::uint32_t RdmaFabric::reserveSlot() {
  members_.emplace_back().isReserved = true;
  return static_cast<std::uint32_t>(members_.size() - 1);
}

void RdmaFabric::take(std::uint32_t slot, FabricMember* member, int linkSocket) {
  members_[slot].member = member;
  if (!members_[slot].early.empty()) {
    withEarly_.push_back(slot);
  }
  if (const Status watched = watchFd(linkSocket, tagOf(Ready::kLink, slot), EPOLLIN | EPOLLRDHUP | EPOLLET);
      !watched.isOk()) {
    logWarn("the end of a peer's process will be noticed late: {}", watched.message());
  }
}

void RdmaFabric::leave(std::uint32_t slot, int linkSocket) {
  members_[slot] = {};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, linkSocket, nullptr);
}

void RdmaFabric::activate(std::uint32_t slot) {
  if (members_[slot].member != nullptr && !members_[slot].isActive) {
    members_[slot].isActive = true;
    active_.push_back(slot);
  }
}

bool RdmaFabric::pollQueue(CompletionQueue* queue) {
  std::array<ibv_wc, kBatch> completions;
  int taken = 0;
  while (taken < kMostPerPoll) {
    const int number = api_.pollCq(queue->cq, kBatch, completions.data());
    if (number <= 0) {
      break;
    }
    for (int i = 0; i < number; ++i) {
      const ibv_wc& completion = completions[static_cast<std::size_t>(i)];
      const WorkId id = WorkId::decode(completion.wr_id);
      if (id.slot >= members_.size()) {
        continue;
      }
      if (Member& member = members_[id.slot]; member.member != nullptr) {
        member.member->onCompletion(id, completion);
      } else if (member.isReserved) {
        member.early.push_back(completion);
      }
    }
    taken += number;
    if (number < kBatch) {
      break;
    }
  }
  // The channel's event for these completions stays unread until the next prepareToSleep(). Reading the event would
  // disarm the channel: a thread that armed, polled, did not find its own completion and went to sleep would miss the
  // next completion.
  return taken > 0;
}

void RdmaFabric::advanceActive() {
  advancing_.swap(active_);
  active_.clear();
  for (const std::uint32_t slot : advancing_) {
    members_[slot].isActive = false;
    if (members_[slot].member != nullptr) {
      members_[slot].member->advance();
    }
  }
}

// Called before the completion queues are polled, so that early completions come first.
bool RdmaFabric::deliverEarly() {
  const std::vector<std::uint32_t> slots = std::exchange(withEarly_, {});
  for (const std::uint32_t slot : slots) {
    for (const ibv_wc& completion : std::exchange(members_[slot].early, {})) {
      if (members_[slot].member != nullptr) {
        members_[slot].member->onCompletion(WorkId::decode(completion.wr_id), completion);
      }
    }
  }
  return !slots.empty();
}

bool RdmaFabric::poll() {
  bool arrived = !withEarly_.empty() && deliverEarly();
  for (CompletionQueue& queue : queues_) {
    arrived = pollQueue(&queue) || arrived;
  }
  if (!active_.empty()) {
    advanceActive();
  }
  return arrived;
}

void RdmaFabric::drainEvents(CompletionQueue* queue) {
  ibv_cq* cq = nullptr;
  void* cqContext = nullptr;
  unsigned numEvents = 0;
  while (api_.getCqEvent(queue->channel, &cq, &cqContext) == 0) {
    ++numEvents;
  }
  if (numEvents > 0) {
    api_.ackCqEvents(queue->cq, numEvents);
    queue->isArmed = false;
  }
}

void RdmaFabric::prepareToSleep() {
  for (CompletionQueue& queue : queues_) {
    if (queue.isArmed) {
      drainEvents(&queue);  // otherwise the event of an earlier poll()'s completions keeps the descriptor readable
    }
    if (!queue.isArmed) {
      queue.isArmed = api_.reqNotifyCq(queue.cq, 0) == 0;
    }
  }
  lookAround(Clock::now());
}

void RdmaFabric::lookAround(Deadline now) {
  if (now < nextLook_) {
    return;
  }
  nextLook_ = now + kLookEvery;
  std::array<epoll_event, 16> events;
  int number = 0;
  do {
    number = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    bool sawEdge = false;
    for (int i = 0; i < number; ++i) {
      const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
      const auto index = static_cast<std::uint32_t>(tag);
      switch (static_cast<Ready>(tag >> 32)) {
        case Ready::kChannel:
          break;  // poll() handles completions
        case Ready::kAsync:
          readAsyncEvents(index);
          sawEdge = true;
          break;
        case Ready::kLink:
          if (members_[index].member != nullptr) {
            members_[index].member->onLinkReadable();
          }
          sawEdge = true;
          break;
      }
    }
    if (!sawEdge) {
      break;  // only channels, which stay readable: another call would return the same events
    }
  } while (number == static_cast<int>(events.size()));
}

void RdmaFabric::readAsyncEvents(std::size_t device) {
  ibv_async_event event{};
  while (api_.getAsyncEvent(ports_.devices[device]->context(), &event) == 0) {
    const bool isPort = event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE;
    const bool isFatal = event.event_type == IBV_EVENT_DEVICE_FATAL || event.event_type == IBV_EVENT_CQ_ERR;
    const bool isTrouble = isFatal || event.event_type == IBV_EVENT_PORT_ERR;
    const std::string what =
        fmt::format("{}{}: {}", ports_.devices[device]->name(),
                    isPort ? fmt::format(":{}", event.element.port_num) : "", api_.eventTypeStr(event.event_type));
    api_.ackAsyncEvent(&event);
    if (isTrouble) {
      logWarn("RDMA device {}", what);
      for (const Member& member : members_) {
        if (member.member != nullptr) {
          member.member->onDeviceTrouble(what, isFatal);
        }
      }
    } else {
      logDebug("RDMA device {}", what);
    }
  }
}

}  // namespace shardwire::internal
