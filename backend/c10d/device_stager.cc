// An operation passes through this file in this order. begin() records an event on the caller's streams and hands the
// operation to the thread. The thread polls the event until the event is over, waits for earlier operations over the
// same memory, then queues copies to the host, a few at a time and segment by segment. The run is notified of each copy
// that is over. The run reports segments after their last write, and the thread copies these segments back. When the
// last byte is on the device, the work is completed and its gates open. The thread never waits for a device: it polls
// events, and sleeps between two rounds.
#include "backend/c10d/device_stager.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

#include "backend/base/user_call.h"
#include "backend/c10d/cuda_driver.h"
#include "backend/c10d/throw_status.h"
#include "backend/memory/shared_heap.h"

namespace shardwire::internal {

namespace {

// Copies of one operation queued at once, in each direction: one runs, the next ones wait behind.
constexpr std::size_t kCopiesInFlight = 4;
// Pieces of pinned memory for operations too long for the pool: two in each direction.
constexpr std::size_t kSlots = 4;
// The thread queries events, since the guard of torch 1.13 cannot wait for one: without a pause until nothing has moved
// for kPolling, then every 20 us, and from 4 ms on every 200 us.
constexpr std::chrono::microseconds kPolling(60);
constexpr std::chrono::microseconds kShortNap(20);
constexpr std::chrono::microseconds kLongNap(200);
constexpr std::chrono::milliseconds kShortNaps(4);
// The longest wait of the group's end for a stuck device.
constexpr std::chrono::seconds kLongestStop(5);

template <typename Guard>
bool isCapturing(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return stream.device_type() == c10::DeviceType::CUDA && isCudaCapturing(stream);
  }
}

// True also where the memory cannot be compared: a storage may be freed under its tensor.
bool mayConflict(const StagedTensors& one, const StagedTensors& other) {
  try {
    return one.conflictsWith(other);
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace

DeviceStager::DeviceStager(std::size_t stagingBytes, std::function<void(const std::string&)> fail)
    : pool_(std::make_shared<PinnedPool>(stagingBytes)), fail_(std::move(fail)) {}

std::shared_ptr<DeviceStager> DeviceStager::create(std::size_t stagingBytes,
                                                   std::function<void(const std::string&)> fail) {
  // In a child of fork() the stager is never destroyed: the thread is the parent's.
  return {new DeviceStager(stagingBytes, std::move(fail)), [](DeviceStager* ended) {
            if (ended->owner_.isHere()) {
              delete ended;
            }
          }};
}

DeviceStager::~DeviceStager() {
  stop();
}

DeviceStager::Streams DeviceStager::streamsOf(const c10::Device& device) {
  const MutexLock lock(mutex_);
  const std::pair key(device.type(), device.index());
  auto found = streams_.find(key);
  if (found == streams_.end()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    found = streams_.emplace(key, Streams{guard.getStreamFromGlobalPool(device), guard.getStreamFromGlobalPool(device)})
                .first;
  }
  return found->second;
}

Status DeviceStager::checkDevice(const c10::Device& device) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    return {StatusCode::kUnsupported,
            fmt::format("this torch has no streams for devices of type {}", c10::DeviceTypeName(device.type(), true))};
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (isCapturing(guard, guard.getStream(device))) {
    return {StatusCode::kUnsupported,
            fmt::format("the current stream of {} is being captured into a graph, and a transfer that the CPU drives "
                        "cannot be part of one: run it before or after the graph",
                        device.str())};
  }
  try {
    streamsOf(device);
  } catch (const std::exception& error) {
    return {StatusCode::kUnsupported, fmt::format("{} has no streams to spare: {}", device.str(), error.what())};
  }
  return Status::ok();
}

std::shared_ptr<std::byte> DeviceStager::takeMemory(std::size_t bytes, bool* direct) {
  std::shared_ptr<std::byte> memory = pool_->take(bytes);
  *direct = memory != nullptr;
  if (memory == nullptr) {
    const Result<std::shared_ptr<void>> scratch = allocateScratch(bytes);
    if (!scratch.isOk()) {
      fail_(
          fmt::format("there is no memory for the host copy of a tensor on a device: {}", scratch.status().message()));
    }
    memory = {valueOrThrow(scratch), static_cast<std::byte*>(scratch->get())};
  }
  return memory;
}

std::shared_ptr<StagedWork> DeviceStager::begin(std::shared_ptr<StagedTensors> tensors, WorkPtr transport,
                                                bool hasHostTensors, std::shared_ptr<void> keepAlive) {
  try {
    return enqueue(std::move(tensors), std::move(transport), hasHostTensors, std::move(keepAlive));
  } catch (const std::exception& error) {
    // The operation is in flight already: peers would wait for bytes that no copy brings.
    fail_(fmt::format("the copies of an operation between a device and the host could not start: {}", error.what()));
    throw;
  }
}

std::shared_ptr<StagedWork> DeviceStager::enqueue(std::shared_ptr<StagedTensors> tensors, WorkPtr transport,
                                                  bool hasHostTensors, std::shared_ptr<void> keepAlive) {
  Operation operation;
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : tensors->devices()) {
    const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    operation.before.emplace_back(device.type()).record(current);
    streams.push_back(streamsOf(device).drain);
  }
  if (transport == nullptr) {
    tensors->drop();
  }
  auto work =
      std::make_shared<StagedWork>(tensors, transport, hasHostTensors, std::move(keepAlive), std::move(streams));
  operation.work = work;
  for (const StagedTensors::Twin& twin : tensors->twins()) {
    operation.drained.emplace_back(twin.segments.size());
  }
  bool refused = false;
  const std::weak_ptr<DeviceStager> weak = weak_from_this();
  const auto wake = [weak] {
    if (const auto self = weak.lock()) {
      self->kick();
    }
  };
  tensors->begin(wake);
  {
    const MutexLock lock(mutex_);
    refused = stopping_;
    if (!refused) {
      if (!thread_.joinable()) {
        thread_ = std::thread([self = shared_from_this()] { self->run(); });
        running_ = true;
      }
      arrived_.push_back(std::move(operation));
      recent_.push_back(work);
      kicked_ = true;
    }
  }
  if (refused) {
    work->complete({StatusCode::kAborted, "the process group was shut down on this rank"});
    return work;
  }
  if (transport != nullptr) {
    transport->onDone([wake](const Status&) { wake(); });
  }
  kick();
  return work;
}

void DeviceStager::kick() {
  const MutexLock lock(mutex_);
  kicked_ = true;
  changed_.notifyAll();
}

void DeviceStager::run() {
  ::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; by default each sleep of this thread takes 50 us more
  keepCudaCapturesOfOthers();
  const at::AutoDispatchBelowADInplaceOrView noGradients;
  Clock::time_point moved = Clock::now();
  for (;;) {
    {
      const MutexLock lock(mutex_);
      waitForNews(moved);
      if (kicked_) {
        moved = Clock::now();
      }
      kicked_ = false;
      takeArrived();
      std::erase_if(recent_, [](const auto& recent) {
        const auto work = recent.lock();
        return work == nullptr || work->isDone();
      });
      if (stopping_ && operations_.empty()) {
        break;
      }
    }
    if (stepAll()) {
      moved = Clock::now();
    } else {
      std::this_thread::yield();
    }
  }
  slots_.clear();
  const MutexLock lock(mutex_);
  running_ = false;
  changed_.notifyAll();
}

// Every change comes with a kick, except the end of an event and a slot that another operation gives back.
void DeviceStager::waitForNews(Clock::time_point moved) {
  if (!std::ranges::any_of(operations_, [](const Operation& operation) { return operation.awaitsEvents(); })) {
    while (!kicked_ && !stopping_) {
      changed_.wait(mutex_);
    }
    return;
  }
  const Clock::time_point now = Clock::now();
  if (now - moved < kPolling) {
    return;
  }
  const Deadline until = now + (now - moved < kShortNaps ? Duration(kShortNap) : Duration(kLongNap));
  while (!kicked_ && !stopping_ && Clock::now() < until) {
    changed_.waitUntil(mutex_, until);
  }
}

void DeviceStager::takeArrived() {
  while (!arrived_.empty()) {
    Operation& arrived = arrived_.front();
    for (const Operation& operation : operations_) {
      if (!operation.completed && mayConflict(operation.work->tensors(), arrived.work->tensors())) {
        arrived.earlier.push_back(operation.work);
      }
    }
    operations_.splice(operations_.end(), arrived_, arrived_.begin());
  }
}

bool DeviceStager::stepAll() {
  bool moved = false;
  for (auto it = operations_.begin(); it != operations_.end();) {
    Operation& operation = *it;
    try {
      moved |= step(operation);
    } catch (const std::exception& error) {
      const std::string reason = fmt::format("a copy between a device and the host failed: {}", error.what());
      if (operation.failure.isOk()) {
        operation.failure = Status(StatusCode::kInternal, reason);
        fail_(reason);
      } else {
        // A failed operation only queries its events, and this device answers no more.
        operation.loading.clear();
        operation.draining.clear();
      }
    }
    const WorkPtr& transport = operation.work->transport();
    if (operation.completed && operation.isIdle() && (transport == nullptr || transport->isDone())) {
      // On another thread, since the release of a tensor may need Python's lock.
      static_cast<void>(
          callbacks_.post([work = std::move(operation.work)] { work->release(); }));  // a failure is logged
      it = operations_.erase(it);
      moved = true;
    } else {
      ++it;
    }
  }
  return moved;
}

bool DeviceStager::step(Operation& operation) {
  operation.wantsSlot = false;
  const WorkPtr& transport = operation.work->transport();
  const bool isOver = transport != nullptr && transport->isDone();
  if (isOver && !operation.isEnding()) {
    operation.failure = transport->status();
  }
  const auto isReached = [](const c10::Event& event) { return event.query(); };
  if (!operation.isEnding() && !operation.before.empty()) {
    if (!std::all_of(operation.before.begin(), operation.before.end(), isReached)) {
      return false;
    }
    operation.before.clear();
  }
  if (!operation.isEnding() && !operation.earlier.empty()) {
    std::erase_if(operation.earlier, [](const auto& earlier) {
      const auto work = earlier.lock();
      return work == nullptr || work->isDone();
    });
    if (!operation.earlier.empty()) {
      return false;
    }
  }
  bool moved = stepLoads(operation);
  moved |= stepDrains(operation, isOver);
  // Parts of a refused operation may have been issued: these parts get their tensors. Looked at behind the copies,
  // since no kick comes after the last one.
  const bool isLoaded = operation.loadTwin == operation.drained.size() && operation.loading.empty();
  if (transport == nullptr && isLoaded && !operation.isEnding()) {
    operation.failure = Status(StatusCode::kAborted, "the operation was refused");
  }
  const bool isWhole = isOver && operation.drainTwin == operation.drained.size();
  if (!operation.completed && operation.isIdle() && (isWhole || !operation.failure.isOk())) {
    complete(operation, operation.failure);
    moved = true;
  }
  return moved;
}

std::shared_ptr<std::byte> DeviceStager::takeSlot() {
  while (slots_.size() < kSlots) {
    std::shared_ptr<std::byte> slot = pool_->take(kDeviceSegment);
    if (slot == nullptr) {
      break;
    }
    slots_.push_back(std::move(slot));
  }
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.use_count() == 1; });
  return free == slots_.end() ? nullptr : *free;
}

