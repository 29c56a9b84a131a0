// A link on the rank that holds queues: takes a user's requests and answers. All functions run in events of the holder.
// held_link_puts.cc has the puts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/queues/holder.h"

namespace shardwire::internal {

class HeldLink : public std::enable_shared_from_this<HeldLink> {
 public:
  HeldLink(std::shared_ptr<QueueHolder> holder, std::shared_ptr<Communicator> link, Rank user, std::uint64_t endNotice)
      : holder_(std::move(holder)), link_(std::move(link)), user_(user), endNotice_(endNotice) {}

  void start() { listen(); }
  void revoke(const std::string& notice);
  // Lets the caller's thread drive this link.
  void lendTo(LocalCall& call) const;

 private:
  // A request that waits: a getter, or a put that is not visible.
  struct WaitingGet {
    HeldQueuePtr queue;
    QueueGetterPtr getter;
  };
  struct WaitingPut {
    HeldQueuePtr queue;
    PuttingPtr putting;
    QueueMessage message;
  };
  struct Handed {
    HeldQueuePtr queue;
    QueueEntryPtr entry;
  };

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
  void cancel(const QueueMessage& message);
  void end(const Status& why);

  const std::shared_ptr<QueueHolder> holder_;
  const std::shared_ptr<Communicator> link_;
  const Rank user_;
  const std::uint64_t endNotice_;
  const std::shared_ptr<QueueFrame> frame_ = std::make_shared<QueueFrame>();
  WorkPtr nextFrame_;
  std::map<std::uint64_t, WaitingGet> gets_;  // by request, as the next two
  std::map<std::uint64_t, WaitingPut> puts_;
  std::map<std::uint64_t, Handed> handed_;  // entries handed out, arrival not confirmed
  std::map<std::int64_t, PuttingPtr> transactions_;
  std::set<HeldQueuePtr> hasPut_;
  bool isOver_ = false;
  bool hasLeft_ = false;
};

}  // namespace shardwire::internal
