// This rank's part of a block, as ranks that do not share memory use it: their requests are checked against its size here, and done by
// whichever thread polls the group, under the engine's lock. Atomic operations are those of word_ops.h, so that they and the ones of ranks
// of this host agree.
#pragma once

#include "backend/exec/one_sided.h"
#include "backend/symm/block_words.h"

namespace shardwire::internal {

class ServedBlock final : public ServedPart {
 public:
  // The memory stays until the part is withdrawn.
  ServedBlock(std::byte* bytes, std::size_t size, BlockWords words) : bytes_(bytes), size_(size), words_(words) {}
  Status put(const PartBox& box, Payload elements) override;
  Status get(const PartBox& box, std::byte* elements) override;
  Result<std::uint64_t> apply(const WordFrame& word) override;
  // seq_cst: after all that was done for the peer (see BlockWords::dropped).
  void dropped(Rank peer) override { words_.dropped(peer).store(1, std::memory_order_seq_cst); }

 private:
  bool holds(const PartBox& box) const;
  Status outside(const char* what, std::uint64_t block) const;

  std::byte* const bytes_;
  const std::size_t size_;
  const BlockWords words_;
};

}  // namespace shardwire::internal
