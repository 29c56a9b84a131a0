// What a launcher's environment variables say of this process's place in an MPI job. Pure but for reading them.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace shardwire::internal {

struct MpiLaunch {
  std::string launcher;  // "mpirun" (Open MPI's), "PMIx", "PMI": who set the variables
  std::string job;       // equal on the processes of one MPI job and on no others; empty: the launcher does not say
  int size = 0;          // of the MPI world; 0: the launcher does not say
  int localSize = 0;     // of its processes on this host; 0: the launcher does not say
  bool isPmiOnly = false;
  friend bool operator==(const MpiLaunch&, const MpiLaunch&) = default;
};

using ReadVariable = std::function<const char*(const char*)>;

// Nothing: no launcher of MPI jobs started this process, or torchrun did so inside of such a job, and then its ranks are not MPI's;
// `whyNot` tells which.
std::optional<MpiLaunch> readMpiLaunch(const ReadVariable& variable, std::string* whyNot);
std::optional<MpiLaunch> readMpiLaunch(std::string* whyNot);

}  // namespace shardwire::internal
