/* An MPI as a peer of bench/compare.py: mpicc mpi_peer.c -lpeer_loop, mpirun -n 2 a.out SETTINGS. Calls of MPI only;
   bench/peers/loop.h explains the loop. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"

static const MPI_Comm world = MPI_COMM_WORLD;

/* Of the reshape: one type and one count of 1 for each peer. MPI_Alltoallw takes the offsets from the types. */
static MPI_Datatype *send_types, *receive_types;
static int *ones, *zeros;

static MPI_Datatype box(int rows, int columns, int box_rows, int box_columns, int first_row, int first_column) {
  const int sizes[] = {rows, columns}, subsizes[] = {box_rows, box_columns}, starts[] = {first_row, first_column};
  MPI_Datatype type;
  MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_FLOAT, &type);
  MPI_Type_commit(&type);
  return type;
}

static void free_types(int n) {
  for (int peer = 0; send_types != NULL && peer < n; ++peer) {
    MPI_Type_free(&send_types[peer]);
    MPI_Type_free(&receive_types[peer]);
  }
  free(send_types);
  free(receive_types);
  free(ones);
  free(zeros);
  send_types = receive_types = NULL;
  ones = zeros = NULL;
}

static int prepare(void *context, const struct PeerCall *call) {
  const int n = call->numRanks, rows = (int)call->rows, columns = (int)call->columns;
  (void)context;
  if (call->operation != kPeerReshape) return 1;
  free_types(n);
  send_types = malloc((size_t)n * sizeof(MPI_Datatype));
  receive_types = malloc((size_t)n * sizeof(MPI_Datatype));
  ones = malloc((size_t)n * sizeof(int));
  zeros = calloc((size_t)n, sizeof(int));
  for (int peer = 0; peer < n; ++peer) {
    ones[peer] = 1;
    send_types[peer] = box(rows, n * columns, rows, columns, 0, peer * columns);
    receive_types[peer] = box(n * rows, columns, rows, columns, peer * rows, 0);
  }
  return 1;
}

static int run(void *context, const struct PeerCall *call) {
  const int count = (int)call->elems, tag = 7;
  float *in = call->in, *out = call->out;
  int code = MPI_SUCCESS;
  (void)context;
  switch (call->operation) {
    case kPeerAllReduce: code = MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_FLOAT, MPI_SUM, world); break;
    case kPeerBroadcast: code = MPI_Bcast(in, count, MPI_FLOAT, 0, world); break;
    case kPeerAllGather: code = MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, world); break;
    case kPeerReduceScatter: code = MPI_Reduce_scatter_block(in, out, count, MPI_FLOAT, MPI_SUM, world); break;
    case kPeerAllToAll: code = MPI_Alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, world); break;
    case kPeerBarrier: code = MPI_Barrier(world); break;
    case kPeerReshape: code = MPI_Alltoallw(in, ones, zeros, send_types, out, ones, zeros, receive_types, world); break;
    case kPeerSendRecv:
      if (call->rank == 0) {
        code = MPI_Send(in, count, MPI_FLOAT, 1, tag, world);
        if (code == MPI_SUCCESS) code = MPI_Recv(out, count, MPI_FLOAT, 1, tag, world, MPI_STATUS_IGNORE);
      } else if (call->rank == 1) {
        code = MPI_Recv(out, count, MPI_FLOAT, 0, tag, world, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS) code = MPI_Send(in, count, MPI_FLOAT, 0, tag, world);
      }
      break;
    default: return 0;
  }
  return code == MPI_SUCCESS;
}

int main(int argc, char **argv) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int rank, num_ranks, length, status;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &num_ranks);
  MPI_Get_library_version(version, &length);
  version[strcspn(version, "\n")] = '\0';
  {
    const struct Peer peer = {version, NULL, NULL, NULL, prepare, run};
    status = argc == 2 ? runPeerLoop(argv[1], rank, num_ranks, &peer) : 2;
  }
  free_types(num_ranks);
  MPI_Finalize();
  return status;
}
