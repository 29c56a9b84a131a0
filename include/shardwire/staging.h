// The host copies of tensors in memory that no transport reads, while an operation runs over them: which bytes have come from the device,
// and which are final and may go back. The operation's views point to the copies. Implemented by who moves the bytes (backend/c10d), used
// by the runs: every method from any thread, and none waits. Addresses that belong to no copy are always ready, and nobody cares who writes
// them.
#pragma once

#include <cstddef>
#include <functional>

namespace shardwire {

class Staging {
 public:
  virtual ~Staging() = default;

  // Before the operation starts: `wake` is to be called whenever bytes became ready. Any thread may call it, also after the operation's
  // end.
  virtual void attach(std::function<void()> wake) = 0;
  // Before the operation starts: it will write `bytes` bytes among the `extent` bytes from `first` on, once. Only bytes that are written as
  // often as was announced are final.
  virtual void willWrite(const std::byte* first, std::size_t extent, std::size_t bytes) = 0;

  // Whether these bytes may be read and overwritten now. Once true, true for good.
  virtual bool isReady(const std::byte* first, std::size_t extent) const = 0;
  virtual bool allReady() const = 0;
  // As announced by willWrite, or a part of it.
  virtual void wrote(const std::byte* first, std::size_t extent, std::size_t bytes) = 0;
};

}  // namespace shardwire
