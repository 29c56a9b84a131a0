// Random collective calls from a seed. makeRandomBatch() draws kinds, dtypes, shapes, roots and layouts for all ranks;
// then inputElements() and reducedElements() give the inputs of a rank and the expected result; describe() gives a text
// for errors.
#include "tests/support/random_collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tests/ops/reduce/naive_numeric.h"

namespace shardwire::testing {

namespace {

// Tensors with dimensions of stride 0 are modelled element by element.
constexpr std::int64_t kMostExpanded = 4096;

bool isReduction(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduce || kind == CallKind::kReduceScatter;
}

bool isList(CallKind kind) {
  return kind == CallKind::kAllGather || kind == CallKind::kGather || kind == CallKind::kScatter ||
         kind == CallKind::kReduceScatter;
}

class BatchMaker {
 public:
  BatchMaker(std::uint64_t seed, const std::vector<int>& groupSizes, const CallOptionsForTest& options)
      : random_(seed), seed_(seed), groupSizes_(groupSizes), options_(options) {}

  std::vector<RandomCall> make() {
    std::vector<RandomCall> batch(random_.chance(40) ? static_cast<std::size_t>(random_.between(2, 4)) : 1);
    const std::size_t favourite = randomGroup();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      RandomCall& call = batch[i];
      call.seed = mix64(seed_ * 16 + i);
      call.group = random_.chance(50) ? favourite : randomGroup();
      call.kind = randomKind();
      fill(call, groupSizes_[call.group], static_cast<int>(i));
    }
    return batch;
  }

 private:
  std::size_t randomGroup() { return static_cast<std::size_t>(random_.between(0, std::ssize(groupSizes_) - 1)); }

  CallKind randomKind() {
    const auto kind = static_cast<CallKind>(random_.between(0, kNumCallKinds - 1));
    // Barriers and wrong calls test little: half of these calls become sums.
    const bool saysLittle = kind == CallKind::kBarrier || kind == CallKind::kRefused;
    return saysLittle && random_.chance(50) ? CallKind::kAllReduce : kind;
  }

  void fill(RandomCall& call, int n, int number) {
    call.dtype = static_cast<DType>(random_.between(0, kNumDTypes - 1));
    call.root = static_cast<Rank>(random_.between(0, n - 1));
    call.shape = randomShape(randomElems(call.dtype, isList(call.kind) ? n : 1));
    call.choices.resize(static_cast<std::size_t>(n));
    for (RankChoice& choice : call.choices) {
      choice.isInPlace = random_.chance(25);
      choice.isExpanded = random_.chance(15) && numElements(call.shape) <= kMostExpanded;
      choice.list = static_cast<ListLayout>(random_.between(0, 2));
    }
    if (isReduction(call.kind)) {
      while (call.dtype >= DType::kOpaque1) {
        call.dtype = static_cast<DType>(random_.between(0, kNumDTypes - 1));
      }
      do {
        call.reduction = static_cast<ReduceOp>(random_.between(1, kNumReduceOps - 1));
      } while (!isDefined(call.dtype, call.reduction));
    } else if (call.kind == CallKind::kAllToAll) {
      for (int i = 0; i < n * n; ++i) {
        call.pairShapes.push_back(randomShape(random_.chance(20) ? 0 : randomElems(call.dtype, n)));
      }
    } else if (call.kind == CallKind::kMessages) {
      addMessages(call, n, number);
    } else if (call.kind == CallKind::kRefused) {
      makeWrong(call, n);
    }
  }

  void addMessages(RandomCall& call, int n, int number) {
    for (auto left = n < 2 ? 0 : random_.between(1, 6); left > 0; --left) {
      Message message;
      message.to = static_cast<Rank>(random_.between(0, n - 1));
      message.shape = randomShape(randomElems(call.dtype, 2));
      message.isFromAny = random_.chance(30);
      // The ranks are not in step: a receive from any rank could match a message of a later batch if the two had one
      // tag.
      message.tag = static_cast<int>(message.isFromAny
                                         ? 1000 + (static_cast<std::int64_t>(seed_ % 1000000) * 4 + number) * 8 + left
                                         : random_.between(-1, 2));
      for (auto copies = message.isFromAny ? random_.between(1, 3) : 1; copies > 0; --copies) {
        message.from = (message.to + static_cast<Rank>(random_.between(1, n - 1))) % n;
        call.messages.push_back(message);
      }
    }
  }

