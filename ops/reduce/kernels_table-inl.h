// Which function serves which dtype and op. Included by kernels.cc only.
#pragma once

namespace shardwire::internal::SW_KERNEL_ISA {
namespace {

// The table. Rows are filled per dtype; a row of ReduceKernels is indexed by ReduceOp.
constexpr int index(ReduceOp op) {
  return static_cast<int>(op);
}

template <typename T, typename Op>
constexpr void setOp(ReduceKernel* row, ReduceOp op, const ReduceKernel& common) {
  row[index(op)] = common;
  row[index(op)].combineTwo = combineTwoLanes<T, Op>;
  row[index(op)].combine = combineLanes<T, Op>;
}

// Reductions of runs. T: what a mean divides.
template <typename Format, typename Op, bool kMean, typename T, std::size_t kElemBytes>
constexpr void setRuns(ReduceKernel* row, ReduceOp op) {
  row[index(op)].reduceRuns = reduceRuns<Format, Op, kMean, T, kElemBytes>;
  row[index(op)].runsDivideByPowersOfTwo = kMean && !kIsFloating<T>;
}

template <typename Format, std::size_t kElemBytes>
constexpr void setSumRuns(ReduceKernel* row) {
  setRuns<Format, Sum, false, typename Format::Acc, kElemBytes>(row, ReduceOp::kSum);
  setRuns<Format, Sum, true, typename Format::Acc, kElemBytes>(row, ReduceOp::kMean);
}
template <typename Format, std::size_t kElemBytes>
constexpr void setFloatingRuns(ReduceKernel* row) {
  setSumRuns<Format, kElemBytes>(row);
  setRuns<Format, Prod, false, typename Format::Acc, kElemBytes>(row, ReduceOp::kProd);
  setRuns<Format, Min, false, typename Format::Acc, kElemBytes>(row, ReduceOp::kMin);
  setRuns<Format, Max, false, typename Format::Acc, kElemBytes>(row, ReduceOp::kMax);
}

template <typename T>
constexpr void setFloating(ReduceKernel* row, const ReduceKernel& common) {
  setOp<T, Sum>(row, ReduceOp::kSum, common);
  setOp<T, Sum>(row, ReduceOp::kMean, common);
  setOp<T, Prod>(row, ReduceOp::kProd, common);
  setOp<T, Min>(row, ReduceOp::kMin, common);
  setOp<T, Max>(row, ReduceOp::kMax, common);
}

template <typename T>
constexpr void setComplex(ReduceKernel* row, ReduceKernel common) {
  common.lanesPerElem = 2;
  setOp<T, Sum>(row, ReduceOp::kSum, common);
  setOp<T, Sum>(row, ReduceOp::kMean, common);
  row[index(ReduceOp::kProd)] = common;
  row[index(ReduceOp::kProd)].combineTwo = multiplyComplexTwo<T>;
  row[index(ReduceOp::kProd)].combine = multiplyComplex<T>;
}

template <typename T>
constexpr ReduceKernel sameKernel() {
  ReduceKernel kernel;
  kernel.encode = encodeSame<T>;
  kernel.accBytes = sizeof(T);
  return kernel;
}

template <typename Type>
constexpr ReduceKernel floatKernel() {
  ReduceKernel kernel;
  kernel.decode = decodeLanes<Type>;
  kernel.encode = encodeLanes<Type>;
  kernel.accBytes = sizeof(float);
  return kernel;
}

constexpr ReduceKernel float16Kernel() {
  ReduceKernel kernel = floatKernel<Float16>();
#if defined(SW_KERNEL_CONVERTS_FLOAT16)
  kernel.decode = decodeFloat16Lanes;
  kernel.encode = encodeFloat16Lanes;
#endif
  return kernel;
}

// Bits: the unsigned type of T's size, for what is the same with and without a sign.
template <typename T, typename Bits>
constexpr void setInteger(ReduceKernel* row) {
  const ReduceKernel common = sameKernel<T>();
  setOp<Bits, Sum>(row, ReduceOp::kSum, common);
  setOp<Bits, Sum>(row, ReduceOp::kMean, common);
  setOp<Bits, Prod>(row, ReduceOp::kProd, common);
  setOp<T, Min>(row, ReduceOp::kMin, common);
  setOp<T, Max>(row, ReduceOp::kMax, common);
  setOp<Bits, And>(row, ReduceOp::kBand, common);
  setOp<Bits, Or>(row, ReduceOp::kBor, common);
  setOp<Bits, Xor>(row, ReduceOp::kBxor, common);
  constexpr std::size_t kBytes = sizeof(T);
  setRuns<SameFormat<Bits>, Sum, false, Bits, kBytes>(row, ReduceOp::kSum);
  setRuns<SameFormat<Bits>, Sum, true, T, kBytes>(row, ReduceOp::kMean);
  setRuns<SameFormat<Bits>, Prod, false, Bits, kBytes>(row, ReduceOp::kProd);
  setRuns<SameFormat<T>, Min, false, T, kBytes>(row, ReduceOp::kMin);
  setRuns<SameFormat<T>, Max, false, T, kBytes>(row, ReduceOp::kMax);
  setRuns<SameFormat<Bits>, And, false, Bits, kBytes>(row, ReduceOp::kBand);
  setRuns<SameFormat<Bits>, Or, false, Bits, kBytes>(row, ReduceOp::kBor);
  setRuns<SameFormat<Bits>, Xor, false, Bits, kBytes>(row, ReduceOp::kBxor);
}

template <typename Op>
constexpr void setBoolOp(ReduceKernel* row, ReduceOp op) {
  setOp<std::uint8_t, Op>(row, op, sameKernel<std::uint8_t>());
  setRuns<SameFormat<std::uint8_t>, Op, false, std::uint8_t, 1>(row, op);
}
// mean counts the true inputs and divides like an integer: true only where all are.
constexpr void setBool(ReduceKernel* row) {
  setBoolOp<AnyTrue>(row, ReduceOp::kSum);
  setBoolOp<AllTrue>(row, ReduceOp::kProd);
  setBoolOp<AllTrue>(row, ReduceOp::kMin);
  setBoolOp<AnyTrue>(row, ReduceOp::kMax);
  setBoolOp<AllTrue>(row, ReduceOp::kMean);
  setBoolOp<AllTrue>(row, ReduceOp::kBand);
  setBoolOp<AnyTrue>(row, ReduceOp::kBor);
  setBoolOp<OddTrue>(row, ReduceOp::kBxor);
}

template <typename From, typename To>
constexpr void setCast(KernelTable& table) {
  if constexpr (From::kDType != To::kDType) {
    table.castLanes[static_cast<int>(From::kDType)][static_cast<int>(To::kDType)] = castLanes<From, To>;
  }
}
template <typename From, typename... To>
constexpr void setCastsFrom(KernelTable& table) {
  (setCast<From, To>(table), ...);
}
template <typename... Type>
constexpr void setAllCasts(KernelTable& table) {
  (setCastsFrom<Type, Type...>(table), ...);
}

constexpr void setCasts(KernelTable& table) {
  setAllCasts<CastFloat16, CastBFloat16, CastFloat32, CastFloat64, CastFloat8E4M3FN, CastFloat8E5M2, CastFloat8E4M3FNUZ,
              CastFloat8E5M2FNUZ, CastFloat8E8M0>(table);
  constexpr DType kParts[] = {DType::kFloat16, DType::kFloat32, DType::kFloat64};
  constexpr DType kComplex[] = {DType::kComplex32, DType::kComplex64, DType::kComplex128};
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      table.castLanes[static_cast<int>(kComplex[from])][static_cast<int>(kComplex[to])] =
          table.castLanes[static_cast<int>(kParts[from])][static_cast<int>(kParts[to])];
    }
  }
}

