// A Store for ranks that are forked after it was made: a log of entries in anonymous shared memory.
#pragma once

#include "shardwire/store.h"

namespace shardwire::bench {

class BenchStore final : public Store {
 public:
  BenchStore();
  ~BenchStore() override;
  BenchStore(const BenchStore&) = delete;
  BenchStore& operator=(const BenchStore&) = delete;

  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  struct Shared;
  Shared* shared_;
};

}  // namespace shardwire::bench
