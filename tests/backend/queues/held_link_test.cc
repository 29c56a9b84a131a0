// A holder and a user of queues, threads of one process, where an event of the holder throws, as without memory: the
// exception ends the link of the user alone, and no entry is lost. Then a holder that ends while the user waits.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "backend/queues/holder.h"
#include "backend/queues/use.h"
#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

using std::chrono::seconds;

// The link, whose sends or receives throw once `sends` or `recvs` of them were made; nothing else of a group is used.
class ThrowingLink final : public Communicator {
 public:
  explicit ThrowingLink(std::shared_ptr<Communicator> link) : link_(std::move(link)) {}

  Result<WorkPtr> send(const TensorView& tensor, Rank peer, int tag, CallOptions call) override {
    throwAfter(sends);
    return link_->send(tensor, peer, tag, std::move(call));
  }
  Result<WorkPtr> recv(const TensorView& tensor, Rank peer, int tag, CallOptions call) override {
    throwAfter(recvs);
    return link_->recv(tensor, peer, tag, std::move(call));
  }
  void revoke(const std::string& notice) override { link_->revoke(notice); }
  std::string revocation() const override { return link_->revocation(); }
  Rank rank() const override { return link_->rank(); }
  int worldSize() const override { return link_->worldSize(); }
  const std::string& groupName() const override { return link_->groupName(); }
  Duration timeout() const override { return link_->timeout(); }
  void setTimeout(Duration timeout) override { link_->setTimeout(timeout); }
  void setGlobalRanks(std::vector<std::int64_t>) override {}
  std::uint64_t sequenceNumber() const override { return 0; }
  Status status() const override { return link_->status(); }
  Status peerStatus(Rank) const override { return unused(); }
  std::string describeTransports() const override { return {}; }
  std::string describeCollectives() const override { return {}; }
  Result<std::shared_ptr<CompiledOp>> compileOp(const LocalSpec&, std::optional<Duration>) override { return unused(); }
  Result<std::shared_ptr<CompiledOp>> attach(const CompiledOp&, std::optional<Duration>) override { return unused(); }
  Result<WorkPtr> barrier(CallOptions) override { return unused(); }
  Result<WorkPtr> broadcast(const TensorView&, Rank, CallOptions) override { return unused(); }
  Result<WorkPtr> allReduce(const TensorView&, ReduceOp, CallOptions) override { return unused(); }
  Result<WorkPtr> reduce(const TensorView&, Rank, ReduceOp, CallOptions) override { return unused(); }
  Result<WorkPtr> allGather(const TensorView&, std::span<const TensorView>, CallOptions) override { return unused(); }
  Result<WorkPtr> gather(const TensorView&, std::span<const TensorView>, Rank, CallOptions) override {
    return unused();
  }
  Result<WorkPtr> scatter(const TensorView&, std::span<const TensorView>, Rank, CallOptions) override {
    return unused();
  }
  Result<WorkPtr> reduceScatter(const TensorView&, std::span<const TensorView>, ReduceOp, CallOptions) override {
    return unused();
  }
  Result<WorkPtr> allToAll(std::span<const TensorView>, std::span<const TensorView>, CallOptions) override {
    return unused();
  }
  Result<std::shared_ptr<SymmetricMemory>> makeSymmetric(const SymmetricRequest&, std::optional<Duration>) override {
    return unused();
  }
  Status symmetricBarrier(std::optional<Duration>) override { return unused(); }
  Result<std::vector<std::string>> exchange(const ExchangeRequest&, std::optional<Duration>) override {
    return unused();
  }
  void abort(const std::string& reason) override { link_->abort(reason); }
  void end() override { link_->end(); }

  // How many more go through.
  std::atomic<int> sends{0};
  std::atomic<int> recvs{0};
  std::atomic<bool> hasThrown{false};

 private:
  static Status unused() { return {StatusCode::kUnsupported, "not of this test"}; }
  void throwAfter(std::atomic<int>& left) {
    if (left.fetch_sub(1) <= 0) {
      hasThrown = true;
      throw std::bad_alloc();
    }
  }

  const std::shared_ptr<Communicator> link_;
};

