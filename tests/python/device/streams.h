// The test device's memory and streams. Memory has two addresses: tensors show an address at which nothing may be read
// or written, and the device uses its own. A stream is a thread with a queue. Streams start on first use, so processes
// may fork before.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace test_device {

// Maps the addresses shown by tensors to the device's own. Thread-safe.
class Memory {
 public:
  void* allocate(std::size_t bytes, std::int64_t stream);
  std::int64_t streamOf(const void* shown) const;
  void free(void* shown);
  // Null when the address belongs to no live allocation: the tensor was freed too early.
  std::byte* own(const void* shown);
  std::size_t live() const;

 private:
  struct Block {
    std::byte* own;
    std::size_t bytes;
    std::int64_t stream;
  };
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;
};

// One task of a stream, in seconds of CLOCK_MONOTONIC, the clock of all processes.
struct Event {
  std::string kind;
  std::int64_t stream;
  double begin;
  double end;
  std::size_t bytes;
};

class Trace {
 public:
  void add(Event event);
  std::vector<Event> take();

 private:
  std::mutex mutex_;
  std::vector<Event> events_;
};

class Stream {
 public:
  explicit Stream(std::int64_t id) : id(id) {}
  void queue(std::function<void()> task);
  // Blocks until all tasks queued so far are done.
  void synchronize();
  bool isIdle();
  const std::int64_t id;

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first one is running
  bool started_ = false;
};

// The flag of an event or a gate, to be waited for.
class Flag {
 public:
  void set();
  void wait();
  bool isSet();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

inline constexpr std::int64_t kNumStreams = 9;  // 0: the default stream; the other streams are the pool

Memory& memory();
Trace& trace();
Stream& stream(std::int64_t id);
double now();

}  // namespace test_device
