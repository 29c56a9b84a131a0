#include "backend/sight/pickle.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

namespace shardwire::internal {

namespace {

using Json = nlohmann::json;

template <typename Integer>
void putLittleEndian(Integer value, std::string& to) {
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    to += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

// Bytes that are not UTF-8 become U+FFFD, as in the JSON of the same facts: pickle.load refuses these bytes.
std::string asUtf8(const std::string& text) {
  const auto isAscii = [](char each) { return static_cast<unsigned char>(each) < 0x80; };
  if (std::ranges::all_of(text, isAscii)) {
    return text;
  }
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

void putText(const std::string& given, std::string& to) {
  const std::string text = asUtf8(given);
  to += 'X';  // BINUNICODE
  putLittleEndian(static_cast<std::uint32_t>(text.size()), to);
  to += text;
}

void putDouble(double value, std::string& to) {
  to += 'G';  // BINFLOAT, big-endian
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) {
    to += static_cast<char>(bits >> shift);
  }
}

void put(const Json& value, std::string& to);

void putObject(const Json& value, std::string& to) {
  to += "}(";  // EMPTY_DICT MARK
  for (const auto& [key, each] : value.items()) {
    putText(key, to);
    put(each, to);
  }
  to += 'u';  // SETITEMS
}

void putArray(const Json& value, std::string& to) {
  to += "](";  // EMPTY_LIST MARK
  for (const Json& each : value) {
    put(each, to);
  }
  to += 'e';  // APPENDS
}

void put(const Json& value, std::string& to) {
  switch (value.type()) {
    case Json::value_t::object:
      return putObject(value, to);
    case Json::value_t::array:
      return putArray(value, to);
    case Json::value_t::string:
      return putText(value.get_ref<const std::string&>(), to);
    case Json::value_t::boolean:
      to += value.get<bool>() ? '\x88' : '\x89';
      return;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      to += "\x8a\x08";  // LONG1 of 8 bytes, two's complement: none of ours is larger
      return putLittleEndian(value.get<std::int64_t>(), to);
    case Json::value_t::number_float:
      return putDouble(value.get<double>(), to);
    default:
      to += 'N';
  }
}

}  // namespace

std::string pickled(const Json& value) {
  std::string bytes("\x80\x02", 2);
  put(value, bytes);
  bytes += '.';
  return bytes;
}

}  // namespace shardwire::internal
