// The change of a sender's TLS key in the middle of a stream. tcp changes the key after 2^24 records, and no simulation
// sends as many. So the linker calls this SSL_write_ex() in place of the library's (tests/CMakeLists.txt, --wrap). The
// function changes the key after a few records, under the conditions of Tls::changeKey(): before a record, and where
// the socket takes bytes. The simulation leaves tcp's own count out (tests/backend/transport/tcp/tls_test.cc).
#include <openssl/ssl.h>

#include "shardwire/status.h"
#include "tests/simulate/sockets.h"

namespace shardwire::simulate {
namespace {

// Records that a sender has sent under the present key.
struct SentRecords {
  std::uint64_t numRecords = 0;
  bool isUnfinished = false;  // the socket has taken a part of one more record
};

SentRecords& sentBy(SSL* ssl) {
  static const int kIndex = ::SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* records, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<SentRecords*>(records); });
  auto* records = static_cast<SentRecords*>(::SSL_get_ex_data(ssl, kIndex));
  if (records == nullptr) {
    records = new SentRecords;
    SW_CHECK(::SSL_set_ex_data(ssl, kIndex, records) == 1);
  }
  return *records;
}

}  // namespace

extern "C" {

int __real_SSL_write_ex(SSL* ssl, const void* bytes, std::size_t size, std::size_t* sent);

int __wrap_SSL_write_ex(SSL* ssl, const void* bytes, std::size_t size, std::size_t* sent) {
  if (Sockets::current() == nullptr) {
    return __real_SSL_write_ex(ssl, bytes, size, sent);
  }
  SentRecords& records = sentBy(ssl);
  const int fd = static_cast<int>(BIO_get_fd(::SSL_get_wbio(ssl), nullptr));
  if (!records.isUnfinished && Sockets::current()->changesKey(fd, records.numRecords) &&
      ::SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    records.numRecords = 0;
  }
  const int result = __real_SSL_write_ex(ssl, bytes, size, sent);
  records.isUnfinished = result != 1;
  records.numRecords += result == 1 ? 1 : 0;
  return result;
}

}  // extern "C"

}  // namespace shardwire::simulate
