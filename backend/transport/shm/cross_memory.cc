// Reads another process's memory by process_vm_readv, in batches with as many pieces as the kernel takes; neighbouring
// runs become one piece on each side. Whether such reads pay is measured, not assumed: the reader first checks a
// pattern at an address named by the other process, which proves that the pid leads to the other process. Then the
// reader times reads of its own memory against memcpy until the decision is clear, both past the caches, where
// tensors lie that are worth the choice. The speeds hold for the machine, so each process measures once. If reads are
// forbidden, the error names the cause (Yama, seccomp, namespaces).
#include "backend/transport/shm/cross_memory.h"

#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/base/evict.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kMaxPieces = IOV_MAX;  // per call and side, the kernel's limit
// A speed is known when this number of rounds in a row was hardly faster than the best earlier round.
constexpr int kMostProbeRounds = 8;
constexpr int kRoundsWithoutGain = 3;
// After kFewestReads reads, the first into cold memory, measuring ends when it is clear whether reads pay: the reads
// reach the share kReadsPayFrom of memcpy's rate, or less than kWellBelow of this share.
constexpr int kFewestReads = 3;
constexpr double kWellBelow = 0.5;

// The position of the copy: the next byte is byte `offset` of runs[run].
struct Cursor {
  std::size_t run = 0;
  std::size_t offset = 0;
};

// Pieces of one call. Neighbours on one side are one piece there, even if they are apart on the other side.
class Batch {
 public:
  // Takes runs from `cursor` on until either side is full.
  Batch(std::span<const MemoryRun> runs, Cursor cursor) {
    for (; cursor.run < runs.size(); ++cursor.run, cursor.offset = 0) {
      const MemoryRun& run = runs[cursor.run];
      const std::size_t bytes = run.bytes - cursor.offset;
      if (bytes == 0) {
        continue;
      }
      std::byte* local = run.local + cursor.offset;
      // An address in the other process: never dereferenced here.
      std::byte* remote = reinterpret_cast<std::byte*>(run.remote + cursor.offset);
      const bool localJoins = joins(locals_, numLocals_, local);
      const bool remoteJoins = joins(remotes_, numRemotes_, remote);
      if ((!localJoins && numLocals_ == kMaxPieces) || (!remoteJoins && numRemotes_ == kMaxPieces)) {
        break;
      }
      append(locals_, &numLocals_, localJoins, local, bytes);
      append(remotes_, &numRemotes_, remoteJoins, remote, bytes);
      bytes_ += bytes;
    }
  }

  std::size_t bytes() const { return bytes_; }
  ssize_t readFrom(pid_t pid) const {
    return ::process_vm_readv(pid, locals_.data(), numLocals_, remotes_.data(), numRemotes_, 0);
  }

 private:
  using Pieces = std::array<iovec, kMaxPieces>;

  static bool joins(const Pieces& pieces, std::size_t count, const std::byte* next) {
    return count > 0 && static_cast<std::byte*>(pieces[count - 1].iov_base) + pieces[count - 1].iov_len == next;
  }
  static void append(Pieces& pieces, std::size_t* count, bool joined, std::byte* bytes, std::size_t size) {
    if (joined) {
      pieces[*count - 1].iov_len += size;
    } else {
      pieces[(*count)++] = {bytes, size};
    }
  }

  Pieces locals_;  // initialised only up to the used length
  Pieces remotes_;
  std::size_t numLocals_ = 0;
  std::size_t numRemotes_ = 0;
  std::size_t bytes_ = 0;
};

void advance(std::span<const MemoryRun> runs, Cursor* cursor, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t step = std::min(bytes, runs[cursor->run].bytes - cursor->offset);
    bytes -= step;
    cursor->offset += step;
    if (cursor->offset == runs[cursor->run].bytes) {
      ++cursor->run;
      cursor->offset = 0;
    }
  }
}

Status readError(const MemoryRun& run, std::size_t offset, const char* who, int error) {
  const std::string text = fmt::format("reading {} bytes at {:#x} of {} (process_vm_readv): {}", run.bytes - offset,
                                       run.remote + offset, who, errnoText(error));
  if (error == ESRCH) {
    // The kernel takes away a process's memory before the last thread, which holds the liveness mark.
    return {StatusCode::kPeerFailed, fmt::format("{} died ({})", who, text)};
  }
  if (error == EFAULT) {
    return {StatusCode::kInternal, text + "; the range is not (or no longer) readable memory on one of the two sides"};
  }
  return {StatusCode::kSystem, text + explainCrossMemoryError(error)};
}

// The pattern, in words of 8 bytes.
std::uint64_t probeWord(std::uint64_t secret, std::size_t index) {
  return secret ^ (index & 0xff) * 0x0101010101010101;
}

bool isPattern(std::span<const std::uint64_t> words, std::uint64_t secret) {
  std::size_t index = 0;
  return std::ranges::all_of(words, [&](std::uint64_t word) { return word == probeWord(secret, index++); });
}

// The best of rounds that move `bytes` each.
class BestSpeed {
 public:
  explicit BestSpeed(std::size_t bytes) : bytes_(bytes) {}

  template <typename Round>
  void add(const Round& round) {
    const auto start = Clock::now();
    round();
    const Duration took = std::max(Clock::now() - start, Duration(1));
    withoutGain_ = took < best_ - best_ / 32 ? 0 : withoutGain_ + 1;
    best_ = std::min(best_, took);
    ++rounds_;
  }
  bool isKnown() const { return withoutGain_ == kRoundsWithoutGain || rounds_ == kMostProbeRounds; }
  int rounds() const { return rounds_; }
  double gbps() const {
    return static_cast<double>(bytes_) / static_cast<double>(best_.count());
  }  // bytes per nanosecond

