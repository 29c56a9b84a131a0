// Status -> Python exceptions, also for errors that pass through torch's own bindings: pybind11 asks the translators of
// all modules.
#include <array>

#include "backend/c10d/status_error.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

// Classes by StatusCode. Never released: exceptions may still fly while the interpreter ends.
std::array<PyObject*, 12> classes{};

PyObject* classOf(StatusCode code) {
  const auto index = static_cast<std::size_t>(code);
  return index < classes.size() && classes[index] != nullptr ? classes[index] : PyExc_RuntimeError;
}

}  // namespace

py::object exceptionOf(const Status& status) {
  return py::reinterpret_borrow<py::object>(classOf(status.code()))(py::str(status.message()));
}

void bindErrors(py::module_&) {
  const py::module_ errors = py::module_::import("shardwire.errors");
  const auto use = [&](StatusCode code, const char* name) {
    classes[static_cast<std::size_t>(code)] = py::object(errors.attr(name)).release().ptr();
  };
  use(StatusCode::kTimeout, "TimeoutError");
  use(StatusCode::kPeerFailed, "PeerFailedError");
  use(StatusCode::kMismatch, "MismatchError");
  use(StatusCode::kAborted, "AbortedError");
  use(StatusCode::kSystem, "SystemFailure");
  use(StatusCode::kUnsupported, "UnsupportedError");
  use(StatusCode::kInternal, "InternalError");
  use(StatusCode::kGap, "GapError");
  classes[static_cast<std::size_t>(StatusCode::kInvalidArgument)] = PyExc_ValueError;
  classes[static_cast<std::size_t>(StatusCode::kTypeError)] = PyExc_TypeError;
  classes[static_cast<std::size_t>(StatusCode::kInterrupted)] = PyExc_KeyboardInterrupt;
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    } catch (const StatusError& error) {
      PyErr_SetObject(classOf(error.status().code()), py::str(error.status().message()).ptr());
    }
  });
}

}  // namespace shardwire::python
