// The types of a spec in Python: immutable values, each bound once. _spec.py and _layout.py have read and checked the
// values; checks against other ranks come after the exchange.
#include <pybind11/operators.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "ops/plan/slice_math.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using Boxes = std::vector<PlacedSlice>;

DeclaredTensor declared(std::string name, std::optional<Dims> shape, const py::object& dtype,
                        const std::optional<std::string>& reduction, const py::object& outputDtype) {
  DeclaredTensor tensor;
  tensor.decl = {.name = std::move(name),
                 .shape = shape,
                 .dtype = std::nullopt,
                 .reduction = reduction.has_value() ? reductionOf(*reduction) : ReduceOp::kNone};
  const auto read = [](const py::object& given, std::optional<c10::ScalarType>& type, std::optional<DType>& to) {
    if (!given.is_none()) {
      type = scalarTypeOf(given);
      to = internal::dtypeOf(*type);
    }
  };
  read(dtype, tensor.type, tensor.decl.dtype);
  read(outputDtype, tensor.outputType, tensor.decl.outputDtype);
  return tensor;
}

py::object torchDType(std::optional<c10::ScalarType> type) {
  return type.has_value() ? python::torchDType(*type) : py::object(py::none());
}

std::string nameOf(std::optional<DType> dtype) {
  return dtype.has_value() ? std::string(dtypeName(*dtype)) : std::string("?");
}

std::string textOf(const PlacedSlice& box) {
  return internal::toString(box.slice) + " at local " + toString(box.localOffset);
}

}  // namespace

ReduceOp reductionOf(const std::string& name) {
  if (const auto op = reduceOpNamed(name); op.has_value()) {
    return *op;
  }
  throw py::value_error("'" + name + "' is not a reduction; use " + reduceOpNames());
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

Overlap overlapOf(const std::string& name) {
  if (name == "any") {
    return Overlap::kAny;
  }
  return name == "error" ? Overlap::kError : Overlap::kLast;  // Python has refused other names
}

void bindSpecTypes(py::module_& module) {
  py::dict reductions;  // shardwire's and torch's names to shardwire's
  for (int i = 1; i < kNumReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    reductions[nameOf(op)] = nameOf(op);
    reductions[py::str(std::string(torchNameOf(op)))] = nameOf(op);
  }
  module.attr("reductions") = reductions;
  py::class_<PlacedSlice>(module, "Box", "A box of a global tensor, and where it lies in a local one.")
      .def(py::init([](const Dims& offset, const Dims& shape, const Dims& localOffset) {
             return PlacedSlice{{offset, shape}, localOffset};
           }),
           py::arg("offset"), py::arg("shape"), py::arg("local_offset"))
      .def_property_readonly("offset", [](const PlacedSlice& box) { return box.slice.offset; })
      .def_property_readonly("shape", [](const PlacedSlice& box) { return box.slice.shape; })
      .def_property_readonly("local_offset", [](const PlacedSlice& box) { return box.localOffset; })
      .def(py::self == py::self)
      .def("__repr__", [](const PlacedSlice& box) { return "<Box " + textOf(box) + ">"; });
  py::class_<LocalTensor>(module, "LocalTensor",
                          "One local tensor: its shape, and the boxes of a global tensor that it holds.")
      .def(py::init([](std::int32_t tensor, const Dims& localShape, Boxes boxes, std::uint64_t replicaClass) {
             return LocalTensor{tensor, localShape, std::move(boxes), replicaClass};
           }),
           py::arg("tensor"), py::arg("local_shape"), py::arg("boxes"), py::arg("replica_class") = 0)
      .def_readonly("tensor", &LocalTensor::tensor)
      .def_readonly("local_shape", &LocalTensor::localShape)
      .def_readonly("boxes", &LocalTensor::slices)
      .def_readonly("replica_class", &LocalTensor::replicaClass)
      .def(py::self == py::self)
      .def("__repr__", [](const LocalTensor& local) {
        std::string text =
            "<LocalTensor of tensor " + std::to_string(local.tensor) + ", shape " + toString(local.localShape);
        for (const PlacedSlice& box : local.slices) {
          text += ", " + textOf(box);
        }
        return text + ">";
      });
  py::class_<DeclaredTensor>(module, "TensorDecl",
                             "A global tensor as a rank declares it, or as all ranks agreed on it.")
      .def(py::init(&declared), py::arg("name"), py::arg("shape"), py::arg("dtype"), py::arg("reduction"),
           py::arg("output_dtype") = py::none())
      .def_property_readonly("name", [](const DeclaredTensor& tensor) { return tensor.decl.name; })
      .def_property_readonly("shape", [](const DeclaredTensor& tensor) { return tensor.decl.shape; })
      .def_property_readonly("dtype", [](const DeclaredTensor& tensor) { return torchDType(tensor.type); })
      .def_property_readonly("output_dtype", [](const DeclaredTensor& tensor) { return torchDType(tensor.outputType); })
      .def_property_readonly("reduction", [](const DeclaredTensor& tensor) { return nameOf(tensor.decl.reduction); })
      .def("__repr__", [](const DeclaredTensor& tensor) {
        const bool isCast = tensor.decl.outputDtype.has_value() && tensor.decl.outputDtype != tensor.decl.dtype;
        return "<TensorDecl '" + tensor.decl.name + "', " + nameOf(tensor.decl.dtype) +
               (isCast ? " cast to " + nameOf(tensor.decl.outputDtype) + " " : std::string()) +
               (tensor.decl.shape.has_value() ? toString(*tensor.decl.shape) : std::string()) + ">";
      });
}

}  // namespace shardwire::python
