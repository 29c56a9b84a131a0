// 128 random bits from the kernel, and the random id of this process. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "shardwire/status.h"

namespace shardwire::internal {

struct RandomId {
  std::array<std::uint64_t, 2> words{};
  friend bool operator==(const RandomId&, const RandomId&) = default;
  friend auto operator<=>(const RandomId&, const RandomId&) = default;
  bool isZero() const { return words[0] == 0 && words[1] == 0; }
};

Result<RandomId> makeRandomId();

// 32 hexadecimal digits.
std::string toString(const RandomId& id);

// The same in all threads of this process; another one after fork().
Result<RandomId> processId();

}  // namespace shardwire::internal
