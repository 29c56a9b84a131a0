// A call is looked up by its arguments: first compared with the last call, then by hash. A new call is planned: the
// algorithm is selected, and each stage gets a plan and a pool of runs. prepare() then takes a run for each stage,
// points the run at the call's tensors and links the run to the run of the stage before. The cache is emptied when the
// kept programs are too many or too large; runs in flight hold their own plan.
#include "backend/communicator/program_cache.h"

#include <algorithm>

#include "backend/exec/engine.h"
#include "backend/exec/plan_run.h"
#include "backend/exec/short_run.h"
#include "backend/memory/shared_heap.h"
#include "ops/plan/hash.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kMaxPrograms = 1024;
// As many shapes as a step of a training has; always kept, also in a group of thousands of ranks.
constexpr std::size_t kFewPrograms = 32;
// Roughly, for an edge of a plan: the state of a run, and the views of a tensor.
constexpr std::size_t kBytesPerEdge = 1500;

bool isEqual(const CollectiveCall& a, const CollectiveCall& b) {
  const bool hasLists =
      !a.inputElems.empty() || !b.inputElems.empty() || !a.outputElems.empty() || !b.outputElems.empty();
  return a.kind == b.kind && a.numElems == b.numElems && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         (!hasLists ||
          (std::ranges::equal(a.inputElems, b.inputElems) && std::ranges::equal(a.outputElems, b.outputElems)));
}

// As Dims' operator==, without a call of the C library for one dimension. `kept` has a stride for each dimension.
bool areEqual(std::span<const TensorView> kept, std::span<const TensorView> others) {
  return std::ranges::equal(kept, others, [](const TensorView& a, const TensorView& b) {
    bool isSame = a.bytes == b.bytes && a.dtype == b.dtype && a.shape.size() == b.shape.size() &&
                  a.strides.size() == b.strides.size();
    for (int d = 0; isSame && d < a.shape.size(); ++d) {
      isSame = a.shape[d] == b.shape[d] && a.strides[d] == b.strides[d];
    }
    return isSame;
  });
}

const std::byte* firstOf(const ProgramCache::Given& given) {
  return !given.inputs.empty() ? given.inputs[0].bytes : !given.outputs.empty() ? given.outputs[0].bytes : nullptr;
}

std::uint64_t hashOf(const CollectiveCall& call) {
  Hasher hash;
  hash.add(fingerprintOf(call));
  for (const auto& counts : {call.inputElems, call.outputElems}) {
    for (const std::int64_t count : counts) {
      hash.add(static_cast<std::uint64_t>(count));
    }
  }
  return hash.value();
}

std::vector<TensorView> viewsOf(std::span<const StageTensor> tensors, DType dtype) {
  std::vector<TensorView> views;
  for (const StageTensor& tensor : tensors) {
    views.push_back(TensorView::contiguous(nullptr, dtype, {tensor.numElems}));
  }
  return views;
}

const TensorView* wholeOf(const StageTensor& tensor, std::span<const TensorView> inputs,
                          std::span<const TensorView> outputs) {
  const auto index = static_cast<std::size_t>(tensor.index);
  return tensor.from == StageTensor::From::kInput    ? &inputs[index]
         : tensor.from == StageTensor::From::kOutput ? &outputs[index]
                                                     : nullptr;
}

// An empty tensor may have no address, and a tensor without memory has none.
std::byte* addressOf(const StageTensor& tensor, std::byte* base, std::size_t elemBytes) {
  const std::size_t offset = static_cast<std::size_t>(tensor.first) * elemBytes;
  return tensor.numElems == 0 || base == nullptr ? base : base + offset;
}

// Points a stage's views at the call's tensors; everything else in the views stays from call to call.
void pointAt(std::vector<TensorView>& views, std::span<const StageTensor> tensors, std::span<const TensorView> inputs,
             std::span<const TensorView> outputs, std::byte* scratch) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    const TensorView* const whole = wholeOf(tensors[i], inputs, outputs);
    views[i].bytes = addressOf(tensors[i], whole != nullptr ? whole->bytes : scratch, elementBytes(views[i].dtype));
    views[i].storage = whole != nullptr ? whole->storage : nullptr;
  }
}

}  // namespace

