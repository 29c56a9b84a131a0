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

// What one side of a connection lays out for the other to try its reads on, and how often each trial reads it in one call. Trials of 128
// KiB are as fast as longer ones (11 GB/s where memcpy has 55; of 64 KiB 8). Fresh pages cost more than the reads: 32 KiB four times give
// the same speeds as 128 KiB once, for a third of the time (0.1 ms and 0.3).
inline constexpr std::size_t kProbeBytes = std::size_t{32} << 10;
inline constexpr std::size_t kProbeRepeats = 4;
void fillProbe(std::span<std::byte> buffer, std::uint64_t secret);

// Reads are used from this share of memcpy's rate on. Staging copies twice, but with both ranks at work and past the cache; on the machine
// this was measured on, reads at 0.33 of memcpy took 1.3 times as long as staging (docs/benchmarks.md).
inline constexpr double kReadsPayFrom = 0.45;

struct CrossMemorySpeed {
  double readGBps = 0;  // at least so much: measuring ends when it is clear whether reads pay
  double copyGBps = 0;  // of memcpy
  bool pays() const { return readGBps >= kReadsPayFrom * copyGBps; }
};

// Reads of the peer's pattern, and gives the speed of such reads, measured once in a process: 56 links of 8 ranks took 20 ms to measure it
// each. Not ok: it cannot be read, with the reason; also when the pid leads to another process (a pid of another namespace), which does not
// have the pattern of `secret`.
Result<CrossMemorySpeed> probeCrossMemory(pid_t pid, std::uint64_t remote, std::uint64_t secret, const char* who);

}  // namespace shardwire::internal
