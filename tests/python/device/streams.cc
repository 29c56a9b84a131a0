#include "tests/python/device/streams.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

namespace test_device {

void* Memory::allocate(std::size_t bytes, std::int64_t stream) {
  const std::size_t page = 4096;
  const std::size_t size = (bytes + page - 1) / page * page;
  void* shown = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* own = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (shown == MAP_FAILED || own == MAP_FAILED) {
    throw std::bad_alloc();
  }
  const std::lock_guard lock(mutex_);
  blocks_[reinterpret_cast<std::uintptr_t>(shown)] = {static_cast<std::byte*>(own), size, stream};
  return shown;
}

std::int64_t Memory::streamOf(const void* shown) const {
  const std::lock_guard lock(mutex_);
  return blocks_.at(reinterpret_cast<std::uintptr_t>(shown)).stream;
}

void Memory::free(void* shown) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(shown));
  if (found != blocks_.end()) {
    ::munmap(found->second.own, found->second.bytes);
    ::munmap(shown, found->second.bytes);
    blocks_.erase(found);
  }
}

std::byte* Memory::own(const void* shown) {
  const auto address = reinterpret_cast<std::uintptr_t>(shown);
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(address);
  if (found == blocks_.begin()) {
    return nullptr;
  }
  --found;
  const std::size_t offset = address - found->first;
  return offset < found->second.bytes ? found->second.own + offset : nullptr;
}

std::size_t Memory::live() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

void Trace::add(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<Event> Trace::take() {
  const std::lock_guard lock(mutex_);
  return std::move(events_);
}

void Stream::queue(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (!started_) {
    started_ = true;
    std::thread([this] { run(); }).detach();
  }
  changed_.notify_all();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    const auto task = tasks_.front();
    lock.unlock();
    task();
    lock.lock();
    tasks_.pop_front();
    changed_.notify_all();
  }
}

void Stream::synchronize() {
  const auto reached = std::make_shared<Flag>();
  queue([reached] { reached->set(); });
  reached->wait();
}

bool Stream::isIdle() {
  const std::lock_guard lock(mutex_);
  return tasks_.empty();
}

void Flag::set() {
  const std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

void Flag::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return set_; });
}

bool Flag::isSet() {
  const std::lock_guard lock(mutex_);
  return set_;
}

// Never destroyed: threads of streams and tensors may outlive everything else.
Memory& memory() {
  static auto* memory = new Memory;
  return *memory;
}

Trace& trace() {
  static auto* trace = new Trace;
  return *trace;
}

Stream& stream(std::int64_t id) {
  static auto* streams = [] {
    auto* made = new std::vector<std::unique_ptr<Stream>>;
    for (std::int64_t i = 0; i < kNumStreams; ++i) {
      made->push_back(std::make_unique<Stream>(i));
    }
    return made;
  }();
  return *streams->at(static_cast<std::size_t>(id));
}

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace test_device
