#include "backend/transport/shm/shm_page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>

#include <new>

#include "backend/base/log.h"
#include "backend/base/memfd.h"
#include "backend/base/system_error.h"
#include "backend/transport/shm/shm_arena.h"

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

Result<OwnLiveness> OwnLiveness::create() {
  auto fd = makeMemfd("shardwire-liveness", kShmPage);
  SW_RETURN_IF_ERROR(fd.status());
  auto page = Mapping::shared(fd->get(), 0, kShmPage, Access::kReadWrite, "the liveness of this process");
  SW_RETURN_IF_ERROR(page.status());
  OwnLiveness made(std::move(*fd), std::move(*page));
  SW_RETURN_IF_ERROR(initRobust(&(new (made.page_.bytes()) ShmLiveness{})->mutex));
  if (::fcntl(made.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return systemError("sealing the liveness of this process against writing (Linux 5.1 or later can)", errno);
  }
  return made;
}

Result<Mapping> mapLiveness(int fd) {
  SW_RETURN_IF_ERROR(checkMemfd(fd, kShmPage));
  return Mapping::shared(fd, 0, kShmPage, Access::kRead, "the liveness of another process");
}

void ShmLiveness::hold() {
  const int error = ::pthread_mutex_lock(&mutex);
  SW_CHECK(error == 0);
}

void ShmLiveness::release() {
  if (const int error = ::pthread_mutex_unlock(&mutex); error != 0) {
    logError("the liveness of this process could not be given up: {}", errnoText(error));
  }
}

bool ShmLiveness::isOwnerDead() const {
  // The C library's lock word of a robust mutex is the futex that the kernel knows: the owner's thread id, or
  // FUTEX_OWNER_DIED once this thread ended without unlocking. Unlike a trylock, reading the word blocks no thread and
  // takes nothing over.
  static_assert(sizeof(ShmLiveness::mutex.__data.__lock) == sizeof(std::uint32_t));
  // Relaxed: the word publishes nothing.
  const int word = __atomic_load_n(&mutex.__data.__lock, __ATOMIC_RELAXED);
  return (static_cast<std::uint32_t>(word) & FUTEX_OWNER_DIED) != 0;
}

}  // namespace shardwire::internal
