#include "tests/support/file_store.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

#include "backend/base/system_error.h"

namespace shardwire::testing {

namespace {

// All of `value` in the file `path`, by way of `fresh`: a reader finds all of it or nothing.
Status writeWhole(const std::string& fresh, const std::string& path, std::string_view value) {
  {
    std::ofstream file(fresh, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    if (!file.flush()) {
      return internal::systemError("writing " + fresh, errno);
    }
  }
  return std::rename(fresh.c_str(), path.c_str()) == 0 ? Status::ok() : internal::systemError("renaming " + fresh, errno);
}

}  // namespace

// Keys hold any characters, file names no '/'.
std::string FileStore::pathOf(const std::string& key) const {
  std::string path = prefix_ + "k";
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    path += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return path;
}

Status FileStore::set(const std::string& key, std::string_view value) {
  const std::string path = pathOf(key), fresh = path + "." + std::to_string(::getpid());
  Status written;
  // A folder that several machines share over 9p was seen to refuse files now and then; why was not found out.
  for (int i = 0; i < 10; ++i) {
    written = writeWhole(fresh, path, value);
    if (written.isOk()) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return written;
}

Result<std::string> FileStore::get(const std::string& key, Deadline deadline) {
  while (true) {
    if (std::ifstream file(pathOf(key), std::ios::binary); file) {
      return std::string(std::istreambuf_iterator<char>(file), {});
    }
    if (Clock::now() >= deadline) {
      return Status(StatusCode::kTimeout, "nobody set " + key);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace shardwire::testing
