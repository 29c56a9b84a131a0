// The reader of plain objects (python/shardwire/plain/read.py), for common objects. GraphReader reads the root value
// and all nodes; containers without references are made at once, and containers with references are filled when all
// nodes were read. Lists, tuples, dicts, texts and numbers are read here. At the first value or node of another kind
// GraphReader makes the reader of Python, which gets the nodes so far, and reads all values and nodes of rare kinds.
// The bytes may have any value: each length is checked before use.
#include <cstring>

#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

// Reads numbers and texts of a head; IndexError where the head ends too early.
class HeadReader {
 public:
  HeadReader(std::string_view head, std::size_t at) : head_(head), at_(at) {}
  template <typename T>
  T take() {
    T value{};
    std::memcpy(&value, need(sizeof value), sizeof value);
    return value;
  }
  std::size_t at() const { return at_; }
  std::size_t size() const { return head_.size(); }
  void goTo(std::size_t at) { at_ = at <= head_.size() ? at : throw py::index_error(); }
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

std::string_view viewOf(const py::bytes& bytes) {
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

// Makes the reader of Python: makeOther(numNodes, kinds, items, made, filled, frozen).
class GraphReader {
 public:
  struct Types {
    py::object ref;     // of a node's number
    py::object broken;  // the exception for bytes that `write` did not write
    py::object notYet;  // in the place of a node that needs other nodes first
  };

  GraphReader(const py::bytes& head, Types types, py::object makeOther)
      : reader_(viewOf(head), 0), types_(std::move(types)), makeOther_(std::move(makeOther)) {}
  GraphReader(const py::bytes& head, std::size_t at, Types types, py::object other)
      : reader_(viewOf(head), at),
        types_(std::move(types)),
        other_(std::move(other)),
        numNodes_(other_.attr("count").cast<std::uint64_t>()) {}

  py::object read() {
    const char* const magic = reader_.text(4);
    if (magic == nullptr || std::memcmp(magic, "SWG1", 4) != 0) {
      breakOff("these bytes do not begin as serialize writes them");
    }
    numNodes_ = reader_.take<std::uint32_t>();
    if (numNodes_ > reader_.size()) {
      breakOff(std::to_string(numNodes_) + " nodes cannot lie in " + std::to_string(reader_.size()) + " bytes");
    }
    const py::list root = values(1);
    const bool isNode = isLinked_;
    for (std::uint64_t i = 0; i < numNodes_; ++i) {
      readNode();
    }
    if (reader_.at() != reader_.size()) {
      breakOff(std::to_string(reader_.size() - reader_.at()) + " bytes are left over");
    }
    for (const py::handle& number : frozen_) {
      other().attr("freeze")(number);
    }
    for (const py::handle& number : filled_) {
      fill(number);
    }
    return isNode ? made(root[0]) : py::object(root[0]);
  }

  // The next values, references as `ref`.
  py::list values(std::uint64_t count) {
    py::list found;
    isLinked_ = false;
    for (std::uint64_t i = 0; i < count; ++i) {
      found.append(value());
    }
    return found;
  }
  bool isLinked() const { return isLinked_; }  // whether the last values() read a reference
  std::size_t at() const { return reader_.at(); }

 private:
  [[noreturn]] void breakOff(const std::string& why) const {
    PyErr_SetString(types_.broken.ptr(), why.c_str());
    throw py::error_already_set();
  }

  const py::object& other() {
    if (!other_) {
      other_ = makeOther_(numNodes_, kinds_, items_, made_, filled_, frozen_);
    }
    return other_;
  }

  py::object text() {
    const auto size = reader_.take<std::uint32_t>();
    const char* data = reader_.text(size);
    if (data == nullptr) {
      breakOff("a text ends at byte " + std::to_string(reader_.at() + size) + " of " + std::to_string(reader_.size()));
    }
    PyObject* text = PyUnicode_DecodeUTF8(data, size, "surrogatepass");
    if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
      PyErr_Clear();
      breakOff("no text: " + std::to_string(size) + " bytes that are not UTF-8");
    }
    return owned(text);
  }

  py::object value() {
    switch (const auto tag = reader_.take<char>(); tag) {
      case 's':
        return text();
      case 'i':
        return py::int_(reader_.take<std::int64_t>());
      case 'f':
        return py::float_(reader_.take<double>());
      case 'R': {
        const auto number = reader_.take<std::uint32_t>();
        if (number >= numNodes_) {
          breakOff("node " + std::to_string(number) + " of " + std::to_string(numNodes_));
        }
        isLinked_ = true;
        return types_.ref(number);
      }
      case 'N':
        return py::none();
      case 'T':
      case 'F':
        return py::bool_(tag == 'T');
      default: {
        const py::tuple found = other().attr("other")(static_cast<unsigned char>(tag), reader_.at());
        reader_.goTo(found[1].cast<std::size_t>());
        return found[0];
      }
    }
  }

  void readNode() {
    const char tag = *need(reader_.text(1));
    if (tag != 'l' && tag != 't' && tag != 'd' && tag != 's') {
      reader_.goTo(other().attr("node")(static_cast<unsigned char>(tag), reader_.at()).cast<std::size_t>());
      return;
    }
    py::object item = py::none();
    py::object made;
    if (tag == 's') {
      made = text();
    } else {
      const std::uint64_t count = reader_.take<std::uint32_t>();
      const py::list found = values(tag == 'd' ? 2 * count : count);
      if (!isLinked_) {
        made = tag == 'd' ? dictOf(found) : tag == 't' ? py::object(py::tuple(found)) : py::object(found);
      } else {
        item = found;
        made = tag == 'd' ? py::object(py::dict()) : tag == 't' ? types_.notYet : py::object(py::list());
        (tag == 't' ? frozen_ : filled_).append(py::int_(PyList_GET_SIZE(made_.ptr())));
      }
    }
    kinds_.append(py::bytes(&tag, 1));
    items_.append(item);
    made_.append(made);
  }

  const char* need(const char* data) const { return data != nullptr ? data : throw py::index_error(); }

  void setItem(const py::object& dict, const py::handle& key, const py::handle& value) const {
    if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr()) == 0) {
      return;
    }
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0 && PyErr_ExceptionMatches(PyExc_RecursionError) == 0) {
      throw py::error_already_set();
    }
    const py::error_already_set error;
    breakOff("a container of things that cannot be in it: " + std::string(py::str(error.value())));
  }

  py::object dictOf(const py::list& items) const {
    py::dict dict;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      setItem(dict, items[i], items[i + 1]);
    }
    return dict;
  }

  bool isRef(const py::handle& value) const { return Py_TYPE(value.ptr()) == typeOfRef(); }
  PyTypeObject* typeOfRef() const { return reinterpret_cast<PyTypeObject*>(types_.ref.ptr()); }
  py::object made(const py::handle& value) const {
    return isRef(value) ? py::object(made_[PyLong_AsSize_t(value.ptr())]) : py::reinterpret_borrow<py::object>(value);
  }

  void fill(const py::handle& number) {
    const std::size_t index = number.cast<std::size_t>();
    const py::object container = made_[index];
    const py::object item = items_[index];
    const auto items = item.cast<py::list>();
    if (PyList_CheckExact(container.ptr())) {
      for (const py::handle& each : items) {
        container.cast<py::list>().append(made(each));
      }
      return;
    }
    bool isPlain = PyDict_CheckExact(container.ptr()) != 0;  // no key is a node
    for (std::size_t i = 0; i < items.size() && isPlain; i += 2) {
      isPlain = !isRef(items[i]);
    }
    if (!isPlain) {
      other().attr("fill")(number);
      return;
    }
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      setItem(container, items[i], made(items[i + 1]));
    }
  }

  HeadReader reader_;
  const Types types_;
  const py::object makeOther_;
  py::object other_;
  std::uint64_t numNodes_ = 0;
  bool isLinked_ = false;
  py::list kinds_;   // of each node, the tag
  py::list items_;   // of containers with references, the values
  py::list made_;    // of each node, the object
  py::list filled_;  // nodes made already, still empty
  py::list frozen_;  // nodes to be made later
};

}  // namespace

void bindPlainReader(py::module_& module) {
  module.def(
      "read_graph",
      [](const py::bytes& head, const py::object& ref, const py::object& broken, const py::object& notYet,
         const py::object& makeOther) {
        return GraphReader(head, {ref, broken, notYet}, makeOther).read();
      },
      py::arg("head"), py::arg("ref"), py::arg("broken"), py::arg("not_yet"), py::arg("make_other"),
      "The object of a head. `make_other(count, kinds, items, made, filled, frozen)` makes the reader of rare kinds.");
  module.def(
      "read_values",
      [](const py::object& other, const py::bytes& head, std::size_t at, std::uint64_t count, const py::object& ref,
         const py::object& broken) {
        GraphReader reader(head, at, {ref, broken, py::none()}, other);
        const py::list found = reader.values(count);
        return py::make_tuple(found, reader.at(), reader.isLinked());
      },
      py::arg("reader"), py::arg("head"), py::arg("begin"), py::arg("count"), py::arg("ref"), py::arg("broken"),
      "(values, place behind them, whether there are references).");
}

}  // namespace shardwire::python
