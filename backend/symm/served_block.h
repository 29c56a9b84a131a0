// This rank's part of a block, as used by ranks that do not share memory. Requests are checked against the part's size
// here, and done by the thread that polls the group, under the engine's lock. Atomic operations use word_ops.h, like
// the operations of ranks on this host, so both kinds are atomic together.
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
  // seq_cst: after all requests of the peer (see BlockWords::dropped).
  void dropped(Rank peer) override { words_.dropped(peer).store(1, std::memory_order_seq_cst); }

 private:
  bool holds(const PartBox& box) const;
  Status outside(const char* what, std::uint64_t block) const;

  std::byte* const bytes_;
  const std::size_t size_;
  const BlockWords words_;
};

}  // namespace shardwire::internal
