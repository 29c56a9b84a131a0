// Links to other processes that are made while others go on: whoever needs one asks, and is told when it is there. The process's fabric
// serves all that are under way on its thread, none of which waits for another, nor for a process that does not answer.
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

// A link that was asked for. Dropping it gives it up. Any thread.
class ShmLinkRequest {
 public:
  using Outcome = Result<std::shared_ptr<const ShmLink>>;
  // `onDone` is called once, on the thread that serves, under no lock; it must not wait, nor drop the last holder of the fabric.
  ShmLinkRequest(ProcessAddress to, std::string jobToken, std::function<void()> onDone);

  // Nothing as long as it is under way. Errors as those of ShmLink::dial(), without kTimeout; kPeerFailed where nobody is.
  std::optional<Outcome> outcome() const;
  // By who made the link, or knows it. Does not call onDone.
  void settle(Outcome outcome);

 private:
  friend class ShmDialer;

  const ProcessAddress to_;
  const std::string jobToken_;
  const std::function<void()> onDone_;
  mutable Mutex mutex_;
  std::optional<Outcome> outcome_ SW_GUARDED_BY(mutex_);
};

// One thread, but for add().
class ShmDialer {
 public:
  explicit ShmDialer(const RandomId& process) : process_(process) {}

  // Any thread. To be served from the next serve() on.
  void add(const std::shared_ptr<ShmLinkRequest>& request);
  // What is to be looked at for it before the next serve().
  void appendSockets(std::vector<pollfd>& fds) const;
  // Whether serve() is to be called again after a while, although nothing is readable: a Unix socket had no room.
  bool isPressed() const;
  // Told of each new link; returns the one to that process that lasts, should another have been made meanwhile.
  using Made = std::function<std::shared_ptr<const ShmLink>(const ProcessAddress& to, const std::shared_ptr<const ShmLink>& link)>;
  // Goes on with all requests, without waiting. `made` is asked before the request is settled.
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
