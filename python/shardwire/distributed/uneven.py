"""all_gather and reduce_scatter of tensors with parts of different sizes: vLLM's ``all_gatherv`` and
``reduce_scatterv``, with gradients."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _C
from .._integers import as_integer
from ..compiler.agree import Attempt
from ..compiler.layout import kind_of
from ..groups.lookup import global_ranks, resolve_backend
from ..groups.reductions import reduction_of
from ..plain.tensor_bytes import as_stored
from . import _ends, _meeting, _runtime

__all__ = ["all_gather_v", "reduce_scatter_v"]


def all_gather_v(tensor: torch.Tensor | Sequence[torch.Tensor], sizes: Sequence[int] | None = None, group: Any = None,
                 *, dim: int = 0) -> Any:
    """All ranks' tensors, one behind the other along ``dim``, on every rank. Collective.

    tensor: of every rank alike, but for ``dim``. A list or tuple: of each tensor, all under way at once; a list of the
        results is returned. sizes: the extent along ``dim`` on every rank, the same list on all ranks and for all
        tensors; then nothing but the tensors travels. None, or where tensors require gradients: the ranks first
        exchange what they were given, and an error of one rank is raised on all ranks. group: None: the context's.

    Raises ValueError or TypeError, without the exchange on the calling rank alone; MismatchError, also where some
    ranks' tensors require gradients and others' do not (with ``sizes`` this error ends the group). The gradient is
    :func:`reduce_scatter_v` of the sum, so all ranks call backward.
    """
    is_list = isinstance(tensor, (list, tuple))
    found = _runtime.group_of(group)
    backend = resolve_backend(found)
    facts: dict[str, Any] = {}
    rows: list[torch.Tensor] = []
    parts: list[list[int]] = []
    with Attempt() as attempt:  # the other ranks wait for this rank
        rows = [_with_rows(each, dim) for each in (tensor if is_list else [tensor])]
        of_each = [_facts_of(each, dim) for each in rows]
        facts = {key: [each[key] for each in of_each] for key in _FACTS} if is_list else of_each[0]
        if sizes is not None:
            sizes = _sizes_of(sizes, len(global_ranks(backend)))
            own = sizes[_C.rank(backend)]
            for each in rows:
                if each.shape[0] != own:
                    raise ValueError(f"all_gather_v: tensor has {each.shape[0]} rows on this rank, and sizes says "
                                     f"{own}")
            parts = [sizes] * len(rows)
    if sizes is None or any(map(_needs_gradient, rows)):
        everyone = _meeting.exchange(found, "all_gather_v", facts, attempt.error)
        _ends.agree(everyone, "all_gather_v", ("dtype", "rest", "dim", "gradient"))
        shapes = [each["shape"] if is_list else [each["shape"]] for each in everyone]
        parts = [[of_rank[place][0] for of_rank in shapes] for place in range(len(rows))]
    elif attempt.error is not None:
        raise attempt.error
    gathered = _AllGather.apply(parts, backend, *rows) if rows else ()
    wholes = [whole.movedim(0, dim).contiguous() if dim else whole for whole in gathered]
    return wholes if is_list else wholes[0]


def reduce_scatter_v(tensor: torch.Tensor, sizes: Sequence[int] | None = None, op: str = "sum", group: Any = None, *,
                     dim: int = 0) -> torch.Tensor:
    """The reduction of all ranks' tensors, of which this rank gets its part along ``dim``. Collective.

    tensor: of every rank alike. sizes: the extent along ``dim`` of each rank's part, the same list on all ranks, with
        the tensor's extent as their sum; None: as evenly as numpy's array_split. op: sum, prod, min, max, mean, band,
        bor, bxor. group: None: the context's.

    Where the tensors require gradients, the ranks first exchange what they were given, and an error of one rank is
    raised on all ranks; else ValueError or TypeError is raised on the calling rank alone. MismatchError where the
    ranks' tensors differ, or some require gradients and others do not, which ends the group. The gradient of a sum or
    mean is :func:`all_gather_v`, so all ranks call backward; the other ops have none.
    """
    found = _runtime.group_of(group)
    backend = resolve_backend(found)
    size = len(global_ranks(backend))
    facts: dict[str, Any] = {}
    parts: list[int] = []
    with Attempt() as attempt:  # the other ranks wait for this rank
        tensor = _with_rows(tensor, dim)
        facts = _facts_of(tensor, dim)
        if sizes is None:
            sizes = [tensor.shape[0] // size + (rank < tensor.shape[0] % size) for rank in range(size)]
        parts = _sizes_of(sizes, size)
        if sum(parts) != tensor.shape[0]:
            raise ValueError(f"reduce_scatter_v: tensor has {tensor.shape[0]} rows, and sizes have the sum "
                             f"{sum(parts)}")
        if facts["gradient"] and op not in ("sum", "mean", "avg"):
            raise ValueError(f"reduce_scatter_v: no gradient goes through op={op!r}; give tensor.detach()")
    if facts.get("gradient"):
        everyone = _meeting.exchange(found, "reduce_scatter_v", {**facts, "sizes": parts}, attempt.error)
        _ends.agree(everyone, "reduce_scatter_v", ("dtype", "shape", "dim", "sizes", "gradient"))
    elif attempt.error is not None:
        raise attempt.error
    part = _ReduceScatter.apply(tensor, parts, op, backend)
    return part.movedim(0, dim).contiguous() if dim else part


def _needs_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


_FACTS = ("dim", "dtype", "shape", "rest", "gradient")


def _facts_of(tensor: torch.Tensor, dim: int) -> dict[str, Any]:
    """This rank's tensor, with ``dim`` as the first dimension, for the other ranks."""
    return dict(zip(_FACTS, (int(dim) % tensor.dim(), str(tensor.dtype), list(tensor.shape), list(tensor.shape[1:]),
                             _needs_gradient(tensor))))


