// Messages between a rank that holds queues and a rank that uses queues, over their link: a group of the two.
//
// A message is a frame of fixed size, then the bytes that do not fit into the frame: the head, and the parts. Small
// parts are in the frame. All bytes of a message after the frame have the tag of the request that the message belongs
// to, so requests never wait for each other. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwire/communicator.h"
#include "shardwire/export.h"

namespace shardwire::internal {

inline constexpr std::size_t kQueueFrameBytes = 2048;
inline constexpr Rank kHolderEnd = 0;  // ranks within a link
inline constexpr Rank kUserEnd = 1;
inline constexpr int kRequestsTag = 0;  // of the frames of requests

// Requests of a user, then answers of a holder. Python has the same numbers (queues/wire.py).
enum class QueueOp : std::uint8_t {
  kOpen = 1,
  kPut,
  kCommit,
  kRollback,
  kGet,
  kCancel,
  kTaken,
  kSize,
  kWait,
  kClose,
  kPing,
  kBye,
  kOk = 101,
  kNothing,   // empty, or full
  kOver,      // closed
  kMismatch,  // made differently; the head says how
  kFailed,    // the head is the reason
};

inline constexpr std::uint16_t kNotBlocking = 1;    // kGet, kPut, kCommit, kWait: answer at once
inline constexpr std::uint16_t kInTransaction = 2;  // kPut: not visible before kCommit; `value` is the transaction

// Bytes of an entry, kept by `owner`.
struct QueuePart {
  std::shared_ptr<void> owner;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
};

struct QueueMessage {
  QueueOp op = QueueOp::kOk;
  std::uint16_t flags = 0;
  std::uint32_t queue = 0;
  std::uint64_t request = 0;
  std::int64_t value = 0;
  std::string head;
  std::vector<std::uint64_t> partSizes;
  // Of a received message: the parts that were in the frame. Absent: the parts follow.
  std::optional<std::vector<QueuePart>> parts;
};

using QueueFrame = std::array<std::byte, kQueueFrameBytes>;

SHARDWIRE_EXPORT int tagOfRequest(std::uint64_t request);
// Memory for a part that stays in a queue: other ranks read long parts in place.
SHARDWIRE_EXPORT Result<QueuePart> newQueuePart(std::size_t size);
// Bytes of the head that follow the frame. kInvalidArgument for a frame of another version.
SHARDWIRE_EXPORT Result<std::size_t> headOutside(const QueueFrame& frame);
std::uint64_t requestOf(const QueueFrame& frame);
struct EncodedMessage {
  std::shared_ptr<QueueFrame> frame;
  std::shared_ptr<std::string> rest;  // the head, when it does not fit into the frame; else null
  bool areWithin = false;             // the parts are in the frame
};
EncodedMessage encodeMessage(const QueueMessage& message, const std::vector<QueuePart>& parts);
// `rest`: the head, if the head is outside of the frame. An error where the frame is no message.
SHARDWIRE_EXPORT Result<QueueMessage> decodeMessage(const QueueFrame& frame, std::string rest);
// Sends `message` with `parts`, whose owners are kept until the bytes are sent. `tag`: of the frame.
Status sendMessage(Communicator& link, Rank peer, int tag, const QueueMessage& message,
                   const std::vector<QueuePart>& parts);
// Receives `size` bytes, and then calls `then` (null: nothing), which must not wait.
Result<WorkPtr> receiveBytes(Communicator& link, Rank peer, int tag, const QueuePart& into,
                             std::function<void(const Status&)> then);

}  // namespace shardwire::internal
