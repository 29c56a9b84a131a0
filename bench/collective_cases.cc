// A case allocates its tensors once, in ordinary memory and in the shared heap. Each iteration then fills the inputs
// with values of the iteration, runs the collective by shardwire or by MPI, and compares the outputs with the values
// computed from the rank, the index and the iteration.
#include "bench/collective_cases.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "backend/memory/shared_heap.h"

namespace shardwire::bench {

namespace {

constexpr int kTag = 7;

[[noreturn]] void giveUp(const std::string& why) {
  fmt::print(stderr, "collectives_bench: {}\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

void wait(const Result<WorkPtr>& work) {
  const Status status = work.isOk() ? (*work)->wait() : work.status();
  if (!status.isOk()) {
    giveUp(status.message());
  }
}

float* newInHeap(std::size_t elems) {
  auto heap = internal::SharedHeap::instance();
  if (!heap.isOk()) {
    giveUp(heap.status().message());
  }
  auto memory = (*heap)->allocate(elems * sizeof(float));
  return memory.isOk() ? static_cast<float*>(*memory) : (giveUp(memory.status().message()), nullptr);
}

bool isList(const std::string& name) {
  return name == "all_gather" || name == "reduce_scatter" || name == "all_to_all";
}

float valueAt(int rank, std::int64_t index, int iteration) {
  return static_cast<float>((rank + index + iteration) & 0xFF);
}

}  // namespace

const std::vector<std::string>& CollectiveCase::names() {
  static const std::vector<std::string> kNames = {"barrier",    "all_reduce",     "reduce",     "broadcast",
                                                  "all_gather", "reduce_scatter", "all_to_all", "send_recv"};
  return kNames;
}

double CollectiveCase::busFactor(const std::string& name, int numRanks) {
  const double others = static_cast<double>(numRanks - 1) / numRanks;
  return name == "all_reduce" ? 2 * others : isList(name) ? others : 1;
}

CollectiveCase::CollectiveCase(Communicator& group, std::string name, std::size_t bytes)
    : group_(group), name_(std::move(name)), rank_(group.rank()), numRanks_(group.worldSize()) {
  const auto elems = static_cast<std::int64_t>(bytes / sizeof(float));
  chunk_ = name_ == "barrier" ? 0
           : isList(name_)    ? std::max<std::int64_t>(1, elems / numRanks_)
                              : std::max<std::int64_t>(1, elems);
  const auto room = static_cast<std::size_t>(chunk_ * (isList(name_) ? numRanks_ : 1));
  ordinaryIn_.resize(room);
  heapIn_ = newInHeap(room);
  if (hasOutput()) {
    ordinaryOut_.resize(room);
    heapOut_ = newInHeap(room);
  }
  for (const By by : {By::kHeap, By::kOrdinary}) {
    in_[static_cast<std::size_t>(by)] = TensorView::contiguous(input(by), DType::kFloat32, {chunk_});
    out_[static_cast<std::size_t>(by)] = TensorView::contiguous(output(by), DType::kFloat32, {chunk_});
    if (isList(name_)) {
      inputs_[static_cast<std::size_t>(by)] = views(input(by));
      outputs_[static_cast<std::size_t>(by)] = views(output(by));
    }
  }
}

CollectiveCase::~CollectiveCase() {
  internal::SharedHeap* heap = internal::SharedHeap::instance().value();
  heap->free(heapIn_);
  if (heapOut_ != nullptr) {
    heap->free(heapOut_);
  }
}

bool CollectiveCase::hasOutput() const {
  return isList(name_) || name_ == "send_recv";
}

std::size_t CollectiveCase::bytes() const {
  return ordinaryIn_.size() * sizeof(float);
}

float* CollectiveCase::input(By by) const {
  return by == By::kHeap ? heapIn_ : const_cast<float*>(ordinaryIn_.data());
}

float* CollectiveCase::output(By by) const {
  return by == By::kHeap ? heapOut_ : const_cast<float*>(ordinaryOut_.data());
}

void CollectiveCase::prepare(By by, int iteration) {
  float* in = input(by);
  for (std::size_t i = 0; i < ordinaryIn_.size(); ++i) {
    in[i] = valueAt(rank_, static_cast<std::int64_t>(i), iteration);
  }
  if (hasOutput()) {
    std::fill_n(output(by), ordinaryOut_.size(), -1.0f);
  }
}

void CollectiveCase::run(By by) {
  by == By::kMpi ? runMpi() : runShardwire(by);
}

std::vector<TensorView> CollectiveCase::views(float* first) const {
  std::vector<TensorView> parts;
  for (int r = 0; r < numRanks_; ++r) {
    parts.push_back(TensorView::contiguous(first + r * chunk_, DType::kFloat32, {chunk_}));
  }
  return parts;
}

void CollectiveCase::runShardwire(By by) {
  const auto& inputs = inputs_[static_cast<std::size_t>(by)];
  const auto& outputs = outputs_[static_cast<std::size_t>(by)];
  const TensorView& in = in_[static_cast<std::size_t>(by)];
  const TensorView& out = out_[static_cast<std::size_t>(by)];
  if (name_ == "barrier") {
    wait(group_.barrier());
  } else if (name_ == "all_reduce") {
    wait(group_.allReduce(in, ReduceOp::kSum));
  } else if (name_ == "reduce") {
    wait(group_.reduce(in, 0, ReduceOp::kSum));
  } else if (name_ == "broadcast") {
    wait(group_.broadcast(in, 0));
  } else if (name_ == "all_gather") {
    wait(group_.allGather(in, outputs));
  } else if (name_ == "reduce_scatter") {
    wait(group_.reduceScatter(out, inputs, ReduceOp::kSum));
  } else if (name_ == "all_to_all") {
    wait(group_.allToAll(outputs, inputs));
  } else if (rank_ < 2) {
    if (rank_ == 0) {
      wait(group_.send(in, 1, kTag));
      wait(group_.recv(out, 1, kTag));
    } else {
      wait(group_.recv(out, 0, kTag));
      wait(group_.send(in, 0, kTag));
    }
  }
}

void CollectiveCase::runMpi() {
  float* in = input(By::kMpi);
  float* out = output(By::kMpi);
  const int count = static_cast<int>(chunk_);
  const MPI_Comm world = MPI_COMM_WORLD;
  if (name_ == "barrier") {
    MPI_Barrier(world);
  } else if (name_ == "all_reduce") {
    MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_FLOAT, MPI_SUM, world);
  } else if (name_ == "reduce") {
    MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : in, rank_ == 0 ? in : nullptr, count, MPI_FLOAT, MPI_SUM, 0, world);
  } else if (name_ == "broadcast") {
    MPI_Bcast(in, count, MPI_FLOAT, 0, world);
  } else if (name_ == "all_gather") {
    MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, world);
  } else if (name_ == "reduce_scatter") {
    MPI_Reduce_scatter_block(in, out, count, MPI_FLOAT, MPI_SUM, world);
  } else if (name_ == "all_to_all") {
    MPI_Alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, world);
  } else if (rank_ == 0) {
    MPI_Send(in, count, MPI_FLOAT, 1, kTag, world);
    MPI_Recv(out, count, MPI_FLOAT, 1, kTag, world, MPI_STATUS_IGNORE);
  } else if (rank_ == 1) {
    MPI_Recv(out, count, MPI_FLOAT, 0, kTag, world, MPI_STATUS_IGNORE);
    MPI_Send(in, count, MPI_FLOAT, 0, kTag, world);
  }
}

