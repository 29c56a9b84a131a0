// Fourier transforms over all dimensions of an array that lies over the ranks of a group in slabs, on at::Tensors:
// at::fft locally, compiled ops between. Only Python's shardwire.distributed.fft has more: other distributions, chosen
// axes, kept plans of MKL and FFTW, gradients. One thread at a time; errors are thrown as StatusError.
//
//   auto fft = shardwire::planFft(*group, {{256, 256, 256}});
//   at::Tensor spectrum = fft->forward(array);  // array: this rank's slab, of the shape fft->arraySlice().shape
#pragma once

#include <memory>
#include <optional>
#include <string>
// Before ATen's other headers: clang in C++20 wants IValue complete there.
#include <ATen/core/ivalue.h>

#include "shardwire/export.h"
#include "shardwire/op_spec.h"
#include "shardwire/torch_backend.h"

namespace shardwire {

struct FftSpec {
  Dims shape;                               // of the whole array, two dimensions or more, each of at least one index
  at::ScalarType type = at::kComplexFloat;  // kComplexFloat or kComplexDouble; of kFloat and kDouble the spectrum's
                                            // last dimension has n / 2 + 1
  bool transposed =
      true;  // the spectrum lies in slabs of dimension 1; false: of dimension 0, which costs one exchange more
};

// Both transforms are collective and return when the result is there: new memory in C order, where the operand lies.
// The operand is not written to. A wrong operand throws (kTypeError, kInvalidArgument) on its rank before anything
// moves.
class SHARDWIRE_EXPORT TensorFft {
 public:
  virtual ~TensorFft() = default;
  // From this rank's slab of the array to its slab of the spectrum; nothing is scaled.
  virtual at::Tensor forward(const at::Tensor& array) = 0;
  // Back, divided by the number of elements: inverse(forward(x)) is x.
  virtual at::Tensor inverse(const at::Tensor& spectrum) = 0;
  // This rank's slab of the array and of the spectrum: of n indices each of p ranks has n / p, and the first n % p
  // ranks have one more. A slab without indices is an empty tensor.
  virtual const Slice& arraySlice() const = 0;
  virtual const Slice& spectrumSlice() const = 0;
  // For people: which ranks exchange which boxes.
  virtual std::string explain() const = 0;
};

// Collective and blocking: every rank of the group gives the same spec, and all get the same error when one is wrong or
// they differ.
SHARDWIRE_EXPORT std::unique_ptr<TensorFft> planFft(TorchBackend& group, const FftSpec& spec,
                                                    std::optional<Duration> timeout = std::nullopt);

}  // namespace shardwire
