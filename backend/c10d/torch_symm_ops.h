// CPU kernels of torch's symm_mem ops. Each op is collective over a group, blocking, and gives the same bits on every
// rank: reductions go in rank order and round once. Any dtype and reduction of shardwire's kernels. When ranks
// disagree, or one rank has an error, all ranks get the same error.
#pragma once

#include "backend/c10d/torch_compat.h"
#if SW_TORCH_HAS_SYMMETRIC_MEMORY

namespace torch {
class Library;
}

namespace shardwire::internal {

#if !SW_TORCH_HAS_SYMM_BACKENDS
// Defines, as 2.13 does, the ops that this torch defines only in its CUDA sources or not at all. Call before any kernel
// of these ops is registered. Never undone.
void defineMissingSymmOps();
#endif
// Reductions, gathers, peers' tensors, words.
void implementSymmOps(torch::Library& library);
// all_to_all_vdev and its forms with experts.
void implementSymmAllToAll(torch::Library& library);
// The ops that torch writes in Python for CUDA: matrix products with a collective, and low-contention collectives.
void implementSymmFusedOps(torch::Library& library);

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
