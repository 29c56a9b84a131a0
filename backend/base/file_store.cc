#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "backend/base/fd.h"
#include "backend/base/interruptible_wait.h"
#include "backend/base/system_error.h"
#include "backend/base/whole_file.h"
#include "shardwire/stores.h"

namespace shardwire {
namespace {

using std::chrono::milliseconds;

// A folder shared by several machines over 9p was seen to refuse files sometimes, and NFS refuses a file while the file
// is replaced (ESTALE).
constexpr int kTries = 10;
constexpr Duration kBetweenTries = milliseconds(10);
// A get() after a long wait is late by at most a tenth of the wait, and many waiting ranks do not overload the file
// system.
constexpr Duration kShortestPause = milliseconds(1);
constexpr Duration kLongestPause = milliseconds(100);
constexpr int kLooksPerWait = 10;

// The result of `attempt`, or the last error after kTries attempts.
template <typename Attempt>
auto tried(const Attempt& attempt) {
  auto result = attempt();
  for (int i = 1; i < kTries && !result.isOk(); ++i) {
    std::this_thread::sleep_for(kBetweenTries);
    result = attempt();
  }
  return result;
}

// Keys hold any bytes, but file names hold no '/'. The names here also hold no '.', so no name is ".." or has the
// ending of unfinished files.
std::string asFileName(const std::string& key) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  std::string name;
  for (const char c : key) {
    if (kPlain.find(c) != std::string_view::npos) {
      name += c;
    } else {
      name += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
  }
  return name;
}

Status write(const std::string& folder, const std::string& path, std::string_view value) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return {StatusCode::kSystem,
            fmt::format("cannot make the folder {} of a file store: {}", folder, internal::errnoText(error.value()))};
  }
  const Status written = internal::writeWhole(path, value, internal::Lasting::kWhileTheSystemRuns);
  return written.isOk()
             ? written
             : Status(written.code(), fmt::format("cannot write {} of a file store: {}", path, written.message()));
}

// nullopt while there is no such file.
Result<std::optional<std::string>> read(const std::string& path) {
  const internal::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (!file.isOpen() && errno == ENOENT) {
    return std::optional<std::string>();
  }
  if (!file.isOpen() || ::fstat(file.get(), &about) != 0) {
    return internal::systemError(fmt::format("cannot open {} of a file store", path), errno);
  }
  auto bytes = internal::readAll(file.get(), static_cast<std::size_t>(about.st_size));
  if (!bytes.isOk()) {
    return Status(bytes.status().code(),
                  fmt::format("cannot read {} of a file store: {}", path, bytes.status().message()));
  }
  return std::optional(std::move(*bytes));
}

}  // namespace

FileStore::FileStore(std::string folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}

std::string FileStore::pathOf(const std::string& key) const {
  return fmt::format("{}/{}key_{}", folder_, name_, asFileName(key));
}

Status FileStore::set(const std::string& key, std::string_view value) {
  return tried([&] { return write(folder_, pathOf(key), value); });
}

Result<std::string> FileStore::get(const std::string& key, Deadline deadline) {
  const std::string path = pathOf(key);
  const Deadline start = Clock::now();
  internal::InterruptibleWait slices(deadline);
  while (true) {
    auto found = tried([&] { return read(path); });
    SW_RETURN_IF_ERROR(found.status());
    if (found->has_value()) {
      return *std::move(*found);
    }
    const Deadline now = Clock::now();
    if (now >= deadline) {
      return Status(StatusCode::kTimeout,
                    fmt::format("nobody set the key '{}' of a file store in time: there is no {}", key, path));
    }
    const Duration pause = std::clamp<Duration>((now - start) / kLooksPerWait, kShortestPause, kLongestPause);
    std::this_thread::sleep_until(std::min({deadline, slices.sliceEnd(), now + pause}));
    if (slices.isInterrupted()) {
      return internal::interruptedStatus(fmt::format("waiting for the key '{}' of a file store", key));
    }
  }
}

}  // namespace shardwire
