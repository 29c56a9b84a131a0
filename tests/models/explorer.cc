// A graph grows by one event at a time: explore() takes a thread's next operation, and tries each store which a load
// may read and each place which a store may have in the modification order, if the graph stays consistent. Consistency
// of RC11 has four parts: happens-before agrees with the order of each location (coherence), nothing comes between the
// two halves of a change (atomicity), the sequentially consistent events have an order (psc), and no event depends on
// itself (which holds as the graph grows along program order and reads-from). Stores, fences and plain accesses have
// the same choices whenever they are added, so they are added first, and only loads and changes are interleaved.
#include "tests/models/explorer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace shardwire::models {
namespace {

using Set = std::uint64_t;  // of events
constexpr std::size_t kMostEvents = 64;

Set only(std::size_t event) {
  return Set{1} << event;
}
template <typename Visit>
void forEach(Set events, Visit visit) {
  for (; events != 0; events &= events - 1) {
    visit(static_cast<std::size_t>(std::countr_zero(events)));
  }
}
bool acquires(Order order) {
  return order == Order::acquire || order == Order::acq_rel || order == Order::seq_cst;
}
bool releases(Order order) {
  return order == Order::release || order == Order::acq_rel || order == Order::seq_cst;
}

struct Event {
  std::size_t thread = 0;  // the number of threads: the value at the beginning
  std::size_t number = 0;  // in the thread
  bool isFence = false, isRead = false, isWrite = false, isPlain = false;
  Order order = Order::relaxed;
  Location at = 0;
  Value read = 0, written = 0;
  std::size_t from = 0;  // of a read: the store
  Set before = 0;        // the events that happen before this event
  Set released = 0;      // of a write: the events that happen before a load which acquires from this write
};

struct Graph {
  std::vector<Event> events;
  std::vector<std::vector<std::size_t>> stores;  // by location, in modification order
  std::vector<std::vector<std::size_t>> own;     // by thread, in program order
};

std::size_t placeOf(const Graph& graph, std::size_t store) {
  const auto& all = graph.stores[graph.events[store].at];
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), store) - all.begin());
}

// The acyclic order of sequentially consistent events: the relation psc of RC11.
class SequentialOrder {
 public:
  explicit SequentialOrder(const Graph& graph) : graph_(graph), size_(graph.events.size()) {
    for (std::size_t i = 0; i < size_; ++i) {
      const Event& event = graph.events[i];
      if (event.order == Order::seq_cst) {
        (event.isFence ? fences_ : accesses_) |= only(i);
      }
      forEach(event.before, [&](std::size_t earlier) { after_[earlier] |= only(i); });
    }
  }

  bool exists() {
    const Set all = fences_ | accesses_;
    if (std::popcount(all) < 2) {
      return true;
    }
    rank();
    for (std::size_t i = 0; i < size_; ++i) {
      base(i);
    }
    std::array<Set, kMostEvents> next{};
    forEach(all, [&](std::size_t i) { next[i] = following(i); });
    for (Set left = all; left != 0;) {  // takes out events without a predecessor
      Set followed = 0;
      forEach(left, [&](std::size_t i) { followed |= next[i]; });
      if ((left & ~followed) == 0) {
        return false;
      }
      left &= followed;
    }
    return true;
  }

 private:
  bool sameThread(std::size_t a, std::size_t b) const { return graph_.events[a].thread == graph_.events[b].thread; }
  bool sameLocation(std::size_t a, std::size_t b) const {
    return !graph_.events[a].isFence && !graph_.events[b].isFence && graph_.events[a].at == graph_.events[b].at;
  }
  // Where an access stands in the order of its location: a store at its place, a load behind the store read.
  void rank() {
    for (const auto& stores : graph_.stores) {
      for (std::size_t place = 0; place < stores.size(); ++place) {
        rank_[stores[place]] = 2 * place;
      }
    }
    for (std::size_t i = 0; i < size_; ++i) {
      const Event& event = graph_.events[i];
      rank_[i] = event.isRead && !event.isWrite ? rank_[event.from] + 1 : rank_[i];
    }
  }
  // scb = sb, or sb to another location then hb then sb to another location, or hb within a location, or mo, or fr.
  void base(std::size_t a) {
    Set otherPlace = 0;
    for (std::size_t b = 0; b < size_; ++b) {
      const bool follows = (after_[a] >> b & 1) != 0;
      if (follows && sameThread(a, b)) {
        base_[a] |= only(b);
        otherPlace |= sameLocation(a, b) ? 0 : only(b);
      }
      if (sameLocation(a, b) && (follows || (graph_.events[b].isWrite && rank_[a] < rank_[b]))) {
        base_[a] |= only(b);
      }
    }
    Set reached = 0;
    forEach(otherPlace, [&](std::size_t b) { reached |= after_[b]; });
    forEach(reached, [&](std::size_t c) {
      forEach(after_[c], [&](std::size_t d) { base_[a] |= sameThread(c, d) && !sameLocation(c, d) ? only(d) : 0; });
    });
  }
  // psc = ([SC] or [F];hb?) ; scb ; ([SC] or hb?;[F]), and [F] ; (hb or hb;eco;hb) ; [F].
  Set following(std::size_t a) const {
    const bool isFence = (fences_ >> a & 1) != 0;
    Set reached = 0, past = 0;
    forEach(only(a) | (isFence ? after_[a] : 0), [&](std::size_t b) { reached |= base_[b]; });
    forEach(reached, [&](std::size_t b) { past |= after_[b]; });
    if (isFence) {
      past |= after_[a];
      forEach(after_[a], [&](std::size_t b) {
        for (std::size_t c = 0; c < size_; ++c) {
          past |= sameLocation(b, c) && rank_[b] < rank_[c] ? after_[c] : 0;
        }
      });
    }
    return (reached & (accesses_ | fences_)) | (past & fences_);
  }

