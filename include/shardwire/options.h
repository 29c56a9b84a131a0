// Every tunable, read once from SHARDWIRE_* when a group is made; a plain value, printable.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "shardwire/status.h"
#include "shardwire/storage_watch.h"
#include "shardwire/types.h"

namespace shardwire {

enum class OrdinaryPath : unsigned char { kAuto = 0, kCrossMemory = 1, kStaged = 2 };
enum class LinksWhen : unsigned char { kAuto = 0, kEager = 1, kLazy = 2 };

struct Options {
  // How long an operation waits for its peers. The group's own timeout (c10d) replaces it. SHARDWIRE_TIMEOUT_S
  Duration timeout = std::chrono::minutes(30);
  // How long a rank whose process failed in another group, because a rank died there, may keep this group waiting with nothing in flight in
  // it. Then this group fails, too, and names the cause. Negative: to the timeout. Shutting the failed group down ends this.
  // SHARDWIRE_GRACE_S
  Duration grace = std::chrono::seconds(5);
  // How long a waiter spins before it sleeps; negative: chosen by cores and local ranks. SHARDWIRE_SPIN_US
  Duration spin = std::chrono::nanoseconds(-1);
  // Bytes of the ring for staged payloads, per directed pair of ranks. SHARDWIRE_RING_BYTES
  std::size_t ringBytes = std::size_t{1} << 20;
  // Payloads of one edge up to this many bytes travel inside a frame even when the peer could address them. SHARDWIRE_INLINE_BYTES
  std::size_t inlineBytes = std::size_t{8} << 10;
  // How tensors outside the shared heap travel: read by the peer (on one host across memories, over tcp fetched), or packed into frames.
  // SHARDWIRE_ORDINARY_PATH=auto|cross_memory|staged
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
  // Which transports may join ranks: "rdma,tcp" these and no others, "^tcp" all but those; empty: all, the fastest that reaches a peer.
  // SHARDWIRE_TRANSPORTS
  std::string transports;
  // When ranks are joined: all when the group is made (eager), so that what is in the way shows there. Or each two when an operation of
  // theirs first needs it (lazy), so that making a group of many costs little. auto: eager up to 16 ranks. Ranks that mpi joins are joined
  // at once in any case. SHARDWIRE_LINKS=auto|eager|lazy
  LinksWhen links = LinksWhen::kAuto;
  // The name of this process's host; empty: the running kernel's and the network namespace's. Ranks whose hosts have different names do not
  // use shared memory with each other. For schedulers that know better, and for trying several hosts on one. SHARDWIRE_HOST_ID, else
  // NCCL_HOSTID
  std::string hostId;
  // Interfaces for the bootstrap and for tcp, by name prefix as for NCCL ("eth,ib0", "=eth0" exactly, "^docker,lo" all but those); empty:
  // all that are up, but for loopback and docker bridges when there is another. SHARDWIRE_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else
  // GLOO_SOCKET_IFNAME
  std::string socketIfname;
  // A secret of the job beside the store's token, so that who can read the store cannot join. Equal on all ranks. SHARDWIRE_JOB_TOKEN
  std::string jobToken;
  // RDMA devices and ports by name prefix ("mlx5_0:1,mlx5_1"), as socketIfname. SHARDWIRE_RDMA_DEVICES, else NCCL_IB_HCA
  std::string rdmaDevices;
  // GID of RoCE ports by index; negative: chosen (RoCE v2 over IPv4 first). SHARDWIRE_RDMA_GID_INDEX, else NCCL_IB_GID_INDEX
  int rdmaGidIndex = -1;
  // Before each operation all ranks compare its whole call (dtype, shapes, root, reduction, splits; of send and recv dtype and shape), not
  // only what must be equal for the bytes to fit. A difference fails that operation on every rank with both calls shown
  // (docs/errors.md). For finding a bug: it costs one exchange of messages per operation. Equal on all ranks. SHARDWIRE_CHECK=full|default
  bool checkAll = false;
  // How many operations each group remembers for its flight recorder, which tells what this rank did last (docs/sight.md); 0: none.
  // Not set: 256 in torch's groups, and in others where something asks for them. SHARDWIRE_RECORDED_OPS, else TORCH_FR_BUFFER_SIZE, else
  // TORCH_NCCL_TRACE_BUFFER_SIZE
  int recordedOps = -1;
  // Where the flight recorder is written when a group fails (a timeout, a rank that is gone, ranks that disagree): this with the job's rank
  // behind it, for torchfrtrace. Empty: nowhere. SHARDWIRE_RECORD_FILE, else TORCH_FR_DUMP_TEMP_FILE, else TORCH_NCCL_DEBUG_INFO_TEMP_FILE
  std::string recordFile;
  // Whether this process tells `python -m shardwire.status` what it does, over a socket that only its user can open. SHARDWIRE_STATUS=0|1
  bool serveStatus = false;
  // Tells whether the storages that TensorView::storage names are alive; outlives the groups. Null: nobody knows. Not from the environment.
  const StorageWatch* storages = nullptr;
  // Whether the group's store may hold what an earlier attempt of the job wrote: a launcher that starts the ranks anew may keep it. Equal
  // on all ranks. Not from the environment: torch's groups under torchrun have it.
  bool storeIsKept = false;
  // Algorithms to use whatever the table says: "broadcast=tree,reduce=chunks". Equal on all ranks. SHARDWIRE_ALGORITHMS
  std::string algorithms;
  // Address space (not memory) that the shared heap reserves. SHARDWIRE_HEAP_BYTES; 0: twice the machine's memory.
  std::size_t heapBytes = 0;
  // Most pinned memory that tensors of devices are staged in, per group; longer ones go through a few pieces of it. SHARDWIRE_STAGING_BYTES
  std::size_t stagingBytes = std::size_t{256} << 20;

  // Options from the environment; kInvalidArgument naming the variable and its value when one cannot be read.
  static Result<Options> fromEnvironment();
};
std::string toString(const Options& options);

}  // namespace shardwire
