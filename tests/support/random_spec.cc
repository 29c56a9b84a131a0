// Random specs of compiled ops from a seed. makeRandomCase() draws tensors, dtypes and reductions, cuts each tensor
// into boxes, and gives the boxes to ranks as inputs and outputs, with gaps, overlaps and replicas; describe() gives a
// text for errors.
#include "tests/support/random_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "ops/plan/sharding.h"
#include "ops/plan/slice_math.h"
#include "tests/support/naive_model.h"
#include "tests/support/random.h"

namespace shardwire::testing {

namespace {

using internal::Layout;
using internal::LocalShare;
using internal::Placement;
using internal::PlacementKind;

class CaseMaker {
 public:
  CaseMaker(std::uint64_t seed, const RandomOptions& options) : random_(seed), castRandom_(~seed), options_(options) {}

  std::vector<LocalSpec> make() {
    specs_.resize(static_cast<std::size_t>(random_.between(options_.minRanks, options_.maxRanks)));
    const auto numTensors = static_cast<int>(random_.chance(60) ? 1 : random_.between(1, options_.maxTensors));
    const bool isNamed = numTensors > 1 || random_.chance(30);
    for (int t = 0; t < numTensors; ++t) {
      makeTensor(isNamed ? fmt::format("t{}", t) : "");
    }
    for (LocalSpec& spec : specs_) {
      shuffleDeclarations(spec);
      random_.shuffle(spec.inputs);
      random_.shuffle(spec.outputs);
    }
    const bool allowsGaps = random_.chance(30);
    const bool mustAllow = !options_.hasForbiddenGaps && !allowsGaps && hasGap(specs_);
    const std::string name = random_.chance(50) ? "case" : "";
    for (LocalSpec& spec : specs_) {
      spec.allowGaps = allowsGaps || mustAllow;
      spec.name = name;
    }
    dropDtypes();
    return std::move(specs_);
  }

 private:
  void makeTensor(const std::string& name) {
    shape_ = randomShape();
    decl_ = TensorDecl{name, shape_, DType::kFloat32, ReduceOp::kNone};
    chooseArithmetic();
    chooseCast();
    for (LocalSpec& spec : specs_) {
      spec.tensors.push_back(decl_);
      if (random_.chance(40)) {
        spec.tensors.back().shape.reset();
      }
    }
    layoutClasses_ = 0;
    const bool wantsLayouts = options_.hasLayouts && random_.chance(50);
    if (wantsLayouts) {
      for (std::int64_t i = random_.chance(25) ? 2 : 1; i > 0; --i) {
        addLayout(true);
      }
    }
    if (!wantsLayouts || random_.chance(20)) {
      addBoxInputs();
    }
    if (random_.chance(50)) {
      addFullInput();
    }
    if (options_.hasLayouts && random_.chance(50)) {
      addLayout(false);
    } else {
      addBoxOutputs();
    }
  }

  Dims randomShape() {
    static constexpr int kUsualDims[] = {0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4};
    int numDims = kUsualDims[random_.between(0, std::ssize(kUsualDims) - 1)];
    if (random_.chance(4)) {
      numDims = static_cast<int>(random_.between(5, 7));
    }
    Dims shape = Dims::filled(std::min(numDims, options_.maxDims), 1);
    std::int64_t left = random_.between(1, options_.maxElements);
    std::vector<int> order(static_cast<std::size_t>(shape.size()));
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(order);
    for (const int d : order) {
      shape[d] =
          random_.between(1, std::max<std::int64_t>(1, shape.size() > 2 ? std::min<std::int64_t>(left, 5) : left));
      left /= shape[d];
    }
    if (shape.size() > 0 && random_.chance(2)) {
      shape[0] = 0;
    }
    return shape;
  }

  void chooseArithmetic() {
    decl_.dtype = static_cast<DType>(random_.between(0, kNumDTypes - 1));
    if (!options_.hasReductions || random_.chance(50)) {
      return;
    }
    const auto op = static_cast<ReduceOp>(random_.between(1, kNumReduceOps - 1));
    // Sums of powers of two are not powers of two: the reductions' own test checks the rounding.
    const bool isExact = decl_.dtype != DType::kFloat8E8M0FNU || op == ReduceOp::kMin || op == ReduceOp::kMax;
    if (supportsReduction(*decl_.dtype, op) && isExact) {
      decl_.reduction = op;
    }
  }

  void chooseCast() {
    std::vector<DType> targets;
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      if (supportsCast(*decl_.dtype, static_cast<DType>(dtype)) && *decl_.dtype != static_cast<DType>(dtype)) {
        targets.push_back(static_cast<DType>(dtype));
      }
    }
    if (options_.hasCasts && !targets.empty() && castRandom_.chance(40)) {
      decl_.outputDtype = targets[static_cast<std::size_t>(castRandom_.between(0, std::ssize(targets) - 1))];
    }
  }

