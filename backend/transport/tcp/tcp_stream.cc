// The handshake, sending and receiving of a stream. Without TLS send() and receive() are one system call each. With TLS
// OpenSSL does the handshake and the records, over a BIO of ours: OpenSSL's own BIO for sockets would raise SIGPIPE,
// and could not be kept from the socket while only held bytes are wanted (receiveHeld()). Where the kernel encrypts
// (kTLS), sent bytes go to the socket as they are; received bytes pass through OpenSSL in any case.
//
// No certificates: the key is the identity of both ends. A client trusts no certificate and demands a trusted one of a
// server that does not take the key, so a server without the key fails. A server has no certificate, so a client
// without the key fails.
#include "backend/transport/tcp/tcp_stream.h"

#include <errno.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "backend/base/system_error.h"
#include "backend/fabric/link_message.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// One system call receives the records of four writes. OpenSSL could read ahead, too, but OpenSSL 3.5 (Debian
// 13) then fails to decrypt the bytes behind a change of the sender's key.
constexpr std::size_t kReadBytes = std::size_t{68} << 10;
constexpr char kConfirmation = 'T';
constexpr std::string_view kIdentity = "shardwire tcp";
constexpr std::array<unsigned char, 2> kCipher = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr int kBeginKernelTls = 72;  // BIO_CTRL_SET_KTLS, which OpenSSL sends to its BIO and does not publish

// The first reason of OpenSSL's queue of this thread.
std::string reason() {
  const unsigned long code = ::ERR_peek_error();
  const char* text = ::ERR_reason_error_string(code);
  return text != nullptr ? text : fmt::format("OpenSSL error {:x}", code);
}

bool isAlert() {
  return ::ERR_GET_REASON(::ERR_peek_error()) > SSL_AD_REASON_OFFSET;
}

ssize_t sendPlain(const Fd& socket, std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

class Tls {
 public:
  static Result<std::unique_ptr<Tls>> create(const Fd& socket, bool isClient, const Digest& key,
                                             std::uint64_t recordsPerKey);

  Result<bool> handshake(const Fd& socket);
  ssize_t send(const Fd& socket, std::span<const iovec> pieces);
  ssize_t receive(std::span<const iovec> pieces, bool onlyHeld);

  bool holdsBytes() const { return aheadBegin_ < aheadEnd_ || ::SSL_has_pending(ssl_.get()) != 0; }
  bool wantsToWrite() const { return SSL_want_write(ssl_.get()); }
  bool isSentByKernel() const { return isSentByKernel_; }
  const std::string& broken() const { return broken_; }

 private:
  struct Freed {
    void operator()(SSL* ssl) const { ::SSL_free(ssl); }
    void operator()(BIO* bio) const { ::BIO_free(bio); }
  };

  Tls(bool isClient, const Digest& key, std::uint64_t recordsPerKey)
      : isClient_(isClient), key_(key), recordsPerKey_(recordsPerKey) {}

  static SSL_CTX* context();
  static BIO_METHOD* method();
  // Called by OpenSSL.
  static int useKey(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* idBytes, SSL_SESSION** session);
  static int findKey(SSL* ssl, const unsigned char* id, std::size_t idBytes, SSL_SESSION** session);
  static int writeSocket(BIO* bio, const char* bytes, int size);
  static int readSocket(BIO* bio, char* bytes, int size);
  ssize_t receiveFromSocket(void* bytes, std::size_t size);
  static long controlSocket(BIO* bio, int command, long number, void* pointer);

  SSL_SESSION* makeSession() const;
  // Sets errno after a call of OpenSSL without success; EAGAIN: to be called again.
  void setErrno(int result);
  Status handshakeError() const;
  std::span<const std::byte> nextRecord(std::span<const iovec> pieces, std::size_t skipped);
  void changeKey(const Fd& socket);

  std::unique_ptr<BIO, Freed> bare_;  // OpenSSL's BIO of the socket, which knows the kernel's TLS
  std::unique_ptr<SSL, Freed> ssl_;
  const bool isClient_;
  const Digest key_;
  const std::uint64_t recordsPerKey_;
  std::uint64_t numRecords_ = 0;                   // sent under the current key
  std::array<std::byte, kMaxRecordBytes> record_;  // gathered pieces that are shorter than a record
  std::size_t unfinished_ = 0;                     // bytes of a record that the socket has not taken whole
  bool isShaken_ = false;                          // the handshake is done, as far as OpenSSL knows
  bool isSentByKernel_ = false;
  std::unique_ptr<char[]> ahead_;  // bytes from the socket, not seen by OpenSSL yet; null during the handshake
  std::size_t aheadBegin_ = 0;
  std::size_t aheadEnd_ = 0;
  bool mayRead_ = true;     // the socket
  bool isDrained_ = false;  // the last read of the socket took everything
  bool isEnded_ = false;
  int socketError_ = 0;  // errno of the socket's last call; 0: success
  std::string broken_;   // why TLS is over; empty: it is not
};

// ---- set-up

SSL_CTX* Tls::context() {
  // Never freed: streams may outlive static objects.
  static SSL_CTX* const made = [] {
    SSL_CTX* context = ::SSL_CTX_new(::TLS_method());
    if (context == nullptr || ::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        ::SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        ::SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        ::SSL_CTX_set_num_tickets(context, 0) != 1) {
      ::SSL_CTX_free(context);
      context = nullptr;
    } else {
      ::SSL_CTX_set_options(context, SSL_OP_ENABLE_KTLS);
      ::SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
      ::SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
      ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
      ::SSL_CTX_set_psk_use_session_callback(context, &Tls::useKey);
      ::SSL_CTX_set_psk_find_session_callback(context, &Tls::findKey);
    }
    return context;
  }();
  return made;
}

BIO_METHOD* Tls::method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* method = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "shardwire");
    if (method != nullptr) {
      ::BIO_meth_set_write(method, &Tls::writeSocket);
      ::BIO_meth_set_read(method, &Tls::readSocket);
      ::BIO_meth_set_ctrl(method, &Tls::controlSocket);
    }
    return method;
  }();
  return made;
}

