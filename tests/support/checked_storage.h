// Memory for the random tensors of a test, with every byte known: the contents of tensors, and the bytes beside them,
// which must not change.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwire/tensor_view.h"
#include "tests/support/random.h"

namespace shardwire::testing {

// The elements of a tensor in row-major order: a pattern that repeats after `period` elements, so long tensors cost
// little. The period is prime if shorter than the tensor, so a piece that is misplaced by any round number of bytes
// shows.
struct Elements {
  std::vector<std::byte> bytes;
  std::int64_t period = 0;
  std::size_t elemBytes = 1;

  const std::byte* at(std::int64_t i) const { return bytes.data() + static_cast<std::size_t>(i % period) * elemBytes; }
};

// Any bits at all, but floats of four and eight bytes are mostly of a size at which sums say something.
Elements randomElements(std::uint64_t seed, DType dtype, std::int64_t count);

// How a tensor lies in the storage: element strides, and the first element's offset. Elements [0, span) of the storage
// are the tensor's.
struct Placement {
  Dims strides;
  std::int64_t offset = 0;
  std::int64_t span = 0;
};
// Contiguous, transposed, sliced or padded. Dimensions of `expanded` (a bit each) get the stride 0.
Placement randomPlacement(Random& random, const Dims& shape, unsigned expanded);

class CheckedStorage {
 public:
  // In the shared heap or in ordinary memory.
  CheckedStorage(std::size_t bytes, bool isInHeap);

  TensorView view(DType dtype, const Dims& shape, const Placement& placement) const;
  // Writes elements into the tensor; the tensor shall hold the same elements in the end unless expect() says otherwise.
  void put(const TensorView& tensor, const Elements& elements);
  // The elements that the tensor shall hold in the end.
  void expect(const TensorView& tensor, const Elements& elements);
  // Writes other bytes everywhere, which shall stay.
  void overwrite();
  // "" when every byte is as expected, else a text with the place of the first wrong byte.
  std::string findDifference() const;

 private:
  void write(std::byte* to, const TensorView& tensor, const Elements& elements) const;

  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
  std::vector<std::byte> expected_;
};

}  // namespace shardwire::testing
