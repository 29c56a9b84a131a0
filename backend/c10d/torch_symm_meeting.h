// How the ranks begin an op on symmetric memory: each rank reports its arguments, and all ranks go on or all get the
// same error.
#pragma once

#include "backend/c10d/torch_compat.h"
#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/torch_symm_memory.h"
#include "ops/boxes/strided_runs.h"

namespace shardwire::internal {

// A tensor in symmetric memory, with the place of the same elements in the other ranks' parts.
struct SymmetricOperand {
  TorchSymmetricMemory* memory = nullptr;
  TensorView view;              // this rank's
  std::int64_t byteOffset = 0;  // from the beginning of a part

  // The box of the part of `rank`, `more` bytes further.
  StridedBox box(Rank rank, std::int64_t more = 0) const;
  std::byte* bytes(Rank rank) const { return memory->part(rank) + byteOffset; }
};
// `tensor` lies in `memory`.
SymmetricOperand operandOf(TorchSymmetricMemory& memory, const at::Tensor& tensor, const char* what);

class Meeting {
 public:
  // `op`: a literal, for errors and as a part of the values that must be equal. `detail`: "sum", say.
  Meeting(SymmetricHandle memory, const char* op, std::string_view detail = "");

  // Checks this rank's arguments: meet() reports an error of a check to all ranks.
  template <typename Checks>
  void check(const Checks& checks) {
    try {
      checks();
    } catch (const StatusError& refused) {
      error_ = refused.what();
    }
  }
  // Values that must be equal on all ranks.
  void add(const char* what, const SymmetricOperand& operand);
  void add(const char* what, std::int64_t number) { numbers_.at(numNumbers_++) = {what, number}; }
  void meet();
  // At the end of an op that may have failed on one rank alone.
  void meetAgain();
  void leave() { memory_->leave(op_); }

  TorchSymmetricMemory& memory() const { return *memory_; }
  Rank rank() const { return memory_->get_rank(); }
  int worldSize() const { return memory_->get_world_size(); }

 private:
  struct Tensor {
    const char* what;
    TensorView view;
    std::int64_t byteOffset;
  };
  struct Number {
    const char* what;
    std::int64_t value;
  };
  std::uint64_t fingerprint() const;
  std::string text() const;

  const SymmetricHandle memory_;
  const char* const op_;
  const std::string_view detail_;
  std::array<Tensor, 1> tensors_;
  std::array<Number, 4> numbers_;
  std::size_t numTensors_ = 0;
  std::size_t numNumbers_ = 0;
  std::string error_;
};

// Requires that two tensors share no elements: one is written while other ranks still read the other.
void requireApart(const TensorView& written, const SymmetricOperand& read, const char* what);
void requireContiguous(const at::Tensor& tensor, const char* what);

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
