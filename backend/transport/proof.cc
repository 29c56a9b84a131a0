#include "backend/transport/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <string>

#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

Digest hmac(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned int size = 0;
  const auto* made = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(), &size);
  SW_CHECK(made != nullptr && size == digest.size());  // fails only without memory or without SHA-256
  return digest;
}

// The first byte keeps the uses of a key apart.
enum class Use : std::uint8_t { kDialer = 1, kListener = 2, kSecret = 3 };

std::string transcript(Use use, const LinkHello& hello, const Challenge& dialer, const Challenge& listener) {
  ByteWriter writer;
  writer.text("shardwire link");
  writer.u8(kLinkVersion);
  writer.u8(static_cast<std::uint8_t>(use));
  writer.u32(static_cast<std::uint32_t>(hello.from));
  writer.u32(static_cast<std::uint32_t>(hello.to));
  writer.u32(hello.worldSize);
  writer.u8(hello.kind);
  writeId(writer, hello.door);
  writer.text(asText(dialer));
  writer.text(asText(listener));
  return writer.bytes();
}

}  // namespace

LinkKey makeLinkKey(const RandomId& token, std::string_view jobToken) {
  ByteWriter writer;
  writeId(writer, token);
  ByteWriter message;
  message.text("shardwire job");
  message.text(jobToken);
  return hmac(writer.bytes(), message.bytes());
}

RandomId makeHostToken(const RandomId& token, std::string_view jobToken) {
  const Digest digest = hmac(asText(makeLinkKey(token, jobToken)), "shardwire host");
  ByteReader reader(asText(digest));
  return readId(reader);
}

RandomId makeDoorId(const RandomId& token) {
  ByteWriter writer;
  writeId(writer, token);
  const Digest digest = hmac(writer.bytes(), "shardwire door");
  ByteReader reader(asText(digest));
  return readId(reader);
}

Result<Challenge> makeChallenge() {
  ByteWriter writer;
  for (int i = 0; i < 2; ++i) {
    const auto half = makeRandomId();
    SW_RETURN_IF_ERROR(half.status());
    writeId(writer, *half);
  }
  Challenge challenge;
  std::copy(writer.bytes().begin(), writer.bytes().end(), challenge.begin());
  return challenge;
}

Digest proveLink(const LinkKey& key, LinkRole role, const LinkHello& hello, const Challenge& dialer, const Challenge& listener) {
  return hmac(asText(key), transcript(role == LinkRole::kDialer ? Use::kDialer : Use::kListener, hello, dialer, listener));
}

Digest linkSecret(const LinkKey& key, const LinkHello& hello, const Challenge& dialer, const Challenge& listener) {
  return hmac(asText(key), transcript(Use::kSecret, hello, dialer, listener));
}

Digest proveSocket(const Digest& secret, std::string_view purpose) {
  return hmac(asText(secret), purpose);
}

bool sameDigest(std::string_view theirs, const Digest& ours) {
  return theirs.size() == ours.size() && ::CRYPTO_memcmp(theirs.data(), ours.data(), ours.size()) == 0;
}

}  // namespace shardwire::internal
