// compile_op and its results. PyWork is one run, PyBoundOp an op with fixed tensors, PyCompiledOp an op. Methods that
// start or await a run release the GIL. So do the destructors, since the end of a group waits for threads that may need
// the GIL. Then come the functions that make ops: compileOp() in a group, planOffline() and readPlan() without a group,
// attach() for an op that gets a group later; between these, the files of kept plans. The bindings are at the end.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "backend/base/kept_file.h"
#include "backend/c10d/tensor_op_impl.h"
#include "backend/c10d/throw_status.h"
#include "python/csrc/bindings.h"
#include "shardwire/offline.h"

namespace shardwire::python {
namespace {

using internal::WorkShardwire;
using Tensors = c10::SmallVector<at::Tensor, 8>;

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

// One run, for Python.
class PyWork {
 public:
  explicit PyWork(c10::intrusive_ptr<WorkShardwire> work) : work_(std::move(work)) {}

  bool done() const { return work_->isCompleted(); }

  // Without `seconds` and with device tensors: the current streams wait. True when the operation is over.
  bool wait(std::optional<double> seconds) const {
    if (!seconds.has_value() && work_->hasDeviceTensors()) {
      const GilRelease release;
      work_->wait();
      return work_->isCompleted();
    }
    synchronize(seconds);
    return true;
  }

  // Blocks the CPU until the operation is over.
  void synchronize(std::optional<double> seconds) const {
    const Deadline deadline = seconds.has_value() ? deadlineAfter(durationOf(*seconds)) : kNoDeadline;
    if (work_->isCompleted()) {
      internal::throwUnlessOk(work_->status());
      return;
    }
    const GilRelease release;
    internal::throwUnlessOk(work_->waitUntil(deadline));
  }

  py::object exception() const {
    const Status status = work_->isCompleted() ? work_->status() : Status::ok();
    return status.isOk() ? py::object(py::none()) : exceptionOf(status);
  }

  // Through torch's own binding of Work, which wraps the future.
  py::object getFuture() const { return py::cast(c10::intrusive_ptr<::c10d::Work>(work_)).attr("get_future")(); }

 private:
  c10::intrusive_ptr<WorkShardwire> work_;
};

// Ends `owner` without the GIL: the last reference to a group joins its threads, which may be waiting for the GIL.
template <typename T>
void endWithoutGil(std::unique_ptr<T>& owner) {
  const GilRelease release;
  owner.reset();
}

class PyBoundOp {
 public:
  explicit PyBoundOp(std::unique_ptr<internal::BoundTensorOpShardwire> op) : op_(std::move(op)) {}
  PyBoundOp(PyBoundOp&&) = default;
  ~PyBoundOp() {
    if (op_ != nullptr) {
      endWithoutGil(op_);
    }
  }

  PyWork call() {
    const GilRelease release;
    return PyWork(op_->start());
  }

 private:
  std::unique_ptr<internal::BoundTensorOpShardwire> op_;
};

class PyCompiledOp {
 public:
  PyCompiledOp(std::unique_ptr<internal::TensorOpShardwire> op, std::vector<DeclaredTensor> declared)
      : op_(std::move(op)), declared_(std::move(declared)) {}
  PyCompiledOp(PyCompiledOp&&) = default;
  ~PyCompiledOp() {
    if (op_ != nullptr) {
      endWithoutGil(op_);
    }
  }

  PyWork run(const py::list& inputs, const py::list& outputs, std::optional<double> seconds) {
    const Tensors inputTensors = tensorsOf(inputs, "inputs");
    const Tensors outputTensors = tensorsOf(outputs, "outputs");
    const GilRelease release;
    return PyWork(op_->start(spanOf(inputTensors), spanOf(outputTensors), durationOf(seconds)));
  }
  PyBoundOp bind(const py::list& inputs, const py::list& outputs, std::optional<double> seconds) {
    const Tensors inputTensors = tensorsOf(inputs, "inputs");
    const Tensors outputTensors = tensorsOf(outputs, "outputs");
    const GilRelease release;
    return PyBoundOp(op_->bound(spanOf(inputTensors), spanOf(outputTensors), durationOf(seconds)));
  }
  std::string explain() const { return op_->explain(); }
  std::string explainJson() const { return op_->compiled().explainJson(); }
  py::dict stats() const;
  const std::vector<LocalTensor>& inputs() const { return op_->compiled().inputs(); }
  const std::vector<LocalTensor>& outputs() const { return op_->compiled().outputs(); }
  std::vector<DeclaredTensor> tensors() const;
  py::bytes planBytes() const { return py::bytes(op_->compiled().planBytes()); }
  // "planned", "received", "memory" or "disk"; the path of the plan's file; why the file could not be written.
  std::tuple<std::string, std::string, std::string> planProvenance() const;
  const CompiledOp& compiled() const { return op_->compiled(); }
  const std::vector<DeclaredTensor>& declared() const { return declared_; }

