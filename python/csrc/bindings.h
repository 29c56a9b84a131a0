// What the binding files share: one bind* function per concept, and conversions. All of it needs the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/c10d/process_group_shardwire.h"

namespace shardwire::python {

namespace py = pybind11;

void bindErrors(py::module_& module);
void bindGroups(py::module_& module);
void bindCompiledOps(py::module_& module);
void bindLayouts(py::module_& module);
void bindHeap(py::module_& module);
void bindMpi(py::module_& module);

// The Python exception (not raised) that stands for a Status which is not ok.
py::object exceptionOf(const Status& status);
// The shardwire group behind a c10d backend object. TypeError for anything else.
ProcessGroupShardwire& groupOf(const py::handle& object);

// ValueError for more than kMaxDims entries; `what` names the value.
Dims dimsOf(const std::vector<std::int64_t>& values, const char* what);
py::tuple tupleOf(const Dims& dims);
// List of (offset, shape, local_offset).
py::list slicesOf(const std::vector<PlacedSlice>& slices);
// "sum" -> kSum, "mean" and "avg" -> kMean, ...; nullopt for a name that is none.
std::optional<ReduceOp> reductionOf(const std::string& name);
// None for kNone.
py::object nameOf(ReduceOp op);
c10::ScalarType scalarTypeOf(const py::handle& dtype);  // TypeError when it is no torch.dtype
py::object torchDType(c10::ScalarType type);
inline Duration durationOf(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years; what is longer would overflow
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}
inline std::optional<Duration> durationOf(std::optional<double> seconds) {
  return seconds.has_value() ? std::optional(durationOf(*seconds)) : std::nullopt;
}

}  // namespace shardwire::python
