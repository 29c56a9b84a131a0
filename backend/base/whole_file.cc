#include "backend/base/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

// A name that no other writer uses.
Result<std::string> unfinishedName(const std::string& path) {
  const Result<RandomId> id = makeRandomId();
  SW_RETURN_IF_ERROR(id.status());
  return fmt::format("{}.{}{}", path, toString(*id), kUnfinishedEnding);
}

Status writeAll(int fd, std::string_view bytes, Lasting lasting) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return systemError("write", errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return lasting == Lasting::kWhileTheSystemRuns || ::fsync(fd) == 0 ? Status::ok() : systemError("fsync", errno);
}

Status writeNew(const std::string& path, std::string_view bytes, Lasting lasting) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return file.isOpen() ? writeAll(file.get(), bytes, lasting) : systemError("open", errno);
}

}  // namespace

Status writeWhole(const std::string& path, std::string_view bytes, Lasting lasting) {
  const Result<std::string> unfinished = unfinishedName(path);
  SW_RETURN_IF_ERROR(unfinished.status());
  Status written = writeNew(*unfinished, bytes, lasting);
  if (written.isOk() && std::rename(unfinished->c_str(), path.c_str()) != 0) {
    written = systemError("rename", errno);
  }
  if (!written.isOk()) {
    ::unlink(unfinished->c_str());
  }
  return written;
}

Result<std::string> readAll(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::read(fd, bytes.data() + done, size - done);
    if (got == 0) {
      return Status(StatusCode::kSystem, fmt::format("read: the file ends after {} of {} bytes", done, size));
    }
    if (got < 0 && errno != EINTR) {
      return systemError("read", errno);
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  return bytes;
}

}  // namespace shardwire::internal
