#include "backend/queues/use.h"

namespace shardwire::internal {

Result<WorkPtr> QueueCall::work() {
  const MutexLock lock(mutex_);
  if (work_ == nullptr) {
    const QueuePart frame{frame_, frame_->data(), frame_->size()};
    Result<WorkPtr> begun = receiveBytes(*link_, kHolderEnd, tagOfRequest(request), frame, nullptr);
    SW_RETURN_IF_ERROR(begun.status());
    work_ = std::move(begun).value();
  }
  return work_;
}

Result<std::shared_ptr<QueueCall>> QueueUser::ask(QueueMessage message, const std::vector<QueuePart>& parts) {
  message.request = next_.fetch_add(1, std::memory_order_relaxed);
  SW_RETURN_IF_ERROR(sendMessage(*link_, kHolderEnd, kRequestsTag, message, parts));
  return std::make_shared<QueueCall>(link_, message);
}

Status QueueUser::note(const QueueMessage& message) {
  return sendMessage(*link_, kHolderEnd, kRequestsTag, message, {});
}

}  // namespace shardwire::internal
