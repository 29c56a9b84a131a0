#include "backend/c10d/without_python.h"

namespace shardwire::internal {
namespace {

PythonLock& pythonLock() {
  static PythonLock lock;
  return lock;
}

}  // namespace

void setPythonLock(PythonLock lock) {
  pythonLock() = lock;
}

bool isPythonAlive() {
  return pythonLock().isAlive == nullptr || pythonLock().isAlive();
}

WithoutPython::WithoutPython() : released_(pythonLock().release == nullptr ? nullptr : pythonLock().release()) {}

WithoutPython::~WithoutPython() {
  if (released_ != nullptr) {
    pythonLock().take(released_);
  }
}

}  // namespace shardwire::internal
