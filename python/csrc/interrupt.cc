// Ctrl-C in calls that block: between the slices of a wait the main thread runs Python's signal handlers. One that raises ends the wait,
// and its exception (mostly KeyboardInterrupt) comes out of the call. Here C++ also learns how to give the GIL up.
#include "shardwire/interrupt.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "backend/c10d/status_error.h"
#include "backend/c10d/without_python.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

// What a handler raised on this thread, until the call that waited throws it. Plain pointers: the main thread's destructors run when there
// is no interpreter any more.
struct Raised {
  PyObject* type;
  PyObject* value;
  PyObject* traceback;
};
thread_local Raised raised{};

// Python runs signal handlers on its main thread alone, and to ask it costs the GIL.
unsigned long mainThread = 0;

bool isMainThread() {
  // The second: a child that another thread forked.
  return PyThread_get_thread_ident() == mainThread || ::syscall(SYS_gettid) == ::getpid();
}

bool isInterrupted() {
  if (!isMainThread() || Py_IsInitialized() == 0) {
    return false;
  }
  const py::gil_scoped_acquire gil;
  const py::error_scope kept;  // an exception that is on its way stays apart from what a handler raises
  if (PyErr_CheckSignals() == 0) {
    return false;
  }
  Py_XDECREF(raised.type);  // one that nobody threw: its wait was given up by code that takes no notice
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

}  // namespace

void bindInterrupts(py::module_&) {
  internal::setPythonLock({
      .release = []() -> void* { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; },
      .take = [](void* released) { PyEval_RestoreThread(static_cast<PyThreadState*>(released)); },
  });
  mainThread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  internal::setInterruptThrower(&throwInterrupt);
  setInterruptCheck(&isInterrupted);
}

}  // namespace shardwire::python
