// Mesh and placements -> boxes, and the conversions that specs share.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "backend/c10d/status_error.h"
#include "ops/plan/sharding.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using internal::Layout;
using internal::Placement;
using internal::PlacementKind;
using Ints = std::vector<std::int64_t>;
using PlacementTuple = std::tuple<std::string, int, std::int64_t, std::optional<std::string>>;

Placement placementOf(const PlacementTuple& given) {
  const auto& [kind, dim, splitFactor, reduction] = given;
  Placement placement;
  placement.dim = dim;
  placement.splitFactor = splitFactor;
  if (kind == "replicate") {
    placement.kind = PlacementKind::kReplicate;
  } else if (kind == "shard") {
    placement.kind = PlacementKind::kShard;
  } else if (kind == "strided_shard") {
    placement.kind = PlacementKind::kStridedShard;
  } else if (kind == "partial") {
    placement.kind = PlacementKind::kPartial;
    const auto op = reductionOf(reduction.value_or("sum"));
    if (!op.has_value()) {
      throw py::value_error("'" + *reduction + "' is no reduction");
    }
    placement.reduction = *op;
  } else {
    throw py::value_error("'" + kind + "' is no kind of placement");
  }
  return placement;
}

Layout layoutOf(const Ints& meshShape, const std::vector<Rank>& meshRanks, const std::vector<PlacementTuple>& placements,
                const Ints& shape) {
  Layout layout;
  layout.meshShape = dimsOf(meshShape, "the mesh's shape");
  layout.mesh = meshRanks;
  for (const PlacementTuple& placement : placements) {
    layout.placements.push_back(placementOf(placement));
  }
  layout.shape = dimsOf(shape, "shape");
  internal::throwUnlessOk(internal::checkLayout(layout));
  return layout;
}

py::object shareTuple(const Layout& layout, Rank rank) {
  const auto share = internal::shareOf(layout, rank);
  if (!share.has_value()) {
    return py::none();
  }
  return py::make_tuple(tupleOf(share->localShape), slicesOf(share->slices), share->replicaClass);
}

}  // namespace

Dims dimsOf(const Ints& values, const char* what) {
  if (values.size() > static_cast<std::size_t>(kMaxDims)) {
    throw py::value_error(std::string(what) + " has " + std::to_string(values.size()) + " dimensions; at most " + std::to_string(kMaxDims) +
                          " are supported");
  }
  return Dims(std::span<const std::int64_t>(values));
}

py::tuple tupleOf(const Dims& dims) {
  py::tuple tuple(static_cast<std::size_t>(dims.size()));
  for (int i = 0; i < dims.size(); ++i) {
    tuple[static_cast<std::size_t>(i)] = dims[i];
  }
  return tuple;
}

py::list slicesOf(const std::vector<PlacedSlice>& slices) {
  py::list list;
  for (const PlacedSlice& placed : slices) {
    list.append(py::make_tuple(tupleOf(placed.slice.offset), tupleOf(placed.slice.shape), tupleOf(placed.localOffset)));
  }
  return list;
}

std::optional<ReduceOp> reductionOf(const std::string& name) {
  if (name == "avg") {
    return ReduceOp::kMean;
  }
  for (int i = 1; i < kNumReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (reduceOpName(op) == name) {
      return op;
    }
  }
  return std::nullopt;
}

py::object nameOf(ReduceOp op) {
  return op == ReduceOp::kNone ? py::object(py::none()) : py::str(std::string(reduceOpName(op)));
}

c10::ScalarType scalarTypeOf(const py::handle& dtype) {
  if (!THPDtype_Check(dtype.ptr())) {
    throw py::type_error("a torch.dtype is needed, got " + std::string(py::repr(dtype)));
  }
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

py::object torchDType(c10::ScalarType type) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

void bindLayouts(py::module_& module) {
  module.def(
      "check_layout",
      [](const Ints& meshShape, const std::vector<Rank>& meshRanks, const std::vector<PlacementTuple>& placements, const Ints& shape) {
        layoutOf(meshShape, meshRanks, placements, shape);
      },
      py::arg("mesh_shape"), py::arg("mesh_ranks"), py::arg("placements"), py::arg("shape"),
      "ValueError for a layout that cannot be. A placement is (kind, dim, split_factor, reduction).");
  module.def(
      "pending_reduction",
      [](const Ints& meshShape, const std::vector<Rank>& meshRanks, const std::vector<PlacementTuple>& placements, const Ints& shape) {
        return nameOf(internal::pendingReduction(layoutOf(meshShape, meshRanks, placements, shape)));
      },
      py::arg("mesh_shape"), py::arg("mesh_ranks"), py::arg("placements"), py::arg("shape"));
  module.def(
      "share_of",
      [](const Ints& meshShape, const std::vector<Rank>& meshRanks, const std::vector<PlacementTuple>& placements, const Ints& shape,
         Rank rank) { return shareTuple(layoutOf(meshShape, meshRanks, placements, shape), rank); },
      py::arg("mesh_shape"), py::arg("mesh_ranks"), py::arg("placements"), py::arg("shape"), py::arg("rank"),
      "None outside of the mesh, else (local_shape, [(offset, shape, local_offset), ...], replica_class).");
}

}  // namespace shardwire::python
