// Copying out of another process's memory with process_vm_readv. Any thread; its only state are the two speeds, of the machine and not of a
// peer.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "backend/transport/transport.h"

namespace shardwire::internal {

// Lets any process of this user read this one's memory where Yama restricts that to ancestors (ptrace_scope 1). Once per process is enough.
void allowCrossMemoryReads();

// Copies the runs. The error says which run failed and why; `who` names the peer in it.
Status readCrossMemory(pid_t pid, std::span<const MemoryRun> runs, const char* who);

// What a refusal means on this machine, for people: Yama's setting, seccomp, user namespaces.
std::string explainCrossMemoryError(int error);

// What one side of a connection lays out for the other to try its reads on. Reads of 128 KiB are as fast as longer ones (11 GB/s where
// memcpy has 55; of 64 KiB 8), and every page more is one to fill.
inline constexpr std::size_t kProbeBytes = std::size_t{128} << 10;
void fillProbe(std::span<std::byte> buffer, std::uint64_t secret);

struct CrossMemorySpeed {
  double readGBps = 0;
  double copyGBps = 0;  // of memcpy, which the reads are compared with
};

// Reads of the peer's pattern, and gives the speed of such reads, measured once in a process: 56 links of 8 ranks took 20 ms to measure it
// each. Not ok: it cannot be read, with the reason; also when the pid leads to another process (a pid of another namespace), which does not
// have the pattern of `secret`.
Result<CrossMemorySpeed> probeCrossMemory(pid_t pid, std::uint64_t remote, std::uint64_t secret, const char* who);

}  // namespace shardwire::internal
