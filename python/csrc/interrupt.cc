// Ctrl-C in calls that block: between the slices of a wait the main thread runs Python's signal handlers. A handler
// that raises ends the wait, and the call throws the handler's exception (mostly KeyboardInterrupt). This file also
// gives C++ the functions that release and take the GIL.
#include "shardwire/interrupt.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "backend/c10d/throw_status.h"
#include "backend/c10d/without_python.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

// The exception of a handler on this thread, until the waiting call throws the exception. Plain pointers: the main
// thread's destructors run after the interpreter has ended.
struct Raised {
  PyObject* type;
  PyObject* value;
  PyObject* traceback;
};
thread_local Raised raised{};

// Python runs signal handlers only on the main thread, and a check for signals costs the GIL.
unsigned long mainThread = 0;

bool isMainThread() {
  // The second condition: a child forked by another thread.
  return PyThread_get_thread_ident() == mainThread || ::syscall(SYS_gettid) == ::getpid();
}

bool isInterrupted() {
  if (!isMainThread() || Py_IsInitialized() == 0) {
    return false;
  }
  const py::gil_scoped_acquire gil;
  const py::error_scope kept;  // a pending exception stays separate from an exception of a handler
  if (PyErr_CheckSignals() == 0) {
    return false;
  }
  Py_XDECREF(raised.type);  // an exception never thrown: the caller of the wait ignored the interruption
  Py_XDECREF(raised.value);
  Py_XDECREF(raised.traceback);
  PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
  return true;
}

void throwInterrupt() {
  if (raised.type == nullptr) {
    return;
  }
  const py::gil_scoped_acquire gil;
  const Raised mine = std::exchange(raised, Raised{});
  PyErr_Restore(mine.type, mine.value, mine.traceback);
  throw py::error_already_set();
}

void throwInPython(const Status& status) {
  if (Py_IsInitialized() == 0) {
    return;
  }
  if (status.code() == StatusCode::kInterrupted) {
    return throwInterrupt();
  }
  const py::gil_scoped_acquire gil;
  const py::object exception = exceptionOf(status);
  PyErr_SetObject(py::type::handle_of(exception).ptr(), exception.ptr());
  throw py::error_already_set();
}

// After the end of the interpreter PyGILState_Check() returns 1 on every thread, and no thread has a state.
bool hasGil() {
  return PyGILState_GetThisThreadState() != nullptr && PyGILState_Check() != 0;
}

}  // namespace

void bindInterrupts(py::module_&) {
  internal::setPythonLock({
      .release = []() -> void* { return hasGil() ? PyEval_SaveThread() : nullptr; },
      .take = [](void* released) { takeGil(static_cast<PyThreadState*>(released)); },
      .isAlive = [] { return Py_IsInitialized() != 0; },
  });
  mainThread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  internal::setPythonThrower(&throwInPython);
  setInterruptCheck(&isInterrupted);
}

}  // namespace shardwire::python
