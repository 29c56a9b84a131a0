"""torch.fft's fftshift and ifftshift of a DTensor: one compiled op brings each element to its new place. torch's own
rule brings the whole array to every rank where a cut axis is shifted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch

from .. import _C
from .._integers import as_integer
from ..compiler.compile_op import CustomOp, compile_op
from ..compiler.spec import Pieces
from ..groups.lookup import resolve_backend
from . import _ends, _meeting, _runtime
from .distribution import Dims, Share

SHIFTS = ("fftshift", "ifftshift")


def read_shifts(call: str, name: str, shape: Dims, dim: Any) -> Dims:
    """The steps by which elements move along each axis of the array: half of the extents, of ifftshift rounded up."""
    given = list(range(len(shape))) if dim is None else list(dim) if isinstance(dim, Iterable) else [dim]
    axes = [as_integer(each) for each in given]
    if not axes or any(axis is None or not -len(shape) <= axis < len(shape) for axis in axes):
        raise ValueError(f"{call}: dim is {given} for {len(shape)} dimensions; give at least one of these")
    steps = [0] * len(shape)
    for axis in axes:
        assert axis is not None
        steps[axis] += (shape[axis] + (name == "ifftshift")) // 2  # an axis that is given twice moves twice
    return tuple(steps)


def shifted(local: torch.Tensor, group: Any, end: _ends.End, steps: Dims, name: str, key: str) -> torch.Tensor:
    """The local array after the shift, in the same distribution. key: from the arguments of all ranks. Collective;
    differentiable once."""
    return _Shift.apply(local, group, end, steps, name, key)


def kept_move(group: Any, key: str, **arguments: Any) -> CustomOp:
    """The compiled op of an earlier call with this key, or a new one. All ranks give keys that were made from the
    arguments of all ranks, so that all of them compile or none. Collective."""
    op: CustomOp | None = _meeting.kept_plans(group, moves=True).get(key)
    if op is None:
        op = compile_op(group, overlap="any", **arguments)
    _meeting.keep_plan(group, key, op, moves=True)
    return op


class _Shift(torch.autograd.Function):
    """The gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: Any, end: _ends.End, steps: Dims, name: str,
                key: str) -> torch.Tensor:
        ctx.kept = group, end, steps, name, key
        return _shift(local.detach(), *ctx.kept)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        group, end, steps, name, key = ctx.kept
        back = tuple(-step for step in steps)
        result = _shift(grad, group, end, back, f"{name}.backward", f"backward {key}")
        return result, None, None, None, None, None


def _shift(local: torch.Tensor, group: Any, end: _ends.End, steps: Dims, name: str, key: str) -> torch.Tensor:
    share = end.shares[_C.rank(resolve_backend(group))]
    result = _runtime.empty(share.local_shape, local.dtype, local.device)
    regions = [_after(share, moved, end.global_shape) for moved in (steps, (0,) * len(steps))]
    op = kept_move(group, f"{local.dtype} {key}", shape=end.global_shape, dtype=local.dtype, inputs=regions[0],
                   outputs=regions[1], name=name)
    op([local.resolve_conj().resolve_neg()] if regions[0] else [], [result] if regions[1] else []).wait()
    return result


def _after(share: Share, steps: Dims, shape: Dims) -> list[Pieces]:
    """The places of a local array's elements after the steps, as a list for compile_op."""
    boxes: list[tuple[Dims, Dims, Dims]] = []
    for piece in share.pieces:
        if all(piece.shape):
            runs = map(_runs, piece.offset, piece.shape, piece.local_offset, steps, shape)
            for each in itertools.product(*runs):
                places, extents, local = zip(*each)
                boxes.append((places, extents, local))
    return [Pieces(share.local_shape, boxes)] if boxes else []


def _runs(begin: int, extent: int, local: int, step: int, length: int) -> list[tuple[int, int, int]]:
    """Along one axis the runs (place, extent, place in the local array) of a box: two where the box passes the end."""
    first = (begin + step) % length
    fitting = min(extent, length - first)
    return [(first, fitting, local)] + ([(0, extent - fitting, local + fitting)] if extent > fitting else [])
