// The rendezvous of ranks: a store of stores.h, or a store of the job (c10d's TCPStore, a key-value service). Keys and
// values are bytes. Keys do not name the group, so each group needs its own store, or a prefix. The same processes,
// with the same ranks, may end a group and make the group again with the same store. Used only by the thread that makes
// the group, while the group is made.
#pragma once

#include <string>
#include <string_view>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

class SHARDWIRE_EXPORT Store {
 public:
  virtual ~Store() = default;
  // Setting a key again replaces its value.
  virtual Status set(const std::string& key, std::string_view value) = 0;
  // Waits for the key; kTimeout when the deadline passes first. With a passed deadline the store is read once. Any
  // other error ends the making of the group.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
};

}  // namespace shardwire