std::unique_ptr<ProgramCache::Kept> ProgramCache::make(const CollectiveCall& call) const {
  auto kept = std::make_unique<Kept>();
  kept->call = call;
  kept->inputElems.assign(call.inputElems.begin(), call.inputElems.end());
  kept->outputElems.assign(call.outputElems.begin(), call.outputElems.end());
  kept->call.inputElems = kept->inputElems;
  kept->call.outputElems = kept->outputElems;
  kept->description = std::make_shared<const std::string>(describe(call));
  Program program = programOf(call, select(call, selection_), rank_, selection_.topology);
  kept->scratchElems = program.scratchElems;
  for (Stage& stage : program.stages) {
    kept->bytes += memoryBytes(stage.plan) + kBytesPerEdge * (stage.plan.sends.size() + stage.plan.receives.size());
    const bool isShort = ShortRun::fits(stage.plan, selection_.frameBytes);
    std::vector<TensorView> inputs = viewsOf(stage.inputs, call.dtype);
    std::vector<TensorView> outputs = viewsOf(stage.outputs, call.dtype);
    kept->stages.push_back({std::make_shared<const Plan>(std::move(stage.plan)),
                            std::move(stage.inputs),
                            std::move(stage.outputs),
                            std::move(inputs),
                            std::move(outputs),
                            stage.afterPrevious,
                            isShort,
                            {}});
  }
  kept->isShort = kept->stages.size() == 1 && kept->stages[0].isShort && kept->scratchElems == 0;
  return kept;
}

ProgramCache::Kept& ProgramCache::keptFor(const CollectiveCall& call) {
  if (last_ != nullptr && isEqual(last_->call, call)) {
    return *last_;
  }
  const std::uint64_t hash = hashOf(call);
  const auto [first, last] = kept_.equal_range(hash);
  const auto found = std::find_if(first, last, [&](const auto& entry) { return isEqual(entry.second->call, call); });
  if (found != last) {
    last_ = found->second.get();
    return *last_;
  }
  auto made = make(call);
  if (kept_.size() >= kMaxPrograms || (kept_.size() >= kFewPrograms && bytes_ + made->bytes > kMaxBytes)) {
    forget();
  }
  last_ = kept_.emplace(hash, std::move(made))->second.get();
  bytes_ += last_->bytes;
  return *last_;
}

// Shapes may never repeat. A run in flight holds its own plan, and stays; but a short run inside its call has no other
// holder (prepareShort), so its program stays.
void ProgramCache::forget() {
  last_ = nullptr;
  latest_ = {};
  std::erase_if(kept_, [](const auto& entry) {
    const Kept& kept = *entry.second;
    bool isInCall = false;
    if (kept.isShort) {
      kept.stages[0].pool.forEach([&](const Run& run) { isInCall |= !run.isDone(); });
    }
    return !isInCall;
  });
  bytes_ = 0;
  for (const auto& entry : kept_) {
    bytes_ += entry.second->bytes;
  }
}

const std::shared_ptr<Run>& ProgramCache::takeRun(const Kept& kept, KeptStage& stage) {
  return stage.pool.take([&] {
    auto made = stage.isShort ? std::shared_ptr<Run>(std::make_shared<ShortRun>(stage.plan))
                              : std::make_shared<PlanRun>(stage.plan);
    made->description = kept.description;
    return made;
  });
}

