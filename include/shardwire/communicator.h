// A group of ranks that exchange tensors: compileOp, and collectives on plain views. One per group and rank. All
// methods may be called from any thread; the ranks of a group must issue operations (send and recv apart) in the same
// order.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwire/compiled_op.h"
#include "shardwire/export.h"
#include "shardwire/op_spec.h"
#include "shardwire/options.h"
#include "shardwire/staging.h"
#include "shardwire/store.h"
#include "shardwire/symmetric_memory.h"
#include "shardwire/tensor_view.h"
#include "shardwire/work.h"

namespace shardwire {

inline constexpr Rank kAnySource = -1;

// The arguments of every collective besides the tensors.
struct CallOptions {
  std::optional<Duration> timeout;            // absent: the group's
  std::shared_ptr<void> keepAlive = nullptr;  // held until the operation is done
  Staging* staging = nullptr;                 // of tensors that are host copies; lives as long as keepAlive
  // Only for send and recv. When true, a message without an answer at the timeout ends alone with kTimeout, and the
  // group stays usable; bytes that the peer sends later for this message are dropped. A send that was already announced
  // to the peer stays pending, in case the peer receives it, but no longer depends on the peer.
  bool lapses = false;
};

// One rank's part of Communicator::exchange().
struct ExchangeRequest {
  std::string what;    // the call: comes first in the errors, and is equal on all ranks
  std::string text{};  // arguments that are equal on all ranks
  std::string blob{};
  Status error{};  // not ok: why this rank has neither text nor blob
};

class SHARDWIRE_EXPORT Communicator {
 public:
  virtual ~Communicator() = default;

  // Meets the other ranks through `store` and connects to each rank. Blocks up to `options.timeout`; the error names
  // the ranks that did not arrive or could not be reached, with the reason. `groupName` is for messages and must be
  // equal on all ranks.
  static Result<std::unique_ptr<Communicator>> create(Store& store, Rank rank, int worldSize, const Options& options,
                                                      std::string groupName = "");

  virtual Rank rank() const = 0;
  virtual int worldSize() const = 0;
  virtual const std::string& groupName() const = 0;
  virtual Duration timeout() const = 0;
  virtual void setTimeout(Duration timeout) = 0;
  // The job's rank of each member, one per rank, for reports about this group (status, flight recorder); 0, 1, 2...
  // until set.
  virtual void setGlobalRanks(std::vector<std::int64_t> ranks) = 0;
  // Operations issued so far on this rank.
  virtual std::uint64_t sequenceNumber() const = 0;
  // Ok while the group can be used. Otherwise the reason, which every later operation reports too: a peer that failed,
  // a timeout, a disagreement of the ranks, abort().
  virtual Status status() const = 0;
  // Not ok: the peer's process died, or ended its part of the group, although no operation needs the peer. Ok where
  // this is not known: the peer has no link yet, or the group itself has failed. Never waits.
  virtual Status peerStatus(Rank peer) const = 0;
  // One line per peer: transport and data path, and why not a faster one. The last line names the kernels in use, and
  // how moves larger than the caches are stored.
  virtual std::string describeTransports() const = 0;
  // The table from which collectives choose their algorithm on this group: bytes, algorithm, reason.
  virtual std::string describeCollectives() const = 0;

  // Collective, blocking. Every rank gets the same error when the ranks' specs do not fit together, and, with
  // WhoPlans::kRank0, whatever rank 0 cannot do.
  virtual Result<std::shared_ptr<CompiledOp>> compileOp(const LocalSpec& spec,
                                                        std::optional<Duration> timeout = std::nullopt) = 0;
  // Collective, blocking: makes an op that was planned without a group (shardwire/offline.h) runnable in this group.
  // Each rank gives the plan of that rank, and all plans belong to one operation; otherwise every rank gets the same
  // error.
  virtual Result<std::shared_ptr<CompiledOp>> attach(const CompiledOp& planned,
                                                     std::optional<Duration> timeout = std::nullopt) = 0;

