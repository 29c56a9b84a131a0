// Symmetric memory (shardwire.symm): the native functions behind python/shardwire/symm. First names become enums, and
// numbers become the bits of an element. Then come the calls with conversions of their own: making a tensor, atomics,
// waits. The bind functions follow, for memory, for words and for multicast, and at the end the registration of torch's
// own API. Calls that copy much, or that may wait for another rank, run without the GIL.
#include <fmt/format.h>
#include <pybind11/complex.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstring>

#include "backend/base/fence.h"
#include "backend/c10d/symmetric_tensor.h"
#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/torch_symm.h"
#include "backend/symm/deferred_release.h"
#include "backend/symm/quiet.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using internal::throwUnlessOk;
using internal::valueOrThrow;
using Seconds = std::optional<double>;
using Ranks = std::vector<Rank>;

// Copies of more bytes are made without the GIL: releasing and taking the GIL costs as much as copying this many bytes.
constexpr std::int64_t kFewBytes = 4096;

template <typename Call>
void withoutGilWhereLong(const at::Tensor& tensor, const Call& call, bool isDirect = true) {
  if (isDirect && tensor.numel() * tensor.element_size() <= kFewBytes) {
    call();
    return;
  }
  const GilRelease release;
  call();
}

WordOp wordOpOf(const std::string& name) {
  for (int op = 0; op < kNumWordOps; ++op) {
    if (name == internal::wordOpName(static_cast<WordOp>(op))) {
      return static_cast<WordOp>(op);
    }
  }
  throw py::value_error("no atomic operation is named '" + name + "'");
}

WordOp redOpOf(const std::string& name) {
  if (const auto op = internal::wordOpOf(reductionOf(name)); op.has_value()) {
    return *op;
  }
  throw py::value_error("red: '" + name + "' is no operation on one element");
}

Comparison comparisonOf(const std::string& name) {
  constexpr std::array<std::array<const char*, 2>, kNumComparisons> kNames = {
      {{"eq", "=="}, {"ne", "!="}, {"gt", ">"}, {"ge", ">="}, {"lt", "<"}, {"le", "<="}}};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i][0] || name == kNames[i][1]) {
      return static_cast<Comparison>(i);
    }
  }
  throw py::value_error("cmp is '" + name + "'; give eq, ne, gt, ge, lt or le");
}

// ---- numbers as the bytes of an element, and back

// The two's complement bits, widened to 64; ValueError if the type has no such value.
std::uint64_t integerBits(const py::handle& value, DType dtype) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    throw py::error_already_set();
  }
  const int bits = 8 * static_cast<int>(elementBytes(dtype));
  const bool isSigned = internal::integerText(dtype, ~std::uint64_t{0}).front() == '-';
  int overflow = 0;
  const long long asSigned = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  bool fits = overflow == 0;
  auto result = static_cast<std::uint64_t>(asSigned);
  if (isSigned) {
    fits = fits && (bits == 64 || (asSigned >= -(1LL << (bits - 1)) && asSigned < (1LL << (bits - 1))));
  } else if (overflow > 0) {
    result = PyLong_AsUnsignedLongLong(index.ptr());
    fits = bits == 64 && PyErr_Occurred() == nullptr;
    PyErr_Clear();
  } else {
    fits = fits && asSigned >= 0 && (bits == 64 || result < (std::uint64_t{1} << bits));
  }
  if (!fits) {
    throw py::value_error(std::string(py::str(index)) + " is no " + std::string(dtypeName(dtype)));
  }
  return result;
}

std::uint64_t bitsOf(const py::handle& value, c10::ScalarType type) {
  const DType dtype = internal::dtypeOf(type);
  if (value.is_none()) {
    throw py::type_error("the value is None; give a number");
  }
  if (internal::isInteger(dtype)) {
    return integerBits(value, dtype);
  }
  std::uint64_t bits = 0;
  const bool isComplex = c10::isComplexType(type);
  const at::Scalar scalar = isComplex ? at::Scalar(c10::complex<double>(value.cast<std::complex<double>>()))
                                      : at::Scalar(value.cast<double>());
  const at::Tensor element = at::scalar_tensor(scalar, isComplex ? c10::kComplexDouble : c10::kDouble).to(type);
  std::memcpy(&bits, element.data_ptr(), std::min<std::size_t>(sizeof bits, element.element_size()));
  return bits;
}

