"""Rows that are contiguous in a file and in memory of this rank. These rows move by system calls, without the compiled
op: the kernel copies files faster than a thread can read or write a mapping, where every page costs a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from .. import _C
from .holdings import Holding
from .matching import Placed, Space


class LocalRows(NamedTuple):
    """Rows ``begin`` to ``end`` of a global tensor, in a contiguous tensor."""

    begin: int
    end: int
    tensor: torch.Tensor


def local_rows(space: Space, placed_list: Sequence[Placed], entries: Mapping[str, Holding],
               tensors: Mapping[str, torch.Tensor], rank: int, dtype: torch.dtype) -> list[LocalRows]:
    """The whole rows of ``space`` in contiguous CPU memory of this rank as ``dtype``. ``rank``: this rank's number in
    layouts. A scalar is one row."""
    found: list[LocalRows] = []
    for placed in placed_list if space.reduction is None else ():
        tensor, holding = tensors.get(placed.name), entries.get(placed.name)
        if (tensor is None or holding is None or placed.transposed or tensor.dtype != dtype
                or holding.layout.pending_reduction is not None):
            continue
        _C.require_memory(tensor, repr(placed.name))
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            continue
        share = holding.layout.share(rank)
        for box in () if share is None else share.boxes:
            if not space.shape:
                found.append(LocalRows(0, 1, tensor.reshape(1)))
            elif tuple(box.shape[1:]) == tuple(space.shape[1:]) == tuple(share.local_shape[1:]):
                begin = box.offset[0] + placed.offset[0]
                part = tensor.narrow(0, box.local_offset[0], box.shape[0])
                if part.is_contiguous():
                    found.append(LocalRows(begin, begin + box.shape[0], part))
    return sorted(found, key=lambda rows: rows[:2])


def cover(found: Iterable[LocalRows], begin: int, end: int) -> list[LocalRows] | None:
    """Parts of ``found`` that make up rows ``begin`` to ``end``, each row once; None where rows are missing."""
    parts: list[LocalRows] = []
    for rows in found:  # sorted by begin
        if begin < end and rows.begin <= begin < rows.end:
            stop = min(rows.end, end)
            parts.append(LocalRows(begin, stop, rows.tensor[begin - rows.begin:stop - rows.begin]))
            begin = stop
    return parts if begin >= end else None
