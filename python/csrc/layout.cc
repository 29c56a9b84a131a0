// Mesh and placements -> boxes. A layout is checked once, when it is made.
#include "backend/c10d/throw_status.h"
#include "ops/plan/sharding.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using internal::Layout;
using internal::LocalShare;
using internal::Placement;
using internal::PlacementKind;

Layout layoutOf(const Dims& meshShape, std::vector<Rank> meshRanks, std::vector<Placement> placements,
                const Dims& shape) {
  Layout layout{meshShape, std::move(meshRanks), std::move(placements), shape};
  internal::throwUnlessOk(internal::checkLayout(layout));
  return layout;
}

}  // namespace

void bindLayouts(py::module_& module) {
  py::class_<Placement>(module, "Placement", "What one mesh dimension does with the tensor.")
      .def_static("replicate", [] { return Placement{}; })
      .def_static(
          "shard",
          [](int dim) {
            return Placement{PlacementKind::kShard, dim};
          },
          py::arg("dim"))
      .def_static(
          "strided_shard",
          [](int dim, std::int64_t splitFactor) {
            return Placement{PlacementKind::kStridedShard, dim, splitFactor};
          },
          py::arg("dim"), py::arg("split_factor"))
      .def_static(
          "partial",
          [](const std::string& reduction) {
            return Placement{PlacementKind::kPartial, 0, 1, reductionOf(reduction)};
          },
          py::arg("reduction"));
  py::class_<LocalShare>(module, "LocalShare",
                         "What one rank holds of a tensor: the shape of its local tensor, and the boxes in it.")
      .def_readonly("local_shape", &LocalShare::localShape)
      .def_readonly("boxes", &LocalShare::slices)
      .def_readonly("replica_class", &LocalShare::replicaClass);
  py::class_<Layout>(module, "Layout", "A tensor laid out over a mesh. ValueError for an impossible one.")
      .def(py::init(&layoutOf), py::arg("mesh_shape"), py::arg("mesh_ranks"), py::arg("placements"), py::arg("shape"))
      .def_property_readonly("pending_reduction",
                             [](const Layout& layout) { return nameOf(internal::pendingReduction(layout)); })
      .def(
          "share_of", [](const Layout& layout, Rank rank) { return internal::shareOf(layout, rank); }, py::arg("rank"),
          "None outside of the mesh.");
}

}  // namespace shardwire::python
