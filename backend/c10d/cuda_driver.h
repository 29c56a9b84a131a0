// What the device-generic guard of older torches does not offer, asked of CUDA's driver. The driver and torch's own CUDA
// library are looked up in the running process, so that one build serves torches with CUDA and without. Any thread.
#pragma once

#include <c10/core/Stream.h>

namespace shardwire::internal {

// Whether this stream of CUDA is being captured into a graph; false where the driver cannot be asked.
bool isCudaCapturing(const c10::Stream& stream);

}  // namespace shardwire::internal
