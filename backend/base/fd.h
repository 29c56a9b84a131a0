// A file descriptor with one owner, closed when it goes. Any thread; not shared.
#pragma once

#include <utility>

namespace shardwire::internal {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset(std::exchange(other.fd_, -1));
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  bool isOpen() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Gives the descriptor away without closing it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  // Closes the descriptor and takes over `fd`.
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace shardwire::internal
