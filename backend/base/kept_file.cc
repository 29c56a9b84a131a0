#include "backend/base/kept_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp";
// A writer that has not renamed its file by then is dead.
constexpr std::chrono::hours kAbandoned(1);
// No kernel and no plan is as large: what is comes from elsewhere, and there may be no memory for it.
constexpr off_t kMostBytes = off_t{4} << 30;

// A name that no other writer takes.
Result<std::string> temporaryName(const std::string& path) {
  const Result<RandomId> id = makeRandomId();
  SW_RETURN_IF_ERROR(id.status());
  return fmt::format("{}.{}{}", path, toString(*id), kTemporary);
}

Status writeAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return systemError("write", errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return ::fsync(fd) == 0 ? Status::ok() : systemError("fsync", errno);
}

Status writeNew(const std::string& path, std::string_view bytes) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return file.isOpen() ? writeAll(file.get(), bytes) : systemError("open", errno);
}

// What killed writers left.
void removeAbandoned(const std::string& folder) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().native().ends_with(kTemporary)) {
      continue;
    }
    std::error_code ignored;  // another process may have removed it
    if (const auto written = entry->last_write_time(ignored); !ignored && now - written > kAbandoned) {
      fs::remove(entry->path(), ignored);
    }
  }
}

// So that the name outlives a crash of the machine, too.
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
  const std::string path = fmt::format("{}/{}", folder, name);
  const Result<std::string> temporary = temporaryName(path);
  SW_RETURN_IF_ERROR(temporary.status());
  Status written = writeNew(*temporary, bytes);
  if (written.isOk() && ::rename(temporary->c_str(), path.c_str()) != 0) {
    written = systemError("rename", errno);
  }
  if (!written.isOk()) {
    ::unlink(temporary->c_str());
    return written;
  }
  return syncFolder(folder);
}

std::optional<std::string> readKept(const std::string& path) {
  // Not blocking: it may be a pipe.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.isOpen() || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) || (about.st_mode & (S_IWGRP | S_IWOTH)) != 0 ||
      (about.st_uid != 0 && about.st_uid != ::geteuid()) || about.st_size > kMostBytes) {
    return std::nullopt;
  }
  std::string bytes(static_cast<std::size_t>(about.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      return std::nullopt;
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  return bytes;
}

}  // namespace shardwire::internal
