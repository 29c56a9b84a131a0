"""Puts, gets and signals, of tensors and numpy arrays. ``stream`` is accepted and not used: each call is complete when
the call returns, except a put between hosts, and the calls whose names end in ``nbi``: these are complete after
:func:`quiet`, :func:`flush` or a barrier."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch

from ... import _C, symm
from ...symm.access import put_then_signal
from .all_pes import NvshmemInvalid, world
from .memory import _pe, as_moved, as_symmetric, bytes_of


class SignalOp(IntEnum):
    SIGNAL_SET = 9
    SIGNAL_ADD = 10


class ComparisonType(IntEnum):
    CMP_EQ = 0
    CMP_NE = 1
    CMP_GT = 2
    CMP_LE = 3
    CMP_LT = 4
    CMP_GE = 5
    CMP_SENTINEL = 32767


_SIGNAL_NAMES = {SignalOp.SIGNAL_SET: "set", SignalOp.SIGNAL_ADD: "add"}
_COMPARISON_NAMES = {ComparisonType.CMP_EQ: "eq", ComparisonType.CMP_NE: "ne", ComparisonType.CMP_GT: "gt",
                     ComparisonType.CMP_LE: "le", ComparisonType.CMP_LT: "lt", ComparisonType.CMP_GE: "ge"}


def put(dst: torch.Tensor, src: torch.Tensor, remote_pe: int = -1, stream: Any = None) -> None:
    """Copies ``src`` to ``remote_pe``'s ``dst``. Of contiguous tensors of different length the shorter one counts, and
    of different dtypes the bytes are copied, as in NVSHMEM: so a buffer takes a tensor of any dtype."""
    symm.put(*_alike(as_symmetric(dst), src), _pe(remote_pe))


def get(dst: torch.Tensor, src: torch.Tensor, remote_pe: int = -1, stream: Any = None) -> None:
    """Copies ``remote_pe``'s ``src`` to ``dst``. As :func:`put`."""
    symm.get(*_alike(dst, as_symmetric(src)), _pe(remote_pe))


def put_nbi(dst: torch.Tensor, src: torch.Tensor, remote_pe: int = -1, stream: Any = None) -> None:
    """:func:`put` without waiting: ``src`` must not be changed before :func:`flush` or :func:`quiet`."""
    symm.put_nbi(*_alike(as_symmetric(dst), src), _pe(remote_pe))


def get_nbi(dst: torch.Tensor, src: torch.Tensor, remote_pe: int = -1, stream: Any = None) -> None:
    """:func:`get` without waiting: ``dst`` has the elements after :func:`quiet`."""
    symm.get_nbi(*_alike(dst, as_symmetric(src)), _pe(remote_pe))


def put_signal(dst: torch.Tensor, src: torch.Tensor, signal_var: torch.Tensor, signal_val: int, signal_op: SignalOp,
               remote_pe: int = -1, stream: Any = None) -> None:
    """:func:`put`, then the signal."""
    name = _signal_name(signal_op)
    word = _word(signal_var)
    put_then_signal(*_alike(as_symmetric(dst), src), word, signal_val, _pe(remote_pe), name, False)


def put_signal_nbi(dst: torch.Tensor, src: torch.Tensor, signal_var: torch.Tensor, signal_val: int,
                   signal_op: SignalOp, remote_pe: int = -1, stream: Any = None) -> None:
    """:func:`put_nbi`, then the signal: who sees the signal sees the bytes."""
    name = _signal_name(signal_op)
    word = _word(signal_var)
    put_then_signal(*_alike(as_symmetric(dst), src), word, signal_val, _pe(remote_pe), name, True)


def signal_op(signal_var: torch.Tensor, signal_val: int, signal_op: SignalOp, remote_pe: int = -1,
              stream: Any = None) -> None:
    """Sets ``remote_pe``'s signal, or adds to the signal. signal_var: a symmetric tensor of 8 bytes or more: its first
    integer, or its first 8 bytes."""
    symm.signal_op(_word(signal_var), signal_val, _pe(remote_pe), op=_signal_name(signal_op))


def signal_wait(signal_var: torch.Tensor, signal_val: int, signal_op: ComparisonType, stream: Any = None,
                timeout: float | timedelta | None = None) -> int:
    """Waits for this PE's own signal. timeout: seconds, which NVSHMEM does not have; None: the group's. Returns the
    signal's value.

    Raises PeerFailedError when a PE died, TimeoutError with the PEs' names.
    """
    world()
    name = _COMPARISON_NAMES.get(signal_op)
    if name is None:
        raise NvshmemInvalid(f"signal_op is {signal_op!r}; give a ComparisonType")
    return symm.signal_wait(_word(signal_var), name, signal_val, timeout=timeout)


def signal_fetch(signal_var: torch.Tensor) -> int:
    """The value of this PE's own signal, now."""
    return int(symm.atomic_fetch(_word(signal_var), world().rank))  # type: ignore[arg-type]  # never complex


def quiet(stream: Any = None) -> None:
    """:func:`shardwire.symm.quiet`."""
    symm.quiet()


def flush(stream: Any = None) -> None:
    """Waits until the sources of this PE's ``nbi`` calls may be changed: :func:`quiet`, which waits for the same
    answers."""
    symm.quiet()


def _alike(dst: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    world()
    dst, src = as_moved(dst), as_moved(src)
    for label, each in (("dst", dst), ("src", src)):
        if not isinstance(each, torch.Tensor):
            raise NvshmemInvalid(f"{label} is a {type(each).__name__}; give a tensor or a numpy array")
    is_one_dtype = dst.dtype == src.dtype
    if is_one_dtype and dst.shape == src.shape or not (dst.is_contiguous() and src.is_contiguous()):
        return dst, src  # symm raises for unsuitable tensors
    to, given = (dst.view(-1), src.view(-1)) if is_one_dtype else (bytes_of(dst), bytes_of(src))
    count = min(to.numel(), given.numel())
    return to[:count], given[:count]


def _word(signal: torch.Tensor) -> torch.Tensor:
    """The signal's element: a buffer of bytes holds a signal of 64 bits."""
    signal = as_symmetric(as_moved(signal))
    if _C.symm_place(signal) is None or not signal.is_contiguous() or signal.numel() * signal.element_size() < 4:
        raise NvshmemInvalid("a signal is a symmetric tensor that begins with an integer, made by nvshmem.core")
    flat = signal.view(-1)
    if flat.element_size() < 4:
        if flat.numel() * flat.element_size() < 8:
            raise NvshmemInvalid("a signal in a buffer of bytes takes 8 of them")
        flat = flat[:8 // flat.element_size()].view(torch.int64)
    return flat[0]


def _signal_name(op: Any) -> str:
    name = _SIGNAL_NAMES.get(op)
    if name is None:
        raise NvshmemInvalid(f"signal_op is {op!r}; give a SignalOp")
    return name
