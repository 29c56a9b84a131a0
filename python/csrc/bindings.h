// Shared by the binding files: one bind* function per concept, and conversions. All functions need the GIL.
#pragma once

#include <cxxabi.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/c10d/process_group_shardwire.h"
#include "python/csrc/owned.h"

namespace shardwire::python {

// The Status of a Python exception: exceptionOf() gives the same class again. Other classes than shardwire's own,
// ValueError and TypeError become the closest of these.
Status statusOf(const pybind11::handle& exception);
// The shardwire group behind a c10d backend object. TypeError for anything else.
ProcessGroupShardwire& groupOf(const pybind11::handle& object);

// Takes the GIL again, also in a destructor. Where the interpreter is about to end (this thread is a daemon thread),
// the thread stays here until the process ends, as in Python 3.14. Older Pythons end such a thread by pthread_exit,
// which would call std::terminate, since the thread leaves a destructor.
inline void takeGil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) {
      ::pause();
    }
  }
}

// Releases the GIL for a scope.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() { takeGil(state_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// The argument of a function that takes a c10d backend object.
struct Group {
  ProcessGroupShardwire* behind = nullptr;
  ProcessGroupShardwire* operator->() const { return behind; }
};

}  // namespace shardwire::python

namespace pybind11::detail {

// Arguments only: None is ok, an exception is statusOf() the exception.
template <>
struct type_caster<shardwire::Status> {
  PYBIND11_TYPE_CASTER(shardwire::Status, const_name("Optional[Exception]"));

  bool load(handle source, bool) {
    if (!source.is_none() && !PyExceptionInstance_Check(source.ptr())) {
      return false;
    }
    value = source.is_none() ? shardwire::Status::ok() : shardwire::python::statusOf(source);
    return true;
  }
};

template <>
struct type_caster<shardwire::python::Group> {
  PYBIND11_TYPE_CASTER(shardwire::python::Group, const_name("object"));

  bool load(handle source, bool) {
    value.behind = &shardwire::python::groupOf(source);
    return true;
  }
};

// Dims are tuples of int in Python; a list is accepted, too. ValueError for more than kMaxDims entries.
template <>
struct type_caster<shardwire::Dims> {
  PYBIND11_TYPE_CASTER(shardwire::Dims, const_name("tuple[int, ...]"));

  bool load(handle source, bool convert) {
    if (!PyTuple_Check(source.ptr()) && !PyList_Check(source.ptr())) {
      return false;
    }
    const auto items = reinterpret_borrow<sequence>(source);
    if (items.size() > static_cast<std::size_t>(shardwire::kMaxDims)) {
      throw value_error(std::to_string(items.size()) + " dimensions; at most " + std::to_string(shardwire::kMaxDims) +
                        " are supported");
    }
    value = {};
    for (const handle item : items) {
      make_caster<std::int64_t> number;
      if (!number.load(item, convert)) {
        return false;
      }
      value.push_back(cast_op<std::int64_t>(number));
    }
    return true;
  }
  static handle cast(const shardwire::Dims& dims, return_value_policy, handle) {
    tuple items(static_cast<std::size_t>(dims.size()));
    for (int i = 0; i < dims.size(); ++i) {
      items[static_cast<std::size_t>(i)] = dims[i];
    }
    return items.release();
  }
};

}  // namespace pybind11::detail

namespace shardwire::python {

namespace py = pybind11;

void bindErrors(py::module_& module);
void bindInterrupts(py::module_& module);
void bindGroups(py::module_& module);
void bindSpecTypes(py::module_& module);
void bindCompiledOps(py::module_& module);
void bindLayouts(py::module_& module);
void bindHeap(py::module_& module);
void bindExperts(py::module_& module);
void bindSymmetricMemory(py::module_& module);
void bindMpi(py::module_& module);
void bindOffline(py::module_& module);
void bindSight(py::module_& module);
void bindQueues(py::module_& module);
void bindPlainReader(py::module_& module);
void bindPlainWriter(py::module_& module);

// The Python exception (not raised) for a Status with an error.
py::object exceptionOf(const Status& status);

// A TensorDecl with torch's own dtype: of dtypes unknown to the core, the core keeps only the width. Empty: torch has
// no such type.
struct DeclaredTensor {
  TensorDecl decl;
  std::optional<c10::ScalarType> type;        // of the inputs
  std::optional<c10::ScalarType> outputType;  // of the outputs
};

// "sum" -> kSum, "mean" and "avg" -> kMean, ...; ValueError for any other name.
ReduceOp reductionOf(const std::string& name);
// "last", "any", "error"; Python has refused other names.
Overlap overlapOf(const std::string& name);
// All ranks' lists, as made in Python: of each rank the tensors, inputs, outputs and error.
using RankLists = std::tuple<std::vector<DeclaredTensor>, std::vector<LocalTensor>, std::vector<LocalTensor>, Status>;
std::vector<LocalSpec> specsOf(std::vector<RankLists>& ranks, bool allowGaps, const std::string& overlap,
                               const std::string& name);
// None for kNone.
py::object nameOf(ReduceOp op);
c10::ScalarType scalarTypeOf(const py::handle& dtype);  // TypeError for anything but a torch.dtype
py::object torchDType(c10::ScalarType type);
inline Duration durationOf(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years; a longer time would overflow
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}
inline std::optional<Duration> durationOf(std::optional<double> seconds) {
  return seconds.has_value() ? std::optional(durationOf(*seconds)) : std::nullopt;
}

}  // namespace shardwire::python