Result<std::unique_ptr<Tls>> Tls::create(const Fd& socket, bool isClient, const Digest& key,
                                         std::uint64_t recordsPerKey) {
  ::ERR_clear_error();
  std::unique_ptr<Tls> tls(new Tls(isClient, key, recordsPerKey));
  const auto failed = [] {
    return Status{StatusCode::kSystem, fmt::format("OpenSSL cannot begin TLS 1.3 ({}): see its configuration "
                                                   "(openssl.cnf), or set SHARDWIRE_TCP_TLS=off on all ranks",
                                                   reason())};
  };
  if (context() == nullptr || method() == nullptr) {
    return failed();
  }
  tls->bare_.reset(::BIO_new_socket(socket.get(), BIO_NOCLOSE));
  tls->ssl_.reset(::SSL_new(context()));
  BIO* const bio = ::BIO_new(method());
  if (tls->bare_ == nullptr || tls->ssl_ == nullptr || bio == nullptr) {
    ::BIO_free(bio);
    return failed();
  }
  ::BIO_set_data(bio, tls.get());
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(tls->ssl_.get(), bio, bio);  // takes the BIO
  SSL_set_app_data(tls->ssl_.get(), tls.get());
  if (isClient) {
    ::SSL_set_verify(tls->ssl_.get(), SSL_VERIFY_PEER, nullptr);
    ::SSL_set_connect_state(tls->ssl_.get());
  } else {
    ::SSL_set_accept_state(tls->ssl_.get());
  }
  return tls;
}

SSL_SESSION* Tls::makeSession() const {
  SSL_SESSION* session = ::SSL_SESSION_new();
  if (session == nullptr || ::SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) != 1 ||
      ::SSL_SESSION_set_cipher(session, ::SSL_CIPHER_find(ssl_.get(), kCipher.data())) != 1 ||
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    ::SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int Tls::useKey(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* idBytes, SSL_SESSION** session) {
  *id = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *idBytes = kIdentity.size();
  *session = static_cast<const Tls*>(SSL_get_app_data(ssl))->makeSession();
  return *session != nullptr ? 1 : 0;
}

int Tls::findKey(SSL* ssl, const unsigned char* id, std::size_t idBytes, SSL_SESSION** session) {
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(id), idBytes) != kIdentity) {
    return 1;  // no such key: the handshake fails for want of a certificate
  }
  *session = static_cast<const Tls*>(SSL_get_app_data(ssl))->makeSession();
  return *session != nullptr ? 1 : 0;
}

// ---- the socket, as OpenSSL sees it

