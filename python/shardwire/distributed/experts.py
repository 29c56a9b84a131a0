"""Experts: tokens go to the ranks of their experts, and the experts' results go back, summed with weights.

    experts = Experts(num_experts=8, hidden=1024, top_k=2, max_tokens=4096, dtype=torch.bfloat16)
    received = experts.dispatch(tokens, topk_ids, topk_weights)
    outputs = torch.cat([received.tokens[:0], *(expert(rows) for expert, rows in zip(own, received.by_expert()))])
    result = experts.combine(outputs, received.handle)

Ranks exchange no sizes before the rows: each rank writes rows and counts into symmetric memory, where the peers read
(_expert_block.py). So a dispatch or combine waits once for each peer. Sums are in float32, in the order of the top-k,
so the same call gives the same bits. Gradients go through both calls: the gradient of a dispatch is a combine without
weights, and the gradient of a combine is a dispatch with weights.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from .. import _C
from .._integers import as_count
from ..compiler.agree import Attempt
from ..compiler.future import as_seconds
from ..compiler.layout import kind_of
from ..groups.lookup import global_ranks, resolve_backend
from ..plain.tensor_bytes import as_stored
from . import _ends, _meeting, _runtime
from ._dequantize import dequantized
from ._expert_block import ExpertBlock

__all__ = ["Dispatched", "Experts", "Handle"]

_CALL = "Experts"
_DISPATCH, _COMBINE, _DISPATCH_BACKWARD, _COMBINE_BACKWARD, _DISPATCH_AGAIN = range(5)
_SUMMED = (torch.float32, torch.bfloat16, torch.float16)
_FLOAT8 = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
                if hasattr(torch, name))
_MOST_CHOICES = (1 << 31) - 1  # choices have 32-bit numbers
_MOST_ELEMENTS = 1 << 44  # more than any memory, and no size of a block overflows


class Handle:
    """The routing of one dispatch, for :meth:`Experts.combine` and for further dispatches. Holds a few numbers for each
    choice, and no rows."""

    __slots__ = ("experts", "num_received", "num_tokens", "number", "order", "own_chunks", "places", "table", "weights")

    def __init__(self, experts: Experts, num_tokens: int) -> None:
        self.experts = experts
        self.num_tokens = num_tokens
        self.number = self.num_received = 0
        self.places = torch.empty(num_tokens * experts.top_k, dtype=torch.int32, device="cpu")
        self.order = self.table = self.own_chunks = self.places
        self.weights: torch.Tensor | None = None


class Dispatched(NamedTuple):
    """The rows that the experts of this rank received.

    tokens: one row for each choice, the rows of the first own expert first; within an expert by the ranks they come
        from, and then in the order of these ranks' tokens. counts: int64, the rows for each own expert. scales: the
        tokens' scales, in the same rows; None where none were given. handle: for :meth:`Experts.combine`.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    scales: torch.Tensor | None
    handle: Handle

    def by_expert(self) -> tuple[torch.Tensor, ...]:
        """Views of ``tokens``, one for each own expert."""
        return torch.split(self.tokens, self.counts.tolist())

    def dequantized(self, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """``tokens`` times ``scales`` in ``dtype``: new memory, in the same rows. Each scale of a row is for an equal
        part of the row. Several times faster than torch's cast of 8-bit floats. Gradients go to the tokens."""
        return dequantized(self.tokens, self.scales, dtype)


class Experts:
    """Moves tokens to experts and back, in the ranks of a group. All ranks give equal arguments.

    num_experts: of all ranks. hidden: elements of a token. top_k: experts of a token. max_tokens: the most tokens that
        one rank gives to a dispatch.
    dtype: of the tokens: float32, bfloat16, float16 or one of torch's 8-bit floats. out_dtype: of the experts' outputs
        and of the result: float32, bfloat16 or float16; None: dtype, bfloat16 for 8-bit floats. scale_width: float32
        scales of a token; 0: none.
    experts_per_rank: None: as evenly as numpy's array_split. group: None: the context's. timeout: of each wait; None:
        the group's.

    Collective over the group, as are dispatch, combine and their gradients; for one thread at a time. A rank has memory
    for 2 * max_tokens * top_k rows in the shared heap, until all ranks dropped the object. An error on any rank is
    raised on all ranks (TypeError, ValueError; MismatchError where ranks call differently), and the object stays
    usable. After PeerFailedError, TimeoutError or an interrupt it does not.
    """

    def __init__(self, num_experts: int, hidden: int, top_k: int, max_tokens: int, dtype: torch.dtype = torch.float32,
                 *, out_dtype: torch.dtype | None = None, scale_width: int = 0,
                 experts_per_rank: Sequence[int] | None = None, group: Any = None,
                 timeout: float | timedelta | None = None) -> None:
        found = _runtime.group_of(group)
        backend = resolve_backend(found)
        size = len(global_ranks(backend))
        facts: dict[str, Any] = {}
        seconds = None
        with Attempt() as attempt:
            seconds = as_seconds(timeout)
            for name, value, least in (("num_experts", num_experts, 1), ("hidden", hidden, 1), ("top_k", top_k, 1),
                                       ("max_tokens", max_tokens, 1), ("scale_width", scale_width, 0)):
                if (number := as_count(value, least)) is None:
                    raise ValueError(f"{name} is {kind_of(value)}; give an int of {least} or more")
                facts[name] = number
            num_experts, hidden, top_k, max_tokens, scale_width = facts.values()
            _check_memory(num_experts, max_tokens * top_k, hidden + scale_width)
            if dtype not in _SUMMED + _FLOAT8:
                raise TypeError(f"dtype is {dtype}; give one of {', '.join(map(str, _SUMMED + _FLOAT8))}")
            out_dtype = out_dtype or (torch.bfloat16 if dtype in _FLOAT8 else dtype)
            if out_dtype not in _SUMMED:
                raise TypeError(f"out_dtype is {out_dtype}; give one of {', '.join(map(str, _SUMMED))}")
            shares = _shares(num_experts, size, experts_per_rank)
            facts.update(dtype=str(dtype), out_dtype=str(out_dtype), experts_per_rank=shares)
        everyone = _meeting.exchange(found, _CALL, facts, attempt.error)
        _ends.agree(everyone, _CALL, tuple(facts))
        assert out_dtype is not None
        self.num_experts, self.hidden, self.top_k, self.max_tokens = num_experts, hidden, top_k, max_tokens
        self.dtype, self.out_dtype, self.scale_width = dtype, out_dtype, scale_width
        rank = _C.rank(backend)
        self.local_experts = range(sum(shares[:rank]), sum(shares[:rank + 1]))
        self._rank, self._size = rank, size
        self._no_chunks = torch.empty(0, 3, dtype=torch.int64, device="cpu")
        self._block = ExpertBlock(backend, size, num_experts, max_tokens * top_k, hidden, (dtype, out_dtype),
                                  max(1, scale_width), seconds)

    def dispatch(self, tokens: torch.Tensor, topk_ids: torch.Tensor | None = None,
                 topk_weights: torch.Tensor | None = None, scales: torch.Tensor | None = None, *,
                 handle: Handle | None = None) -> Dispatched:
        """Sends each token to its experts. Collective.

        tokens: [n, hidden], any n up to max_tokens, also 0. topk_ids: [n, top_k] integers, experts of any rank; -1: no
            expert. topk_weights: [n, top_k], kept for combine. scales: [n, scale_width] float32, on all ranks where
            scale_width is not 0. handle: of an earlier dispatch, the same on all ranks, in place of topk_ids: as many
            tokens go the same ways, without a sort; weights that are not given are those of the handle.

        The tensors may be changed when the call returns; the received tokens are new memory. Tensors of a device are
        staged through the host: the received tokens and scales lie on the device of ``tokens``, counts on the CPU.
        """
        slot = self._block.begin()
        error: Exception | None = None
        needs = False
        routing = None
        try:
            routing = self._offer(slot, tokens, topk_ids, topk_weights, scales, handle)
            needs = tokens.requires_grad and torch.is_grad_enabled()
        except Exception as failure:  # the other ranks wait for this rank
            error = failure
        call = _DISPATCH if handle is None else _DISPATCH_AGAIN
        any_needs = self._block.meet(call, getattr(handle, "number", 0), (needs, torch.is_grad_enabled()), error)
        assert routing is not None
        own = self.local_experts
        if handle is None:
            routing.number = self._block.number
            routing.table, routing.num_received = _C.experts_table(self._block.counts[slot], own.start, own.stop)
            routing.own_chunks = routing.table.view(len(own), self._size, 3)[:, self._rank].contiguous()
        rows, side = self._block.fetch(slot, self.dtype, routing.table, routing.num_received, self.top_k,
                                       self.scale_width)
        rows, side = rows.to(tokens.device), None if side is None else side.to(tokens.device)
        counts = routing.table.view(len(own), self._size, 3)[:, :, 1].sum(1)
        if any_needs:
            rows = _Dispatch.apply(tokens, _anchor(), [rows], routing)
        return Dispatched(rows, counts, side, routing)

    def combine(self, outputs: torch.Tensor, handle: Handle, topk_weights: torch.Tensor | None = None) -> torch.Tensor:
        """The experts' outputs in the order of this rank's tokens: of each token the sum over its experts of weight
        times output, computed in float32; 0 for a token without an expert. Collective.

        outputs: [rows received, hidden] in out_dtype, in the rows of ``Dispatched.tokens``. handle: of the same
            dispatch on all ranks; may be used again. topk_weights: [n, top_k]; None: those of the dispatch, else 1.
            The result lies on the device of ``outputs``.
        """
        slot = self._block.begin()
        error: Exception | None = None
        needs = keeps = False
        factors = None
        try:
            self._check_handle(handle)
            weights = handle.weights if topk_weights is None else topk_weights
            _check(outputs, "outputs", (handle.num_received, self.hidden), self.out_dtype)
            if weights is not None:
                _check(weights, "topk_weights", (handle.num_tokens, self.top_k), None)
                factors = _on_host(weights).to(torch.float32)
            records = torch.is_grad_enabled()
            keeps = records and weights is not None and weights.requires_grad
            needs = keeps or (records and outputs.requires_grad)
            given = _on_host(outputs)
            self._block.give_back(slot, given, handle.table, keeps)
        except Exception as failure:  # the other ranks wait for this rank
            error = failure
        any_needs = self._block.meet(_COMBINE, getattr(handle, "number", 0), (needs, torch.is_grad_enabled()), error)
        result = self._sum(slot, given, handle, factors, keeps).to(outputs.device)
        if any_needs:
            kept = self._block.rows[self.out_dtype][slot][:handle.order.shape[0]].clone() if keeps else None
            result = _Combine.apply(outputs, weights, _anchor(), [result], handle, factors, kept)
        return result

    def _offer(self, slot: int, tokens: Any, topk_ids: Any, weights: Any, scales: Any, former: Any) -> Handle:
        """Writes this rank's tokens into the slot, and the counts where no former handle is given."""
        _check(tokens, "tokens", (None, self.hidden), self.dtype)
        num = tokens.shape[0]
        if num > self.max_tokens:
            raise ValueError(f"tokens has {num} rows, and max_tokens is {self.max_tokens}: make Experts with "
                             f"max_tokens of {num} or more, or dispatch the tokens in parts")
        if former is None:
            handle = self._route(slot, num, topk_ids)
        else:
            handle = self._route_again(former, num, topk_ids)
        if (scales is None) != (self.scale_width == 0):
            raise ValueError(f"scales are {'missing' if scales is None else 'given'}, and scale_width is "
                             f"{self.scale_width}; give scales where Experts has a scale_width, and only there")
        if scales is not None:
            _check(scales, "scales", (num, self.scale_width), torch.float32)
            if scales.requires_grad:
                raise ValueError("scales requires grad, and no gradient goes through scales; give scales.detach()")
        if weights is not None:
            _check(weights, "topk_weights", (num, self.top_k), None)
            handle = copy.copy(handle)
            with torch.enable_grad():
                handle.weights = weights.clone()  # combine() needs the weights of now
        side = None if scales is None else _on_host(scales)[handle.order.to(torch.int64) // self.top_k]
        order = handle.order if former is not None else self._block.order[slot][:handle.order.shape[0]]
        self._block.offer(slot, tokens.detach().to("cpu").resolve_neg(), order, self.top_k, side)
        return handle

    def _route(self, slot: int, num: int, topk_ids: Any) -> Handle:
        """Sorts the choices, and writes the counts into the slot."""
        _check(topk_ids, "topk_ids", (num, self.top_k), None)
        if topk_ids.dtype not in (torch.int64, torch.int32, torch.int16):
            raise TypeError(f"topk_ids is {topk_ids.dtype}; give int64, int32 or int16")
        handle = Handle(self, num)
        ids = _on_host(topk_ids).to(torch.int64)
        order = self._block.order[slot]
        bad = _C.experts_sort(ids, self._block.own_counts[slot], order, handle.places)
        if bad >= 0:
            token, choice = divmod(bad, self.top_k)
            raise ValueError(f"topk_ids[{token}, {choice}] is {int(ids[token, choice])}; experts are 0 to "
                             f"{self.num_experts - 1}, and -1 is no expert")
        handle.order = order[:int(self._block.own_counts[slot].sum())].clone()
        return handle

    def _route_again(self, former: Any, num: int, topk_ids: Any) -> Handle:
        """The former handle, checked."""
        if topk_ids is not None:
            raise ValueError("topk_ids and a handle are given; the handle has the experts of the tokens: give one of "
                             "the two")
        self._check_handle(former)
        if num != former.num_tokens:
            raise ValueError(f"tokens has {num} rows, and the handle is of a dispatch of {former.num_tokens}; give as "
                             "many tokens, in the same order")
        handle: Handle = former
        return handle

    def _sum(self, slot: int, given: torch.Tensor, handle: Handle, factors: torch.Tensor | None,
             with_own: bool) -> torch.Tensor:
        result = _C.heap_empty([handle.num_tokens, self.hidden], given.dtype)
        _C.experts_sum(result, self._block.rows[given.dtype][slot], given,
                       self._no_chunks if with_own else handle.own_chunks, handle.places, factors, self.top_k)
        return result

    def _check_handle(self, handle: Any) -> None:
        if not isinstance(handle, Handle):
            raise TypeError(f"handle is {kind_of(handle)}; give the handle that dispatch returned")
        if handle.experts is not self:
            raise ValueError("the handle is of a dispatch of another Experts; give it to the same object")

    # ---- gradients: exchanges, too

    def _gather_gradients(self, handle: Handle, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of dispatch's tokens, from that of the received rows. Gradients of 8-bit floats travel and are
        summed in out_dtype."""
        slot = self._block.begin()
        given = _on_host(grad.to(self.out_dtype) if self.dtype in _FLOAT8 else grad)
        self._block.give_back(slot, given, handle.table, False)
        self._block.meet(_DISPATCH_BACKWARD, handle.number, (False, False), None)
        return self._sum(slot, given, handle, None, False).to(grad.device, self.dtype)

    def _spread_gradients(self, handle: Handle, grad: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
        """The gradient of combine's outputs, from that of the result; both on the CPU."""
        slot = self._block.begin()
        side = None if factors is None else factors.view(-1)[handle.order.to(torch.int64)].view(-1, 1)
        if side is None:
            side = torch.ones(handle.order.shape[0], 1, device="cpu")
        self._block.offer(slot, grad.resolve_neg(), handle.order, self.top_k, side)
        self._block.meet(_COMBINE_BACKWARD, handle.number, (False, False), None)
        rows, scale = self._block.fetch(slot, self.out_dtype, handle.table, handle.num_received, self.top_k, 1)
        return rows.mul_(scale)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, anchor: torch.Tensor, rows: list[torch.Tensor],
                handle: Handle) -> torch.Tensor:
        ctx.handle = handle
        return rows.pop()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        # Also where this rank's tokens need no gradient: the other ranks' do.
        found = ctx.handle.experts._gather_gradients(ctx.handle, grad)
        return found if ctx.needs_input_grad[0] else None, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, weights: torch.Tensor | None, anchor: torch.Tensor,
                result: list[torch.Tensor], handle: Handle, factors: torch.Tensor | None,
                kept: torch.Tensor | None) -> torch.Tensor:
        ctx.handle, ctx.factors, ctx.kept = handle, factors, kept
        ctx.of_weights = None if weights is None else (weights.device, weights.dtype)
        return result.pop()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        handle = ctx.handle
        given = grad.to("cpu")
        found = handle.experts._spread_gradients(handle, given, ctx.factors).to(grad.device)
        of_weights = None
        if ctx.needs_input_grad[1]:
            top_k = handle.experts.top_k
            chosen = handle.places.view(-1, top_k).to(torch.int64)
            rows = (ctx.kept if len(ctx.kept) else ctx.kept.new_zeros(1, ctx.kept.shape[1]))[chosen.clamp(min=0)]
            dots = torch.bmm(rows.float(), given.float().unsqueeze(2)).squeeze(2)
            of_weights = torch.where(chosen < 0, dots.new_zeros(()), dots).to(*ctx.of_weights)
        return found if ctx.needs_input_grad[0] else None, of_weights, None, None, None, None, None


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return as_stored(tensor.detach().to("cpu"))


def _anchor() -> torch.Tensor:
    """Makes a result part of the graph on ranks whose own inputs need no gradient, since all ranks take part in the
    backward exchange."""
    return torch.zeros((), requires_grad=True, device="cpu")


def _check_memory(num_experts: int, choices: int, width: int) -> None:
    if choices > _MOST_CHOICES:
        raise ValueError(f"max_tokens * top_k is {choices}; at most {_MOST_CHOICES}")
    needed = max(num_experts, choices * width)
    if needed > _MOST_ELEMENTS:
        raise ValueError(f"these numbers need memory for {needed} elements on each rank; give smaller ones")


def _shares(num_experts: int, size: int, given: Sequence[int] | None) -> list[int]:
    if given is None:
        return [num_experts // size + (rank < num_experts % size) for rank in range(size)]
    shares = [operator.index(each) for each in given]
    if len(shares) != size or min(shares) < 0 or sum(shares) != num_experts:
        raise ValueError(f"experts_per_rank is {shares}; give {size} numbers with the sum {num_experts}")
    return shares


def _check(tensor: Any, name: str, shape: tuple[int | None, ...], dtype: torch.dtype | None) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {kind_of(tensor)}; give a torch tensor")
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        raise TypeError(f"{name} is sparse or on meta; give a dense tensor that has memory")
    fits = tensor.dim() == len(shape) and all(want in (None, have) for want, have in zip(shape, tensor.shape))
    if not fits:
        wanted = ", ".join("n" if each is None else str(each) for each in shape)
        raise ValueError(f"{name} has the shape {list(tensor.shape)}; give [{wanted}]")
    if dtype is not None and tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}; this Experts takes {dtype}")
    if tensor.is_complex():
        raise TypeError(f"{name} is {tensor.dtype}; give real numbers")
    _C.require_memory(tensor, name)
