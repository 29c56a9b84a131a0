// Stands in for python/csrc/bindings.h, which needs torch, while the readers and writers of plain objects are compiled
// for the Python targets (fuzz.py): these need Python alone.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "python/csrc/owned.h"

namespace shardwire::python {

namespace py = pybind11;

void bindPlainReader(py::module_& module);
void bindPlainWriter(py::module_& module);

}  // namespace shardwire::python
