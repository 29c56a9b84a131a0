// The name of an operation in messages for people: "all_reduce(float32[1024], sum)". The text of a collective is made
// once and shared by all runs. A message between two ranks keeps its facts, and the text is made for a reader: making
// the text would cost as much as sending a short message. Any thread, as a value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shardwire/types.h"

namespace shardwire::internal {

class Description {
 public:
  Description() = default;
  // Implicit: every operation but a message has a text.
  Description(std::shared_ptr<const std::string> text) : text_(std::move(text)) {}
  // send(), or recv() from `peer` (-1: from any rank).
  static Description ofSend(DType dtype, std::int64_t numElems, Rank peer, int tag) {
    return {Direction::kSend, dtype, numElems, peer, tag};
  }
  static Description ofRecv(DType dtype, std::int64_t numElems, Rank peer, int tag) {
    return {Direction::kRecv, dtype, numElems, peer, tag};
  }

  friend bool operator==(const Description&, const Description&) = default;
  bool isEmpty() const { return text_ == nullptr && direction_ == Direction::kNone; }
  // "send(float32[4], to rank 1, tag 0)". Precondition: not empty.
  std::string text() const;

 private:
  enum class Direction : std::uint8_t { kNone, kSend, kRecv };
  Description(Direction direction, DType dtype, std::int64_t numElems, Rank peer, int tag)
      : numElems_(numElems), peer_(peer), tag_(tag), dtype_(dtype), direction_(direction) {}

  std::shared_ptr<const std::string> text_;
  // Of a message.
  std::int64_t numElems_ = 0;
  Rank peer_ = -1;
  int tag_ = 0;
  DType dtype_ = DType::kFloat32;
  Direction direction_ = Direction::kNone;
};

}  // namespace shardwire::internal
