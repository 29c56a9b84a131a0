// run() makes the engine over the links of the network, and callAll() calls the operations in the order of the
// schedule. One class for each kind of operation places the tensors, starts the works and compares the results.
// endOldest() waits for the works of an operation. After the first error a rank makes no further call, waits for the
// remaining works, and ends the group.
#include "tests/simulate/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwire/compiled_op.h"
#include "tests/support/collective_run.h"
#include "tests/support/naive_model.h"

namespace shardwire::simulate {

using internal::CommunicatorImpl;

namespace {

constexpr std::byte kOverwritten{0x5c};
constexpr std::int64_t kOverwrittenValue = 0x5c5c5c5c5c5c5c5c;

}  // namespace

// One operation of the schedule on this rank.
class RankProgram::Call {
 public:
  explicit Call(const Operation& drawn) : operation(drawn) {}
  virtual ~Call() = default;
  // Starts the works; an error: the operation could not be started, or blocked until its error.
  virtual Status start(Communicator& group) = 0;
  // After all works are done with success, and dropped: "" or what is wrong.
  virtual std::string check() = 0;
  // After all works are done, with or without success: the tensors are the program's again, and the program writes
  // other bytes into them.
  virtual void overwrite() = 0;
  // Whether the bytes of overwrite() are still there.
  virtual bool isUntouched() const = 0;

  const Operation& operation;
  std::vector<WorkPtr> works;

 protected:
  Status keep(Result<WorkPtr> work) {
    SW_RETURN_IF_ERROR(work.status());
    works.push_back(*work);
    return Status::ok();
  }
};

class RankProgram::CollectiveCall final : public Call {
 public:
  CollectiveCall(const Operation& drawn, Rank rank) : Call(drawn), run_(drawn.call, rank) {}
  Status start(Communicator& group) override {
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

class RankProgram::CompiledCall final : public Call {
 public:
  CompiledCall(const Operation& drawn, Rank rank) : Call(drawn), rank_(static_cast<std::size_t>(rank)) {}
  Status start(Communicator& group) override {
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
class RankProgram::ChainCall final : public Call {
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
  Status start(Communicator& group) override {
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

RankProgram::RankProgram(const Schedule& schedule, Rank rank, Network& network)
    : schedule_(schedule),
      rank_(rank),
      network_(network),
      random_(testing::mix64(schedule.seed * 64 + static_cast<std::uint64_t>(rank))) {}

RankProgram::~RankProgram() = default;

std::unique_ptr<RankProgram::Call> RankProgram::makeCall(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kCompiled:
      return std::make_unique<CompiledCall>(operation, rank_);
    case OperationKind::kChain:
      return std::make_unique<ChainCall>(operation, rank_, schedule_.numRanks);
    default:
      return std::make_unique<CollectiveCall>(operation, rank_);
  }
}

void RankProgram::run() {
  auto engine = internal::Engine::create(network_.peersOf(rank_, schedule_.options), rank_, schedule_.numRanks,
                                         schedule_.options, "g");
  engine_ = engine;
  process_->serve(engine);
  group_ = std::make_unique<CommunicatorImpl>(std::move(engine), std::vector<internal::ForcedAlgorithm>());
  if (!isReset_) {
    callAll();
  }
  while (!calls_.empty()) {
    endOldest();
  }
  process_->world().note(process_->time(), rank_, "ends the group");
  group_.reset();
  for (const auto& call : over_) {
    if (!call->isUntouched()) {
      report_.faults.push_back(fmt::format("{}: a tensor changed after the end", describe(call->operation)));
    }
  }
  report_.isOver = true;
  report_.overAt = process_->time();
}

void RankProgram::callAll() {
  World& world = process_->world();
  for (const Operation& operation : schedule_.operations) {
    if (schedule_.longestPause > 0) {
      process_->computeFor(random_.between(0, schedule_.longestPause));
    }
    world.note(process_->time(), rank_, "calls {}", describe(operation));
    calls_.push_back(makeCall(operation));
    if (const Status started = calls_.back()->start(*group_); !started.isOk()) {
      note(operation, started);
      return;
    }
    while (calls_.size() > (operation.waitsAtOnce ? 0 : schedule_.window)) {
      if (!endOldest()) {
        return;
      }
    }
  }
}

// Waits for the oldest operation and checks it.
bool RankProgram::endOldest() {
  std::unique_ptr<Call> call = std::move(calls_.front());
  calls_.pop_front();
  Status status;
  for (const WorkPtr& work : call->works) {
    if (const Status each = work->wait(); !each.isOk() && status.isOk()) {
      status = each;
    }
  }
  call->works.clear();
  note(call->operation, status);
  if (status.isOk() && report_.failedOperation != call->operation.number) {
    ++report_.numDone;
    if (const std::string wrong = call->check(); !wrong.empty()) {
      report_.faults.push_back(fmt::format("{}: {}", describe(call->operation), wrong));
    }
  }
  if (!process_->isDead()) {
    call->overwrite();
    over_.push_back(std::move(call));
  }
  return report_.failure.isOk();
}

void RankProgram::note(const Operation& operation, const Status& status) {
  process_->world().note(
      process_->time(), rank_, "operation {}: {}", operation.number,
      status.isOk() ? "done" : fmt::format("{}: {}", statusCodeName(status.code()), status.message()));
  if (!status.isOk() && report_.failure.isOk()) {
    report_.failure = status;
    report_.failedOperation = operation.number;
    report_.failedAt = process_->time();
  }
}

bool RankProgram::isWaiting() const {
  const auto isInFlight = [](const WorkPtr& work) { return !work->isDone(); };
  return std::ranges::any_of(calls_, [&](const auto& call) { return std::ranges::any_of(call->works, isInFlight); });
}

void RankProgram::reset() {
  isReset_ = true;
  if (const auto engine = engine_.lock()) {
    engine->abort({StatusCode::kAborted, "the simulated process died"});
  }
}

}  // namespace shardwire::simulate
