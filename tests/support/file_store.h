// A Store in a folder: each key a file, written whole. For ranks that somebody else started, such as mpirun.
#pragma once

#include <string>

#include "shardwire/store.h"

namespace shardwire::testing {

class FileStore final : public Store {
 public:
  // The folder exists; the caller removes it.
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::string pathOf(const std::string& key) const;
  const std::string folder_;
};

}  // namespace shardwire::testing
