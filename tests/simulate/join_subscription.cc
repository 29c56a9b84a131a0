// A fetch: the first subscriber requests a version after its own. Each publisher answers with the versions of its
// copies, and holds these copies. All ranks choose the newest common version alike, or ask again after a while. The
// weights move out of the chosen copies, and the publishers report which version has moved. A publisher's other thread
// commits meanwhile, and must not overwrite a copy that is read.
#include "tests/simulate/join_subscription.h"

#include <fmt/format.h>

namespace shardwire::simulate {
namespace {

constexpr Time kPatience = 100 * kMillisecond;
constexpr Time kCopying = 10 * kMicrosecond;
constexpr Time kAsksAgain = 5 * kMillisecond;
// Numbers of an answer: the versions of the two copies, and whether the publication is over.
constexpr std::int64_t kAnswer = 3;

std::int64_t weightOf(std::int64_t version, std::int64_t index) {
  return version * 1'000'003 + index;
}

// Of `size` elements, the part with this number.
FlatPart partOf(std::int64_t size, std::int64_t number, std::int64_t numParts) {
  const std::int64_t offset = size * number / numParts;
  return {offset, size * (number + 1) / numParts - offset};
}

FlatPart partOf(const JoinSchedule& drawn, Rank process) {
  if (const Rank rank = drawn.rankIn(0, process); rank >= 0) {
    return partOf(drawn.numWeights, rank, std::ssize(drawn.groups[0]));
  }
  return drawn.isReplicated ? FlatPart{0, drawn.numWeights}
                            : partOf(drawn.numWeights, drawn.rankIn(1, process), std::ssize(drawn.groups[1]));
}

LocalTensor localOf(const FlatPart& part) {
  return {.localShape = {part.size}, .slices = {{.slice = {{part.offset}, {part.size}}, .localOffset = {0}}}};
}

TensorView viewOf(Weights& weights) {
  return TensorView::contiguous(weights.data(), DType::kInt64, {std::ssize(weights)});
}

// All inputs and outputs that the op has on this rank.
Status run(CompiledOp& op, Weights* given, Weights* wanted) {
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  if (!op.inputs().empty()) {
    inputs.push_back(viewOf(*given));
  }
  if (!op.outputs().empty()) {
    outputs.push_back(viewOf(*wanted));
  }
  const auto work = op.run(inputs, outputs);
  return work.isOk() ? (*work)->wait() : work.status();
}

}  // namespace

// ---- the copies

Publication::Publication(const JoinSchedule& schedule, Rank process)
    : part_(schedule.hasTwoJobs() && schedule.rankIn(0, process) >= 0 ? partOf(schedule, process) : FlatPart{}) {
  for (Copy& each : copies_) {
    each.weights.resize(static_cast<std::size_t>(part_.size));
  }
}

void Publication::commit(Process& process, std::int64_t version) {
  Copy& oldest = *std::ranges::min_element(copies_, {}, &Copy::version);
  for (Time waited = 0; oldest.isRead && waited < kPatience; waited += kMillisecond) {
    process.computeFor(kMillisecond);
  }
  if (oldest.isRead || part_.size == 0) {
    return;
  }
  oldest.version = -1;
  std::ranges::fill(oldest.weights, kOverwrittenWeight);
  process.computeFor(kCopying);
  for (std::int64_t index = part_.offset; std::int64_t & each : oldest.weights) {
    each = weightOf(version, index++);
  }
  oldest.version = version;
}

Weights Publication::hold() {
  Weights answer;
  for (Copy& each : copies_) {
    each.isRead = each.version >= 0;
    answer.push_back(each.version);
  }
  answer.push_back(isOver_ ? 1 : 0);
  return answer;
}

void Publication::release(std::int64_t version) {
  for (Copy& each : copies_) {
    each.isRead = each.isRead && each.version == version;
  }
}

// ---- the fetches

Subscription::Subscription(Communicator& group, const JoinSchedule& schedule, Rank rank, Process& process,
                           Publication& publication)
    : group_(group),
      drawn_(schedule),
      rank_(rank),
      numPublishers_(static_cast<Rank>(schedule.groups[0].size())),
      isPublisher_(rank < numPublishers_),
      process_(process),
      publication_(publication),
      part_(partOf(schedule, process.rank())),
      weights_(isPublisher_ ? 0 : static_cast<std::size_t>(part_.size), kOverwrittenWeight) {}

Result<Subscription::Op> Subscription::compile(std::int64_t size, const FlatPart& given, const FlatPart& wanted) {
  LocalSpec spec{.tensors = {{.name = "", .shape = Dims{size}, .dtype = DType::kInt64}}};
  if (given.size > 0) {
    spec.inputs.push_back(localOf(given));
  }
  if (wanted.size > 0) {
    spec.outputs.push_back(localOf(wanted));
  }
  return group_.compileOp(spec);
}

Status Subscription::compileAll(Ops* ops) {
  const FlatPart nothing;
  const std::int64_t size = numPublishers_ * kAnswer;
  const auto make = [&](Op* op, std::int64_t numElements, const FlatPart& given, const FlatPart& wanted) {
    auto compiled = compile(numElements, given, wanted);
    SW_RETURN_IF_ERROR(compiled.status());
    *op = std::move(*compiled);
    return Status::ok();
  };
  const FlatPart answer{rank_ * kAnswer, kAnswer};
  SW_RETURN_IF_ERROR(make(&ops->request, 1, rank_ == numPublishers_ ? FlatPart{0, 1} : nothing, {0, 1}));
  SW_RETURN_IF_ERROR(make(&ops->answer, size, isPublisher_ ? answer : nothing, {0, size}));
  SW_RETURN_IF_ERROR(
      make(&ops->move, drawn_.numWeights, isPublisher_ ? part_ : nothing, isPublisher_ ? nothing : part_));
  return make(&ops->done, numPublishers_, isPublisher_ ? FlatPart{rank_, 1} : nothing,
              isPublisher_ ? nothing : FlatPart{0, numPublishers_});
}

Status Subscription::choose(const Ops& ops, std::int64_t since, std::int64_t* version) {
  while (true) {
    Weights mine = publication_.hold();
    Weights all(static_cast<std::size_t>(numPublishers_ * kAnswer));
    SW_RETURN_IF_ERROR(run(*ops.answer, &mine, &all));
    const auto areOver = [&](Rank publisher) { return all[static_cast<std::size_t>(publisher * kAnswer + 2)] != 0; };
    const auto has = [&](Rank publisher, std::int64_t wanted) {
      const auto answer = all.begin() + publisher * kAnswer;
      return std::find(answer, answer + 2, wanted) != answer + 2;
    };
    *version = -1;
    bool isAnyOver = false;
    for (Rank publisher = 0; publisher < numPublishers_; ++publisher) {
      isAnyOver |= areOver(publisher);
    }
    for (const std::int64_t each : {all[0], all[1]}) {
      bool isCommon = each > since;
      for (Rank publisher = 0; publisher < numPublishers_; ++publisher) {
        isCommon = isCommon && has(publisher, each);
      }
      *version = isCommon ? std::max(*version, each) : *version;
    }
    publication_.release(*version);
    if (*version >= 0 || isAnyOver) {
      return Status::ok();
    }
    if (isPublisher_) {
      process_.computeFor(kAsksAgain);
    }
  }
}

void Subscription::check(std::int64_t version, const Weights& served) {
  if (std::ranges::count(served, version) != std::ssize(served)) {
    wrong_ = "the publishers moved another version";
  }
  for (std::int64_t index = part_.offset; const std::int64_t each : weights_) {
    if (each != weightOf(version, index++)) {
      wrong_ = fmt::format("wrong bytes of version {}", version);
    }
  }
}

Status Subscription::fetch(const Ops& ops, std::int64_t version) {
  Publication::Copy* const copy = isPublisher_ ? &publication_.find(version) : nullptr;
  SW_RETURN_IF_ERROR(run(*ops.move, copy == nullptr ? nullptr : &copy->weights, &weights_));
  Weights moved(1, copy == nullptr ? -1 : copy->version);
  Weights served(static_cast<std::size_t>(numPublishers_));
  SW_RETURN_IF_ERROR(run(*ops.done, &moved, &served));
  publication_.release(-1);
  process_.world().note(process_.time(), process_.rank(), "rank {} has moved version {}", rank_, version);
  if (!isPublisher_) {
    check(version, served);
    ++numFetched_;
    std::ranges::fill(weights_, kOverwrittenWeight);
  }
  return Status::ok();
}

Status Subscription::fetchAll(const Ops& ops, const std::function<void(int)>& idle) {
  std::int64_t since = -1;
  for (int number = 0; number < drawn_.numFetches; ++number) {
    if (!isPublisher_) {
      idle(number);
    }
    Weights asked(1, since);
    Weights request(1);
    SW_RETURN_IF_ERROR(run(*ops.request, &asked, &request));
    std::int64_t version = -1;
    SW_RETURN_IF_ERROR(choose(ops, request[0], &version));
    if (version < 0) {
      return Status::ok();
    }
    SW_RETURN_IF_ERROR(fetch(ops, version));
    since = version;
  }
  return Status::ok();
}

Status Subscription::fetchAll(const std::function<void(int)>& idle) {
  Ops ops;
  Status status = compileAll(&ops);
  status = status.isOk() ? fetchAll(ops, idle) : status;
  publication_.release(-1);
  std::ranges::fill(weights_, kOverwrittenWeight);
  return status;
}

}  // namespace shardwire::simulate
