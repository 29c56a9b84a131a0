// Status <-> Python exceptions, also for errors that pass through torch's own bindings: pybind11 asks the translators
// of all modules.
#include <algorithm>
#include <array>

#include "backend/c10d/throw_status.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

// Classes by StatusCode. Never released: exceptions may still fly while the interpreter ends.
std::array<PyObject*, kNumStatusCodes> classes{};

PyObject* classOf(StatusCode code) {
  const auto index = static_cast<std::size_t>(code);
  return index < classes.size() && classes[index] != nullptr ? classes[index] : PyExc_RuntimeError;
}

}  // namespace

py::object exceptionOf(const Status& status) {
  return py::reinterpret_borrow<py::object>(classOf(status.code()))(py::str(status.message()));
}

Status statusOf(const py::handle& exception) {
  const auto type = py::type::of(exception);
  const auto name = type.attr("__name__").cast<std::string>();
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(py::str(exception).ptr(), "utf-8", "backslashreplace"));
  std::string text = bytes;
  text = text.empty() ? name : text;
  for (const py::handle base : type.attr("__mro__")) {
    if (const auto found = std::find(classes.begin(), classes.end(), base.ptr()); found != classes.end()) {
      return {static_cast<StatusCode>(found - classes.begin()), text};
    }
  }
  if (PyErr_GivenExceptionMatches(exception.ptr(), PyExc_OSError) != 0) {
    return {StatusCode::kSystem, text};
  }
  return PyErr_GivenExceptionMatches(exception.ptr(), PyExc_NotImplementedError) != 0
             ? Status(StatusCode::kUnsupported, text)
             : Status(StatusCode::kOther, name + ": " + text);
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
  use(StatusCode::kCheckpoint, "CheckpointError");
  use(StatusCode::kKernel, "KernelError");
  use(StatusCode::kOther, "ShardwireError");
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
