#include "tests/simulate/clock.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <chrono>
#include <cstring>

namespace shardwire::simulate {
namespace {

constexpr Time kLook = 500;
constexpr Time kYield = kMicrosecond;
// The machine of every simulation, whatever machine this is: waits depend on the number of cores.
constexpr std::size_t kCores = 64;

thread_local Time* current = nullptr;
thread_local const std::function<void(Time)>* currentSleep = nullptr;

}  // namespace

SimulatedTime::SimulatedTime(Time* time, const std::function<void(Time)>* sleep)
    : before_(current), sleepBefore_(currentSleep) {
  current = time;
  currentSleep = sleep;
}

SimulatedTime::~SimulatedTime() {
  current = before_;
  currentSleep = sleepBefore_;
}

Time timeOf(Deadline deadline) {
  return deadline == kNoDeadline ? kNever : deadline.time_since_epoch().count();
}

std::string inMilliseconds(Time time) {
  return fmt::format("{}.{:06} ms", time / kMillisecond, time % kMillisecond);
}

// ---- what the linker calls in place of the library's functions

using SteadyTime = std::chrono::steady_clock::time_point;
SteadyTime realNow() noexcept __asm__("__real__ZNSt6chrono3_V212steady_clock3nowEv");
SteadyTime wrappedNow() noexcept __asm__("__wrap__ZNSt6chrono3_V212steady_clock3nowEv");
int realYield() noexcept __asm__("__real_sched_yield");
int wrappedYield() noexcept __asm__("__wrap_sched_yield");
int realSleep(const timespec* time, timespec* left) noexcept __asm__("__real_nanosleep");
int wrappedSleep(const timespec* time, timespec* left) noexcept __asm__("__wrap_nanosleep");
int realPoll(pollfd* entries, nfds_t count, const timespec* time, const sigset_t* mask) __asm__("__real_ppoll");
int wrappedPoll(pollfd* entries, nfds_t count, const timespec* time, const sigset_t* mask) __asm__("__wrap_ppoll");
int realAffinity(pid_t pid, std::size_t size, cpu_set_t* cores) noexcept __asm__("__real_sched_getaffinity");
int wrappedAffinity(pid_t pid, std::size_t size, cpu_set_t* cores) noexcept __asm__("__wrap_sched_getaffinity");

SteadyTime wrappedNow() noexcept {
  return current == nullptr ? realNow() : SteadyTime(std::chrono::nanoseconds(*current += kLook));
}

int wrappedYield() noexcept {
  if (current == nullptr) {
    return realYield();
  }
  *current += kYield;
  return 0;
}

int wrappedSleep(const timespec* time, timespec* left) noexcept {
  if (current == nullptr) {
    return realSleep(time, left);
  }
  (*currentSleep)(time->tv_sec * kSecond + time->tv_nsec);
  return 0;
}

// A wait for no descriptor is a sleep.
int wrappedPoll(pollfd* entries, nfds_t count, const timespec* time, const sigset_t* mask) {
  if (current == nullptr || count > 0 || time == nullptr) {
    return realPoll(entries, count, time, mask);
  }
  (*currentSleep)(time->tv_sec * kSecond + time->tv_nsec);
  return 0;
}

int wrappedAffinity(pid_t pid, std::size_t size, cpu_set_t* cores) noexcept {
  if (current == nullptr) {
    return realAffinity(pid, size, cores);
  }
  std::memset(cores, 0, size);
  for (std::size_t core = 0; core < kCores; ++core) {
    CPU_SET_S(core, size, cores);
  }
  return 0;
}

}  // namespace shardwire::simulate