  // Collectives. Shapes, dtypes and options must be equal on all ranks; results are the same bits on every rank and in
  // every run.
  virtual Result<WorkPtr> barrier(CallOptions call = {}) = 0;
  virtual Result<WorkPtr> broadcast(const TensorView& tensor, Rank root, CallOptions call = {}) = 0;
  // In place: `tensor` is input and output.
  virtual Result<WorkPtr> allReduce(const TensorView& tensor, ReduceOp op, CallOptions call = {}) = 0;
  virtual Result<WorkPtr> reduce(const TensorView& tensor, Rank root, ReduceOp op, CallOptions call = {}) = 0;
  // outputs[r] receives rank r's input; all ranks' inputs have input's shape.
  virtual Result<WorkPtr> allGather(const TensorView& input, std::span<const TensorView> outputs,
                                    CallOptions call = {}) = 0;
  // outputs is empty on all ranks but root.
  virtual Result<WorkPtr> gather(const TensorView& input, std::span<const TensorView> outputs, Rank root,
                                 CallOptions call = {}) = 0;
  // inputs is empty on all ranks but root.
  virtual Result<WorkPtr> scatter(const TensorView& output, std::span<const TensorView> inputs, Rank root,
                                  CallOptions call = {}) = 0;
  // output = reduction over all ranks r of inputs[rank()] of r.
  virtual Result<WorkPtr> reduceScatter(const TensorView& output, std::span<const TensorView> inputs, ReduceOp op,
                                        CallOptions call = {}) = 0;
  // inputs[r] goes to rank r, outputs[r] comes from rank r; sizes may differ per pair, and must agree between the two
  // ends.
  virtual Result<WorkPtr> allToAll(std::span<const TensorView> outputs, std::span<const TensorView> inputs,
                                   CallOptions call = {}) = 0;
  // Point to point. Matched by (peer, tag) in order; not ordered with the collectives.
  virtual Result<WorkPtr> send(const TensorView& tensor, Rank peer, int tag, CallOptions call = {}) = 0;
  virtual Result<WorkPtr> recv(const TensorView& tensor, Rank peer, int tag,
                               CallOptions call = {}) = 0;  // peer may be kAnySource

  // Collective, blocking: makes a block of symmetric memory. Every rank gets the same error: kMismatch where the ranks
  // ask for different blocks.
  virtual Result<std::shared_ptr<SymmetricMemory>> makeSymmetric(const SymmetricRequest& request,
                                                                 std::optional<Duration> timeout = std::nullopt) = 0;
  // Collective, blocking: a barrier over words of symmetric memory where all ranks reach each other's memory, else the
  // ordinary barrier. Bytes that a rank stored earlier to a peer's memory, or requested of a peer in any group of the
  // process, are visible there after the barrier. Where such a request failed, the ranks still meet, and then this rank
  // gets the request's error.
  virtual Status symmetricBarrier(std::optional<Duration> timeout = std::nullopt) = 0;
  // Collective, blocking: the blobs of all ranks, by rank. Otherwise the same Status on all ranks: kMismatch where the
  // calls or the texts differ, or the error of the lowest rank with an error. The group stays usable.
  virtual Result<std::vector<std::string>> exchange(const ExchangeRequest& mine,
                                                    std::optional<Duration> timeout = std::nullopt) = 0;

  // Fails every pending and later operation of this group on this rank at once with `reason`. Idempotent.
  virtual void abort(const std::string& reason) = 0;
  // Fails every pending and later operation of this group on all ranks, as MPIX_Comm_revoke does. The errors are
  // kAborted; on a rank where the group failed before, the first reason stays. Returns at once: the notice goes over
  // the links between the ranks, needs no store, and makes missing links. The first notice counts. An empty `notice` is
  // "rank 1 (pid 7 on host a) revoked the group"; a group that serves another group gives the other one's.
  virtual void revoke(const std::string& notice = "") = 0;
  // The notice, as soon as the notice is here; empty: no rank revoked the group. Looks for new notices.
  virtual std::string revocation() const = 0;
  // Does the destructor's work now, even while other owners hold the object: ends the group on this rank, and notifies
  // the other ranks only that this rank left. Waiting calls of other threads fail with kAborted, and so do later calls.
  // Idempotent. A call inside a callback of an operation returns at once while another call ends the group.
  virtual void end() = 0;
};

}  // namespace shardwire
