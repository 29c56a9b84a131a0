// Every rank gives one blob of bytes and gets all ranks' blobs: used for exchanging specs, and for errors that only one
// rank finds. Owned through shared_ptr by caller and engine; stepped under the engine's lock.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/exec/blob_parts.h"
#include "ops/collectives/rank_tree.h"

namespace shardwire::internal {

class Exchange : public BlobParts {
 public:
  // No `mine`: this rank takes part from now on, and gives its blob later.
  Exchange(std::optional<std::string> mine, int worldSize, Rank rank);
  // To be called once, and under the engine's lock. An exchange that is over ignores the blob.
  void give(std::string mine);

  bool step(std::vector<bool>& blockedBulk) override;
  Status onBlob(Rank from, const Received<BlobFrame>& frame) override;
  Status onAck(Rank from, const Received<AckFrame>& frame) override;
  Status onCancel(Rank from, const Received<CancelFrame>& frame) override;
  bool finished() const override { return isGiven_ && numOpenIns_ == 0 && numOpenOuts_ == 0 && hasAcked_; }
  bool needs(Rank peer) const override;
  std::string waitingFor() const override;

  // By rank, this rank's included. Valid once done without error.
  const std::vector<std::string>& blobs() const { return blobs_; }
  // The same, given away.
  std::vector<std::string> takeBlobs() { return std::move(blobs_); }
  // In a large group rank 0 may keep all blobs to itself: rank 0 calls this function with all blobs, and sends a
  // returned answer to all ranks in place of the blobs. Absent: every rank gets the blobs. The function must be present
  // on all ranks or on none.
  std::function<std::optional<std::string>(std::span<const std::string> blobs)> keepsForItself;
  // Valid once done without error. Not absent: rank 0 kept the blobs, and blobs() has only this rank's own blob, except
  // on rank 0.
  const std::optional<std::string>& answer() const { return answer_; }

 private:
  bool isByTree() const { return tree_.has_value(); }
  bool isTable(const In& in) const { return in.bytes == &table_; }
  bool isTable(const Out& out) const { return out.bytes == &table_; }
  // The peer's place in the list; the list's length when there is none.
  std::size_t inOf(Rank peer) const;
  std::size_t outOf(Rank peer) const;
  bool sendTo(Out& out);
  bool acknowledge(RunContext& context);
  void writeTableIfComplete();
  Status readTable(Rank from);
  void passOn(RunContext& context, Rank from, Rank origin, const std::string& why) const;
  std::string missing() const;

  const Rank rank_;
  std::optional<RankTree> tree_;  // in large groups
  Rank parent_ = -1;              // in the tree; -1: none
  std::vector<std::string> blobs_;
  std::string table_;  // all blobs as sent down the tree: the length of each as a varint, then the bytes; see TableOf
  std::uint64_t tableBytes_ = 0;  // of the whole table, once the length is known
  bool isTableKnown_ = false;
  std::optional<std::string> answer_;
  bool isGiven_ = false;   // this rank's own blob is here
  std::vector<In> ins_;    // by peer: the blob of the peer, or (from the parent) the table
  std::vector<Out> outs_;  // by peer: this rank's blob, or (to a child) the received beginning of the table
  std::size_t numOpenIns_ = 0;
  std::size_t numOpenOuts_ = 0;
  bool hasAcked_ = true;  // the parent knows that this rank, and all ranks below, have the table
  bool hasStepped_ = false;
};

}  // namespace shardwire::internal