  void makeWrong(RandomCall& call, int n) {
    call.wrong = static_cast<WrongCall>(random_.chance(50) ? 0 : random_.between(1, kNumWrongCalls - 1));
    for (RankChoice& choice : call.choices) {
      choice = {};
    }
    if (call.wrong == WrongCall::kReduction) {
      do {
        call.dtype = static_cast<DType>(random_.between(0, kNumDTypes - 1));
        call.reduction = static_cast<ReduceOp>(random_.between(0, kNumReduceOps - 1));
      } while (isDefined(call.dtype, call.reduction));
    } else if (call.wrong == WrongCall::kRoot) {
      call.root = random_.chance(50) ? -1 : n;
    }
  }

  // Elements of one of `numTensors` tensors: nothing, one, about a cache line, a few, and about each size from which
  // another way is taken.
  std::int64_t randomElems(DType dtype, int numTensors) {
    const auto size = static_cast<std::int64_t>(elementBytes(dtype));
    const auto about = [&](std::size_t bytes) {
      return std::max<std::int64_t>(0, static_cast<std::int64_t>(bytes) / size + random_.between(-2, 2));
    };
    if (random_.between(0, 999) < options_.numHuge) {
      return (random_.between(2, 6) << 20) / size / numTensors;
    }
    const auto draw = random_.between(0, 99);
    if (draw < 6) {
      return 0;
    }
    if (draw < 22) {
      return random_.between(1, 4);
    }
    if (draw < 40) {
      return about(64);
    }
    if (draw < 82) {
      return random_.between(1, 300);
    }
    if (draw < 87) {
      return about(options_.inlineBytes > 0 ? options_.inlineBytes : std::size_t{8} << 10);
    }
    if (draw < 91) {
      return about((std::size_t{8} << 10) / static_cast<std::size_t>(numTensors));
    }
    if (draw < 96) {
      return about(options_.ringBytes >> random_.between(1, 4)) / (options_.ringBytes > 100000 ? numTensors : 1);
    }
    return random_.between(1, random_.chance(20) ? 200000 : 20000) / size / numTensors;
  }

  // A shape of so many elements: 0 to 5 dimensions.
  Dims randomShape(std::int64_t elems) {
    std::vector<std::int64_t> extents;
    if (elems == 0) {
      extents.push_back(0);
      for (auto more = random_.between(0, 3); more > 0; --more) {
        extents.push_back(random_.between(0, 5));
      }
    } else {
      std::int64_t rest = elems;
      for (const std::int64_t factor : {2, 3, 5, 7, 4}) {
        if (extents.size() < 4 && rest % factor == 0 && random_.chance(40)) {
          extents.push_back(factor);
          rest /= factor;
        }
      }
      if (rest > 1 || (extents.empty() && random_.chance(70))) {
        extents.push_back(rest);
      }
      if (extents.size() < 5 && random_.chance(20)) {
        extents.push_back(1);
      }
    }
    random_.shuffle(extents);
    return Dims(std::span<const std::int64_t>(extents));
  }

  Random random_;
  const std::uint64_t seed_;
  const std::vector<int>& groupSizes_;
  const CallOptionsForTest options_;
};

std::uint64_t valueSeed(const RandomCall& call, Rank rank, std::size_t index) {
  return mix64(call.seed + static_cast<std::uint64_t>(rank) * 1000003 + index * 7919);
}

const Dims& inputShape(const RandomCall& call, Rank rank, std::size_t index) {
  if (call.kind == CallKind::kAllToAll) {
    return call.pairShapes[static_cast<std::size_t>(rank) * call.choices.size() + index];
  }
  return call.kind == CallKind::kMessages ? call.messages[index].shape : call.shape;
}

}  // namespace

std::vector<RandomCall> makeRandomBatch(std::uint64_t seed, const std::vector<int>& groupSizes,
                                        const CallOptionsForTest& options) {
  return BatchMaker(seed, groupSizes, options).make();
}

