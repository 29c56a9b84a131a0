// First come the storage over one rank's part of a block, identified by its deleter, and the checks of tensors, ranks
// and shapes. Then the public functions, all written alike: find the block behind the tensor (requirePlace), check the
// ranks and the operands, and call the block, or work directly on the parts addressed here. Functions that write wake
// the owners of the parts.
#include "backend/c10d/symmetric_tensor.h"

#include <algorithm>

#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/throw_status.h"
#include "ops/boxes/reduce_box.h"

namespace shardwire::internal {
namespace {

// The deleter of a SymmetricPlace, the context of a storage over symmetric memory; also identifies such storages.
void dropPlace(void* place) {
  delete static_cast<SymmetricPlace*>(place);
}

c10::Storage storageOver(SymmetricPlace place) {
  std::byte* const bytes = place.block->address(place.rank);
  const std::size_t size = place.block->bytes();
  c10::DataPtr data(bytes, new SymmetricPlace(std::move(place)), &dropPlace, c10::Device(c10::DeviceType::CPU));
  return {c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, false};
}

at::Tensor tensorOver(c10::Storage storage, c10::ScalarType type, c10::IntArrayRef shape, c10::IntArrayRef strides,
                      std::int64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

SymmetricPlace requirePlace(const at::Tensor& tensor, std::string_view what) {
  auto place = symmetricPlaceOf(tensor);
  if (!place.has_value()) {
    refuseCall(StatusCode::kInvalidArgument,
               "{} does not lie in symmetric memory: make it by shardwire.symm.empty() on all ranks", what);
  }
  if (place->block->isFreed()) {
    refuseCall(StatusCode::kInvalidArgument, "{}: symmetric memory #{} was freed", what, place->block->number());
  }
  return std::move(*place);
}

void requireRank(const SymmetricPlace& place, Rank rank, std::string_view what) {
  const int size = place.block->worldSize();
  if (rank < 0 || rank >= size) {
    refuseCall(StatusCode::kInvalidArgument, "{}: rank {} is out of range: the tensor's group has {} ranks, 0 to {}",
               what, rank, size, size - 1);
  }
}

void requireAddress(const SymmetricPlace& place, Rank rank, std::string_view what) {
  requireRank(place, rank, what);
  if (place.block->address(rank) == nullptr) {
    refuseCall(StatusCode::kUnsupported, "{}: {}", what, place.block->whyNot(rank));
  }
}

// `view` lies in the part of place.rank: the same box in the part of `rank`.
StridedBox boxInPart(const TensorView& view, const SymmetricPlace& place, Rank rank) {
  StridedBox box = boxOf(view);
  if (numElements(view.shape) > 0) {
    box.bytes = place.block->address(rank) + (view.bytes - place.block->address(place.rank));
  }
  return box;
}

// The same elements of any rank's part.
PartView partView(const TensorView& view, const SymmetricPlace& place) {
  const bool isEmpty = numElements(view.shape) == 0;
  return {isEmpty ? 0 : static_cast<std::size_t>(view.bytes - place.block->address(place.rank)), view.dtype, view.shape,
          view.strides};
}

// A request keeps the tensor alive beyond the end of the call.
OneSidedCall callOver(const at::Tensor& tensor, const SymmetricPlace& place, Rank rank, bool isNonBlocking) {
  const bool isDirect = place.block->address(rank) != nullptr;
  return {.keepAlive = isDirect ? nullptr : std::make_shared<at::Tensor>(tensor), .isNonBlocking = isNonBlocking};
}

void requireAlike(const TensorView& one, const TensorView& other, std::string_view what) {
  if (one.dtype != other.dtype || !(one.shape == other.shape)) {
    refuseCall(one.dtype != other.dtype ? StatusCode::kTypeError : StatusCode::kInvalidArgument,
               "{}: the tensors must have one shape and dtype, not {}{} and {}{}", what, dtypeName(one.dtype),
               toString(one.shape), dtypeName(other.dtype), toString(other.shape));
  }
}

// Two elements to be written must not share memory.
void requireWritable(const TensorView& view, std::string_view what) {
  for (int dim = 0; dim < view.shape.size(); ++dim) {
    if (view.strides[dim] == 0 && view.shape[dim] > 1) {
      refuseCall(StatusCode::kInvalidArgument, "{} is an expanded tensor: several of its elements are one in memory",
                 what);
    }
  }
}

void requireRanks(const SymmetricPlace& place, std::span<const Rank> ranks, std::string_view what) {
  if (ranks.empty()) {
    refuseCall(StatusCode::kInvalidArgument, "{}: no ranks", what);
  }
  for (const Rank rank : ranks) {
    requireAddress(place, rank, what);
  }
}

TensorView oneElement(const at::Tensor& word, std::string_view what) {
  const TensorView view = viewOf(word, what);
  if (numElements(view.shape) != 1) {
    refuseCall(StatusCode::kInvalidArgument, "{} must be one element, such as t[i], not of shape {}", what,
               toString(view.shape));
  }
  return view;
}

TensorView wordOf(const SymmetricPlace& place, const at::Tensor& word, WordOp op, Rank rank) {
  requireRank(place, rank, "atomic");
  const TensorView view = oneElement(word, "atomic: the tensor");
  if (!supportsWordOp(view.dtype, op)) {
    refuseCall(StatusCode::kTypeError, "atomic {} is not defined on {}", wordOpName(op), dtypeName(view.dtype));
  }
  return view;
}

// Holds this rank's turn for writes with one order in all parts. Throws when the turn does not come.
class OrderedTurn {
 public:
  explicit OrderedTurn(SymmetricMemory& block) : block_(block) { throwUnlessOk(block.enterOrder()); }
  ~OrderedTurn() { block_.leaveOrder(); }
  OrderedTurn(const OrderedTurn&) = delete;
  OrderedTurn& operator=(const OrderedTurn&) = delete;

 private:
  SymmetricMemory& block_;
};

}  // namespace

at::Tensor symmetricTensor(std::shared_ptr<SymmetricMemory> block, Rank rank, c10::IntArrayRef shape,
                           c10::ScalarType type) {
  const Dims strides = contiguousStrides(Dims(std::span<const std::int64_t>(shape.data(), shape.size())));
  return tensorOver(storageOver({std::move(block), rank}), type, shape,
                    c10::IntArrayRef(strides.begin(), static_cast<std::size_t>(strides.size())), 0);
}

std::optional<SymmetricPlace> symmetricPlaceOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != c10::kStrided || !tensor.has_storage()) {
    return std::nullopt;
  }
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &dropPlace ? std::optional(*static_cast<const SymmetricPlace*>(data.get_context()))
                                          : std::nullopt;
}

