// The Unix socket at which a process answers the others of its host, among strangers that may find it too: everybody who dials is read
// beside the others, and who is not welcome is refused, logged and forgotten. One thread at a time.
//
// Who shows a token that this process knows gets its memory, and stays as a guest: the socket hangs up when either of the two ends. It also
// hands out this process's secret, to processes of its own user only, for which the kernel vouches (SO_PEERCRED). So two ranks of one user
// on one host have a secret that nobody learns who merely reads the store, and nothing of it lies in a file or an environment.
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
#include "backend/fabric/unix_socket.h"
#include "backend/transport/shm/shm_message.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// What is said to whom.
struct ShmAnswers {
  std::function<bool(const RandomId& token)> isWelcome;
  std::function<bool(const RandomId& token)> maySeeSecret;
  ShmWelcome welcome;
  std::vector<int> fds;  // that go with it
  std::string secret;
};

class ShmListener {
 public:
  // Listens at the abstract name; kSystem when it cannot.
  static Result<ShmListener> create(const std::string& name, ShmAnswers answers);
  // For poll(2): readable when serve() has something to do.
  const Fd& socket() const { return ready_; }
  // Goes on with all who dialed, without waiting. A stranger has five seconds, and there are at most 128 of them: when more come, those go
  // who had half a second, in which a rank says its hello. True: a guest left.
  bool serve();
  // Whether serve() is to be called again after a while, although nothing is readable: some have only so long to speak.
  bool isPressed() const { return !isListening_ || numStrangers() > 0; }
  // Whether a process has a link to this one.
  bool isGuest(const RandomId& process) const { return guests_.contains(process); }

  ShmListener(ShmListener&&) noexcept;
  ShmListener& operator=(ShmListener&&) noexcept;
  ~ShmListener();

 private:
  struct Caller;  // somebody who dialed

  ShmListener();
  Status letIn();
  Status setListening(bool on);
  void advance(Caller& caller);
  void answerHello(Caller& caller, std::string_view bytes);
  void answerSecret(Caller& caller, std::string_view bytes);
  void turnAway(Caller& caller, const Status& why);
  void turnAwayUser(const UnixPeer& peer);
  void forget(Caller& caller);
  std::size_t numStrangers() const;

  ShmAnswers answers_;
  Fd listener_;
  bool isListening_ = true;                       // listener_ is looked at
  std::string whyNobody_;                         // why nobody can be let in now, as it was logged
  std::uint64_t numOtherUsers_ = 0;               // who dialed
  Deadline nextWarning_{};                        // of those
  Fd ready_;                                      // epoll set of the listener and of all callers
  std::vector<std::unique_ptr<Caller>> callers_;  // oldest first
  std::map<RandomId, int> guests_;                // by process: how many of its links are open
};

// To the process that listens at the abstract name. An error other than kTimeout says where nobody may be, and how to mend it.
Result<Fd> dialProcess(const std::string& socketName, const WaitLimit& limit);
// Asks the process to which `socket` leads for its secret, which it gives to processes of its own user; the kernel vouches for that
// process's user, too. The answer is there when the socket is readable.
Status askForSecret(const Fd& socket, const RandomId& token, const WaitLimit& limit);
Result<std::string> receiveSecret(const Fd& socket, const WaitLimit& limit);
// The process at the other end, which the kernel vouches for: nothing is told to another user's process.
Result<UnixPeer> checkUser(const Fd& socket);

}  // namespace shardwire::internal