namespace {

at::Tensor inSlot(const std::shared_ptr<std::byte>& slot, const at::Tensor& like) {
  return at::from_blob(slot.get(), like.sizes(), at::TensorOptions(like.scalar_type()));
}

}  // namespace

bool DeviceStager::queueLoad(Operation& operation) {
  auto& twins = operation.work->tensors().twins();
  while (operation.loadTwin < twins.size()) {
    StagedTensors::Twin& twin = twins[operation.loadTwin];
    if (!twin.load || operation.loadSegment == twin.segments.size()) {
      ++operation.loadTwin;
      operation.loadSegment = 0;
      continue;
    }
    const std::size_t segment = operation.loadSegment;
    std::shared_ptr<std::byte> slot;
    if (!twin.direct && twin.pieceBytes(segment) <= kDeviceSegment) {
      slot = takeSlot();
      if (slot == nullptr && !slots_.empty()) {
        operation.wantsSlot = true;  // all in use
        return false;
      }
    }
    const c10::Stream stream = streamsOf(twin.device.device()).load;
    const c10::StreamGuard current(stream);
    at::Tensor host = twin.piece(twin.host, segment);
    c10::Event event(stream.device_type());
    event.record(stream);  // makes the event: what may fail comes before the copy
    (slot == nullptr ? host : inSlot(slot, host)).copy_(twin.piece(twin.device, segment), true);
    event.record(stream);
    operation.loading.push_back({&twin, segment, std::move(event), std::move(slot)});
    ++operation.loadSegment;
    return true;
  }
  return false;
}

