"""Plain objects as bytes and back, without executing anything: numbers, text, containers, tensors, numpy arrays.

An object is a graph. Each container, tensor and long text is a node with a number; a second reference to a node is
written as the number. So shared and cyclic references are restored by the reader, and depth costs no stack. Bytes of
tensors stay outside of the head, in *parts*: tensors that share memory share one part.

``read`` is the reader.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections import OrderedDict
from typing import Any, Iterable

import torch

from .. import _C
from .keys import NESTING, WrittenKeys
from .handles import Handle, handle_of
from .tensor_bytes import bytes_of, contiguous_strides, name_of, reach, storage_address, untyped
from .user_classes import Record, by_class

_MAGIC = b"SWG1"
_LONG = 32  # as kLongText of plain_write.cc, for bytes
U32 = struct.Struct("<I")
I64 = struct.Struct("<q")
C128 = struct.Struct("<dd")
_TAGGED_U32 = struct.Struct("<cI")
_CONTAINERS: dict[type, bytes] = {list: b"l", tuple: b"t", dict: b"d", OrderedDict: b"o", set: b"S", frozenset: b"Z",
                                  torch.Size: b"z"}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_HASHING = frozenset((dict, OrderedDict, set, frozenset))
# Kinds of numpy's dtypes whose elements are mere bytes
PLAIN_KINDS = "biufcmMSU"


class NotPlain(TypeError):
    """Some part of the object needs pickle."""


def is_plain_tensor(value: Any) -> bool:
    return type(value) in _TENSORS and value.layout is torch.strided and not value.is_quantized and not value.is_meta


# ---- writing

class _Writer:
    """Writes values and nodes of rare kinds, for the writer of C++: numbers by ids of nodes, and nodes, are shared with
    that writer, and keep the ids unique."""

    OFTEN_NODES = frozenset((*_CONTAINERS, *_TENSORS))

    def __init__(self, out: bytearray, numbers: dict[int, int], nodes: list[Any]) -> None:
        self.out, self.numbers, self.nodes = out, numbers, nodes
        self.parts: list[torch.Tensor] = []
        self.texts: dict[Any, int] = {}
        self.keys = WrittenKeys()
        # id of a tensor that shares memory with another node of the graph -> the part, the first element in the part
        self.shared: dict[int, tuple[int, int]] = {}
        # With the places of their bytes in `out`: which tensors share memory shows at the end
        self.tensors: list[tuple[int, torch.Tensor]] = []

    def head(self) -> bytes:
        """The head, after all nodes were written."""
        head = _MAGIC + U32.pack(len(self.nodes)) + (self.with_tensors() if self.tensors else bytes(self.out))
        if wrong := self.keys.wrong(len(head)):
            raise NotPlain(wrong)
        return head

    def with_tensors(self) -> bytes:
        tensors, walked = self.tensors, self.out
        if len(tensors) > 1:
            self.share([tensor for _, tensor in tensors])
        self.out, done = bytearray(), 0
        for place, tensor in tensors:
            self.out += walked[done:place]
            done = place
            self.tensor(tensor)
        return bytes(self.out + walked[done:])

    def values(self, values: Iterable[Any]) -> None:
        _C.write_values(self, values)

    def value(self, value: Any) -> None:
        self.values((value,))

    def rare(self, value: Any, kind: type) -> None:
        if kind is int:
            self.text(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is bytes and len(value) < _LONG:
            self.text(b"b", value)
        elif kind is complex:
            self.out += b"c" + C128.pack(value.real, value.imag)
        elif kind is torch.dtype:
            self.text(b"y", name_of(value).encode())
        elif kind is torch.device:
            self.text(b"v", str(value).encode())
        elif kind in (str, bytes):
            self.refer(self.texts, (kind, value), value)
        else:
            self.refer(self.numbers, id(value), value)

    def text(self, tag: bytes, data: bytes) -> None:
        if len(data) >= 1 << 32:
            raise NotPlain("a text of 4 GiB or more; put it into a uint8 tensor")
        self.out += _TAGGED_U32.pack(tag, len(data))
        self.out += data

    def refer(self, numbers: dict[Any, int], key: Any, value: Any) -> None:
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(self.nodes)
            self.nodes.append(value)
        self.out += b"R" + U32.pack(number)

    def node(self, value: Any) -> None:
        kind = type(value)
        tag = _CONTAINERS.get(kind)
        if tag is not None:
            # A copy: another thread may change the container
            pairs = kind in (dict, OrderedDict)
            items = list(value.items() if pairs else value)
            keys = [key for key, _ in items] if pairs else items
            if kind in _HASHING and not NESTING.isdisjoint(map(type, keys)) and (wrong := self.keys.add(keys)):
                raise NotPlain(wrong)
            self.out += _TAGGED_U32.pack(tag, len(items))
            self.values(itertools.chain.from_iterable(items) if pairs else items)
        elif kind is str:
            self.text(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, bytearray):
            self.text(b"b" if kind is bytes else b"a", bytes(value))
        elif is_plain_tensor(value):
            _C.require_memory(value, "a tensor in the object")
            self.tensors.append((len(self.out), value))
        elif kind in (range, slice):
            bounds = value.start, value.stop, value.step
            if not {*map(type, bounds)} <= {int, bool, type(None)}:  # of a slice; the reader makes no other
                raise NotPlain("a slice whose bounds are neither ints nor None")
            self.out += b"r" if kind is range else b"/"
            self.values(bounds)
        elif kind in by_class:
            self.record(value, by_class[kind])
        elif (handle := handle_of(value)) is not None:
            self.handle(value, handle)
        elif not self.numpy(value):
            raise NotPlain(f"a {kind.__module__}.{kind.__qualname__} is none of the plain types that are written "
                           f"without pickle{_could_be(kind)}")

    def record(self, value: Any, of: Record) -> None:
        try:
            values = of.values_of(value)
        except AttributeError as error:
            raise NotPlain(f"a {of.name} of which a field is not set: {error}") from None
        self.out += b"P" if of.is_tuple else b"D"
        # Names are in place, not nodes: the reader needs the names at once
        self.text(b"s", of.name.encode("utf-8", "surrogatepass"))
        self.out += U32.pack(len(values))
        for field in of.fields:
            self.text(b"s", field.encode("utf-8", "surrogatepass"))
        self.values(values)

    def tensor(self, value: torch.Tensor) -> None:
        flags = (1 if value.requires_grad and value.is_leaf else 0) | (2 if type(value) is torch.nn.Parameter else 0)
        dense = value.detach()
        if not dense.is_cpu or dense.is_conj() or dense.is_neg():
            dense = dense.cpu().resolve_conj().resolve_neg()
        part, first = self.shared.get(id(value), (-1, 0))
        shape = tuple(dense.shape)
        if part < 0:  # no other tensor shares the memory
            part, first, strides = len(self.parts), 0, contiguous_strides(shape)
            self.parts.append(bytes_of(dense))
        else:
            strides = dense.stride()
        name = name_of(dense.dtype).encode()
        self.out += b"X" + bytes((flags,)) + _TAGGED_U32.pack(b"s", len(name)) + name
        self.out += struct.pack(f"<{3 + 2 * len(shape)}q", part, first, len(shape), *shape, *strides)

    def share(self, tensors: list[torch.Tensor]) -> None:
        """Makes one part for tensors of one storage whose bytes overlap or touch: the bytes from the first to the last
        element of these tensors. Views that lie apart get separate parts: no tensor needs the bytes between them."""
        groups: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.is_cpu and tensor.numel() > 0 and not tensor.is_conj() and not tensor.is_neg():
                groups.setdefault(storage_address(tensor), []).append(tensor)
        for address, same in groups.items() if len(groups) < len(tensors) else ():
            for group in _without_gaps(same):
                sizes = {tensor.element_size() for tensor in group}
                if len(group) < 2 or max(sizes) > 1 and len({tensor.data_ptr() % max(sizes) for tensor in group}) > 1:
                    continue
                begin = group[0].data_ptr()
                end = max(tensor.data_ptr() + reach(tensor) for tensor in group)
                # Tensors of foreign memory (from_numpy) have storages of different lengths at one address
                storage = max((untyped(tensor.detach()) for tensor in group), key=lambda each: each.nbytes())
                whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(  # type: ignore[call-overload]
                    storage, begin - address, (end - begin,), (1,))
                for tensor in group:
                    self.shared[id(tensor)] = (len(self.parts), (tensor.data_ptr() - begin) // tensor.element_size())
                self.parts.append(whole)

    def numpy(self, value: Any) -> bool:
        np = sys.modules.get("numpy")
        if np is None or not (type(value) is np.ndarray or isinstance(value, np.generic)):
            return False
        if (value.dtype.kind not in PLAIN_KINDS or value.dtype.fields is not None
                or value.dtype.itemsize == 0 and value.size > 1):
            return False
        array = (np.array(value, order="C", copy=True) if not isinstance(value, np.ndarray) or not value.flags.writeable
                 else np.ascontiguousarray(value))
        self.out += b"n" + bytes([not isinstance(value, np.ndarray)])
        self.value(value.dtype.str)
        for number in (len(self.parts), value.ndim, *value.shape):
            self.out += I64.pack(number)
        # numpy's copy of an empty text has bytes
        flat = array.reshape(-1).view(np.uint8) if value.nbytes else np.empty(0, np.uint8)
        self.parts.append(torch.from_numpy(flat))
        return True

    def handle(self, value: Any, of: Handle) -> None:
        self.out += of.tag
        for each in of.address(value):
            if type(each) is str:
                # Long texts too: the reader makes the object before other nodes are read
                self.text(b"s", each.encode("utf-8", "surrogatepass"))
            else:
                self.value(each)


def _without_gaps(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors of one storage in lists without gaps between the bytes of a list's tensors. A list is in the order of
    first elements."""
    lists: list[list[torch.Tensor]] = []
    end = -1
    for tensor in sorted(tensors, key=lambda each: each.data_ptr()):
        if tensor.data_ptr() > end:
            lists.append([])
        lists[-1].append(tensor)
        end = max(end, tensor.data_ptr() + reach(tensor))
    return lists


def _could_be(kind: type) -> str:
    is_known = hasattr(kind, "__dataclass_fields__") or issubclass(kind, tuple) and hasattr(kind, "_fields")
    return f"; shardwire.register_plain({kind.__name__}) on both ends makes it one" if is_known else ""


def write(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """The head and the parts (uint8, CPU) of ``value``. Parts are views of the tensors' own memory for contiguous
    tensors. NotPlain for an object that needs pickle."""
    head = _C.write_graph(value, _Writer.OFTEN_NODES, _Writer)
    return (head, []) if type(head) is bytes else (head.head(), head.parts)
