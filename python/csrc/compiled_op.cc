// compile_op and what it returns.
#include <torch/csrc/autograd/python_variable.h>

#include "backend/c10d/status_error.h"
#include "backend/c10d/tensor_op.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using internal::WorkShardwire;
using Ints = std::vector<std::int64_t>;
using Tensors = c10::SmallVector<at::Tensor, 8>;

// How long a wait may keep the interpreter from seeing Ctrl-C.
constexpr std::chrono::milliseconds kSignalInterval(100);

Tensors tensorsOf(const py::list& list, const char* which) {
  Tensors tensors;
  tensors.reserve(list.size());
  for (const py::handle item : list) {
    if (!THPVariable_Check(item.ptr())) {
      throw py::type_error(std::string(which) + "[" + std::to_string(tensors.size()) +
                           "] is not a tensor: " + std::string(py::str(py::type::of(item))));
    }
    tensors.push_back(THPVariable_Unpack(item.ptr()));
  }
  return tensors;
}

std::span<const at::Tensor> spanOf(const Tensors& tensors) {
  return {tensors.data(), tensors.size()};
}

// One run as Python sees it.
class PyWork {
 public:
  explicit PyWork(c10::intrusive_ptr<WorkShardwire> work) : work_(std::move(work)) {}

  bool done() const { return work_->isCompleted(); }

  // Without `seconds` and with tensors of devices: the current streams wait. True when the operation is over.
  bool wait(std::optional<double> seconds) const {
    if (!seconds.has_value() && work_->hasDeviceTensors()) {
      const py::gil_scoped_release release;
      work_->wait();
      return work_->isCompleted();
    }
    synchronize(seconds);
    return true;
  }

  // Blocks the CPU until the operation is over.
  void synchronize(std::optional<double> seconds) const {
    const Deadline deadline = seconds.has_value() ? deadlineAfter(durationOf(*seconds)) : kNoDeadline;
    while (!work_->isCompleted()) {
      const Deadline slice = std::min<Deadline>(deadline, Clock::now() + kSignalInterval);
      Status status;
      {
        const py::gil_scoped_release release;
        status = work_->waitUntil(slice);
      }
      if (work_->isCompleted()) {
        break;
      }
      if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
      }
      if (slice == deadline) {
        throw StatusError(std::move(status));
      }
    }
    internal::throwUnlessOk(work_->status());
  }

  py::object exception() const {
    const Status status = work_->isCompleted() ? work_->status() : Status::ok();
    return status.isOk() ? py::object(py::none()) : exceptionOf(status);
  }

  // Through torch's own binding of Work, which knows how to wrap a future.
  py::object getFuture() const { return py::cast(c10::intrusive_ptr<::c10d::Work>(work_)).attr("get_future")(); }

 private:
  c10::intrusive_ptr<WorkShardwire> work_;
};

// Ends `owner` without the GIL: the last reference to a group joins its threads, which may be waiting for the GIL.
template <typename T>
void endWithoutGil(std::unique_ptr<T>& owner) {
  const py::gil_scoped_release release;
  owner.reset();
}

class PyBoundOp {
 public:
  explicit PyBoundOp(std::unique_ptr<BoundTensorOp> op) : op_(std::move(op)) {}
  PyBoundOp(PyBoundOp&&) = default;
  ~PyBoundOp() {
    if (op_ != nullptr) {
      endWithoutGil(op_);
    }
  }

  PyWork call() {
    const py::gil_scoped_release release;
    return PyWork(op_->run());
  }

 private:
  std::unique_ptr<BoundTensorOp> op_;
};

class PyCompiledOp {
 public:
  PyCompiledOp(std::unique_ptr<TensorOp> op, std::vector<std::pair<std::string, c10::ScalarType>> types)
      : op_(std::move(op)), types_(std::move(types)) {}
  PyCompiledOp(PyCompiledOp&&) = default;
  ~PyCompiledOp() {
    if (op_ != nullptr) {
      endWithoutGil(op_);
    }
  }

  PyWork run(const py::list& inputs, const py::list& outputs, std::optional<double> seconds) {
    const Tensors inputTensors = tensorsOf(inputs, "inputs");
    const Tensors outputTensors = tensorsOf(outputs, "outputs");
    const py::gil_scoped_release release;
    return PyWork(op_->run(spanOf(inputTensors), spanOf(outputTensors), durationOf(seconds)));
  }
  PyBoundOp bind(const py::list& inputs, const py::list& outputs, std::optional<double> seconds) {
    const Tensors inputTensors = tensorsOf(inputs, "inputs");
    const Tensors outputTensors = tensorsOf(outputs, "outputs");
    const py::gil_scoped_release release;
    return PyBoundOp(op_->bind(spanOf(inputTensors), spanOf(outputTensors), durationOf(seconds)));
  }
  std::string explain() const { return op_->explain(); }
  std::string explainJson() const { return op_->compiled().explainJson(); }
  py::dict stats() const;
  py::list inputs() const { return localTensors(op_->compiled().inputs()); }
  py::list outputs() const { return localTensors(op_->compiled().outputs()); }
  py::list tensors() const;

