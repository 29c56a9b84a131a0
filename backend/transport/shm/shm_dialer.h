// Links to other processes, made in the background: a caller requests a link, and is notified when the link is made.
// The process's fabric serves all requests on its thread. No request waits for another, nor for a process that does not
// answer.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/mutex.h"
#include "backend/transport/shm/shm_link.h"
#include "backend/transport/shm/shm_message.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// A request for a link. Dropping the request gives it up. Any thread.
class ShmLinkRequest {
 public:
  using Outcome = Result<std::shared_ptr<const ShmLink>>;
  // `onDone` is called once, on the serving thread, under no lock; `onDone` must not wait, nor drop the last holder of
  // the fabric.
  ShmLinkRequest(ProcessAddress to, std::string jobToken, std::function<void()> onDone);

  // Nothing while the link is under way. Errors of ShmLink::dial(), without kTimeout; kPeerFailed when no process
  // listens.
  std::optional<Outcome> outcome() const;
  // Called by the code that made the link, or has it already. Does not call onDone.
  void settle(Outcome outcome);

 private:
  friend class ShmDialer;

  const ProcessAddress to_;
  const std::string jobToken_;
  const std::function<void()> onDone_;
  mutable Mutex mutex_;
  std::optional<Outcome> outcome_ SW_GUARDED_BY(mutex_);
};

// One thread, except for add().
class ShmDialer {
 public:
  explicit ShmDialer(const RandomId& process) : process_(process) {}

  // Any thread. The request is served from the next serve() on.
  void add(const std::shared_ptr<ShmLinkRequest>& request);
  // Adds the sockets to watch before the next serve().
  void appendSockets(std::vector<pollfd>& fds) const;
  // Whether serve() is to be called again after a while, although nothing is readable: a Unix socket had no room.
  bool isPressed() const;
  // Called for each new link; returns the link to keep, which is another one if another link to the process was made
  // meanwhile.
  using Made = std::function<std::shared_ptr<const ShmLink>(const ProcessAddress& to,
                                                            const std::shared_ptr<const ShmLink>& link)>;
  // Goes on with all requests, without waiting. `made` is called before the request is settled.
  void serve(const Made& made);

 private:
  struct Dial {
    std::weak_ptr<ShmLinkRequest> request;
    std::optional<ShmLink::Question> question;  // none: the Unix socket had no room yet
  };
  std::optional<ShmLinkRequest::Outcome> advance(Dial& dial, const ShmLinkRequest& request) const;

  const RandomId process_;
  std::vector<Dial> dials_;
  Mutex mutex_;
  std::vector<std::weak_ptr<ShmLinkRequest>> added_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
