// The class that torch calls a backend, under one name: since 2.0 a c10d::Backend behind a ProcessGroup, before 2.0 the
// ProcessGroup itself.
#pragma once

// Before ATen.h, which torch's headers include: clang in C++20 wants IValue complete there.
#include <ATen/core/ivalue.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

namespace shardwire {

#if TORCH_VERSION_MAJOR >= 2
using TorchBackend = ::c10d::Backend;
#else
using TorchBackend = ::c10d::ProcessGroup;
#endif

}  // namespace shardwire
