// Random elements and placements of test tensors, and storage that checks every byte. Elements come from a seed, then a
// placement chooses strides and gaps. CheckedStorage holds the bytes with margins and a copy of the expected bytes:
// put() writes both, expect() changes only the expected bytes, and findDifference() compares the two.
#include "tests/support/checked_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/memory/shared_heap.h"

namespace shardwire::testing {

namespace {

constexpr std::byte kBackground{0xa5};
constexpr std::byte kOverwritten{0x5c};
constexpr std::int64_t kPeriod = 1009;
constexpr std::size_t kMargin = 64;  // before and after the tensors

bool isWideFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kComplex64 ||
         dtype == DType::kComplex128;
}

// visit(row-major index of the first, the offset in elements, number of elements, the stride) for every innermost row.
template <typename Visit>
void forEachRow(const Dims& shape, const Dims& strides, Visit visit) {
  const std::int64_t count = numElements(shape);
  if (count == 0) {
    return;
  }
  const int inner = shape.size() - 1;
  const std::int64_t length = inner < 0 ? 1 : shape[inner];
  const std::int64_t stride = inner < 0 ? 1 : strides[inner];
  Dims index = Dims::filled(shape.size(), 0);
  for (std::int64_t i = 0; i < count; i += length) {
    std::int64_t offset = 0;
    for (int d = 0; d < inner; ++d) {
      offset += index[d] * strides[d];
    }
    visit(i, offset, length, stride);
    for (int d = inner - 1; d >= 0 && ++index[d] == shape[d]; --d) {
      index[d] = 0;
    }
  }
}

}  // namespace

Elements randomElements(std::uint64_t seed, DType dtype, std::int64_t count) {
  const std::size_t size = elementBytes(dtype);
  const bool isComplex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  const std::size_t lane = isComplex ? size / 2 : size;
  Elements elements{{}, std::max<std::int64_t>(1, std::min(count, kPeriod)), size};
  elements.bytes.resize(static_cast<std::size_t>(elements.period) * size);
  Random random(seed);
  for (std::size_t at = 0; at < elements.bytes.size(); at += std::min<std::size_t>(lane, 8)) {
    std::uint64_t bits = random.bits();
    if (isWideFloat(dtype) && random.between(0, 31) != 0) {
      const std::uint64_t sign = bits & 1;
      bits = lane == 4 ? 0x3F000000u + (bits >> 40) % 0x1800000u + (sign << 31)
                       : 0x3FE0000000000000u + (bits >> 8) % 0x30000000000000u + (sign << 63);
    } else if (dtype == DType::kBool) {
      bits &= 1;
    }
    std::memcpy(elements.bytes.data() + at, &bits, std::min<std::size_t>(lane, 8));
  }
  return elements;
}

Placement randomPlacement(Random& random, const Dims& shape, unsigned expanded) {
  Placement placement{contiguousStrides(shape), 0, 0};
  const auto kind = random.between(0, 5);  // from 3 on contiguous, as tensors mostly are
  if (shape.size() > 0 && (kind < 3 || expanded != 0)) {
    std::vector<int> order(static_cast<std::size_t>(shape.size()));
    std::iota(order.rbegin(), order.rend(), 0);  // innermost first
    if (kind == 0) {
      random.shuffle(order);
    }
    std::int64_t stride = kind == 1 ? random.between(2, 3) : 1;  // sliced
    for (const int d : order) {
      if ((expanded >> d & 1) != 0) {
        placement.strides[d] = 0;
        continue;
      }
      placement.strides[d] = stride;
      stride *= std::max<std::int64_t>(1, shape[d]);
      if (kind == 2) {
        stride += random.between(0, 2);  // padded
      }
    }
  }
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1 && kind == 2) {
      placement.strides[d] = random.between(0, 1000);  // of no meaning
    }
    placement.span += std::max<std::int64_t>(0, shape[d] - 1) * placement.strides[d];
  }
  placement.offset = random.chance(30) ? random.between(0, 3) : 0;
  placement.span += placement.offset + 1;
  return placement;
}

CheckedStorage::CheckedStorage(std::size_t bytes, bool isInHeap)
    : bytes_(bytes + 2 * kMargin), expected_(bytes_, kBackground) {
  if (isInHeap) {
    internal::SharedHeap* heap = internal::SharedHeap::instance().value();
    memory_ = {static_cast<std::byte*>(heap->allocate(bytes_).value()),
               [heap](std::byte* block) { heap->free(block); }};
  } else {
    memory_ = {new std::byte[bytes_], [](std::byte* block) { delete[] block; }};
  }
  std::memset(memory_.get(), static_cast<int>(kBackground), bytes_);
}

TensorView CheckedStorage::view(DType dtype, const Dims& shape, const Placement& placement) const {
  return {memory_.get() + kMargin + static_cast<std::size_t>(placement.offset) * elementBytes(dtype), dtype, shape,
          placement.strides};
}

void CheckedStorage::write(std::byte* to, const TensorView& tensor, const Elements& elements) const {
  const std::size_t size = elements.elemBytes;
  forEachRow(tensor.shape, tensor.strides,
             [&](std::int64_t first, std::int64_t offset, std::int64_t length, std::int64_t stride) {
               std::byte* row = to + static_cast<std::size_t>(offset) * size;
               for (std::int64_t i = 0; i < length;) {
                 // As many as lie side by side in the pattern too.
                 const std::int64_t left = elements.period - (first + i) % elements.period;
                 const std::int64_t part = stride == 1 ? std::min(length - i, left) : 1;
                 std::memcpy(row + static_cast<std::size_t>(i * stride) * size, elements.at(first + i),
                             static_cast<std::size_t>(part) * size);
                 i += part;
               }
             });
}

void CheckedStorage::put(const TensorView& tensor, const Elements& elements) {
  if (numElements(tensor.shape) > 0) {
    write(tensor.bytes, tensor, elements);
    expect(tensor, elements);
  }
}

void CheckedStorage::expect(const TensorView& tensor, const Elements& elements) {
  if (numElements(tensor.shape) > 0) {
    write(expected_.data() + (tensor.bytes - memory_.get()), tensor, elements);
  }
}

void CheckedStorage::overwrite() {
  std::memset(memory_.get(), static_cast<int>(kOverwritten), bytes_);
  std::fill(expected_.begin(), expected_.end(), kOverwritten);
}

std::string CheckedStorage::findDifference() const {
  if (std::memcmp(memory_.get(), expected_.data(), bytes_) == 0) {
    return "";
  }
  std::size_t first = 0;
  std::size_t count = 0;
  for (std::size_t i = bytes_; i-- > 0;) {
    if (memory_.get()[i] != expected_[i]) {
      first = i;
      ++count;
    }
  }
  return fmt::format("{} of {} bytes differ, the first at {} from the storage's tensors: {:02x}, not {:02x}", count,
                     bytes_ - 2 * kMargin, static_cast<std::int64_t>(first) - static_cast<std::int64_t>(kMargin),
                     static_cast<int>(memory_.get()[first]), static_cast<int>(expected_[first]));
}

}  // namespace shardwire::testing
