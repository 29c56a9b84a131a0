// Programs of collectives, kept by shape for the next call, with runs of their stages ready to be used again: a
// repeated call plans nothing and allocates nothing. One per communicator; any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/run.h"
#include "ops/collectives/collective.h"
#include "ops/collectives/select.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// The runs of one call's stages, in order. Up to 8 stages (a tree of 16 ranks) lie in place. Pointers are constructed
// and destroyed only for the stages that exist: a short call has one.
class Runs {
 public:
  Runs() {}  // leaves the room as it is
  ~Runs() { std::destroy_n(few(), count_); }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  void add(std::shared_ptr<Activity> run) {
    if (count_ < kFew) {
      std::construct_at(few() + count_, std::move(run));
      ++count_;
      return;
    }
    if (many_.empty()) {
      many_.assign(few(), few() + count_);
    }
    many_.push_back(std::move(run));
  }
  // Precondition: not empty.
  std::shared_ptr<Activity>& last() { return many_.empty() ? few()[count_ - 1] : many_.back(); }
  std::span<const std::shared_ptr<Activity>> span() {
    return many_.empty() ? std::span(few(), count_) : std::span(many_);
  }

  Duration spin{0};               // how long the caller should poll before it returns; 0: not at all
  std::shared_ptr<void> scratch;  // must live as long as the runs; mostly null

 private:
  static constexpr std::size_t kFew = 8;

  std::shared_ptr<Activity>* few() { return std::launder(reinterpret_cast<std::shared_ptr<Activity>*>(room_.data())); }

  alignas(std::shared_ptr<Activity>) std::array<std::byte, kFew * sizeof(std::shared_ptr<Activity>)> room_;
  std::size_t count_ = 0;                        // of few()
  std::vector<std::shared_ptr<Activity>> many_;  // all runs, if there are more
};

class ProgramCache {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  ProgramCache(Rank rank, Selection selection) : rank_(rank), selection_(std::move(selection)) {}

  // Sets `runs` (empty before) to runs over these tensors, which are flat, contiguous and as the call says. kSystem
  // without memory for scratch: the runs exist nevertheless, and must not start.
  Status prepare(const CollectiveCall& call, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                 Runs* runs);
  // The tensors of a call, as the caller gave them.
  struct Given {
    std::span<const TensorView> inputs;
    std::span<const TensorView> outputs;
  };
  // prepare() for a program of one short stage, in a third of the time; null for all other programs. The run is the
  // caller's, and stays in place, until the run is done. `given`: for prepareAgain().
  Activity* prepareShort(const CollectiveCall& call, std::span<const TensorView> inputs,
                         std::span<const TensorView> outputs, const Given& given);
  // prepareShort() of a call over lists that was prepared twice before with the same kind, operation, root and tensors,
  // so its checks are known to succeed; null for all other calls. Reads no other members of `call`. Sets `given` to the
  // tensors that the run reads and writes.
  Activity* prepareAgain(const CollectiveCall& call, Given* given);
  const Selection& selection() const { return selection_; }
  // Of all kept programs, roughly; at most kMaxBytes, or a few programs.
  std::size_t keptBytes() {
    const MutexLock lock(mutex_);
    return bytes_;
  }

 private:
  struct KeptStage {
    std::shared_ptr<const Plan> plan;
    std::vector<StageTensor> inputs;
    std::vector<StageTensor> outputs;
    std::vector<TensorView> inputViews;  // of the latest call
    std::vector<TensorView> outputViews;
    bool afterPrevious = false;
    bool isShort = false;
    RunPool<Run> pool;
  };
  struct Kept {
    CollectiveCall call;  // its spans point into the two vectors
    std::vector<std::int64_t> inputElems;
    std::vector<std::int64_t> outputElems;
    Description description;
    std::vector<KeptStage> stages;
    std::int64_t scratchElems = 0;
    std::size_t bytes = 0;  // in memory, roughly
    bool isShort = false;   // one short stage, without scratch
  };

  // The call over lists that may be repeated.
  struct Latest {
    Kept* kept = nullptr;
    const std::byte* first = nullptr;  // address of a tensor
    std::vector<TensorView> inputs;    // empty before the second of equal calls
    std::vector<TensorView> outputs;
  };

  Kept& keptFor(const CollectiveCall& call) SW_REQUIRES(mutex_);
  static Activity* pointShort(Kept& kept, std::span<const TensorView> inputs, std::span<const TensorView> outputs);
  void noteLatest(Kept& kept, const Given& given) SW_REQUIRES(mutex_);
  static const std::shared_ptr<Run>& takeRun(const Kept& kept, KeptStage& stage);
  void forget() SW_REQUIRES(mutex_);
  std::unique_ptr<Kept> make(const CollectiveCall& call) const;

  const Rank rank_;
  const Selection selection_;
  Mutex mutex_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Kept>> kept_ SW_GUARDED_BY(mutex_);
  std::size_t bytes_ SW_GUARDED_BY(mutex_) = 0;
  Kept* last_ SW_GUARDED_BY(mutex_) = nullptr;  // most calls repeat the one before
  Latest latest_ SW_GUARDED_BY(mutex_);
  std::atomic<const std::byte*> repeats_ = nullptr;  // latest_.first where latest_ has the tensors; no order is needed
};

}  // namespace shardwire::internal
