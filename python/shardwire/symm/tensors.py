"""Making symmetric tensors, access to the peers' parts, and freeing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from .. import _C
from .._integers import as_integer
from ..compiler.future import as_seconds
from ..compiler.layout import MAX_DIMS
from ..groups.lookup import resolve_backend
from ..plain.tensor_bytes import item_bytes

_MOST_BYTES = 1 << 60


def backend_of(group: Any) -> Any:
    """The native backend of a group, of a group's name, of None (the default group), or of a :class:`Team`."""
    backend = getattr(group, "_symm_backend", None)
    return resolve_backend(group) if backend is None else backend


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None,
          timeout: float | timedelta | None = None) -> torch.Tensor:
    """An uninitialised symmetric tensor. Collective over ``group``, blocking: all ranks ask for one shape and dtype.

    Like ``torch.empty``: ``empty(2, 3)`` or ``empty((2, 3))``. The tensor lies in the heap that all ranks of a host
    share: collectives and ``compile_op`` move its elements in one copy, and the calls of this package reach the same
    elements of every other rank's part. The memory is returned when all ranks have dropped the tensor, its views and
    peer tensors, or when the ranks' groups have ended; no call waits for the return.

    dtype: any; torch's default dtype when absent. group: a shardwire group, its name, a :class:`Team`, or None for the
        default group.

    Raises MismatchError on all ranks where shapes or dtypes differ; ValueError with the reason on all ranks where one
    rank's arguments are wrong or its heap is full; TimeoutError naming the missing ranks.
    """
    return make_tensor(size, dtype, group, timeout, False)


def zeros(*size: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None,
          timeout: float | timedelta | None = None) -> torch.Tensor:
    """As :func:`empty`, and zero on every rank before the call returns on any rank: for signals."""
    return make_tensor(size, dtype, group, timeout, True)


def tensor(shape: Sequence[int] | int, dtype: torch.dtype | None = None, group: Any = None,
           timeout: float | timedelta | None = None) -> torch.Tensor:
    """:func:`empty`, as NVSHMEM names it: uninitialised."""
    return make_tensor((shape,), dtype, group, timeout, False)


def make_tensor(size: Sequence[Any], dtype: torch.dtype | None, group: Any, timeout: Any, zeroed: bool,
                error: str = "") -> torch.Tensor:
    backend = backend_of(group)
    seconds = None
    # The other ranks wait for this rank, so an error of this rank alone must be sent to all.
    try:
        seconds = as_seconds(timeout)
    except (TypeError, ValueError) as failure:
        error = error or str(failure)
    shape = size[0] if len(size) == 1 and as_integer(size[0]) is None else size
    shape = list(shape) if isinstance(shape, Iterator) else shape
    dtype = torch.get_default_dtype() if dtype is None else dtype
    error = error or _what_is_wrong(shape, dtype)
    if error:
        return _C.symm_make(backend, [], torch.uint8, error, zeroed, seconds)
    return _C.symm_make(backend, [int(extent) for extent in shape], dtype, "", zeroed, seconds)


def _what_is_wrong(shape: Any, dtype: Any) -> str:
    if not isinstance(dtype, torch.dtype):
        return f"dtype is a {type(dtype).__name__}; give a torch.dtype"
    try:
        extents = list(shape)
    except TypeError:
        return f"shape is a {type(shape).__name__}; give integers"
    count = item_bytes(dtype)
    for extent in extents:
        number = as_integer(extent)
        if number is None:
            return f"shape has a {type(extent).__name__} in it; give integers"
        if number < 0:
            return f"shape {tuple(extents)} has a negative extent"
        count *= max(number, 1)  # without elements too: the strides are numbers of 64 bits
    if len(extents) > MAX_DIMS:
        return f"shape has {len(extents)} dimensions; at most {MAX_DIMS} are supported"
    return f"shape {tuple(extents)} is larger than any memory" if count >= _MOST_BYTES else ""


def get_peer_tensor(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """The same elements of the part of ``rank``, as an ordinary tensor: same shape, strides and dtype, no copy. Local,
    waits for nothing.

    tensor: a symmetric tensor or any view of one. rank: in the group that made the tensor; may be this rank. Reads and
        writes access the peer's memory directly; ordering is the caller's duty, by signals and barriers. The result
        keeps the block alive, and stays readable after the peer has died.

    Raises ValueError for other tensors and ranks, UnsupportedError where the memory of ``rank`` cannot be addressed
    because the rank is on another host.
    """
    return _C.symm_peer(tensor, rank)


def free(tensor: torch.Tensor, timeout: float | timedelta | None = None, group: Any = None) -> None:
    """Ends a symmetric tensor on all ranks. Collective, blocking: all ranks free the same tensors, in the same order.

    After the call no function of this package takes the tensor or a view of the tensor (ValueError). The memory is
    returned when the last tensor over the block, on any rank, is gone: memory in use is never taken away. Freeing is
    not necessary: memory that all ranks dropped is returned as well.

    group: the group that made the tensor, as for :func:`empty`. The group is used only where a rank gives a tensor that
        is not symmetric, so that the other ranks are notified.

    Raises MismatchError on all ranks where the ranks free different tensors; ValueError on all ranks where a rank frees
    a tensor a second time, gives a tensor that is not symmetric, or a timeout that is no time.
    """
    seconds, error = None, ""
    try:
        seconds = as_seconds(timeout)
    except (TypeError, ValueError) as failure:  # the other ranks wait for this rank
        error = str(failure)
    if isinstance(tensor, torch.Tensor) and _C.symm_place(tensor) is not None:
        _C.symm_free(tensor, seconds, error)
        return
    error = error or ("the tensor does not lie in symmetric memory: give one that shardwire.symm.empty() made on all "
                      "ranks")
    try:
        backend = backend_of(group)
    except (TypeError, ValueError):
        raise ValueError(f"free: {error}") from None
    # In place of free: the other ranks wait there
    _C.exchange(backend, "symmetric free", error=ValueError(error), timeout=seconds)


def is_symmetric(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in symmetric memory, the own rank's or a peer's, and was not freed."""
    return _C.symm_place(tensor) is not None and not _C.symm_is_freed(tensor)
