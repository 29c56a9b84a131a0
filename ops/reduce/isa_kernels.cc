// kernels.cc is compiled once for each instruction set (isa.cmake). Each copy has a namespace of its own and provides
// one table. The first call chooses the best table for this CPU.
#include "ops/reduce/isa_kernels.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#if SW_KERNELS_X86
#include <cpuid.h>
#endif

namespace shardwire::internal {

namespace baseline {
const KernelTable& kernelTable();
}
#if SW_KERNELS_X86
namespace avx2 {
const KernelTable& kernelTable();
}
namespace avx512 {
const KernelTable& kernelTable();
}

namespace {

bool cpuHasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool cpuHas(Isa isa) {
  // __builtin_cpu_supports also looks at whether the system saves the wide registers.
  const bool hasAvx2 = __builtin_cpu_supports("avx2") && cpuHasF16c();
  if (isa == Isa::kAvx2) {
    return hasAvx2;
  }
  return hasAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace
#endif
#if SW_KERNELS_NEON
namespace neon {
const KernelTable& kernelTable();
}
#endif

const KernelTable* kernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return &baseline::kernelTable();
#if SW_KERNELS_X86
    case Isa::kAvx2:
      return cpuHas(isa) ? &avx2::kernelTable() : nullptr;
    case Isa::kAvx512:
      return cpuHas(isa) ? &avx512::kernelTable() : nullptr;
#endif
#if SW_KERNELS_NEON
    case Isa::kNeon:  // a part of aarch64
      return &neon::kernelTable();
#endif
    default:
      return nullptr;
  }
}

namespace {

const KernelTable* chooseKernels() {
  const char* wanted = std::getenv("SHARDWIRE_ISA");
  const KernelTable* best = nullptr;
  for (int i = 0; i < kNumIsas; ++i) {
    const KernelTable* table = kernelsOf(static_cast<Isa>(i));
    if (table == nullptr) {
      continue;
    }
    if (wanted != nullptr && std::string_view(wanted) == table->name) {
      return table;
    }
    best = table;
  }
  return best;
}

// Relaxed is enough: the tables are constants, and all threads that find no table yet choose the same one.
std::atomic<const KernelTable*> chosen{nullptr};

// kPlain: the table's. Relaxed is enough: each value gives the same bytes.
std::atomic<RowStore> chosenLargeStore{RowStore::kPlain};
std::atomic<RowStore> chosenCachedStore{RowStore::kAhead};  // likewise
std::atomic<bool> stagedAreStreamed{true};                  // likewise

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_relaxed);
  if (table == nullptr) {
    table = chooseKernels();
    chosen.store(table, std::memory_order_relaxed);
  }
  return *table;
}

RowStore largeStore() {
  const RowStore store = chosenLargeStore.load(std::memory_order_relaxed);
  return store != RowStore::kPlain ? store : kernels().largeStore;
}

void useLargeStore(RowStore store) {
  chosenLargeStore.store(store, std::memory_order_relaxed);
}

RowStore cachedStore() {
  return chosenCachedStore.load(std::memory_order_relaxed);
}

void useCachedStore(RowStore store) {
  chosenCachedStore.store(store, std::memory_order_relaxed);
}

bool streamsStaged() {
  return stagedAreStreamed.load(std::memory_order_relaxed);
}

void useStreamsForStaged(bool streams) {
  stagedAreStreamed.store(streams, std::memory_order_relaxed);
}

void useKernelsForTest(Isa isa) {
  chosen.store(kernelsOf(isa), std::memory_order_relaxed);
}

}  // namespace shardwire::internal
