// Our ids as fields of a wire format: two words of eight bytes. All other fields are those of ops/wire/byte_codec.h.
#pragma once

#include "backend/base/random_id.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {

inline void writeId(ByteWriter& writer, const RandomId& id) {
  writer.u64(id.words[0]);
  writer.u64(id.words[1]);
}

inline RandomId readId(ByteReader& reader) {
  RandomId id;
  id.words[0] = reader.u64();
  id.words[1] = reader.u64();
  return id;
}

}  // namespace shardwire::internal
