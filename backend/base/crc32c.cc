// Two ways to one checksum. The table takes eight bytes a step (eight tables of 256 entries). The instruction of SSE4.2
// also takes eight bytes, and a new one can start in each cycle, but each result takes three cycles. So long ranges are
// cut into three lanes, whose checksums are computed side by side, and joined: the checksum of a lane is multiplied by
// x^(bits behind the lane) modulo the polynomial, by a table for each length of lanes. The first call chooses the way.
#include "backend/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace shardwire::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "the steps of eight bytes load little-endian words");

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // bit 31 is x^0

constexpr std::uint32_t timesX(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

using Table = std::array<std::uint32_t, 256>;

// tables[i][b]: the checksum register after byte b and i zero bytes, from a register of 0.
constexpr std::array<Table, 8> makeTables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = timesX(value);
    }
    tables[0][byte] = value;
  }
  for (std::size_t i = 1; i < tables.size(); ++i) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t value = tables[i - 1][byte];
      tables[i][byte] = (value >> 8) ^ tables[0][value & 0xff];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = makeTables();

std::uint64_t load(const unsigned char* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

#if defined(__x86_64__)

constexpr std::size_t kLongLane = 4096;
constexpr std::size_t kShortLane = 256;

// tables[i][b]: byte i of a register, of value b, times x^(8 * laneBytes).
constexpr std::array<Table, 4> makeShift(std::size_t laneBytes) {
  std::uint32_t power = std::uint32_t{1} << 31;
  for (std::size_t bit = 0; bit < 8 * laneBytes; ++bit) {
    power = timesX(power);
  }
  std::array<std::uint32_t, 32> products{};  // of each single bit, from x^0 on
  for (std::size_t bit = 0; bit < 32; ++bit) {
    products[31 - bit] = power;
    power = timesX(power);
  }
  std::array<Table, 4> tables{};
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        tables[i][byte] ^= (byte >> bit & 1) != 0 ? products[8 * i + bit] : 0;
      }
    }
  }
  return tables;
}

template <std::size_t kLane>
std::uint64_t shift(std::uint64_t value) {
  static constexpr std::array<Table, 4> kShift = makeShift(kLane);
  return kShift[0][value & 0xff] ^ kShift[1][value >> 8 & 0xff] ^ kShift[2][value >> 16 & 0xff] ^
         kShift[3][value >> 24 & 0xff];
}

// Whole triples of lanes. Advances *bytes and *size.
template <std::size_t kLane>
__attribute__((target("sse4.2"))) std::uint64_t addLanes(std::uint64_t sum, const unsigned char** bytes,
                                                         std::size_t* size) {
  const unsigned char* from = *bytes;
  for (; *size >= 3 * kLane; *size -= 3 * kLane, from += 3 * kLane) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < kLane; at += 8) {
      sum = _mm_crc32_u64(sum, load(from + at));
      second = _mm_crc32_u64(second, load(from + kLane + at));
      third = _mm_crc32_u64(third, load(from + 2 * kLane + at));
    }
    sum = shift<kLane>(shift<kLane>(sum) ^ second) ^ third;
  }
  *bytes = from;
  return sum;
}

__attribute__((target("sse4.2"))) std::uint32_t byInstruction(const void* bytes, std::size_t size,
                                                              std::uint32_t before) {
  const auto* from = static_cast<const unsigned char*>(bytes);
  std::uint64_t sum = ~before;
  sum = addLanes<kLongLane>(sum, &from, &size);
  sum = addLanes<kShortLane>(sum, &from, &size);
  for (; size >= 8; size -= 8, from += 8) {
    sum = _mm_crc32_u64(sum, load(from));
  }
  auto rest = static_cast<std::uint32_t>(sum);
  for (; size > 0; --size, ++from) {
    rest = _mm_crc32_u8(rest, *from);
  }
  return ~rest;
}

#endif

}  // namespace

std::uint32_t crc32cByTable(const void* bytes, std::size_t size, std::uint32_t before) {
  const auto* from = static_cast<const unsigned char*>(bytes);
  std::uint32_t sum = ~before;
  for (; size >= 8; size -= 8, from += 8) {
    const std::uint64_t word = load(from) ^ sum;
    // Written out: GCC does not unroll a loop here at -O2.
    sum = kTables[7][word & 0xff] ^ kTables[6][word >> 8 & 0xff] ^ kTables[5][word >> 16 & 0xff] ^
          kTables[4][word >> 24 & 0xff] ^ kTables[3][word >> 32 & 0xff] ^ kTables[2][word >> 40 & 0xff] ^
          kTables[1][word >> 48 & 0xff] ^ kTables[0][word >> 56];
  }
  for (; size > 0; --size, ++from) {
    sum = (sum >> 8) ^ kTables[0][(sum ^ *from) & 0xff];
  }
  return ~sum;
}

std::uint32_t crc32c(const void* bytes, std::size_t size, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool hasInstruction = __builtin_cpu_supports("sse4.2") != 0;
  if (hasInstruction) {
    return byInstruction(bytes, size, before);
  }
#endif
  return crc32cByTable(bytes, size, before);
}

}  // namespace shardwire::internal
