// shardwire as a peer of bench/compare.py: shardwire_peer heap|ordinary RANKS SETTINGS. The ranks are forks of this
// program; no MPI is in the process. bench/peers/loop.h explains the loop.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backend/memory/shared_heap.h"
#include "bench/bench_ranks.h"
#include "bench/peers/loop.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "shardwire/version.h"

namespace shardwire::bench {
namespace {

constexpr int kTag = 7;

TensorView viewOf(float* first, Dims shape) {
  return TensorView::contiguous(first, DType::kFloat32, std::move(shape));
}

// One rank. The views of an operation are made once, in prepare().
class ShardwirePeer {
 public:
  explicit ShardwirePeer(Communicator& group) : group_(group) {}

  bool prepare(const PeerCall& call) {
    in_ = viewOf(call.in, {call.elems});
    out_ = viewOf(call.out, {call.elems});
    ins_.clear();
    outs_.clear();
    for (int r = 0; r < call.numRanks; ++r) {
      ins_.push_back(viewOf(call.in + r * call.elems, {call.elems}));
      outs_.push_back(viewOf(call.out + r * call.elems, {call.elems}));
    }
    return call.operation != kPeerReshape || compile(call);
  }

  bool run(const PeerCall& call) {
    switch (call.operation) {
      case kPeerAllReduce:
        return wait(group_.allReduce(in_, ReduceOp::kSum));
      case kPeerBroadcast:
        return wait(group_.broadcast(in_, 0));
      case kPeerAllGather:
        return wait(group_.allGather(in_, outs_));
      case kPeerReduceScatter:
        return wait(group_.reduceScatter(out_, ins_, ReduceOp::kSum));
      case kPeerAllToAll:
        return wait(group_.allToAll(outs_, ins_));
      case kPeerSendRecv:
        return call.rank > 1 || (call.rank == 0 ? wait(group_.send(in_, 1, kTag)) && wait(group_.recv(out_, 1, kTag))
                                                : wait(group_.recv(out_, 0, kTag)) && wait(group_.send(in_, 0, kTag)));
      case kPeerBarrier:
        return wait(group_.barrier());
      case kPeerReshape:
        return wait(bound_->run());
      default:
        return false;
    }
  }

 private:
  static bool wait(const Result<WorkPtr>& work) {
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    if (!status.isOk()) {
      std::fprintf(stderr, "shardwire_peer: %s\n", status.message().c_str());
    }
    return status.isOk();
  }

  bool compile(const PeerCall& call) {
    const Dims whole{call.rows * call.numRanks, call.columns * call.numRanks};
    const Dims inShape{call.rows, whole[1]}, outShape{whole[0], call.columns};
    LocalSpec spec;
    spec.tensors.push_back({"", whole, DType::kFloat32, ReduceOp::kNone});
    spec.inputs.push_back({0, inShape, {{{{call.rank * call.rows, 0}, inShape}, {0, 0}}}, 0});
    spec.outputs.push_back({0, outShape, {{{{0, call.rank * call.columns}, outShape}, {0, 0}}}, 0});
    auto op = group_.compileOp(spec);
    if (!op.isOk()) {
      fail(op.status().message());
    }
    const TensorView inputs[] = {viewOf(call.in, inShape)}, outputs[] = {viewOf(call.out, outShape)};
    auto bound = (*op)->bind(inputs, outputs);
    if (!bound.isOk()) {
      fail(bound.status().message());
    }
    bound_ = std::move(*bound);
    return true;
  }

  Communicator& group_;
  TensorView in_, out_;
  std::vector<TensorView> ins_, outs_;
  std::unique_ptr<BoundOp> bound_;
};

float* newInHeap(void* /*context*/, std::size_t bytes) {
  auto heap = internal::SharedHeap::instance();
  auto memory = heap.isOk() ? (*heap)->allocate(bytes) : heap.status();
  return memory.isOk() ? static_cast<float*>(*memory) : (fail(memory.status().message()), nullptr);
}

void freeInHeap(void* /*context*/, float* memory) {
  internal::SharedHeap::instance().value()->free(memory);
}

int runRank(Store& store, int rank, int numRanks, bool inHeap, const char* settings) {
  const Result<Options> environment = Options::fromEnvironment();
  auto group =
      environment.isOk() ? Communicator::create(store, rank, numRanks, *environment, "bench") : environment.status();
  if (!group.isOk()) {
    fail(group.status().message());
  }
  ShardwirePeer mine(**group);
  const std::string version = "shardwire " + std::string(kVersion);
  const Peer peer = {
      version.c_str(),
      &mine,
      inHeap ? newInHeap : nullptr,
      inHeap ? freeInHeap : nullptr,
      [](void* context, const PeerCall* call) { return static_cast<ShardwirePeer*>(context)->prepare(*call) ? 1 : 0; },
      [](void* context, const PeerCall* call) { return static_cast<ShardwirePeer*>(context)->run(*call) ? 1 : 0; }};
  return runPeerLoop(settings, rank, numRanks, &peer);
}

}  // namespace
}  // namespace shardwire::bench

int main(int argc, char** argv) {
  using namespace shardwire;
  using namespace shardwire::bench;
  const std::string way = argc == 4 ? argv[1] : "";
  const int numRanks = argc == 4 ? std::atoi(argv[2]) : 0;
  if (numRanks < 1 || (way != "heap" && way != "ordinary")) {
    fail("usage: shardwire_peer heap|ordinary RANKS SETTINGS");
  }
  MemoryStore store;
  BenchRanks ranks(numRanks);
  const auto done = ranks.run(false, [&](int rank) {
    const int status = runRank(store, rank, numRanks, way == "heap", argv[3]);
    return status == 0 ? std::string("done") : (fail("the loop failed"), std::string());
  });
  return done.has_value() ? 0 : 1;
}
