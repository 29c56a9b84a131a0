/* The one loop by which bench/compare.py measures shardwire, gloo and each MPI. A peer is a program that allocates
   memory and makes one call; the loop fills the tensors, lets the ranks start together, takes the times and checks the
   values. C and Python use this header too: plain C, no names of C++. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum PeerOperation {
  kPeerAllReduce = 0,     /* sum, in place in `in` */
  kPeerBroadcast = 1,     /* from rank 0, in place in `in` */
  kPeerAllGather = 2,     /* `elems` of `in`; numRanks * elems of `out` */
  kPeerReduceScatter = 3, /* sum; numRanks * elems of `in`; `elems` of `out` */
  kPeerAllToAll = 4,      /* numRanks * elems of `in` and of `out` */
  kPeerSendRecv = 5,      /* rank 0 sends `in` and receives into `out`; rank 1 first receives; other ranks: nothing */
  kPeerBarrier = 6,
  kPeerReshape = 7, /* Shard(0) to Shard(1): `in` is rows x (numRanks * columns), `out` (numRanks * rows) x columns */
  kPeerMemcpy = 8,  /* by the loop: `elems` from `in` to `out`, all ranks at once */
  kPeerNumOperations = 9
};

/* One rank's part of an operation on f32 tensors. The loop owns the members. */
struct PeerCall {
  int32_t operation; /* PeerOperation */
  int32_t rank, numRanks;
  int64_t elems;         /* of one rank's part of a list, or of the whole tensor */
  int64_t rows, columns; /* kPeerReshape: the box that one rank sends to another */
  float *in, *out;       /* both as long as the longer of input and output */
};

/* The functions get `context`. prepare and run return 1, or 0: prepare where the peer has no such operation, on all
   ranks alike; run after a failure, which ends the program. */
struct Peer {
  const char* version;
  void* context;
  float* (*allocate)(void* context, size_t bytes); /* null: malloc and free */
  void (*release)(void* context, float* memory);
  int (*prepare)(void* context, const struct PeerCall*); /* once before the calls of one size; null: nothing to do */
  int (*run)(void* context, const struct PeerCall*);     /* returns when the operation is done on this rank */
};

/* Measures what the JSON file `settings` lists, and writes rank 0's results as JSON. Returns the exit status. */
__attribute__((visibility("default"))) int runPeerLoop(const char* settings, int rank, int numRanks,
                                                       const struct Peer* peer);

#ifdef __cplusplus
}
#endif
