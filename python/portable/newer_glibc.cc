// Functions of glibc 2.29 to 2.36, for libraries linked for glibc 2.28 (portable.cmake). Where the running glibc has
// the timed wait and the texts of errors, the calls go to glibc.

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SW_SHIM __attribute__((visibility("hidden")))

// Until glibc 2.33 stat(), lstat() and fstat() were inline functions, and called __xstat() and so on.
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

struct ErrorName {
  int error;
  const char* name;
};

constexpr ErrorName kErrorNames[] = {{EPERM, "EPERM"},
                                     {ENOENT, "ENOENT"},
                                     {ESRCH, "ESRCH"},
                                     {EINTR, "EINTR"},
                                     {EIO, "EIO"},
                                     {ENXIO, "ENXIO"},
                                     {E2BIG, "E2BIG"},
                                     {ENOEXEC, "ENOEXEC"},
                                     {EBADF, "EBADF"},
                                     {ECHILD, "ECHILD"},
                                     {EAGAIN, "EAGAIN"},
                                     {ENOMEM, "ENOMEM"},
                                     {EACCES, "EACCES"},
                                     {EFAULT, "EFAULT"},
                                     {ENOTBLK, "ENOTBLK"},
                                     {EBUSY, "EBUSY"},
                                     {EEXIST, "EEXIST"},
                                     {EXDEV, "EXDEV"},
                                     {ENODEV, "ENODEV"},
                                     {ENOTDIR, "ENOTDIR"},
                                     {EISDIR, "EISDIR"},
                                     {EINVAL, "EINVAL"},
                                     {ENFILE, "ENFILE"},
                                     {EMFILE, "EMFILE"},
                                     {ENOTTY, "ENOTTY"},
                                     {ETXTBSY, "ETXTBSY"},
                                     {EFBIG, "EFBIG"},
                                     {ENOSPC, "ENOSPC"},
                                     {ESPIPE, "ESPIPE"},
                                     {EROFS, "EROFS"},
                                     {EMLINK, "EMLINK"},
                                     {EPIPE, "EPIPE"},
                                     {EDOM, "EDOM"},
                                     {ERANGE, "ERANGE"},
                                     {EDEADLK, "EDEADLK"},
                                     {ENAMETOOLONG, "ENAMETOOLONG"},
                                     {ENOLCK, "ENOLCK"},
                                     {ENOSYS, "ENOSYS"},
                                     {ENOTEMPTY, "ENOTEMPTY"},
                                     {ELOOP, "ELOOP"},
                                     {ENOMSG, "ENOMSG"},
                                     {EIDRM, "EIDRM"},
                                     {ECHRNG, "ECHRNG"},
                                     {EL2NSYNC, "EL2NSYNC"},
                                     {EL3HLT, "EL3HLT"},
                                     {EL3RST, "EL3RST"},
                                     {ELNRNG, "ELNRNG"},
                                     {EUNATCH, "EUNATCH"},
                                     {ENOCSI, "ENOCSI"},
                                     {EL2HLT, "EL2HLT"},
                                     {EBADE, "EBADE"},
                                     {EBADR, "EBADR"},
                                     {EXFULL, "EXFULL"},
                                     {ENOANO, "ENOANO"},
                                     {EBADRQC, "EBADRQC"},
                                     {EBADSLT, "EBADSLT"},
                                     {EBFONT, "EBFONT"},
                                     {ENOSTR, "ENOSTR"},
                                     {ENODATA, "ENODATA"},
                                     {ETIME, "ETIME"},
                                     {ENOSR, "ENOSR"},
                                     {ENONET, "ENONET"},
                                     {ENOPKG, "ENOPKG"},
                                     {EREMOTE, "EREMOTE"},
                                     {ENOLINK, "ENOLINK"},
                                     {EADV, "EADV"},
                                     {ESRMNT, "ESRMNT"},
                                     {ECOMM, "ECOMM"},
                                     {EPROTO, "EPROTO"},
                                     {EMULTIHOP, "EMULTIHOP"},
                                     {EDOTDOT, "EDOTDOT"},
                                     {EBADMSG, "EBADMSG"},
                                     {EOVERFLOW, "EOVERFLOW"},
                                     {ENOTUNIQ, "ENOTUNIQ"},
                                     {EBADFD, "EBADFD"},
                                     {EREMCHG, "EREMCHG"},
                                     {ELIBACC, "ELIBACC"},
                                     {ELIBBAD, "ELIBBAD"},
                                     {ELIBSCN, "ELIBSCN"},
                                     {ELIBMAX, "ELIBMAX"},
                                     {ELIBEXEC, "ELIBEXEC"},
                                     {EILSEQ, "EILSEQ"},
                                     {ERESTART, "ERESTART"},
                                     {ESTRPIPE, "ESTRPIPE"},
                                     {EUSERS, "EUSERS"},
                                     {ENOTSOCK, "ENOTSOCK"},
                                     {EDESTADDRREQ, "EDESTADDRREQ"},
                                     {EMSGSIZE, "EMSGSIZE"},
                                     {EPROTOTYPE, "EPROTOTYPE"},
                                     {ENOPROTOOPT, "ENOPROTOOPT"},
                                     {EPROTONOSUPPORT, "EPROTONOSUPPORT"},
                                     {ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"},
                                     {EOPNOTSUPP, "EOPNOTSUPP"},
                                     {EPFNOSUPPORT, "EPFNOSUPPORT"},
                                     {EAFNOSUPPORT, "EAFNOSUPPORT"},
                                     {EADDRINUSE, "EADDRINUSE"},
                                     {EADDRNOTAVAIL, "EADDRNOTAVAIL"},
                                     {ENETDOWN, "ENETDOWN"},
                                     {ENETUNREACH, "ENETUNREACH"},
                                     {ENETRESET, "ENETRESET"},
                                     {ECONNABORTED, "ECONNABORTED"},
                                     {ECONNRESET, "ECONNRESET"},
                                     {ENOBUFS, "ENOBUFS"},
                                     {EISCONN, "EISCONN"},
                                     {ENOTCONN, "ENOTCONN"},
                                     {ESHUTDOWN, "ESHUTDOWN"},
                                     {ETOOMANYREFS, "ETOOMANYREFS"},
                                     {ETIMEDOUT, "ETIMEDOUT"},
                                     {ECONNREFUSED, "ECONNREFUSED"},
                                     {EHOSTDOWN, "EHOSTDOWN"},
                                     {EHOSTUNREACH, "EHOSTUNREACH"},
                                     {EALREADY, "EALREADY"},
                                     {EINPROGRESS, "EINPROGRESS"},
                                     {ESTALE, "ESTALE"},
                                     {EUCLEAN, "EUCLEAN"},
                                     {ENOTNAM, "ENOTNAM"},
                                     {ENAVAIL, "ENAVAIL"},
                                     {EISNAM, "EISNAM"},
                                     {EREMOTEIO, "EREMOTEIO"},
                                     {EDQUOT, "EDQUOT"},
                                     {ENOMEDIUM, "ENOMEDIUM"},
                                     {EMEDIUMTYPE, "EMEDIUMTYPE"},
                                     {ECANCELED, "ECANCELED"},
                                     {ENOKEY, "ENOKEY"},
                                     {EKEYEXPIRED, "EKEYEXPIRED"},
                                     {EKEYREVOKED, "EKEYREVOKED"},
                                     {EKEYREJECTED, "EKEYREJECTED"},
                                     {EOWNERDEAD, "EOWNERDEAD"},
                                     {ENOTRECOVERABLE, "ENOTRECOVERABLE"},
                                     {ERFKILL, "ERFKILL"},
                                     {EHWPOISON, "EHWPOISON"}};

using ClockWait = int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
using ErrorText = const char*(int);

}  // namespace

extern "C" {

SW_SHIM int stat(const char* path, struct stat* result) noexcept {
  return __xstat(kStatVersion, path, result);
}
SW_SHIM int lstat(const char* path, struct stat* result) noexcept {
  return __lxstat(kStatVersion, path, result);
}
SW_SHIM int fstat(int file, struct stat* result) noexcept {
  return __fxstat(kStatVersion, file, result);
}
SW_SHIM int fstat64(int file, struct stat64* result) noexcept {
  return __fxstat(kStatVersion, file, reinterpret_cast<struct stat*>(result));
}

// Zero: libstdc++'s headers always use atomic operations.
SW_SHIM char __libc_single_threaded = 0;

// glibc before 2.30 waits for the time of the day only. A wait ends after a second at most, as a spurious wakeup, lest
// a change of the time of the day makes a wait long.
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

SW_SHIM const char* strerrorname_np(int error) noexcept {
  static ErrorText* const own = ofRunningGlibc<ErrorText>("strerrorname_np");
  if (own != nullptr) {
    return own(error);
  }
  for (const ErrorName& each : kErrorNames) {
    if (each.error == error) {
      return each.name;
    }
  }
  return nullptr;
}

}  // extern "C"
