// Every tunable, read once from SHARDWIRE_* when a group is made; a plain value, printable.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/storage_watch.h"
#include "shardwire/types.h"

namespace shardwire {

enum class OrdinaryPath : unsigned char { kAuto = 0, kCrossMemory = 1, kStaged = 2 };
enum class LinksWhen : unsigned char { kAuto = 0, kEager = 1, kLazy = 2 };
enum class TcpTls : unsigned char { kAuto = 0, kOn = 1, kOff = 2 };

struct Options {
  // Time that an operation waits for its peers. The group's own timeout (c10d) replaces this value. SHARDWIRE_TIMEOUT_S
  Duration timeout = std::chrono::minutes(30);
  // An operation that has waited this long logs a warning that names the missing ranks and their state, and again after
  // twice the time. Zero or negative: no warning. SHARDWIRE_WARN_S
  Duration warnAfter = std::chrono::minutes(1);
  // How long this group waits for a rank whose process failed in another group because a rank died there, while that
  // rank has no operation in flight here. Then this group fails too and names the cause. Negative: wait until the
  // timeout. Shutting down the failed group ends this rule. SHARDWIRE_GRACE_S
  Duration grace = std::chrono::milliseconds(500);
  // How long a waiter spins before sleeping; negative: chosen by cores and local ranks. SHARDWIRE_SPIN_US
  Duration spin = std::chrono::nanoseconds(-1);
  // Bytes of the ring for staged payloads, per directed pair of ranks. SHARDWIRE_RING_BYTES
  std::size_t ringBytes = std::size_t{1} << 20;
  // Payloads of one edge up to this many bytes travel inside a frame even when the peer could address them. Messages
  // between two ranks do so up to four times this many bytes, over a wire about twice. SHARDWIRE_INLINE_BYTES
  std::size_t inlineBytes = std::size_t{8} << 10;
  // How tensors outside the shared heap travel: read by the peer (on one host across memories, over tcp fetched), or
  // packed into frames. SHARDWIRE_ORDINARY_PATH=auto|cross_memory|staged
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
  // The transports that may join ranks: "rdma,tcp" only these two, "^tcp" all but tcp; empty: all. The fastest that
  // reaches a peer is used. SHARDWIRE_TRANSPORTS
  std::string transports;
  // When ranks are joined. eager: all ranks when the group is made, so that obstacles show there. lazy: two ranks when
  // an operation first needs their link, so that a group of many ranks is made cheaply. auto: eager up to 16 ranks.
  // Ranks joined by mpi are always joined when the group is made. SHARDWIRE_LINKS=auto|eager|lazy
  LinksWhen links = LinksWhen::kAuto;
  // The name of this process's host; empty: the name of the running kernel and the network namespace. Ranks with
  // different host names do not share memory with each other. For schedulers that know the hosts better, and for
  // simulating several hosts on one. SHARDWIRE_HOST_ID, else NCCL_HOSTID
  std::string hostId;
  // Interfaces for the bootstrap and for tcp, by name prefix as for NCCL ("eth,ib0", "=eth0" exactly, "^docker,lo" all
  // but these); empty: all interfaces that are up; loopback and docker bridges only when there are no others.
  // SHARDWIRE_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME
  std::string socketIfname;
  // Whether tcp adds a CRC-32C to each unit of frames and each block of fetched bytes. Then bytes that were changed on
  // the way, behind a right TCP checksum (broken memory of a router or network card), end the group with an error. A
  // connection has checksums if either rank asks for them. SHARDWIRE_TCP_CRC=0|1
  bool tcpCrc = false;
  // Whether tcp encrypts: TLS 1.3 under a key that both ranks derive from the tokens of store and job. auto: between
  // two hosts, when the job has a token, and where the other rank has "on"; on: always; off: never. Ranks with "off"
  // are not joined to ranks that must encrypt. SHARDWIRE_TCP_TLS=auto|on|off
  TcpTls tcpTls = TcpTls::kAuto;
  // A secret of the job beside the store's token, so that a process which can read the store still cannot join. Equal
  // on all ranks. SHARDWIRE_JOB_TOKEN
  std::string jobToken;
  // RDMA devices and ports by name prefix ("mlx5_0:1,mlx5_1"), as socketIfname. SHARDWIRE_RDMA_DEVICES, else
  // NCCL_IB_HCA
  std::string rdmaDevices;
  // GID of RoCE ports by index; negative: chosen (RoCE v2 over IPv4 first). SHARDWIRE_RDMA_GID_INDEX, else
  // NCCL_IB_GID_INDEX
  int rdmaGidIndex = -1;
  // Before each operation all ranks compare the whole call (dtype, shapes, root, reduction, splits; for send and recv
  // dtype and shape), not only the arguments that must be equal for the bytes to fit. A difference fails the operation
  // on every rank, and the error shows both calls (docs/errors.md). For finding a bug: costs one exchange of messages
  // per operation. Equal on all ranks. SHARDWIRE_CHECK=full|default
  bool checkAll = false;
  // Number of operations that each group remembers for its flight recorder, which shows the last operations of this
  // rank (docs/sight.md); 0: none. Not set: 256 in torch's groups, and in other groups when the operations are asked
  // for. SHARDWIRE_RECORDED_OPS, else TORCH_FR_BUFFER_SIZE, else TORCH_NCCL_TRACE_BUFFER_SIZE
  int recordedOps = -1;
  // File of the flight recorder, written when a group fails (a timeout, a dead rank, ranks that disagree): this prefix
  // followed by the job's rank, for torchfrtrace. Empty: no file. SHARDWIRE_RECORD_FILE, else TORCH_FR_DUMP_TEMP_FILE,
  // else TORCH_NCCL_DEBUG_INFO_TEMP_FILE
  std::string recordFile;
  // Whether this process reports its state to `python -m shardwire.status`, over a socket that only the process's user
  // and root can open. SHARDWIRE_STATUS=0|1
  bool serveStatus = false;
  // Says whether the storages named by TensorView::storage are alive; outlives the groups. Null: not known. Not from
  // the environment.
  const StorageWatch* storages = nullptr;
  // Called by create(), on the caller's thread, for each rank that has not arrived. Not ok: the process of the rank is
  // gone, as this process knows, and the group cannot be made. Null: nothing is known. Not from the environment.
  std::function<Status(Rank)> statusOfAbsent;
  // Whether the group's store may contain keys of an earlier attempt of the job: a launcher that restarts the ranks may
  // keep the store. Equal on all ranks. Not from the environment: set in torch's groups under torchrun.
  bool storeIsKept = false;
  // Algorithms to use whatever the table says: "broadcast=tree,reduce=chunks". Equal on all ranks. SHARDWIRE_ALGORITHMS
  std::string algorithms;
  // Address space (not memory) that the shared heap reserves. SHARDWIRE_HEAP_BYTES; 0: twice the machine's memory.
  std::size_t heapBytes = 0;
  // Most pinned memory for staging tensors of devices, per group; longer tensors go through in a few pieces.
  // SHARDWIRE_STAGING_BYTES
  std::size_t stagingBytes = std::size_t{256} << 20;

  // Options from the environment; kInvalidArgument naming the variable and the value when a variable cannot be read.
  SHARDWIRE_EXPORT static Result<Options> fromEnvironment();
};
SHARDWIRE_EXPORT std::string toString(const Options& options);

}  // namespace shardwire
