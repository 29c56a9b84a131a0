"""Makes plain objects from the bytes of ``write``. Reading makes only the types listed here, and the user's classes
registered by this process (``records``), and checks every length, number and bound before use.
"""

from __future__ import annotations

import math
import re
import struct
from collections import OrderedDict
from functools import partial
from typing import Any, Callable

import torch

from .. import _C
from .write import C128, I64, PLAIN_KINDS, U32
from .handles import HANDLE_TAGS, handle_with
from .keys import ReadKeys, Ref
from .tensor_bytes import Broken, contiguous_strides, dtype_named, item_bytes, typed
from .user_classes import Record, by_name

_3_I64 = struct.Struct("<3q")
_DTYPE_OF_NUMPY = re.compile(r"[<>|=](?:b1|[iufcSU]\d{1,9}|[mM]8(?:\[\d{0,9}[a-zA-Zμ]{1,2}\])?)")
_TAG_COMPLEX = ord("c")


class _Reader:
    """Reads values and nodes of rare kinds, for the reader of C++. The lists are shared with that reader."""

    def __init__(self, head: bytes, parts: list[torch.Tensor], trusts: bool, count: int, kinds: list[bytes],
                 items: list[Any], made: list[Any], filled: list[int], frozen: list[int]) -> None:
        self.head, self.parts, self.trusts, self.at = head, parts, trusts, 0
        self.records: dict[int, Record] = {}  # nodes of registered classes with nodes inside
        self.count = count  # the number of nodes
        self.kinds = kinds
        # For containers with nodes inside: the values, with references as Ref
        self.items = items
        # The object of each node; _NOT_YET for a node that needs other nodes first
        self.made = made
        self.filled = filled  # nodes made already, still empty
        self.frozen = frozen  # nodes to be made later
        self.keys = ReadKeys(kinds, made, len(head))
        self.linked = False  # whether the last values() read a reference

    # Numbers and tags: struct.error and IndexError for a head that ends too early.

    def take(self, count: int) -> bytes:
        if count > len(self.head) - self.at:
            raise Broken(f"{count} bytes are needed at byte {self.at}, but there are {len(self.head)} in all")
        self.at += count
        return self.head[self.at - count:self.at]

    def u32(self) -> int:
        self.at += 4
        return U32.unpack_from(self.head, self.at - 4)[0]

    def i64(self) -> int:
        self.at += 8
        return I64.unpack_from(self.head, self.at - 8)[0]

    def value(self) -> Any:
        return self.values(1)[0]

    def values(self, count: int) -> list[Any]:
        """The next values. ``linked`` says whether the values contain references."""
        found, self.at, self.linked = _C.read_values(self, self.head, self.at, count, Ref, Broken)
        return found

    def other(self, tag: int, at: int) -> tuple[Any, int]:
        """A value of a rare kind, and the place behind it."""
        self.at = at
        value = complex(*C128.unpack(self.take(16))) if tag == _TAG_COMPLEX else self.text(bytes((tag,)))
        return value, self.at

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

    def node(self, number_of_tag: int, at: int) -> int:
        """Reads the node of a rare kind whose tag lies before `at`. Returns the place behind the node."""
        tag, self.at = bytes((number_of_tag,)), at
        item: Any = None
        made: Any
        if tag in _CONTAINER_TAGS:
            number = self.u32()
            item = self.values(number * 2 if tag == b"o" else number)
            make = _MAKERS[tag]
            if not self.linked:
                made = self.build(make, item)
                item = None
            elif tag in b"zZ":
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
        elif tag in b"r/" or tag in HANDLE_TAGS:
            made = self.made_of_values(tag)
        elif tag in b"ba":
            made = self.text(tag)
        else:
            raise Broken(f"{tag!r} at byte {self.at - 1} is no kind of node")
        self.kinds.append(tag)
        self.items.append(item)
        self.made.append(made)
        return self.at

    def record(self, tag: bytes) -> tuple[Any, Any]:
        """Reads a namedtuple or dataclass. Returns the values, or None without nodes among the values; and the object,
        as far as made."""
        name, number = self.value(), len(self.made)
        if type(name) is not str:
            raise Broken("a record without a name")
        fields = self.values(self.u32())
        of = by_name.get(name)
        if of is None:
            raise ValueError(f"an object of the class {name!r} is in it, which this process has not registered; call "
                             "shardwire.register_plain(CLASS) before the reading")
        if list(of.fields) != fields or of.is_tuple != (tag == b"P"):
            raise ValueError(f"{name!r} was written with the fields {fields}, and is registered here with "
                             f"{list(of.fields)}: have one class on both ends")
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
        if tag in HANDLE_TAGS:
            of = handle_with(tag)
            return of.make(self.values(of.num_values), self.trusts)
        values = self.values(3)
        if any(isinstance(each, Ref) or not (isinstance(each, int) or tag == b"/" and each is None) for each in values):
            raise Broken("a range or slice of values other than numbers")
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

    def dense(self, dtype: torch.dtype, flat: torch.Tensor, first: int, shape: list[int],
              strides: list[int]) -> torch.Tensor:
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
            # A separate tensor object, though parts may be shared
            return whole if len(shape) == 1 and whole is not flat else whole.view(shape)
        return whole.as_strided(shape, strides, whole.storage_offset() + first)

    def numpy(self) -> Any:
        try:
            import numpy as np
        except ImportError:
            raise Broken("the object holds numpy arrays, and numpy is not installed here") from None
        is_scalar, name = self.take(1)[0], self.value()
        part, dims = self.i64(), self.i64()
        shape = self.numbers(dims)
        if type(name) is not str or _DTYPE_OF_NUMPY.fullmatch(name) is None:  # numpy itself accepts whole expressions
            raise Broken(f"{name!r} is no plain dtype of numpy")
        try:
            dtype = np.dtype(name)
        except (TypeError, ValueError):
            raise Broken(f"{name!r} is no dtype of numpy") from None
        if dtype.kind not in PLAIN_KINDS or dtype.fields is not None:
            raise Broken(f"{name!r} is no plain dtype of numpy")
        flat, count = self.part(part), math.prod(shape)
        if dtype.itemsize == 0 and count > 1:
            raise Broken(f"{count} elements of {name}, whose number no bytes bound")
        if count * dtype.itemsize != flat.numel():
            raise Broken(f"{count} elements of {name} in a part of {flat.numel()} bytes")
        # empty() would widen "<U0"
        array = flat.numpy().view(dtype).reshape(shape) if flat.numel() else np.ndarray(shape, dtype)
        return array[()] if is_scalar else array

    # Tuples and frozensets cannot be filled later, so their nodes are made first. Lists, dicts and sets exist already,
    # empty.
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
        if kind == b"D":
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
        # AttributeError: a dataclass with a field that cannot be set. RecursionError: the comparison of keys
        except (TypeError, AttributeError, RecursionError) as error:
            raise Broken(f"a container of things that cannot be in it: {error}") from None

    def resolved(self, number: int) -> list[Any]:
        made = self.made
        return [made[each] if type(each) is Ref else each for each in self.items[number]]


def _paired(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: make(zip(items[::2], items[1::2]))


_MAKERS: dict[bytes, Callable[[Any], Any]] = {b"t": tuple, b"o": _paired(OrderedDict), b"S": set, b"Z": frozenset,
                                              b"z": torch.Size}
_CONTAINER_TAGS = frozenset((b"o", b"S", b"Z", b"z"))
_NOT_YET = object()


def read(head: bytes, parts: list[torch.Tensor], trusts: bool = False) -> Any:
    """The object given to ``write``; tensors are views of ``parts``. Broken for bytes of another origin. trusts: the
    reader trusts pickles of the writer, and so pickles in the queues of the object."""
    head = bytes(head)
    try:
        return _C.read_graph(head, Ref, Broken, _NOT_YET, partial(_Reader, head, parts, trusts))
    except (struct.error, IndexError):
        raise Broken(f"more bytes are needed than the {len(head)} that there are") from None
