// The mutex of backend/base/mutex.h. The functions have the names and the orders of the C++ functions.
#include "tests/models/models.h"

namespace shardwire::models {
namespace {

constexpr Location kState = 0, kQueue = 1, kGuarded = 2;
constexpr Value kFree = 0, kTaken = 1, kAwaited = 2;

bool tryLock(Thread& t, const Orders& o) {
  return t.compareExchange(kState, kFree, kTaken, o[kMutexTryLock]);
}

void lock(Thread& t, const Orders& o) {
  if (!tryLock(t, o)) {
    while (t.exchange(kState, kAwaited, o[kMutexLockSlowly]) != kFree) {
      t.futexWait(kState, kQueue, kAwaited);
    }
  }
}

// The kernel wakes one sleeper here, where the explorer wakes all. A woken thread takes the mutex as awaited and so
// wakes the next one.
void unlock(Thread& t, const Orders& o) {
  if (t.exchange(kState, kFree, o[kMutexUnlock]) == kAwaited) {
    t.futexWakeAll(kQueue);
  }
}

Model countedBy(const Orders& o, std::size_t numThreads) {
  Model model{3, {}};
  for (std::size_t i = 0; i < numThreads; ++i) {
    model.threads.push_back([&o](Thread& t) {
      lock(t, o);
      t.writePlain(kGuarded, t.readPlain(kGuarded) + 1);
      unlock(t, o);
    });
  }
  return model;
}

Model triedBeside(const Orders& o) {
  return {3,
          {[&o](Thread& t) {
             lock(t, o);
             t.writePlain(kGuarded, 1);
             unlock(t, o);
           },
           [&o](Thread& t) {
             if (tryLock(t, o)) {
               t.readPlain(kGuarded);
               unlock(t, o);
             }
           }}};
}

}  // namespace

Protocol mutex() {
  return {"mutex",
          "`base/mutex`",
          "sections exclude each other, each sees the stores of the one before; a sleeper is woken",
          {[](const Orders& o) { return countedBy(o, 2); }, triedBeside}};
}

}  // namespace shardwire::models
