#include "backend/bootstrap/store_attempts.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "backend/base/wire.h"
#include "backend/bootstrap/address.h"

namespace shardwire::internal {
namespace {

constexpr const char* kAttemptKey = "shardwire/attempt";
constexpr std::size_t kMaxIdBytes = 4096;
constexpr std::uint64_t kSecond = 1'000'000'000;

struct Named {
  RandomId process;
  std::string bootId;
  std::uint64_t time = 0;  // since the boot with this id, in ns
};

std::uint64_t timeSinceBoot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * kSecond + static_cast<std::uint64_t>(now.tv_nsec);
}

// A time by which this process had begun, by the same clock, whose ticks the kernel rounds down; nothing when the
// kernel does not report the start.
std::optional<std::uint64_t> processStart() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/stat", "re"), &std::fclose);
  std::array<char, 1024> text{};
  if (file == nullptr || std::fgets(text.data(), static_cast<int>(text.size()), file.get()) == nullptr) {
    return std::nullopt;
  }
  const char* const afterName = std::strrchr(text.data(), ')');  // the name may contain anything
  std::uint64_t ticks = 0;
  constexpr const char* kField22 =
      ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64;
  if (afterName == nullptr || std::sscanf(afterName, kField22, &ticks) != 1) {
    return std::nullopt;
  }
  const auto ticksPerSecond = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return (ticks + 1) * (kSecond / ticksPerSecond);
}

Result<Named> decode(const std::string& bytes) {
  ByteReader reader(bytes);
  Named named;
  named.process = readId(reader);
  named.bootId = reader.text(kMaxIdBytes);
  named.time = reader.u64();
  if (!reader.isDone()) {
    return Status{StatusCode::kMismatch,
                  fmt::format("what the store holds at '{}' is no attempt of a shardwire job", kAttemptKey)};
  }
  return named;
}

bool isNamedSinceStart(const Named& named, const std::string& bootId) {
  const auto start = processStart();
  return start.has_value() && named.bootId == bootId && named.time > *start;
}

}  // namespace

Result<Attempt> findAttempt(Store& store, Rank rank, Deadline deadline) {
  const auto bootId = readBootId();
  SW_RETURN_IF_ERROR(bootId.status());
  if (rank == 0) {
    const auto self = processId();
    SW_RETURN_IF_ERROR(self.status());
    ByteWriter writer;
    idField(writer, *self);
    writer.text(*bootId);
    writer.u64(timeSinceBoot());
    SW_RETURN_IF_ERROR(store.set(kAttemptKey, writer.bytes()));
    return Attempt{*self, true};
  }
  const auto bytes = store.get(kAttemptKey, deadline);
  if (!bytes.isOk()) {
    const bool isLate = bytes.status().code() == StatusCode::kTimeout;
    return isLate ? Status{StatusCode::kTimeout, "rank 0 did not arrive in time"} : bytes.status();
  }
  const auto named = decode(*bytes);
  SW_RETURN_IF_ERROR(named.status());
  return Attempt{named->process, isNamedSinceStart(*named, *bootId)};
}

bool isOutdated(Store& store, const Attempt& attempt) {
  if (attempt.process.isZero()) {
    return false;
  }
  const auto bytes = store.get(kAttemptKey, Clock::now());  // with a deadline in the past, get() looks once
  const auto named = bytes.isOk() ? decode(*bytes) : Result<Named>(bytes.status());
  return named.isOk() && named->process != attempt.process;
}

AttemptStore::AttemptStore(Store& store, const Attempt& attempt)
    : store_(store), suffix_(attempt.process.isZero() ? "" : "/attempt " + toString(attempt.process)) {}

}  // namespace shardwire::internal