bool isDefined(DType dtype, ReduceOp op) {
  const bool isBits = dtype <= DType::kUInt64;  // bool and integers
  const bool isComplex = dtype >= DType::kComplex32 && dtype <= DType::kComplex128;
  switch (op) {
    case ReduceOp::kNone:
      return false;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return isBits;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return dtype < DType::kOpaque1 && !isComplex;
    default:
      return dtype < DType::kOpaque1;
  }
}

unsigned expandedDims(const RandomCall& call, Rank rank, std::size_t index) {
  const RankChoice& choice = call.choices[static_cast<std::size_t>(rank)];
  const bool isInOut = call.kind == CallKind::kAllReduce || (call.kind == CallKind::kReduce && rank == call.root);
  const bool isShared =
      (isList(call.kind) && choice.isInPlace) ||
      (call.kind != CallKind::kAllGather && call.kind != CallKind::kGather && choice.list != ListLayout::kSeparate);
  const Dims& shape = inputShape(call, rank, index);
  if (!choice.isExpanded || isInOut || isShared || numElements(shape) > kMostExpanded) {
    return 0;
  }
  return static_cast<unsigned>(mix64(valueSeed(call, rank, index))) & ((1u << shape.size()) - 1);
}

Elements inputElements(const RandomCall& call, Rank rank, std::size_t index) {
  const Dims& shape = inputShape(call, rank, index);
  const std::int64_t count = numElements(shape);
  Elements elements = randomElements(valueSeed(call, rank, index), call.dtype, count);
  const unsigned expanded = expandedDims(call, rank, index);
  if (expanded == 0 || count == 0) {
    return elements;
  }
  Elements all{std::vector<std::byte>(static_cast<std::size_t>(count) * elements.elemBytes), count, elements.elemBytes};
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t from = 0;
    std::int64_t stride = 1;
    for (int d = shape.size() - 1; d >= 0; --d) {
      from += (expanded >> d & 1) != 0 ? 0 : rest % shape[d] * stride;
      rest /= shape[d];
      stride *= shape[d];
    }
    std::copy_n(elements.at(from), elements.elemBytes,
                all.bytes.data() + static_cast<std::size_t>(i) * elements.elemBytes);
  }
  return all;
}

Elements reducedElements(const RandomCall& call, int numRanks, std::size_t index) {
  std::vector<Elements> inputs;
  std::int64_t period = 1;
  for (Rank rank = 0; rank < numRanks; ++rank) {
    inputs.push_back(inputElements(call, rank, index));
    period = std::max(period, inputs.back().period);  // all of one length, or some written out in full
  }
  Elements reduced{std::vector<std::byte>(static_cast<std::size_t>(period) * inputs[0].elemBytes), period,
                   inputs[0].elemBytes};
  std::vector<const std::byte*> sources(inputs.size());
  for (std::int64_t i = 0; i < period; ++i) {
    std::transform(inputs.begin(), inputs.end(), sources.begin(), [i](const Elements& input) { return input.at(i); });
    internal::naiveReduce(reduced.bytes.data() + static_cast<std::size_t>(i) * reduced.elemBytes, sources, call.dtype,
                          call.reduction);
  }
  return reduced;
}

std::string describe(const RandomCall& call) {
  constexpr std::array<std::string_view, kNumCallKinds> kNames = {
      "barrier", "broadcast",      "all_reduce", "reduce",   "all_gather",  "gather",
      "scatter", "reduce_scatter", "all_to_all", "messages", "refused call"};
  std::string text =
      fmt::format("{} in group {} of {} ranks: {} {} {} root {} wrong {}", kNames[static_cast<std::size_t>(call.kind)],
                  call.group, call.choices.size(), dtypeName(call.dtype), reduceOpName(call.reduction),
                  toString(call.shape), call.root, static_cast<int>(call.wrong));
  for (const Dims& shape : call.pairShapes) {
    text += " " + toString(shape);
  }
  for (const Message& message : call.messages) {
    text += fmt::format("; {} -> {} tag {} {}{}", message.from, message.to, message.tag, toString(message.shape),
                        message.isFromAny ? " from any" : "");
  }
  for (const RankChoice& choice : call.choices) {
    text += fmt::format("{}{}{}{}", &choice == &call.choices[0] ? " | " : ", ", choice.isInPlace ? "in place " : "",
                        choice.isExpanded ? "expanded " : "", static_cast<int>(choice.list));
  }
  return text;
}

}  // namespace shardwire::testing
