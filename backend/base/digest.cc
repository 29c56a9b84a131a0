#include "backend/base/digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <memory>

#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

class Sha256 {
 public:
  Sha256() : context_(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free) {
    SW_CHECK(context_ != nullptr && ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr) == 1);
  }
  void add(std::string_view part) {
    ByteWriter length;
    length.u64(part.size());
    addBytes(length.bytes());
    addBytes(part);
  }
  Digest end() {
    Digest digest;
    unsigned int size = 0;
    SW_CHECK(::EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1 && size == digest.size());
    return digest;
  }

 private:
  // Fails only without memory or without SHA-256.
  void addBytes(std::string_view bytes) {
    SW_CHECK(::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }

  const std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_;
};

template <typename Parts>
Digest digestOfAll(const Parts& parts) {
  Sha256 hash;
  for (const auto& part : parts) {
    hash.add(part);
  }
  return hash.end();
}

}  // namespace

Digest digestOf(std::span<const std::string_view> parts) {
  return digestOfAll(parts);
}

Digest digestOf(std::span<const std::string> parts) {
  return digestOfAll(parts);
}

std::string hexOf(const Digest& digest) {
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace shardwire::internal
