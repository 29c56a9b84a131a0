// The fields of all our wire formats (specs, plans, addresses, handshakes, messages of links): little-endian
// fixed-width integers, varints, texts, short vectors. Each object belongs to one thread. The encoder of each format
// lists its fields, and each format has a golden test.
//
// The reader never reads past its bytes. After the first missing or impossible field, ok() is false and every value is
// zero or empty, so decoders check once per record instead of once per field.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shardwire/types.h"

namespace shardwire::internal {

static_assert(std::endian::native == std::endian::little, "the codec copies integers as they lie in memory");

class ByteWriter {
 public:
  template <typename T>
  void fixed(T value) {
    static_assert(std::is_integral_v<T>);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void u8(std::uint8_t value) { fixed(value); }
  void u32(std::uint32_t value) { fixed(value); }
  void u64(std::uint64_t value) { fixed(value); }
  void varint(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<char>(value));
  }
  // Zigzag encoding: negative values of a wrong spec must be carried too.
  void signedVarint(std::int64_t value) {
    varint((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }
  // The length in four bytes, then the text.
  void text(std::string_view value) {
    u32(static_cast<std::uint32_t>(value.size()));
    bytes_.append(value);
  }
  // The length as a varint, then the text.
  void varintText(std::string_view value) {
    varint(value.size());
    bytes_.append(value);
  }
  void varintDims(const Dims& dims) {
    u8(static_cast<std::uint8_t>(dims.size()));
    for (const std::int64_t value : dims) {
      signedVarint(value);
    }
  }
  void fixedDims(const Dims& dims) {
    u8(static_cast<std::uint8_t>(dims.size()));
    for (const std::int64_t value : dims) {
      fixed(value);
    }
  }
  // Fields of formats that list their fields once, for both directions: the functions of the same names in ByteReader.
  // The list is a constant such as
  //   constexpr auto kHelloFields = [](auto& codec, auto& hello) {
  //     codec.field(hello.rank);
  //     codec.field(hello.name, kMaxNameBytes);
  //   };
  template <std::integral T>
  void field(T value) {
    fixed(value);
  }
  void field(bool value) { u8(value ? 1 : 0); }
  void wideField(std::uint16_t value) { u32(value); }  // in four bytes
  void field(std::string_view value, std::size_t most) { text(value.substr(0, most)); }
  void field(const Dims& value) { fixedDims(value); }
  template <typename E>
  void enumField(E value, int) {
    u8(static_cast<std::uint8_t>(value));
  }
  template <typename Items, typename Fields>
  void listField(const Items& items, std::size_t most, Fields fields) {
    const std::size_t count = std::min(items.size(), most);
    u32(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      fields(*this, items[i]);
    }
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  // The bytes must outlive the reader.
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  // Everything was read, and was there.
  bool isDone() const { return ok_ && rest_.empty(); }
  // The bytes not read yet.
  std::string_view rest() const { return rest_; }
  // For a field with an impossible value.
  void fail() {
    ok_ = false;
    rest_ = {};
  }

  template <typename T>
  T fixed() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    if (const std::string_view field = take(sizeof value); field.size() == sizeof value) {
      std::memcpy(&value, field.data(), sizeof value);
    }
    return value;
  }
  std::uint8_t u8() { return fixed<std::uint8_t>(); }
  std::uint32_t u32() { return fixed<std::uint32_t>(); }
  std::uint64_t u64() { return fixed<std::uint64_t>(); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(rest_.front());
      rest_.remove_prefix(1);
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
    const std::uint8_t raw = u8();
    if (raw >= limit) {
      fail();
      return E{};
    }
    return static_cast<E>(raw);
  }
  bool boolean() {
    const std::uint8_t raw = u8();
    if (raw > 1) {
      fail();
    }
    return raw == 1;
  }
  // How many records follow, each at least minBytes long: never more than the bytes left can hold.
  std::size_t count(std::uint64_t raw, std::size_t minBytes) {
    if (raw > rest_.size() / minBytes) {
      fail();
      return 0;
    }
    return static_cast<std::size_t>(raw);
  }
  // A text longer than `most` counts as a missing field.
  std::string text(std::size_t most) {
    const std::size_t size = u32();
    if (size > most) {
      fail();
    }
    return std::string(take(size));
  }
  std::string varintText() { return std::string(take(count(varint(), 1))); }
  Dims varintDims() {
    return dims([this] { return signedVarint(); });
  }
  Dims fixedDims() {
    return dims([this] { return fixed<std::int64_t>(); });
  }

  template <std::integral T>
  void field(T& value) {
    value = fixed<T>();
  }
  void field(bool& value) { value = boolean(); }
  void wideField(std::uint16_t& value) {
    const std::uint32_t raw = u32();
    value = static_cast<std::uint16_t>(raw);
    if (value != raw) {
      fail();
    }
  }
  void field(std::string& value, std::size_t most) { value = text(most); }
  void field(Dims& value) { value = fixedDims(); }
  template <typename E>
  void enumField(E& value, int limit) {
    value = enumerator<E>(limit);
  }
  // At most `most` items, behind their number in four bytes. `fields` lists the fields of one item.
  template <typename Items, typename Fields>
  void listField(Items& items, std::size_t most, Fields fields) {
    const std::size_t count = u32();
    if (count > most) {
      fail();
    }
    for (std::size_t i = 0; i < count && ok_; ++i) {
      fields(*this, items.emplace_back());
    }
  }

 private:
  // Empty when there are fewer.
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) {
      fail();
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <typename ReadOne>
  Dims dims(ReadOne readOne) {
    const std::uint8_t numDims = u8();
    if (numDims > kMaxDims) {
      fail();
    }
    Dims values;
    for (int d = 0; d < numDims && ok_; ++d) {
      values.push_back(readOne());
    }
    return values;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace shardwire::internal
