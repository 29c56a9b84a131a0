// Ctrl-C in blocking calls. A program that embeds shardwire installs an InterruptCheck, which says whether the
// calling thread must leave its wait. Without an InterruptCheck waits end only at their deadlines.
#pragma once

#include "shardwire/export.h"

namespace shardwire {

// True: the waiting call on this thread gives up and returns kInterrupted. The function is called after a wait of 50
// ms, then at most every 100 ms. A check for signals of the main thread must first test the calling thread. No lock of
// a group is held during the call.
using InterruptCheck = bool (*)();

// The process has one check, since signals belong to the process; null: no check. Any thread.
SHARDWIRE_EXPORT void setInterruptCheck(InterruptCheck check);

}  // namespace shardwire
