// Every rank merges the same specs and must reach the same result or the same error text. So the order of all checks is
// fixed: errors that ranks report themselves, allow_gaps, declarations by rank, then inputs and outputs by rank. A
// tensor has one number on all ranks, in the order of first mention. All ranks must declare one shape, dtype and
// reduction. The first broken rule ends the merge. Boxes that must not overlap are compared in a sweep along one
// dimension, so many boxes cost n log n instead of n^2.
#include "ops/plan/global_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ops/plan/hash.h"
#include "ops/plan/slice_math.h"

namespace shardwire::internal {

namespace {

// A tensor while declarations and regions are gathered.
struct TensorFacts {
  Rank firstRank = 0;   // the first rank that declared the tensor
  Rank lastRank = -1;   // the last rank that declared the tensor so far
  Rank shapeRank = -1;  // the first rank that gave the shape; -1: none
  Rank dtypeRank = -1;  // likewise
  Rank outputDtypeRank = -1;
  int numDims = -1;         // -1: not known yet
  std::string numDimsFrom;  // "rank 0's inputs[2]"
};

class Merger {
 public:
  explicit Merger(std::span<const LocalSpec> specs) : specs_(specs) {}

  Result<GlobalSpec> merge() {
    if (specs_.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    "compile_op: there are no specs to merge: a group has at least one rank");
    }
    result_.name = specs_[0].name;
    SW_RETURN_IF_ERROR(checkLocalErrors());
    SW_RETURN_IF_ERROR(mergeAllowGaps());
    SW_RETURN_IF_ERROR(mergeDeclarations());
    result_.ranks.resize(specs_.size());
    for (std::size_t rank = 0; rank < specs_.size(); ++rank) {
      SW_RETURN_IF_ERROR(mergeLocals(rank, "inputs", specs_[rank].inputs, result_.ranks[rank].inputs));
      SW_RETURN_IF_ERROR(mergeLocals(rank, "outputs", specs_[rank].outputs, result_.ranks[rank].outputs));
    }
    deriveShapes();
    return std::move(result_);
  }

 private:
  // A local tensor under check, for messages.
  struct Place {
    std::size_t rank;
    const char* list;
    std::size_t index;
    std::size_t numSlices;
  };

  Status invalid(const std::string& message) const { return Status(StatusCode::kInvalidArgument, prefix() + message); }
  std::string prefix() const {
    return result_.name.empty() ? "compile_op: " : fmt::format("compile_op '{}': ", result_.name);
  }
  static std::string nameOf(Overlap overlap) {
    return overlap == Overlap::kLast ? "'last'" : overlap == Overlap::kAny ? "'any'" : "'error'";
  }
  static std::string nameOf(const GlobalTensor& tensor) {
    return tensor.name.empty() ? "the tensor" : fmt::format("tensor '{}'", tensor.name);
  }
  static std::string nameOf(const Place& place) {
    return fmt::format("rank {}, {}[{}]", place.rank, place.list, place.index);
  }
  static std::string nameOf(const Place& place, std::size_t slice) {
    return place.numSlices == 1 ? nameOf(place) : fmt::format("{} box {}", nameOf(place), slice);
  }

  Status checkLocalErrors() const {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < specs_.size(); ++rank) {
      if (!specs_[rank].localError.isOk()) {
        ranks.push_back(rank);
      }
    }
    if (ranks.empty()) {
      return Status::ok();
    }
    const Status& first = specs_[ranks[0]].localError;
    std::string text = fmt::format("{}rank {}: {}", prefix(), ranks[0], first.message());
    if (ranks.size() > 1) {
      text += fmt::format(" ({} more rank{} reported an error, the next is rank {})", ranks.size() - 1,
                          ranks.size() == 2 ? "" : "s", ranks[1]);
    }
    return Status(first.code(), text);
  }

