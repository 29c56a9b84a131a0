"""One chunk of a checkpoint as written by torch.save: a zip archive with a pickle that describes the tensor, and the
tensor's unaligned bytes."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from dataclasses import dataclass
from typing import Any

from ..compiler.layout import kind_of
from ..errors import CheckpointError, UnsupportedError
from .pickles import dims_of, dtype_name_of, unpickle

# Torch's old storage classes, each of one dtype.
_STORAGES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
             "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
             "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
             "ComplexDoubleStorage": "complex128"}
_ENCRYPTED = 1  # a flag of a member


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, and the bytes of the archive with the elements."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    begin: int
    length: int


class _Window(io.RawIOBase):
    """A range of bytes of a file, as a file."""

    def __init__(self, descriptor: int, begin: int, length: int) -> None:
        self.descriptor, self.begin, self.length, self.at = descriptor, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError("a place before the beginning")
        self.at = base + offset
        return self.at

    def readinto(self, buffer: Any) -> int:
        part = os.pread(self.descriptor, max(0, min(len(buffer), self.length - self.at)), self.begin + self.at)
        buffer[:len(part)] = part
        self.at += len(part)
        return len(part)


def find_elements(descriptor: int, chunk: Chunk, dtype_name: str, where: str) -> tuple[int, int, tuple[int, ...]]:
    """The first byte of the elements in the file, the number of bytes, and the strides."""
    size = os.fstat(descriptor).st_size
    if chunk.begin + chunk.length > size:
        raise CheckpointError(
            f"{where}: bytes {chunk.begin} to {chunk.begin + chunk.length} are wanted, the file has {size}")
    try:
        archive = zipfile.ZipFile(io.BufferedReader(_Window(descriptor, chunk.begin, chunk.length)))
        members = {member.filename.partition("/")[2]: member for member in archive.infolist()}
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED
               for member in members.values()):
            raise UnsupportedError(f"{where}: is compressed or encrypted")
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise UnsupportedError(f"{where}: was written by a big-endian machine")
        key, strides = _read_tensor(unpickle(archive.read(members["data.pkl"]), where), chunk, dtype_name, where)
        member = members[f"data/{key}"]
    except (CheckpointError, UnsupportedError):
        raise
    except (zipfile.BadZipFile, NotImplementedError, KeyError, EOFError, ValueError, struct.error) as error:
        raise CheckpointError(f"{where}: is no archive of torch.save ({type(error).__name__}: "
                              f"{str(error)[:100]})") from None
    header = os.pread(descriptor, 30, chunk.begin + member.header_offset)
    if len(header) < 30 or header[:4] != b"PK\3\4":
        raise CheckpointError(f"{where}: its archive has no member at byte {chunk.begin + member.header_offset}")
    begin = member.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    if begin + member.file_size > chunk.length:
        raise CheckpointError(f"{where}: the elements would end at byte {begin + member.file_size} of an archive of "
                              f"{chunk.length}")
    return chunk.begin + begin, member.file_size, strides


def _read_tensor(pickled: Any, chunk: Chunk, dtype_name: str, where: str) -> tuple[str, tuple[int, ...]]:
    """The storage's key and the strides in the pickle of one tensor, checked against the metadata."""
    kind = getattr(pickled, "name", "")
    if kind not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        raise UnsupportedError(f"{where}: is {kind or kind_of(pickled)}; only plain tensors can be read")
    try:
        (_, storage, key, _, _), offset, shape, strides = pickled.arguments[:4]
        stored = (dtype_name_of(pickled.arguments[6], where) if kind == "_rebuild_tensor_v3"
                  else _STORAGES.get(storage.name))
        shape, strides = dims_of(shape), dims_of(strides)
    except (TypeError, ValueError, IndexError, AttributeError):
        raise CheckpointError(f"{where}: its pickle describes no tensor") from None
    if stored != dtype_name or shape != chunk.shape or offset != 0 or len(strides) != len(shape):
        raise CheckpointError(f"{where}: the file has {stored} of shape {list(shape)} from element {offset!r} on, the "
                              f"metadata says {dtype_name} of shape {list(chunk.shape)}")
    return str(key), strides
