// The Unix socket at which a process answers the other processes of its host. Foreign processes may find the socket,
// too, so all connections are read side by side, and a connection without a right token is rejected, logged and closed.
// One thread at a time.
//
// A process that presents a known token is welcomed: the process gets the bytes and descriptors of the welcome, and
// stays as a guest; the socket hangs up when either of the two ends. The listener also gives out this process's secret,
// only to processes of the same user, for which the kernel vouches (SO_PEERCRED). So two ranks of one user on one host
// have a secret that cannot be learned from the store, and no file or environment variable contains the secret.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "backend/base/wait_limit.h"
#include "backend/fabric/host_message.h"
#include "backend/fabric/rejections.h"
#include "backend/fabric/unix_socket.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The answer to a hello.
struct HostWelcome {
  std::string bytes;
  std::vector<int> fds;  // sent with the bytes
};

// The listener's decisions and answers.
struct HostAnswers {
  std::function<bool(const RandomId& token)> isWelcome;
  std::function<bool(const RandomId& token)> maySeeSecret;
  std::function<Result<HostWelcome>()> welcome;
  std::string secret;
};

class HostListener {
 public:
  // Listens at the abstract name; kSystem on failure.
  static Result<HostListener> create(const std::string& name, HostAnswers answers);
  // For poll(2): readable when serve() has something to do.
  const Fd& socket() const { return ready_; }
  // Goes on with all connections, without waiting. A new connection has five seconds to send a hello, and at most 128
  // connections may be new. When more arrive, new connections older than half a second are rejected; a rank sends its
  // hello within this time. True: a guest left.
  bool serve();
  // Whether serve() is to be called again after a while, although nothing is readable: some connections have only a
  // limited time.
  bool isPressed() const { return !isListening_ || numUnproved() > 0; }
  // Whether the process was welcomed and has not hung up.
  bool isGuest(const RandomId& process) const { return guests_.contains(process); }

  HostListener(HostListener&&) noexcept;
  HostListener& operator=(HostListener&&) noexcept;
  ~HostListener();

 private:
  struct Caller;  // an accepted connection

  HostListener();
  Status acceptAll();
  Status setListening(bool on);
  void advance(Caller& caller);
  void answerHello(Caller& caller, std::string_view bytes);
  void answerSecret(Caller& caller, std::string_view bytes);
  void reject(Caller& caller, const Status& why);
  void refuse(Caller& caller, const Status& why);
  void close(Caller& caller);
  std::size_t numUnproved() const;

  HostAnswers answers_;
  Fd listener_;
  bool isListening_ = true;  // listener_ is watched
  std::string whyNobody_;    // why no connection can be accepted now, as logged
  Rejections rejections_;
  Fd ready_;                                      // epoll set of the listener and of all callers
  std::vector<std::unique_ptr<Caller>> callers_;  // oldest first
  std::map<RandomId, int> guests_;                // by process: the number of open connections
};

// Dials the process that listens at the abstract name. An error other than kTimeout says why no process listens there,
// and how to fix this.
Result<Fd> dialProcess(const std::string& socketName, const WaitLimit& limit);
// Asks the process at the other end of `socket` for its secret, which the process gives to processes of the same user;
// the kernel vouches for the user of the asked process, too. The answer has arrived when the socket is readable.
Status askForSecret(const Fd& socket, const RandomId& token, const WaitLimit& limit);
Result<std::string> receiveSecret(const Fd& socket, const WaitLimit& limit);
// The process at the other end, as reported by the kernel. kUnsupported when the process belongs to another user:
// nothing is sent to such a process.
Result<UnixPeer> checkUser(const Fd& socket);

}  // namespace shardwire::internal