 private:
  static py::list localTensors(const std::vector<LocalTensor>& tensors);
  py::object dtypeOf(const TensorDecl& tensor) const;

  std::unique_ptr<TensorOp> op_;
  // torch's types by tensor name: the core keeps only the width of those that it does not know.
  std::vector<std::pair<std::string, c10::ScalarType>> types_;
};

py::dict PyCompiledOp::stats() const {
  const OpStats stats = op_->compiled().stats();
  py::dict dict;
  dict["bytes_sent"] = stats.bytesSent;
  dict["bytes_received"] = stats.bytesReceived;
  dict["bytes_local"] = stats.bytesLocal;
  dict["bytes_reduced"] = stats.bytesReduced;
  dict["num_moves"] = stats.numMoves;
  dict["plan_bytes"] = stats.planBytes;
  dict["scratch_bytes"] = stats.scratchBytes;
  dict["num_runs"] = stats.numRuns;
  dict["compile_seconds"] = stats.compileSeconds;
  dict["last_run_seconds"] = stats.lastRunSeconds;
  return dict;
}

py::list PyCompiledOp::localTensors(const std::vector<LocalTensor>& tensors) {
  py::list list;
  for (const LocalTensor& tensor : tensors) {
    list.append(py::make_tuple(tensor.tensor, tupleOf(tensor.localShape), slicesOf(tensor.slices), tensor.replicaClass));
  }
  return list;
}

py::object PyCompiledOp::dtypeOf(const TensorDecl& tensor) const {
  for (const auto& [name, type] : types_) {
    if (name == tensor.name) {
      return torchDType(type);
    }
  }
  const auto type = internal::scalarTypeOf(tensor.dtype);
  return type.has_value() ? torchDType(*type) : py::object(py::none());
}

py::list PyCompiledOp::tensors() const {
  py::list list;
  for (const TensorDecl& tensor : op_->compiled().tensors()) {
    const py::object shape = tensor.shape.has_value() ? py::object(tupleOf(*tensor.shape)) : py::object(py::none());
    list.append(py::make_tuple(tensor.name, shape, dtypeOf(tensor), nameOf(tensor.reduction)));
  }
  return list;
}

TensorDecl declOf(const py::handle& item) {
  const auto [name, shape, dtype, reduction] =
      item.cast<std::tuple<std::string, std::optional<Ints>, py::object, std::optional<std::string>>>();
  TensorDecl tensor;
  tensor.name = name;
  if (shape.has_value()) {
    tensor.shape = dimsOf(*shape, "shape");
  }
  tensor.dtype = internal::dtypeOf(scalarTypeOf(dtype));
  if (reduction.has_value()) {
    const auto op = reductionOf(*reduction);
    if (!op.has_value()) {
      throw py::value_error("'" + *reduction + "' is no reduction; use sum, prod, min, max, avg, mean, band, bor or bxor");
    }
    tensor.reduction = *op;
  }
  return tensor;
}

LocalTensor localTensorOf(const py::handle& item) {
  const auto [index, localShape, slices, replicaClass] =
      item.cast<std::tuple<std::int32_t, Ints, std::vector<std::tuple<Ints, Ints, Ints>>, std::uint64_t>>();
  LocalTensor tensor;
  tensor.tensor = index;
  tensor.localShape = dimsOf(localShape, "local shape");
  tensor.replicaClass = replicaClass;
  for (const auto& [offset, shape, localOffset] : slices) {
    tensor.slices.push_back({{dimsOf(offset, "offset"), dimsOf(shape, "shape")}, dimsOf(localOffset, "local offset")});
  }
  return tensor;
}

StatusCode codeOf(const std::string& kind) {
  if (kind == "value") {
    return StatusCode::kInvalidArgument;
  }
  if (kind == "type") {
    return StatusCode::kTypeError;
  }
  return kind == "unsupported" ? StatusCode::kUnsupported : StatusCode::kInternal;
}

