// A cable between two sockets that reads along and changes bytes. For tests.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/fd.h"
#include "backend/fabric/link_message.h"

namespace shardwire::testing {

// Carries bytes between two sockets, in a thread of its own.
class Cable {
 public:
  // `edit` sees all bytes before the other end does, and may change them. 0: from the first socket.
  using Edit = std::function<void(int from, std::span<char> bytes)>;

  Cable(internal::Fd first, internal::Fd second, Edit edit = nullptr)
      : ends_{std::move(first), std::move(second)}, edit_(std::move(edit)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Cable() {
    isOver_ = true;
    thread_.join();
  }
  // One bit of the next bytes from the first socket.
  void flipNext() { flips_ = true; }

 private:
  void run() {
    std::vector<char> bytes(std::size_t{64} << 10);
    while (!isOver_) {
      pollfd entries[] = {{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}};
      ::poll(entries, 2, 10);
      for (const int from : {0, 1}) {
        const ssize_t some = ::recv(ends_[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (some <= 0) {
          continue;
        }
        const std::span<char> got(bytes.data(), static_cast<std::size_t>(some));
        if (from == 0 && flips_.exchange(false)) {
          got[got.size() / 2] ^= 4;
        }
        if (edit_ != nullptr) {
          edit_(from, got);
        }
        for (std::size_t at = 0; at < got.size() && !isOver_;) {
          const auto sent = internal::sendSome(ends_[1 - from], std::string_view(got.data(), got.size()).substr(at));
          if (!sent.isOk()) {
            return;
          }
          at += *sent;
        }
      }
    }
  }

  internal::Fd ends_[2];
  const Edit edit_;
  std::atomic<bool> flips_ = false;
  std::atomic<bool> isOver_ = false;
  std::thread thread_;
};

}  // namespace shardwire::testing
