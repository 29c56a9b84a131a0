// The writer of plain objects (python/shardwire/plain/write.py), for common objects. An object is a graph: GraphWriter
// writes the root value, and then each node behind the nodes before it; a node adds new nodes. Lists, tuples, dicts
// with plain keys, texts, bytes and numbers are written here. At the first value of another kind GraphWriter makes the
// writer of Python, which gets the bytes, numbers and nodes so far, and writes all values of rare kinds. Most objects
// need no writer of Python, and a loop in Python would take longer than the rest of a queue's put.
#include <cstring>

#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

constexpr Py_ssize_t kLongText = 32;  // texts from here on are nodes
constexpr Py_ssize_t kLongestText = Py_ssize_t{1}
                                    << 30;  // each character has up to 4 bytes, and a text's size is a u32

bool isPlainKey(PyObject* key) {
  return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyFloat_CheckExact(key) || PyBool_Check(key) ||
         PyBytes_CheckExact(key) || key == Py_None;
}

class GraphWriter {
 public:
  // `makeOther(out, numbers, nodes)` makes the writer of Python; `other` is that writer where it exists already.
  GraphWriter(py::object nodeTypes, py::object makeOther) : nodeTypes_(nodeTypes), makeOther_(makeOther) {}
  explicit GraphWriter(py::object other)
      : nodeTypes_(other.attr("OFTEN_NODES")),
        out_(other.attr("out")),
        numbers_(other.attr("numbers")),
        nodes_(other.attr("nodes")),
        other_(other) {}

  // The head's bytes, or the writer of Python, which has everything for the head.
  py::object write(const py::object& root) {
    addValue(root);
    for (Py_ssize_t done = 0; done < PyList_GET_SIZE(nodes_.ptr()); ++done) {
      addNode(py::reinterpret_borrow<py::object>(PyList_GET_ITEM(nodes_.ptr(), done)));
    }
    if (other_) {
      flush();
      return other_;
    }
    const auto numNodes = static_cast<std::uint32_t>(PyList_GET_SIZE(nodes_.ptr()));
    std::string head = "SWG1";
    head.append(reinterpret_cast<const char*>(&numNodes), sizeof numNodes);
    return py::bytes(head + bytes_);
  }

  void writeValues(const py::object& values) {
    addValues(values);
    flush();
  }

