// Blocks of boxes that fit L1: what is computed with goes through contiguous buffers where it does not lie so. Plain
// functions over the caller's memory; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/boxes/joint_loops.h"

namespace shardwire::internal {

// The part of a box that is worked on at once: cols of the innermost loop x rows of the next one.
struct Block {
  std::int64_t cols = 1;
  std::int64_t rows = 1;
};

// Steps of one tensor along the two innermost loops, in bytes.
struct Steps {
  std::int64_t col = 0;
  std::int64_t row = 0;
};

template <typename T>
inline void copyBlockOf(std::byte* dst, Steps dstSteps, const std::byte* src, Steps srcSteps, Block block) {
  for (std::int64_t row = 0; row < block.rows; ++row) {
    for (std::int64_t col = 0; col < block.cols; ++col) {
      std::memcpy(dst + row * dstSteps.row + col * dstSteps.col, src + row * srcSteps.row + col * srcSteps.col,
                  sizeof(T));
    }
  }
}

inline void copyBlock(std::byte* dst, Steps dstSteps, const std::byte* src, Steps srcSteps, Block block,
                      std::int64_t elemBytes) {
  if (dstSteps.col == elemBytes && srcSteps.col == elemBytes) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      std::memcpy(dst + row * dstSteps.row, src + row * srcSteps.row, static_cast<std::size_t>(block.cols * elemBytes));
    }
    return;
  }
  switch (elemBytes) {
    case 1:
      return copyBlockOf<std::uint8_t>(dst, dstSteps, src, srcSteps, block);
    case 2:
      return copyBlockOf<std::uint16_t>(dst, dstSteps, src, srcSteps, block);
    case 4:
      return copyBlockOf<std::uint32_t>(dst, dstSteps, src, srcSteps, block);
    case 8:
      return copyBlockOf<std::uint64_t>(dst, dstSteps, src, srcSteps, block);
    default:
      return copyBlockOf<Word16>(dst, dstSteps, src, srcSteps, block);
  }
}

// Whether the elements of a block follow each other without gaps.
inline bool isFlat(Steps steps, Block block, std::int64_t elemBytes) {
  return (steps.col == elemBytes || block.cols == 1) && (block.rows == 1 || steps.row == block.cols * elemBytes);
}

}  // namespace shardwire::internal
