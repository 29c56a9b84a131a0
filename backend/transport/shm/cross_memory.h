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

// The pattern that one side of a connection prepares for a trial read by the other.
inline constexpr std::size_t kProbeBytes = 4096;
void fillProbe(std::span<std::byte> buffer, std::uint64_t secret);

// Reads are used if their rate is at least this share of memcpy's rate, both from and to memory that no cache holds:
// staging copies the bytes twice, and each rank makes one of the two copies for both of its directions.
inline constexpr double kReadsPayFrom = 0.5;

// Rates of copies of kTrialBytes from and to memory that no cache holds. Longer copies are faster, by the same factor
// for both within a quarter.
inline constexpr std::size_t kTrialBytes = std::size_t{64} << 10;
struct CrossMemorySpeed {
  double readGBps = 0;  // a lower bound: measuring ends when it is clear whether reads pay
  double copyGBps = 0;  // of memcpy
  bool pays() const { return readGBps >= kReadsPayFrom * copyGBps; }
};

// Reads the peer's pattern, and returns the speed of reads, measured once in a process, on memory of this process:
// measuring for each of the 56 links of 8 ranks took 20 ms in all. Not ok: the pattern cannot be read, with the reason;
// also when the pid leads to another process (a pid of another namespace), which does not have the pattern of `secret`.
Result<CrossMemorySpeed> probeCrossMemory(pid_t pid, std::uint64_t remote, std::uint64_t secret, const char* who);

}  // namespace shardwire::internal
