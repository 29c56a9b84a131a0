// MPI as a meeting place: this process's rank in the MPI job, and bytes from rank 0 to all ranks.
#include "backend/c10d/throw_status.h"
#include "backend/transport/mpi/mpi_process.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

internal::MpiProcess& readyMpi(double timeout) {
  const auto process = internal::MpiProcess::instance();
  internal::throwUnlessOk(process.status());
  internal::throwUnlessOk(
      (*process)->prepare(internal::MpiProcess::kWholeWorld, true, deadlineAfter(durationOf(timeout))));
  return **process;
}

}  // namespace

void bindMpi(py::module_& module) {
  module.def(
      "mpi_world",
      [](double timeout) {
        internal::MpiState state;
        {
          const GilRelease unlocked;
          state = readyMpi(timeout).state();
        }
        return py::make_tuple(state.rank, state.size);
      },
      py::arg("timeout"),
      "This process's rank in its MPI job, and the job's size. Initialises MPI if needed; the call is collective "
      "then.");
  module.def(
      "mpi_broadcast",
      [](std::string bytes, double timeout) {
        {
          const GilRelease unlocked;
          const Deadline deadline = deadlineAfter(durationOf(timeout));
          internal::throwUnlessOk(readyMpi(timeout).broadcast(&bytes, deadline));
        }
        return py::bytes(bytes);
      },
      py::arg("bytes"), py::arg("timeout"), "Returns the bytes of rank 0 of the MPI job. Collective over the job.");
}

}  // namespace shardwire::python
