// How often a test repeats random cases. A sanitizer makes a case 5 to 20 times slower, and reports an error without
// the rare order of events that a plain build needs to fail: there fewer cases do.
#pragma once

namespace shardwire::testing {

// `whole`: in a plain build. At least 1.
constexpr int rounds(int whole) {
#if defined(__SANITIZE_THREAD__)
  constexpr int kShare = 8;
#elif defined(__SANITIZE_ADDRESS__)
  constexpr int kShare = 8;
#else
  constexpr int kShare = 1;
#endif
  return whole < kShare ? 1 : whole / kShare;
}

}  // namespace shardwire::testing