  Status mergeAllowGaps() {
    result_.allowGaps = specs_[0].allowGaps;
    result_.overlap = specs_[0].overlap;
    for (std::size_t rank = 1; rank < specs_.size(); ++rank) {
      if (specs_[rank].allowGaps != result_.allowGaps) {
        return invalid(
            fmt::format("rank 0 gives allow_gaps={}, rank {} gives allow_gaps={}: give the same value on all ranks",
                        result_.allowGaps, rank, specs_[rank].allowGaps));
      }
      if (specs_[rank].overlap != result_.overlap) {
        return invalid(
            fmt::format("rank 0 gives overlap={}, rank {} gives overlap={}: give the same value on all ranks",
                        nameOf(result_.overlap), rank, nameOf(specs_[rank].overlap)));
      }
      if (specs_[rank].whoPlans != specs_[0].whoPlans) {
        const auto nameOfPlanner = [&](std::size_t of) {
          switch (specs_[of].whoPlans) {
            case WhoPlans::kRank0:
              return "is_spmd=True (rank 0 plans for all)";
            case WhoPlans::kEachRank:
              return "is_spmd=False (each rank plans)";
            case WhoPlans::kChosen:
              break;
          }
          return "is_spmd=None (shardwire chooses)";
        };
        return invalid(fmt::format("rank 0 gives {}, rank {} gives {}: give the same value on all ranks",
                                   nameOfPlanner(0), rank, nameOfPlanner(rank)));
      }
    }
    return Status::ok();
  }

  Status mergeDeclarations() {
    globalIndex_.resize(specs_.size());
    for (std::size_t rank = 0; rank < specs_.size(); ++rank) {
      std::vector<std::int32_t>& globalOf = globalIndex_[rank];
      for (const TensorDecl& decl : specs_[rank].tensors) {
        SW_RETURN_IF_ERROR(checkDeclaration(static_cast<Rank>(rank), decl));
        const auto [found, isNew] =
            indexOfName_.try_emplace(decl.name, static_cast<std::int32_t>(result_.tensors.size()));
        if (isNew) {
          addTensor(static_cast<Rank>(rank), decl);
        } else if (facts_[static_cast<std::size_t>(found->second)].lastRank == static_cast<Rank>(rank)) {
          return invalid(fmt::format("rank {} declares {} twice: give every tensor of an op its own name", rank,
                                     nameOf(result_.tensors[static_cast<std::size_t>(found->second)])));
        } else {
          SW_RETURN_IF_ERROR(agree(static_cast<Rank>(rank), decl, static_cast<std::size_t>(found->second)));
        }
        facts_[static_cast<std::size_t>(found->second)].lastRank = static_cast<Rank>(rank);
        globalOf.push_back(found->second);
      }
    }
    for (std::size_t t = 0; t < facts_.size(); ++t) {
      SW_RETURN_IF_ERROR(settleDtypes(result_.tensors[t], facts_[t]));
    }
    return Status::ok();
  }

  // A side without a dtype gets the other side's dtype.
  Status settleDtypes(GlobalTensor& tensor, const TensorFacts& facts) const {
    if (facts.dtypeRank < 0) {
      tensor.dtype = *tensor.outputDtype;  // every declaration gives at least one dtype
    }
    if (tensor.outputDtype == tensor.dtype) {
      tensor.outputDtype.reset();
    }
    if (!supportsReduction(tensor.dtype, tensor.reduction)) {
      return invalid(fmt::format(
          "rank {} asks for reduction {} of {}, but it is not defined on {}: use another reduction or dtype",
          facts.firstRank, reduceOpName(tensor.reduction), nameOf(tensor), dtypeName(tensor.dtype)));
    }
    if (!supportsCast(tensor.dtype, tensor.dtypeOfOutputs())) {
      return Status(
          StatusCode::kUnsupported,
          fmt::format(
              "{}rank {} gives {} dtype {} for inputs, rank {} gives it {} for outputs: elements are cast between "
              "floating types, or between complex ones; for others give both sides the same dtype, and convert the "
              "tensors with .to() before or after",
              prefix(), facts.dtypeRank, nameOf(tensor), dtypeName(tensor.dtype), facts.outputDtypeRank,
              dtypeName(tensor.dtypeOfOutputs())));
    }
    return Status::ok();
  }

  void addTensor(Rank rank, const TensorDecl& decl) {
    result_.tensors.push_back({decl.name, decl.shape.value_or(Dims{}), decl.dtype.value_or(DType::kFloat32),
                               decl.reduction, decl.outputDtype});
    facts_.emplace_back();
    facts_.back().firstRank = rank;
    facts_.back().dtypeRank = decl.dtype ? rank : -1;
    facts_.back().outputDtypeRank = decl.outputDtype ? rank : -1;
    if (decl.shape) {
      setShape(rank, *decl.shape, facts_.size() - 1);
    }
  }

