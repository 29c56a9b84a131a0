// The naive model of compiled ops: every output element is looked up in all inputs. First the walk over indices and the
// writers of each tensor, then the contributions to one element, then the bytes of random inputs and expected outputs,
// and at last gaps and the least traffic.
#include "tests/support/naive_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "tests/support/naive_cast.h"
#include "tests/support/random.h"

namespace shardwire::testing {

namespace {

bool isEmptyShape(const Dims& shape) {
  for (const std::int64_t extent : shape) {
    if (extent <= 0) {
      return true;
    }
  }
  return false;
}

// Calls visit(index) for every index of a box of `shape`, row-major.
template <typename Visit>
void forEachIndex(const Dims& shape, Visit visit) {
  if (isEmptyShape(shape)) {
    return;
  }
  Dims index = Dims::filled(shape.size(), 0);
  while (true) {
    visit(index);
    int d = shape.size() - 1;
    while (d >= 0 && ++index[d] == shape[d]) {
      index[d--] = 0;
    }
    if (d < 0) {
      return;
    }
  }
}

std::size_t flatIndex(const Dims& shape, const Dims& index) {
  std::int64_t flat = 0;
  for (int d = 0; d < shape.size(); ++d) {
    flat = flat * shape[d] + index[d];
  }
  return static_cast<std::size_t>(flat);
}

std::size_t localElements(const LocalTensor& local) {
  return isEmptyShape(local.localShape) ? 0 : static_cast<std::size_t>(numElements(local.localShape));
}

// One input of one rank, as a writer.
struct Writer {
  Rank rank;
  std::size_t input;
  std::size_t contribution;  // inputs of one class share a contribution; ascending by the lowest (rank, input) of each
  const LocalTensor* local;
};

struct NamedTensor {
  std::optional<DType> inputDtype;
  std::optional<DType> outputDtype;
  ReduceOp reduction = ReduceOp::kNone;
  std::vector<Writer> writers;

  DType dtype() const { return inputDtype.value_or(outputDtype.value_or(DType::kFloat32)); }
  DType dtypeOfOutputs() const { return outputDtype.value_or(dtype()); }
  // Combined values are computed in this type, and then rounded once.
  DType accumulator() const {
    const bool isSmall = internal::naiveIsFloat(dtype()) && internal::naiveLaneBytes(dtype()) < 4;
    return !isSmall ? dtype() : (internal::naiveIsComplex(dtype()) ? DType::kComplex64 : DType::kFloat32);
  }
};

const TensorDecl& declOf(const LocalSpec& spec, const LocalTensor& local) {
  return spec.tensors[static_cast<std::size_t>(local.tensor)];
}

std::map<std::string, NamedTensor> gatherWriters(const std::vector<LocalSpec>& specs) {
  std::map<std::string, NamedTensor> tensors;
  std::map<std::string, std::map<std::uint64_t, std::size_t>> contributionOfClass;
  std::map<std::string, std::size_t> numContributions;
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    for (const TensorDecl& decl : specs[rank].tensors) {
      NamedTensor& tensor = tensors[decl.name];
      tensor.inputDtype = decl.dtype ? decl.dtype : tensor.inputDtype;
      tensor.outputDtype = decl.outputDtype ? decl.outputDtype : tensor.outputDtype;
      tensors[decl.name].reduction = decl.reduction;
    }
    for (std::size_t i = 0; i < specs[rank].inputs.size(); ++i) {
      const LocalTensor& local = specs[rank].inputs[i];
      const std::string& name = declOf(specs[rank], local).name;
      std::size_t contribution = numContributions[name];
      if (local.replicaClass != 0) {
        contribution = contributionOfClass[name].try_emplace(local.replicaClass, contribution).first->second;
      }
      if (contribution == numContributions[name]) {
        ++numContributions[name];
      }
      tensors[name].writers.push_back({static_cast<Rank>(rank), i, contribution, &local});
    }
  }
  return tensors;
}

// The element of the writer's local tensor at the global `index`; false when the tensor does not hold the element.
bool findElement(const LocalTensor& local, const Dims& index, std::size_t& element) {
  for (const PlacedSlice& placed : local.slices) {
    bool isInside = true;
    Dims localIndex = index;
    for (int d = 0; d < index.size(); ++d) {
      const std::int64_t within = index[d] - placed.slice.offset[d];
      isInside = isInside && within >= 0 && within < placed.slice.shape[d];
      localIndex[d] = within + placed.localOffset[d];
    }
    if (isInside) {
      element = flatIndex(local.localShape, localIndex);
      return true;
    }
  }
  return false;
}

// A participant in one output element.
struct Contribution {
  std::size_t number;
  const Writer* writer;  // one of the holders
  std::size_t element;   // of the writer's local tensor
  bool isOwn;            // the wanting rank is among the holders
};

// Ascending by number; only the last one when nothing is reduced.
void contributionsTo(const NamedTensor& tensor, Rank rank, const Dims& index, std::vector<Contribution>& found) {
  found.clear();
  for (const Writer& writer : tensor.writers) {
    std::size_t element = 0;
    if (!findElement(*writer.local, index, element)) {
      continue;
    }
    std::size_t at = 0;
    while (at < found.size() && found[at].number < writer.contribution) {
      ++at;
    }
    if (at == found.size() || found[at].number != writer.contribution) {
      found.insert(found.begin() + static_cast<std::ptrdiff_t>(at), {writer.contribution, &writer, element, false});
    }
    found[at].isOwn = found[at].isOwn || writer.rank == rank;
  }
  if (tensor.reduction == ReduceOp::kNone && found.size() > 1) {
    found.erase(found.begin(), found.end() - 1);
  }
}

// visit(rank, output, element of the output's local tensor, tensor, contributions, global index) for every element of
// every output's boxes.
template <typename Visit>
void forEachOutputElement(const std::vector<LocalSpec>& specs, Visit visit) {
  const std::map<std::string, NamedTensor> tensors = gatherWriters(specs);
  std::vector<Contribution> found;
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    for (std::size_t o = 0; o < specs[rank].outputs.size(); ++o) {
      const LocalTensor& output = specs[rank].outputs[o];
      const NamedTensor& tensor = tensors.at(declOf(specs[rank], output).name);
      for (const PlacedSlice& placed : output.slices) {
        forEachIndex(placed.slice.shape, [&](const Dims& within) {
          Dims global = within;
          Dims local = within;
          for (int d = 0; d < within.size(); ++d) {
            global[d] += placed.slice.offset[d];
            local[d] += placed.localOffset[d];
          }
          contributionsTo(tensor, static_cast<Rank>(rank), global, found);
          visit(rank, o, flatIndex(output.localShape, local), tensor, found, global);
        });
      }
    }
  }
}

