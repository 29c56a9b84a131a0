// Two views share a byte when a sum of steps leads from a byte of one view to a byte of the other, where each dimension
// offers its stride a limited number of times. This is a knapsack problem. The search starts with the largest stride
// and is cut off by the greatest common divisor and by the farthest reach of the remaining strides. Two contiguous
// views need no search. A search that takes too long answers "shared", which is the safe answer.
#include "ops/boxes/view_overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace shardwire::internal {

namespace {

// A step of `bytes`, to be taken between 0 and `most` times.
struct Term {
  std::int64_t bytes = 0;
  std::int64_t most = 0;
};

// Whether a sum of the added steps reaches a target. Two views share a byte exactly when some sum of steps of both
// leads from one view to the other.
class StepSum {
 public:
  void add(std::int64_t bytes, std::int64_t most) {
    if (bytes == 0 || most == 0) {
      return;
    }
    // Rows of one buffer have one pitch: what is one term is not searched twice.
    const auto same =
        std::find_if(terms_.begin(), terms_.begin() + count_, [&](const Term& term) { return term.bytes == bytes; });
    if (same != terms_.begin() + count_) {
      same->most += most;
    } else {
      terms_[static_cast<std::size_t>(count_++)] = {bytes, most};
    }
  }

  // True also when the search was given up.
  bool reaches(std::int64_t target) {
    std::sort(terms_.begin(), terms_.begin() + count_, [](const Term& a, const Term& b) { return a.bytes > b.bytes; });
    for (int i = count_ - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      farthest_[at] = farthest_[at + 1] + terms_[at].bytes * terms_[at].most;
      divisor_[at] = std::gcd(divisor_[at + 1], terms_[at].bytes);
    }
    return search(0, target);
  }

 private:
  static constexpr int kMaxSearched = 100000;

  // Whether the terms from `index` on sum up to `target`.
  bool search(int index, std::int64_t target) {
    const auto at = static_cast<std::size_t>(index);
    if (target < 0 || target > farthest_[at]) {
      return false;
    }
    if (index == count_) {
      return target == 0;
    }
    if (target % divisor_[at] != 0) {
      return false;
    }
    if (++searched_ > kMaxSearched) {
      return true;
    }
    const Term& term = terms_[at];
    const std::int64_t rest = farthest_[at + 1];
    const std::int64_t least = target > rest ? (target - rest + term.bytes - 1) / term.bytes : 0;
    for (std::int64_t steps = std::min(term.most, target / term.bytes); steps >= least; --steps) {
      if (search(index + 1, target - steps * term.bytes)) {
        return true;
      }
    }
    return false;
  }

  static constexpr std::size_t kMaxTerms = 2 * kMaxDims + 1;
  std::array<Term, kMaxTerms> terms_;
  std::array<std::int64_t, kMaxTerms + 1> farthest_{};
  std::array<std::int64_t, kMaxTerms + 1> divisor_{};
  int count_ = 0;
  int searched_ = 0;
};

}  // namespace

AddressRange addressRange(const TensorView& view) {
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 0) {
      return {};
    }
    const std::int64_t reach = (view.shape[d] - 1) * view.strides[d];
    (reach < 0 ? first : last) += reach;
  }
  const auto elem = static_cast<std::int64_t>(elementBytes(view.dtype));
  const auto base = reinterpret_cast<std::uintptr_t>(view.bytes);
  return {base + static_cast<std::uintptr_t>(first * elem), base + static_cast<std::uintptr_t>((last + 1) * elem)};
}

std::string wrongStridesText(const TensorView& view) {
  return fmt::format("has shape {} and {} strides: give one stride per dimension, as TensorView::contiguous() does",
                     toString(view.shape), view.strides.size());
}

bool isAddressable(const TensorView& view) {
  const auto elem = static_cast<std::int64_t>(elementBytes(view.dtype));
  std::int64_t reach = elem;
  for (int d = 0; d < view.shape.size(); ++d) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(view.strides[d], elem, &step) ||
        __builtin_mul_overflow(step, std::max<std::int64_t>(view.shape[d], 1) - 1, &step) ||
        __builtin_add_overflow(reach, step, &reach)) {
      return false;
    }
  }
  return true;
}

