// A file descriptor with one owner, closed with the owner. Any thread; not shared.
#pragma once

#include <cstdint>
#include <utility>

namespace shardwire::internal {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(std::exchange(other.forks_, kInherited)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset(std::exchange(other.fd_, -1));
      forks_ = std::exchange(other.forks_, kInherited);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  bool isOpen() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // After this call every child of fork() closes the descriptor at once. For a socket whose end notifies the peer that
  // this process died: a child must not keep the socket open.
  void closeInChildren();
  // Closes the descriptor and takes over `fd`.
  void reset(int fd = -1);

 private:
  static constexpr std::uint32_t kInherited = ~std::uint32_t{0};

  int fd_ = -1;
  std::uint32_t forks_ = kInherited;  // else the descriptor is open only in the process that had this number of forks
};

}  // namespace shardwire::internal
