// Objects from functions of Python's C interface. Needs the GIL, and no torch.
#pragma once

#include <pybind11/pybind11.h>

namespace shardwire::python {

// The new reference that a function of Python's C interface returned; the exception for null.
inline pybind11::object owned(PyObject* object) {
  if (object == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::object>(object);
}

}  // namespace shardwire::python