  void setShape(Rank rank, const Dims& shape, std::size_t tensor) {
    result_.tensors[tensor].shape = shape;
    facts_[tensor].shapeRank = rank;
    facts_[tensor].numDims = shape.size();
    facts_[tensor].numDimsFrom = fmt::format("the shape {} that rank {} gives", toString(shape), rank);
  }

  Status checkDeclaration(Rank rank, const TensorDecl& decl) const {
    const std::string name = decl.name.empty() ? "the tensor" : fmt::format("tensor '{}'", decl.name);
    if (!decl.dtype && !decl.outputDtype) {
      return invalid(fmt::format(
          "rank {} declares {} without a dtype: give that of the inputs, that of the outputs, or both", rank, name));
    }
    const auto numberOf = [](std::optional<DType> dtype) { return static_cast<int>(dtype.value_or(DType::kFloat32)); };
    const int dtype = std::max(numberOf(decl.dtype), numberOf(decl.outputDtype));
    if (dtype >= kNumDTypes || static_cast<int>(decl.reduction) >= kNumReduceOps) {
      return invalid(fmt::format("rank {} declares {} with dtype number {} and reduction number {}, which do not exist",
                                 rank, name, dtype, static_cast<int>(decl.reduction)));
    }
    if (decl.dtype && !supportsReduction(*decl.dtype, decl.reduction)) {
      return invalid(fmt::format(
          "rank {} asks for reduction {} of {}, but it is not defined on {}: use another reduction or dtype", rank,
          reduceOpName(decl.reduction), name, dtypeName(*decl.dtype)));
    }
    if (decl.shape) {
      for (int d = 0; d < decl.shape->size(); ++d) {
        if ((*decl.shape)[d] < 0) {
          return invalid(fmt::format("rank {} gives {} the shape {}: extent {} of dimension {} is negative", rank, name,
                                     toString(*decl.shape), (*decl.shape)[d], d));
        }
      }
    }
    return Status::ok();
  }

  Status agree(Rank rank, const TensorDecl& decl, std::size_t tensor) {
    GlobalTensor& merged = result_.tensors[tensor];
    TensorFacts& facts = facts_[tensor];
    const Rank first = facts.firstRank;
    if (decl.dtype && facts.dtypeRank < 0) {
      merged.dtype = *decl.dtype;
      facts.dtypeRank = rank;
    } else if (decl.dtype && *decl.dtype != merged.dtype) {
      return invalid(
          fmt::format("rank {} gives {} dtype {}, rank {} gives it {}: give the same dtype on all ranks, and "
                      "output_dtype where the outputs have another",
                      facts.dtypeRank, nameOf(merged), dtypeName(merged.dtype), rank, dtypeName(*decl.dtype)));
    }
    if (decl.outputDtype && facts.outputDtypeRank < 0) {
      merged.outputDtype = decl.outputDtype;
      facts.outputDtypeRank = rank;
    } else if (decl.outputDtype && decl.outputDtype != merged.outputDtype) {
      return invalid(fmt::format(
          "rank {} gives {} dtype {} for outputs, rank {} gives it {}: give the same output_dtype on all ranks",
          facts.outputDtypeRank, nameOf(merged), dtypeName(*merged.outputDtype), rank, dtypeName(*decl.outputDtype)));
    }
    if (decl.reduction != merged.reduction) {
      return invalid(
          fmt::format("rank {} gives {} reduction {}, rank {} gives it {}: give the same reduction on all ranks", first,
                      nameOf(merged), reduceOpName(merged.reduction), rank, reduceOpName(decl.reduction)));
    }
    if (!decl.shape) {
      return Status::ok();
    }
    if (facts_[tensor].shapeRank < 0) {
      setShape(rank, *decl.shape, tensor);
    } else if (*decl.shape != merged.shape) {
      return invalid(
          fmt::format("rank {} gives {} shape {}, rank {} gives it {}: give the same shape on all ranks, or None",
                      facts_[tensor].shapeRank, nameOf(merged), toString(merged.shape), rank, toString(*decl.shape)));
    }
    return Status::ok();
  }