at::Tensor peerTensor(const at::Tensor& tensor, Rank rank) {
  const SymmetricPlace place = requirePlace(tensor, "get_peer_tensor: the tensor");
  requireAddress(place, rank, "get_peer_tensor");
  (void)viewOf(
      tensor, "get_peer_tensor: the tensor");  // refuses properties lost in a peer's tensor, such as a lazy conjugation
  return tensorOver(storageOver({place.block, rank}), tensor.scalar_type(), tensor.sizes(), tensor.strides(),
                    tensor.storage_offset());
}

bool isDirect(const at::Tensor& tensor, Rank rank) {
  const auto place = symmetricPlaceOf(tensor);
  return !place.has_value() || rank < 0 || rank >= place->block->worldSize() || place->block->address(rank) != nullptr;
}

void putTo(const at::Tensor& to, const at::Tensor& from, Rank rank, bool isNonBlocking) {
  const SymmetricPlace place = requirePlace(to, "put: dst");
  requireRank(place, rank, "put");
  const TensorView target = viewOf(to, "put: dst");
  const TensorView source = viewOf(from, "put: src");
  requireAlike(target, source, "put");
  requireWritable(target, "put: dst");
  throwUnlessOk(place.block->put(rank, partView(target, place), source, callOver(from, place, rank, isNonBlocking)));
}

void getFrom(const at::Tensor& to, const at::Tensor& from, Rank rank, bool isNonBlocking) {
  const SymmetricPlace place = requirePlace(from, "get: src");
  requireRank(place, rank, "get");
  const TensorView target = viewOf(to, "get: dst");
  const TensorView source = viewOf(from, "get: src");
  requireAlike(target, source, "get");
  requireWritable(target, "get: dst");
  throwUnlessOk(place.block->get(rank, partView(source, place), target, callOver(to, place, rank, isNonBlocking)));
  bumpVersions(to);
}

