// Our ids and statuses as fields of a wire format. All other fields are those of ops/wire/byte_codec.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "backend/base/interruptible_wait.h"
#include "backend/base/random_id.h"
#include "ops/wire/byte_codec.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// Two words of eight bytes.
inline void idField(ByteWriter& writer, const RandomId& id) {
  writer.u64(id.words[0]);
  writer.u64(id.words[1]);
}

inline RandomId readId(ByteReader& reader) {
  RandomId id;
  id.words[0] = reader.u64();
  id.words[1] = reader.u64();
  return id;
}
inline void idField(ByteReader& reader, RandomId& id) {
  id = readId(reader);
}

// The code in one byte, then at most `maxTextBytes` of the text.
inline void statusField(ByteWriter& writer, const Status& status, std::size_t maxTextBytes) {
  writer.u8(static_cast<std::uint8_t>(codeForPeers(status.code())));
  writer.text(std::string_view(status.message()).substr(0, maxTextBytes));
}

inline Status readStatus(ByteReader& reader, std::size_t maxTextBytes) {
  const auto code = static_cast<StatusCode>(reader.u8());
  std::string text = reader.text(maxTextBytes);
  if (static_cast<int>(code) >= kNumStatusCodes || code == StatusCode::kInterrupted) {
    reader.fail();
  }
  return code == StatusCode::kOk ? Status::ok() : Status{code, std::move(text)};
}
inline void statusField(ByteReader& reader, Status& status, std::size_t maxTextBytes) {
  status = readStatus(reader, maxTextBytes);
}

}  // namespace shardwire::internal
