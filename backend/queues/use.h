// A link on a rank that uses another rank's queues: sends requests, and receives the answer to each. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/queues/message.h"
#include "shardwire/export.h"

namespace shardwire::internal {

// One request, and the place of the answer.
class SHARDWIRE_EXPORT QueueCall {
 public:
  QueueCall(std::shared_ptr<Communicator> link, const QueueMessage& asked)
      : op(asked.op), queue(asked.queue), request(asked.request), link_(std::move(link)) {}

  // The receive of the answer's frame. Begins at the first call: a caller that looks for the answer only later, after
  // other work, is not woken by the answer, and the holder need not wake this process.
  Result<WorkPtr> work();
  // Only when the work is over. Bytes of the head that follow the frame.
  Result<std::size_t> headOutside() const { return internal::headOutside(*frame_); }
  Result<QueueMessage> message(std::string rest) const { return decodeMessage(*frame_, std::move(rest)); }

  const QueueOp op;
  const std::uint32_t queue;
  const std::uint64_t request;

 private:
  const std::shared_ptr<Communicator> link_;
  const std::shared_ptr<QueueFrame> frame_ = std::make_shared<QueueFrame>();
  Mutex mutex_;
  WorkPtr work_ SW_GUARDED_BY(mutex_);
};

class SHARDWIRE_EXPORT QueueUser {
 public:
  explicit QueueUser(std::shared_ptr<Communicator> link) : link_(std::move(link)) {}

  // Sends a request; its number is set here.
  Result<std::shared_ptr<QueueCall>> ask(QueueMessage message, const std::vector<QueuePart>& parts);
  // Sends a message without an answer, about an earlier request.
  Status note(const QueueMessage& message);

 private:
  const std::shared_ptr<Communicator> link_;
  std::atomic<std::uint64_t> next_{1};  // relaxed: only counts
};

}  // namespace shardwire::internal
