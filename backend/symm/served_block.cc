#include "backend/symm/served_block.h"

#include <fmt/format.h>

#include "backend/symm/word_ops.h"
#include "ops/boxes/copy_box.h"

namespace shardwire::internal {

// No sum overflows: PartTag::elementBytesIn().
bool ServedBlock::holds(const PartBox& box) const {
  const std::size_t extent = extentBytes({bytes_, box.byteStrides}, box.shape, box.elemBytes);
  return box.offset <= size_ && extent <= size_ - box.offset;
}

Status ServedBlock::outside(const char* what, std::uint64_t block) const {
  return {StatusCode::kInternal,
          fmt::format("a {} of a peer goes outside of the {} bytes of symmetric memory #{}: a bug there", what, size_,
                      block)};
}

Status ServedBlock::put(const PartBox& box, Payload elements) {
  if (!holds(box)) {
    return outside("put", box.block);
  }
  unpackBox({bytes_ + box.offset, box.byteStrides}, elements.data(), box.shape, box.elemBytes);
  words_.wakeSleepers();
  return Status::ok();
}

Status ServedBlock::get(const PartBox& box, std::byte* elements) {
  if (!holds(box)) {
    return outside("get", box.block);
  }
  packBox(elements, {bytes_ + box.offset, box.byteStrides}, box.shape, box.elemBytes);
  return Status::ok();
}

Result<std::uint64_t> ServedBlock::apply(const WordFrame& word) {
  const auto op = static_cast<WordOp>(word.op);
  const auto dtype = static_cast<DType>(word.dtype);
  if (word.op >= static_cast<std::uint32_t>(kNumWordOps) || word.dtype >= static_cast<std::uint32_t>(kNumDTypes) ||
      !supportsWordOp(dtype, op)) {
    return Status{StatusCode::kInternal,
                  fmt::format("a peer asked for atomic operation {} on type {}: a bug there", word.op, word.dtype)};
  }
  const std::size_t bytes = elementBytes(dtype);
  if (word.offset > size_ || bytes > size_ - word.offset || word.offset % bytes != 0) {
    return outside("atomic", word.block);
  }
  const std::uint64_t before = applyWord(bytes_ + word.offset, dtype, op, word.operand, word.expected);
  if (op != WordOp::kFetch) {
    words_.wakeSleepers();
  }
  return before;
}

}  // namespace shardwire::internal
