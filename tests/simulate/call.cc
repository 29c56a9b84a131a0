// One class for each kind of operation. makeCall() chooses the class; the classes of requests and exchanges are in
// memory_call.cc.
#include "tests/simulate/call.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "shardwire/compiled_op.h"
#include "tests/simulate/memory_call.h"
#include "tests/support/collective_run.h"
#include "tests/support/naive_model.h"

namespace shardwire::simulate {

namespace {

constexpr std::byte kOverwritten{0x5c};
constexpr std::int64_t kOverwrittenValue = 0x5c5c5c5c5c5c5c5c;

class CollectiveCall final : public Call {
 public:
  CollectiveCall(const Operation& drawn, Rank rank) : Call(drawn), run_(drawn.call, rank) {}
  Status start(Communicator& group, internal::Engine&) override {
    wrong_ = run_.issue(group);
    works = run_.takeWorks();
    if (wrong_.empty()) {
      return Status::ok();
    }
    // A call of a group that failed returns the failure.
    const Status failure = group.status();
    return failure.isOk() ? Status(StatusCode::kInternal, wrong_) : failure;
  }
  std::string check() override { return run_.check(); }
  void overwrite() override { run_.overwrite(); }
  bool isUntouched() const override { return run_.findDifference().empty(); }

 private:
  testing::CollectiveRun run_;
  std::string wrong_;
};

class CompiledCall final : public Call {
 public:
  CompiledCall(const Operation& drawn, Rank rank) : Call(drawn), rank_(static_cast<std::size_t>(rank)) {}
  Status start(Communicator& group, internal::Engine&) override {
    Result<std::shared_ptr<CompiledOp>> op = group.compileOp(operation.specs.specs[rank_]);
    SW_RETURN_IF_ERROR(op.status());
    for (int run = 0; run < operation.numRuns; ++run) {
      Tensors& mine = tensors_.emplace_back();
      mine.inputs = operation.inputs[rank_];
      mine.outputs = testing::blankOutputs(operation.specs.specs)[rank_];
      mine.kept = std::make_shared<int>(run);
      SW_RETURN_IF_ERROR(keep((*op)->run(viewsOf(**op, mine.inputs, false), viewsOf(**op, mine.outputs, true),
                                         std::exchange(mine.kept, nullptr))));
    }
    return Status::ok();
  }
  std::string check() override {
    for (const Tensors& mine : tensors_) {
      if (mine.outputs != operation.expected[rank_]) {
        return "the outputs of a compiled op differ from the naive model";
      }
      if (mine.inputs != operation.inputs[rank_]) {
        return "a compiled op wrote into its inputs";
      }
    }
    return "";
  }
  void overwrite() override {
    for (Tensors& mine : tensors_) {
      for (auto* const all : {&mine.inputs, &mine.outputs}) {
        std::for_each(all->begin(), all->end(), [](testing::Bytes& one) { std::ranges::fill(one, kOverwritten); });
      }
    }
  }
  bool isUntouched() const override {
    const auto isWhole = [](const testing::Bytes& one) {
      return std::ranges::all_of(one, [](std::byte each) { return each == kOverwritten; });
    };
    return std::ranges::all_of(tensors_, [&](const Tensors& mine) {
      return std::ranges::all_of(mine.inputs, isWhole) && std::ranges::all_of(mine.outputs, isWhole);
    });
  }

 private:
  struct Tensors {
    std::vector<testing::Bytes> inputs;
    std::vector<testing::Bytes> outputs;
    std::shared_ptr<void> kept;
  };
  static std::vector<TensorView> viewsOf(const CompiledOp& op, std::vector<testing::Bytes>& bytes, bool areOutputs) {
    std::vector<TensorView> views;
    const std::vector<LocalTensor>& locals = areOutputs ? op.outputs() : op.inputs();
    for (std::size_t i = 0; i < locals.size(); ++i) {
      const TensorDecl& tensor = op.tensors()[static_cast<std::size_t>(locals[i].tensor)];
      views.push_back(TensorView::contiguous(bytes[i].data(), *(areOutputs ? tensor.outputDtype : tensor.dtype),
                                             locals[i].localShape));
    }
    return views;
  }

  const std::size_t rank_;
  std::deque<Tensors> tensors_;
};

// Later steps read what earlier steps write, so the result is right only if the steps run in the order of the calls.
class ChainCall final : public Call {
 public:
  ChainCall(const Operation& drawn, Rank rank, int numRanks) : Call(drawn) {
    std::vector<std::vector<std::int64_t>> all;
    for (Rank each = 0; each < numRanks; ++each) {
      Random random(drawn.seed + static_cast<std::uint64_t>(each));
      all.emplace_back(static_cast<std::size_t>(drawn.chainElems));
      std::generate(all.back().begin(), all.back().end(), [&] { return random.between(-1000, 1000); });
    }
    values_ = all[static_cast<std::size_t>(rank)];
    for (const ChainStep& step : drawn.chain) {
      auto result = all[static_cast<std::size_t>(step.root)];
      if (step.isSum) {
        std::fill(result.begin(), result.end(), 0);
        for (const auto& one : all) {
          std::transform(one.begin(), one.end(), result.begin(), result.begin(), std::plus());
        }
      }
      std::fill(all.begin(), all.end(), result);
    }
    expected_ = all.front();
  }
  Status start(Communicator& group, internal::Engine&) override {
    const TensorView view = TensorView::contiguous(values_.data(), DType::kInt64, {operation.chainElems});
    for (const ChainStep& step : operation.chain) {
      SW_RETURN_IF_ERROR(keep(step.isSum ? group.allReduce(view, ReduceOp::kSum) : group.broadcast(view, step.root)));
    }
    return Status::ok();
  }
  std::string check() override {
    return values_ == expected_ ? "" : "a chain of operations over one tensor has a wrong result";
  }
  void overwrite() override { std::ranges::fill(values_, kOverwrittenValue); }
  bool isUntouched() const override {
    return std::ranges::all_of(values_, [](std::int64_t each) { return each == kOverwrittenValue; });
  }

 private:
  std::vector<std::int64_t> values_;
  std::vector<std::int64_t> expected_;
};

}  // namespace

bool Call::needsFrames() const {
  return std::ranges::any_of(works, [](const WorkPtr& work) { return !work->isDone(); });
}

Status Call::keep(Result<WorkPtr> work) {
  SW_RETURN_IF_ERROR(work.status());
  works.push_back(*work);
  return Status::ok();
}

std::unique_ptr<Call> makeCall(const Operation& operation, Rank rank, int numRanks) {
  switch (operation.kind) {
    case OperationKind::kCollective:
      break;
    case OperationKind::kCompiled:
      return std::make_unique<CompiledCall>(operation, rank);
    case OperationKind::kChain:
      return std::make_unique<ChainCall>(operation, rank, numRanks);
    case OperationKind::kRequests:
      return makeRequestsCall(operation, rank, numRanks);
    case OperationKind::kExchange:
      return makeExchangeCall(operation, rank, numRanks);
  }
  return std::make_unique<CollectiveCall>(operation, rank);
}

}  // namespace shardwire::simulate