py::object numberOf(std::uint64_t bits, c10::ScalarType type) {
  const DType dtype = internal::dtypeOf(type);
  if (internal::isInteger(dtype)) {
    bits = internal::loadInteger(reinterpret_cast<const std::byte*>(&bits), dtype);
    const bool isSigned = internal::integerText(dtype, ~std::uint64_t{0}).front() == '-';
    return isSigned ? py::object(py::int_(static_cast<std::int64_t>(bits))) : py::object(py::int_(bits));
  }
  if (dtype == DType::kBool) {
    return py::bool_((bits & 1) != 0);
  }
  const at::Tensor element = at::empty({}, type);
  std::memcpy(element.data_ptr(), &bits, element.element_size());
  if (c10::isComplexType(type)) {
    const auto value = element.to(c10::kComplexDouble).item().toComplexDouble();
    return py::cast(std::complex<double>(value.real(), value.imag()));
  }
  return py::float_(element.to(c10::kDouble).item().toDouble());
}

// ---- calls

at::Tensor makeTensor(Group group, const std::vector<std::int64_t>& shape, const py::object& dtype,
                      const std::string& error, bool isZeroed, Seconds timeout) {
  const auto communicator = group->communicator();
  const c10::ScalarType type = scalarTypeOf(dtype);
  const Dims dims{std::span<const std::int64_t>(shape)};
  SymmetricRequest request{.localError = error, .isZeroed = isZeroed, .jobRanks = group->globalRanks()};
  request.bytes = c10::elementSize(type);
  for (const std::int64_t extent : shape) {  // checked by the caller: not negative, and no overflow
    request.bytes *= static_cast<std::size_t>(extent);
  }
  request.text = fmt::format("{}{}{}", c10::toString(type), toString(dims), isZeroed ? " of zeros" : "");
  const GilRelease release;
  auto block = valueOrThrow(communicator->makeSymmetric(request, durationOf(timeout)));
  const Rank rank = block->rank();
  return internal::symmetricTensor(std::move(block), rank, shape, type);
}

// (number, rank of the part, this rank, size of the group), or None.
py::object placeOf(const at::Tensor& tensor) {
  const auto place = internal::symmetricPlaceOf(tensor);
  if (!place.has_value()) {
    return py::none();
  }
  return py::make_tuple(place->block->number(), place->rank, place->block->rank(), place->block->worldSize());
}

std::shared_ptr<SymmetricMemory> blockOf(const at::Tensor& tensor, const char* what) {
  const auto place = internal::symmetricPlaceOf(tensor);
  if (!place.has_value()) {
    throw py::value_error(
        std::string(what) +
        ": the tensor does not lie in symmetric memory: make it by shardwire.symm.empty() on all ranks");
  }
  return place->block;
}

// The type of an element on which atomics work.
c10::ScalarType wordTypeOf(const at::Tensor& word) {
  const c10::ScalarType type = word.scalar_type();
  if (c10::elementSize(type) > 8) {
    throw py::type_error(std::string("atomics are on elements of up to 8 bytes, not on ") + c10::toString(type));
  }
  return type;
}

py::object atomic(const at::Tensor& word, const std::string& op, Rank rank, const py::object& value,
                  const py::object& expected, bool fetches) {
  const WordOp wordOp = wordOpOf(op);
  const c10::ScalarType type = wordTypeOf(word);
  const std::uint64_t operand = wordOp == WordOp::kFetch ? 0 : bitsOf(value, type);
  const std::uint64_t condition = wordOp == WordOp::kCompareSwap ? bitsOf(expected, type) : 0;
  std::uint64_t before = 0;
  if (internal::isDirect(word, rank)) {
    before = internal::atomicOn(word, wordOp, rank, operand, condition, fetches);
  } else {
    const GilRelease release;
    before = internal::atomicOn(word, wordOp, rank, operand, condition, fetches);
  }
  return fetches ? numberOf(before, type) : py::object(py::none());
}

// Raises what atomic() would raise for these arguments, and changes nothing.
void checkAtomic(const at::Tensor& word, const std::string& op, Rank rank, const py::object& value) {
  (void)bitsOf(value, wordTypeOf(word));
  internal::requireWord(word, wordOpOf(op), rank);
}

py::object wait(const at::Tensor& word, const std::string& cmp, const py::object& value, Seconds timeout,
                const Ranks& sources) {
  const Comparison comparison = comparisonOf(cmp);
  const DType dtype = internal::dtypeOf(word.scalar_type());
  if (!internal::isInteger(dtype)) {
    throw py::type_error("signal_wait: a signal is an integer, not " + std::string(dtypeName(dtype)));
  }
  const std::uint64_t bits = integerBits(value, dtype);
  std::uint64_t seen = 0;
  {
    const GilRelease release;
    seen = internal::waitOn(word, comparison, bits, durationOf(timeout), sources);
  }
  return numberOf(seen, word.scalar_type());
}

