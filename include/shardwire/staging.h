// The host copies of tensors in memory that no transport can read, while an operation uses the copies: which bytes have
// come from the device, and which bytes are final and may go back to the device. The operation's views point to the
// copies. Implemented by the code that moves the bytes (backend/c10d), used by the runs. Every method may be called
// from any thread, and no method waits. Addresses outside the copies are always ready, and writes there are ignored.
#pragma once

#include <cstddef>
#include <functional>

#include "shardwire/export.h"

namespace shardwire {

class SHARDWIRE_EXPORT Staging {
 public:
  virtual ~Staging() = default;

  // Called before the operation starts: `wake` is to be called whenever bytes become ready, from any thread, possibly
  // after the operation has ended.
  virtual void attach(std::function<void()> wake) = 0;
  // Called before the operation starts: the operation will write `bytes` bytes among the `extent` bytes from `first`
  // on, once. A byte is final after as many writes as were announced.
  virtual void willWrite(const std::byte* first, std::size_t extent, std::size_t bytes) = 0;

  // Whether these bytes may be read and overwritten now. Once true, true for good.
  virtual bool isReady(const std::byte* first, std::size_t extent) const = 0;
  virtual bool allReady() const = 0;
  // The operation wrote bytes announced by willWrite, or a part of them.
  virtual void wrote(const std::byte* first, std::size_t extent, std::size_t bytes) = 0;
};

}  // namespace shardwire
