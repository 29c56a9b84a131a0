"""The versions on a publisher's rank: one or several whole versions of the state, and their readers.

A buffer has a version only while its bytes do not change. A reader pins the buffer; a commit takes the oldest buffer,
and a reader of this buffer gets ``patience`` seconds before the publisher ends the reader's subscription. Used by the
trainer's thread (write) and by the threads that serve subscribers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from .. import _C
from ..errors import InternalError
from ..plain.tensor_bytes import bytes_of
from .holdings import Holdings

MAX_BUFFERS = 4
# The longest time until an ended reader is gone
_LEAVE_S = 60.0


class Reader(Protocol):
    def send_away(self, reason: str) -> None: ...


class Slot:
    """One storage of the state on this rank: tied names share the storage. Blocks are whole rows of the local
    tensor."""

    __slots__ = ("names", "shape", "dtype", "row_bytes", "rows", "block_rows", "num_blocks")

    def __init__(self, tensor: torch.Tensor, block_bytes: int) -> None:
        self.names: list[str] = []
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.rows = self.shape[0] if self.shape else 1
        num_bytes = tensor.numel() * tensor.element_size()
        self.row_bytes = num_bytes // self.rows if self.rows else 0
        self.block_rows = max(1, block_bytes // self.row_bytes) if self.row_bytes else max(1, self.rows)
        self.num_blocks = -(-self.rows // self.block_rows) if num_bytes else 0

    @property
    def num_bytes(self) -> int:
        return self.row_bytes * self.rows


class Buffer:
    """A copy of the state. version: the version for new readers, or None; content: the version of the bytes, or None
    during a write. changed: per slot and block the version that last changed the block, at the time of this version.
    """

    __slots__ = ("version", "content", "blocks", "tensors", "changed", "readers")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.version: int | None = None
        self.content: int | None = None
        self.blocks = [_C.heap_empty([slot.num_bytes], torch.uint8) for slot in slots]
        self.tensors = {name: block.view(slot.dtype).view(slot.shape) if slot.num_bytes
                              else torch.empty(slot.shape, dtype=slot.dtype, device="cpu")
                        for slot, block in zip(slots, self.blocks) for name in slot.names}
        self.changed: list[list[int]] = []
        self.readers: set[Reader] = set()


class Versions:
    def __init__(self, holdings: Holdings, count: int, block_bytes: int | None) -> None:
        self._holdings = holdings
        self._tracks = block_bytes is not None
        self.slots = _slots_of(holdings, block_bytes or 1 << 62)
        self._buffers = [Buffer(self.slots) for _ in range(count)]
        self._place = {name: index for index, slot in enumerate(self.slots) for name in slot.names}
        self._changed = [[0] * slot.num_blocks for slot in self.slots]
        self._state = threading.Condition()
        self._latest: Buffer | None = None
        self.newest = -1
        self.total_bytes = sum(slot.num_bytes for slot in self.slots)

    # ---- the trainer's side

    def write(self, version: int, patience: float) -> None:
        """Copies the present state as ``version``. On an error the older versions stay, except the version of the taken
        buffer."""
        tensors = self._holdings.tensors()
        for name, given in tensors.items():
            _C.require_memory(given, f"the state's {name!r}")
        buffer, before = self._claim(patience)
        latest = self._latest
        for index, slot in enumerate(self.slots):
            tensor = tensors.get(slot.names[0])
            if tensor is None or tuple(tensor.shape) != slot.shape or tensor.dtype != slot.dtype:
                now = "is not there" if tensor is None else f"has shape {list(tensor.shape)} and dtype {tensor.dtype}"
                raise ValueError(f"the state's {slot.names[0]!r} {now}; when it was published it had "
                                 f"{list(slot.shape)} and {slot.dtype}. Publish anew after changing the state's names, "
                                 "shapes or dtypes")
            if not self._tracks or not slot.num_blocks:
                buffer.tensors[slot.names[0]].copy_(tensor)
            else:
                self._write_blocks(index, tensor, buffer, before, latest, version)
        with self._state:
            buffer.changed = [list(table) for table in self._changed]
            buffer.version = buffer.content = self.newest = version
            self._latest = buffer
            self._state.notify_all()

    def _claim(self, patience: float) -> tuple[Buffer, int]:
        """The oldest buffer, without a version from now on and without readers; and the buffer's previous version, -1
        for none."""
        with self._state:
            buffer = min(self._buffers, key=lambda one: -1 if one.version is None else one.version)
            before = -1 if buffer.version is None else buffer.version
            buffer.version = None  # no new readers
            self._state.wait_for(lambda: not buffer.readers, min(patience, threading.TIMEOUT_MAX))
            late = list(buffer.readers)
        for reader in late:
            reader.send_away(f"it still read version {before} {patience:g} s after a commit needed that buffer")
        with self._state:
            if not self._state.wait_for(lambda: not buffer.readers, _LEAVE_S):
                raise InternalError(f"a reader of version {before} that was sent away is still there")
            buffer.content = None
        return buffer, before

    def _write_blocks(self, index: int, tensor: torch.Tensor, buffer: Buffer, before: int, latest: Buffer | None,
                      version: int) -> None:
        """Compares with the version before, byte by byte, and writes the blocks in which the buffer is out of date."""
        slot, table = self.slots[index], self._changed[index]
        now = bytes_of(tensor.detach().to("cpu").resolve_conj().resolve_neg())
        known = None if latest is None else latest.blocks[index]
        target = buffer.blocks[index]
        step = slot.block_rows * slot.row_bytes
        for block in range(slot.num_blocks):
            part = slice(block * step, min((block + 1) * step, slot.num_bytes))
            if known is None or not _same(now[part], known[part]):
                table[block] = version
            if before < 0 or table[block] > before:
                target[part].copy_(now[part])

    # ---- the readers' side

    def pin_all(self, reader: Reader) -> dict[int, Buffer]:
        """All present versions; none is overwritten until the reader releases it."""
        with self._state:
            held = {buffer.version: buffer for buffer in self._buffers if buffer.version is not None}
            for buffer in held.values():
                buffer.readers.add(reader)
            return held

    def release(self, reader: Reader, keep: Buffer | None = None) -> None:
        with self._state:
            for buffer in self._buffers:
                if buffer is not keep:
                    buffer.readers.discard(reader)
            self._state.notify_all()

    def wait_for_commit(self, seconds: float) -> None:
        """Waits for the next version, at most `seconds`."""
        with self._state:
            newest = self.newest
            self._state.wait_for(lambda: self.newest != newest, max(0.0, seconds))

    def changed_rows(self, buffer: Buffer, name: str, since: int) -> list[tuple[int, int]]:
        """Ranges of rows of the name's local tensor that may differ between version ``since`` and the buffer's
        version."""
        index = self._place.get(name)
        if index is None:
            return []
        slot = self.slots[index]
        ranges: list[tuple[int, int]] = []
        for block, version in enumerate(buffer.changed[index]):
            if version > since:
                begin, end = block * slot.block_rows, min((block + 1) * slot.block_rows, slot.rows)
                if ranges and ranges[-1][1] == begin:
                    begin = ranges.pop()[0]
                ranges.append((begin, end))
        return ranges

    def changed_bytes(self, buffer: Buffer, since: int) -> int:
        if since < 0 or not self._tracks:
            return self.total_bytes
        return sum((end - begin) * slot.row_bytes for slot in self.slots
                   for begin, end in self.changed_rows(buffer, slot.names[0], since))


def _slots_of(holdings: Holdings, block_bytes: int) -> list[Slot]:
    slots: dict[object, Slot] = {}
    for name, tensor in holdings.tensors().items():
        alias = holdings.entries[name].alias
        slot = slots.setdefault(alias if tensor.numel() else name, Slot(tensor, block_bytes))
        slot.names.append(name)
    return list(slots.values())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    for tensor in (one, other):
        if tensor.numel() % 8 or tensor.data_ptr() % 8:
            return torch.equal(one, other)
    return torch.equal(one.view(torch.int64), other.view(torch.int64))