constexpr std::uint64_t kEndNotice = 7;

// Rank 0 holds one queue, and serves rank 1 over the link.
class AHolderThatThrows : public ::testing::Test {
 protected:
  using OnHolder = std::function<void(const std::shared_ptr<QueueHolder>&, const HeldQueuePtr&, ThrowingLink&)>;
  using OnUser = std::function<void(QueueUser&)>;

  struct Setup {
    int sends, recvs;  // of the link that do not throw
    bool hasEntry;
  };
  static void run(const Setup& setup, const OnHolder& onHolder, const OnUser& onUser) {
    MemoryStore store;
    std::promise<void> ready;
    const std::shared_future<void> isReady = ready.get_future().share();
    testing::runRanksAsThreads(2, [&](Rank rank) {
      std::weak_ptr<QueueHolder> ended;
      auto made = Communicator::create(store, rank, 2, testOptions(), "link");
      if (!made.isOk()) {
        ADD_FAILURE() << made.status().message();
        if (rank == kHolderEnd) {
          ready.set_value();
        }
        return;
      }
      const std::shared_ptr<Communicator> group = std::move(*made);
      if (rank == kUserEnd) {
        QueueUser user(group);
        isReady.wait();
        onUser(user);
      } else {
        const auto link = std::make_shared<ThrowingLink>(group);
        const auto holder = std::make_shared<QueueHolder>("g");
        const HeldQueuePtr queue = holder->hold("key", "about", 0, false);
        if (setup.hasEntry) {
          putHere(holder, queue, "entry");
        }
        link->sends = setup.sends;
        link->recvs = setup.recvs;
        holder->addLink(link, kUserEnd, kEndNotice);
        ready.set_value();
        onHolder(holder, queue, *link);
        holder->stop();
        ended = holder;
      }
      group->end();
      // A wait does not keep the holder with the entries of all queues.
      for (const Deadline until = Clock::now() + seconds(20); !ended.expired() && Clock::now() < until;) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(ended.expired());
    });
  }

  static void putHere(const std::shared_ptr<QueueHolder>& holder, const HeldQueuePtr& queue, const std::string& head) {
    const auto call = std::make_shared<LocalCall>(holder, queue);
    call->put({std::make_shared<QueueEntry>(QueueEntry{head, {}, 0})}, true);
    EXPECT_EQ(call->wait(Clock::now() + seconds(20)), Status::ok());
    EXPECT_EQ(call->outcome(), QueueOutcome::kReady);
  }
  // The head of the next entry.
  static std::string getHere(const std::shared_ptr<QueueHolder>& holder, const HeldQueuePtr& queue) {
    const auto call = std::make_shared<LocalCall>(holder, queue);
    call->get(true, true);
    if (const Status status = call->wait(Clock::now() + seconds(20)); !status.isOk()) {
      call->giveUp();
      return status.message();
    }
    return call->entry() == nullptr ? call->failure() : call->entry()->head;
  }
  // As the rank's own thread, which then shuts the link down.
  static void expectTheEndOfTheLink(QueueHolder& holder, ThrowingLink& link) {
    auto notice = std::async(std::launch::async, [&] { return holder.nextNotice(); });
    if (notice.wait_for(seconds(20)) != std::future_status::ready) {
      ADD_FAILURE() << "the link goes on";
      holder.stop();
    }
    EXPECT_EQ(notice.get(), kEndNotice);
    link.end();
  }
  static Status askAndWait(QueueUser& user, QueueOp op) {
    const auto call = user.ask({op, 0, 0, 0, 0, {}, {}, {}}, {});
    if (!call.isOk()) {
      return call.status();
    }
    const Result<WorkPtr> work = (*call)->work();
    return work.isOk() ? (*work)->wait(Clock::now() + seconds(20)) : work.status();
  }
  static void expectNoAnswer(QueueUser& user, QueueOp op) {
    const Status status = askAndWait(user, op);
    EXPECT_FALSE(status.isOk());
    EXPECT_NE(status.code(), StatusCode::kTimeout) << status.message();
  }
};

