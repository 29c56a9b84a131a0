// CPU kernels of torch's symm_mem ops. Each is collective over a group, blocking, and gives the same bits on every rank: reductions go in
// rank order and round once. Any dtype and reduction that shardwire's kernels know. What the ranks disagree about, or what is wrong on one
// of them, is the same error on all.
#pragma once

#include "backend/c10d/torch_compat.h"
#if SW_TORCH_HAS_SYMMETRIC_MEMORY

namespace torch {
class Library;
}

namespace shardwire::internal {

#if !SW_TORCH_HAS_SYMM_BACKENDS
// The ops that this torch defines in its CUDA sources or not at all, as 2.13 defines them. Before any kernel of theirs. Never taken back.
void defineMissingSymmOps();
#endif
// Reductions, gathers, peers' tensors, words.
void implementSymmOps(torch::Library& library);
// all_to_all_vdev and its forms with experts.
void implementSymmAllToAll(torch::Library& library);
// Those that torch writes in Python for CUDA: matrix products with a collective, and low-contention collectives.
void implementSymmFusedOps(torch::Library& library);

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
