// A c10d::Store (TCPStore, FileStore, HashStore, a Python store) as a shardwire::Store. Used by one thread while a
// group is made. A store may never answer: the network drops the request, or the store's host has stopped. torch's
// calls then never return, so a thread of ours makes the calls. After the timeout this thread is left behind; all data
// that the thread uses is its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwire/store.h"

namespace shardwire::internal {

class C10dStore final : public Store {
 public:
  // All answers together may take `timeout`, counted from the first request. Without an answer the request fails, and
  // later requests fail at once.
  C10dStore(c10::intrusive_ptr<::c10d::Store> store, Duration timeout);
  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  using StorePtr = c10::intrusive_ptr<::c10d::Store>;
  using Value = std::optional<std::string>;  // nothing: the store has no value

  // kSystem: the store failed, or did not answer. kInterrupted: the caller was interrupted, and the store did not
  // answer soon after.
  Result<Value> ask(const std::string& key, std::function<Value(::c10d::Store&)> question);
  // The value that the store has at a key now.
  Result<Value> look(const std::string& key);

  const StorePtr store_;
  const bool isTcp_;
  const Duration timeout_;
  std::optional<Deadline> deadline_;  // from the first request on
  bool isSilent_ = false;
  const Deadline made_ = Clock::now();
};

}  // namespace shardwire::internal
