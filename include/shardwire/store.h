// The rendezvous of ranks: one of stores.h, or what a job brings along (c10d's TCPStore, a key-value service). Keys and values are bytes.
// Keys do not name the group, so each has a store of its own, or a prefix. The same processes, with the same ranks, may end a group and
// make it anew with its store. Used by the thread that makes the group, while it makes it.
#pragma once

#include <string>
#include <string_view>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

class Store {
 public:
  virtual ~Store() = default;
  // A key that is set again has the later value.
  virtual Status set(const std::string& key, std::string_view value) = 0;
  // Waits for the key; kTimeout when the deadline passes first. A deadline that has passed means to look once. Any other error ends the
  // making of the group.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
};

}  // namespace shardwire
