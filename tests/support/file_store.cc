#include "tests/support/file_store.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

namespace shardwire::testing {

// Keys hold any characters, file names no '/'.
std::string FileStore::pathOf(const std::string& key) const {
  std::string path = folder_ + "/k";
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    path += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return path;
}

Status FileStore::set(const std::string& key, std::string_view value) {
  const std::string path = pathOf(key), fresh = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(fresh, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    if (!file.flush()) {
      return {StatusCode::kSystem, "cannot write " + fresh};
    }
  }
  // A reader finds all of it or nothing.
  return std::rename(fresh.c_str(), path.c_str()) == 0 ? Status::ok() : Status(StatusCode::kSystem, "cannot rename " + fresh);
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