TEST_F(AHolderThatThrows, WhenItAnswersAGetLosesNoEntryAndServesOthers) {
  run(
      {.sends = 1, .recvs = 1000, .hasEntry = true},  // the answer to the ping is sent
      [](const auto& holder, const HeldQueuePtr& queue, ThrowingLink& link) {
        expectTheEndOfTheLink(*holder, link);
        EXPECT_TRUE(link.hasThrown);
        EXPECT_EQ(getHere(holder, queue), "entry");
        putHere(holder, queue, "next");
        EXPECT_EQ(getHere(holder, queue), "next");
      },
      [](QueueUser& user) {
        EXPECT_EQ(askAndWait(user, QueueOp::kPing), Status::ok());
        expectNoAnswer(user, QueueOp::kGet);
      });
}

TEST_F(AHolderThatThrows, WhenItAnswersAGetInTheEventOfAPutEndsTheGettersLink) {
  run(
      {.sends = 0, .recvs = 1000, .hasEntry = false},
      [](const auto& holder, const HeldQueuePtr& queue, ThrowingLink& link) {
        std::size_t waiting = 0;
        for (const Deadline until = Clock::now() + seconds(20); waiting == 0 && Clock::now() < until;) {
          holder->run([&] { waiting = queue->counts().getters; });
        }
        ASSERT_EQ(waiting, 1U);
        putHere(holder, queue, "put");  // the put is no failure
        expectTheEndOfTheLink(*holder, link);
        EXPECT_EQ(getHere(holder, queue), "put");
      },
      [](QueueUser& user) { expectNoAnswer(user, QueueOp::kGet); });
}

TEST_F(AHolderThatThrows, WhenItReceivesTheNextRequestEndsTheLink) {
  run(
      {.sends = 1000, .recvs = 1, .hasEntry = true},
      [](const auto& holder, const HeldQueuePtr& queue, ThrowingLink& link) {
        expectTheEndOfTheLink(*holder, link);
        EXPECT_EQ(getHere(holder, queue), "entry");
      },
      [](QueueUser& user) {
        static_cast<void>(askAndWait(user, QueueOp::kPing));  // after this one the holder receives no more
        expectNoAnswer(user, QueueOp::kPing);
      });
}

class AHolderThatEnds : public AHolderThatThrows {};

TEST_F(AHolderThatEnds, WhileAGetterWaitsKeepsNothing) {
  run(
      {.sends = 1000, .recvs = 1000, .hasEntry = false},
      [](const auto& holder, const HeldQueuePtr& queue, ThrowingLink&) {
        std::size_t waiting = 0;
        for (const Deadline until = Clock::now() + seconds(20); waiting == 0 && Clock::now() < until;) {
          holder->run([&] { waiting = queue->counts().getters; });
        }
        EXPECT_EQ(waiting, 1U);
      },
      [](QueueUser& user) { expectNoAnswer(user, QueueOp::kGet); });
}

TEST_F(AHolderThatEnds, WhileAUserWaitsForAQueueThatIsNotMadeKeepsNothing) {
  run(
      {.sends = 1000, .recvs = 1000, .hasEntry = false},
      [](const auto& holder, const HeldQueuePtr&, ThrowingLink& link) { expectTheEndOfTheLink(*holder, link); },
      [](QueueUser& user) {
        const std::string key = "nowhere";
        const auto length = static_cast<std::uint32_t>(key.size());
        std::string head(sizeof length, '\0');
        std::memcpy(head.data(), &length, sizeof length);
        EXPECT_TRUE(user.ask({QueueOp::kOpen, 0, 0, 0, 0, head + key, {}, {}}, {}).isOk());
        EXPECT_EQ(askAndWait(user, QueueOp::kPing), Status::ok());  // the holder has the request, and no queue
      });
}

TEST(AnEventThatThrows, ThrowsInTheCallThatWaitsForIt) {
  const auto holder = std::make_shared<QueueHolder>("g");
  EXPECT_THROW(holder->run([] { throw std::bad_alloc(); }), std::bad_alloc);
  bool hasRun = false;
  holder->run([&] { hasRun = true; });
  EXPECT_TRUE(hasRun);
}

}  // namespace
}  // namespace shardwire::internal