void requireWord(const at::Tensor& word, WordOp op, Rank rank) {
  (void)wordOf(requirePlace(word, "atomic: the tensor"), word, op, rank);
}

std::uint64_t atomicOn(const at::Tensor& word, WordOp op, Rank rank, std::uint64_t operand, std::uint64_t expected,
                       bool fetches) {
  const SymmetricPlace place = requirePlace(word, "atomic: the tensor");
  const TensorView view = wordOf(place, word, op, rank);
  return valueOrThrow(
      place.block->atomic(rank, partView(view, place).offset, view.dtype, op, operand, expected, fetches));
}

std::uint64_t waitOn(const at::Tensor& word, Comparison comparison, std::uint64_t value,
                     std::optional<Duration> timeout, std::span<const Rank> sources) {
  const SymmetricPlace place = requirePlace(word, "signal_wait: the tensor");
  if (place.rank != place.block->rank()) {
    refuseCall(StatusCode::kInvalidArgument, "signal_wait: the tensor is the part of rank {}; a rank waits for its own",
               place.rank);
  }
  const TensorView view = oneElement(word, "signal_wait: the tensor");
  const auto offset = static_cast<std::size_t>(view.bytes - place.block->address(place.rank));
  return valueOrThrow(place.block->waitUntil(offset, view.dtype, comparison, value, timeout, sources));
}

void reduceParts(const at::Tensor& tensor, std::span<const Rank> ranks, ReduceOp op, const at::Tensor& out) {
  const SymmetricPlace place = requirePlace(tensor, "ld_reduce: the tensor");
  requireRanks(place, ranks, "ld_reduce");
  const TensorView view = viewOf(tensor, "ld_reduce: the tensor");
  const TensorView result = viewOf(out, "ld_reduce: out");
  if (op == ReduceOp::kNone || !supportsReduction(view.dtype, op)) {
    refuseCall(StatusCode::kTypeError, "ld_reduce: {} is not defined on {}", reduceOpName(op), dtypeName(view.dtype));
  }
  if (!(view.shape == result.shape) || !supportsCast(view.dtype, result.dtype)) {
    refuseCall(StatusCode::kInvalidArgument, "ld_reduce: out is {}{}, and the tensor {}{}", dtypeName(result.dtype),
               toString(result.shape), dtypeName(view.dtype), toString(view.shape));
  }
  requireWritable(result, "ld_reduce: out");
  std::vector<StridedBox> sources;
  for (const Rank rank : ranks) {
    sources.push_back(boxInPart(view, place, rank));
  }
  reduceBox(boxOf(result), result.dtype, sources, view.shape, view.dtype, op);
  bumpVersions(out);
}

void storeToParts(const at::Tensor& tensor, std::span<const Rank> ranks, const at::Tensor& values) {
  const SymmetricPlace place = requirePlace(tensor, "store: the tensor");
  requireRanks(place, ranks, "store");
  const TensorView view = viewOf(tensor, "store: the tensor");
  const TensorView source = viewOf(values, "store: values");
  requireAlike(view, source, "store");
  requireWritable(view, "store: the tensor");
  for (const Rank rank : ranks) {
    copyBox(boxInPart(view, place, rank), boxOf(source), view.shape, elementBytes(view.dtype));
    place.block->wake(rank);
  }
}

void reduceIntoParts(const at::Tensor& tensor, std::span<const Rank> ranks, WordOp op, const at::Tensor& values) {
  const SymmetricPlace place = requirePlace(tensor, "red: the tensor");
  requireRanks(place, ranks, "red");
  const TensorView view = viewOf(tensor, "red: the tensor");
  const TensorView source = viewOf(values, "red: values");
  requireAlike(view, source, "red");
  requireWritable(view, "red: the tensor");
  if (!supportsWordOp(view.dtype, op)) {
    refuseCall(StatusCode::kTypeError, "red: {} is not defined on {}", wordOpName(op), dtypeName(view.dtype));
  }
  {
    const auto turn = commutes(view.dtype, op) ? std::nullopt : std::optional<OrderedTurn>(std::in_place, *place.block);
    for (const Rank rank : ranks) {
      applyWords(boxInPart(view, place, rank), boxOf(source), view.shape, view.dtype, op);
    }
  }
  std::ranges::for_each(ranks, [&](Rank rank) { place.block->wake(rank); });
}

}  // namespace shardwire::internal