 private:
  template <typename T>
  void append(char tag, T value) {
    bytes_.push_back(tag);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void appendText(char tag, const char* data, Py_ssize_t size) {
    append(tag, static_cast<std::uint32_t>(size));
    bytes_.append(data, static_cast<std::size_t>(size));
  }

  void appendText(const py::object& text) {
    // PyUnicode_AsUTF8AndSize would keep the bytes of any other text as long as the text lives.
    if (PyUnicode_IS_COMPACT_ASCII(text.ptr())) {
      appendText('s', static_cast<const char*>(PyUnicode_DATA(text.ptr())), PyUnicode_GET_LENGTH(text.ptr()));
      return;
    }
    const py::object data = owned(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
    appendText('s', PyBytes_AS_STRING(data.ptr()), PyBytes_GET_SIZE(data.ptr()));
  }

  void flush() {
    const Py_ssize_t size = PyByteArray_GET_SIZE(out_.ptr());
    if (PyByteArray_Resize(out_.ptr(), size + static_cast<Py_ssize_t>(bytes_.size())) < 0) {
      throw py::error_already_set();
    }
    std::memcpy(PyByteArray_AS_STRING(out_.ptr()) + size, bytes_.data(), bytes_.size());
    bytes_.clear();
  }

  // The writer of Python, with all bytes so far.
  const py::object& other() {
    if (!other_) {
      other_ = makeOther_(out_, numbers_, nodes_);
    }
    flush();
    return other_;
  }

  void addValue(const py::object& value) {
    PyObject* const at = value.ptr();
    int overflow = 0;
    if (PyUnicode_CheckExact(at) && PyUnicode_GET_LENGTH(at) < kLongText) {
      appendText(value);
    } else if (PyFloat_CheckExact(at)) {
      append('f', PyFloat_AS_DOUBLE(at));
    } else if (at == Py_None || PyBool_Check(at)) {
      bytes_.push_back(at == Py_None ? 'N' : at == Py_True ? 'T' : 'F');
    } else if (const long long number = PyLong_CheckExact(at) ? PyLong_AsLongLongAndOverflow(at, &overflow) : 0;
               PyLong_CheckExact(at) && overflow == 0) {
      append('i', static_cast<std::int64_t>(number));
    } else if (const int isNode = PySet_Contains(nodeTypes_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(at)));
               isNode == 1) {
      append('R', numberOf(value));
    } else if (isNode < 0) {  // the metaclass cannot be hashed
      throw py::error_already_set();
    } else {
      other().attr("rare")(value, py::handle(reinterpret_cast<PyObject*>(Py_TYPE(at))));
    }
  }

  void addValues(const py::object& values) {
    const py::object iterator = owned(PyObject_GetIter(values.ptr()));
    while (PyObject* next = PyIter_Next(iterator.ptr())) {
      addValue(py::reinterpret_steal<py::object>(next));
    }
    if (PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
  }

  // The number of the node `value`, which is added where it is new.
  std::uint32_t numberOf(const py::object& value) {
    const py::object key = owned(PyLong_FromVoidPtr(value.ptr()));
    if (PyObject* known = PyDict_GetItemWithError(numbers_.ptr(), key.ptr()); known != nullptr) {
      return static_cast<std::uint32_t>(PyLong_AsUnsignedLong(known));
    }
    const Py_ssize_t number = PyList_GET_SIZE(nodes_.ptr());
    numbers_[key] = py::int_(number);
    nodes_.append(value);
    return static_cast<std::uint32_t>(number);
  }

  // The loops run over copies: the writer of Python may let another thread change the container.
  void addNode(const py::object& value) {
    PyObject* const at = value.ptr();
    if (PyDict_CheckExact(at)) {
      addDict(value);
    } else if (PyList_CheckExact(at) || PyTuple_CheckExact(at)) {
      const auto values = owned(PySequence_Tuple(at));
      append(PyList_CheckExact(at) ? 'l' : 't', static_cast<std::uint32_t>(PyTuple_GET_SIZE(values.ptr())));
      addValues(values);
    } else if (PyUnicode_CheckExact(at) && PyUnicode_GET_LENGTH(at) < kLongestText) {
      appendText(value);
    } else if (PyBytes_CheckExact(at) && PyBytes_GET_SIZE(at) < kLongestText) {
      appendText('b', PyBytes_AS_STRING(at), PyBytes_GET_SIZE(at));
    } else {
      other().attr("node")(value);
    }
  }

  void addDict(const py::object& value) {
    const py::object items = owned(PyDict_Items(value.ptr()));
    const Py_ssize_t count = PyList_GET_SIZE(items.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!isPlainKey(PyTuple_GET_ITEM(PyList_GET_ITEM(items.ptr(), i), 0))) {
        other().attr("node")(value);
        return;
      }
    }
    append('d', static_cast<std::uint32_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      addValues(py::reinterpret_borrow<py::object>(PyList_GET_ITEM(items.ptr(), i)));
    }
  }

  const py::object nodeTypes_;
  const py::object makeOther_;
  std::string bytes_;  // not in out_ yet
  py::bytearray out_;
  py::dict numbers_;  // by the id of a node
  py::list nodes_;
  py::object other_;
};

}  // namespace

void bindPlainWriter(py::module_& module) {
  module.def(
      "write_graph",
      [](const py::object& value, const py::object& nodeTypes, const py::object& makeOther) {
        return GraphWriter(nodeTypes, makeOther).write(value);
      },
      py::arg("value"), py::arg("node_types"), py::arg("make_other"),
      "The head of the value; or the writer made by `make_other(out, numbers, nodes)`, where values of rare kinds need "
      "this writer.");
  module.def(
      "write_values", [](const py::object& other, const py::object& values) { GraphWriter(other).writeValues(values); },
      py::arg("writer"), py::arg("values"), "Appends the values' bytes to the `out` of a writer.");
}

}  // namespace shardwire::python