  Status mergeLocals(std::size_t rank, const char* list, const std::vector<LocalTensor>& locals,
                     std::vector<LocalTensor>& merged) {
    merged = locals;
    const std::vector<std::int32_t>& globalOf = globalIndex_[rank];
    for (std::size_t i = 0; i < merged.size(); ++i) {
      LocalTensor& local = merged[i];
      const Place place{rank, list, i, local.slices.size()};
      if (local.tensor < 0 || static_cast<std::size_t>(local.tensor) >= globalOf.size()) {
        return invalid(fmt::format("{} belongs to tensor number {}, but the rank declares {} tensors, counted from 0",
                                   nameOf(place), local.tensor, globalOf.size()));
      }
      local.tensor = globalOf[static_cast<std::size_t>(local.tensor)];
      if (local.replicaClass != 0 && list[0] == 'o') {
        return invalid(
            fmt::format("{} has a replica class: only inputs can be replicas of one another", nameOf(place)));
      }
      SW_RETURN_IF_ERROR(checkLocalShape(place, local));
      for (std::size_t s = 0; s < local.slices.size(); ++s) {
        SW_RETURN_IF_ERROR(checkSlice(place, local, s));
      }
      if (local.slices.size() > 1) {
        SW_RETURN_IF_ERROR(checkOverlaps(place, local));
      }
    }
    return Status::ok();
  }

  Status checkNumDims(const Place& place, const char* what, const Dims& dims, std::int32_t tensor) {
    TensorFacts& facts = facts_[static_cast<std::size_t>(tensor)];
    if (facts.numDims < 0) {
      facts.numDims = dims.size();
      facts.numDimsFrom = fmt::format("rank {}'s {}[{}]", place.rank, place.list, place.index);
    }
    if (dims.size() != facts.numDims) {
      return invalid(fmt::format(
          "{}: {} {} has {} dimensions, but {} has {} by {}: give every box of a tensor the same number of dimensions",
          nameOf(place), what, toString(dims), dims.size(), nameOf(result_.tensors[static_cast<std::size_t>(tensor)]),
          facts.numDims, facts.numDimsFrom));
    }
    return Status::ok();
  }

  Status checkLocalShape(const Place& place, const LocalTensor& local) {
    SW_RETURN_IF_ERROR(checkNumDims(place, "local shape", local.localShape, local.tensor));
    const GlobalTensor& tensor = result_.tensors[static_cast<std::size_t>(local.tensor)];
    auto bytes = static_cast<std::int64_t>(elementBytes(place.list[0] == 'o' ? tensor.dtypeOfOutputs() : tensor.dtype));
    bool overflows = false;
    bool isEmptyTensor = false;
    for (int d = 0; d < local.localShape.size(); ++d) {
      if (local.localShape[d] < 0) {
        return invalid(fmt::format("{}: local shape {} has a negative extent in dimension {}", nameOf(place),
                                   toString(local.localShape), d));
      }
      isEmptyTensor |= local.localShape[d] == 0;
      overflows |= __builtin_mul_overflow(bytes, std::max<std::int64_t>(local.localShape[d], 1), &bytes);
    }
    if (overflows && !isEmptyTensor) {
      return invalid(fmt::format(
          "{}: a local tensor of shape {} has more than 2^63 bytes: no machine has so much memory, check the extents",
          nameOf(place), toString(local.localShape)));
    }
    return Status::ok();
  }