constexpr KernelTable makeTable(const char* name) {
  KernelTable table{name, kUnmeasuredLargeStore, copyRows, streamOut, fence, {}, {}, castRows, addScaled};
  const auto row = [&table](DType dtype) { return table.reduce[static_cast<int>(dtype)]; };
  setBool(row(DType::kBool));
  setInteger<std::uint8_t, std::uint8_t>(row(DType::kUInt8));
  setInteger<std::int8_t, std::uint8_t>(row(DType::kInt8));
  setInteger<std::int16_t, std::uint16_t>(row(DType::kInt16));
  setInteger<std::int32_t, std::uint32_t>(row(DType::kInt32));
  setInteger<std::int64_t, std::uint64_t>(row(DType::kInt64));
  setInteger<std::uint16_t, std::uint16_t>(row(DType::kUInt16));
  setInteger<std::uint32_t, std::uint32_t>(row(DType::kUInt32));
  setInteger<std::uint64_t, std::uint64_t>(row(DType::kUInt64));
  setFloating<float>(row(DType::kFloat16), float16Kernel());
  setFloating<float>(row(DType::kBFloat16), floatKernel<BFloat16>());
  setFloating<float>(row(DType::kFloat32), sameKernel<float>());
  setFloating<double>(row(DType::kFloat64), sameKernel<double>());
  setComplex<float>(row(DType::kComplex32), float16Kernel());
  setComplex<float>(row(DType::kComplex64), sameKernel<float>());
  setComplex<double>(row(DType::kComplex128), sameKernel<double>());
  setFloating<float>(row(DType::kFloat8E4M3FN), floatKernel<Float8<Float8E4M3FNLayout>>());
  setFloating<float>(row(DType::kFloat8E5M2), floatKernel<Float8<Float8E5M2Layout>>());
  setFloating<float>(row(DType::kFloat8E4M3FNUZ), floatKernel<Float8<Float8E4M3FNUZLayout>>());
  setFloating<float>(row(DType::kFloat8E5M2FNUZ), floatKernel<Float8<Float8E5M2FNUZLayout>>());
  setFloating<float>(row(DType::kFloat8E8M0FNU), floatKernel<Float8E8M0>());
  setFloatingRuns<Float16Format, 2>(row(DType::kFloat16));
  setFloatingRuns<SplitFormat<WordsOfBFloat16>, 2>(row(DType::kBFloat16));
  setFloatingRuns<SameFormat<float>, 4>(row(DType::kFloat32));
  setFloatingRuns<SameFormat<double>, 8>(row(DType::kFloat64));
  setSumRuns<Float16Format, 2>(row(DType::kComplex32));
  setSumRuns<SameFormat<float>, 4>(row(DType::kComplex64));
  setSumRuns<SameFormat<double>, 8>(row(DType::kComplex128));
#if defined(SW_KERNEL_CONVERTS_FLOAT16)  // else the accumulators have real and imaginary parts apart
  setRuns<Float16Format, ComplexProd, false, float, 4>(row(DType::kComplex32), ReduceOp::kProd);
#endif
  setRuns<SameFormat<float>, ComplexProd, false, float, 8>(row(DType::kComplex64), ReduceOp::kProd);
  setRuns<SameFormat<double>, ComplexProd, false, double, 16>(row(DType::kComplex128), ReduceOp::kProd);
  setFloatingRuns<SplitFormat<WordsOfFloat8<Float8E4M3FNLayout>>, 1>(row(DType::kFloat8E4M3FN));
  setFloatingRuns<SplitFormat<WordsOfFloat8<Float8E5M2Layout>>, 1>(row(DType::kFloat8E5M2));
  setFloatingRuns<SplitFormat<WordsOfFloat8<Float8E4M3FNUZLayout>>, 1>(row(DType::kFloat8E4M3FNUZ));
  setFloatingRuns<SplitFormat<WordsOfFloat8<Float8E5M2FNUZLayout>>, 1>(row(DType::kFloat8E5M2FNUZ));
  setFloatingRuns<SplitFormat<WordsOfE8M0>, 1>(row(DType::kFloat8E8M0FNU));
  setCasts(table);
  return table;
}

}  // namespace
}  // namespace shardwire::internal::SW_KERNEL_ISA
