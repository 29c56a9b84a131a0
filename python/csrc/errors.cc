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

// A long name of the user may be cut inside a character.
py::object textOf(const Status& status) {
  const std::string_view text = status.message();
  return owned(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// str() of an exception, which may raise.
std::string strOf(const py::handle& exception) {
  try {
    return py::reinterpret_steal<py::bytes>(
        PyUnicode_AsEncodedString(py::str(exception).ptr(), "utf-8", "backslashreplace"));
  } catch (const py::error_already_set&) {
    return {};
  }
}

}  // namespace

py::object exceptionOf(const Status& status) {
  return py::reinterpret_borrow<py::object>(classOf(status.code()))(textOf(status));
}

Status statusOf(const py::handle& exception) {
  const auto type = py::type::of(exception);
  const auto name = type.attr("__name__").cast<std::string>();
  std::string text = strOf(exception);
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
      PyErr_SetObject(classOf(error.status().code()), textOf(error.status()).ptr());
    }
  });
}

}  // namespace shardwire::python
