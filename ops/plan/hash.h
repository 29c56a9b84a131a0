// A 64-bit hash of plain values, the same on every rank and build: for fingerprints and replica classes. Not for
// adversaries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "shardwire/types.h"

namespace shardwire::internal {

class Hasher {
 public:
  void add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9fb21c651e98df25ULL;
    state_ ^= state_ >> 32;
  }
  // Lengths go in too, so that [1],[2] and [1, 2],[] differ.
  void add(const Dims& dims) {
    add(static_cast<std::uint64_t>(dims.size()));
    for (const std::int64_t value : dims) {
      add(static_cast<std::uint64_t>(value));
    }
  }
  void add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    for (std::size_t i = 0; i < text.size(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<std::size_t>(8, text.size() - i));
      add(word);
    }
  }
  std::uint64_t value() const {
    std::uint64_t mixed = state_;
    mixed ^= mixed >> 29;
    mixed *= 0xbf58476d1ce4e5b9ULL;
    mixed ^= mixed >> 32;
    return mixed;
  }

 private:
  std::uint64_t state_ = 0x2545f4914f6cdd1dULL;
};

}  // namespace shardwire::internal
