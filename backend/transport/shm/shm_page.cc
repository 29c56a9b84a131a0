#include "backend/transport/shm/shm_page.h"

#include <linux/futex.h>

#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

Status initRobust(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  int error = ::pthread_mutexattr_init(&attributes);
  if (error == 0) {
    error = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  }
  if (error == 0) {
    error = ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  }
  if (error == 0) {
    error = ::pthread_mutex_init(mutex, &attributes);
  }
  ::pthread_mutexattr_destroy(&attributes);
  return error == 0 ? Status::ok() : systemError("cannot make the liveness mutex", error);
}

}  // namespace

Status ShmProcessPage::init() {
  magic = kShmPageMagic;
  return initRobust(&liveness);
}

void ShmProcessPage::hold() {
  const int error = ::pthread_mutex_lock(&liveness);
  SW_CHECK(error == 0);
}

void ShmProcessPage::release() {
  const int error = ::pthread_mutex_unlock(&liveness);
  SW_CHECK(error == 0);  // EPERM: not the thread that called hold()
}

bool ShmProcessPage::isOwnerDead() const {
  // The C library's lock word of a robust mutex is the futex the kernel knows: the owner's thread id, or FUTEX_OWNER_DIED once that thread
  // ended without unlocking. Reading it blocks nobody and takes nothing over, unlike a trylock.
  static_assert(sizeof(ShmProcessPage::liveness.__data.__lock) == sizeof(std::uint32_t));
  // Relaxed: nothing is published by it.
  const int word = __atomic_load_n(&liveness.__data.__lock, __ATOMIC_RELAXED);
  return (static_cast<std::uint32_t>(word) & FUTEX_OWNER_DIED) != 0;
}

}  // namespace shardwire::internal