class _AllGather(torch.autograd.Function):
    """Of several tensors, all at once."""

    @staticmethod
    def forward(ctx: Any, sizes: list[list[int]], backend: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.sizes, ctx.backend, ctx.needs = sizes, backend, ctx.needs_input_grad[2:]
        wholes = _all([_gather(tensor, each, backend) for tensor, each in zip(tensors, sizes)])
        ctx.mark_non_differentiable(*(whole for whole, needs in zip(wholes, ctx.needs) if not needs))
        return tuple(wholes)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        found = iter(_all([_scatter(grad, sizes, "sum", ctx.backend)
                           for grad, sizes, needs in zip(grads, ctx.sizes, ctx.needs) if needs]))
        return None, None, *(next(found) if needs else None for needs in ctx.needs)


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, sizes: list[int], op: str, backend: Any) -> torch.Tensor:
        ctx.sizes, ctx.op, ctx.backend = sizes, op, backend
        return _all([_scatter(tensor, sizes, op, backend)])[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        whole = _all([_gather(grad, ctx.sizes, ctx.backend)])[0]
        return whole if ctx.op == "sum" else whole / len(ctx.sizes), None, None, None


def _all(started: list[tuple[torch.Tensor, Any]]) -> list[torch.Tensor]:
    """The results of collectives that were started, when all are there."""
    for _, work in started:
        work.wait()
    return [out for out, _ in started]


def _gather(tensor: torch.Tensor, sizes: list[int], backend: Any) -> tuple[torch.Tensor, Any]:
    out = _runtime.empty((sum(sizes), *tensor.shape[1:]), tensor.dtype, tensor.device)
    return out, backend.allgather([list(out.split(sizes))], [as_stored(tensor)])


def _scatter(tensor: torch.Tensor, sizes: list[int], op: str, backend: Any) -> tuple[torch.Tensor, Any]:
    own = sizes[_C.rank(backend)]
    out = _runtime.empty((own, *tensor.shape[1:]), tensor.dtype, tensor.device)
    options = dist.ReduceScatterOptions()
    options.reduceOp = reduction_of(op)
    return out, backend.reduce_scatter([out], [list(as_stored(tensor).split(sizes))], options)


def _with_rows(tensor: Any, dim: int) -> torch.Tensor:
    """The tensor with ``dim`` as the first dimension. TypeError or ValueError for a tensor without ``dim``."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is {kind_of(tensor)}; give a torch tensor")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError("tensor is sparse, quantized or on meta; give a dense tensor that has memory")
    _C.require_memory(tensor, "tensor")
    if tensor.dim() == 0:
        raise ValueError("tensor has no dimension; give one with rows, such as tensor.view(1)")
    place = as_integer(dim)
    if place is None or not -tensor.dim() <= place < tensor.dim():
        raise ValueError(f"dim is {kind_of(dim)}, and the tensor has {tensor.dim()} dimensions")
    return tensor.movedim(place, 0) if place else tensor


def _sizes_of(sizes: Any, count: int) -> list[int]:
    found = [operator.index(each) for each in sizes]
    if len(found) != count or min(found) < 0:
        raise ValueError(f"sizes is {found}; give {count} numbers from 0, one for each rank")
    return found
