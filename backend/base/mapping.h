// A range of mapped memory with one owner, unmapped with the owner. Any thread; not shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "shardwire/status.h"

namespace shardwire::internal {

enum class Access : unsigned char { kRead, kReadWrite };

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Maps `size` bytes of `fd` from `offset`, shared with all processes that map the same bytes. Memory is allocated at
  // the first touch. `alignment` is a power of two, and the address is a multiple of `alignment`. `what` names the
  // mapping in the error.
  static Result<Mapping> shared(int fd, std::uint64_t offset, std::size_t size, Access access, const char* what,
                                std::size_t alignment = 4096);

  std::byte* bytes() const { return bytes_; }
  std::size_t size() const { return size_; }

 private:
  Mapping(std::byte* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace shardwire::internal
