// The rendezvous that a job brings along (c10d's TCPStore, FileStore, ...; a map in tests). Keys and values are bytes.
#pragma once

#include <string>
#include <string_view>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

class Store {
 public:
  virtual ~Store() = default;
  virtual Status set(const std::string& key, std::string_view value) = 0;
  // Waits for the key; kTimeout when the deadline passes first.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
};

}  // namespace shardwire
