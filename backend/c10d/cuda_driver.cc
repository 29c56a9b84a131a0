#include "backend/c10d/cuda_driver.h"

#include <dlfcn.h>

namespace shardwire::internal {
namespace {

// cuStreamIsCapturing; 0 is success.
using IsStreamCapturing = int (*)(void* stream, int* status);
// cuThreadExchangeStreamCaptureMode; the argument is a CUstreamCaptureMode, and becomes the mode before.
using ExchangeCaptureMode = int (*)(int* mode);
constexpr int kCaptureModeThreadLocal = 1;
// c10::cuda::CUDAStream::stream() const; a CUDAStream has one member, the c10::Stream.
using StreamOfTorch = void* (*)(const c10::Stream* stream);

// Of a library that this process has loaded already: a process with CUDA tensors has loaded both.
template <typename Function>
Function loadedFunction(const char* library, const char* name) {
  void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(loaded, name));
}

}  // namespace

bool isCudaCapturing(const c10::Stream& stream) {
  static const auto isCapturing = loadedFunction<IsStreamCapturing>("libcuda.so.1", "cuStreamIsCapturing");
  static const auto streamOfTorch =
      loadedFunction<StreamOfTorch>("libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv");
  int status = 0;
  return isCapturing != nullptr && streamOfTorch != nullptr && isCapturing(streamOfTorch(&stream), &status) == 0 &&
         status != 0;
}

void keepCudaCapturesOfOthers() {
  static const auto exchange = loadedFunction<ExchangeCaptureMode>("libcuda.so.1", "cuThreadExchangeStreamCaptureMode");
  if (exchange != nullptr) {
    int mode = kCaptureModeThreadLocal;
    exchange(&mode);
  }
}

}  // namespace shardwire::internal