 private:
  const std::size_t bytes_;
  Duration best_ = Duration::max();
  int withoutGain_ = 0;
  int rounds_ = 0;
};

// This machine's speeds; 0: not measured yet. Two threads may measure at once. There is no lock, since a child of
// fork() could find the lock taken for ever. The reads' speed is set last.
std::atomic<double> readSpeed = 0;
std::atomic<double> copySpeed = 0;

// Whether more reads can hardly change the decision.
bool isDecided(const BestSpeed& reads, const CrossMemorySpeed& speed) {
  return reads.isKnown() || (reads.rounds() >= kFewestReads &&
                             (speed.pays() || speed.readGBps < kWellBelow * kReadsPayFrom * speed.copyGBps));
}

// Within the caches memcpy runs three to five times as fast as in memory, and reads do not: so each trial begins with
// both buffers outside of the caches. Each read costs more than all copies, and every rank of every job measures: so no
// more reads are made than the decision needs.
Status measureSpeeds() {
  const auto buffers = std::make_unique<std::byte[]>(2 * kTrialBytes);  // written, so that no trial meets a fresh page
  const std::span from(buffers.get(), kTrialBytes);
  std::byte* const to = buffers.get() + kTrialBytes;
  const auto evictBoth = [&] { evict({buffers.get(), 2 * kTrialBytes}); };
  BestSpeed copies(kTrialBytes);
  while (!copies.isKnown()) {
    evictBoth();
    copies.add([&] {
      std::memcpy(to, from.data(), kTrialBytes);
      asm volatile("" : : "r"(to) : "memory");  // keeps the copy from being optimised away
    });
  }
  Status status;
  const MemoryRun run{to, reinterpret_cast<std::uint64_t>(from.data()), kTrialBytes};
  BestSpeed reads(kTrialBytes);
  while (status.isOk() && (reads.rounds() == 0 || !isDecided(reads, {reads.gbps(), copies.gbps()}))) {
    evictBoth();
    reads.add([&] { status = readCrossMemory(::getpid(), {&run, 1}, "this process"); });
  }
  SW_RETURN_IF_ERROR(status);
  copySpeed.store(copies.gbps(), std::memory_order_relaxed);
  readSpeed.store(reads.gbps(), std::memory_order_release);
  return Status::ok();
}

}  // namespace

void allowCrossMemoryReads() {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // EINVAL without Yama: then reads are not restricted
}

std::string explainCrossMemoryError(int error) {
  if (error == ENOSYS) {
    return "; this kernel has no cross-memory attach (CONFIG_CROSS_MEMORY_ATTACH), or a seccomp filter hides it";
  }
  if (error != EPERM && error != EACCES) {
    return "";
  }
  char yama = '?';
  if (FILE* file = ::fopen("/proc/sys/kernel/yama/ptrace_scope", "re")) {
    const int read = ::fgetc(file);
    yama = read == EOF ? '?' : static_cast<char>(read);
    ::fclose(file);
  }
  if (yama == '2' || yama == '3') {
    return fmt::format("; Yama forbids it (/proc/sys/kernel/yama/ptrace_scope is {}, 0 or 1 would do)", yama);
  }
  return "; forbidden by a seccomp filter (a container without SYS_PTRACE), another user namespace, or a process that "
         "is not dumpable";
}

Status readCrossMemory(pid_t pid, std::span<const MemoryRun> runs, const char* who) {
  Cursor cursor;
  while (true) {
    while (cursor.run < runs.size() && cursor.offset == runs[cursor.run].bytes) {
      ++cursor.run;  // skips empty runs
      cursor.offset = 0;
    }
    if (cursor.run == runs.size()) {
      return Status::ok();
    }
    const Batch batch(runs, cursor);
    // The call copies fewer bytes at the kernel's limit for one call, or at a fault, which then comes first in the next
    // call.
    const ssize_t copied = batch.readFrom(pid);
    if (copied <= 0) {
      return readError(runs[cursor.run], cursor.offset, who, copied < 0 ? errno : EFAULT);
    }
    advance(runs, &cursor, static_cast<std::size_t>(copied));
  }
}

void fillProbe(std::span<std::byte> buffer, std::uint64_t secret) {
  for (std::size_t i = 0; i < buffer.size() / sizeof(std::uint64_t); ++i) {
    const std::uint64_t word = probeWord(secret, i);
    std::memcpy(buffer.data() + i * sizeof word, &word, sizeof word);
  }
}

Result<CrossMemorySpeed> probeCrossMemory(pid_t pid, std::uint64_t remote, std::uint64_t secret, const char* who) {
  std::vector<std::uint64_t> pattern(kProbeBytes / sizeof(std::uint64_t));
  const MemoryRun first{reinterpret_cast<std::byte*>(pattern.data()), remote, kProbeBytes};
  SW_RETURN_IF_ERROR(readCrossMemory(pid, {&first, 1}, who));
  if (!isPattern(pattern, secret)) {
    return Status{StatusCode::kUnsupported, fmt::format("pid {} is not {} (another pid namespace)", pid, who)};
  }
  if (readSpeed.load(std::memory_order_acquire) == 0) {
    SW_RETURN_IF_ERROR(measureSpeeds());
  }
  return CrossMemorySpeed{readSpeed.load(std::memory_order_acquire), copySpeed.load(std::memory_order_relaxed)};
}

}  // namespace shardwire::internal
