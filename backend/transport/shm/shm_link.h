// A link from this process to another process of its host: the other process's memory, mapped here, and a socket that
// hangs up when the other process ends. One for all groups that join ranks of the two processes. Made by a request to
// the other process's listener, which needs no agreement of a rank. Any thread.
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
  // Requests a link from the process at `to`, with its token and the job's as proof. `process`: the id of this process.
  // kUnsupported: no process listens, or the process belongs to another user; kMismatch: the process refuses;
  // kPeerFailed: the process ended; kTimeout at the limit.
  static Result<std::shared_ptr<const ShmLink>> dial(const ProcessAddress& to, std::string_view jobToken,
                                                     const RandomId& process, const WaitLimit& limit);
  // The same in two steps, for callers that do not wait: a socket to the asked process, and the link when the answer is
  // there.
  struct Question {
    Fd socket;
    pid_t pid = 0;  // of the process, as reported by the kernel
  };
  static Result<Question> ask(Fd socket, const ProcessAddress& to, std::string_view jobToken, const RandomId& process,
                              const WaitLimit& limit);
  static Result<std::shared_ptr<const ShmLink>> answered(Question question, const ProcessAddress& to,
                                                         const WaitLimit& limit);

  // As reported by the kernel; 0: the process has no number in this pid namespace.
  pid_t pid() const { return pid_; }
  // The arena with the inboxes of the other process's groups.
  int arenaFd() const { return arena_.get(); }
  std::uint64_t arenaBytes() const { return arenaBytes_; }
  // The first page of the arena.
  ShmProcessPage& page() const { return *reinterpret_cast<ShmProcessPage*>(page_.bytes()); }
  const ShmLiveness& liveness() const { return *reinterpret_cast<const ShmLiveness*>(liveness_.bytes()); }
  // The other process's shared heap; null: the process has none, or the text says why the heap cannot be mapped.
  const std::shared_ptr<const Mapping>& heap() const { return heap_; }
  const std::string& whyNoHeap() const { return whyNoHeap_; }
  // The speed of reads of the other process's ordinary memory, or why it cannot be read. Tried once, at the first call.
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
