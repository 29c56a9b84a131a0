"""Objects as one uint8 tensor and back: :func:`serialize`, :func:`deserialize`.

::

    whole:  "SWOB", version, kind, number of parts | bytes of the head | bytes of each part | head | parts

Each part begins at a multiple of 64 bytes.

Kind 0 is plain (``write``): reading executes nothing. Kind 1 holds a pickle, whose tensors are parts too. Reading a
pickle can run any code of the writer, so the reader must ask for kind 1.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import torch

from . import write, read
from .write import NotPlain
from .tensor_bytes import Broken

_START = struct.Struct("<4sBBxxIQ")
_MAGIC = b"SWOB"
_VERSION = 1
PLAIN, PICKLED = 0, 1
_ALIGNED = 64
_ALIGNED_FOR_VIEWS = 16  # size of the widest element


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not write.is_plain_tensor(obj):
            return None
        if id(obj) not in self.numbers:
            self.numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self.numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is not int or not 0 <= pid < len(self.tensors):
            raise Broken(f"tensor {pid!r} of {len(self.tensors)}")
        return self.tensors[pid]


def to_parts(value: Any, allow_pickle: bool) -> tuple[int, bytes, list[torch.Tensor]]:
    """Kind, head and parts of an object. TypeError for an object that needs pickle without allow_pickle."""
    try:
        return PLAIN, *write.write(value)
    except NotPlain as error:
        if not allow_pickle:
            raise TypeError(f"{error}; give allow_pickle=True to both ends to send the object by pickle: reading a "
                            "pickle runs the code of the writer, so do so only among programs that trust each "
                            "other") from None
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return PICKLED, *write.write([file.getvalue(), pickler.tensors])


def from_parts(kind: int, head: bytes, parts: list[torch.Tensor], allow_pickle: bool) -> Any:
    if kind not in (PLAIN, PICKLED):
        raise Broken(f"kind {kind} is not known to this version of shardwire")
    if kind == PICKLED and not allow_pickle:
        raise ValueError("this object was written by pickle, and reading a pickle runs the code of the "
                         "writer; give allow_pickle=True if you trust all programs that could have written the object")
    value = read.read(head, parts, allow_pickle)
    if kind == PLAIN:
        return value
    if type(value) is not list or len(value) != 2 or type(value[0]) is not bytes or type(value[1]) is not list:
        raise Broken("a pickle of another writer than serialize")
    return _Unpickler(io.BytesIO(value[0]), value[1]).load()


def serialize(x: Any, *, allow_pickle: bool = False) -> torch.Tensor:
    """``x`` as a uint8 tensor of one dimension, for :func:`deserialize`.

    Plain types are None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, OrderedDict, set,
    frozenset, range, slice, torch's tensors (strided; parameters too), sizes, dtypes and devices, numpy's arrays and
    scalars of plain dtypes, and a :class:`Queue` with a name. Shared and cyclic references stay shared and cyclic, and
    tensors that share memory still do. Tensors on accelerators are written as CPU tensors.

    allow_pickle: True: all other types are written by pickle; False: they are a TypeError. The reader must ask for
        pickle as well.
    """
    kind, head, parts = to_parts(x, allow_pickle)
    begin = _START.size + 8 * len(parts) + len(head)
    offsets = []
    end = begin
    for part in parts:
        end += -end % _ALIGNED
        offsets.append(end)
        end += part.numel()
    whole = torch.empty(end, dtype=torch.uint8, device="cpu")
    start = bytearray(_START.pack(_MAGIC, _VERSION, kind, len(parts), len(head)))
    start += struct.pack(f"<{len(parts)}Q", *(part.numel() for part in parts)) + head
    memoryview(whole.numpy())[:begin] = start
    last = begin
    for offset, part in zip(offsets, parts):
        whole[last:offset] = 0  # between parts, so that equal objects have equal bytes
        last = offset + part.numel()
        whole[offset:last] = part
    return whole


def deserialize(x: torch.Tensor, *, allow_pickle: bool = False) -> Any:
    """The value given to :func:`serialize`. Its tensors and arrays are views of ``x``, without a copy.

    Executes nothing from the bytes, and checks every length: bytes not written by serialize are a ValueError, or read
    as some plain object.

    allow_pickle: also read objects written by pickle. **A pickle can run any code while the pickle is read**: ask for
    pickle only where you trust everybody who could have written or changed the bytes.
    """
    if not isinstance(x, torch.Tensor) or x.dtype != torch.uint8 or x.dim() != 1:
        raise TypeError("give the uint8 tensor of one dimension that serialize returned")
    whole = x.detach().cpu().contiguous()
    if whole.data_ptr() % _ALIGNED_FOR_VIEWS:
        whole = whole.clone()
    size = whole.numel()
    if size < _START.size:
        raise Broken(f"{size} bytes are too few for an object")
    data = memoryview(whole.numpy())
    magic, version, kind, count, head_bytes = _START.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise Broken("these bytes were not written by serialize" if magic != _MAGIC
                     else f"version {version} of the format; this one reads {_VERSION}")
    end = _START.size + 8 * count + head_bytes
    if end > size:
        raise Broken(f"the head ends at byte {end} of {size}")
    at = _START.size + 8 * count
    sizes = struct.unpack_from(f"<{count}Q", data, _START.size)
    head = bytes(data[at:end])
    parts = []
    for part in sizes:
        end += -end % _ALIGNED
        if part > size - end:
            raise Broken(f"a part of {part} bytes at byte {end} of {size}")
        parts.append(whole[end:end + part])
        end += part
    return from_parts(kind, head, parts, allow_pickle)
