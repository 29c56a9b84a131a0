#include "backend/c10d/torch_symm_meeting.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <fmt/format.h>

#include "backend/c10d/throw_status.h"
#include "ops/plan/hash.h"

namespace shardwire::internal {
StridedBox SymmetricOperand::box(Rank rank, std::int64_t more) const {
  StridedBox box = boxOf(view);
  box.bytes = bytes(rank) + more;
  return box;
}

SymmetricOperand operandOf(TorchSymmetricMemory& memory, const at::Tensor& tensor, const char* what) {
  SymmetricOperand operand{&memory, viewOf(tensor, what), 0};
  operand.byteOffset = tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size());
  return operand;
}

Meeting::Meeting(SymmetricHandle memory, const char* op, std::string_view detail)
    : memory_(std::move(memory)), op_(op), detail_(detail) {}

void Meeting::add(const char* what, const SymmetricOperand& operand) {
  tensors_.at(numTensors_++) = {what, operand.view, operand.byteOffset};
}

std::uint64_t Meeting::fingerprint() const {
  Hasher hash;
  hash.add(std::string_view(op_));
  hash.add(detail_);
  for (std::size_t i = 0; i < numTensors_; ++i) {
    hash.add(static_cast<std::uint64_t>(tensors_[i].view.dtype));
    hash.add(tensors_[i].view.shape);
    hash.add(tensors_[i].view.strides);
    hash.add(static_cast<std::uint64_t>(tensors_[i].byteOffset));
  }
  for (std::size_t i = 0; i < numNumbers_; ++i) {
    hash.add(static_cast<std::uint64_t>(numbers_[i].value));
  }
  return hash.value();
}

std::string Meeting::text() const {
  std::string text = detail_.empty() ? std::string(op_) : fmt::format("{} {}", op_, detail_);
  for (std::size_t i = 0; i < numTensors_; ++i) {
    const Tensor& each = tensors_[i];
    text += fmt::format(", {} {}{} of strides {} at byte {}", each.what, dtypeName(each.view.dtype),
                        toString(each.view.shape), toString(each.view.strides), each.byteOffset);
  }
  for (std::size_t i = 0; i < numNumbers_; ++i) {
    text += fmt::format(", {} {}", numbers_[i].what, numbers_[i].value);
  }
  return text;
}

void Meeting::meet() {
  memory_->meet({op_, fingerprint(), error_, [this] { return text(); }});
}

void Meeting::meetAgain() {
  memory_->meet({op_, 0, error_, [this] { return std::string(op_); }});
}

void requireApart(const TensorView& written, const SymmetricOperand& read, const char* what) {
  const std::byte* const begin = read.memory->part(read.memory->get_rank());
  const std::byte* const end = begin + read.memory->get_buffer_size();
  if (written.bytes >= begin && written.bytes < end) {
    refuseCall(StatusCode::kInvalidArgument,
               "{} lies in the symmetric memory that the other ranks read: give another tensor", what);
  }
}

void requireContiguous(const at::Tensor& tensor, const char* what) {
  if (!tensor.is_contiguous()) {
    refuseCall(StatusCode::kInvalidArgument, "{} must be contiguous", what);
  }
}

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
