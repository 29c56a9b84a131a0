#include "backend/base/kept_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>

#include "backend/base/fd.h"
#include "backend/base/mutex.h"
#include "backend/base/system_error.h"
#include "backend/base/whole_file.h"

namespace shardwire::internal {
namespace {

namespace fs = std::filesystem;

// A writer that has not renamed its file after this time is dead.
constexpr std::chrono::hours kAbandoned(1);
// No kernel and no plan is as large. A larger file was written by another program, and might exhaust the memory.
constexpr off_t kMostBytes = off_t{4} << 30;

// Removes the files left by killed writers, once for each folder: a folder may have thousands of files.
void removeAbandoned(const std::string& folder) {
  static Mutex mutex;
  static std::set<std::string>* const done = new std::set<std::string>;  // alive while other threads end
  {
    const MutexLock lock(mutex);
    if (!done->insert(folder).second) {
      return;
    }
  }
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().native().ends_with(kUnfinishedEnding)) {
      continue;
    }
    std::error_code ignored;  // another process may have removed it
    if (const auto written = entry->last_write_time(ignored); !ignored && now - written > kAbandoned) {
      fs::remove(entry->path(), ignored);
    }
  }
}

// The name then also outlives a crash of the machine.
Status syncFolder(const std::string& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.isOpen() && ::fsync(fd.get()) == 0 ? Status::ok() : systemError("fsync of the folder", errno);
}

}  // namespace

Status writeKept(const std::string& folder, const std::string& name, std::string_view bytes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return systemError("mkdir", error.value());
  }
  removeAbandoned(folder);
  SW_RETURN_IF_ERROR(writeWhole(fmt::format("{}/{}", folder, name), bytes, Lasting::kThroughACrash));
  return syncFolder(folder);
}

std::optional<std::string> readKept(const std::string& path) {
  // Not blocking: the path may be a pipe.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.isOpen() || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      (about.st_mode & (S_IWGRP | S_IWOTH)) != 0 || (about.st_uid != 0 && about.st_uid != ::geteuid()) ||
      about.st_size > kMostBytes) {
    return std::nullopt;
  }
  auto bytes = readAll(file.get(), static_cast<std::size_t>(about.st_size));
  return bytes.isOk() ? std::optional(std::move(*bytes)) : std::nullopt;
}

}  // namespace shardwire::internal
