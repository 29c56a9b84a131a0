// One-sided access: a copy or an atomic operation where the part can be addressed here, otherwise a request to the
// part's owner.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "backend/base/fence.h"
#include "backend/exec/one_sided_requests.h"
#include "backend/exec/process_engines.h"
#include "backend/symm/quiet.h"
#include "backend/symm/symmetric_block.h"
#include "backend/symm/word_ops.h"
#include "ops/boxes/copy_box.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {
namespace {

Dims byteStridesOf(const PartView& box) {
  Dims strides = box.strides;
  for (std::int64_t& stride : strides) {
    stride *= static_cast<std::int64_t>(elementBytes(box.dtype));
  }
  return strides;
}

// Row by row, without gaps.
bool isPacked(const StridedBox& box, const Dims& shape, std::size_t elemBytes) {
  std::int64_t step = static_cast<std::int64_t>(elemBytes);
  for (int dim = shape.size() - 1; dim >= 0; --dim) {
    if (shape[dim] != 1 && box.byteStrides[dim] != step) {
      return false;
    }
    step *= shape[dim];
  }
  return true;
}

bool isEmpty(const Dims& shape) {
  return numElements(shape) == 0;
}

// A run of up to some MiB is mostly warm, and then the processor's own copy is the fastest; cold runs are not slower
// either. Boxes and longer runs are copied by the loops of copyBox.
void copyNow(const StridedBox& to, const StridedBox& from, const Dims& shape, std::size_t elemBytes) {
  const std::size_t bytes = boxBytes(shape, elemBytes);
  const bool isRun =
      bytes > 0 && bytes < kStreamFromBytes && isPacked(to, shape, elemBytes) && isPacked(from, shape, elemBytes);
  if (isRun && to.bytes != from.bytes) {
    std::memcpy(to.bytes, from.bytes, bytes);
  } else {
    copyBox(to, from, shape, elemBytes);
  }
}

// For errors.
std::string textOf(std::string_view what, const PartView& box, Rank peer) {
  return fmt::format("{}({}{}, rank {})", what, dtypeName(box.dtype), toString(box.shape), peer);
}

}  // namespace

Status SymmetricBlock::checkBox(std::string_view what, Rank peer, const PartView& box, const TensorView& other) const {
  SW_RETURN_IF_ERROR(usable());
  if (peer < 0 || peer >= worldSize()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: rank {} is out of range: the group has {} ranks, 0 to {}",
                                                      what, peer, worldSize(), worldSize() - 1)};
  }
  if (box.strides.size() != box.shape.size()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: the box of rank {} has shape {} and {} strides: give one stride per dimension", what, peer,
                        toString(box.shape), box.strides.size())};
  }
  if (!hasStrides(other)) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: the tensor of this rank {}", what, wrongStridesText(other))};
  }
  if (box.dtype != other.dtype || !(box.shape == other.shape)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: the two must have one shape and dtype, not {}{} and {}{}", what, dtypeName(box.dtype),
                        toString(box.shape), dtypeName(other.dtype), toString(other.shape))};
  }
  const std::size_t extent = extentBytes({nullptr, byteStridesOf(box)}, box.shape, elementBytes(box.dtype));
  if (box.offset > bytes_ || extent > bytes_ - box.offset) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: {} bytes from byte {} on are outside of the {} bytes of {}",
                                                      what, extent, box.offset, bytes_, name_)};
  }
  return Status::ok();
}

StridedBox SymmetricBlock::boxIn(Rank peer, const PartView& box) const {
  return {partOf(peer).bytes + box.offset, byteStridesOf(box)};
}

template <typename Request, typename... Arguments>
Status SymmetricBlock::request(std::string_view what, Rank peer, const OneSidedCall& call, Arguments&&... arguments) {
  const std::shared_ptr<Engine> engine = engine_.lock();
  if (engine == nullptr) {
    return ended();
  }
  const auto request = std::make_shared<Request>(peer, std::forward<Arguments>(arguments)...);
  request->description = std::make_shared<const std::string>(what);
  // Peers keep their parts until this rank has released the block, which happens after the last request.
  request->keepAlive =
      std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(shared_from_this(), call.keepAlive);
  SW_RETURN_IF_ERROR(engine->memory().request(request, std::span(&peer, 1)));
  return call.isNonBlocking ? Status::ok() : request->wait(kNoDeadline);
}