void readSpec(LocalSpec& spec, const py::list& tensors, const py::list& inputs, const py::list& outputs) {
  for (const py::handle item : tensors) {
    spec.tensors.push_back(declOf(item));
  }
  for (const py::handle item : inputs) {
    spec.inputs.push_back(localTensorOf(item));
  }
  for (const py::handle item : outputs) {
    spec.outputs.push_back(localTensorOf(item));
  }
}

// What this rank got wrong becomes its part of the exchange: the others wait there, and must hear of it.
LocalSpec specOf(const py::list& tensors, const py::list& inputs, const py::list& outputs,
                 const std::optional<std::pair<std::string, std::string>>& localError) {
  LocalSpec spec;
  if (localError.has_value()) {
    spec.localError = Status(codeOf(localError->first), localError->second);
    return spec;
  }
  try {
    readSpec(spec, tensors, inputs, outputs);
  } catch (const StatusError& error) {
    spec.localError = error.status();
  } catch (const py::value_error& error) {
    spec.localError = Status(StatusCode::kInvalidArgument, error.what());
  } catch (const py::type_error& error) {
    spec.localError = Status(StatusCode::kTypeError, error.what());
  } catch (const py::cast_error& error) {
    spec.localError =
        Status(StatusCode::kTypeError, std::string("the specification does not have the form that _C.compile_op takes: ") + error.what());
  }
  if (!spec.localError.isOk()) {
    spec.tensors.clear();
    spec.inputs.clear();
    spec.outputs.clear();
  }
  return spec;
}

PyCompiledOp compileOp(const py::object& backend, const py::list& tensors, const py::list& inputs, const py::list& outputs, bool allowGaps,
                       const std::string& name, const std::optional<std::pair<std::string, std::string>>& localError,
                       std::optional<double> seconds) {
  ProcessGroupShardwire& group = groupOf(backend);
  LocalSpec spec = specOf(tensors, inputs, outputs, localError);
  spec.allowGaps = allowGaps;
  spec.name = name;
  std::vector<std::pair<std::string, c10::ScalarType>> types;
  if (spec.localError.isOk()) {
    for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
      types.emplace_back(spec.tensors[i].name, scalarTypeOf(tensors[i].cast<py::sequence>()[2]));
    }
  }
  const py::gil_scoped_release release;
  return PyCompiledOp(group.compileOp(spec, durationOf(seconds)), std::move(types));
}

}  // namespace

void bindCompiledOps(py::module_& module) {
  py::class_<PyWork>(module, "Work", "One run under way.")
      .def("done", &PyWork::done, "Whether it is over, well or not.")
      .def("wait", &PyWork::wait, py::arg("timeout_s") = py::none(),
           "Blocks until it is over, raises its error; TimeoutError when the time is up first. Without a time, and with tensors of "
           "devices: the "
           "current streams wait instead of the CPU, and the result is whether it is over.")
      .def("synchronize", &PyWork::synchronize, py::arg("timeout_s") = py::none(), "Like wait, but it is always the CPU that waits.")
      .def("exception", &PyWork::exception, "Its error; None while it runs and after success.")
      .def("get_future", &PyWork::getFuture, "A c10 future whose value is the list of output tensors.");
  py::class_<PyBoundOp>(module, "BoundOp", "A compiled op with its tensors fixed.").def("__call__", &PyBoundOp::call, "Starts one run.");
  py::class_<PyCompiledOp>(module, "CompiledOp", "A compiled movement of data.")
      .def("run", &PyCompiledOp::run, py::arg("inputs"), py::arg("outputs"), py::arg("timeout_s") = py::none(), "Starts one run.")
      .def("bind", &PyCompiledOp::bind, py::arg("inputs"), py::arg("outputs"), py::arg("timeout_s") = py::none(),
           "Checks the tensors once and keeps them.")
      .def("explain", &PyCompiledOp::explain, "A table for people.")
      .def("explain_json", &PyCompiledOp::explainJson, "The same facts as JSON.")
      .def("stats", &PyCompiledOp::stats, "Counters of this rank.")
      .def_property_readonly("inputs", &PyCompiledOp::inputs)
      .def_property_readonly("outputs", &PyCompiledOp::outputs)
      .def_property_readonly("tensors", &PyCompiledOp::tensors);
  module.def("compile_op", &compileOp, py::arg("backend"), py::arg("tensors"), py::arg("inputs"), py::arg("outputs"), py::arg("allow_gaps"),
             py::arg("name"), py::arg("local_error") = py::none(), py::arg("timeout_s") = py::none(),
             "Collective: every rank gives its spec; all raise the same error when these do not fit together.");
}

}  // namespace shardwire::python