int Tls::writeSocket(BIO* bio, const char* bytes, int size) {
  auto& tls = *static_cast<Tls*>(::BIO_get_data(bio));
  ::BIO_clear_retry_flags(bio);
  if (BIO_get_ktls_send(tls.bare_.get())) {
    return size;  // an alert, which the kernel would take for bytes of the stream; the stream's end follows anyway
  }
  ssize_t sent = 0;
  do {
    sent = ::send(::BIO_get_fd(tls.bare_.get(), nullptr), bytes, static_cast<std::size_t>(size),
                  MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  tls.socketError_ = sent < 0 ? errno : 0;
  if (tls.socketError_ == EAGAIN) {
    ::BIO_set_retry_write(bio);
  }
  return static_cast<int>(sent);
}

int Tls::readSocket(BIO* bio, char* bytes, int size) {
  auto& tls = *static_cast<Tls*>(::BIO_get_data(bio));
  ::BIO_clear_retry_flags(bio);
  ssize_t received = size;
  if (tls.ahead_ == nullptr) {
    received = tls.receiveFromSocket(bytes, static_cast<std::size_t>(size));
  } else {
    if (tls.aheadBegin_ == tls.aheadEnd_) {
      received = tls.receiveFromSocket(tls.ahead_.get(), kReadBytes);
      tls.aheadBegin_ = 0;
      tls.aheadEnd_ = static_cast<std::size_t>(std::max<ssize_t>(received, 0));
    }
    if (tls.aheadBegin_ < tls.aheadEnd_) {
      tls.socketError_ = 0;
      received = std::min<ssize_t>(size, static_cast<ssize_t>(tls.aheadEnd_ - tls.aheadBegin_));
      std::memcpy(bytes, tls.ahead_.get() + tls.aheadBegin_, static_cast<std::size_t>(received));
      tls.aheadBegin_ += static_cast<std::size_t>(received);
    }
  }
  if (received < 0 && tls.socketError_ == EAGAIN) {
    ::BIO_set_retry_read(bio);
  }
  return static_cast<int>(received);
}

ssize_t Tls::receiveFromSocket(void* bytes, std::size_t size) {
  if (!mayRead_) {
    socketError_ = EAGAIN;
    return -1;
  }
  ssize_t received = 0;
  do {
    received = ::recv(::BIO_get_fd(bare_.get(), nullptr), bytes, size, MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  socketError_ = received < 0 ? errno : 0;
  isDrained_ = received < static_cast<ssize_t>(size);
  isEnded_ |= received == 0;
  return received;
}

long Tls::controlSocket(BIO* bio, int command, long number, void* pointer) {
  const auto& tls = *static_cast<const Tls*>(::BIO_get_data(bio));
  if (command == BIO_CTRL_EOF || (command == kBeginKernelTls && number == 0)) {
    return 0;  // the kernel decrypts nothing, since readSocket() reads bytes and no records
  }
  return ::BIO_ctrl(tls.bare_.get(), command, number, pointer);
}

// ---- handshake

void Tls::setErrno(int result) {
  const int what = ::SSL_get_error(ssl_.get(), result);
  if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
  } else if (what != SSL_ERROR_SSL && socketError_ != 0) {
    errno = socketError_;
  } else {
    broken_ = isAlert() ? fmt::format("rejects bytes of TLS that came from here: {}", reason())
                        : fmt::format("sent bytes that TLS rejects: {}", reason());
    errno = EBADMSG;
  }
}

Status Tls::handshakeError() const {
  if (isEnded_ || errno == ECONNRESET || errno == EPIPE) {
    return {StatusCode::kPeerFailed, "the peer closed the connection during the TLS handshake"};
  }
  if (errno != EBADMSG) {
    return peerError("the TLS handshake", errno);
  }
  return {
      StatusCode::kMismatch,
      fmt::format("the TLS handshake failed: the peer {}. Bytes were changed on the way, or another process answers",
                  broken_)};
}

Result<bool> Tls::handshake(const Fd& socket) {
  ::ERR_clear_error();
  if (!isShaken_) {
    if (const int result = ::SSL_do_handshake(ssl_.get()); result != 1) {
      setErrno(result);
      return errno == EAGAIN ? Result<bool>(false) : handshakeError();
    }
    if (::SSL_session_reused(ssl_.get()) != 1) {  // OpenSSL's word for: the key was used
      return Status{StatusCode::kMismatch, "the TLS handshake failed: the peer did not prove the key"};
    }
    isShaken_ = true;
    isSentByKernel_ = BIO_get_ktls_send(::SSL_get_wbio(ssl_.get()));
  }
  // A client is done before the server has checked the client's part.
  char byte = kConfirmation;
  const iovec piece{&byte, 1};
  const ssize_t moved = isClient_ ? receive({&piece, 1}, false) : send(socket, {&piece, 1});
  if (moved != 1) {
    return moved < 0 && errno == EAGAIN ? Result<bool>(false) : handshakeError();
  }
  // Not before: the server's next bytes stay in the socket, where epoll finds them.
  ahead_ = std::make_unique<char[]>(kReadBytes);
  return true;
}

// ---- bytes

// The bytes of the next record, behind `skipped` bytes of the pieces.
std::span<const std::byte> Tls::nextRecord(std::span<const iovec> pieces, std::size_t skipped) {
  const std::size_t wanted = unfinished_ != 0 ? unfinished_ : kMaxRecordBytes;
  std::size_t gathered = 0;
  for (const iovec& piece : pieces) {
    if (skipped >= piece.iov_len) {
      skipped -= piece.iov_len;
      continue;
    }
    const auto* from = static_cast<const std::byte*>(piece.iov_base) + skipped;
    const std::size_t some = std::min(piece.iov_len - skipped, wanted - gathered);
    skipped = 0;
    if (some == wanted) {
      return {from, some};  // no copy
    }
    std::memcpy(record_.data() + gathered, from, some);
    gathered += some;
    if (gathered == wanted) {
      break;
    }
  }
  return {record_.data(), gathered};
}

// Only where the socket takes the few bytes of the change: OpenSSL would not receive before they are sent, and two ends
// in this state would wait for each other.
void Tls::changeKey(const Fd& socket) {
  pollfd entry{socket.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) == 1 && ::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    numRecords_ = 0;
  }
}

ssize_t Tls::send(const Fd& socket, std::span<const iovec> pieces) {
  if (isSentByKernel_) {
    return sendPlain(socket, pieces);
  }
  if (!broken_.empty()) {
    errno = EBADMSG;
    return -1;
  }
  std::size_t total = 0;
  while (true) {
    const std::span<const std::byte> record = nextRecord(pieces, total);
    if (record.empty()) {
      return static_cast<ssize_t>(total);
    }
    if (numRecords_ >= recordsPerKey_ && unfinished_ == 0) {
      changeKey(socket);
    }
    ::ERR_clear_error();
    std::size_t sent = 0;
    if (const int result = ::SSL_write_ex(ssl_.get(), record.data(), record.size(), &sent); result != 1) {
      unfinished_ = record.size();
      setErrno(result);
      return total > 0 ? static_cast<ssize_t>(total) : -1;
    }
    unfinished_ = 0;
    ++numRecords_;
    total += sent;
  }
}

ssize_t Tls::receive(std::span<const iovec> pieces, bool onlyHeld) {
  mayRead_ = !onlyHeld;
  std::size_t total = 0;
  for (const iovec& piece : pieces) {
    for (std::size_t at = 0; at < piece.iov_len;) {
      if (!broken_.empty() || (isEnded_ && !holdsBytes()) || (total > 0 && isDrained_ && !holdsBytes())) {
        errno = EBADMSG;
        return total > 0 ? static_cast<ssize_t>(total) : broken_.empty() ? 0 : -1;
      }
      ::ERR_clear_error();
      std::size_t received = 0;
      const int result =
          ::SSL_read_ex(ssl_.get(), static_cast<std::byte*>(piece.iov_base) + at, piece.iov_len - at, &received);
      if (result != 1) {
        if (isEnded_) {  // in the middle of a record, or between two
          return static_cast<ssize_t>(total);
        }
        setErrno(result);
        return total > 0 ? static_cast<ssize_t>(total) : -1;
      }
      at += received;
      total += received;
    }
  }
  return static_cast<ssize_t>(total);
}

// ---- the stream

TcpStream::TcpStream(Fd socket) : socket_(std::move(socket)) {}
TcpStream::TcpStream(TcpStream&&) noexcept = default;
TcpStream& TcpStream::operator=(TcpStream&&) noexcept = default;
TcpStream::~TcpStream() = default;

Status TcpStream::beginTls(bool isClient, const Digest& key, std::uint64_t recordsPerKey) {
  auto tls = Tls::create(socket_, isClient, key, recordsPerKey);
  SW_RETURN_IF_ERROR(tls.status());
  tls_ = std::move(*tls);
  return Status::ok();
}

Result<bool> TcpStream::handshake() {
  return tls_->handshake(socket_);
}

short TcpStream::handshakeEvents() const {
  return tls_->wantsToWrite() ? POLLOUT : POLLIN;
}

ssize_t TcpStream::send(std::span<const iovec> pieces) {
  return tls_ == nullptr ? sendPlain(socket_, pieces) : tls_->send(socket_, pieces);
}

ssize_t TcpStream::receive(std::span<const iovec> pieces, bool onlyHeld) {
  if (tls_ != nullptr) {
    return tls_->receive(pieces, onlyHeld);
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
}

bool TcpStream::holdsBytes() const {
  return tls_ != nullptr && (tls_->holdsBytes() || holdsError());
}

bool TcpStream::holdsError() const {
  return tls_ != nullptr && !tls_->broken().empty();
}

Status TcpStream::error(std::string_view what) const {
  if (errno != EBADMSG || tls_ == nullptr) {
    return peerError(what, errno);
  }
  return {StatusCode::kMismatch,
          fmt::format("{}: something on the way between the two hosts changes bytes (a network card, a router, an "
                      "attacker); use another interface (SHARDWIRE_SOCKET_IFNAME)",
                      tls_->broken())};
}

const char* TcpStream::protection() const {
  return tls_ == nullptr ? "" : tls_->isSentByKernel() ? ", TLS 1.3 (sent by the kernel)" : ", TLS 1.3";
}

}  // namespace shardwire::internal