  const Graph& graph_;
  const std::size_t size_;
  Set fences_ = 0, accesses_ = 0;
  std::array<std::size_t, kMostEvents> rank_{};
  std::array<Set, kMostEvents> after_{}, base_{};
};

class Explorer {
 public:
  explicit Explorer(const Model& model) : model_(model) {}

  Explored run() {
    Graph graph;
    graph.stores.resize(model_.numLocations);
    graph.own.resize(model_.threads.size());
    for (Location at = 0; at < model_.numLocations; ++at) {
      Event first;
      first.thread = model_.threads.size();
      first.number = at;
      first.isWrite = first.isPlain = true;
      first.at = at;
      graph.stores[at].push_back(at);
      graph.events.push_back(first);
    }
    visit(graph);
    return result_;
  }

 private:
  // The thread's state after the events of the graph: equal for equal values read.
  const Thread& stateOf(const Graph& graph, std::size_t thread) {
    std::vector<Value> log;
    for (const std::size_t event : graph.own[thread]) {
      log.push_back(graph.events[event].read);
    }
    const auto [found, isNew] = states_.try_emplace({thread, log});
    if (isNew) {
      found->second.log = std::move(log);
      try {
        model_.threads[thread](found->second);
        found->second.done = kMostEvents;  // over
      } catch (const Thread::Pending&) {
      }
    }
    return found->second;
  }

  void visit(const Graph& graph) {
    std::vector<std::size_t> ready;
    std::string outcome;
    bool areAllOver = true;
    for (std::size_t thread = 0; thread < model_.threads.size(); ++thread) {
      const Thread& state = stateOf(graph, thread);
      if (!state.violated.empty()) {
        return fail(state.violated);
      }
      outcome += (outcome.empty() || state.noted.empty() ? "" : " | ") + state.noted;
      const bool isOver = state.done == kMostEvents;
      areAllOver = areAllOver && isOver;
      if (isOver) {
        continue;
      }
      if (!state.pending.reads() || state.pending.isPlain()) {
        return extend(graph, thread, state.pending);
      }
      ready.push_back(thread);
    }
    const std::size_t before = numExtended_;
    for (const std::size_t thread : ready) {
      extend(graph, thread, stateOf(graph, thread).pending);
    }
    if (areAllOver) {
      ++result_.executions;
      result_.outcomes.insert(outcome);
    } else if (numExtended_ == before) {
      fail("a thread waits for ever");
    }
  }

  void fail(const std::string& why) {
    if (result_.violation.empty()) {
      result_.violation = why;
    }
  }

  void extend(const Graph& graph, std::size_t thread, const Operation& operation) {
    if (graph.events.size() == kMostEvents) {
      throw std::logic_error("the model has too many events");
    }
    Event event;
    event.thread = thread;
    event.number = graph.own[thread].size();
    event.order = operation.order;
    event.at = operation.at;
    event.isFence = operation.kind == Operation::Kind::kFence;
    event.isPlain = operation.isPlain();
    event.before = (Set{1} << model_.numLocations) - 1;
    if (event.number > 0) {
      const std::size_t last = graph.own[thread].back();
      event.before |= graph.events[last].before | only(last);
    }
    if (event.isFence) {
      return addFence(graph, event);
    }
    event.isRead = operation.reads();
    event.isWrite = operation.kind == Operation::Kind::kStore || operation.kind == Operation::Kind::kWritePlain;
    event.written = operation.operand;
    if (races(graph, event)) {
      return fail("a data race");
    }
    const auto& stores = graph.stores[event.at];
    const std::size_t oldest = oldestPlace(graph, event);
    for (std::size_t place = event.isPlain ? stores.size() - 1 : oldest; place < stores.size(); ++place) {
      const bool isFollowedByChange = place + 1 < stores.size() && graph.events[stores[place + 1]].isRead;
      Event one = event;
      if (one.isRead) {
        readFrom(graph, operation, stores[place], &one);
        if (operation.accepts && !operation.accepts(one.read)) {
          continue;
        }
      }
      if (!one.isWrite || !isFollowedByChange) {
        add(graph, one, place + 1);
      }
    }
  }

