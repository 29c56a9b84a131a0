// A Store of files: each key one, written whole. For ranks that somebody else started, such as mpirun.
#pragma once

#include <string>

#include "shardwire/store.h"

namespace shardwire::testing {

class FileStore final : public Store {
 public:
  // What all its files' paths begin with, such as "/tmp/job/first-". The folder exists; the caller removes it.
  explicit FileStore(std::string prefix) : prefix_(std::move(prefix)) {}

  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::string pathOf(const std::string& key) const;
  const std::string prefix_;
};

}  // namespace shardwire::testing
