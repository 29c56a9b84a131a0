"""Plain objects as bytes and back, without executing anything: numbers, text, containers, tensors, numpy arrays.

An object is a graph. Each container, tensor and long text is a node with a number; where it is met again only the number is written, so shared and
cyclic references come back as they were, and depth costs no stack. Bytes of tensors stay outside of the head, in *parts*: tensors that share
memory share one part.

Reading makes only the types that are listed here, and checks every length, number and bound before it uses it.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
import sys
from collections import OrderedDict
from functools import partial
from typing import Any, Callable, Iterable

import torch

from ._plain_keys import NESTING, ReadKeys, Ref, WrittenKeys
from ._plain_memory import contiguous_strides, reach, storage_address, untyped
from ._plain_records import Record, by_class, by_name

MAGIC = b"SWG1"
_LONG = 32  # texts from this length on are nodes: met twice, written once
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_C128 = struct.Struct("<dd")
_3_I64 = struct.Struct("<3q")
_TAGGED_U32 = struct.Struct("<cI")
_TAGGED_I64 = struct.Struct("<cq")
_TAGGED_F64 = struct.Struct("<cd")
_CONTAINERS: dict[type, bytes] = {list: b"l", tuple: b"t", dict: b"d", OrderedDict: b"o", set: b"S", frozenset: b"Z", torch.Size: b"z"}
_DTYPE_OF_NUMPY = re.compile(r"[<>|=](?:b1|[iufcSU]\d{1,9}|[mM]8(?:\[\d{0,9}[a-zA-Zμ]{1,2}\])?)")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OFTEN_NODES = frozenset((*_CONTAINERS, *_TENSORS))
_HASHING = frozenset((dict, OrderedDict, set, frozenset))
_PLAIN_KINDS = "biufcmMSU"  # of numpy's dtypes: those that are mere bytes


class NotPlain(TypeError):
    """The object holds something that only pickle can write."""


class Broken(ValueError):
    """The bytes are not what ``serialize`` writes."""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense CPU tensor as a flat uint8 tensor; a view where it is contiguous."""
    flat = tensor.contiguous()
    if flat.dim() != 1:
        flat = flat.reshape(-1)
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def typed(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``flat`` (uint8, one dimension) as elements of ``dtype``; a view where its address allows."""
    if dtype == torch.uint8:
        return flat
    size = item_bytes(dtype)
    if flat.data_ptr() % size or flat.storage_offset() % size:
        flat = flat.clone()
    if not dtype.is_complex:
        return flat.view(dtype)
    half = {8: torch.float32, 16: torch.float64, 4: torch.float16}[size]
    return torch.view_as_complex(flat.view(half).reshape(-1, 2))


@functools.cache
def item_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype, device="cpu").element_size()


@functools.lru_cache(256)
def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or "q" in name:
        raise Broken(f"{name!r} is no dtype of this torch ({torch.__version__})")
    return dtype


@functools.cache
def name_of(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def is_plain_tensor(value: Any) -> bool:
    return type(value) in _TENSORS and value.layout is torch.strided and not value.is_quantized and not value.is_meta


# ---- writing

class _Writer:
    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []
        self.nodes: list[Any] = []  # in the order of their numbers; holds them, so that ids stay theirs
        self.numbers: dict[int, int] = {}
        self.texts: dict[Any, int] = {}
        self.out = bytearray()
        self.keys = WrittenKeys()
        self.storages: dict[int, tuple[int, int]] = {}  # address of a shared storage -> its part, the first byte in it

    def write(self, value: Any) -> bytes:
        self.value(value)
        done = 0
        while done < len(self.nodes):  # nodes add nodes
            self.node(self.nodes[done])
            done += 1
        head = MAGIC + _U32.pack(len(self.nodes)) + bytes(self.out)
        if wrong := self.keys.wrong(len(head)):
            raise NotPlain(wrong)
        return head

    def values(self, values: Iterable[Any]) -> None:
        out, numbers, nodes = self.out, self.numbers, self.nodes
        for value in values:  # what is common first: objects have many values, and each is looked at here
            kind = type(value)
            if kind is str and len(value) < _LONG:
                data = value.encode("utf-8", "surrogatepass")
                out += _TAGGED_U32.pack(b"s", len(data))
                out += data
            elif kind is int and -(1 << 63) <= value < 1 << 63:
                out += _TAGGED_I64.pack(b"i", value)
            elif kind is float:
                out += _TAGGED_F64.pack(b"f", value)
            elif value is None or kind is bool:
                out += b"N" if value is None else b"T" if value else b"F"
            elif kind in _OFTEN_NODES:
                number = numbers.get(id(value))
                if number is None:
                    number = numbers[id(value)] = len(nodes)
                    nodes.append(value)
                out += _TAGGED_U32.pack(b"R", number)
            else:
                self.rare(value, kind)

    def value(self, value: Any) -> None:
        self.values((value,))

    def rare(self, value: Any, kind: type) -> None:
        if kind is int:
            self.text(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is bytes and len(value) < _LONG:
            self.text(b"b", value)
        elif kind is complex:
            self.out += b"c" + _C128.pack(value.real, value.imag)
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
        self.out += b"R" + _U32.pack(number)

    def node(self, value: Any) -> None:
        kind = type(value)
        tag = _CONTAINERS.get(kind)
        if tag is not None:
            if kind in _HASHING and not NESTING.isdisjoint(map(type, value)) and (wrong := self.keys.add(value)):
                raise NotPlain(wrong)
            self.out += _TAGGED_U32.pack(tag, len(value))
            self.values(itertools.chain.from_iterable(value.items()) if kind in (dict, OrderedDict) else value)
        elif kind is str:
            self.text(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, bytearray):
            self.text(b"b" if kind is bytes else b"a", value)
        elif is_plain_tensor(value):
            self.tensor(value)
        elif kind in (range, slice):
            self.out += b"r" if kind is range else b"/"
            self.values((value.start, value.stop, value.step))
        elif kind in by_class:
            self.record(value, by_class[kind])
        elif not self.numpy(value) and not self.queue(value):
            raise NotPlain(f"a {kind.__module__}.{kind.__qualname__} is none of the plain types that are written without pickle{_could_be(kind)}")

    def record(self, value: Any, of: Record) -> None:
        try:
            values = of.values_of(value)
        except AttributeError as error:
            raise NotPlain(f"a {of.name} of which a field is not set: {error}") from None
        self.out += b"P" if of.is_tuple else b"D"
        self.text(b"s", of.name.encode("utf-8", "surrogatepass"))  # names where they are, not as nodes: the reader asks for them at once
        self.out += _U32.pack(len(values))
        for field in of.fields:
            self.text(b"s", field.encode("utf-8", "surrogatepass"))
        self.values(values)

    def tensor(self, value: torch.Tensor) -> None:
        flags = (1 if value.requires_grad and value.is_leaf else 0) | (2 if type(value) is torch.nn.Parameter else 0)
        dense = value.detach()
        if not dense.is_cpu or dense.is_conj() or dense.is_neg():
            dense = dense.cpu().resolve_conj().resolve_neg()
        part, first = self.part_of(dense)
        shape = tuple(dense.shape)
        if part < 0:  # alone in its memory
            part, first, strides = len(self.parts), 0, contiguous_strides(shape)
            self.parts.append(bytes_of(dense))
        else:
            strides = dense.stride()
        name = name_of(dense.dtype).encode()
        self.out += b"X" + bytes((flags,)) + _TAGGED_U32.pack(b"s", len(name)) + name
        self.out += struct.pack(f"<{3 + 2 * len(shape)}q", part, first, len(shape), *shape, *strides)

    def part_of(self, dense: torch.Tensor) -> tuple[int, int]:
        """Part and first element of a tensor whose memory another node of the graph has as well; (-1, 0) for the others."""
        known = self.storages.get(storage_address(dense)) if self.storages else None
        if known is None:
            return -1, 0
        part, begin = known
        return part, (dense.data_ptr() - begin) // dense.element_size()

    def share(self, tensors: list[torch.Tensor]) -> None:
        """One part for all tensors that share a storage: the bytes from the first to the last element that any of them has."""
        groups: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.is_cpu and tensor.numel() > 0 and not tensor.is_conj() and not tensor.is_neg():
                groups.setdefault(storage_address(tensor), []).append(tensor)
        for address, same in groups.items() if len(groups) < len(tensors) else ():
            group = [tensor.detach() for tensor in same]
            sizes = {tensor.element_size() for tensor in group}
            if len(group) < 2 or max(sizes) > 1 and len({tensor.data_ptr() % max(sizes) for tensor in group}) > 1:
                continue
            begin = min(tensor.data_ptr() for tensor in group)
            end = max(tensor.data_ptr() + reach(tensor) for tensor in group)
            whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped(group[0]), begin - address, (end - begin,), (1,))  # type: ignore[call-overload]
            self.storages[address] = (len(self.parts), begin)
            self.parts.append(whole)

    def numpy(self, value: Any) -> bool:
        np = sys.modules.get("numpy")
        if np is None or not (type(value) is np.ndarray or isinstance(value, np.generic)):
            return False
        if value.dtype.kind not in _PLAIN_KINDS or value.dtype.fields is not None or value.dtype.itemsize == 0 and value.size > 1:
            return False
        array = np.array(value, order="C", copy=True) if not isinstance(value, np.ndarray) or not value.flags.writeable else np.ascontiguousarray(value)
        self.out += b"n" + bytes([not isinstance(value, np.ndarray)])
        self.value(value.dtype.str)
        for number in (len(self.parts), value.ndim, *value.shape):
            self.out += _I64.pack(number)
        flat = array.reshape(-1).view(np.uint8) if value.nbytes else np.empty(0, np.uint8)  # of an empty text numpy's copy has bytes
        self.parts.append(torch.from_numpy(flat))
        return True

    def queue(self, value: Any) -> bool:
        from .queues import Queue
        if not isinstance(value, Queue):
            return False
        self.out += b"Q"
        for each in value.address():
            if type(each) is str:
                self.text(b"s", each.encode("utf-8", "surrogatepass"))  # long ones, too: the reader makes the queue before it has other nodes
            else:
                self.value(each)
        return True


def _could_be(kind: type) -> str:
    is_known = hasattr(kind, "__dataclass_fields__") or issubclass(kind, tuple) and hasattr(kind, "_fields")
    return f"; shardwire.register_plain({kind.__name__}) on both ends makes it one" if is_known else ""


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """The CPU tensors that the graph holds, each once."""
    found: list[torch.Tensor] = []
    seen: dict[int, Any] = {}
    left = [value]
    while left:
        each = left.pop()
        kind = type(each)
        if kind not in _OFTEN_NODES and kind not in by_class or id(each) in seen:
            continue
        seen[id(each)] = each
        if kind in by_class:
            of = by_class[kind]
            left += [getattr(each, field) for field in of.fields if hasattr(each, field)]
        elif kind in _TENSORS:
            if is_plain_tensor(each):
                found.append(each)
        elif kind in (dict, OrderedDict):
            left += each.keys()
            left += each.values()
        else:
            left += each
    return found


def write(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """The head and the parts (uint8, CPU) of ``value``. Parts are views of the tensors' own memory where these are contiguous. NotPlain otherwise."""
    writer = _Writer()
    tensors = _tensors_in(value)
    if len(tensors) > 1:
        writer.share(tensors)
    return writer.write(value), writer.parts


# ---- reading

_TAG_REFERENCE, _TAG_INTEGER, _TAG_TEXT, _TAG_FLOAT, _TAG_COMPLEX = b"Risfc"
_CONSTANTS = {ord("N"): None, ord("T"): True, ord("F"): False}


class _Reader:
    def __init__(self, head: bytes, parts: list[torch.Tensor], trusts: bool = False) -> None:
        self.head, self.parts, self.at = bytes(head), parts, 0
        self.trusts = trusts
        self.records: dict[int, Record] = {}  # nodes of registered classes that hold nodes
        self.count = 0  # of nodes
        self.kinds: list[bytes] = []
        self.items: list[Any] = []  # of containers that hold nodes: their values, with references as Ref
        self.made: list[Any] = []  # _NOT_YET: of what cannot be made before its nodes are
        self.filled: list[int] = []  # nodes that are there already, empty
        self.frozen: list[int] = []  # nodes that are to be made
        self.keys = ReadKeys(self.kinds, self.made, len(self.head))
        self.linked = False  # there was a reference among the values that were read last

    def read(self) -> Any:
        try:
            return self.graph()
        except (struct.error, IndexError):
            raise Broken(f"more bytes are needed behind byte {self.at}, but there are {len(self.head)} in all") from None

    def graph(self) -> Any:
        if self.take(4) != MAGIC:
            raise Broken("these bytes do not begin as serialize writes them")
        self.count = self.u32()
        if self.count > len(self.head):
            raise Broken(f"{self.count} nodes cannot lie in {len(self.head)} bytes")
        root = self.value()
        for _ in range(self.count):
            self.node()
        if self.at != len(self.head):
            raise Broken(f"{len(self.head) - self.at} bytes are left over")
        for number in self.frozen:
            self.freeze(number)
        for number in self.filled:
            self.fill(number)
        return self.made[root] if type(root) is Ref else root

    # Numbers and tags: struct.error and IndexError where the head ends before.

    def take(self, count: int) -> bytes:
        if count > len(self.head) - self.at:
            raise Broken(f"{count} bytes are needed at byte {self.at}, but there are {len(self.head)} in all")
        self.at += count
        return self.head[self.at - count:self.at]

    def u32(self) -> int:
        self.at += 4
        return _U32.unpack_from(self.head, self.at - 4)[0]

    def i64(self) -> int:
        self.at += 8
        return _I64.unpack_from(self.head, self.at - 8)[0]

    def value(self) -> Any:
        return self.values(1)[0]

    def values(self, count: int) -> list[Any]:
        """The next values. ``linked`` says whether there are references among them."""
        head, at = self.head, self.at
        found: list[Any] = []
        add = found.append
        self.linked = False
        for _ in range(count):  # what is common first, as the writer has it; each takes a byte at least
            tag = head[at]
            at += 1
            if tag == _TAG_TEXT:
                begin = at + 4
                at = begin + _U32.unpack_from(head, at)[0]
                if at > len(head):
                    raise Broken(f"a text ends at byte {at} of {len(head)}")
                try:
                    add(str(head[begin:at], "utf-8", "surrogatepass"))
                except UnicodeDecodeError as error:
                    raise Broken(f"no text: {error}") from None
            elif tag == _TAG_INTEGER:
                add(_I64.unpack_from(head, at)[0])
                at += 8
            elif tag == _TAG_FLOAT:
                add(_F64.unpack_from(head, at)[0])
                at += 8
            elif tag == _TAG_REFERENCE:
                number = _U32.unpack_from(head, at)[0]
                if number >= self.count:
                    raise Broken(f"node {number} of {self.count}")
                add(Ref(number))
                at += 4
                self.linked = True
            elif tag in _CONSTANTS:
                add(_CONSTANTS[tag])
            else:
                self.at = at
                add(complex(*_C128.unpack(self.take(16))) if tag == _TAG_COMPLEX else self.text(bytes((tag,))))
                at = self.at
        self.at = at
        return found

    def text(self, tag: bytes) -> Any:
        data: Any = self.take(self.u32()) if tag in b"sbIyva" else None
        if tag == b"s":
            return self.decoded(data)
        if tag == b"b":
            return data
        if tag == b"a":
            return bytearray(data)
        if tag == b"I":
            return int.from_bytes(data, "little", signed=True)
        if tag == b"y":
            return dtype_named(self.decoded(data))
        if tag == b"v":
            try:
                return torch.device(self.decoded(data))
            except RuntimeError as error:
                raise Broken(f"no device: {error}") from None
        raise Broken(f"{tag!r} at byte {self.at - 1} is no kind of value")

    def decoded(self, data: Any) -> str:
        try:
            return str(data, "utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise Broken(f"no text: {error}") from None

    def node(self) -> None:
        tag = self.take(1)
        item: Any = None
        made: Any
        if tag in _CONTAINER_TAGS:
            number = self.u32()
            item = self.values(number * 2 if tag in b"do" else number)
            make = _MAKERS[tag]
            if not self.linked:
                made = self.build(make, item)
                item = None
            elif tag in b"tzZ":
                made = _NOT_YET
                self.frozen.append(len(self.made))
            else:
                made = make(())
                self.filled.append(len(self.made))
        elif tag in b"PD":
            item, made = self.record(tag)
        elif tag == b"X":
            made = self.tensor()
        elif tag == b"n":
            made = self.numpy()
        elif tag in b"r/Q":
            made = self.made_of_values(tag)
        elif tag in b"sba":
            made = self.text(tag)
        else:
            raise Broken(f"{tag!r} at byte {self.at - 1} is no kind of node")
        self.kinds.append(tag)
        self.items.append(item)
        self.made.append(made)

    def record(self, tag: bytes) -> tuple[Any, Any]:
        """The values of a namedtuple or dataclass where they have nodes, and what is made of it so far."""
        name, number = self.value(), len(self.made)
        if type(name) is not str:
            raise Broken("a record without a name")
        fields = self.values(self.u32())
        of = by_name.get(name)
        if of is None:
            raise ValueError(f"an object of the class {name!r} is in it, which this process has not registered; call shardwire.register_plain(CLASS) before it is read")
        if list(of.fields) != fields or of.is_tuple != (tag == b"P"):
            raise ValueError(f"{name!r} was written with the fields {fields}, and is registered here with {list(of.fields)}: have one class on both ends")
        values = self.values(len(fields))
        linked = self.linked
        if of.is_tuple:
            self.records[number] = of
            if not linked:
                return None, of.make(values)
            self.frozen.append(number)
            return values, _NOT_YET
        if not linked:
            return None, self.build(partial(of.fill, of.empty()), values)
        self.records[number] = of
        self.filled.append(number)
        return values, of.empty()

    def made_of_values(self, tag: bytes) -> Any:
        if tag == b"Q":
            from .queues import Queue
            return Queue.from_address(*self.values(5), self.trusts)
        values = self.values(3)
        if any(isinstance(each, Ref) or not (isinstance(each, int) or tag == b"/" and each is None) for each in values):
            raise Broken("a range or slice that is not of numbers")
        if tag == b"r" and values[2] == 0:
            raise Broken("a range with step 0")
        return (range if tag == b"r" else slice)(*values)

    def numbers(self, dims: int, times: int = 1) -> list[int]:
        if not 0 <= dims <= 64:
            raise Broken(f"{dims} dimensions")
        count = dims * times
        numbers = list(struct.unpack_from(f"<{count}q", self.head, self.at))
        self.at += 8 * count
        if count and min(numbers) < 0:
            raise Broken("a negative size or stride")
        return numbers

    def part(self, number: int) -> torch.Tensor:
        if not 0 <= number < len(self.parts):
            raise Broken(f"part {number} of {len(self.parts)}")
        return self.parts[number]

    def tensor(self) -> torch.Tensor:
        flags, name = self.take(1)[0], self.value()
        if type(name) is not str:
            raise Broken("a tensor without a dtype")
        dtype = dtype_named(name)
        part, first, dims = _3_I64.unpack_from(self.head, self.at)
        self.at += 24
        both = self.numbers(dims, 2)
        shape, strides = both[:dims], both[dims:]
        try:
            tensor = self.dense(dtype, self.part(part), first, shape, strides)
            if flags & 2:
                return torch.nn.Parameter(tensor, requires_grad=bool(flags & 1))
            return tensor.requires_grad_() if flags & 1 else tensor
        except RuntimeError as error:
            raise Broken(f"a tensor of {name}: {error}") from None

    def dense(self, dtype: torch.dtype, flat: torch.Tensor, first: int, shape: list[int], strides: list[int]) -> torch.Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=dtype, device="cpu")
        size, num_bytes = item_bytes(dtype), flat.numel()
        end = first + 1
        for extent, stride in zip(shape, strides):
            end += (extent - 1) * stride
        if first < 0 or end * size > num_bytes:
            raise Broken(f"a tensor of {end} elements of {size} bytes in a part of {num_bytes} bytes")
        whole = typed(flat if num_bytes % size == 0 else flat[:num_bytes // size * size], dtype)
        if first == 0 and end * size == num_bytes and strides == contiguous_strides(shape):
            return whole if len(shape) == 1 and whole is not flat else whole.view(shape)  # a tensor of its own, though parts may be shared
        return whole.as_strided(shape, strides, whole.storage_offset() + first)

    def numpy(self) -> Any:
        try:
            import numpy as np
        except ImportError:
            raise Broken("numpy arrays are in it, and numpy is not installed here") from None
        is_scalar, name = self.take(1)[0], self.value()
        part, dims = self.i64(), self.i64()
        shape = self.numbers(dims)
        if type(name) is not str or _DTYPE_OF_NUMPY.fullmatch(name) is None:  # numpy itself takes whole expressions
            raise Broken(f"{name!r} is no plain dtype of numpy")
        try:
            dtype = np.dtype(name)
        except (TypeError, ValueError):
            raise Broken(f"{name!r} is no dtype of numpy") from None
        if dtype.kind not in _PLAIN_KINDS or dtype.fields is not None:
            raise Broken(f"{name!r} is no plain dtype of numpy")
        flat, count = self.part(part), 1
        for size in shape:
            count *= size
        if dtype.itemsize == 0 and count > 1:
            raise Broken(f"{count} elements of {name}, whose number no bytes bound")
        if count * dtype.itemsize != flat.numel():
            raise Broken(f"{count} elements of {name} in a part of {flat.numel()} bytes")
        array = flat.numpy().view(dtype).reshape(shape) if flat.numel() else np.ndarray(shape, dtype)  # empty() would widen "<U0"
        return array[()] if is_scalar else array

    # Tuples and frozensets cannot be filled later, so what they hold is made first. Lists, dicts and sets are there already, empty.
    def freeze(self, number: int) -> None:
        waiting, within = [number], set()
        while waiting:
            number = waiting[-1]
            if self.made[number] is not _NOT_YET:
                waiting.pop()
                continue
            needed = [ref for ref in self.items[number] if type(ref) is Ref and self.made[ref] is _NOT_YET]
            if needed:
                if number in within:
                    raise Broken("a tuple that holds itself")
                within.add(number)
                waiting += needed
                continue
            self.keys.nest(number, self.items[number])
            if self.kinds[number] == b"Z":
                self.check_keys(number, self.items[number])
            make = self.records[number].make if number in self.records else _MAKERS[self.kinds[number]]
            self.made[number] = self.build(make, self.resolved(number))
            waiting.pop()

    def fill(self, number: int) -> None:
        kind, made, items = self.kinds[number], self.made[number], self.resolved(number)
        if kind == b"l":
            made.extend(items)
        elif kind == b"D":
            self.build(partial(self.records[number].fill, made), items)
        else:
            self.check_keys(number, self.items[number][::1 if kind == b"S" else 2])
            self.build(made.update, items if kind == b"S" else zip(items[::2], items[1::2]))

    def check_keys(self, number: int, keys: list[Any]) -> None:
        if wrong := self.keys.add(number, keys):
            raise Broken(wrong)

    def build(self, make: Callable[[Any], Any], values: Any) -> Any:
        try:
            return make(values)
        except (TypeError, AttributeError, RecursionError) as error:  # AttributeError: of a dataclass whose field cannot be set. RecursionError: of keys that are compared
            raise Broken(f"a container of things that cannot be in it: {error}") from None

    def resolved(self, number: int) -> list[Any]:
        made = self.made
        return [made[each] if type(each) is Ref else each for each in self.items[number]]


def _paired(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: make(zip(items[::2], items[1::2]))


_MAKERS: dict[bytes, Callable[[Any], Any]] = {b"l": list, b"t": tuple, b"d": _paired(dict), b"o": _paired(OrderedDict), b"S": set, b"Z": frozenset,
                                              b"z": torch.Size}
_CONTAINER_TAGS = frozenset(_MAKERS)
_NOT_YET = object()


def read(head: bytes, parts: list[torch.Tensor], trusts: bool = False) -> Any:
    """What ``write`` was given; tensors are views of ``parts``. Broken for bytes that it did not write. trusts: the reader takes pickles of who wrote
    this, and so of those who put into the queues in it."""
    return _Reader(head, parts, trusts).read()