  // Of a cast tensor, a rank may know one side only; the first rank to declare the tensor knows both.
  void dropDtypes() {
    std::set<std::string> seen;
    for (LocalSpec& spec : specs_) {
      for (TensorDecl& decl : spec.tensors) {
        if (!decl.outputDtype || seen.insert(decl.name).second) {
          continue;
        }
        const auto choice = castRandom_.between(0, 2);
        (choice == 0 ? decl.dtype : decl.outputDtype) = choice == 2 ? decl.outputDtype : std::nullopt;
      }
    }
  }

  // A box of the tensor; now and then an empty one.
  Slice randomBox() {
    Slice box{shape_, shape_};
    for (int d = 0; d < shape_.size(); ++d) {
      box.offset[d] = shape_[d] > 0 ? random_.between(0, shape_[d] - 1) : 0;
      box.shape[d] = shape_[d] > 0 ? random_.between(1, shape_[d] - box.offset[d]) : 0;
      if (random_.chance(40)) {
        box.offset[d] = 0;
        box.shape[d] = shape_[d];
      }
    }
    if (box.shape.size() > 0 && random_.chance(3)) {
      box.shape[static_cast<int>(random_.between(0, box.shape.size() - 1))] = 0;
    }
    return box;
  }

  // A local tensor of 1 to 3 disjoint boxes, one after the other along dimension 0, with unused elements around the
  // boxes.
  LocalTensor localOf(const LocalSpec& spec, Slice whole) {
    LocalTensor local;
    local.tensor = static_cast<std::int32_t>(spec.tensors.size()) - 1;
    local.localShape = whole.shape;
    std::vector<Slice> parts{whole};
    if (whole.shape.size() > 0 && random_.chance(30)) {
      const int d = static_cast<int>(random_.between(0, whole.shape.size() - 1));
      const std::int64_t at = random_.between(0, whole.shape[d]);
      Slice rest = whole;
      rest.offset[d] += at;
      rest.shape[d] -= at;
      parts[0].shape[d] = at;
      parts.push_back(rest);
      random_.shuffle(parts);
    }
    const std::int64_t margin = whole.shape.size() > 0 && random_.chance(30) ? 1 : 0;
    Dims localOffset = Dims::filled(whole.shape.size(), margin);
    for (const Slice& part : parts) {
      local.slices.push_back({part, localOffset});
      if (whole.shape.size() > 0) {
        localOffset[0] += part.shape[0];
      }
    }
    for (int d = 0; d < whole.shape.size(); ++d) {
      local.localShape[d] += 2 * margin;
    }
    if (whole.shape.size() > 0) {
      local.localShape[0] = localOffset[0] + margin;
    }
    return local;
  }

  void addBoxInputs() {
    // Any overlapping boxes may be declared equal: fillInputs makes the overlaps equal.
    const bool hasReplicas = random_.chance(25);
    for (LocalSpec& spec : specs_) {
      for (std::int64_t i = random_.between(0, 3); i > 0; --i) {
        LocalTensor local = localOf(spec, randomBox());
        local.replicaClass = hasReplicas && random_.chance(70) ? static_cast<std::uint64_t>(random_.between(1, 2)) : 0;
        spec.inputs.push_back(std::move(local));
      }
    }
  }

  void addFullInput() {
    LocalSpec& spec = specs_[static_cast<std::size_t>(random_.between(0, std::ssize(specs_) - 1))];
    spec.inputs.push_back(localOf(spec, {Dims::filled(shape_.size(), 0), shape_}));
  }

  void addBoxOutputs() {
    for (LocalSpec& spec : specs_) {
      for (std::int64_t i = random_.between(0, 2); i > 0; --i) {
        spec.outputs.push_back(localOf(spec, randomBox()));
      }
    }
  }

