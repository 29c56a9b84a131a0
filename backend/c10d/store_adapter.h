// A c10d::Store (TCPStore, FileStore, HashStore, a Python store) seen as a shardwire::Store. Used by one thread while a group is made.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwire/store.h"

namespace shardwire::internal {

class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}
  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  c10::intrusive_ptr<::c10d::Store> store_;
  const Deadline made_ = Clock::now();
};

}  // namespace shardwire::internal