bool DeviceStager::stepLoads(Operation& operation) {
  bool moved = false;
  while (!operation.loading.empty() && operation.loading.front().event.query()) {
    Copy& copy = operation.loading.front();
    const std::size_t first = copy.segment * copy.twin->segmentBytes;
    const std::size_t bytes = copy.twin->pieceBytes(copy.segment);
    if (copy.slot != nullptr) {
      std::memcpy(copy.twin->first + first, copy.slot.get(), bytes);
    }
    operation.work->tensors().markReady(*copy.twin, first + bytes);
    operation.loading.pop_front();
    moved = true;
  }
  while (!operation.isEnding() && operation.loading.size() < kCopiesInFlight && queueLoad(operation)) {
    moved = true;
  }
  return moved;
}

bool DeviceStager::queueDrain(Operation& operation, std::size_t index, std::size_t segment) {
  StagedTensors::Twin& twin = operation.work->tensors().twins()[index];
  std::shared_ptr<std::byte> slot;
  if (!twin.direct && twin.pieceBytes(segment) <= kDeviceSegment) {
    slot = takeSlot();
    if (slot == nullptr && !slots_.empty()) {
      operation.wantsSlot = true;
      return false;
    }
  }
  const c10::Stream stream = streamsOf(twin.device.device()).drain;
  const c10::StreamGuard current(stream);
  at::Tensor host = twin.piece(twin.host, segment);
  if (slot != nullptr) {
    std::memcpy(slot.get(), twin.first + segment * twin.segmentBytes, twin.pieceBytes(segment));
    host = inSlot(slot, host);
  }
  c10::Event event(stream.device_type());
  event.record(stream);  // as for loads
  twin.piece(twin.device, segment).copy_(host, true);
  event.record(stream);
  operation.draining.push_back({&twin, segment, std::move(event), std::move(slot)});
  operation.drained[index][segment] = true;
  return true;
}