 private:
  std::unique_ptr<internal::TensorOpShardwire> op_;
  std::vector<DeclaredTensor> declared_;  // by this rank; other ranks may have declared more
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

std::tuple<std::string, std::string, std::string> PyCompiledOp::planProvenance() const {
  constexpr std::array kNames = {"planned", "received", "memory", "disk"};
  const PlanProvenance& found = op_->compiled().planProvenance();
  return {kNames[static_cast<std::size_t>(found.from)], found.path, found.whyNoFile};
}

std::vector<DeclaredTensor> PyCompiledOp::tensors() const {
  std::vector<DeclaredTensor> tensors;
  for (const TensorDecl& decl : op_->compiled().tensors()) {
    const auto own =
        std::ranges::find(declared_, decl.name, [](const DeclaredTensor& declared) { return declared.decl.name; });
    const bool isOwn = own != declared_.end();
    const bool isCast = decl.dtype != decl.outputDtype;
    // This rank's declaration of one side holds for the other side, too, unless there is a cast.
    const auto typeOf = [&](auto side, auto other, DType dtype) {
      if (isOwn && ((*own).*side).has_value()) {
        return (*own).*side;
      }
      return isOwn && !isCast && ((*own).*other).has_value() ? (*own).*other : internal::scalarTypeOf(dtype);
    };
    tensors.push_back({decl, typeOf(&DeclaredTensor::type, &DeclaredTensor::outputType, *decl.dtype),
                       typeOf(&DeclaredTensor::outputType, &DeclaredTensor::type, *decl.outputDtype)});
  }
  return tensors;
}

WhoPlans whoPlansOf(std::optional<bool> rank0Plans) {
  return !rank0Plans.has_value() ? WhoPlans::kChosen : *rank0Plans ? WhoPlans::kRank0 : WhoPlans::kEachRank;
}

// `localError`: this rank's error takes part in the exchange, since the other ranks wait there and must receive the
// error.
PyCompiledOp compileOp(Group group, std::vector<DeclaredTensor> tensors, std::vector<LocalTensor> inputs,
                       std::vector<LocalTensor> outputs, bool allowGaps, const std::string& name,
                       const Status& localError, std::optional<double> seconds, const std::string& overlap,
                       std::optional<bool> rank0Plans, bool useCached, const std::string& buildDir) {
  LocalSpec spec{.inputs = std::move(inputs),
                 .outputs = std::move(outputs),
                 .allowGaps = allowGaps,
                 .overlap = overlapOf(overlap),
                 .whoPlans = whoPlansOf(rank0Plans),
                 .name = name,
                 .useCached = useCached,
                 .buildDir = buildDir};
  for (const DeclaredTensor& tensor : tensors) {
    spec.tensors.push_back(tensor.decl);
  }
  spec.localError = localError;
  const GilRelease release;
  return PyCompiledOp(group->compileOp(spec, durationOf(seconds)), std::move(tensors));
}

PyCompiledOp planOffline(std::vector<RankLists> ranks, Rank rank, bool allowGaps, const std::string& overlap,
                         const std::string& name, const std::vector<std::int32_t>& hosts,
                         std::optional<bool> rank0Plans, bool useCached, const std::string& buildDir) {
  std::vector<DeclaredTensor> declared = std::get<0>(ranks.at(static_cast<std::size_t>(rank)));
  const GilRelease release;
  std::vector<LocalSpec> specs = specsOf(ranks, allowGaps, overlap, name);
  LocalSpec& own = specs[static_cast<std::size_t>(rank)];
  own.useCached = useCached;
  own.buildDir = buildDir;
  for (LocalSpec& spec : specs) {
    spec.whoPlans = rank0Plans == false ? WhoPlans::kEachRank : WhoPlans::kChosen;  // names the folder
  }
  std::shared_ptr<CompiledOp> op = internal::valueOrThrow(shardwire::planOffline(specs, rank, hosts));
  return PyCompiledOp(std::make_unique<internal::TensorOpShardwire>(std::move(op), rank, nullptr, name),
                      std::move(declared));
}

PyCompiledOp readPlan(const std::string& bytes) {
  std::shared_ptr<CompiledOp> op = internal::valueOrThrow(shardwire::readPlan(bytes));
  return PyCompiledOp(std::make_unique<internal::TensorOpShardwire>(std::move(op), 0, nullptr, ""), {});
}

std::optional<py::bytes> readKept(const std::string& path) {
  std::optional<std::string> bytes;
  {
    const GilRelease release;
    bytes = internal::readKept(path);
  }
  return bytes.has_value() ? std::optional(py::bytes(*bytes)) : std::nullopt;
}

std::string writeKept(const std::string& folder, const std::string& name, const py::bytes& bytes) {
  const std::string_view view(bytes);
  const GilRelease release;
  return internal::writeKept(folder, name, view).message();
}

PyCompiledOp attach(Group group, const PyCompiledOp& planned, std::optional<double> seconds) {
  std::vector<DeclaredTensor> declared = planned.declared();
  const GilRelease release;
  return PyCompiledOp(group->attach(planned.compiled(), durationOf(seconds)), std::move(declared));
}

}  // namespace

void bindCompiledOps(py::module_& module) {
  py::class_<PyWork>(module, "Work", "One run under way.")
      .def("done", &PyWork::done, "Whether the run is over, with or without an error.")
      .def("wait", &PyWork::wait, py::arg("timeout_s") = py::none(),
           "Blocks until the run is over, and raises its error; TimeoutError when the time is up first. Without a "
           "time, and with tensors of devices: the current streams wait instead of the CPU, and the result says "
           "whether the run is over.")
      .def("synchronize", &PyWork::synchronize, py::arg("timeout_s") = py::none(),
           "Like wait, but always the CPU waits.")
      .def("exception", &PyWork::exception, "The run's error; None during the run and after success.")
      .def("get_future", &PyWork::getFuture, "A c10 future whose value is the list of output tensors.");
  py::class_<PyBoundOp>(module, "BoundOp", "A compiled op with its tensors fixed.")
      .def("__call__", &PyBoundOp::call, "Starts one run.");
  py::class_<PyCompiledOp>(module, "CompiledOp", "A compiled movement of data.")
      .def("run", &PyCompiledOp::run, py::arg("inputs"), py::arg("outputs"), py::arg("timeout_s") = py::none(),
           "Starts one run.")
      .def("bind", &PyCompiledOp::bind, py::arg("inputs"), py::arg("outputs"), py::arg("timeout_s") = py::none(),
           "Checks the tensors once and keeps them.")
      .def("explain", &PyCompiledOp::explain, "A table for people.")
      .def("explain_json", &PyCompiledOp::explainJson, "The same facts as JSON.")
      .def("stats", &PyCompiledOp::stats, "Counters of this rank.")
      .def("plan_bytes", &PyCompiledOp::planBytes, "This rank's plan for read_plan.")
      .def("plan_provenance", &PyCompiledOp::planProvenance,
           "Where the plan came from, its file, and why the file could not be written.")
      .def_property_readonly("inputs", &PyCompiledOp::inputs)
      .def_property_readonly("outputs", &PyCompiledOp::outputs)
      .def_property_readonly("tensors", &PyCompiledOp::tensors);
  module.def("compile_op", &compileOp, py::arg("backend"), py::arg("tensors"), py::arg("inputs"), py::arg("outputs"),
             py::arg("allow_gaps"), py::arg("name"), py::arg("local_error") = py::none(),
             py::arg("timeout_s") = py::none(), py::arg("overlap") = "last", py::arg("rank0_plans") = py::none(),
             py::arg("use_cached") = true, py::arg("build_dir") = "",
             "Collective: every rank gives its spec; all raise the same error when these do not fit together.");
  module.def("plan_offline", &planOffline, py::arg("ranks"), py::arg("rank"), py::arg("allow_gaps"), py::arg("overlap"),
             py::arg("name"), py::arg("hosts"), py::arg("rank0_plans") = py::none(), py::arg("use_cached") = true,
             py::arg("build_dir") = "",
             "One rank's op, from all ranks' lists, without a group: the op can only describe itself.");
  module.def("read_kept", &readKept, py::arg("path"),
             "The bytes of a kept file; None if there is no file, or if another user may have written the file.");
  module.def("write_kept", &writeKept, py::arg("folder"), py::arg("name"), py::arg("bytes"),
             "Writes a file whole or not at all. Returns the text of the failure, or an empty text.");
  module.def("read_plan", &readPlan, py::arg("bytes"), "The op of these plan_bytes, without a group.");
  module.def("attach", &attach, py::arg("backend"), py::arg("planned"), py::arg("timeout_s") = py::none(),
             "Collective: gives a group to an op without one; each rank passes the op of its own rank.");
}

}  // namespace shardwire::python
