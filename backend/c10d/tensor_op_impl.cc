// CPU tensors go to the compiled op unchanged. As soon as one tensor lies on a device, the op runs over host copies of
// the device tensors, while the checks look at the tensors themselves: a copy would always pass.
#include "backend/c10d/tensor_op_impl.h"

#include <algorithm>
#include <iterator>

#include "backend/c10d/host_tensors.h"
#include "backend/c10d/throw_status.h"
#include "backend/plans/op_facts.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

namespace {

constexpr const char* kBackend = "shardwire";  // also when the group replaces gloo: gloo has no such operation
constexpr const char* kTitle = "compiled_op";
using Tensors = std::span<const at::Tensor>;

c10::intrusive_ptr<WorkShardwire> adapt(int rank, WorkPtr work, std::shared_ptr<const OperationTensors> tensors,
                                        std::shared_ptr<ProfilerRange> range) {
  constexpr std::uint64_t kNoSequence = 0;  // reading the group's number would take a lock in every run
  return WorkShardwire::create(std::move(work), std::move(tensors),
                               {rank, ::c10d::OpType::UNKNOWN, kNoSequence, std::move(range)});
}

// The core holds the tensors as void and writes nothing through the pointer.
std::shared_ptr<void> opaque(const std::shared_ptr<const OperationTensors>& tensors) {
  return std::const_pointer_cast<OperationTensors>(tensors);
}

bool hasDeviceTensors(Tensors tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && !tensor.device().is_cpu(); });
}

// For each tensor the host's view, and the view for the checks: a copy would always pass.
struct Views {
  std::vector<TensorView> seen;
  std::vector<TensorView> checked;
};

Views bothViewsOf(HostTensors& host, Tensors tensors, bool areInputs, const char* which) {
  const HostTensors::List list(tensors.begin(), tensors.end());
  const HostTensors::List seen = areInputs ? host.in(list, which) : host.out(list, which);
  Views views{viewsOf(seen, which), {}};
  for (const at::Tensor& tensor : list) {
    views.checked.push_back(deviceViewOf(tensor));
  }
  return views;
}

}  // namespace

BoundTensorOpShardwire::BoundTensorOpShardwire(std::shared_ptr<CompiledOp> op, std::unique_ptr<BoundOp> bound,
                                               std::shared_ptr<const OperationTensors> tensors, int rank,
                                               std::string name)
    : op_(std::move(op)), bound_(std::move(bound)), tensors_(std::move(tensors)), rank_(rank), name_(std::move(name)) {
  for (const auto* list : {&tensors_->inputs, &tensors_->outputs}) {
    std::ranges::transform(*list, std::back_inserter(places_), &deviceViewOf);
  }
}

BoundTensorOpShardwire::BoundTensorOpShardwire(std::shared_ptr<TensorOpShardwire> op,
                                               std::shared_ptr<const OperationTensors> tensors,
                                               std::optional<Duration> timeout)
    : unbound_(std::move(op)), tensors_(std::move(tensors)), timeout_(timeout), rank_(0) {}

// The core keeps the views from bind(). After a resize the storage has other memory, or none; after an assignment to
// `t.data`, and after `t.t_()`, the tensor is another view.
void BoundTensorOpShardwire::checkPlaces() const {
  std::size_t place = 0;
  const auto check = [&](const auto& list, const char* which) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!areOneTensor(deviceViewOf(list[i]), places_[place++]) || !fitsStorage(list[i])) {
        refuseCall(StatusCode::kInvalidArgument,
                   "{} on rank {}: the memory of {}[{}] was freed or moved since bind(), or the tensor became another "
                   "view: bind the tensors again",
                   labelOf(name_), rank_, which, i);
      }
    }
  };
  check(tensors_->inputs, "inputs");
  check(tensors_->outputs, "outputs");
}

c10::intrusive_ptr<WorkShardwire> BoundTensorOpShardwire::start() {
  if (unbound_ != nullptr) {
    const auto& inputs = tensors_->inputs;
    const auto& outputs = tensors_->outputs;
    return unbound_->start({inputs.data(), inputs.size()}, {outputs.data(), outputs.size()}, timeout_);
  }
  checkPlaces();
  std::shared_ptr<ProfilerRange> range = ProfilerRange::open(kBackend, kTitle, *tensors_, name_);
  WorkPtr work = valueOrThrow(bound_->run());
  bumpVersions(tensors_->outputs);
  return adapt(rank_, std::move(work), tensors_, std::move(range));
}

