// These functions ask the kernel about one connection: acknowledgements, and bytes under way. A connection of Multipath
// TCP has several paths, of which each may break alone. A few system calls; a socket is used by one thread at a time.
#pragma once

#include <cstddef>

#include "backend/base/fd.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// 1 for plain TCP. 0: all paths of Multipath TCP are closed, and nothing arrives any more.
std::size_t numPathsOf(const Fd& socket);
// Time since the last acknowledgement, while an acknowledgement is overdue on every path; else zero.
Duration silenceOf(const Fd& socket);
// The silence of one socket over repeated looks. A peer that reads nothing acknowledges only probes, which the kernel
// sends at growing intervals: while a probe is under way, the time since the last acknowledgement is that interval,
// although the acknowledgement is not late.
class Silence {
 public:
  // `silence`: as silenceOf() says now. Returns for how long an acknowledgement has been overdue, as far as looks saw.
  Duration look(Duration silence, Deadline now);

 private:
  bool isSilent_ = false;  // at the last look
  Deadline since_{};       // the first look of this silence
  Deadline heardAt_{};     // the last acknowledgement, as known at that look
};
// Bytes that the peer's kernel does not have yet. A connection that the peer reset sends nothing any more: 0.
int unacknowledgedOf(const Fd& socket);

}  // namespace shardwire::internal
