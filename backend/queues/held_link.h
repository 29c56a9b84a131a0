// A link on the rank that holds queues: takes a user's requests and answers. All functions run in events of the holder.
// held_link_puts.cc has the puts.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/queues/holder.h"

namespace shardwire::internal {

class HeldLink : public std::enable_shared_from_this<HeldLink> {
 public:
  HeldLink(std::shared_ptr<QueueHolder> holder, std::shared_ptr<Communicator> link, Rank user, std::uint64_t endNotice)
      : holder_(std::move(holder)), link_(std::move(link)), user_(user), endNotice_(endNotice) {}

  void start() {
    guarded([this] { listen(); });
  }
  void revoke(const std::string& notice);
  // Lets the caller's thread drive this link.
  void lendTo(LocalCall& call) const;

 private:
  // Waits in the queue, and then has an entry until the user confirms the arrival.
  struct Getting {
    HeldQueuePtr queue;
    QueueGetterPtr getter;
    QueueEntryPtr entry;
  };
  // Is not visible.
  struct WaitingPut {
    HeldQueuePtr queue;
    PuttingPtr putting;
    QueueMessage message;
  };

  // Calls `body`, which may run in the event of another link. An exception ends this link, in a later event.
  template <typename Body>
  void guarded(Body&& body) {
    try {
      std::forward<Body>(body)();
    } catch (const std::exception& error) {
      holder_->post([self = shared_from_this(), why = unserved(error)] { self->end(why); });
    }
  }
  static Status unserved(const std::exception& error);
  void receive(const QueuePart& into, int tag, std::function<void()> then);
  void listen();
  void onFrame();
  void onMessage(std::string rest);
  void serve(const QueueMessage& message);
  void answer(const QueueMessage& to, QueueOp op, std::int64_t value = 0, std::string head = {},
              const std::vector<QueuePart>& parts = {});
  void answerOutcome(const QueueMessage& to, QueueOutcome outcome, const std::string& failure = {});

  void open(const QueueMessage& message);
  void put(const QueueMessage& message, const HeldQueuePtr& queue);
  void putInTransaction(const QueueMessage& message, const HeldQueuePtr& queue);
  void fetch(const QueueMessage& message, const HeldQueuePtr& queue, const PuttingPtr& putting,
             const QueueEntryPtr& entry, std::function<void()> then);
  void dropBytes(const QueueMessage& message);
  void commit(const QueueMessage& message, const HeldQueuePtr& queue);
  void start(const QueueMessage& message, const HeldQueuePtr& queue, const PuttingPtr& putting);
  void get(const QueueMessage& message, const HeldQueuePtr& queue, bool takes);
  void taken(std::uint64_t request);
  void cancel(const QueueMessage& message);
  void end(const Status& why);

  const std::shared_ptr<QueueHolder> holder_;
  const std::shared_ptr<Communicator> link_;
  const Rank user_;
  const std::uint64_t endNotice_;
  const std::shared_ptr<QueueFrame> frame_ = std::make_shared<QueueFrame>();
  WorkPtr nextFrame_;
  std::map<std::uint64_t, Getting> gets_;  // by request, as the next
  std::map<std::uint64_t, WaitingPut> puts_;
  std::map<std::int64_t, PuttingPtr> transactions_;
  std::set<HeldQueuePtr> hasPut_;
  bool isOver_ = false;
  bool hasLeft_ = false;
};

}  // namespace shardwire::internal
