// Copies out of another process's memory with process_vm_readv. Any thread; the only state is the two speeds, which
// belong to the machine and not to a peer.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "backend/transport/transport.h"

namespace shardwire::internal {

// Allows every process of this user to read this process's memory where Yama restricts such reads to ancestors
// (ptrace_scope 1). One call per process is enough.
void allowCrossMemoryReads();

// Copies the runs. The error says which run failed and why; `who` names the peer in the error.
Status readCrossMemory(pid_t pid, std::span<const MemoryRun> runs, const char* who);

// The meaning of a refusal on this machine, for people: Yama's setting, seccomp, user namespaces.
std::string explainCrossMemoryError(int error);

// The pattern that one side of a connection prepares for trial reads by the other, and the number of reads of the
// pattern in one call. Trials of 128 KiB are as fast as longer ones (11 GB/s where memcpy has 55; 8 with 64 KiB). Fresh
// pages cost more than the reads: 32 KiB four times give the same speeds as 128 KiB once, for a third of the time (0.1
// ms instead of 0.3).
inline constexpr std::size_t kProbeBytes = std::size_t{32} << 10;
inline constexpr std::size_t kProbeRepeats = 4;
void fillProbe(std::span<std::byte> buffer, std::uint64_t secret);

// Reads are used if their rate is at least this share of memcpy's rate. Staging copies twice, but with both ranks at
// work and past the cache. On the measured machine, reads at 0.33 of memcpy took 1.3 times as long as staging
// (docs/benchmarks.md).
inline constexpr double kReadsPayFrom = 0.45;

struct CrossMemorySpeed {
  double readGBps = 0;  // a lower bound: measuring ends when it is clear whether reads pay
  double copyGBps = 0;  // of memcpy
  bool pays() const { return readGBps >= kReadsPayFrom * copyGBps; }
};

// Reads the peer's pattern, and returns the speed of such reads, measured once in a process: measuring for each of the
// 56 links of 8 ranks took 20 ms in all. Not ok: the pattern cannot be read, with the reason; also when the pid leads
// to another process (a pid of another namespace), which does not have the pattern of `secret`.
Result<CrossMemorySpeed> probeCrossMemory(pid_t pid, std::uint64_t remote, std::uint64_t secret, const char* who);

}  // namespace shardwire::internal
