// This process's place in an MPI job, from a launcher's environment variables. Pure, apart from reading the variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace shardwire::internal {

struct MpiLaunch {
  std::string launcher;  // "mpirun" (Open MPI's), "PMIx" or "PMI"
  std::string job;       // equal on the processes of one MPI job only; empty: not set by the launcher
  int size = 0;          // of the MPI world; 0: not set by the launcher
  int localSize = 0;     // number of the MPI world's processes on this host; 0: not set by the launcher
  bool isPmiOnly = false;
  friend bool operator==(const MpiLaunch&, const MpiLaunch&) = default;
};

using ReadVariable = std::function<const char*(const char*)>;

// Nothing: no launcher of MPI jobs started this process, or torchrun started the process inside of an MPI job (then
// torchrun's ranks are not MPI's ranks). `whyNot` has the reason.
std::optional<MpiLaunch> readMpiLaunch(const ReadVariable& variable, std::string* whyNot);
std::optional<MpiLaunch> readMpiLaunch(std::string* whyNot);

}  // namespace shardwire::internal
