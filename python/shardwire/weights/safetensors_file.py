"""One safetensors file: 8 bytes of little-endian header length, a JSON header, then the bytes of all tensors without
holes.

No field of a header is trusted: lengths, offsets, sizes and names are checked against each other and against the file.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler.layout import MAX_DIMS
from ..errors import CheckpointError, UnsupportedError
from .pickles import is_natural
from .regular_file import open_regular, read_into

# The format's own limit: a file with a larger header counts as broken.
MAX_HEADER = 100_000_000

# The format's names: bytes of an element, and torch's name; an old torch may lack the dtype.
DTYPES = {
    "BOOL": (1, "bool"), "U8": (1, "uint8"), "I8": (1, "int8"), "I16": (2, "int16"), "I32": (4, "int32"),
    "I64": (8, "int64"), "U16": (2, "uint16"), "U32": (4, "uint32"), "U64": (8, "uint64"), "F16": (2, "float16"),
    "BF16": (2, "bfloat16"), "F32": (4, "float32"), "F64": (8, "float64"), "C64": (8, "complex64"),
    "F8_E4M3": (1, "float8_e4m3fn"), "F8_E5M2": (1, "float8_e5m2"), "F8_E8M0": (1, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (1, "float8_e4m3fnuz"), "F8_E5M2FNUZ": (1, "float8_e5m2fnuz"),
}
# A dtype of a newer format, such as F4 or F6_E2M3: the tensor cannot be read, and the rest of the file can.
_UNKNOWN = re.compile(r"[A-Z][A-Z0-9_]*")
_NAME_OF = {torch_name: name for name, (_, torch_name) in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file. begin, end: the range of bytes, counted from the file's first byte."""

    name: str
    dtype_name: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype; None where this torch or the table lacks the dtype."""
        return getattr(torch, self.torch_name, None) if self.dtype_name in DTYPES else None

    @property
    def torch_name(self) -> str:
        """Torch's name of the dtype; the file's where the table lacks the dtype."""
        return DTYPES[self.dtype_name][1] if self.dtype_name in DTYPES else self.dtype_name

    @property
    def rows(self) -> int:
        """The number of rows; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return (self.end - self.begin) // max(1, self.rows)