Status SymmetricBlock::put(Rank peer, const PartView& to, const TensorView& from, const OneSidedCall& call) {
  SW_RETURN_IF_ERROR(checkBox("put", peer, to, from));
  const std::size_t elemBytes = elementBytes(to.dtype);
  if (partOf(peer).bytes != nullptr) {
    copyNow(boxIn(peer, to), boxOf(from), to.shape, elemBytes);
    return Status::ok();
  }
  return isEmpty(to.shape)
             ? Status::ok()
             : request<PutRequest>(textOf("put", to, peer), peer, call,
                                   PartBox{number_, to.offset, elemBytes, to.shape, byteStridesOf(to)}, boxOf(from));
}

Status SymmetricBlock::get(Rank peer, const PartView& from, const TensorView& to, const OneSidedCall& call) {
  SW_RETURN_IF_ERROR(checkBox("get", peer, from, to));
  const std::size_t elemBytes = elementBytes(from.dtype);
  if (partOf(peer).bytes != nullptr) {
    copyNow(boxOf(to), boxIn(peer, from), from.shape, elemBytes);
    return Status::ok();
  }
  return isEmpty(from.shape)
             ? Status::ok()
             : request<GetRequest>(textOf("get", from, peer), peer, call,
                                   PartBox{number_, from.offset, elemBytes, from.shape, byteStridesOf(from)},
                                   boxOf(to));
}

Result<std::uint64_t> SymmetricBlock::atomic(Rank peer, std::size_t offset, DType dtype, WordOp op,
                                             std::uint64_t operand, std::uint64_t expected, bool fetches) {
  const PartView word{offset, dtype, {}, {}};
  SW_RETURN_IF_ERROR(checkBox("atomic", peer, word, TensorView{.bytes = nullptr, .dtype = dtype}));
  if (!supportsWordOp(dtype, op) || offset % elementBytes(dtype) != 0) {
    return Status{StatusCode::kTypeError,
                  fmt::format("atomic {} is not defined on {} at byte {}", wordOpName(op), dtypeName(dtype), offset)};
  }
  if (std::byte* const part = partOf(peer).bytes; part != nullptr) {
    const std::uint64_t before = applyWord(part + offset, dtype, op, operand, expected);
    if (op != WordOp::kFetch) {
      wake(peer);
    }
    return before;
  }
  const std::shared_ptr<Engine> engine = engine_.lock();
  if (engine == nullptr) {
    return ended();
  }
  const WordFrame frame{.block = number_,
                        .offset = offset,
                        .operand = operand,
                        .expected = expected,
                        .op = static_cast<std::uint32_t>(op),
                        .dtype = static_cast<std::uint32_t>(dtype)};
  const auto request = std::make_shared<WordRequest>(peer, frame, !fetches);
  request->description = std::make_shared<const std::string>(
      fmt::format("atomic {}({}, rank {})", wordOpName(op), dtypeName(dtype), peer));
  request->keepAlive = shared_from_this();
  SW_RETURN_IF_ERROR(engine->memory().request(request, std::span(&peer, 1)));
  SW_RETURN_IF_ERROR(request->wait(kNoDeadline));
  return request->before();
}

Status SymmetricBlock::quiet(std::optional<Duration> timeout) {
  fullFence();
  if (reachesAll_) {
    return Status::ok();  // no requests were made in this group
  }
  const std::shared_ptr<Engine> engine = engine_.lock();
  return engine == nullptr ? ended() : engine->memory().quiet(timeout);
}

bool isAllQuiet() {
  return OneSided::isAllQuiet();
}

Status quietAll(std::optional<Duration> timeout) {
  fullFence();
  Status status;
  if (!isAllQuiet()) {
    for (const auto& engine : processEngines()) {
      const Status each = engine->memory().quiet(timeout);
      status = status.isOk() ? each : status;
    }
  }
  return status;
}

}  // namespace shardwire::internal
