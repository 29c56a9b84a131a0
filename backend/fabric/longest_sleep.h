// The longest sleep at a doorbell without a ring. Bounds the loss when a peer dies between taking the armed flag and
// ringing. Any thread.
#pragma once

#include "shardwire/types.h"

namespace shardwire::internal {

// 100 ms, unless set.
Duration longestSleep();

// For tests, before they make doorbells: a lost wake-up must not look like a late wake-up on a busy machine.
void setLongestSleep(Duration wanted);

}  // namespace shardwire::internal
