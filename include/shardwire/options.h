// Every tunable, read once from SHARDWIRE_* when a group is made; a plain value, printable.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire {

enum class OrdinaryPath : unsigned char { kAuto = 0, kCrossMemory = 1, kStaged = 2 };

struct Options {
  // How long an operation waits for its peers. The group's own timeout (c10d) replaces it. SHARDWIRE_TIMEOUT_S
  Duration timeout = std::chrono::minutes(30);
  // How long a waiter spins before it sleeps; negative: chosen by cores and local ranks. SHARDWIRE_SPIN_US
  Duration spin = std::chrono::nanoseconds(-1);
  // Bytes of the ring for staged payloads, per directed pair of ranks. SHARDWIRE_RING_BYTES
  std::size_t ringBytes = std::size_t{1} << 20;
  // Payloads of one edge up to this many bytes travel inside a frame even when the peer could address them. SHARDWIRE_INLINE_BYTES
  std::size_t inlineBytes = std::size_t{8} << 10;
  // How tensors outside the shared heap travel on one host. SHARDWIRE_ORDINARY_PATH=auto|cross_memory|staged
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
  // Algorithms to use whatever the table says: "broadcast=tree,reduce=chunks". Equal on all ranks. SHARDWIRE_ALGORITHMS
  std::string algorithms;
  // Address space (not memory) that the shared heap reserves. SHARDWIRE_HEAP_BYTES; 0: twice the machine's memory.
  std::size_t heapBytes = 0;

  // Options from the environment; kInvalidArgument naming the variable and its value when one cannot be read.
  static Result<Options> fromEnvironment();
};
std::string toString(const Options& options);

}  // namespace shardwire
