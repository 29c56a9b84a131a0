// Python's lock (the GIL), as far as C++ must know of it: what blocks, or ends a group, gives the lock up. Without Python there is none.
#pragma once

namespace shardwire::internal {

struct PythonLock {
  // Gives the lock up when this thread has it; what it returns is for take().
  void* (*release)() = nullptr;
  void (*take)(void* released) = nullptr;
};

// Once, when the extension module is made and nothing waits yet.
void setPythonLock(PythonLock lock);

// Gives Python's lock up for as long as it lives, where this thread has it. Any thread.
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* const released_;
};

}  // namespace shardwire::internal
