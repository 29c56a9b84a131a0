// A slab has all indices of every dimension but one. So these full dimensions are transformed first. Then an exchange
// makes slabs of another dimension, and the last dimension is transformed. The inverse takes the same steps in reverse.
#include "shardwire/tensor_fft.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/fft_fftn.h>
#include <ATen/ops/fft_ifftn.h>
#include <ATen/ops/fft_irfftn.h>
#include <ATen/ops/fft_rfftn.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/throw_status.h"
#include "shardwire/c10d.h"

namespace shardwire {

namespace {

// This rank's part of an array of `shape` that is cut along `dim`.
Slice slabOf(const Dims& shape, int dim, int rank, int worldSize) {
  const std::int64_t least = shape[dim] / worldSize;
  const std::int64_t longer = shape[dim] % worldSize;
  Slice slab{Dims::filled(shape.size(), 0), shape};
  slab.offset[dim] = rank * least + std::min<std::int64_t>(rank, longer);
  slab.shape[dim] = least + (rank < longer ? 1 : 0);
  return slab;
}

bool isEmpty(const Slice& slice) {
  return std::find(slice.shape.begin(), slice.shape.end(), 0) != slice.shape.end();
}

at::IntArrayRef sizesOf(const Dims& dims) {
  return {dims.begin(), static_cast<std::size_t>(dims.size())};
}

bool isReal(const FftSpec& spec) {
  return !c10::isComplexType(spec.type);
}

at::ScalarType spectrumType(const FftSpec& spec) {
  return isReal(spec) ? c10::toComplexType(spec.type) : spec.type;
}

std::string nameOf(const FftSpec& spec) {
  return std::string(spec.transposed ? "transposed" : "natural") + " spectrum of " + c10::toString(spec.type) + " " +
         toString(spec.shape);
}

Status check(const FftSpec& spec) {
  if (spec.type != at::kFloat && spec.type != at::kDouble && spec.type != at::kComplexFloat &&
      spec.type != at::kComplexDouble) {
    return Status(StatusCode::kTypeError, std::string("planFft: the type is ") + c10::toString(spec.type) +
                                              "; give kFloat, kDouble, kComplexFloat or kComplexDouble");
  }
  if (spec.shape.size() < 2 ||
      std::any_of(spec.shape.begin(), spec.shape.end(), [](std::int64_t extent) { return extent < 1; })) {
    return Status(StatusCode::kInvalidArgument, "planFft: the shape is " + toString(spec.shape) +
                                                    "; give two dimensions or more, each of at least one index");
  }
  return Status();
}

// Every dimension but the first.
std::vector<std::int64_t> innerDims(const FftSpec& spec) {
  std::vector<std::int64_t> dims;
  for (int dim = 1; dim < spec.shape.size(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

class TensorFftShardwire final : public TensorFft {
 public:
  TensorFftShardwire(TorchBackend& group, const FftSpec& spec, std::optional<Duration> timeout)
      : spec_(spec), inner_(innerDims(spec)) {
    Status wrong = check(spec);
    if (wrong.isOk()) {
      Dims shape = spec.shape;
      if (isReal(spec)) {
        shape[shape.size() - 1] = shape[shape.size() - 1] / 2 + 1;
      }
      array_ = slabOf(spec.shape, 0, group.getRank(), group.getSize());
      rows_ = slabOf(shape, 0, group.getRank(), group.getSize());
      columns_ = slabOf(shape, 1, group.getRank(), group.getSize());
      shape_ = shape;
    }
    toColumns_ = compileMove(group, rows_, columns_, wrong, timeout);
    toRows_ = compileMove(group, columns_, rows_, wrong, timeout);
  }

  at::Tensor forward(const at::Tensor& array) override {
    checkOperand("forward", array, array_, spec_.type);
    at::Tensor rows = emptyLike(array, rows_);
    if (!isEmpty(array_)) {
      rows = isReal(spec_) ? at::fft_rfftn(array, at::OptionalIntArrayRef(), inner_)
                           : at::fft_fftn(array, at::OptionalIntArrayRef(), inner_);
    }
    at::Tensor columns = move(*toColumns_, rows, rows_, columns_);
    if (!isEmpty(columns_)) {
      columns = at::fft_fftn(columns, at::OptionalIntArrayRef(), kFirst);
    }
    return (spec_.transposed ? columns : move(*toRows_, columns, columns_, rows_)).contiguous();
  }

  at::Tensor inverse(const at::Tensor& spectrum) override {
    checkOperand("inverse", spectrum, spectrumSlice(), spectrumType(spec_));
    at::Tensor columns = spec_.transposed ? spectrum : move(*toColumns_, spectrum, rows_, columns_);
    if (!isEmpty(columns_)) {
      columns = at::fft_ifftn(columns, at::OptionalIntArrayRef(), kFirst);
    }
    const at::Tensor rows = move(*toRows_, columns, columns_, rows_);
    if (isEmpty(array_)) {
      return at::empty(sizesOf(array_.shape), spectrum.options().dtype(spec_.type));
    }
    if (!isReal(spec_)) {
      return at::fft_ifftn(rows, at::OptionalIntArrayRef(), inner_).contiguous();
    }
    return at::fft_irfftn(rows, sizesOf(spec_.shape).slice(1), inner_).contiguous();
  }

  const Slice& arraySlice() const override { return array_; }
  const Slice& spectrumSlice() const override { return spec_.transposed ? columns_ : rows_; }

  std::string explain() const override {
    std::string text = "FFT: every rank transforms dimensions 1 and up by at::fft; exchange:\n" +
                       toColumns_->explain() + "then dimension 0\n";
    return spec_.transposed ? text : text + "then back:\n" + toRows_->explain();
  }

 private:
  static constexpr std::int64_t kFirst = 0;

  // Ranks with different specs name different tensors, and the error on all ranks names these tensors.
  std::unique_ptr<TensorOp> compileMove(TorchBackend& group, const Slice& from, const Slice& to, const Status& wrong,
                                        std::optional<Duration> timeout) const {
    LocalSpec local;
    local.name = "planFft";
    local.localError = wrong;
    if (wrong.isOk()) {
      const DType type = spectrumType(spec_) == at::kComplexFloat ? DType::kComplex64 : DType::kComplex128;
      local.tensors.push_back({nameOf(spec_), shape_, type, ReduceOp::kNone});
      for (auto [slice, side] : {std::pair{&from, &local.inputs}, std::pair{&to, &local.outputs}}) {
        if (!isEmpty(*slice)) {
          side->push_back({0, slice->shape, {{*slice, Dims::filled(shape_.size(), 0)}}});
        }
      }
    }
    return compileOp(group, local, timeout);
  }

  at::Tensor emptyLike(const at::Tensor& tensor, const Slice& slice) const {
    return tensor.device().is_cpu() ? emptyInSharedHeap(sizesOf(slice.shape), spectrumType(spec_))
                                    : at::empty(sizesOf(slice.shape), tensor.options().dtype(spectrumType(spec_)));
  }

  at::Tensor move(TensorOp& op, const at::Tensor& source, const Slice& from, const Slice& to) const {
    at::Tensor target = emptyLike(source, to);
    const at::Tensor resolved = source.resolve_conj().resolve_neg();
    op.run({&resolved, isEmpty(from) ? 0U : 1U}, {&target, isEmpty(to) ? 0U : 1U})->wait();
    return target;
  }

  static void checkOperand(const char* call, const at::Tensor& operand, const Slice& slice, at::ScalarType type) {
    if (!operand.defined() || operand.scalar_type() != type) {
      internal::refuseCall(StatusCode::kTypeError, "{}: the operand is {}, the plan is for {}", call,
                           operand.defined() ? c10::toString(operand.scalar_type()) : "undefined", c10::toString(type));
    }
    if (operand.sizes() != sizesOf(slice.shape)) {
      internal::refuseCall(StatusCode::kInvalidArgument, "{}: the operand's shape is {}, this rank's part is {}", call,
                           internal::shapeText(operand), toString(slice.shape));
    }
  }

  FftSpec spec_;
  std::vector<std::int64_t> inner_;
  Dims shape_;     // of the spectrum
  Slice array_;    // of the array, in slabs of dimension 0
  Slice rows_;     // of the spectrum, in slabs of dimension 0
  Slice columns_;  // of the spectrum, in slabs of dimension 1
  std::unique_ptr<TensorOp> toColumns_;
  std::unique_ptr<TensorOp> toRows_;
};

}  // namespace

std::unique_ptr<TensorFft> planFft(TorchBackend& group, const FftSpec& spec, std::optional<Duration> timeout) {
  return std::make_unique<TensorFftShardwire>(group, spec, timeout);
}

}  // namespace shardwire
