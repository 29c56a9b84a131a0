// One rank's end of a symmetric block: the rank's own part in its heap, and the mappings of its peers' parts. Made by
// makeSymmetric() and destroyed with the last owner. The destructor notifies each peer that this rank released the
// peer's part, and keeps the own part in the deferred release list (deferred_release.h) until all peers have released
// it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/owner_process.h"
#include "backend/exec/engine.h"
#include "backend/symm/block_words.h"
#include "ops/boxes/strided_runs.h"
#include "shardwire/symmetric_memory.h"

namespace shardwire::internal {

// The knowledge of a rank about one part of the block.
struct BlockPart {
  std::byte* bytes = nullptr;        // null: not addressable, for the reason whyNot; reached by requests
  std::shared_ptr<HeldMemory> held;  // null: this rank's own
  std::byte* attached = nullptr;     // null: not attached, or not addressable
  std::shared_ptr<HeldMemory> attachedHeld;
  std::string whyNot;
  bool holdsMine = false;             // that rank holds this rank's part
  bool asksMine = false;              // by requests
  std::shared_ptr<HeldMemory> watch;  // of a rank with this rank's part mapped whose part is not mapped here
};

// By rank and owner: whether the rank can address the owner's part. Equal on all ranks.
using AddressTable = std::vector<std::vector<bool>>;
// The lowest rank whose part all ranks of the host of `rank` can address; -1: there is none. Two ranks are of one host
// if one can address the other's part, or if both are of one host with a third rank.
Rank commonOwner(const AddressTable& table, Rank rank);

class SymmetricBlock final : public SymmetricMemory, public std::enable_shared_from_this<SymmetricBlock> {
 public:
  // `parts` by rank. Takes over the memory of the own part.
  SymmetricBlock(const std::shared_ptr<Engine>& engine, const SymmetricRequest& request, std::uint64_t number,
                 std::vector<BlockPart> parts, const AddressTable& table);
  ~SymmetricBlock() override;
  SymmetricBlock(const SymmetricBlock&) = delete;
  SymmetricBlock& operator=(const SymmetricBlock&) = delete;

  // Bytes to allocate for a part of `bytes`: a size that the heap serves from separate pages.
  static std::size_t partBytes(std::size_t bytes, int worldSize, int numChannels);
  static BlockWords wordsOf(std::byte* part, std::size_t bytes, int worldSize);

  Rank rank() const override { return rank_; }
  int worldSize() const override { return worldSize_; }
  std::size_t bytes() const override { return bytes_; }
  std::uint64_t number() const override { return number_; }
  std::byte* address(Rank peer) const override { return partOf(peer).bytes; }
  const std::string& whyNot(Rank peer) const override { return partOf(peer).whyNot; }
  std::byte* attached(Rank peer) const override { return partOf(peer).attached; }
  const std::vector<std::int64_t>& jobRanks() const override { return jobRanks_; }
  Status put(Rank peer, const PartView& to, const TensorView& from, const OneSidedCall& call) override;
  Status get(Rank peer, const PartView& from, const TensorView& to, const OneSidedCall& call) override;
  Result<std::uint64_t> atomic(Rank peer, std::size_t offset, DType dtype, WordOp op, std::uint64_t operand,
                               std::uint64_t expected, bool fetches) override;
  Status quiet(std::optional<Duration> timeout) override;
  int numChannels() const override { return static_cast<int>(barriers_.size()); }
  void wake(Rank peer) override;
  Result<std::uint64_t> waitUntil(std::size_t offset, DType dtype, Comparison comparison, std::uint64_t value,
                                  std::optional<Duration> timeout, std::span<const Rank> sources) override;
  Status stepWord(std::string_view what, Rank owner, std::size_t offset, std::uint32_t from, std::uint32_t to,
                  Rank other, std::optional<Duration> timeout) override;
  Status barrier(int channel, std::optional<Duration> timeout, bool givesWay) override;
  Status enterOrder() override;
  void leaveOrder() override;
  Status free(std::optional<Duration> timeout, const std::string& localError) override;
  bool isFreed() const override { return isFreed_.load(std::memory_order_relaxed); }

 private:
  // A wait for stores of peers.
  struct Wait {
    std::string what;                                          // "barrier of channel 0", for errors
    std::span<const Rank> needed;                              // the wait ends when one of these ranks is dead
    std::function<std::vector<Rank>()> stillNeeded = nullptr;  // the ranks of `needed` still needed now; null: all
    std::optional<Duration> timeout;
    bool isCollective = false;                   // a timeout fails the group
    std::function<std::string()> whoIsMissing;   // of a timeout
    std::function<Status()> whyLeave = nullptr;  // an error ends the wait; null: nothing else ends it
  };
  // isOver: stays true once true. describe: returns the Wait.
  template <typename IsOver, typename Describe>
  Status waitFor(IsOver isOver, const Describe& describe);
  template <typename IsOver>
  Status waitLong(Engine& engine, const Wait& wait, IsOver isOver);
  template <typename IsOver>
  void sleep(IsOver isOver, Deadline until);
  Status inVain(Engine& engine, const Wait& wait, const Status& why);
  Status late(Engine& engine, const Wait& wait, Duration timeout);
  // one-sided: symmetric_requests.cc
  Status checkBox(std::string_view what, Rank peer, const PartView& box, const TensorView& other) const;
  StridedBox boxIn(Rank peer, const PartView& box) const;
  template <typename Request, typename... Arguments>
  Status request(std::string_view what, Rank peer, const OneSidedCall& call, Arguments&&... arguments);
  Status ended() const;
  Status usable() const;
  BlockWords::Word& orderWord() const { return words(orderOwner_).orderedBy(); }
  std::string stateOf(std::span<const Rank> ranks) const;
  const BlockPart& partOf(Rank rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  BlockWords words(Rank rank) const { return wordsOf(partOf(rank).bytes, bytes_, worldSize()); }

  const OwnerProcess owner_;
  const std::weak_ptr<Engine>
      engine_;  // weak: the last reference may be released on a thread that Engine::shutdown() waits for
  const Rank rank_;
  const int worldSize_;
  const std::string groupLabel_;
  const std::size_t bytes_;
  const std::vector<std::int64_t> jobRanks_;
  const std::uint64_t number_;
  const std::vector<BlockPart> parts_;    // by rank
  const std::shared_ptr<void> attached_;  // of this rank
  const bool isAsked_;                    // this rank's part is, by requests
  const Rank orderOwner_;                 // its part has the word of the host's order; -1: there is no order
  std::vector<Rank> others_;
  const std::string name_;                            // "symmetric memory #3"
  std::vector<std::atomic<std::uint32_t>> barriers_;  // by channel: how many this rank came to; relaxed: a number alone
  std::atomic<bool> isFreed_{false};                  // relaxed: only says that calls are refused
};

}  // namespace shardwire::internal
