// Every frame of an engine, with one operation of each kind in flight: an exchange, runs of plans (posted and short),
// messages both ways, and one operation that this rank has not called yet. The first byte of an input chooses the rank.
#include <algorithm>
#include <array>
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

// A rank, and the other rank of its plans and messages.
struct Place {
  Rank rank = 0;
  int worldSize = 2;
  Rank partner = 1;
  Place other() const { return {partner, worldSize, rank}; }
};
// An exchange of 20 ranks goes by a tree, of which rank 0 is the root and rank 19 is a leaf.
constexpr std::array<Place, 3> kPlaces = {{{0, 2, 1}, {0, 20, 1}, {19, 20, 0}}};
constexpr std::size_t kMostFrames = 120;

// Both ranks of a place hold halves of the rows of a square and want halves of the columns, or both want the sum of two
// rows.
std::shared_ptr<const Plan> planOf(const Place& place, bool isSum) {
  std::vector<LocalSpec> specs(static_cast<std::size_t>(place.worldSize));
  for (LocalSpec& spec : specs) {
    spec.tensors = {{"", Dims{isSum ? 1 : 16, 16}, DType::kInt64, isSum ? ReduceOp::kSum : ReduceOp::kNone}};
  }
  for (const Rank rank : {place.rank, place.partner}) {
    const std::int64_t half = rank < std::max(place.rank, place.partner) ? 0 : 8;
    const Slice in = isSum ? Slice{{0, 0}, {1, 16}} : Slice{{half, 0}, {8, 16}};
    const Slice out = isSum ? in : Slice{{0, half}, {16, 8}};
    specs[static_cast<std::size_t>(rank)].inputs = {{0, in.shape, {{in, {0, 0}}}}};
    specs[static_cast<std::size_t>(rank)].outputs = {{0, out.shape, {{out, {0, 0}}}}};
  }
  return std::make_shared<const Plan>(*redistribute(*mergeSpecs(specs), place.rank));
}

// Planning takes longer than all frames of an input.
std::shared_ptr<const Plan> knownPlan(const Place& place, bool isSum) {
  static std::map<std::tuple<Rank, Rank, int, bool>, std::shared_ptr<const Plan>> plans;
  auto& plan = plans[{place.rank, place.partner, place.worldSize, isSum}];
  plan = plan == nullptr ? planOf(place, isSum) : plan;
  return plan;
}

void startExchange(FuzzedGroup& group, const Place& place) {
  const std::size_t bytes = place.worldSize == 2 ? 3000 : 100;
  group.start(std::make_shared<Exchange>(std::string(bytes, 'x'), place.worldSize, place.rank), 1);
}

// The operations of one rank, over memory from `allocate`.
struct InFlight {
  template <typename Allocate>
  InFlight(FuzzedGroup& group, const Place& place, Allocate allocate) {
    startExchange(group, place);
    for (const bool isSum : {false, true}) {
      const auto plan = knownPlan(place, isSum);
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
          std::make_shared<PointRecv>(bytes == 40 ? place.partner : -1, tag, std::span(allocate(bytes), bytes));
      const auto send = std::make_shared<PointSend>(place.partner, tag, std::span(allocate(bytes), bytes));
      recv->description = send->description = std::make_shared<const std::string>("a message");
      group.state().take(recv);
      points.start(recv);
      group.state().take(send);
      points.start(send);
    }
  }
};

// The frames to the rank of a place, where all ranks do what they should do.
std::vector<std::string> honestFrames(const Place& place, Reach reach) {
  std::size_t used = 0;
  const auto allocate = [&used](std::size_t bytes) { return steadyBytes(bytes, &used); };
  std::vector<std::unique_ptr<FuzzedGroup>> groups;
  for (Rank rank = 0; rank < place.worldSize; ++rank) {
    FuzzedGroup& group = *groups.emplace_back(std::make_unique<FuzzedGroup>(rank, place.worldSize, reach));
    if (rank == place.rank || rank == place.partner) {
      const InFlight all(group, rank == place.rank ? place : place.other(), allocate);
    } else {
      startExchange(group, {rank, place.worldSize, -1});
    }
  }
  std::vector<std::string> frames;
  for (int round = 0; round < 8; ++round) {
    for (const auto& from : groups) {
      for (Rank to = 0; to < place.worldSize; ++to) {
        for (std::string& frame :
             from == groups[static_cast<std::size_t>(to)] ? std::vector<std::string>() : from->sent(to)) {
          groups[static_cast<std::size_t>(to)]->take(frame);
          if (to == place.rank) {
            frames.push_back(std::move(frame));
          }
        }
      }
    }
  }
  return frames;
}

// Frames that end or question operations.
std::vector<std::string> rareFrames() {
  const Payload why = bytesOf("why");
  std::vector<std::string> frames;
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
  return frames;
}

}  // namespace

void parse(std::string_view input) {
  const Place& place = kPlaces[input.empty() ? 0 : static_cast<unsigned char>(input[0]) % kPlaces.size()];
  std::vector<std::unique_ptr<std::byte[]>> memory;
  FuzzedGroup group(place.rank, place.worldSize);
  const InFlight all(
      group, place, [&](std::size_t bytes) { return memory.emplace_back(std::make_unique<std::byte[]>(bytes)).get(); });
  for (const std::string& frame : splitParts(input.substr(std::min<std::size_t>(input.size(), 1)), kMostFrames)) {
    group.take(frame);
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (std::size_t at = 0; at < kPlaces.size(); ++at) {
    const auto place = static_cast<char>('0' + at);
    for (const Reach reach : {Reach::kNone, Reach::kDirect, Reach::kCopy, Reach::kFetch}) {
      inputs.push_back(place + joinParts(honestFrames(kPlaces[at], reach)));
    }
    inputs.push_back(place + joinParts(rareFrames()));
  }
  std::vector<std::string> single = honestFrames(kPlaces[0], Reach::kNone);
  for (const std::vector<std::string>& more : {honestFrames(kPlaces[0], Reach::kFetch), rareFrames()}) {
    single.insert(single.end(), more.begin(), more.end());
  }
  for (const std::string& frame : single) {
    inputs.push_back("0" + joinParts({frame}));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
