// Symmetric memory: a block that all ranks of a group make together, of equal size, and that each rank can read and write on every other
// one: by addresses on one host, by requests between hosts. The words in it are for signals and atomics. Any thread; lives as long as
// anybody holds it, also when the group is gone.
//
// Memory goes back to its rank's heap when all ranks that hold the block have dropped it, whenever that is; nobody waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/status.h"
#include "shardwire/tensor_view.h"
#include "shardwire/types.h"

namespace shardwire {

enum class Comparison : std::uint8_t { kEq = 0, kNe = 1, kGt = 2, kGe = 3, kLt = 4, kLe = 5 };
inline constexpr int kNumComparisons = 6;

// Atomic operations on one element: kCompareSwap stores the operand where what is expected is there; kAdd and on combine it with what is.
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

// Elements of a part: their first's place in bytes, strides in elements, none negative.
struct PartView {
  std::size_t offset = 0;
  DType dtype = DType::kUInt8;
  Dims shape;
  Dims strides;
};

// How a one-sided call ends. keepAlive: what is held until the call is over, which may be later than it returns (Ctrl-C, isNonBlocking).
struct OneSidedCall {
  std::shared_ptr<void> keepAlive = nullptr;
  bool isNonBlocking = false;  // between hosts it returns at once, and quiet() ends it: until then its tensors must be left alone
};

// What a rank asks for when a block is made.
struct SymmetricRequest {
  std::size_t bytes = 0;
  std::string text;                    // "float32[4, 5]": must be equal on all ranks
  std::string localError;              // not empty: this rank cannot ask, for this reason, which every rank gets
  bool isZeroed = false;               // before anybody can write to it
  std::vector<std::int64_t> jobRanks;  // the job's rank of each member, where somebody will ask for it
  int numChannels = 8;                 // of barriers: equal on all ranks
  bool needsAll = false;               // an error on all ranks, kUnsupported, when any rank cannot reach any other's part
  // Pages of this process's heap that the peers are to reach as well (backend/symm/heap_pages.h), as many bytes on all ranks. Several
  // blocks, of several groups, may bring the same ones. Null: none.
  std::shared_ptr<void> attached = nullptr;
  std::size_t attachedBytes = 0;
};

class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  virtual Rank rank() const = 0;
  virtual int worldSize() const = 0;
  virtual std::size_t bytes() const = 0;
  // The same on all ranks, and no other block's of the group.
  virtual std::uint64_t number() const = 0;
  // The block of `peer` (or of this rank) as it is addressed here; null when it cannot be: whyNot(). Then wake() of it, steps and orders
  // over it are none of this rank's.
  virtual std::byte* address(Rank peer) const = 0;
  virtual const std::string& whyNot(Rank peer) const = 0;
  bool reachesAll() const { return reachesAll_; }
  // The pages that `peer` attached, as they are addressed here; null when it has none or cannot be reached.
  virtual std::byte* attached(Rank peer) const = 0;
  // As the request said.
  virtual const std::vector<std::int64_t>& jobRanks() const = 0;

  // One-sided, on any peer's part or this rank's own; the peer's program takes no part. Where the part can be addressed each is done when
  // it returns. Else requests travel to the peer and are done there, those of this rank in the order in which they were called: put() is
  // over for its caller when the bytes are on their way, and quiet() says that they are there. kInvalidArgument, kTypeError for what does
  // not fit; kPeerFailed, kTimeout (the group's), and a failed group, with the rank that is gone or does not answer; kInterrupted. The
  // elements `to` of the part of `peer` become those of `from`, of the same dtype and shape.
  virtual Status put(Rank peer, const PartView& to, const TensorView& from, const OneSidedCall& call) = 0;
  // `to` becomes the elements `from` of the part of `peer`.
  virtual Status get(Rank peer, const PartView& from, const TensorView& to, const OneSidedCall& call) = 0;
  // On one element of the part of `peer`, sequentially consistent, and whoever waits for it is woken. Gives what was there before, where it
  // `fetches`; else 0, and does not wait for a peer on another host.
  virtual Result<std::uint64_t> atomic(Rank peer, std::size_t offset, DType dtype, WordOp op, std::uint64_t operand, std::uint64_t expected,
                                       bool fetches) = 0;
  // Until all that was requested in this block's group is done. Absent: the group's timeout.
  virtual Status quiet(std::optional<Duration> timeout) = 0;

  // After a store of a word into the block of `peer`: wakes who sleeps there until it changes.
  virtual void wake(Rank peer) = 0;
  // Waits until the integer at `offset` of this rank's own block compares as asked with `value` (its two's complement bits); gives what it
  // was then. `sources`: the ranks of whom one is to store it; empty: any. kPeerFailed, and a failed group, when one of them is gone;
  // kTimeout (absent: the group's) leaves the group usable; kInterrupted.
  virtual Result<std::uint64_t> waitUntil(std::size_t offset, DType dtype, Comparison comparison, std::uint64_t value,
                                          std::optional<Duration> timeout, std::span<const Rank> sources) = 0;
  // One step of a signal between two ranks, over the 32-bit word at `offset` of the part of `owner`: waits until it is `from` and makes it
  // `to`, atomically, and wakes `other`, whose step comes before or after this one. `what` is for errors: "put_signal". kPeerFailed, and a
  // failed group, when `other` is gone; kTimeout (absent: the group's) leaves the group usable; kUnsupported; kInterrupted.
  virtual Status stepWord(std::string_view what, Rank owner, std::size_t offset, std::uint32_t from, std::uint32_t to, Rank other,
                          std::optional<Duration> timeout) = 0;
  // Barriers of different channels, of the request's many, do not mix.
  virtual int numChannels() const = 0;
  // Until all ranks have come; what each stored before is visible to all after. A timeout fails the group and names who did not come.
  // kUnsupported, at once and on all ranks of this host alike, when not all ranks can be reached.
  // givesWay: kMismatch, and the group stays usable, when a rank that did not come makes symmetric memory instead. It waits for this rank
  // there, and the channel is not to be used any more. In groups of more than 16 ranks that may end by the timeout instead.
  virtual Status barrier(int channel, std::optional<Duration> timeout, bool givesWay = false) = 0;
  // Makes a section of this rank exclude those of all others of its host until leaveOrder(), whatever ranks each stores to: stores to many
  // ranks come in one order everywhere.
  virtual Status enterOrder() = 0;
  virtual void leaveOrder() = 0;
  // Collective: the block is not to be used any more. Its memory stays as long as somebody holds it.
  virtual Status free(std::optional<Duration> timeout) = 0;
  virtual bool isFreed() const = 0;

 protected:
  bool reachesAll_ = false;
};

}  // namespace shardwire
