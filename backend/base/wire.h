// Fixed-width little-endian fields in a string of bytes. The reader checks bounds: after a field that is not there, ok() is false and every
// value is zero or empty.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"

namespace shardwire::internal {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void id(const RandomId& value) {
    u64(value.words[0]);
    u64(value.words[1]);
  }
  // Its length in four bytes, then the text.
  void text(std::string_view value) {
    u32(static_cast<std::uint32_t>(value.size()));
    bytes_.append(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void number(std::uint64_t value, int numBytes) {
    for (int i = 0; i < numBytes; ++i) {
      u8(static_cast<std::uint8_t>(value >> (8 * i)));
    }
  }
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  RandomId id() {
    RandomId value;
    value.words[0] = u64();
    value.words[1] = u64();
    return value;
  }
  std::string text(std::size_t most) {
    const std::size_t size = u32();
    if (size > most) {
      fail();
      return {};
    }
    return std::string(take(size));
  }
  bool ok() const { return ok_; }
  // Everything was read, and was there.
  bool isDone() const { return ok_ && rest_.empty(); }
  // For a field whose value cannot be.
  void fail() {
    ok_ = false;
    rest_ = {};
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) {
      fail();
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::uint64_t number(std::size_t numBytes) {
    std::uint64_t value = 0;
    const std::string_view taken = take(numBytes);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    }
    return value;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace shardwire::internal
