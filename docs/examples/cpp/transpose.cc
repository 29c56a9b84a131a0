// Row slabs to column slabs of one global matrix, then a sum over the ranks: compileOp and a collective from C++.
#include <ATen/ATen.h>
#include <shardwire/c10d.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

namespace {

int intFromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// This rank's share of `shape` cut along `dim`: one box, a tensor of its own.
shardwire::LocalTensor slab(const shardwire::Dims& shape, int dim, int rank, int worldSize) {
  const std::int64_t extent = shape[dim] / worldSize;
  shardwire::Slice slice{shardwire::Dims::filled(shape.size(), 0), shape};
  slice.offset[dim] = rank * extent;
  slice.shape[dim] = extent;
  shardwire::LocalTensor tensor;
  tensor.localShape = slice.shape;
  tensor.slices.push_back({slice, shardwire::Dims::filled(shape.size(), 0)});
  return tensor;
}

int run() {
  const int rank = intFromEnvironment("RANK", 0);
  const int worldSize = intFromEnvironment("WORLD_SIZE", 1);
  const char* path = std::getenv("STORE");
  auto store =
      c10::make_intrusive<::c10d::FileStore>(path == nullptr ? "/tmp/shardwire_example.store" : path, worldSize);
  auto group = shardwire::create(store, rank, worldSize, std::chrono::seconds(60), "example");

  const std::int64_t n = 4 * worldSize;
  const shardwire::Dims shape{n, n};
  shardwire::LocalSpec spec;
  spec.tensors.push_back({"", shape, shardwire::DType::kFloat32, shardwire::ReduceOp::kNone});
  spec.inputs.push_back(slab(shape, 0, rank, worldSize));
  spec.outputs.push_back(slab(shape, 1, rank, worldSize));
  auto op = shardwire::compileOp(*group, spec);

  const at::Tensor global = at::arange(n * n, at::kFloat).reshape({n, n});
  const at::Tensor input = shardwire::emptyInSharedHeap({n / worldSize, n});
  input.copy_(global.chunk(worldSize, 0)[rank]);
  const at::Tensor output = shardwire::emptyInSharedHeap({n, n / worldSize});
  op->run(std::array{input}, std::array{output})->wait();
  // For the same tensors again and again: they are checked once, and each run moves what they hold then.
  const auto bound = op->bind(std::array{input}, std::array{output});
  output.zero_();
  bound->run()->wait();

  std::vector<at::Tensor> sum{at::full({1}, rank + 1.0F)};
  group->allreduce(sum)->wait();
  const bool right =
      output.equal(global.chunk(worldSize, 1)[rank]) && sum[0].item<float>() == worldSize * (worldSize + 1) / 2.0F;
  std::printf("rank %d of %d: columns and sum %s\n", rank, worldSize, right ? "right" : "WRONG");
  if (rank == 0) {
    std::printf("%s%s", op->explain().c_str(), shardwire::communicatorOf(*group)->describeTransports().c_str());
  }
  group->barrier()->wait();
  shardwire::shutdown(*group);
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const shardwire::StatusError& error) {
    std::fprintf(stderr, "shardwire: %s\n", error.what());
    return 2;
  }
}
