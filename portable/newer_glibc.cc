// The functions of glibc that glibc 2.28 lacks: libraries linked for glibc 2.28 take these in their place
// (portable.cmake). The timed wait and the texts of errors are those of the running glibc where it has them.

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SW_SHIM __attribute__((visibility("hidden")))

// Until glibc 2.33 stat() and its relatives were inline functions, which called these.
extern "C" {
int __xstat(int version, const char* path, struct stat* result);
int __lxstat(int version, const char* path, struct stat* result);
int __fxstat(int version, int file, struct stat* result);
}

namespace {

#if !defined(__x86_64__)
#error "the version of struct stat is known for x86-64 only"
#endif
constexpr int kStatVersion = 1;
constexpr long kNanosPerSecond = 1'000'000'000;

template <typename Function>
Function* ofRunningGlibc(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

timespec sum(const timespec& a, const timespec& b) {
  const long nanos = a.tv_nsec + b.tv_nsec;
  return {a.tv_sec + b.tv_sec + nanos / kNanosPerSecond, nanos % kNanosPerSecond};
}

timespec difference(const timespec& a, const timespec& b) {
  const long nanos = a.tv_nsec - b.tv_nsec;
  return nanos < 0 ? timespec{a.tv_sec - b.tv_sec - 1, nanos + kNanosPerSecond} : timespec{a.tv_sec - b.tv_sec, nanos};
}

using ClockWait = int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
using ErrorText = const char*(int);

}  // namespace

extern "C" {

SW_SHIM int stat(const char* path, struct stat* result) noexcept { return __xstat(kStatVersion, path, result); }
SW_SHIM int lstat(const char* path, struct stat* result) noexcept { return __lxstat(kStatVersion, path, result); }
SW_SHIM int fstat(int file, struct stat* result) noexcept { return __fxstat(kStatVersion, file, result); }
SW_SHIM int fstat64(int file, struct stat64* result) noexcept {
  return __fxstat(kStatVersion, file, reinterpret_cast<struct stat*>(result));
}

// false: a process has further threads, so libstdc++'s headers always use atomic operations.
SW_SHIM char __libc_single_threaded = 0;

// glibc before 2.30 waits for the time of the day only. A wait ends after a second at most, as a spurious wakeup, so that
// a change of the time of the day makes no wait long.
SW_SHIM int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                   const timespec* deadline) {
  static ClockWait* const own = ofRunningGlibc<ClockWait>("pthread_cond_clockwait");
  if (own != nullptr) {
    return own(condition, mutex, clock, deadline);
  }
  timespec now;
  ::clock_gettime(clock, &now);
  timespec left = difference(*deadline, now);
  if (left.tv_sec < 0) {
    return ETIMEDOUT;
  }
  const bool shortened = left.tv_sec >= 1;
  if (shortened) {
    left = {1, 0};
  }
  ::clock_gettime(CLOCK_REALTIME, &now);
  const timespec until = sum(now, left);
  const int error = ::pthread_cond_timedwait(condition, mutex, &until);
  return shortened && error == ETIMEDOUT ? 0 : error;
}

SW_SHIM const char* strerrordesc_np(int error) noexcept {
  static ErrorText* const own = ofRunningGlibc<ErrorText>("strerrordesc_np");
  if (own != nullptr) {
    return own(error);
  }
  static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return ::strerror_l(error, plain);
}

#define SW_ERRORS(X) \
  X(EPERM) X(ENOENT) X(ESRCH) X(EINTR) X(EIO) X(ENXIO) X(E2BIG) X(ENOEXEC) X(EBADF) X(ECHILD) X(EAGAIN) X(ENOMEM) \
  X(EACCES) X(EFAULT) X(ENOTBLK) X(EBUSY) X(EEXIST) X(EXDEV) X(ENODEV) X(ENOTDIR) X(EISDIR) X(EINVAL) X(ENFILE) \
  X(EMFILE) X(ENOTTY) X(ETXTBSY) X(EFBIG) X(ENOSPC) X(ESPIPE) X(EROFS) X(EMLINK) X(EPIPE) X(EDOM) X(ERANGE) \
  X(EDEADLOCK) X(ENAMETOOLONG) X(ENOLCK) X(ENOSYS) X(ENOTEMPTY) X(ELOOP) X(ENOMSG) X(EIDRM) X(ECHRNG) X(EL2NSYNC) \
  X(EL3HLT) X(EL3RST) X(ELNRNG) X(EUNATCH) X(ENOCSI) X(EL2HLT) X(EBADE) X(EBADR) X(EXFULL) X(ENOANO) X(EBADRQC) \
  X(EBADSLT) X(EBFONT) X(ENOSTR) X(ENODATA) X(ETIME) X(ENOSR) X(ENONET) X(ENOPKG) X(EREMOTE) X(ENOLINK) X(EADV) \
  X(ESRMNT) X(ECOMM) X(EPROTO) X(EMULTIHOP) X(EDOTDOT) X(EBADMSG) X(EOVERFLOW) X(ENOTUNIQ) X(EBADFD) X(EREMCHG) \
  X(ELIBACC) X(ELIBBAD) X(ELIBSCN) X(ELIBMAX) X(ELIBEXEC) X(EILSEQ) X(ERESTART) X(ESTRPIPE) X(EUSERS) X(ENOTSOCK) \
  X(EDESTADDRREQ) X(EMSGSIZE) X(EPROTOTYPE) X(ENOPROTOOPT) X(EPROTONOSUPPORT) X(ESOCKTNOSUPPORT) X(ENOTSUP) \
  X(EPFNOSUPPORT) X(EAFNOSUPPORT) X(EADDRINUSE) X(EADDRNOTAVAIL) X(ENETDOWN) X(ENETUNREACH) X(ENETRESET) \
  X(ECONNABORTED) X(ECONNRESET) X(ENOBUFS) X(EISCONN) X(ENOTCONN) X(ESHUTDOWN) X(ETOOMANYREFS) X(ETIMEDOUT) \
  X(ECONNREFUSED) X(EHOSTDOWN) X(EHOSTUNREACH) X(EALREADY) X(EINPROGRESS) X(ESTALE) X(EUCLEAN) X(ENOTNAM) \
  X(ENAVAIL) X(EISNAM) X(EREMOTEIO) X(EDQUOT) X(ENOMEDIUM) X(EMEDIUMTYPE) X(ECANCELED) X(ENOKEY) X(EKEYEXPIRED) \
  X(EKEYREVOKED) X(EKEYREJECTED) X(EOWNERDEAD) X(ENOTRECOVERABLE) X(ERFKILL)

SW_SHIM const char* strerrorname_np(int error) noexcept {
  static ErrorText* const own = ofRunningGlibc<ErrorText>("strerrorname_np");
  if (own != nullptr) {
    return own(error);
  }
  switch (error) {
#define SW_CASE(name) \
  case name:          \
    return #name;
    SW_ERRORS(SW_CASE)
#undef SW_CASE
    default:
      return nullptr;
  }
}

}  // extern "C"