  Status checkSlice(const Place& place, const LocalTensor& local, std::size_t index) {
    const PlacedSlice& placed = local.slices[index];
    const Slice& slice = placed.slice;
    const GlobalTensor& tensor = result_.tensors[static_cast<std::size_t>(local.tensor)];
    SW_RETURN_IF_ERROR(checkNumDims(place, "offset", slice.offset, local.tensor));
    SW_RETURN_IF_ERROR(checkNumDims(place, "box shape", slice.shape, local.tensor));
    SW_RETURN_IF_ERROR(checkNumDims(place, "local offset", placed.localOffset, local.tensor));
    for (int d = 0; d < slice.shape.size(); ++d) {
      if (slice.shape[d] < 0) {
        return invalid(
            fmt::format("{}: box shape {} has a negative extent in dimension {}: use 0 for a box without elements",
                        nameOf(place, index), toString(slice.shape), d));
      }
      std::int64_t end = 0;
      if (__builtin_add_overflow(slice.offset[d], slice.shape[d], &end)) {
        return invalid(
            fmt::format("{}: offset {} plus extent {} in dimension {} is larger than 2^63: coordinates have 64 bits",
                        nameOf(place, index), slice.offset[d], slice.shape[d], d));
      }
    }
    if (isEmpty(slice)) {
      return Status::ok();  // no element, so nowhere outside
    }
    const bool hasShape = facts_[static_cast<std::size_t>(local.tensor)].shapeRank >= 0;
    for (int d = 0; d < slice.shape.size(); ++d) {
      if (slice.offset[d] < 0) {
        return invalid(fmt::format("{}: offset {} is negative in dimension {}: boxes start at 0 or later",
                                   nameOf(place, index), toString(slice.offset), d));
      }
      if (hasShape && slice.offset[d] + slice.shape[d] > tensor.shape[d]) {
        return invalid(fmt::format(
            "{}: box {} reaches outside {} of shape {} in dimension {}: move or shrink the box, or give a larger shape",
            nameOf(place, index), toString(slice), nameOf(tensor), toString(tensor.shape), d));
      }
      if (placed.localOffset[d] < 0) {
        return invalid(
            fmt::format("{}: local offset {} is negative in dimension {}: a box lies inside its local tensor",
                        nameOf(place, index), toString(placed.localOffset), d));
      }
      if (slice.shape[d] > local.localShape[d] - placed.localOffset[d]) {
        return invalid(fmt::format(
            "{}: box {} at local offset {} reaches outside its local tensor of shape {} in dimension {}: the local "
            "tensor must hold the whole box",
            nameOf(place, index), toString(slice), toString(placed.localOffset), toString(local.localShape), d));
      }
    }
    return Status::ok();
  }

  // Calls refuse(a, b) for the first two overlapping boxes; sweeps along the dimension with the most distinct starts.
  template <typename BoxAt, typename Refuse>
  Status sweepOverlaps(std::size_t numBoxes, int numDims, BoxAt boxAt, Refuse refuse) const {
    std::vector<Slice> boxes(numBoxes);
    for (std::size_t i = 0; i < numBoxes; ++i) {
      boxes[i] = boxAt(i);
    }
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < numBoxes; ++i) {
      if (!isEmpty(boxes[i])) {
        order.push_back(i);
      }
    }
    int sweepDim = 0;
    std::size_t mostStarts = 0;
    for (int d = 0; d < numDims; ++d) {
      std::vector<std::int64_t> starts;
      for (const std::size_t i : order) {
        starts.push_back(boxes[i].offset[d]);
      }
      std::sort(starts.begin(), starts.end());
      const auto distinct = static_cast<std::size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
      if (distinct > mostStarts) {
        mostStarts = distinct;
        sweepDim = d;
      }
    }
    if (numDims > 0) {
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return boxes[a].offset[sweepDim] < boxes[b].offset[sweepDim];
      });
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Slice& box = boxes[order[i]];
      for (std::size_t j = i + 1; j < order.size(); ++j) {
        const Slice& other = boxes[order[j]];
        if (numDims > 0 && other.offset[sweepDim] >= box.offset[sweepDim] + box.shape[sweepDim]) {
          break;
        }
        if (doOverlap(box, other)) {
          return refuse(std::min(order[i], order[j]), std::max(order[i], order[j]));
        }
      }
    }
    return Status::ok();
  }

  Status checkOverlaps(const Place& place, const LocalTensor& local) const {
    const int numDims = local.localShape.size();
    SW_RETURN_IF_ERROR(sweepOverlaps(
        local.slices.size(), numDims, [&](std::size_t i) { return local.slices[i].slice; },
        [&](std::size_t a, std::size_t b) {
          return invalid(fmt::format(
              "{}: its boxes {} ({}) and {} ({}) overlap: the boxes of one local tensor must be disjoint, give "
              "overlapping boxes as separate {}",
              nameOf(place), a, toString(local.slices[a].slice), b, toString(local.slices[b].slice), place.list));
        }));
    if (place.list[0] != 'o') {
      return Status::ok();  // reading one element for two boxes does no harm
    }
    return sweepOverlaps(
        local.slices.size(), numDims,
        [&](std::size_t i) {
          return Slice{local.slices[i].localOffset, local.slices[i].slice.shape};
        },
        [&](std::size_t a, std::size_t b) {
          return invalid(fmt::format(
              "{}: its boxes {} and {} lie on the same elements of the local tensor (local offsets {} and {}): give "
              "each its own place",
              nameOf(place), a, b, toString(local.slices[a].localOffset), toString(local.slices[b].localOffset)));
        });
  }

  // A shape that no rank gave reaches from 0 to the end of the last box.
  void deriveShapes() {
    for (std::size_t t = 0; t < result_.tensors.size(); ++t) {
      if (facts_[t].shapeRank < 0) {
        result_.tensors[t].shape = Dims::filled(std::max(facts_[t].numDims, 0), 0);
      }
    }
    for (const RankSpec& rank : result_.ranks) {
      for (const std::vector<LocalTensor>* locals : {&rank.inputs, &rank.outputs}) {
        for (const LocalTensor& local : *locals) {
          if (facts_[static_cast<std::size_t>(local.tensor)].shapeRank < 0) {
            growShape(local);
          }
        }
      }
    }
  }

  void growShape(const LocalTensor& local) {
    Dims& shape = result_.tensors[static_cast<std::size_t>(local.tensor)].shape;
    for (const PlacedSlice& placed : local.slices) {
      for (int d = 0; d < shape.size() && !isEmpty(placed.slice); ++d) {
        shape[d] = std::max(shape[d], placed.slice.offset[d] + placed.slice.shape[d]);
      }
    }
  }

  std::span<const LocalSpec> specs_;
  GlobalSpec result_;
  std::vector<TensorFacts> facts_;                      // by global tensor
  std::vector<std::vector<std::int32_t>> globalIndex_;  // by rank, by the index of that rank's declaration
  std::unordered_map<std::string, std::int32_t> indexOfName_;
};

