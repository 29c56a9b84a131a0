// A link from this process to another of its host: that one's memory, mapped here, and a socket that hangs up when it ends. One for all
// groups that join ranks of the two processes; made by asking the other's listener, which needs nobody's agreement. Any thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "backend/base/fd.h"
#include "backend/base/mapping.h"
#include "backend/base/mutex.h"
#include "backend/base/wait_limit.h"
#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/shm_message.h"
#include "backend/transport/shm/shm_page.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class ShmLink {
 public:
  // Asks the process at `to`, showing its token with the job's. `process`: this one's id. kUnsupported: nobody is there, or it is
  // another user's; kMismatch: it refuses; kPeerFailed: it ended; kTimeout at the limit.
  static Result<std::shared_ptr<const ShmLink>> dial(const ProcessAddress& to, std::string_view jobToken, const RandomId& process,
                                                     const WaitLimit& limit);
  // The same in two steps, for who does not wait: a socket to the process that was asked, and the link when its answer is there.
  struct Question {
    Fd socket;
    pid_t pid = 0;  // of the process, as the kernel says
  };
  static Result<Question> ask(Fd socket, const ProcessAddress& to, std::string_view jobToken, const RandomId& process,
                              const WaitLimit& limit);
  static Result<std::shared_ptr<const ShmLink>> answered(Question question, const ProcessAddress& to, const WaitLimit& limit);

  // As the kernel says; 0: it has no number in this pid namespace.
  pid_t pid() const { return pid_; }
  // Where the inboxes of its groups lie.
  int arenaFd() const { return arena_.get(); }
  std::uint64_t arenaBytes() const { return arenaBytes_; }
  // Its first page.
  ShmProcessPage& page() const { return *reinterpret_cast<ShmProcessPage*>(page_.bytes()); }
  const ShmLiveness& liveness() const { return *reinterpret_cast<const ShmLiveness*>(liveness_.bytes()); }
  // Its shared heap; null: it has none, or the text says why it cannot be mapped.
  const std::shared_ptr<const Mapping>& heap() const { return heap_; }
  const std::string& whyNoHeap() const { return whyNoHeap_; }
  // How fast its ordinary memory is read, or why it cannot be. Tried once, when first asked for.
  Result<CrossMemorySpeed> readSpeed() const;
  // The process ended, or has no groups any more.
  bool isHungUp() const;

 private:
  ShmLink() = default;

  Fd socket_;
  pid_t pid_ = 0;
  Fd arena_;
  std::uint64_t arenaBytes_ = 0;
  Mapping page_;
  Mapping liveness_;
  std::shared_ptr<const Mapping> heap_;
  std::string whyNoHeap_;
  std::uint64_t probeAddress_ = 0;
  std::uint64_t probeSecret_ = 0;
  mutable Mutex mutex_;
  mutable std::unique_ptr<const Result<CrossMemorySpeed>> readSpeed_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