bool DeviceStager::stepDrains(Operation& operation, bool isOver) {
  bool moved = false;
  while (!operation.draining.empty() && operation.draining.front().event.query()) {
    operation.draining.pop_front();
    moved = true;
  }
  if (operation.isEnding()) {
    return moved;
  }
  StagedTensors& tensors = operation.work->tensors();
  auto& twins = tensors.twins();
  for (std::size_t i = operation.drainTwin; i < twins.size(); ++i) {
    bool all = true;
    for (std::size_t segment = 0; twins[i].drain && segment < twins[i].segments.size(); ++segment) {
      if (operation.drained[i][segment]) {
        continue;
      }
      if (operation.draining.size() == kCopiesInFlight) {
        return moved;
      }
      // Bytes that the operation does not write may still be on their way to the host.
      const std::size_t last = segment * twins[i].segmentBytes + twins[i].pieceBytes(segment);
      const bool isHere = last <= twins[i].ready.load(std::memory_order_relaxed);
      if (isHere && (isOver || tensors.isFinal(twins[i], segment)) && queueDrain(operation, i, segment)) {
        moved = true;
      } else {
        all = false;
      }
    }
    if (all && i == operation.drainTwin) {
      ++operation.drainTwin;
    }
  }
  return moved;
}

void DeviceStager::complete(Operation& operation, Status status) {
  if (operation.completed) {
    return;
  }
  operation.completed = true;
  auto callbacks = operation.work->complete(status);
  if (!callbacks.empty()) {
    static_cast<void>(callbacks_.post([callbacks = std::move(callbacks), status = std::move(status)] {
      for (const auto& callback : callbacks) {
        callUser("a callback of an operation", [&] { callback(status); });
      }
    }));
  }
}

Status DeviceStager::finishAwaited(Deadline deadline) {
  std::vector<std::shared_ptr<StagedWork>> awaited;
  {
    const MutexLock lock(mutex_);
    for (const auto& recent : recent_) {
      if (auto work = recent.lock(); work != nullptr && work->isAwaited()) {
        awaited.push_back(std::move(work));
      }
    }
  }
  for (const auto& work : awaited) {
    if (Status status = work->wait(deadline); status.code() == StatusCode::kInterrupted) {
      return status;
    }
  }
  return Status::ok();
}

void DeviceStager::stop() {
  std::thread thread;
  bool ended = false;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notifyAll();
    if (!thread_.joinable()) {
      return;
    }
    thread = std::move(thread_);
    // stop() may run on this very thread, after the thread released the last tensor with a reference to the group.
    const bool isOther = thread.get_id() != std::this_thread::get_id();
    for (const Deadline until = Clock::now() + kLongestStop; isOther && running_ && Clock::now() < until;) {
      changed_.waitUntil(mutex_, until);
    }
    ended = isOther && !running_;
  }
  if (ended) {
    thread.join();
  } else {
    thread.detach();  // a device is stuck; the thread owns all objects in use
  }
}

std::string DeviceStager::describe() const {
  const MutexLock lock(mutex_);
  if (streams_.empty()) {
    return "";
  }
  std::string text = fmt::format("tensors on devices are staged through {}, in segments of {} KiB\n", pool_->describe(),
                                 kDeviceSegment >> 10);
  for (const auto& [key, streams] : streams_) {
    text += fmt::format("{}: wait() {}\n", streams.load.device().str(),
                        hasStreamGates(key.first) ? "queues a gate in the current stream"
                                                  : "blocks the CPU, because this device has no stream gates");
  }
  return text;
}

}  // namespace shardwire::internal