void CollectiveCase::check(By by, int iteration) {
  if (name_ == "barrier" || (name_ == "send_recv" && rank_ > 1)) {
    return;
  }
  const auto sumAt = [&](std::int64_t index) {
    float sum = 0;
    for (int r = 0; r < numRanks_; ++r) {
      sum += valueAt(r, index, iteration);
    }
    return sum;
  };
  const auto expectAt = [&](std::int64_t i) -> float {
    if (name_ == "all_reduce" || (name_ == "reduce" && rank_ == 0)) {
      return sumAt(i);
    }
    if (name_ == "reduce_scatter") {
      return i < chunk_ ? sumAt(rank_ * chunk_ + i) : -1.0f;
    }
    const auto from = static_cast<int>(i / chunk_);
    if (name_ == "all_gather") {
      return valueAt(from, i % chunk_, iteration);
    }
    if (name_ == "all_to_all") {
      return valueAt(from, rank_ * chunk_ + i % chunk_, iteration);
    }
    return valueAt(name_ == "broadcast" ? 0 : name_ == "send_recv" ? 1 - rank_ : rank_, i, iteration);
  };
  const float* result = hasOutput() ? output(by) : input(by);
  for (const auto i : {std::int64_t{0}, static_cast<std::int64_t>(ordinaryIn_.size()) - 1}) {
    if (result[i] != expectAt(i)) {
      giveUp(fmt::format("{} by way {}: element {} is {}, not {}", name_, static_cast<int>(by), i, result[i],
                         expectAt(i)));
    }
  }
}

}  // namespace shardwire::bench
