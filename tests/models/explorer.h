// Explores all executions of a small program of a few threads under the memory model of C++20, as RC11 states the model
// (Lahav, Vafeiadis, Kang, Hur, Dreyer: Repairing sequential consistency in C/C++11, PLDI 2017). So a protocol is
// checked for every machine to which C++ compiles, and not only for the orders that this machine happens to show.
//
// A model is straight code: each thread is a function that calls the operations of Thread. Reported are: an invariant
// that fails (Thread::require), a data race of plain accesses, and a thread that waits for ever. An execution is a
// graph of events with the relations reads-from and modification order; equal graphs count once.
//
// Outside of the model: load buffering (a load that reads a store which depends on the load's own later stores). RC11
// forbids load buffering for relaxed accesses, though C++ and Arm allow it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace shardwire::models {

using Value = std::uint64_t;
using Order = std::memory_order;
using Location = std::size_t;  // an index; each location holds 0 at the beginning

struct Operation {
  enum class Kind : unsigned char { kLoad, kStore, kChange, kFence, kReadPlain, kWritePlain };
  Kind kind = Kind::kFence;
  Location at = 0;
  Order order = Order::relaxed;
  Value operand = 0;                   // of a store
  std::function<bool(Value)> accepts;  // of a load or change: takes only these values; empty: all
  std::function<Value(Value)> change;  // of a change: the value stored in place of the value read
  std::function<bool(Value)> fails;    // of a change: stores nothing for these values; empty: none
  bool reads() const { return kind == Kind::kLoad || kind == Kind::kChange || kind == Kind::kReadPlain; }
  bool isPlain() const { return kind == Kind::kReadPlain || kind == Kind::kWritePlain; }
};

// The operations of one thread. A thread runs again from its beginning for each further operation, with the values that
// the operations before returned; so the function must depend on nothing else.
class Thread {
 public:
  Value load(Location at, Order order) { return next({Operation::Kind::kLoad, at, order, 0, {}, {}, {}}); }
  // Waits for a value that `accepts` takes.
  Value await(Location at, Order order, std::function<bool(Value)> accepts) {
    return next({Operation::Kind::kLoad, at, order, 0, std::move(accepts), {}, {}});
  }
  void store(Location at, Value value, Order order) { next({Operation::Kind::kStore, at, order, value, {}, {}, {}}); }
  // These return the value before.
  Value change(Location at, std::function<Value(Value)> to, Order order) {
    return next({Operation::Kind::kChange, at, order, 0, {}, std::move(to), {}});
  }
  Value fetchAdd(Location at, Value more, Order order) {
    return change(
        at, [more](Value old) { return old + more; }, order);
  }
  Value exchange(Location at, Value to, Order order) {
    return change(
        at, [to](Value) { return to; }, order);
  }
  // A failure reads with the same order, less what belongs to the store.
  bool compareExchange(Location at, Value expected, Value to, Order order) {
    return next({Operation::Kind::kChange,
                 at,
                 order,
                 0,
                 {},
                 [to](Value) { return to; },
                 [expected](Value old) { return old != expected; }}) == expected;
  }
  // Waits for the value `expected`, and exchanges it.
  void awaitExchange(Location at, Value expected, Value to, Order order) {
    next({Operation::Kind::kChange,
          at,
          order,
          0,
          [expected](Value old) { return old == expected; },
          [to](Value) { return to; },
          {}});
  }
  void fence(Order order) { next({Operation::Kind::kFence, 0, order, 0, {}, {}, {}}); }
  Value readPlain(Location at) { return next({Operation::Kind::kReadPlain, at, Order::relaxed, 0, {}, {}, {}}); }
  void writePlain(Location at, Value value) {
    next({Operation::Kind::kWritePlain, at, Order::relaxed, value, {}, {}, {}});
  }

  // FUTEX_WAIT and FUTEX_WAKE as in Linux: a full fence, then a lock per word under which the kernel reads the word and
  // queues the sleeper, or wakes the sleepers queued so far. `queue` is the location of this lock.
  void futexWait(Location word, Location queue, Value expected);
  void futexWakeAll(Location queue);

  void require(bool holds, const char* invariant);
  void note(Value value) { noted += (noted.empty() ? "" : " ") + std::to_string(value); }

  struct Pending {};  // thrown at the first operation that is not in the log
  std::vector<Value> log;
  std::size_t done = 0;
  Operation pending;
  std::string noted;  // by note()
  std::string violated;

 private:
  Value next(Operation operation);
};

struct Model {
  std::size_t numLocations = 0;
  std::vector<std::function<void(Thread&)>> threads;
};

struct Explored {
  std::size_t executions = 0;      // complete ones, each counted once
  std::set<std::string> outcomes;  // the noted values of the threads that note any: "1 0 | 1"
  std::string violation;           // empty: none; the exploration ends at the first one
};

Explored explore(const Model& model);

}  // namespace shardwire::models
