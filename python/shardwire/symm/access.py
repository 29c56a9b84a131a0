"""One-sided access to the peers' parts of symmetric tensors, and signals.

Between ranks of one host each call is done when it returns: it is a copy by the processor, or an atomic operation. Between hosts it is a request, which the peer's
process does while its program does anything else. Requests of this rank to one peer are done in the order of the calls, so that a signal comes after the bytes.
``put``, ``signal_op`` and the atomics that return nothing are over when they are on their way; ``get`` and those that fetch wait for the answer; ``quiet`` waits until
all is done, and so does a barrier.

Every wait ends when the peer is gone (PeerFailedError) or does not answer within the group's timeout (TimeoutError): the error names it, and the group has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from .. import _C
from .arguments import seconds_of

_SIGNAL_OPS = {"set": "set", "add": "add"}


def put(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """Copies ``src`` to ``rank``'s part of ``dst``.

    dst: symmetric, this rank's tensor or a view of it, of any strides; it only says where, and is not written unless ``rank`` is this rank. src: any CPU tensor of the same
    shape and dtype; it may be changed when the call returns. Any thread. Raises ValueError, TypeError for tensors that do not fit; PeerFailedError, TimeoutError.
    """
    _C.symm_put(dst, src, rank)


def get(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """Copies ``rank``'s part of ``src``, which is symmetric, to ``dst``, any CPU tensor of the same shape and dtype. As :func:`put`."""
    _C.symm_get(dst, src, rank)


def put_nbi(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """:func:`put` that waits for nothing: between hosts ``src`` must not be changed before :func:`quiet`."""
    _C.symm_put(dst, src, rank, True)


def get_nbi(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """:func:`get` that waits for nothing: between hosts ``dst`` has the elements after :func:`quiet`."""
    _C.symm_get(dst, src, rank, True)


def put_signal(dst: torch.Tensor, src: torch.Tensor, signal: torch.Tensor, value: int, rank: int, op: str = "set") -> None:
    """:func:`put`, then :func:`signal_op`: who sees the signal sees the bytes."""
    name = _signal_op_of(op)
    _C.symm_put(dst, src, rank)
    _C.symm_atomic(signal, name, rank, value, fetches=False)


def signal_op(signal: torch.Tensor, value: int, rank: int, op: str = "set") -> None:
    """Sets the signal of ``rank`` to ``value`` (op="set"), or adds ``value`` to it (op="add"), and wakes who waits for it.

    signal: one element of a symmetric integer tensor, such as ``s[3]``. All that this thread wrote before is seen by who sees it.
    """
    _C.symm_atomic(signal, _signal_op_of(op), rank, value, fetches=False)


def signal_wait(signal: torch.Tensor, cmp: str, value: int, timeout: float | timedelta | None = None, source: int | Sequence[int] | None = None) -> int:
    """Waits until this rank's own ``signal`` compares with ``value``; returns what it was then.

    signal: one element of a symmetric tensor of integers. cmp: "eq", "ne", "gt", "ge", "lt", "le", or the operator. timeout: seconds; None: the group's.
    source: the rank, or ranks, of whom one is to signal; None: any of the group.

    Raises PeerFailedError, at once, when one of the sources died or left (and the group has failed then); TimeoutError that names the sources, and
    which of them is stopped, and leaves the group usable; KeyboardInterrupt. Any thread; the GIL is released.
    """
    sources = [] if source is None else [source] if isinstance(source, int) else list(source)
    return _C.symm_wait(signal, cmp, value, seconds_of(timeout), sources)


def quiet() -> None:
    """Until all that this process has written to peers, in all groups, is there, and all that ``get_nbi`` asks for is here.

    On one host it was when the calls returned. Raises PeerFailedError, TimeoutError that name a peer which did not do it; a failure is told once.
    """
    _C.symm_quiet()


def fence() -> None:
    """What this thread writes to a peer later is seen there after what it wrote there before. Between hosts that is always so, and waits for nothing."""
    _C.symm_fence()


def _signal_op_of(op: str) -> str:
    name = _SIGNAL_OPS.get(op)
    if name is None:
        raise ValueError(f"op is {op!r}; give 'set' or 'add'")
    return name
