// Writing and reading of our wire formats: little-endian fixed-width fields, varints, short vectors. The reader never reads past its bytes:
// after the first fault it returns zeros and `failed()` stays true, so that decoders check once per record instead of once per field.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "shardwire/types.h"

namespace shardwire::internal {

static_assert(std::endian::native == std::endian::little, "the codecs copy integers as they lie in memory");

class ByteWriter {
 public:
  template <typename T>
  void fixed(T value) {
    static_assert(std::is_integral_v<T>);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void varint(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<char>(value));
  }
  // Zigzag, so that the negative values of a wrong spec travel too.
  void signedVarint(std::int64_t value) { varint((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63)); }
  void text(std::string_view value) {
    varint(value.size());
    bytes_.append(value);
  }
  void varintDims(const Dims& dims) {
    fixed(static_cast<std::uint8_t>(dims.size()));
    for (const std::int64_t value : dims) {
      signedVarint(value);
    }
  }
  void fixedDims(const Dims& dims) {
    fixed(static_cast<std::uint8_t>(dims.size()));
    for (const std::int64_t value : dims) {
      fixed(value);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }
  bool atEnd() const { return bytes_.empty(); }
  void fail() {
    failed_ = true;
    bytes_ = {};
  }

  template <typename T>
  T fixed() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    if (bytes_.size() < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      if (shift == 63 && byte > 1) {
        break;  // more than 64 bits
      }
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    fail();
    return 0;
  }
  std::int64_t signedVarint() {
    const std::uint64_t raw = varint();
    return static_cast<std::int64_t>(raw >> 1) ^ -static_cast<std::int64_t>(raw & 1);
  }
  // An enumerator below `limit`.
  template <typename E>
  E enumerator(int limit) {
    const auto raw = fixed<std::uint8_t>();
    if (raw >= limit) {
      fail();
      return E{};
    }
    return static_cast<E>(raw);
  }
  bool boolean() {
    const auto raw = fixed<std::uint8_t>();
    if (raw > 1) {
      fail();
    }
    return raw == 1;
  }
  // How many records follow, each at least minBytes long: never more than the bytes left can hold.
  std::size_t count(std::uint64_t raw, std::size_t minBytes) {
    if (raw > bytes_.size() / minBytes) {
      fail();
      return 0;
    }
    return static_cast<std::size_t>(raw);
  }
  std::string text() {
    const std::size_t length = count(varint(), 1);
    std::string value(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return value;
  }
  Dims varintDims() {
    return dims([this] { return signedVarint(); });
  }
  Dims fixedDims() {
    return dims([this] { return fixed<std::int64_t>(); });
  }

 private:
  template <typename ReadOne>
  Dims dims(ReadOne readOne) {
    const auto numDims = fixed<std::uint8_t>();
    if (numDims > kMaxDims) {
      fail();
    }
    Dims values;
    for (int d = 0; d < numDims && !failed_; ++d) {
      values.push_back(readOne());
    }
    return values;
  }

  std::string_view bytes_;
  bool failed_ = false;
};

}  // namespace shardwire::internal
