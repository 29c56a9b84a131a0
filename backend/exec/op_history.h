// The latest operations of a group, by sequence number: for answers to a peer that calls another operation, or comes
// when the operation is over here. Under the engine's lock.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class OpHistory {
 public:
  // One cache line: each call writes another entry.
  struct alignas(64) Entry {
    std::uint64_t seq = 0;
    std::uint64_t call = 0;  // Activity::call
    std::uint64_t fingerprint = 0;
    Description description;
  };
  // The rank that gave an operation up, and the reason.
  struct GivenUp {
    std::uint64_t seq = 0;
    Rank by = -1;
    std::string why;
  };

  void note(std::uint64_t seq, std::uint64_t call, std::uint64_t fingerprint, const Description& description) {
    const std::size_t index = seq % kEntries;
    if (index >= ring_.size()) {
      ring_.resize(std::bit_ceil(index + 1));  // most groups have few operations, or are made and never used
    }
    Entry& entry = ring_[index];
    entry.seq = seq;
    entry.call = call;
    entry.fingerprint = fingerprint;
    if (entry.description != description) {  // calls repeat, and a copy costs two atomic operations
      entry.description = description;
    }
  }
  // Null: too long ago, or not begun.
  const Entry* find(std::uint64_t seq) const {
    const std::size_t index = seq % kEntries;
    return index < ring_.size() && ring_[index].seq == seq ? &ring_[index] : nullptr;
  }
  // The first rank stays. No effect for an operation that find() does not find.
  void noteGivenUp(std::uint64_t seq, Rank by, std::string_view why) {
    if (find(seq) != nullptr && givenUp(seq) == nullptr) {
      std::erase_if(givenUp_, [&](const GivenUp& each) { return find(each.seq) == nullptr; });
      givenUp_.push_back({seq, by, std::string(why)});
    }
  }
  // Null: no rank gave the operation up, or find() does not find the operation.
  const GivenUp* givenUp(std::uint64_t seq) const {
    const auto found = std::ranges::find(givenUp_, seq, &GivenUp::seq);
    return found != givenUp_.end() && find(seq) != nullptr ? &*found : nullptr;
  }

 private:
  static constexpr std::size_t kEntries = 256;

  std::vector<Entry> ring_;       // by seq; grows up to kEntries
  std::vector<GivenUp> givenUp_;  // mostly empty
};

}  // namespace shardwire::internal
