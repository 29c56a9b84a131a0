"""One-sided access to the peers' parts of symmetric tensors, and signals.

Between ranks of one host each call is a copy by the processor or an atomic operation, and is complete when the call
returns. Between hosts each call is a request, which the peer's process serves in the background. Requests of this rank
to one peer within one group are served in the order of the calls, so a signal arrives after the bytes. ``put``,
``signal_op`` and the atomics without a result return when the request is on its way; ``get`` and the fetching atomics
wait for the answer; ``quiet`` and barriers wait until all requests are served.

Every wait ends when the peer is gone (PeerFailedError) or does not answer within the group's timeout (TimeoutError):
the error names the peer, and the group has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import index

import torch

from .. import _C
from ..compiler.future import as_seconds


def put(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """Copies ``src`` to ``rank``'s part of ``dst``.

    dst: symmetric, this rank's tensor or a view of it, of any strides. The tensor names the place only, and is not
        written unless ``rank`` is this rank. src: any CPU tensor of the same shape and dtype; may be changed when the
        call returns.

    Any thread. Raises ValueError or TypeError for unsuitable tensors; PeerFailedError, TimeoutError.
    """
    _C.symm_put(dst, src, rank)


def get(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """Copies ``rank``'s part of ``src``, which is symmetric, to ``dst``, any CPU tensor of the same shape and dtype. As
    :func:`put`."""
    _C.symm_get(dst, src, rank)


def put_nbi(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """:func:`put` without waiting: between hosts ``src`` must not be changed before :func:`quiet`."""
    _C.symm_put(dst, src, rank, True)


def get_nbi(dst: torch.Tensor, src: torch.Tensor, rank: int) -> None:
    """:func:`get` without waiting: between hosts ``dst`` has the elements after :func:`quiet`."""
    _C.symm_get(dst, src, rank, True)


def put_signal(dst: torch.Tensor, src: torch.Tensor, signal: torch.Tensor, value: int, rank: int,
               op: str = "set") -> None:
    """:func:`put`, then :func:`signal_op`: a thread that sees the signal sees the bytes. Between hosts ``dst`` and
    ``signal`` must be tensors of one group, since requests of different groups have no order; for others call
    :func:`put`, :func:`quiet` and :func:`signal_op`."""
    put_then_signal(dst, src, signal, value, rank, op, False)


def signal_op(signal: torch.Tensor, value: int, rank: int, op: str = "set") -> None:
    """Sets the signal of ``rank`` to ``value`` (op="set"), or adds ``value`` (op="add"), and wakes the waiting threads.

    signal: one element of a symmetric integer tensor, such as ``s[3]``. A thread that sees the signal sees all earlier
        writes of the calling thread; between hosts those within the signal's group.
    """
    _check_signal_op(op)
    _C.symm_atomic(signal, op, rank, value, fetches=False)


def signal_wait(signal: torch.Tensor, cmp: str, value: int, timeout: float | timedelta | None = None,
                source: int | Sequence[int] | None = None) -> int:
    """Waits until this rank's own ``signal`` compares with ``value``; returns the element's value at the comparison.

    signal: one element of a symmetric tensor of integers. cmp: "eq", "ne", "gt", "ge", "lt", "le", or the operator.
        timeout: seconds; None: the group's.
    source: the rank or ranks of which one will signal; None: any rank of the group.

    Raises PeerFailedError, at once, when one of the sources died or left (the group has failed then); TimeoutError that
    names the sources and which of the sources is stopped, and leaves the group usable; KeyboardInterrupt. Any thread;
    the GIL is released.
    """
    return _C.symm_wait(signal, cmp, value, as_seconds(timeout), _ranks_of(source))


def _ranks_of(source: int | Sequence[int] | None) -> list[int]:
    try:
        return [] if source is None else [index(source)] if hasattr(source, "__index__") else [*map(index, source)]
    except TypeError:
        raise TypeError(f"signal_wait: source is {source!r}; give a rank, a sequence of ranks, or None") from None


def quiet() -> None:
    """Waits until all writes of this process to peers, in all groups, have arrived, and until the elements of each
    ``get_nbi`` are here.

    On one host this was so when each call returned. Raises PeerFailedError or TimeoutError naming a peer that did not
    serve a request; each failure is raised once.
    """
    _C.symm_quiet()


def fence() -> None:
    """Orders the writes of this thread to a peer: later writes are seen there after earlier writes. Between hosts this
    order always holds within one group, and the call waits for nothing. There writes to tensors of different groups,
    such as those of two teams, are ordered by :func:`quiet` alone."""
    _C.symm_fence()


def put_then_signal(dst: torch.Tensor, src: torch.Tensor, signal: torch.Tensor, value: int, rank: int, op: str,
                    non_blocking: bool) -> None:
    """:func:`put_signal`, or with ``non_blocking`` :func:`put_nbi` in place of :func:`put`."""
    _check_signal_op(op)
    _C.symm_check_atomic(signal, op, rank, value)  # before any bytes are written
    _C.symm_put(dst, src, rank, non_blocking)
    _C.symm_atomic(signal, op, rank, value, fetches=False)


def _check_signal_op(op: str) -> None:
    if op not in ("set", "add"):
        raise ValueError(f"op is {op!r}; give 'set' or 'add'")