  Layout randomLayout(bool mayBePartial) {
    std::vector<Rank> ranks(specs_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    random_.shuffle(ranks);
    Layout layout;
    layout.shape = shape_;
    std::size_t size = 1;
    for (std::int64_t m = random_.between(1, 3); m > 0; --m) {
      const std::int64_t extent = random_.between(1, static_cast<std::int64_t>(ranks.size() / size));
      layout.meshShape.push_back(extent);
      size *= static_cast<std::size_t>(extent);
      layout.placements.push_back(randomPlacement(mayBePartial));
    }
    layout.mesh.assign(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(size));
    if (random_.chance(60)) {
      std::sort(layout.mesh.begin(), layout.mesh.end());
    }
    if (!internal::checkLayout(layout).isOk()) {  // an ambiguous _StridedShard
      for (Placement& placement : layout.placements) {
        placement.kind = placement.kind == PlacementKind::kStridedShard ? PlacementKind::kShard : placement.kind;
      }
    }
    return layout;
  }

  Placement randomPlacement(bool mayBePartial) {
    Placement placement;
    if (mayBePartial && decl_.reduction != ReduceOp::kNone && random_.chance(50)) {
      placement.kind = PlacementKind::kPartial;
      placement.reduction = decl_.reduction;
    } else if (shape_.size() > 0 && random_.chance(70)) {
      placement.kind = random_.chance(30) ? PlacementKind::kStridedShard : PlacementKind::kShard;
      placement.dim = static_cast<int>(random_.between(0, shape_.size() - 1));
      placement.splitFactor = random_.between(1, 4);
    }
    return placement;
  }

  void addLayout(bool isInput) {
    const Layout layout = randomLayout(isInput);
    ++layoutClasses_;
    for (std::size_t rank = 0; rank < specs_.size(); ++rank) {
      const std::optional<LocalShare> share = internal::shareOf(layout, static_cast<Rank>(rank));
      if (!share) {
        continue;
      }
      LocalTensor local{static_cast<std::int32_t>(specs_[rank].tensors.size()) - 1, share->localShape, share->slices,
                        0};
      if (isInput) {
        // Two DTensors of one layout are two tensors with different values.
        local.replicaClass = mix64(share->replicaClass + layoutClasses_) | 1;
        specs_[rank].inputs.push_back(std::move(local));
      } else {
        specs_[rank].outputs.push_back(std::move(local));
      }
    }
  }

  // Ranks declare tensors in different orders and leave out some unused tensors.
  void shuffleDeclarations(LocalSpec& spec) {
    std::vector<std::int32_t> order(spec.tensors.size());
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(order);
    const bool isPruned = random_.chance(50);
    std::erase_if(order, [&](std::int32_t tensor) {
      const auto uses = [tensor](const LocalTensor& local) { return local.tensor == tensor; };
      return isPruned && std::none_of(spec.inputs.begin(), spec.inputs.end(), uses) &&
             std::none_of(spec.outputs.begin(), spec.outputs.end(), uses);
    });
    std::vector<TensorDecl> tensors;
    for (const std::int32_t old : order) {
      tensors.push_back(spec.tensors[static_cast<std::size_t>(old)]);
    }
    for (std::vector<LocalTensor>* locals : {&spec.inputs, &spec.outputs}) {
      for (LocalTensor& local : *locals) {
        local.tensor = static_cast<std::int32_t>(std::find(order.begin(), order.end(), local.tensor) - order.begin());
      }
    }
    spec.tensors = std::move(tensors);
  }

  Random random_;
  Random castRandom_;  // separate, so cases with and without casts have one geometry
  const RandomOptions options_;
  std::vector<LocalSpec> specs_;
  // Of the tensor in hand:
  Dims shape_;
  TensorDecl decl_;
  std::uint64_t layoutClasses_ = 0;
};

std::string describe(const LocalSpec& spec, const LocalTensor& local) {
  std::string text =
      fmt::format("tensor '{}' local {} class {:x}:", spec.tensors[static_cast<std::size_t>(local.tensor)].name,
                  toString(local.localShape), local.replicaClass);
  for (const PlacedSlice& placed : local.slices) {
    text += fmt::format(" {}@{}", internal::toString(placed.slice), toString(placed.localOffset));
  }
  return text;
}

}  // namespace

RandomCase makeRandomCase(std::uint64_t seed, const RandomOptions& options) {
  return {seed, CaseMaker(seed, options).make()};
}

std::string describe(const RandomCase& randomCase) {
  std::string text = fmt::format("random case, seed {}, {} ranks\n", randomCase.seed, randomCase.specs.size());
  for (std::size_t rank = 0; rank < randomCase.specs.size(); ++rank) {
    const LocalSpec& spec = randomCase.specs[rank];
    text += fmt::format(" rank {}{}\n", rank, spec.allowGaps ? " allows gaps" : "");
    for (const TensorDecl& decl : spec.tensors) {
      const auto nameOf = [](std::optional<DType> dtype) { return dtype ? dtypeName(*dtype) : "?"; };
      text += fmt::format("  declares '{}' {} {} to {} {}\n", decl.name, decl.shape ? toString(*decl.shape) : "?",
                          nameOf(decl.dtype), nameOf(decl.outputDtype), reduceOpName(decl.reduction));
    }
    for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
      text += fmt::format("  inputs[{}] {}\n", i, describe(spec, spec.inputs[i]));
    }
    for (std::size_t i = 0; i < spec.outputs.size(); ++i) {
      text += fmt::format("  outputs[{}] {}\n", i, describe(spec, spec.outputs[i]));
    }
  }
  return text;
}

}  // namespace shardwire::testing