std::uint64_t hashText(const std::string& text) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<std::uint8_t>(c)) * 1099511628211ULL;
  }
  return hash;
}

// The values of one contribution at one global index: the same whichever rank asks.
std::uint64_t valueAt(std::uint64_t contributionSeed, const Dims& index) {
  std::uint64_t hash = contributionSeed;
  for (const std::int64_t coordinate : index) {
    hash = mix64(hash ^ static_cast<std::uint64_t>(coordinate));
  }
  return mix64(hash);
}

// A factor of products is 1, 2 or -1: products stay small.
int smallValue(ReduceOp reduction, std::uint64_t bits) {
  if (reduction == ReduceOp::kProd) {
    return bits % 8 == 0 ? 2 : (bits % 8 < 3 ? -1 : 1);
  }
  return static_cast<int>(bits % 7) - 3;
}

}  // namespace

RankBytes blankOutputs(const std::vector<LocalSpec>& specs) {
  RankBytes outputs(specs.size());
  const std::map<std::string, NamedTensor> tensors = gatherWriters(specs);
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    for (const LocalTensor& output : specs[rank].outputs) {
      outputs[rank].emplace_back(
          localElements(output) * elementBytes(tensors.at(declOf(specs[rank], output).name).dtypeOfOutputs()),
          kUntouched);
    }
  }
  return outputs;
}

RankBytes fillInputs(std::uint64_t seed, const std::vector<LocalSpec>& specs) {
  RankBytes inputs(specs.size());
  const std::map<std::string, NamedTensor> tensors = gatherWriters(specs);
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    for (std::size_t i = 0; i < specs[rank].inputs.size(); ++i) {
      const LocalTensor& local = specs[rank].inputs[i];
      const TensorDecl& decl = declOf(specs[rank], local);
      const DType dtype = tensors.at(decl.name).dtype();
      const std::size_t elemBytes = elementBytes(dtype);
      Bytes& bytes = inputs[rank].emplace_back(localElements(local) * elemBytes);
      Random noise(mix64(seed) + rank * 1000 + i);
      for (std::byte& byte : bytes) {  // elements in none of the boxes: no rank may read the noise
        byte = static_cast<std::byte>(noise.bits());
      }
      const std::uint64_t own = local.replicaClass != 0 ? local.replicaClass : mix64((rank << 20) + i + 1);
      const std::uint64_t contributionSeed = mix64(seed ^ hashText(decl.name) ^ own);
      for (const PlacedSlice& placed : local.slices) {
        forEachIndex(placed.slice.shape, [&](const Dims& within) {
          Dims global = within;
          Dims localIndex = within;
          for (int d = 0; d < within.size(); ++d) {
            global[d] += placed.slice.offset[d];
            localIndex[d] += placed.localOffset[d];
          }
          const std::uint64_t bits = valueAt(contributionSeed, global);
          std::byte* element = bytes.data() + flatIndex(local.localShape, localIndex) * elemBytes;
          if (decl.reduction == ReduceOp::kNone) {
            const std::uint64_t words[2] = {bits, mix64(bits)};
            std::memcpy(element, words, elemBytes);
          } else {
            encodeSmall(dtype, smallValue(decl.reduction, bits), element);
          }
        });
      }
    }
  }
  return inputs;
}

