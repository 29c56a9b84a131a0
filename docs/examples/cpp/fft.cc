// Fourier transforms of arrays in slabs, from C++: each is compared with at::fft of the whole array, and the way back
// with the array.
#include <ATen/ATen.h>
#include <shardwire/c10d.h>
#include <shardwire/tensor_fft.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

namespace {

int intFromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

at::Tensor partOf(const at::Tensor& whole, const shardwire::Slice& slice) {
  at::Tensor part = whole;
  for (int dim = 0; dim < slice.shape.size(); ++dim) {
    part = part.narrow(dim, slice.offset[dim], slice.shape[dim]);
  }
  return part;
}

bool areClose(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || (a - b).abs().max().item<double>() < 1e-3);
}

bool check(shardwire::TorchBackend& group, const shardwire::FftSpec& spec) {
  at::Tensor whole = at::rand({spec.shape.begin(), static_cast<std::size_t>(spec.shape.size())}, spec.type);
  std::vector<at::Tensor> same{
      at::view_as_real(at::complex(at::real(whole).to(at::kDouble), at::zeros_like(at::real(whole), at::kDouble)))};
  group.broadcast(same)->wait();  // the ranks' random numbers differ
  whole = at::real(at::view_as_complex(same[0])).to(spec.type);

  const auto fft = shardwire::planFft(group, spec);
  const at::Tensor array = partOf(whole, fft->arraySlice());
  const at::Tensor spectrum = fft->forward(array);
  const at::Tensor expected = at::isComplexType(spec.type) ? at::fft_fftn(whole) : at::fft_rfftn(whole);
  return areClose(spectrum, partOf(expected, fft->spectrumSlice())) && areClose(fft->inverse(spectrum), array);
}

template <typename Call>
bool isRefused(const Call& call) {
  try {
    call();
  } catch (const shardwire::StatusError&) {
    return true;
  }
  return false;
}

// A rank with a different spec gets an error, and so do the other ranks. An operand of a wrong shape is refused on its
// rank.
bool isMisuseRefused(shardwire::TorchBackend& group) {
  const auto refuses = [&](const shardwire::FftSpec& spec) {
    return isRefused([&] { shardwire::planFft(group, spec); });
  };
  const int rank = group.getRank();
  const auto fft = shardwire::planFft(group, {{8, 8}});
  const at::Tensor narrow = at::zeros({8, 7}, at::kComplexFloat);
  return refuses({{8}, at::kFloat}) && refuses({{8, 8}, at::kHalf}) && isRefused([&] { fft->forward(narrow); }) &&
         isRefused([&] { fft->inverse(narrow); }) &&
         (group.getSize() == 1 || (refuses({{8, 8}, at::kFloat, rank == 0}) && refuses({{8, 8 + rank}, at::kFloat})));
}

int run() {
  const int rank = intFromEnvironment("RANK", 0);
  const int worldSize = intFromEnvironment("WORLD_SIZE", 1);
  const char* path = std::getenv("STORE");
  auto store =
      c10::make_intrusive<::c10d::FileStore>(path == nullptr ? "/tmp/shardwire_example.store" : path, worldSize);
  auto group = shardwire::create(store, rank, worldSize, std::chrono::seconds(60), "example");

  int wrong = 0;
  int cases = 0;
  for (const shardwire::Dims& shape :
       std::vector<shardwire::Dims>{{8, 6}, {9, 7}, {5, 4, 6}, {1, 3, 2}, {4, 3, 2, 5}}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
      for (const bool transposed : {true, false}) {
        wrong += check(*group, {shape, type, transposed}) ? 0 : 1;
        ++cases;
      }
    }
  }
  const bool refused = isMisuseRefused(*group);
  std::printf("rank %d of %d: %d of %d transforms right, misuse %s\n", rank, worldSize, cases - wrong, cases,
              refused ? "refused" : "NOT REFUSED");
  if (rank == 0) {
    std::printf("%s", shardwire::planFft(*group, {{8, 6}})->explain().c_str());
  } else {
    shardwire::planFft(*group, {{8, 6}});
  }
  group->barrier()->wait();
  shardwire::shutdown(*group);
  return wrong == 0 && refused ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shardwire: %s\n", error.what());
    return 2;
  }
}
