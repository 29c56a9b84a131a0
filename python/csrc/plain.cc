// The loops of the plain codec (python/shardwire/plain): the values of a container as bytes and back. Common kinds of
// values are handled here, and each other kind by a function of the codec. An object has many values, and a loop in
// Python takes as long as the rest of a queue's put or get.
#include <cstring>

#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

constexpr Py_ssize_t kLongText = 32;  // texts from here on are nodes

py::object owned(PyObject* object) {
  if (object == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(object);
}

template <typename T>
void append(std::string* bytes, char tag, T value) {
  bytes->push_back(tag);
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void appendText(std::string* bytes, const py::handle& text) {
  Py_ssize_t size = 0;
  if (const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size); data != nullptr) {
    append(bytes, 's', static_cast<std::uint32_t>(size));
    bytes->append(data, static_cast<std::size_t>(size));
    return;
  }
  PyErr_Clear();  // a lone surrogate
  const py::object data = owned(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  append(bytes, 's', static_cast<std::uint32_t>(PyBytes_GET_SIZE(data.ptr())));
  bytes->append(PyBytes_AS_STRING(data.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(data.ptr())));
}

void flush(std::string* bytes, const py::handle& out) {
  const Py_ssize_t size = PyByteArray_GET_SIZE(out.ptr());
  if (PyByteArray_Resize(out.ptr(), size + static_cast<Py_ssize_t>(bytes->size())) < 0) {
    throw py::error_already_set();
  }
  std::memcpy(PyByteArray_AS_STRING(out.ptr()) + size, bytes->data(), bytes->size());
  bytes->clear();
}

// The number of the node `value`, which is added where it is new.
std::uint32_t numberOf(const py::handle& value, const py::dict& numbers, py::list& nodes) {
  const py::object key = owned(PyLong_FromVoidPtr(value.ptr()));
  if (PyObject* known = PyDict_GetItemWithError(numbers.ptr(), key.ptr()); known != nullptr) {
    return static_cast<std::uint32_t>(PyLong_AsUnsignedLong(known));
  }
  const Py_ssize_t number = PyList_GET_SIZE(nodes.ptr());
  numbers[key] = py::int_(number);
  nodes.append(value);
  return static_cast<std::uint32_t>(number);
}

void writeValues(const py::object& values, const py::bytearray& out, const py::dict& numbers, py::list nodes,
                 const py::object& nodeTypes, const py::object& writeOther) {
  std::string bytes;
  const py::object iterator = owned(PyObject_GetIter(values.ptr()));
  while (PyObject* next = PyIter_Next(iterator.ptr())) {
    const py::object value = py::reinterpret_steal<py::object>(next);
    int overflow = 0;
    if (PyUnicode_CheckExact(next) && PyUnicode_GET_LENGTH(next) < kLongText) {
      appendText(&bytes, value);
    } else if (PyFloat_CheckExact(next)) {
      append(&bytes, 'f', PyFloat_AS_DOUBLE(next));
    } else if (next == Py_None || PyBool_Check(next)) {
      bytes.push_back(next == Py_None ? 'N' : next == Py_True ? 'T' : 'F');
    } else if (const long long number = PyLong_CheckExact(next) ? PyLong_AsLongLongAndOverflow(next, &overflow) : 0;
               PyLong_CheckExact(next) && overflow == 0) {
      append(&bytes, 'i', static_cast<std::int64_t>(number));
    } else if (PySet_Contains(nodeTypes.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(next))) == 1) {
      append(&bytes, 'R', numberOf(value, numbers, nodes));
    } else {
      flush(&bytes, out);
      writeOther(value, py::handle(reinterpret_cast<PyObject*>(Py_TYPE(next))));
    }
  }
  if (PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  flush(&bytes, out);
}

// Reads values of a head; IndexError where the head ends too early.
class ValueReader {
 public:
  ValueReader(std::string_view head, std::size_t at) : head_(head), at_(at) {}
  template <typename T>
  T take() {
    T value{};
    std::memcpy(&value, need(sizeof value), sizeof value);
    return value;
  }
  std::size_t at() const { return at_; }
  void goTo(std::size_t at) { at_ = at; }
  // Null: the text ends behind the head.
  const char* text(std::size_t size) { return size > head_.size() - at_ ? nullptr : need(size); }

 private:
  const char* need(std::size_t size) {
    if (at_ > head_.size() || size > head_.size() - at_) {
      throw py::index_error();
    }
    at_ += size;
    return head_.data() + at_ - size;
  }

  std::string_view head_;
  std::size_t at_;
};

[[noreturn]] void breakOff(const py::object& broken, const std::string& why) {
  PyErr_SetString(broken.ptr(), why.c_str());
  throw py::error_already_set();
}

py::object readText(ValueReader& reader, std::size_t headBytes, const py::object& broken) {
  const auto size = reader.take<std::uint32_t>();
  const char* data = reader.text(size);
  if (data == nullptr) {
    breakOff(broken, "a text ends at byte " + std::to_string(reader.at() + size) + " of " + std::to_string(headBytes));
  }
  PyObject* text = PyUnicode_DecodeUTF8(data, size, "surrogatepass");
  if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
    PyErr_Clear();
    breakOff(broken, "no text: " + std::to_string(size) + " bytes that are not UTF-8");
  }
  return owned(text);
}

// (values, the place behind the values, whether there are references). `makeRef`: of a node's number below `numNodes`.
// `readOther(tag, place)` returns the value and the place behind it.
py::tuple readValues(const py::bytes& bytes, std::size_t begin, std::uint64_t count, std::uint64_t numNodes,
                     const py::object& makeRef, const py::object& broken, const py::object& readOther) {
  const std::string_view head(PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr())));
  ValueReader reader(head, begin);
  py::list found;
  bool isLinked = false;
  for (std::uint64_t i = 0; i < count; ++i) {
    switch (const auto tag = reader.take<char>(); tag) {
      case 's':
        found.append(readText(reader, head.size(), broken));
        break;
      case 'i':
        found.append(py::int_(reader.take<std::int64_t>()));
        break;
      case 'f':
        found.append(py::float_(reader.take<double>()));
        break;
      case 'R': {
        const auto number = reader.take<std::uint32_t>();
        if (number >= numNodes) {
          breakOff(broken, "node " + std::to_string(number) + " of " + std::to_string(numNodes));
        }
        found.append(makeRef(number));
        isLinked = true;
        break;
      }
      case 'N':
        found.append(py::none());
        break;
      case 'T':
      case 'F':
        found.append(py::bool_(tag == 'T'));
        break;
      default: {
        const py::tuple other = readOther(static_cast<unsigned char>(tag), reader.at());
        found.append(other[0]);
        reader.goTo(other[1].cast<std::size_t>());
      }
    }
  }
  return py::make_tuple(found, reader.at(), isLinked);
}

}  // namespace

void bindPlain(py::module_& module) {
  module.def("write_values", &writeValues, py::arg("values"), py::arg("out"), py::arg("numbers"), py::arg("nodes"),
             py::arg("node_types"), py::arg("write_other"), "Appends the values' bytes to `out`.");
  module.def("read_values", &readValues, py::arg("head"), py::arg("begin"), py::arg("count"), py::arg("num_nodes"),
             py::arg("make_ref"), py::arg("broken"), py::arg("read_other"),
             "(values, place behind them, whether there are references).");
}

}  // namespace shardwire::python
