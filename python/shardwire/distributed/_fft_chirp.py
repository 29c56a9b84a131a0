"""Transforms along a cut axis whose length has no useful factor: Bluestein's algorithm over all ranks.

With w(k) = exp(-i pi k^2 / n) and j k = (j^2 + k^2 - (k - j)^2) / 2, element k of the transform is w(k) times the sum
of x(j) w(j) / w(k - j) over j: a convolution. So:

1. The operand goes into slabs of an array whose axis has m indices, a length with many factors; the rest is zero.
2. Each element is multiplied by w, and the array transformed: along m indices of the axis, and along all other axes.
3. The spectrum is multiplied by the spectrum of 1 / w, which is computed once.
4. The array is transformed back along the axis and multiplied by w. The first n elements go to the result.

The transforms of length m are plans of their own, by the four-step algorithm. Each rank needs room for about
5 m / ranks elements between the steps and, of an array of one dimension, for 4 m / ranks factors, and not for the whole
axis.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from typing import Any, Union

import torch

from ..compiler.compile_op import CustomOp, compile_op
from ..compiler.spec import Pieces
from . import _fft_long, _runtime
from ._ends import End
from ._fft_chunks import Chunking
from ._fft_plan import Plan, Settings
from ._fft_route import Problem, _full, _largest, _move_cost, transform_cost
from .distribution import Dims, Slab

# A local transform of a length with a large prime factor, relative to one of about the same length with small factors.
# A real one takes as long as a complex one.
_PRIME = 7.0
# The cost of the multiplications, for each byte, relative to one byte moved between ranks.
_TURN = 0.25
# The largest prime factor of a length that engines transform at full speed.
_SMALL = 13
_UNSCALED = {False: Settings(False, None), True: Settings(True, None)}


def plan(group: Any, rank: int, problem: Problem, source: End, target: End | None, compute: torch.dtype, name: str,
         sums: bool = False, measure: bool = True, chunking: Chunking = Chunking(1, False)) -> Plan | ChirpPlan:
    """The cheaper of a Plan and a ChirpPlan; arguments as of a Plan. Collective."""
    axis = axis_of(problem, source, target)
    if axis is None:
        return Plan(group, rank, problem, source, target, compute, name, sums, measure, chunking)
    return ChirpPlan(axis, group, rank, problem, source, target, compute, name, sums, measure, chunking)


def axis_of(problem: Problem, source: End, target: End | None) -> int | None:
    """The axis that a ChirpPlan transforms as a convolution; None where a Plan is cheaper."""
    size = len(source.shares)
    hard = [axis for axis in problem.axes if _largest_factor(_full(problem)[axis]) > _SMALL]
    if size == 1 or not hard:
        return None
    best, chosen = _plain_cost(problem, source, target, hard), None
    for axis in hard:
        cost = _Convolution(problem, axis, size).cost(source, target)
        if cost < best:
            best, chosen = cost, axis
    return chosen


def _plain_cost(problem: Problem, source: End, target: End | None, hard: list[int]) -> float:
    route, dims = _fft_long.find(problem, source, target), _full(problem)
    slow = 0.0
    for step in route.steps:
        if isinstance(step, _fft_long.Local):
            for axis in set(hard).intersection(step.axes):
                # The end of R2C has half of the elements.
                whole = 2 if problem.kind == "R2C" and axis == problem.axes[-1] else 1
                slow += transform_cost([dims[axis]], step.end, problem.item_bytes) * (whole * _PRIME - 1)
    return route.cost + slow


@functools.lru_cache(maxsize=64)
def _largest_factor(extent: int) -> int:
    """The largest prime factor, where small factors leave a number below 2^40; else that number."""
    rest, factor, largest = extent, 2, 1
    while factor * factor <= rest and factor < 1 << 20:
        while rest % factor == 0:
            rest, largest = rest // factor, factor
        factor += 1
    return max(largest, rest)


class _Convolution:
    """The shapes and plans' problems of a convolution along ``axis``. Pure arithmetic, the same on every rank."""

    def __init__(self, problem: Problem, axis: int, size: int) -> None:
        dims = _full(problem)
        self.problem, self.axis, self.size = problem, axis, size
        self.extent, self.given, self.wanted = dims[axis], problem.shape[axis], problem.result_shape[axis]
        self.length = _smooth(self.given + self.wanted - 1)
        self.padded: Dims = tuple(self.length if dim == axis else extent for dim, extent in enumerate(dims))
        self.slabs = _fft_long._end(Slab(axis), self.padded, size)
        self.forward = self._problem_along(problem.axes)
        self.back = self._problem_along((axis,))

    def _problem_along(self, axes: Dims) -> Problem:
        return dataclasses.replace(self.problem, kind="C2C", axes=axes, shape=self.padded, result_shape=self.padded,
                                   adjoint=False)

    def cost(self, source: End, target: End | None) -> float:
        item = self.problem.item_bytes
        there = _fft_long.find(self.forward, self.slabs, None)
        back = _fft_long.find(self.back, there.target, self.slabs)
        moves = [end for end in (source, target) if end is not None and end.shares != self.slabs.shares]
        return (there.cost + back.cost + 3 * _TURN * _largest(self.slabs) * item
                + sum(_move_cost(end, end, item) for end in moves))


