// Random boxes in memory, and the naive walk over the elements, for tests of all code that moves boxes. Header only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include "ops/boxes/strided_runs.h"
#include "ops/reduce/isa_kernels.h"

namespace shardwire::internal {

// The instruction sets of this build and this CPU.
inline std::vector<Isa> isasHere() {
  std::vector<Isa> isas;
  for (int i = 0; i < kNumIsas; ++i) {
    if (kernelsOf(static_cast<Isa>(i)) != nullptr) {
      isas.push_back(static_cast<Isa>(i));
    }
  }
  return isas;
}

// A box inside separate memory, with room around the box that must stay unchanged.
struct Arena {
  std::vector<std::byte> memory;
  StridedBox box;
};

using Random = std::mt19937_64;

inline std::int64_t pick(Random& random, std::int64_t from, std::int64_t to) {
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

inline Dims randomShape(Random& random, int numDims, std::int64_t mostElems) {
  Dims shape = Dims::filled(numDims, 1);
  std::int64_t left = mostElems;
  for (int dim = 0; dim < numDims; ++dim) {
    const int at = static_cast<int>(pick(random, 0, numDims - 1));
    if (shape[at] == 1 && left > 1) {
      shape[at] = pick(random, 1, std::min<std::int64_t>(left, pick(random, 0, 3) == 0 ? 600 : 9));
      left /= shape[at];
    }
  }
  return shape;
}

// Strides of a random order of dimensions with random gaps; 0 now and then where `mayExpand`.
inline Arena randomArena(Random& random, const Dims& shape, std::size_t elemBytes, bool mayExpand) {
  std::vector<int> order(static_cast<std::size_t>(shape.size()));
  std::iota(order.begin(), order.end(), 0);
  if (pick(random, 0, 1) == 0) {
    std::shuffle(order.begin(), order.end(), random);
  } else {
    std::reverse(order.begin(), order.end());  // row-major
  }
  Arena arena;
  arena.box.byteStrides = Dims::filled(shape.size(), 0);
  std::int64_t step = static_cast<std::int64_t>(elemBytes) * (pick(random, 0, 5) == 0 ? 2 : 1);
  for (const int dim : order) {
    if (mayExpand && pick(random, 0, 7) == 0) {
      continue;
    }
    arena.box.byteStrides[dim] = step;
    step =
        step * shape[dim] + (pick(random, 0, 2) == 0 ? static_cast<std::int64_t>(elemBytes) * pick(random, 1, 7) : 0);
  }
  const std::int64_t offset = pick(random, 0, 200);
  arena.memory.resize(static_cast<std::size_t>(step + offset + 200));
  for (std::byte& byte : arena.memory) {
    byte = static_cast<std::byte>(random());
  }
  arena.box.bytes = arena.memory.data() + offset;
  return arena;
}

template <typename Visit>
void forEachIndex(const Dims& shape, Visit&& visit) {
  if (numElements(shape) == 0) {
    return;
  }
  Dims index = Dims::filled(shape.size(), 0);
  while (true) {
    visit(index);
    int dim = shape.size() - 1;
    for (; dim >= 0 && ++index[dim] == shape[dim]; --dim) {
      index[dim] = 0;
    }
    if (dim < 0) {
      return;
    }
  }
}

inline std::int64_t offsetOf(const StridedBox& box, const Dims& index) {
  std::int64_t offset = 0;
  for (int dim = 0; dim < index.size(); ++dim) {
    offset += index[dim] * box.byteStrides[dim];
  }
  return offset;
}

}  // namespace shardwire::internal