Activity* ProgramCache::pointShort(Kept& kept, std::span<const TensorView> inputs,
                                   std::span<const TensorView> outputs) {
  KeptStage& stage = kept.stages[0];
  auto& run = static_cast<ShortRun&>(*takeRun(kept, stage));
  const ShortRun::Addresses addresses = run.restart();
  const std::size_t elemBytes = elementBytes(kept.call.dtype);
  const auto addressIn = [&](const StageTensor& tensor) {
    return addressOf(tensor, wholeOf(tensor, inputs, outputs)->bytes, elemBytes);
  };
  std::ranges::transform(stage.inputs, addresses.inputs.begin(), addressIn);
  std::ranges::transform(stage.outputs, addresses.outputs.begin(), addressIn);
  return &run;
}

Activity* ProgramCache::prepareShort(const CollectiveCall& call, std::span<const TensorView> inputs,
                                     std::span<const TensorView> outputs, const Given& given) {
  const MutexLock lock(mutex_);
  Kept& kept = keptFor(call);
  if (!kept.isShort) {
    return nullptr;
  }
  if (given.inputs.size() + given.outputs.size() > 2) {  // the checks of one tensor take no longer than a comparison
    noteLatest(kept, given);
  }
  return pointShort(kept, inputs, outputs);
}

// The tensors are copied at the second call, so calls over changing tensors take no longer.
void ProgramCache::noteLatest(Kept& kept, const Given& given) {
  const std::byte* const first = firstOf(given);
  const bool isSecond = latest_.kept == &kept && latest_.first == first && first != nullptr;
  latest_.kept = &kept;
  latest_.first = first;
  if (isSecond) {
    latest_.inputs.assign(given.inputs.begin(), given.inputs.end());
    latest_.outputs.assign(given.outputs.begin(), given.outputs.end());
  }
  repeats_.store(isSecond ? first : nullptr, std::memory_order_relaxed);
}

Activity* ProgramCache::prepareAgain(const CollectiveCall& call, Given* given) {
  if (const std::byte* const first = firstOf(*given);
      first == nullptr || repeats_.load(std::memory_order_relaxed) != first) {
    return nullptr;
  }
  const MutexLock lock(mutex_);
  Kept* const kept = latest_.kept;
  if (kept == nullptr || kept->call.kind != call.kind || kept->call.op != call.op || kept->call.root != call.root ||
      !areEqual(latest_.inputs, given->inputs) || !areEqual(latest_.outputs, given->outputs)) {
    return nullptr;
  }
  Activity* const run = pointShort(*kept, given->inputs, given->outputs);
  given->inputs = kept->stages[0].inputs.empty() ? std::span<const TensorView>() : given->inputs;
  given->outputs = kept->stages[0].outputs.empty() ? std::span<const TensorView>() : given->outputs;
  return run;
}

Status ProgramCache::prepare(const CollectiveCall& call, std::span<const TensorView> inputs,
                             std::span<const TensorView> outputs, Runs* runs) {
  const MutexLock lock(mutex_);
  Kept& kept = keptFor(call);
  Status memory;
  if (kept.scratchElems > 0) {
    Result<std::shared_ptr<void>> scratch =
        allocateScratch(static_cast<std::size_t>(kept.scratchElems) * elementBytes(call.dtype));
    memory = scratch.status();
    runs->scratch = scratch.isOk() ? std::move(*scratch) : nullptr;
  }
  bool isLong = false;
  for (KeptStage& stage : kept.stages) {
    std::shared_ptr<Run> run = takeRun(kept, stage);
    auto* scratch = static_cast<std::byte*>(runs->scratch.get());
    pointAt(stage.inputViews, stage.inputs, inputs, outputs, scratch);
    pointAt(stage.outputViews, stage.outputs, inputs, outputs, scratch);
    run->prepare(stage.inputViews, stage.outputViews);
    if (!runs->span().empty()) {
      run->follow(runs->last(), stage.afterPrevious);
    }
    // With one long stage the caller need not poll for the other stages.
    const Duration spin = run->worthSpinning();
    isLong = isLong || spin == Duration::zero();
    runs->spin = isLong ? Duration::zero() : runs->spin + spin;
    runs->add(std::move(run));
  }
  return memory;
}

}  // namespace shardwire::internal
