// The memory of a rank's operations in flight. A later operation over the same memory starts after the earlier ones, in
// the order of the calls, as on one stream of a device. One per communicator; any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/activity.h"
#include "ops/boxes/view_overlap.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// The memory in use by one operation, for reading or writing; empty views are left out.
class MemoryUse {
 public:
  void reads(const TensorView& view) { add(view, false); }
  void writes(const TensorView& view) { add(view, true); }
  void reads(std::span<const TensorView> views) { addAll(views, false); }
  void writes(std::span<const TensorView> views) { addAll(views, true); }
  void clear();
  void reserve(std::size_t numViews) { parts_.reserve(numViews); }
  bool isEmpty() const { return parts_.empty(); }
  // After the last view.
  void sort();
  // Whether one of the two writes memory in use by the other. Both are sorted.
  bool conflictsWith(const MemoryUse& other) const;
  // Whether this one writes all memory from the first address of the other to the last.
  bool overwrites(const MemoryUse& other) const;

 private:
  struct Part {
    AddressRange range;
    bool written = false;
    TensorView view;
  };
  void add(const TensorView& view, bool written);
  void addAll(std::span<const TensorView> views, bool written) {
    for (const TensorView& view : views) {
      add(view, written);
    }
  }

  std::vector<Part> parts_;  // by first address
  AddressRange whole_;       // from the first address to the last of all parts
  bool writes_ = false;
};

class InFlight {
 public:
  InFlight();
  // Removes finished operations; true when none is left, as for most calls. Call before taking runs from a pool: the
  // pool cannot reuse runs still held by this list.
  bool isEmpty();
  // The operations that must end before an operation with this use may start, without those for which another one of
  // them waits.
  std::vector<std::shared_ptr<Activity>> before(const MemoryUse& use);
  // An empty use from an earlier operation: repeated calls allocate nothing. Pass the use to add() or giveBack().
  std::unique_ptr<MemoryUse> newUse();
  void giveBack(std::unique_ptr<MemoryUse> use);
  void giveBack(const std::shared_ptr<const MemoryUse>&) {}
  // An operation under way; `last`: its last stage.
  void add(std::shared_ptr<Activity> last, std::unique_ptr<MemoryUse> use) {
    add({std::move(last), std::move(use), nullptr});
  }
  // The same for bound tensors: many operations share one use.
  void add(std::shared_ptr<Activity> last, std::shared_ptr<const MemoryUse> use) {
    add({std::move(last), nullptr, std::move(use)});
  }

 private:
  struct Operation {
    std::shared_ptr<Activity> last;
    std::unique_ptr<MemoryUse> own;  // or
    std::shared_ptr<const MemoryUse> shared;
    const MemoryUse& use() const { return own != nullptr ? *own : *shared; }
  };
  void add(Operation operation);
  void keep(std::unique_ptr<MemoryUse> use) SW_REQUIRES(mutex_);

  std::atomic<std::size_t> count_ = 0;  // of operations_: release after a change, acquire when read without the lock
  Mutex mutex_;
  std::vector<Operation> operations_ SW_GUARDED_BY(mutex_);  // in the order of their calls
  std::vector<std::unique_ptr<MemoryUse>> spare_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