class OpenFile:
    """An open file with a checked header. Keeps its descriptor until closed; the mapping lives as long as tensors show
    it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises CheckpointError for a missing, broken or not regular file, OSError for an unreadable file."""
        self.path = os.fspath(path)
        self._mapped: mmap.mmap | None = None
        try:
            self.descriptor = open_regular(self.path)
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: no such file or folder") from None
        try:
            self.size = os.fstat(self.descriptor).st_size
            self.tensors, self.metadata = _read_header(self.path, self.descriptor, self.size)
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def mapped(self) -> mmap.mmap:
        """The whole file, read from the page cache. Not writable, not even as a private copy, which the kernel would
        count as memory in use."""
        if self._mapped is None:
            self._mapped = mmap.mmap(self.descriptor, self.size, access=mmap.ACCESS_READ)
        return self._mapped

    def tensor(self, stored: Stored, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The bytes of one tensor as ``dtype`` (None: the stored dtype), in place; a write to the tensor ends the
        process. UnsupportedError where this torch or the table lacks the dtype.
        """
        dtype = dtype or stored.dtype
        if dtype is None:
            raise UnsupportedError(f"{self.path}: {stored.name!r} has the dtype {stored.dtype_name}, which cannot be "
                                   f"read with torch {torch.__version__}")
        if stored.begin == stored.end:
            return torch.empty(stored.shape, dtype=dtype, device="cpu")
        if stored.begin % DTYPES[stored.dtype_name][0]:
            # A header of odd length leaves the data unaligned: the format allows it, torch's views do not.
            return torch.frombuffer(bytearray(self.mapped[stored.begin:stored.end]), dtype=dtype).reshape(stored.shape)
        count = (stored.end - stored.begin) // DTYPES[stored.dtype_name][0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the tensor is not writable
            return torch.frombuffer(self.mapped, dtype=dtype, count=count, offset=stored.begin).reshape(stored.shape)


# Reading headers.

def _read_header(path: str, descriptor: int, size: int) -> tuple[dict[str, Stored], dict[str, str]]:
    if size == 0:
        raise CheckpointError(f"{path}: the file is empty")
    if size < 8:
        raise CheckpointError(f"{path}: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
    if length > MAX_HEADER or length < 2:
        raise CheckpointError(f"{path}: is no safetensors file: it would have a header of {length} bytes (2 to "
                              f"{MAX_HEADER} are allowed)")
    if 8 + length > size:
        raise CheckpointError(
            f"{path}: truncated: the header takes {length} bytes, the file has {size - 8} after its length")
    text = bytearray(length)
    read_into(descriptor, memoryview(text), 8, path)
    header = _parse(path, text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: the __metadata__ of the header is no object of strings")
    start = 8 + length
    tensors = {name: _check_entry(path, name, entry, start) for name, entry in header.items()}
    _check_places(path, tensors.values(), start, size)
    return tensors, metadata


def _parse(path: str, text: bytearray) -> dict[str, Any]:
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice.append(next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1))
        return table

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: is no safetensors file: the header is not JSON") from None
    if twice:
        raise CheckpointError(f"{path}: the header has the name {twice[0]!r} twice; give unique names")
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: is no safetensors file: the header is not a JSON object")
    return header


def _check_entry(path: str, name: str, entry: Any, start: int) -> Stored:
    if not name:
        raise CheckpointError(f"{path}: holds a tensor without a name")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise CheckpointError(f"{path}: the entry of {name!r} lacks dtype, shape or data_offsets")
    if not isinstance(entry["dtype"], str) or not (entry["dtype"] in DTYPES or _UNKNOWN.fullmatch(entry["dtype"])):
        raise CheckpointError(f"{path}: {name!r} has the dtype {entry['dtype']!r}, which is not known")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(map(is_natural, shape)) or len(shape) > MAX_DIMS:
        raise CheckpointError(f"{path}: {name!r} has the shape {shape!r}, which is no list of up to {MAX_DIMS} "
                              "natural numbers")
    if (not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_natural, offsets))
            or offsets[0] > offsets[1]):
        raise CheckpointError(f"{path}: {name!r} has the data_offsets {offsets!r}, which are no range")
    num_bytes = offsets[1] - offsets[0]
    expected = math.prod(shape) * DTYPES[entry["dtype"]][0] if entry["dtype"] in DTYPES else num_bytes
    if num_bytes != expected:
        raise CheckpointError(f"{path}: {name!r} of shape {shape} and dtype {entry['dtype']} needs {expected} bytes, "
                              f"its data_offsets give {num_bytes}")
    return Stored(name, entry["dtype"], tuple(shape), start + offsets[0], start + offsets[1])


def _check_places(path: str, tensors: Any, start: int, size: int) -> None:
    """Checks that the tensors lie side by side from the header's end to the file's end, without holes or overlaps."""
    end, before = start, ""
    for stored in sorted(tensors, key=lambda each: (each.begin, each.end)):
        if stored.begin < end:
            raise CheckpointError(f"{path}: {stored.name!r} overlaps: its data begin at {stored.begin - start}, but "
                                  f"those of {before!r} end at {end - start}")
        if stored.begin > end:
            raise CheckpointError(f"{path}: a hole: the data of {stored.name!r} begin at {stored.begin - start}, but "
                                  f"the tensors before it end at {end - start}")
        end, before = stored.end, stored.name
    if end > size:
        raise CheckpointError(f"{path}: truncated: the tensors take {end - start} bytes, the file has {size - start} "
                              "after its header")
    if end < size:
        raise CheckpointError(f"{path}: {size - end} bytes follow the last tensor, which no tensor owns")


# Writing headers.

def dtype_name(dtype: torch.dtype, name: str) -> str:
    """The format's name of ``dtype``. UnsupportedError, with the tensor's name, for a dtype without a name in the
    format."""
    known = _NAME_OF.get(str(dtype).removeprefix("torch."))
    if known is None:
        raise UnsupportedError(f"{name!r} has dtype {dtype}, which a safetensors file cannot hold")
    return known


def build_header(tensors: Sequence[tuple[str, str, tuple[int, ...]]],
                 metadata: Mapping[str, str]) -> tuple[bytes, list[Stored]]:
    """The header's bytes, length included, for (name, dtype name, shape) in the order of places; and the place of each
    tensor. UnsupportedError for a header that no reader would accept.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, kind, shape in tensors:
        if name == "__metadata__":
            raise UnsupportedError("a weight has the name '__metadata__', which a safetensors file has for something "
                                   "else; rename it by a mapping")
        size = math.prod(shape) * DTYPES[kind][0]
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data are aligned
    if len(text) > MAX_HEADER:
        raise UnsupportedError(f"the header of a safetensors file for {len(tensors)} weights would take {len(text)} "
                               f"bytes, of {MAX_HEADER} that are allowed; save to more files by a smaller "
                               "max_file_bytes, or with less metadata")
    start = 8 + len(text)
    stored = [Stored(name, kind, shape, start + entries[name]["data_offsets"][0],
                     start + entries[name]["data_offsets"][1]) for name, kind, shape in tensors]
    return struct.pack("<Q", len(text)) + text, stored
