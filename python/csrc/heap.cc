// The memory of tensors, and tensors in the heap shared by the ranks of a host.
#include "backend/c10d/heap_allocator.h"
#include "ops/boxes/view_overlap.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {

void bindHeap(py::module_& module) {
  module.def(
      "require_memory",
      [](const at::Tensor& tensor, const std::string& what) { internal::requireStorage(tensor, what); },
      py::arg("tensor"), py::arg("what"),
      "ValueError where the tensor's storage was freed, or made smaller than the tensor needs.");
  module.def(
      "overlaps_itself",
      [](const at::Tensor& tensor) { return internal::overlapsItself(internal::deviceViewOf(tensor)); },
      py::arg("tensor"), "Whether two elements of the tensor share memory.");
  module.def(
      "heap_empty",
      [](const std::vector<std::int64_t>& shape, const py::object& dtype) {
        return internal::heapEmpty(shape, scalarTypeOf(dtype));
      },
      py::arg("shape"), py::arg("dtype"), "An uninitialised CPU tensor in the shared heap.");
  module.def("enable_cpu_allocator", &internal::enableCpuAllocator,
             "Puts every later CPU tensor of this process into the shared heap.");
  module.def("cpu_allocator_enabled", &internal::isCpuAllocatorEnabled);
  module.def("in_shared_heap", &internal::isInSharedHeap, py::arg("tensor"),
             "Whether the tensor's storage lies in the shared heap.");
  module.def("heap_used_bytes", &internal::heapUsedBytes);
}

}  // namespace shardwire::python
