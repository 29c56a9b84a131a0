"""A checkpoint of torch.distributed.checkpoint as a source of weights: .metadata gives the file and place of each
tensor's chunks.

Both the metadata and the chunks are pickles, read as inert records (pickles.py). This file uses the few known kinds of
records.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, UnsupportedError
from ..plain.tensor_bytes import item_bytes
from .descriptions import Weight
from .simple_layouts import Chunks
from .matching import Match
from .pickles import Record, dims_of, dtype_name_of, is_natural, unpickle
from .progress import SILENT, Progress
from .regular_file import open_regular, read_into, read_regular
from .torch_archive import Chunk, find_elements
from .wanted import Asking, meet, wanted_ranges

METADATA = ".metadata"
_MOST_METADATA = 1 << 30


@dataclass(slots=True)
class ChunkedTensor:
    dtype_name: str
    shape: tuple[int, ...]
    chunks: list[Chunk] = field(default_factory=list)


class DcpFolder:
    """The tensors of one such folder by name. Other values (step counts and the like) are ignored."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for a broken folder, UnsupportedError for another way of storage, OSError for
        unreadable files."""
        self.folder = folder
        self.tensors: dict[str, ChunkedTensor] = {}
        size = (folder / METADATA).stat().st_size
        if size > _MOST_METADATA:
            raise CheckpointError(f"{folder / METADATA}: {size} bytes are too many")
        metadata = unpickle(read_regular(folder / METADATA), str(folder / METADATA))
        try:
            self._read(metadata["state_dict_metadata"], metadata["storage_data"])
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            if isinstance(error, (CheckpointError, UnsupportedError)):
                raise
            raise CheckpointError(f"{folder / METADATA}: is not the metadata of torch.distributed.checkpoint as we "
                                  f"know it ({type(error).__name__}: {str(error)[:100]})") from None

    def close(self) -> None:
        """As FileSet's: nothing stays open."""

    def entries(self) -> Iterator[tuple[str, tuple[int, ...], Any]]:
        for name, tensor in self.tensors.items():
            yield name, tensor.shape, getattr(torch, tensor.dtype_name, tensor.dtype_name)

    def _read(self, described: dict[str, Record], stored: dict[Record, Record]) -> None:
        places: dict[tuple[str, tuple[int, ...]], Record] = {}
        for index, place in stored.items():
            offset = index.get("offset")  # values other than tensors have none
            if offset is not None:
                places[index["fqn"], dims_of(offset)] = place
        for name, record in described.items():
            if type(record).__name__ != "TensorStorageMetadata":
                continue
            dtype = record["properties"]
            dtype = dtype.state[0] if isinstance(dtype.state, tuple) else dtype["dtype"]
            tensor = self.tensors[name] = ChunkedTensor(dtype_name_of(dtype, name), dims_of(record["size"]))
            for chunk in record["chunks"]:
                offset, shape = dims_of(chunk["offsets"]), dims_of(chunk["sizes"])
                tensor.chunks.append(self._chunk(name, tensor, offset, shape, places.get((name, offset))))
            held = sum(math.prod(chunk.shape) for chunk in tensor.chunks)
            if held < math.prod(tensor.shape):
                raise CheckpointError(f"{self.folder / METADATA}: the chunks of {name!r} have {held} elements, its "
                                      f"shape {list(tensor.shape)} has {math.prod(tensor.shape)}")

    def _chunk(self, name: str, tensor: ChunkedTensor, offset: tuple[int, ...], shape: tuple[int, ...],
               place: Record | None) -> Chunk:
        if place is None:
            raise CheckpointError(f"{self.folder / METADATA}: says nowhere where the chunk of {name!r} at "
                                  f"{list(offset)} lies")
        if len(offset) != len(tensor.shape) or len(shape) != len(tensor.shape) or \
                any(start + count > whole for start, count, whole in zip(offset, shape, tensor.shape)):
            raise CheckpointError(f"{self.folder / METADATA}: the chunk of {name!r} at {list(offset)} of shape "
                                  f"{list(shape)} is not inside its shape {list(tensor.shape)}")
        file, begin, length = place["relative_path"], place["offset"], place["length"]
        if (not isinstance(file, str) or file != os.path.basename(file) or file in ("", ".", "..")
                or not all(is_natural(each) for each in (begin, length))):
            raise CheckpointError(f"{self.folder / METADATA}: the chunk of {name!r} at {list(offset)} would lie in "
                                  f"{file!r}, bytes {begin!r} and {length!r} on")
        changed = place.get("transform_descriptors")
        if changed:
            raise UnsupportedError(f"{self.folder}: {name!r} is stored transformed ({changed!r:.80}); only plain "
                                   "chunks can be read")
        return Chunk(offset, shape, file, begin, length)

    def supply(self, found: Match, targets: dict[str, Weight], asking: Asking,
               shown: Progress = SILENT) -> tuple[dict[str, Any], dict[str, Any]]:
        """Layouts and tensors of the chunks read by this rank: an even part of all chunks wanted on its host."""
        wanted: list[tuple[str, Chunk]] = []
        for placed, ranges in wanted_ranges(found, targets, asking):
            for chunk in self.tensors[placed.name].chunks:
                box = tuple((start, start + count) for start, count in zip(chunk.offset, chunk.shape))
                if any(meet(box, each) is not None for each in ranges):
                    wanted.append((placed.name, chunk))
        loads = [0] * asking.count
        layouts: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        mine: dict[str, list[Chunk]] = {}
        # Largest first, for even parts
        for name, chunk in sorted(dict.fromkeys(wanted), key=lambda each: -each[1].length):
            reader = loads.index(min(loads))
            loads[reader] += chunk.length
            if reader == asking.which:
                mine.setdefault(name, []).append(chunk)
        shown.begin("reading", loads[asking.which])
        for name, chunks in mine.items():
            layouts[name] = Chunks(self.tensors[name].shape, tuple((chunk.offset, chunk.shape) for chunk in chunks))
            tensors[name] = []
            for chunk in chunks:
                tensors[name].append(self._load(name, chunk))
                shown.add(chunk.length)
        return layouts, tensors

    def whole(self, name: str) -> torch.Tensor:
        """One tensor, put together in memory."""
        tensor = self.tensors[name]
        dtype = getattr(torch, tensor.dtype_name, None)
        if dtype is None:
            raise UnsupportedError(f"{self.folder}: {name!r} has the dtype {tensor.dtype_name}, which torch "
                                   f"{torch.__version__} does not have")
        joined = torch.empty(tensor.shape, dtype=dtype, device="cpu")
        for chunk in tensor.chunks:
            joined[tuple(slice(start, start + count) for start, count in zip(chunk.offset, chunk.shape))] = self._load(
                name, chunk)
        return joined

    def _load(self, name: str, chunk: Chunk) -> torch.Tensor:
        """The elements of a chunk, read into separate memory: elements in the archive are not aligned."""
        dtype_name = self.tensors[name].dtype_name
        dtype = getattr(torch, dtype_name, None)
        where = f"{self.folder / chunk.file}: {name!r} at {list(chunk.offset)}"
        if dtype is None:
            raise UnsupportedError(
                f"{where}: has the dtype {dtype_name}, which torch {torch.__version__} does not have")
        try:
            descriptor = open_regular(self.folder / chunk.file)
        except FileNotFoundError:
            raise CheckpointError(f"{where}: the file is missing") from None
        try:
            begin, count, strides = find_elements(descriptor, chunk, dtype_name, where)
            item = item_bytes(dtype)
            storage = torch.empty(count // item, dtype=dtype, device="cpu")
            if count:
                read_into(descriptor, memoryview(storage.view(torch.uint8).numpy()), begin, where)
            reach = (1 + sum((extent - 1) * stride for extent, stride in zip(chunk.shape, strides))
                     if math.prod(chunk.shape) else 0)
            if reach > storage.numel():
                raise CheckpointError(f"{where}: shape {list(chunk.shape)} and strides {list(strides)} take {reach} "
                                      f"elements, {storage.numel()} are stored")
            return storage.as_strided(chunk.shape, strides)
        finally:
            os.close(descriptor)