void hashLocals(const std::vector<LocalTensor>& locals, Hasher& hasher) {
  hasher.add(locals.size());
  for (const LocalTensor& local : locals) {
    hasher.add(static_cast<std::uint64_t>(local.tensor));
    hasher.add(local.replicaClass);
    hasher.add(local.localShape);
    hasher.add(local.slices.size());
    for (const PlacedSlice& placed : local.slices) {
      hasher.add(placed.slice.offset);
      hasher.add(placed.slice.shape);
      hasher.add(placed.localOffset);
    }
  }
}

}  // namespace

Result<GlobalSpec> mergeSpecs(std::span<const LocalSpec> specs) {
  return Merger(specs).merge();
}

LocalSpec specOf(const GlobalSpec& spec, Rank rank) {
  return specOf(spec, RankSpec(spec.ranks[static_cast<std::size_t>(rank)]));
}

LocalSpec specOf(const GlobalSpec& spec, RankSpec&& own) {
  LocalSpec agreed{.inputs = std::move(own.inputs),
                   .outputs = std::move(own.outputs),
                   .allowGaps = spec.allowGaps,
                   .overlap = spec.overlap,
                   .name = spec.name};
  agreed.tensors.reserve(spec.tensors.size());
  for (const GlobalTensor& tensor : spec.tensors) {
    agreed.tensors.push_back({.name = tensor.name,
                              .shape = tensor.shape,
                              .dtype = tensor.dtype,
                              .reduction = tensor.reduction,
                              .outputDtype = tensor.dtypeOfOutputs()});
  }
  return agreed;
}

std::uint64_t fingerprint(const GlobalSpec& spec) {
  Hasher hasher;
  hasher.add(spec.name);
  hasher.add(static_cast<std::uint64_t>(spec.allowGaps) | static_cast<std::uint64_t>(spec.overlap) << 1);
  hasher.add(spec.tensors.size());
  for (const GlobalTensor& tensor : spec.tensors) {
    hasher.add(tensor.name);
    hasher.add(tensor.shape);
    hasher.add(static_cast<std::uint64_t>(tensor.dtype));
    hasher.add(static_cast<std::uint64_t>(tensor.reduction));
    hasher.add(static_cast<std::uint64_t>(tensor.dtypeOfOutputs()));
  }
  hasher.add(spec.ranks.size());
  for (const RankSpec& rank : spec.ranks) {
    hashLocals(rank.inputs, hasher);
    hashLocals(rank.outputs, hasher);
  }
  return hasher.value();
}

}  // namespace shardwire::internal
