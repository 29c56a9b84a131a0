// The table of kernels of one instruction set. Compiled several times (isa.cmake): SW_KERNEL_ISA names the namespace.
// Everything but kernelTable() is local to the translation unit, and nothing of the std library is called, so that the
// linker can never take a function compiled here for wide registers in place of an ordinary one.
#include "ops/reduce/isa_kernels.h"

#ifndef SW_KERNEL_ISA
#define SW_KERNEL_ISA baseline
#endif
#define SW_KERNEL_NAME_OF_(x) #x
#define SW_KERNEL_NAME_OF(x) SW_KERNEL_NAME_OF_(x)

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(SW_KERNEL_NEON)
#include <arm_neon.h>
#endif

// The processor converts float16. The conversions of aarch64 are used by the kernels named neon alone: the baseline is
// plain code on each processor.
#if defined(__F16C__) || defined(SW_KERNEL_NEON)
#define SW_KERNEL_CONVERTS_FLOAT16
#endif

#include "ops/reduce/kernels_copy-inl.h"
#include "ops/reduce/kernels_numeric-inl.h"
#include "ops/reduce/kernels_reduce-inl.h"
#include "ops/reduce/kernels_reduce_runs-inl.h"
#include "ops/reduce/kernels_row_cast-inl.h"
#include "ops/reduce/kernels_table-inl.h"

namespace shardwire::internal::SW_KERNEL_ISA {

const KernelTable& kernelTable();
const KernelTable& kernelTable() {
  static constexpr KernelTable kTable = makeTable(SW_KERNEL_NAME_OF(SW_KERNEL_ISA));
  return kTable;
}

}  // namespace shardwire::internal::SW_KERNEL_ISA
