"""Atomics on one element, at ``offset`` of a symmetric tensor, with the arguments of NVSHMEM4Py. See
:mod:`shardwire.symm.atomics`.

dtype: that of the elements: torch's, numpy's, or one of NVSHMEM's names ("int64", "long", "float", ...). A buffer of
bytes needs a dtype; for another target the dtype is the target's."""

from __future__ import annotations

from typing import Any

import torch

from ... import symm
from ..._integers import as_count
from .all_pes import NvshmemInvalid
from .collective import _elements
from .memory import _pe, as_symmetric, as_tensor
from .utils import dtype_of_name


def _at(target: torch.Tensor, offset: int, dtype: Any) -> torch.Tensor:
    target = as_symmetric(as_tensor(target))
    if dtype is not None:
        kind = dtype_of_name(dtype)
        if kind is not None and target.dtype == torch.uint8 and target.is_contiguous():
            target = _elements(target, kind)
        elif kind != target.dtype:
            raise NvshmemInvalid(f"dtype is {dtype!r}, and the target's {target.dtype}")
    place = as_count(offset, 0)
    if place is None or place >= target.numel():
        raise NvshmemInvalid(f"offset is {offset!r}, and the target has {target.numel()} elements")
    return target.reshape(-1)[place] if target.is_contiguous() else _nth(target, place)


def _nth(target: torch.Tensor, offset: int) -> torch.Tensor:
    """The element at the given place in row-major order, of a view that cannot be flattened."""
    index: list[int] = []
    for extent in reversed(target.shape):
        index.append(offset % extent)
        offset //= extent
    return target[tuple(reversed(index))]


def atomic_fetch(target: torch.Tensor, remote_pe: int = -1, *, offset: int = 0,
                 dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_fetch(_at(target, offset, dtype), _pe(remote_pe))


def atomic_set(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> None:
    symm.atomic_set(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_inc(target: torch.Tensor, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> None:
    symm.atomic_inc(_at(target, offset, dtype), _pe(remote_pe))


def atomic_fetch_inc(target: torch.Tensor, remote_pe: int = -1, *, offset: int = 0,
                     dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_fetch_inc(_at(target, offset, dtype), _pe(remote_pe))


def atomic_add(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> None:
    symm.atomic_add(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_fetch_add(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0,
                     dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_fetch_add(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_and(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> None:
    symm.atomic_and(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_fetch_and(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0,
                     dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_fetch_and(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_or(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> None:
    symm.atomic_or(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_fetch_or(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0,
                    dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_fetch_or(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_xor(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> None:
    symm.atomic_xor(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_fetch_xor(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0,
                     dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_fetch_xor(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_swap(target: torch.Tensor, value: Any, remote_pe: int = -1, *, offset: int = 0,
                dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_swap(_at(target, offset, dtype), value, _pe(remote_pe))


def atomic_compare_swap(target: torch.Tensor, cond: Any, value: Any, remote_pe: int = -1, *, offset: int = 0,
                        dtype: Any = None) -> symm.atomics.Number:
    return symm.atomic_compare_swap(_at(target, offset, dtype), cond, value, _pe(remote_pe))