bool shareMemory(const TensorView& a, const TensorView& b) {
  const AddressRange rangeA = addressRange(a);
  const AddressRange rangeB = addressRange(b);
  if (!rangeA.meets(rangeB)) {
    return false;
  }
  if (isContiguous(a) && isContiguous(b)) {
    return true;
  }
  const auto elemA = static_cast<std::int64_t>(elementBytes(a.dtype));
  const auto elemB = static_cast<std::int64_t>(elementBytes(b.dtype));
  // firstA + stepsOfA + byteInElement == firstB + stepsOfB + byteInElement; b's steps are counted backwards from its
  // last byte, so that every step has one sign.
  StepSum sum;
  const auto addSteps = [&](const TensorView& view, std::int64_t elem) {
    for (int d = 0; d < view.shape.size(); ++d) {
      sum.add(std::abs(view.strides[d]) * elem, view.shape[d] - 1);
    }
  };
  addSteps(a, elemA);
  addSteps(b, elemB);
  const auto target = static_cast<std::int64_t>(rangeB.last - rangeA.first) - 1;  // >= 0: the ranges meet
  if (elemA == elemB && static_cast<std::int64_t>(rangeB.first - rangeA.first) % elemA == 0) {
    // Elements lie on one grid: they share all bytes or none.
    return sum.reaches(target - (elemA - 1));
  }
  sum.add(1, elemA + elemB - 2);
  return sum.reaches(target);
}

bool overlapsItself(const TensorView& view) {
  std::array<int, kMaxDims> order;  // the dimensions with more than one element, small strides first
  int count = 0;
  for (int d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 0) {
      return false;
    }
    if (view.shape[d] > 1) {
      order[static_cast<std::size_t>(count++)] = d;
    }
  }
  const auto stride = [&](int d) { return std::abs(view.strides[d]); };
  std::sort(order.begin(), order.begin() + count, [&](int a, int b) { return stride(a) < stride(b); });
  bool nested = true;      // each stride steps over all elements of the smaller strides
  std::int64_t reach = 0;  // the farthest element of the smaller strides
  for (int i = 0; i < count; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    if (view.strides[d] == 0) {
      return true;
    }
    nested = nested && stride(d) > reach;
    reach += (view.shape[d] - 1) * stride(d);
  }
  if (nested) {
    return false;
  }
  // Two elements that share memory differ first in some dimension: there one of them has index 0 and the other has a
  // larger index, if both are moved alike.
  TensorView rest = view;
  for (int d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] > 1) {
      TensorView later = rest;
      later.bytes += view.strides[d] * static_cast<std::int64_t>(elementBytes(view.dtype));
      later.shape[d] -= 1;
      rest.shape[d] = 1;
      if (shareMemory(rest, later)) {
        return true;
      }
    }
  }
  return false;
}

bool areOneTensor(const TensorView& a, const TensorView& b) {
  if (a.bytes != b.bytes || a.dtype != b.dtype) {
    return false;
  }
  return (a.shape == b.shape && a.strides == b.strides) ||
         (numElements(a.shape) == numElements(b.shape) && isContiguous(a) && isContiguous(b));
}

ViewsExtent extentOf(std::span<const TensorView> views) {
  ViewsExtent extent;
  AddressRange& whole = extent.whole;
  for (const TensorView& view : views) {
    const AddressRange range = addressRange(view);
    if (range.first == range.last) {
      continue;
    }
    extent.ascend = extent.ascend && range.first >= whole.last;
    whole = {whole.first == whole.last ? range.first : std::min(whole.first, range.first),
             std::max(whole.last, range.last)};
  }
  return extent;
}

std::optional<std::pair<std::size_t, std::size_t>> findShared(std::span<const TensorView> views) {
  if (extentOf(views).ascend) {
    return std::nullopt;
  }
  std::optional<std::pair<std::size_t, std::size_t>> found;
  const auto viewOf = [&](std::size_t i) -> const TensorView& { return views[i]; };
  visitMeetings(views.size(), viewOf, [&](std::size_t a, std::size_t b) {
    if (shareMemory(views[a], views[b])) {
      found.emplace(a, b);
    }
    return found.has_value();
  });
  return found;
}

}  // namespace shardwire::internal
