// Symmetric memory: a block that all ranks of a group make together. All parts have equal size, and each rank can read
// and write every other rank's part: by addresses on one host, by requests between hosts. Words in the block serve for
// signals and atomics. Any thread. A block lives as long as a reference exists, even after the group has ended.
//
// The memory returns to its rank's heap when all ranks of the block have released the block, whenever that happens; no
// call waits for the release.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/tensor_view.h"
#include "shardwire/types.h"

namespace shardwire {

enum class Comparison : std::uint8_t { kEq = 0, kNe = 1, kGt = 2, kGe = 3, kLt = 4, kLe = 5 };
inline constexpr int kNumComparisons = 6;

// Atomic operations on one element. kCompareSwap stores the operand if the element has the expected value. kAdd and the
// following operations combine the operand with the element.
enum class WordOp : std::uint8_t {
  kFetch = 0,
  kSet = 1,
  kSwap = 2,
  kCompareSwap = 3,
  kAdd = 4,
  kMul = 5,
  kMin = 6,
  kMax = 7,
  kAnd = 8,
  kOr = 9,
  kXor = 10,
};
inline constexpr int kNumWordOps = 11;

// Elements of a part: the offset of the first element in bytes, and strides in elements, none negative.
struct PartView {
  std::size_t offset = 0;
  DType dtype = DType::kUInt8;
  Dims shape;
  Dims strides;
};

// How a one-sided call ends. keepAlive is held until the call has ended, which may be after the function returned
// (Ctrl-C, isNonBlocking).
struct OneSidedCall {
  std::shared_ptr<void> keepAlive = nullptr;
  bool isNonBlocking =
      false;  // between hosts the call returns at once; its tensors must not be touched until quiet() returns
};

// The request of one rank when a block is made.
struct SymmetricRequest {
  std::size_t bytes = 0;
  std::string text;                    // "float32[4, 5]": must be equal on all ranks
  std::string localError;              // not empty: this rank cannot ask, for this reason, which every rank gets
  bool isZeroed = false;               // before any rank can write to the block
  std::vector<std::int64_t> jobRanks;  // the job's rank of each member, where these will be asked for
  int numChannels = 8;                 // of barriers: equal on all ranks
  bool needsAll = false;  // an error on all ranks, kUnsupported, when any rank cannot reach any other's part
  // Pages of this process's heap that the peers can reach too (backend/symm/heap_pages.h), equally many bytes on all
  // ranks. Several blocks, of several groups, may attach the same pages. Null: none.
  std::shared_ptr<void> attached = nullptr;
  std::size_t attachedBytes = 0;
};

class SHARDWIRE_EXPORT SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  virtual Rank rank() const = 0;
  virtual int worldSize() const = 0;
  virtual std::size_t bytes() const = 0;
  // The same on all ranks, and no other block's of the group.
  virtual std::uint64_t number() const = 0;
  // The block of `peer` (or of this rank) as an address of this process; null when the block cannot be addressed: see
  // whyNot(). Then this rank must not call wake(), steps or orders for that block.
  virtual std::byte* address(Rank peer) const = 0;
  virtual const std::string& whyNot(Rank peer) const = 0;
  // Whether each rank can address each part: the same on all ranks.
  bool reachesAll() const { return reachesAll_; }
  // The pages attached by `peer`, as an address of this process; null when `peer` attached none or cannot be reached.
  virtual std::byte* attached(Rank peer) const = 0;
  // As the request said.
  virtual const std::vector<std::int64_t>& jobRanks() const = 0;

  // One-sided, on any peer's part or this rank's own part; the peer's program takes no part. Where the part can be
  // addressed, each call is complete on return. Otherwise requests travel to the peer and are done there, in the order
  // in which this rank made the calls: put() returns when the bytes are on their way, and quiet() returns when the
  // bytes have arrived. kInvalidArgument and kTypeError for arguments that do not fit; kPeerFailed or kTimeout (the
  // group's), and a failed group, naming the rank that died or does not answer; kInterrupted. put() sets the elements
  // `to` of the part of `peer` to the elements `from`, of the same dtype and shape.
  virtual Status put(Rank peer, const PartView& to, const TensorView& from, const OneSidedCall& call) = 0;
  // `to` becomes the elements `from` of the part of `peer`.
  virtual Status get(Rank peer, const PartView& from, const TensorView& to, const OneSidedCall& call) = 0;
  // On one element of the part of `peer`, sequentially consistent. Wakes the waiters of the element. Returns the
  // earlier value if `fetches`; else 0, without waiting for a peer on another host.
  virtual Result<std::uint64_t> atomic(Rank peer, std::size_t offset, DType dtype, WordOp op, std::uint64_t operand,
                                       std::uint64_t expected, bool fetches) = 0;
  // Waits until all requests of this block's group are done. Absent: the group's timeout.
  virtual Status quiet(std::optional<Duration> timeout) = 0;

  // Called after a store of a word into the block of `peer`: wakes the threads that sleep there until the word changes.
  virtual void wake(Rank peer) = 0;
  // Waits until the integer at `offset` of this rank's own block compares as asked with `value` (two's complement
  // bits). Returns the integer at that moment. `sources`: the ranks that may store the integer; empty: any.
  // kPeerFailed, and a failed group, when one of `sources` is dead; kTimeout (absent: the group's) leaves the group
  // usable; kInterrupted.
  virtual Result<std::uint64_t> waitUntil(std::size_t offset, DType dtype, Comparison comparison, std::uint64_t value,
                                          std::optional<Duration> timeout, std::span<const Rank> sources) = 0;
  // One step of a signal between two ranks, over the 32-bit word at `offset` of the part of `owner`: waits until the
  // word is `from`, sets the word to `to`, atomically, and wakes `other`, whose step comes before or after this step.
  // `what` is for errors: "put_signal". kPeerFailed, and a failed group, when `other` is dead; kTimeout (absent: the
  // group's) leaves the group usable; kUnsupported; kInterrupted.
  virtual Status stepWord(std::string_view what, Rank owner, std::size_t offset, std::uint32_t from, std::uint32_t to,
                          Rank other, std::optional<Duration> timeout) = 0;
  // Barriers of different channels, of the request's many, do not mix.
  virtual int numChannels() const = 0;
  // Waits until all ranks have come. Stores made by any rank before the barrier are visible to all ranks after it. A
  // timeout fails the group and names the missing ranks. kUnsupported, at once and on all ranks alike, without
  // reachesAll(). givesWay: kMismatch, and the group stays usable, when a missing rank makes symmetric memory instead.
  // That rank waits there for this rank, and the channel must not be used again. In groups of more than 16 ranks the
  // call may end by the timeout instead.
  virtual Status barrier(int channel, std::optional<Duration> timeout, bool givesWay = false) = 0;
  // Makes a section of this rank exclude the sections of all other ranks of the host until leaveOrder(), for any
  // destination ranks. So stores to many ranks have one order everywhere. kUnsupported, on all ranks of the host, where
  // no part can be addressed by all of them.
  virtual Status enterOrder() = 0;
  virtual void leaveOrder() = 0;
  // Collective: the block must not be used afterwards. The memory stays as long as a reference exists. localError: an
  // error of this rank's caller, which all ranks return; then the block stays usable.
  virtual Status free(std::optional<Duration> timeout, const std::string& localError = {}) = 0;
  virtual bool isFreed() const = 0;

 protected:
  bool reachesAll_ = false;
};

}  // namespace shardwire
