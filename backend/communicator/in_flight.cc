// Unfinished operations are kept in the order of the calls, each with the memory that the operation reads and writes. A
// new operation is compared with all of them. Two lists of parts conflict when a written part of one list shares memory
// with a part of the other list: short lists are compared pair by pair, long lists in one sweep by address.
#include "backend/communicator/in_flight.h"

#include <algorithm>
#include <utility>

namespace shardwire::internal {

namespace {

// Up to this many pairs are compared one by one; more pairs in a sweep, which needs extra memory.
constexpr std::size_t kFewPairs = 16;
constexpr std::size_t kUsual = 4;
// More uses than this are not kept for later.
constexpr std::size_t kMaxSpare = 64;

}  // namespace

void MemoryUse::add(const TensorView& view, bool written) {
  const AddressRange range = addressRange(view);
  if (range.first == range.last) {
    return;
  }
  whole_ =
      parts_.empty() ? range : AddressRange{std::min(whole_.first, range.first), std::max(whole_.last, range.last)};
  parts_.push_back({range, written, view});
  writes_ = writes_ || written;
}

void MemoryUse::clear() {
  parts_.clear();
  whole_ = {};
  writes_ = false;
}

void MemoryUse::sort() {
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.range.first < b.range.first; });
}

bool MemoryUse::overwrites(const MemoryUse& other) const {
  return std::ranges::any_of(parts_, [&](const Part& part) {
    return part.written && part.range.first <= other.whole_.first && other.whole_.last <= part.range.last &&
           isContiguous(part.view);
  });
}

bool MemoryUse::conflictsWith(const MemoryUse& other) const {
  if ((!writes_ && !other.writes_) || !whole_.meets(other.whole_)) {
    return false;
  }
  const auto conflict = [](const Part& a, const Part& b) {
    return (a.written || b.written) && shareMemory(a.view, b.view);
  };
  if (parts_.size() * other.parts_.size() <= kFewPairs) {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      return std::any_of(other.parts_.begin(), other.parts_.end(),
                         [&](const Part& theirs) { return conflict(part, theirs); });
    });
  }
  // Both lists in one sweep by address: each part is compared with parts of the other list whose range goes on where
  // the part begins.
  std::vector<const Part*> open;
  std::vector<const Part*> otherOpen;
  const auto meetsOpen = [&](const Part& part, std::vector<const Part*>& candidates) {
    std::erase_if(candidates, [&](const Part* candidate) { return candidate->range.last <= part.range.first; });
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const Part* candidate) { return conflict(part, *candidate); });
  };
  std::size_t mine = 0;
  std::size_t theirs = 0;
  while (mine < parts_.size() || theirs < other.parts_.size()) {
    const bool isMine = theirs == other.parts_.size() ||
                        (mine < parts_.size() && parts_[mine].range.first <= other.parts_[theirs].range.first);
    const Part& part = isMine ? parts_[mine++] : other.parts_[theirs++];
    if (meetsOpen(part, isMine ? otherOpen : open)) {
      return true;
    }
    (isMine ? open : otherOpen).push_back(&part);
  }
  return false;
}

// Reserves memory for a few operations of a few tensors. Timing decides which call is the first to leave an operation
// in flight, and this call should not have to allocate.
InFlight::InFlight() {
  operations_.reserve(kUsual);
  spare_.reserve(kMaxSpare);
  for (std::size_t i = 0; i < kUsual; ++i) {
    spare_.push_back(std::make_unique<MemoryUse>());
    spare_.back()->reserve(kUsual);
  }
}

bool InFlight::isEmpty() {
  if (count_.load(std::memory_order_acquire) == 0) {
    return true;
  }
  const MutexLock lock(mutex_);
  auto end = operations_.begin();  // end of the unfinished operations
  for (auto it = operations_.begin(); it != operations_.end(); ++it) {
    if (!it->last->isDone()) {
      if (end != it) {
        *end = std::move(*it);
      }
      ++end;
    } else if (it->own != nullptr) {
      keep(std::move(it->own));
    }
  }
  operations_.erase(end, operations_.end());
  count_.store(operations_.size(), std::memory_order_release);
  return operations_.empty();
}

// From the newest: an operation that writes all of this memory waits for the earlier ones itself. So a row of
// operations over one tensor is a chain.
std::vector<std::shared_ptr<Activity>> InFlight::before(const MemoryUse& use) {
  std::vector<std::shared_ptr<Activity>> found;
  const MutexLock lock(mutex_);
  for (auto operation = operations_.rbegin(); operation != operations_.rend(); ++operation) {
    if (operation->use().conflictsWith(use)) {
      found.push_back(operation->last);
      if (operation->use().overwrites(use)) {
        break;
      }
    }
  }
  return found;
}

std::unique_ptr<MemoryUse> InFlight::newUse() {
  const MutexLock lock(mutex_);
  if (spare_.empty()) {
    return std::make_unique<MemoryUse>();
  }
  std::unique_ptr<MemoryUse> use = std::move(spare_.back());
  spare_.pop_back();
  return use;
}

void InFlight::giveBack(std::unique_ptr<MemoryUse> use) {
  if (use != nullptr) {
    const MutexLock lock(mutex_);
    keep(std::move(use));
  }
}

void InFlight::keep(std::unique_ptr<MemoryUse> use) {
  if (spare_.size() < kMaxSpare) {
    use->clear();
    spare_.push_back(std::move(use));
  }
}

void InFlight::add(Operation operation) {
  const MutexLock lock(mutex_);
  operations_.push_back(std::move(operation));
  count_.store(operations_.size(), std::memory_order_release);
}

}  // namespace shardwire::internal
