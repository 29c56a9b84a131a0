// The module _plain: the functions of python/csrc/plain_read.cc and plain_write.cc, compiled with ASan, UBSan and a
// flag for each edge of the code. python_records.py puts the functions in the place of those of _C, and keeps inputs
// that set further flags.
#include <algorithm>
#include <span>

#include "python/csrc/bindings.h"

namespace {

std::span<const bool> edges;

}  // namespace

// clang calls this function before any other code of the module.
extern "C" void __sanitizer_cov_bool_flag_init(bool* begin, bool* end) {
  edges = {begin, end};
}

PYBIND11_MODULE(_plain, module) {
  shardwire::python::bindPlainReader(module);
  shardwire::python::bindPlainWriter(module);
  module.def("num_edges", [] { return std::ranges::count(edges, true); });
}