  // The first store not hidden by events before: a load may read this store, and a store may go directly behind.
  static std::size_t oldestPlace(const Graph& graph, const Event& event) {
    std::size_t oldest = 0;
    forEach(event.before, [&](std::size_t earlier) {
      const Event& known = graph.events[earlier];
      if (!known.isFence && known.at == event.at) {
        oldest = std::max(oldest, placeOf(graph, known.isWrite ? earlier : known.from));
      }
    });
    return oldest;
  }

  static void readFrom(const Graph& graph, const Operation& operation, std::size_t store, Event* event) {
    const Event& from = graph.events[store];
    event->from = store;
    event->read = from.written;
    if (acquires(event->order)) {
      event->before |= from.released;
    }
    if (operation.kind == Operation::Kind::kChange && !(operation.fails && operation.fails(event->read))) {
      event->isWrite = true;
      event->written = operation.change(event->read);
    }
  }

  static bool races(const Graph& graph, const Event& event) {
    for (std::size_t i = graph.stores.size(); i < graph.events.size(); ++i) {
      const Event& other = graph.events[i];
      const bool isOrdered = (event.before >> i & 1) != 0;
      if (!other.isFence && other.at == event.at && !isOrdered && (other.isPlain || event.isPlain) &&
          (other.isWrite || event.isWrite)) {
        return true;
      }
    }
    return false;
  }

  void addFence(const Graph& graph, Event event) {
    if (acquires(event.order)) {
      for (const std::size_t earlier : graph.own[event.thread]) {
        const Event& read = graph.events[earlier];
        event.before |= read.isRead && !read.isPlain ? graph.events[read.from].released : 0;
      }
    }
    add(graph, event, 0);
  }

  // `place`: behind the store at which a load reads, and where a store goes, in the modification order.
  void add(const Graph& graph, Event event, std::size_t place) {
    const std::size_t self = graph.events.size();
    if (event.isWrite && !event.isPlain) {
      if (releases(event.order)) {
        event.released = event.before | only(self);
      } else {
        for (const std::size_t earlier : graph.own[event.thread]) {
          const Event& fence = graph.events[earlier];
          event.released |= fence.isFence && releases(fence.order) ? fence.before | only(earlier) : 0;
        }
      }
      event.released |= event.isRead ? graph.events[event.from].released : 0;
    }
    Graph next = graph;
    next.events.push_back(event);
    next.own[event.thread].push_back(self);
    if (event.isWrite) {
      auto& stores = next.stores[event.at];
      stores.insert(stores.begin() + static_cast<std::ptrdiff_t>(place), self);
    }
    const auto [seen, isNew] = seen_.try_emplace(keyOf(next), false);
    if (isNew) {
      // An event at the end of a location's order precedes no other event yet, and so closes no cycle.
      const bool isLast = event.isFence || place == graph.stores[event.at].size();
      seen->second = isLast || SequentialOrder(next).exists();
    }
    if (!seen->second) {
      return;
    }
    ++numExtended_;
    if (isNew && result_.violation.empty()) {
      visit(next);
    }
  }

  // Equal for equal graphs, independent of the order in which events were added.
  std::string keyOf(const Graph& graph) const {
    std::string key;
    const auto put = [&](std::size_t event) {
      key += static_cast<char>(graph.events[event].thread);
      key += static_cast<char>(graph.events[event].number);
    };
    for (const auto& events : graph.own) {
      key += static_cast<char>(events.size());
      for (const std::size_t event : events) {
        if (graph.events[event].isRead) {
          put(graph.events[event].from);
        }
      }
    }
    for (const auto& stores : graph.stores) {
      key += static_cast<char>(stores.size());
      for (const std::size_t store : stores) {
        put(store);
      }
    }
    return key;
  }

  const Model& model_;
  Explored result_;
  std::size_t numExtended_ = 0;
  std::unordered_map<std::string, bool> seen_;  // the graphs so far, and whether each is consistent
  std::map<std::pair<std::size_t, std::vector<Value>>, Thread> states_;
};

}  // namespace

Value Thread::next(Operation operation) {
  if (done < log.size()) {
    return log[done++];
  }
  pending = std::move(operation);
  throw Pending{};
}

void Thread::require(bool holds, const char* invariant) {
  if (!holds && violated.empty()) {
    violated = invariant;
    throw Pending{};
  }
}

constexpr Value kWake = 256;  // one sleeper queued counts 1, one wake-up 256

void Thread::futexWait(Location word, Location queue, Value expected) {
  fence(Order::seq_cst);
  const Value queued = fetchAdd(queue, 1, Order::acq_rel);
  if (load(word, Order::relaxed) == expected) {
    await(queue, Order::acquire, [queued](Value now) { return now / kWake > queued / kWake; });
  }
}

void Thread::futexWakeAll(Location queue) {
  fence(Order::seq_cst);
  fetchAdd(queue, kWake, Order::acq_rel);
}

Explored explore(const Model& model) {
  return Explorer(model).run();
}

}  // namespace shardwire::models