TensorOpShardwire::TensorOpShardwire(std::shared_ptr<CompiledOp> op, int rank, std::shared_ptr<DeviceStager> stager,
                                     std::string name)
    : op_(std::move(op)), rank_(rank), stager_(std::move(stager)), name_(std::move(name)) {}

void TensorOpShardwire::checkGroup() const {
  if (stager_ == nullptr) {
    throwUnlessOk(op_->check({}, {}));
  }
}

c10::intrusive_ptr<WorkShardwire> TensorOpShardwire::start(Tensors inputs, Tensors outputs,
                                                           std::optional<Duration> timeout) {
  checkGroup();
  if (hasDeviceTensors(inputs) || hasDeviceTensors(outputs)) {
    return startStaged(inputs, outputs, timeout);
  }
  const auto inputViews = viewsOf(inputs, "inputs");
  const auto outputViews = viewsOf(outputs, "outputs");
  auto tensors = std::make_shared<const OperationTensors>(tensorsOf(outputs, inputs));
  std::shared_ptr<ProfilerRange> range = ProfilerRange::open(kBackend, kTitle, *tensors, name_);
  WorkPtr work = valueOrThrow(op_->run(inputViews, outputViews, opaque(tensors), timeout));
  bumpVersions(tensors->outputs);
  return adapt(rank_, std::move(work), std::move(tensors), std::move(range));
}

c10::intrusive_ptr<WorkShardwire> TensorOpShardwire::startStaged(Tensors inputs, Tensors outputs,
                                                                 std::optional<Duration> timeout) {
  HostTensors host(stager_);
  const Views inputViews = bothViewsOf(host, inputs, true, "inputs");
  const Views outputViews = bothViewsOf(host, outputs, false, "outputs");
  throwUnlessOk(op_->check(inputViews.checked, outputViews.checked));
  auto tensors = std::make_shared<const OperationTensors>(tensorsOf(outputs, inputs));
  std::shared_ptr<ProfilerRange> range = ProfilerRange::open(kBackend, kTitle, *tensors, name_);
  auto alive =
      std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(opaque(tensors), host.staged());
  Result<WorkPtr> issued = op_->run(inputViews.seen, outputViews.seen, std::move(alive), timeout, host.staged().get());
  WorkPtr work = host.begin(issued.isOk() ? std::move(issued).value() : nullptr, opaque(tensors));
  throwUnlessOk(issued.status());
  bumpVersions(tensors->outputs);
  return adapt(rank_, std::move(work), std::move(tensors), std::move(range));
}

std::string TensorOpShardwire::explain() const {
  return op_->explain() + (stager_ == nullptr ? std::string() : stager_->describe());
}

std::unique_ptr<BoundTensorOpShardwire> TensorOpShardwire::bound(Tensors inputs, Tensors outputs,
                                                                 std::optional<Duration> timeout) {
  checkGroup();
  auto tensors = std::make_shared<const OperationTensors>(tensorsOf(outputs, inputs));
  if (hasDeviceTensors(inputs) || hasDeviceTensors(outputs)) {
    // Each run has host copies of its own. Tensors that a run would refuse are refused here already.
    HostTensors host(stager_);
    const Views inputViews = bothViewsOf(host, inputs, true, "inputs");
    const Views outputViews = bothViewsOf(host, outputs, false, "outputs");
    throwUnlessOk(op_->check(inputViews.checked, outputViews.checked));
    return std::make_unique<BoundTensorOpShardwire>(std::make_shared<TensorOpShardwire>(op_, rank_, stager_, name_),
                                                    std::move(tensors), timeout);
  }
  const auto inputViews = viewsOf(inputs, "inputs");
  const auto outputViews = viewsOf(outputs, "outputs");
  auto boundOp = valueOrThrow(op_->bind(inputViews, outputViews, opaque(tensors), timeout));
  return std::make_unique<BoundTensorOpShardwire>(op_, std::move(boundOp), std::move(tensors), rank_, name_);
}

}  // namespace shardwire::internal
