// The latest operations of a group, by sequence number: for answers to a peer that calls another operation, or comes
// when the operation is over here. Under the engine's lock.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class OpHistory {
 public:
  struct Entry {
    std::uint64_t seq = 0;
    std::uint64_t call = 0;  // Activity::call
    std::uint64_t fingerprint = 0;
    Description description;
    // The rank that gave the operation up, and the reason; empty: no rank did.
    Rank givenUpBy = -1;
    std::string whyGivenUp;
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
    if (entry.givenUpBy >= 0) {
      entry.givenUpBy = -1;
      entry.whyGivenUp.clear();
    }
  }
  // Null: too long ago, or not begun.
  Entry* find(std::uint64_t seq) { return const_cast<Entry*>(std::as_const(*this).find(seq)); }
  const Entry* find(std::uint64_t seq) const {
    const std::size_t index = seq % kEntries;
    return index < ring_.size() && ring_[index].seq == seq ? &ring_[index] : nullptr;
  }

 private:
  static constexpr std::size_t kEntries = 256;

  std::vector<Entry> ring_;  // by seq; grows up to kEntries
};

}  // namespace shardwire::internal