def _smooth(least: int) -> int:
    """The least number from ``least`` on that is a power of two times a small odd number without large factors."""
    return min(odd << max(0, -(-least // odd) - 1).bit_length() for odd in (1, 3, 5, 9, 15, 25, 27, 45))


class ChirpPlan:
    """As a Plan, with the same methods: ``axis`` is transformed as a convolution. Made by all ranks of the group
    together, and run by all of them."""

    def __init__(self, axis: int, group: Any, rank: int, problem: Problem, source: End, target: End | None,
                 compute: torch.dtype, name: str, sums: bool, measure: bool, chunking: Chunking) -> None:
        self.problem, self.source, self.name = problem, source, name
        self._group, self._rank, self._compute = weakref.ref(group), rank, compute
        self._measure, self._chunking = measure, chunking
        self._real = torch.float32 if compute == torch.complex64 else torch.float64
        self._shape = shape = _Convolution(problem, axis, len(source.shares))
        self._box = shape.slabs.shares[rank].pieces[0] if shape.slabs.shares[rank].pieces else None
        self.target = _fft_long._end(Slab(axis), problem.result_shape, shape.size) if target is None else target
        self._op_in = self._moved(source, problem.shape, True, "sum" if sums else None)
        self._op_out = self._moved(self.target, problem.result_shape, False, None)
        self._first = Plan(group, rank, shape.forward, shape.slabs, None, compute, name, False, measure, chunking)
        self._second = Plan(group, rank, shape.back, self._first.target, shape.slabs, compute, name, False, measure,
                            chunking)
        self._room: torch.Tensor | None = None
        self._chirps: dict[tuple[bool, str], torch.Tensor] = {}
        self._spectra: dict[str, torch.Tensor] = {}

    @property
    def operand_dtype(self) -> torch.dtype:
        return self._real if self.problem.kind == "R2C" else self._compute

    @property
    def _result_dtype(self) -> torch.dtype:
        return self._real if self.problem.kind == "C2R" else self._compute

    @property
    def engine(self) -> str:
        return self._first.engine

    def _moved(self, end: End, dims: Dims, is_first: bool, reduction: str | None) -> CustomOp:
        """The compiled op between ``end``, an array of ``dims``, and the part of the padded array that is as large."""
        share, part = end.shares[self._rank], self._part(dims)
        own = [Pieces(share.local_shape, share.pieces)] if share.pieces else []
        padded = [{"offset": part[0], "shape": part[1]}] if part is not None else []
        inputs, outputs = (own, padded) if is_first else (padded, own)
        return compile_op(self._group(), shape=dims, dtype=self.operand_dtype if is_first else self._result_dtype,
                          inputs=inputs, outputs=outputs,  # type: ignore[arg-type]
                          reduction=reduction, overlap=None if reduction else "any",
                          name=f"shardwire.distributed.{self.name}")

    def _part(self, dims: Dims) -> tuple[Dims, Dims] | None:
        """(offset, shape) of this rank's slab where the array of ``dims`` is; None where nothing is."""
        if self._box is None:
            return None
        shape = tuple(min(extent, whole - begin)
                      for begin, extent, whole in zip(self._box.offset, self._box.shape, dims))
        return (tuple(self._box.offset), shape) if min(shape) > 0 else None

    def _view(self, room: torch.Tensor, dims: Dims) -> torch.Tensor | None:
        part = self._part(dims)
        return None if part is None else room[tuple(slice(0, extent) for extent in part[1])]

    def run(self, local: torch.Tensor, settings: Settings) -> torch.Tensor:
        """The result of this rank, in new memory in C order. ``local`` is not written to."""
        problem, inverse = self.problem, settings.inverse
        room = self._cleared(local.device)
        begun = self._view(room, problem.shape)
        real = None if problem.kind != "R2C" or begun is None else _runtime.empty(begun.shape, self._real, local.device)
        self._op_in([local] if self.source.shares[self._rank].pieces else [],
                    [] if begun is None else [begun if real is None else real]).wait()
        if begun is not None:
            if real is not None:
                begun.copy_(real)
            if problem.kind == "C2R" and not problem.adjoint:
                self._halve_ends(begun)
            begun.mul_(self._chirp(inverse, local.device, begun.shape[self._shape.axis]))
        spectrum = self._first.run(room, _UNSCALED[inverse])
        spectrum.mul_(self._filter(inverse, local.device))
        # The second plan runs the other way round: the two together scale by m.
        back = self._second.run(spectrum, _UNSCALED[not inverse])
        ended = self._view(back, problem.result_shape)
        if ended is not None:
            doubles = (problem.kind == "C2R") != problem.adjoint and problem.kind != "C2C"
            scale = settings.factor([_full(problem)[axis] for axis in problem.axes]) / self._shape.length
            ended.mul_(self._chirp(inverse, local.device, ended.shape[self._shape.axis])).mul_(
                scale * (2.0 if doubles else 1.0))
            if problem.kind == "R2C" and problem.adjoint:
                self._halve_ends(ended)
            if problem.kind == "C2R":
                ended = _runtime.empty(ended.shape, self._real, local.device).copy_(ended.real)
        share = self.target.shares[self._rank]
        result = _runtime.empty(share.local_shape, self._result_dtype, local.device)
        self._op_out([] if ended is None else [ended], [result] if share.pieces else []).wait()
        return result

    def _cleared(self, device: torch.device) -> torch.Tensor:
        if self._room is None or self._room.device != device:
            with torch.inference_mode(False):  # a later run may be outside of inference mode
                self._room = _runtime.empty(self._shape.slabs.shares[self._rank].local_shape, self._compute, device)
        return self._room.zero_()

    def _halve_ends(self, part: torch.Tensor) -> None:
        """Halves the elements of the half spectrum that stand for themselves alone, in place."""
        assert self._box is not None
        real = self.problem.axes[-1]
        extent = _full(self.problem)[real]
        for index in {0} | ({extent // 2} if extent % 2 == 0 else set()):
            at = index - self._box.offset[real]
            if 0 <= at < part.shape[real]:
                part.select(real, at).mul_(0.5)

    def _chirp(self, inverse: bool, device: torch.device, count: int) -> torch.Tensor:
        """w of the first ``count`` indices of this rank's slab along the axis; other dimensions have one index."""
        key = (inverse, str(device))
        if key not in self._chirps:
            assert self._box is not None
            axis = self._shape.axis
            most = max(self._shape.given, self._shape.wanted) - self._box.offset[axis]
            indices = torch.arange(min(self._box.shape[axis], most), device="cpu") + self._box.offset[axis]
            with torch.inference_mode(False):
                self._chirps[key] = self._along(_chirp(indices, self._shape.extent, inverse), device)
        return self._chirps[key].narrow(self._shape.axis, 0, count)

    def _filter(self, inverse: bool, device: torch.device) -> torch.Tensor:
        """The spectrum of 1 / w for this rank's part of the first plan's result. Collective when it is made."""
        if str(device) not in self._spectra:
            with torch.inference_mode(False), torch.no_grad():
                self._spectra[str(device)] = self._along(self._spectrum(), device)
        spectrum = self._spectra[str(device)]
        return spectrum.conj() if inverse else spectrum

    def _spectrum(self) -> torch.Tensor:
        """Along the axis alone: a transform of one dimension, whose result goes where the first plan's result lies."""
        shape, group = self._shape, self._group()
        line = (shape.length,)
        problem = dataclasses.replace(shape.back, axes=(0,), shape=line, result_shape=line)
        slabs = _fft_long._end(Slab(0), line, shape.size)
        share = slabs.shares[self._rank]
        indices = torch.arange(share.local_shape[0], device="cpu") + (share.pieces[0].offset[0] if share.pieces else 0)
        back = shape.length - indices  # the index of -k is m - k
        inside, behind = indices < shape.wanted, back < shape.given
        values = _chirp(torch.where(inside, indices, back), shape.extent, True)
        values = torch.where(inside | behind, values, torch.zeros_like(values)).to(self._compute)
        made = Plan(group, self._rank, problem, slabs, None, self._compute, self.name, False, self._measure,
                    self._chunking)
        spectrum = made.run(values, _UNSCALED[False])
        lies = self._first.target.shares[self._rank]
        parts = sorted({(piece.local_offset[shape.axis], piece.offset[shape.axis], piece.shape[shape.axis])
                        for piece in lies.pieces if all(piece.shape)})
        own = made.target.shares[self._rank]
        found = torch.empty(lies.local_shape[shape.axis], dtype=self._compute, device="cpu")
        op = compile_op(group, shape=line, dtype=self._compute,
                        inputs=[Pieces(own.local_shape, own.pieces)] if own.pieces else [],  # type: ignore[arg-type]
                        outputs=[{"offset": (begin,), "shape": (count,)} for _, begin, count in parts],
                        overlap="any", name=f"shardwire.distributed.{self.name}")
        op([spectrum] if own.pieces else [], [found[at:at + count] for at, _, count in parts]).wait()
        return found

    def _along(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        shape = [1] * len(self._shape.padded)
        shape[self._shape.axis] = len(values)
        return values.to(self._compute).reshape(shape).to(device)

    def prepare(self, local: torch.Tensor, settings: Settings) -> None:
        """Chooses and makes the local transforms. Not collective."""
        room = self._cleared(local.device)
        self._first.prepare(room, _UNSCALED[settings.inverse])
        like = _runtime.empty(self._first.target.shares[self._rank].local_shape, self._compute, local.device)
        self._second.prepare(like, _UNSCALED[not settings.inverse])

    def release(self) -> None:
        """Frees the memory between steps and the factors; the next run makes them again. The spectrum stays: to make it
        is collective, and another rank may release nothing."""
        self._first.release()
        self._second.release()
        self._chirps.clear()
        self._room = None

    def adjoint(self, sums: bool) -> Plan | ChirpPlan:
        """The transposed map, as Plan.adjoint. Collective."""
        return plan(self._group(), self._rank, self.problem.transposed(), self.target, self.source, self._compute,
                    f"{self.name}.backward", sums, self._measure, self._chunking)

    # The plan as text and dicts.

    def traffic(self) -> dict[str, Any]:
        inner = [self._first.traffic(), self._second.traffic()]
        slabs = str(self._shape.slabs.distribution)
        steps = [_exchange(self._op_in, str(self.source.distribution), slabs), *inner[0]["steps"], *inner[1]["steps"],
                 _exchange(self._op_out, slabs, str(self.target.distribution))]
        return {**inner[0], "kind": self.problem.kind, "shape": list(self.problem.shape),
                "result_shape": list(self.problem.result_shape), "steps": steps,
                "convolution": {"axis": self._shape.axis, "length": self._shape.length}}

    def explain(self) -> str:
        shape = self._shape
        lines = [f"{self.problem.kind} of {list(self.problem.shape)} along axes {list(self.problem.axes)}",
                 f"the operand lies as {self.source.distribution}, the result as {self.target.distribution}",
                 f"axis {shape.axis} of {shape.extent} indices, a length without a useful factor, is transformed as a "
                 f"convolution of length {shape.length} (Bluestein):"]
        for title, text in (("the operand goes into slabs of the longer array, which is transformed", self._first),
                            ("the spectrum is multiplied, and transformed back", self._second)):
            lines += [title, *("  " + line for line in text.explain().splitlines())]
        return "\n".join([*lines, "the first elements go to the result"])


AnyPlan = Union[Plan, ChirpPlan]


def _chirp(indices: torch.Tensor, extent: int, inverse: bool) -> torch.Tensor:
    """exp(-i pi k^2 / extent) of each index k, conjugated for ``inverse``; in double precision from exact integers."""
    angles = (indices * indices % (2 * extent)).to(torch.float64) * (math.pi / extent)
    return torch.polar(torch.ones_like(angles), angles if inverse else -angles)


def _exchange(op: CustomOp, source: str, target: str) -> dict[str, Any]:
    return {"move": op.traffic(), "from": source, "to": target, "chunks": 1, "chunk_axis": None,
            "why": "the axis gets another length"}