void reduceAndCast(DType from, DType accumulator, DType to, ReduceOp op, std::span<const std::byte* const> sources,
                   std::byte* out) {
  if (from == to) {
    reduceElement(from, op, sources, out);
    return;
  }
  std::vector<std::array<std::byte, 16>> wide(sources.size());
  std::vector<const std::byte*> addends;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    internal::naiveCast(from, sources[i], accumulator, wide[i].data());
    addends.push_back(wide[i].data());
  }
  std::array<std::byte, 16> value;
  reduceElement(accumulator, op, addends, value.data());
  internal::naiveCast(accumulator, value.data(), to, out);
}

RankBytes expectedOutputs(const std::vector<LocalSpec>& specs, const RankBytes& inputs) {
  RankBytes outputs = blankOutputs(specs);
  std::vector<const std::byte*> sources;
  forEachOutputElement(specs, [&](std::size_t rank, std::size_t output, std::size_t element, const NamedTensor& tensor,
                                  const std::vector<Contribution>& found, const Dims&) {
    const std::size_t elemBytes = elementBytes(tensor.dtype());
    std::byte* out = outputs[rank][output].data() + element * elementBytes(tensor.dtypeOfOutputs());
    sources.clear();
    for (const Contribution& contribution : found) {
      const Writer& writer = *contribution.writer;
      sources.push_back(inputs[static_cast<std::size_t>(writer.rank)][writer.input].data() +
                        contribution.element * elemBytes);
    }
    if (sources.size() == 1) {
      internal::naiveCast(tensor.dtype(), sources[0], tensor.dtypeOfOutputs(), out);
    } else if (sources.size() > 1) {
      reduceAndCast(tensor.dtype(), tensor.accumulator(), tensor.dtypeOfOutputs(), tensor.reduction, sources, out);
    }
  });
  return outputs;
}

std::vector<std::vector<std::vector<bool>>> coveredElements(const std::vector<LocalSpec>& specs) {
  std::vector<std::vector<std::vector<bool>>> covered(specs.size());
  for (std::size_t rank = 0; rank < specs.size(); ++rank) {
    for (const LocalTensor& output : specs[rank].outputs) {
      covered[rank].emplace_back(localElements(output), true);
    }
  }
  forEachOutputElement(specs, [&](std::size_t rank, std::size_t output, std::size_t element, const NamedTensor&,
                                  const std::vector<Contribution>& found,
                                  const Dims&) { covered[rank][output][element] = !found.empty(); });
  return covered;
}

bool hasGap(const std::vector<LocalSpec>& specs) {
  bool found = false;
  forEachOutputElement(specs, [&found](std::size_t, std::size_t, std::size_t, const NamedTensor&,
                                       const std::vector<Contribution>& contributions,
                                       const Dims&) { found = found || contributions.empty(); });
  return found;
}

BytesFromPeers bytesFromPeers(const std::vector<LocalSpec>& specs) {
  // As long as staged bytes: the narrower type, but for addends.
  BytesFromPeers bytes;
  std::set<std::tuple<std::size_t, const NamedTensor*, std::vector<std::int64_t>>> seen;
  forEachOutputElement(specs, [&](std::size_t rank, std::size_t, std::size_t, const NamedTensor& tensor,
                                  const std::vector<Contribution>& found, const Dims& global) {
    const std::size_t whole = elementBytes(tensor.dtype());
    const std::size_t narrow = std::min(whole, elementBytes(tensor.dtypeOfOutputs()));
    std::uint64_t remote = 0;
    for (const Contribution& contribution : found) {
      remote += contribution.isOwn ? 0 : (found.size() > 1 ? whole : narrow);
    }
    const bool isNew = remote > 0 && seen.emplace(rank, &tensor, std::vector(global.begin(), global.end())).second;
    bytes.planned += remote;
    bytes.least += isNew ? remote : 0;
  });
  return bytes;
}

}  // namespace shardwire::testing
