// shardwire._C: the native side of the Python package. One bind function per concept.
#include "backend/c10d/torch_compat.h"
#include "python/csrc/bindings.h"

PYBIND11_MODULE(_C, module) {
  // torch registers the c10d types in our signatures.
  pybind11::module_::import("torch.distributed");
  module.doc() = "The native side of shardwire.";
  module.attr("torch_version") = shardwire::internal::torchVersion();
  module.attr("transports") = pybind11::tuple(pybind11::str(SHARDWIRE_TRANSPORTS).attr("split")());  // of this build
  shardwire::python::bindErrors(module);
  shardwire::python::bindInterrupts(module);
  shardwire::python::bindGroups(module);
  shardwire::python::bindSpecTypes(module);
  shardwire::python::bindLayouts(module);
  shardwire::python::bindCompiledOps(module);
  shardwire::python::bindHeap(module);
  shardwire::python::bindExperts(module);
  shardwire::python::bindSymmetricMemory(module);
  shardwire::python::bindMpi(module);
  shardwire::python::bindOffline(module);
  shardwire::python::bindSight(module);
  shardwire::python::bindQueues(module);
  shardwire::python::bindPlainReader(module);
  shardwire::python::bindPlainWriter(module);
}
