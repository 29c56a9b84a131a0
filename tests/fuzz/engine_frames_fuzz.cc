// Every frame of an engine, with one operation of each kind in flight: an exchange, runs of plans (posted and short),
// messages both ways, and one operation that this rank has not called yet.
#include <map>
#include <tuple>

#include "backend/exec/exchange.h"
#include "backend/exec/plan_run.h"
#include "backend/exec/short_run.h"
#include "ops/plan/redistribute.h"
#include "tests/fuzz/fuzzed_group.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

// Ranks 0 and 1 hold halves of the rows of a square and want halves of the columns, or both want the sum of two rows.
std::shared_ptr<const Plan> planOf(Rank rank, int worldSize, bool isSum) {
  std::vector<LocalSpec> specs(static_cast<std::size_t>(worldSize));
  for (LocalSpec& spec : specs) {
    spec.tensors = {{"", Dims{isSum ? 1 : 16, 16}, DType::kInt64, isSum ? ReduceOp::kSum : ReduceOp::kNone}};
  }
  for (std::int64_t r = 0; r < 2; ++r) {
    const Slice in = isSum ? Slice{{0, 0}, {1, 16}} : Slice{{8 * r, 0}, {8, 16}};
    const Slice out = isSum ? in : Slice{{0, 8 * r}, {16, 8}};
    specs[static_cast<std::size_t>(r)].inputs = {{0, in.shape, {{in, {0, 0}}}}};
    specs[static_cast<std::size_t>(r)].outputs = {{0, out.shape, {{out, {0, 0}}}}};
  }
  return std::make_shared<const Plan>(*redistribute(*mergeSpecs(specs), rank));
}

// Planning takes longer than all frames of an input.
std::shared_ptr<const Plan> knownPlan(Rank rank, int worldSize, bool isSum) {
  static std::map<std::tuple<Rank, int, bool>, std::shared_ptr<const Plan>> plans;
  auto& plan = plans[{rank, worldSize, isSum}];
  plan = plan == nullptr ? planOf(rank, worldSize, isSum) : plan;
  return plan;
}

// The operations of one rank, over memory from `allocate`.
struct InFlight {
  template <typename Allocate>
  InFlight(FuzzedGroup& group, Rank rank, int worldSize, Allocate allocate) {
    group.start(std::make_shared<Exchange>(std::string(3000, 'x'), worldSize, rank), 1);
    for (const bool isSum : {false, true}) {
      const auto plan = knownPlan(rank, worldSize, isSum);
      const auto view = [&](const PlanTensor& tensor) {
        return TensorView::contiguous(allocate(static_cast<std::size_t>(numElements(tensor.shape)) * 8), tensor.dtype,
                                      tensor.shape);
      };
      const TensorView in = view(plan->inputs[0]);
      const TensorView out = view(plan->outputs[0]);
      const auto run = isSum ? std::shared_ptr<Run>(std::make_shared<ShortRun>(plan)) : std::make_shared<PlanRun>(plan);
      run->prepare(std::span(&in, 1), std::span(&out, 1));
      group.start(run, 2);
    }
    PointToPoint& points = group.state().points;
    for (const std::size_t bytes : {40, 3000}) {
      const auto tag = static_cast<int>(bytes);
      const auto recv =
          std::make_shared<PointRecv>(bytes == 40 ? 1 - rank : -1, tag, std::span(allocate(bytes), bytes));
      const auto send = std::make_shared<PointSend>(1 - rank, tag, std::span(allocate(bytes), bytes));
      recv->description = send->description = std::make_shared<const std::string>("a message");
      group.state().take(recv);
      points.start(recv);
      group.state().take(send);
      points.start(send);
    }
  }
};

}  // namespace

void parse(std::string_view input) {
  const int worldSize = input.empty() || input[0] % 2 == 0 ? 2 : 20;  // an exchange of 20 ranks goes by a tree
  std::vector<std::unique_ptr<std::byte[]>> memory;
  FuzzedGroup group(0, worldSize);
  const InFlight all(group, 0, worldSize, [&](std::size_t bytes) {
    return memory.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  });
  for (const std::string& frame : splitParts(input.substr(std::min<std::size_t>(input.size(), 1)), 40)) {
    group.take(frame);
  }
}

std::vector<std::string> seeds() {
  FuzzedGroup rank0(0, 2);
  FuzzedGroup rank1(1, 2);
  std::size_t used = 0;
  const auto steady = [&used](std::size_t bytes) {
    used += (bytes + 7) / 8 * 8;
    return steadyMemory().data() + used - (bytes + 7) / 8 * 8;
  };
  const InFlight mine(rank0, 0, 2, steady);
  const InFlight theirs(rank1, 1, 2, steady);
  std::vector<std::string> frames;
  for (int round = 0; round < 8; ++round) {
    for (const std::string& frame : rank1.sent(0)) {
      frames.push_back(frame);
      rank0.take(frame);
    }
    for (const std::string& frame : rank0.sent(1)) {
      rank1.take(frame);
    }
  }
  const Payload why = bytesOf("why");
  for (const Bytes& frame :
       {frameOf(CancelFrame{.operation = {1, 1}}, why), frameOf(FailFrame{.code = 3}, why),
        frameOf(DesyncFrame{.seq = 2, .wantsAnswer = 1, .call = 2}, why), frameOf(AskFrame{.operation = {2, 2}}),
        frameOf(AskFrame{.operation = {9, 2}, .sends = 1, .wantsAnswer = 1}),
        frameOf(AnswerFrame{.seq = 2, .state = AskedState::kOver}, why), frameOf(AdviceFrame{}, why),
        frameOf(AnswerFrame{.seq = 1, .state = AskedState::kInFlight, .numAwaited = 1},
                bytesOf(std::string_view("\1\0\0\0why", 7))),
        frameOf(AckFrame{.operation = {9, 9}})}) {
    frames.push_back(std::string(1, '\0') + std::string(textOf(frame)));
  }
  std::vector<std::string> inputs = {"0" + joinParts(frames), "1" + joinParts(frames)};
  for (const std::string& frame : frames) {
    inputs.push_back("0" + joinParts({frame}));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
