#include "backend/transport/mpi/mpi_launch.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <charconv>
#include <initializer_list>
#include <string_view>

namespace shardwire::internal {
namespace {

std::string firstOf(const ReadVariable& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* text = variable(name); text != nullptr && *text != '\0') {
      return text;
    }
  }
  return {};
}

int number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

// Open MPI 4 makes a random key for each job. A PMIx namespace and a SLURM step are unique within their installation.
// This is enough, since the ranks of a group also share its store and token.
std::string jobOf(const ReadVariable& variable) {
  const std::string key = firstOf(variable, {"OMPI_MCA_orte_precondition_transports"});
  const std::string name = firstOf(variable, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_ID"});
  const std::string slurm = firstOf(variable, {"SLURM_JOB_ID"});
  const std::string step = firstOf(variable, {"SLURM_STEP_ID"});
  std::string job;
  for (const std::string& part : {key, name, slurm.empty() ? slurm : fmt::format("slurm {}.{}", slurm, step)}) {
    job += part.empty() || job.empty() ? part : " " + part;
  }
  return job;
}

}  // namespace

std::optional<MpiLaunch> readMpiLaunch(const ReadVariable& variable, std::string* whyNot) {
  MpiLaunch launch;
  if (!firstOf(variable, {"OMPI_COMM_WORLD_SIZE"}).empty()) {
    launch.launcher = "mpirun";
  } else if (!firstOf(variable, {"PMIX_RANK"}).empty()) {
    launch.launcher = "PMIx";
  } else if (!firstOf(variable, {"PMI_RANK"}).empty()) {
    launch.launcher = "PMI";
    launch.isPmiOnly = true;
  } else {
    *whyNot = "this process was started neither by mpirun nor by srun --mpi=pmix, and MPI is not initialised";
    return std::nullopt;
  }
  if (!firstOf(variable, {"TORCHELASTIC_RUN_ID"}).empty()) {
    *whyNot =
        "torchrun started this process inside of an MPI job, whose ranks are other processes; start the ranks by "
        "mpirun itself";
    return std::nullopt;
  }
  launch.job = jobOf(variable);
  launch.size = number(firstOf(variable, {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}));
  launch.localSize = number(firstOf(variable, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}));
  return launch;
}

std::optional<MpiLaunch> readMpiLaunch(std::string* whyNot) {
  return readMpiLaunch([](const char* name) { return ::getenv(name); }, whyNot);
}

}  // namespace shardwire::internal
