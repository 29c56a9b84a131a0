// Questions to CUDA's driver that the device-generic guard of older torches does not answer. The functions of the
// driver and of torch's CUDA library are looked up in the running process, so one build serves torches with CUDA and
// without CUDA. Any thread.
#pragma once

#include <c10/core/Stream.h>

namespace shardwire::internal {

// Whether this stream of CUDA is being captured into a graph; false where the driver cannot be asked.
bool isCudaCapturing(const c10::Stream& stream);
// From now on the calling thread's queries and allocations end no graph capture of other threads, torch.cuda.graph's
// with its mode "global" included. For a thread that captures nothing. Does nothing without CUDA.
void keepCudaCapturesOfOthers();

}  // namespace shardwire::internal
