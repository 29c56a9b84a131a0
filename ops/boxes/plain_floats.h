// The mode of this thread's floating-point unit. torch.set_flush_denormal and fesetround set it for the calling thread
// alone, and any thread of the process may finish an operation: without this guard the ranks would get different bits.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace shardwire::internal {

// While it lives, this thread computes with denormals and rounds to nearest. One thread; leaves the mode as it was.
class PlainFloats {
 public:
  PlainFloats() : before_(mode()) {
    if ((before_ & kOtherBits) != 0) {
      setMode(before_ & ~kOtherBits);
    }
  }
  ~PlainFloats() {
    if ((before_ & kOtherBits) != 0) {
      setMode(before_);
    }
  }
  PlainFloats(const PlainFloats&) = delete;
  PlainFloats& operator=(const PlainFloats&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = std::uint32_t;
  static constexpr Mode kOtherBits = 0xE040;  // MXCSR: FTZ, RC, DAZ
  static Mode mode() {
    return _mm_getcsr();
  }
  static void setMode(Mode mode) {
    _mm_setcsr(mode);
  }
#elif defined(__aarch64__)
  using Mode = std::uint64_t;
  static constexpr Mode kOtherBits = 0x1C80000;  // FPCR: FZ, RMode, FZ16
  static Mode mode() {
    Mode mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void setMode(Mode mode) {
    asm volatile("msr fpcr, %0" : : "r"(mode));
  }
#else
  using Mode = std::uint32_t;
  static constexpr Mode kOtherBits = 0;
  static Mode mode() {
    return 0;
  }
  static void setMode(Mode) {}
#endif

  const Mode before_;
};

}  // namespace shardwire::internal
