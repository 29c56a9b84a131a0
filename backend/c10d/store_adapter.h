// A c10d::Store (TCPStore, FileStore, HashStore, a Python store) seen as a shardwire::Store. Used by one thread while a group is made. A
// store may never answer: its network swallows what is sent, or its host stands still. torch's calls know no end then, so a thread of ours
// makes them, which is left behind when the time is over: what it uses is its own.
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
  // An answer may take as long as is left of `timeout` since the first question. Without an answer the question fails, and so do later
  // ones, at once.
  C10dStore(c10::intrusive_ptr<::c10d::Store> store, Duration timeout);
  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  using StorePtr = c10::intrusive_ptr<::c10d::Store>;
  using Value = std::optional<std::string>;  // nothing: the store has none

  // kSystem: the store failed, or did not answer. kInterrupted: the caller was, and the store did not answer soon after.
  Result<Value> ask(const std::string& key, std::function<Value(::c10d::Store&)> question);
  // What the store has at a key now.
  Result<Value> look(const std::string& key);

  const StorePtr store_;
  const bool isTcp_;
  const Duration timeout_;
  std::optional<Deadline> deadline_;  // from the first question on
  bool isSilent_ = false;
  const Deadline made_ = Clock::now();
};

}  // namespace shardwire::internal
