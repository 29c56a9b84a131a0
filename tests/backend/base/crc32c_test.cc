// CRC-32C against published values, against a model of one bit at a time, and cut at every place.
#include "backend/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/random.h"

namespace shardwire::testing {
namespace {

using internal::crc32c;
using internal::crc32cByTable;

// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, PublishedValues) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  const std::pair<std::string, std::uint32_t> cases[] = {{"", 0},
                                                         {"123456789", 0xe3069283},
                                                         {std::string(32, '\0'), 0x8a9136aa},
                                                         {std::string(32, '\xff'), 0x62a8ab43},
                                                         {rising, 0x46dd794e},
                                                         {falling, 0x113fdb5c}};
  for (const auto& [bytes, sum] : cases) {
    EXPECT_EQ(crc32c(bytes.data(), bytes.size()), sum) << bytes;
    EXPECT_EQ(crc32cByTable(bytes.data(), bytes.size()), sum) << bytes;
  }
}

std::uint32_t bitByBit(std::string_view bytes) {
  std::uint32_t sum = 0xffffffff;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0x82f63b78 : 0);
    }
  }
  return ~sum;
}

TEST(Crc32c, EveryLengthAndPlaceAndCut) {
  Random random(3);
  std::string bytes(50000, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random.bits());
  }
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < 300; ++size) {
    sizes.push_back(size);
  }
  for (const std::size_t edge : {768U, 1536U, 12288U, 12288U + 768U, 24576U, 49000U}) {  // whole lanes
    for (std::size_t size = edge - 9; size < edge + 10; ++size) {
      sizes.push_back(size);
    }
  }
  for (const std::size_t size : sizes) {
    const std::size_t first = static_cast<std::size_t>(random.between(0, 17));
    const std::string_view part = std::string_view(bytes).substr(first, size);
    const std::uint32_t sum = bitByBit(part);
    ASSERT_EQ(crc32c(part.data(), part.size()), sum) << size;
    ASSERT_EQ(crc32cByTable(part.data(), part.size()), sum) << size;
    const auto cut = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(size)));
    ASSERT_EQ(crc32c(part.data() + cut, size - cut, crc32c(part.data(), cut)), sum) << size << " " << cut;
    ASSERT_EQ(crc32cByTable(part.data() + cut, size - cut, crc32cByTable(part.data(), cut)), sum) << size;
  }
}

}  // namespace
}  // namespace shardwire::testing
