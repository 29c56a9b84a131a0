// A c10d::Store (TCPStore, FileStore, HashStore, a Python store) seen as a shardwire::Store. Used by one thread while a group is made.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwire/store.h"

namespace shardwire::internal {

class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<::c10d::Store> store);
  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  // What the store has at a key now; nothing: it has none.
  std::optional<std::string> look(const std::string& key);

  c10::intrusive_ptr<::c10d::Store> store_;
  const bool isTcp_;
  const Deadline made_ = Clock::now();
};

}  // namespace shardwire::internal
