// Memory that forked ranks of a test share beside the group: made before the fork, seen by all ranks.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <new>
#include <thread>

namespace shardwire::testing {

template <typename T>
class SharedValue {
 public:
  SharedValue()
      : value_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) T()) {}
  ~SharedValue() { munmap(value_, sizeof(T)); }
  SharedValue(const SharedValue&) = delete;
  SharedValue& operator=(const SharedValue&) = delete;
  T& operator*() { return *value_; }
  T* operator->() { return value_; }

 private:
  T* value_;
};

// Waits until n ranks have called, without the group: the later death of a rank can fail no earlier call.
inline void meetOutside(std::atomic<int>& arrived, int n) {
  ++arrived;
  while (arrived < n) {
    std::this_thread::yield();
  }
}

}  // namespace shardwire::testing
