// The requests of one-sided access (one_sided.h). `keepAlive` of each request holds the block and the tensors until the
// end. Under the engine's lock, except for reading the answer of a finished request.
#pragma once

#include <optional>
#include <vector>

#include "backend/exec/one_sided.h"

namespace shardwire::internal {

// Over when all bytes are in frames.
class PutRequest final : public OneSidedRequest {
 public:
  // No extent of the box is 0. `from` has the shape of the box.
  PutRequest(Rank peer, const PartBox& to, const StridedBox& from);
  bool send(OneSided& all, Rank peer) override;
  bool take(Payload, std::uint32_t) override { return false; }
  bool finished() const override { return isSent_; }
  bool needs(Rank peer) const override { return peer == peer_ && !isSent_; }
  std::string waitingFor() const override;
  void addTraffic(std::span<EdgeBytes> byPeer) const override;

 private:
  const Rank peer_;
  const PartBox to_;
  const StridedBox from_;
  std::optional<SegmentCursor> next_;  // cut once the length of frames is known
  bool isSent_ = false;
};

// Over when all elements are here.
class GetRequest final : public OneSidedRequest {
 public:
  GetRequest(Rank peer, const PartBox& from, const StridedBox& to);
  bool send(OneSided& all, Rank peer) override;
  bool take(Payload elements, std::uint32_t part) override;
  bool finished() const override { return isSent_ && numTaken_ == parts_.size(); }
  bool needs(Rank peer) const override { return peer == peer_ && !finished(); }
  std::string waitingFor() const override;
  void addTraffic(std::span<EdgeBytes> byPeer) const override;

 private:
  struct Part {
    Dims offset;
    Dims shape;
  };
  const Rank peer_;
  const PartBox from_;
  const StridedBox to_;
  std::optional<SegmentCursor> next_;
  std::vector<Part> parts_;  // requested so far
  std::size_t numTaken_ = 0;
  bool isSent_ = false;
};

class WordRequest final : public OneSidedRequest {
 public:
  // isSilent: the request is over when sent.
  WordRequest(Rank peer, const WordFrame& word, bool isSilent) : peer_(peer), word_(word), isSilent_(isSilent) {}
  bool send(OneSided& all, Rank peer) override;
  bool take(Payload elements, std::uint32_t part) override;
  bool finished() const override { return isSent_ && (isSilent_ || isAnswered_); }
  bool needs(Rank peer) const override { return peer == peer_ && !finished(); }
  std::string waitingFor() const override;
  // The value before the operation.
  std::uint64_t before() const { return before_; }

 private:
  const Rank peer_;
  WordFrame word_;
  const bool isSilent_;
  bool isSent_ = false;
  bool isAnswered_ = false;
  std::uint64_t before_ = 0;
};

// Over when all peers have confirmed all earlier requests.
class QuietRequest final : public OneSidedRequest {
 public:
  explicit QuietRequest(std::vector<Rank> peers) : open_(std::move(peers)) {}
  bool send(OneSided& all, Rank peer) override;
  bool take(Payload elements, std::uint32_t part) override;
  bool finished() const override { return open_.empty(); }
  bool needs(Rank peer) const override;
  std::string waitingFor() const override;

 private:
  std::vector<Rank> open_;
};

}  // namespace shardwire::internal
