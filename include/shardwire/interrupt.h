// Ctrl-C in calls that block. Who embeds shardwire says how to learn that a thread is to leave its wait; without that, waits end at their
// deadlines only.
#pragma once

namespace shardwire {

// True: the call that waits on this thread gives up and returns kInterrupted. Called every 100 ms at most by threads that have waited for
// 50 ms, on whichever thread it is: a check for signals of the main thread looks for itself. No lock of a group is held.
using InterruptCheck = bool (*)();

// One for the process, as signals are; null: none. Any thread.
void setInterruptCheck(InterruptCheck check);

}  // namespace shardwire
