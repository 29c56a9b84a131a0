// Python's lock (the GIL), as far as C++ must know about the lock: code that blocks, or ends a group, releases it
// meanwhile. Without Python there is no lock.
#pragma once

#include "shardwire/export.h"

namespace shardwire::internal {

struct PythonLock {
  // Releases the lock if this thread has the lock; the returned value is for take().
  void* (*release)() = nullptr;
  // Any thread. Waits for ever where the interpreter ends at the same time.
  void (*take)(void* released) = nullptr;
  bool (*isAlive)() = nullptr;
};

// Once, when the extension module is made and nothing waits yet.
SHARDWIRE_EXPORT void setPythonLock(PythonLock lock);

// Whether objects of Python may be destroyed: false from the end of the interpreter on, and true without Python.
bool isPythonAlive();

// Releases Python's lock during the object's lifetime, if this thread has the lock. Any thread.
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