void bindMemory(py::module_& module) {
  module.def(
      "symm_job_ranks", [](const at::Tensor& tensor) { return blockOf(tensor, "job_ranks")->jobRanks(); },
      py::arg("tensor"), "The job's rank of each member of the tensor's group.");
  const py::call_guard<GilRelease> released;
  module.def("symm_make", &makeTensor, py::arg("backend"), py::arg("shape"), py::arg("dtype"), py::arg("error"),
             py::arg("zeroed"), py::arg("timeout") = py::none(),
             "Collective: this rank's part of a new block, as a tensor.");
  module.def("symm_place", &placeOf, py::arg("tensor"),
             "(number, rank of the part, this rank, size of the group), or None.");
  module.def("symm_peer", &internal::peerTensor, py::arg("tensor"), py::arg("rank"));
  module.def(
      "symm_free",
      [](const at::Tensor& tensor, Seconds timeout, const std::string& error) {
        throwUnlessOk(blockOf(tensor, "free")->free(durationOf(timeout), error));
      },
      py::arg("tensor"), py::arg("timeout"), py::arg("error"), released);
  module.def(
      "symm_is_freed", [](const at::Tensor& tensor) { return blockOf(tensor, "is_freed")->isFreed(); },
      py::arg("tensor"));
  module.def(
      "symm_put",
      [](const at::Tensor& dst, const at::Tensor& src, Rank rank, bool nonBlocking) {
        withoutGilWhereLong(
            src, [&] { internal::putTo(dst, src, rank, nonBlocking); }, internal::isDirect(dst, rank));
      },
      py::arg("dst"), py::arg("src"), py::arg("rank"), py::arg("non_blocking") = false);
  module.def(
      "symm_get",
      [](const at::Tensor& dst, const at::Tensor& src, Rank rank, bool nonBlocking) {
        withoutGilWhereLong(
            src, [&] { internal::getFrom(dst, src, rank, nonBlocking); }, internal::isDirect(src, rank));
      },
      py::arg("dst"), py::arg("src"), py::arg("rank"), py::arg("non_blocking") = false);
  module.def("symm_num_deferred", &internal::numDeferred, "Blocks that this process released and a peer still holds.");
}

void bindWords(py::module_& module) {
  module.def("symm_atomic", &atomic, py::arg("word"), py::arg("op"), py::arg("rank"), py::arg("value") = py::none(),
             py::arg("expected") = py::none(), py::arg("fetches") = true, "The value before; None without `fetches`.");
  module.def("symm_check_atomic", &checkAtomic, py::arg("word"), py::arg("op"), py::arg("rank"), py::arg("value"));
  module.def("symm_wait", &wait, py::arg("word"), py::arg("cmp"), py::arg("value"), py::arg("timeout"),
             py::arg("sources"));
  module.def("symm_fence", &internal::fullFence);
  module.def("symm_quiet", [] {
    if (internal::isAllQuiet()) {
      internal::fullFence();
      return;
    }
    const GilRelease release;
    throwUnlessOk(internal::quietAll());
  });
  module.def(
      "symm_barrier",
      [](Group group, Seconds timeout) { throwUnlessOk(group->communicator()->symmetricBarrier(durationOf(timeout))); },
      py::arg("backend"), py::arg("timeout") = py::none(), py::call_guard<GilRelease>());
}

void bindMulticast(py::module_& module) {
  module.def(
      "symm_ld_reduce",
      [](const at::Tensor& tensor, const Ranks& ranks, const std::string& op, const at::Tensor& out) {
        const ReduceOp reduction = reductionOf(op);
        withoutGilWhereLong(tensor, [&] { internal::reduceParts(tensor, ranks, reduction, out); });
      },
      py::arg("tensor"), py::arg("ranks"), py::arg("op"), py::arg("out"));
  module.def(
      "symm_store",
      [](const at::Tensor& tensor, const Ranks& ranks, const at::Tensor& values) {
        withoutGilWhereLong(tensor, [&] { internal::storeToParts(tensor, ranks, values); });
      },
      py::arg("tensor"), py::arg("ranks"), py::arg("values"));
  module.def(
      "symm_red",
      [](const at::Tensor& tensor, const Ranks& ranks, const std::string& op, const at::Tensor& values) {
        const WordOp wordOp = redOpOf(op);
        const GilRelease release;  // the call may wait for another rank's turn
        internal::reduceIntoParts(tensor, ranks, wordOp, values);
      },
      py::arg("tensor"), py::arg("ranks"), py::arg("op"), py::arg("values"));
}

void bindTorchSymmetricMemory(py::module_& module) {
  module.attr("torch_symmetric_memory_failure") = internal::registerTorchSymmetricMemory();
  module.attr("has_torch_symmetric_memory") = internal::hasTorchSymmetricMemory();
}

}  // namespace

void bindSymmetricMemory(py::module_& module) {
  bindTorchSymmetricMemory(module);
  bindMemory(module);
  bindWords(module);
  bindMulticast(module);
}

}  // namespace shardwire::python
