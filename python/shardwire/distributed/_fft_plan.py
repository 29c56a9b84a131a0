"""A planned transform on one rank: the route's compiled moves and the local transforms, run one after the other, or a
move at the same time as the transform before."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..compiler.compile_op import CustomOp
from ..compiler.future import Future
from ..compiler.plot import human_bytes
from . import _engines, _fft_chunks, _fft_long, _runtime
from ._ends import End
from ._fft_chunks import Chunk, Chunking, Cut
from ._fft_long import Refold
from ._fft_route import Local, Move, Problem
from ._local_call import ALIGNMENT, Array, Call, aligned, array_of, packed
from .reshape import move


# The room of a spectrum with further axes to transform in the same step. Other rooms have the numbers of their steps.
_SPECTRUM = -1
# The room of the second half of a rank's columns, in a Refold of half a spectrum.
_MIRRORED = -2


class Settings(NamedTuple):
    """The choices of a run: inverse or not; norm: None, "backward", "ortho" or "forward"."""

    inverse: bool
    norm: str | None

    @property
    def torch_norm(self) -> str:
        """The norm argument of torch.fft for this scale in this direction. None scales nothing."""
        return self.norm or ("forward" if self.inverse else "backward")

    def factor(self, lengths: Sequence[int]) -> float:
        """The factor on the result of a transform along axes of these lengths."""
        count = math.prod(lengths)
        if self.norm == "ortho":
            return 1.0 / math.sqrt(count)
        return 1.0 / count if self.norm == ("backward" if self.inverse else "forward") else 1.0

    def adjoint(self) -> Settings:
        """The other direction, scaled by the same number."""
        other = {"ortho": "ortho", "forward": "backward", "backward": "forward"}[self.torch_norm]
        return Settings(not self.inverse, other)


class _Part(NamedTuple):
    """One call of an engine: ``axes`` of the previous result, in place or into ``room``, a tensor of ``shape`` and
    ``dtype``.

    halves, doubles: of gradients, elements standing for two conjugate elements of the spectrum are halved before, or
    doubled after.
    """

    kind: str
    axes: tuple[int, ...]
    in_place: bool
    room: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    halves: bool = False
    doubles: bool = False


class _Narrow(NamedTuple):
    """A chunk of an array, as ``tensor.narrow`` takes it."""

    axis: int
    begin: int
    length: int


def _result_of(part: _Part, chunk: _Narrow | None) -> Array:
    """The layout of a part's result: in memory of the plan, in C order."""
    whole = packed(part.shape, part.dtype)
    return whole if chunk is None else whole.narrowed(*chunk)


class Plan:
    """Made by all ranks of the group together, and run by all of them. For one thread at a time.

    compute: the complex dtype of the computation. sums: where several ranks hold an element of the operand, the values
    are addends, not copies. measure: engines are chosen by measuring. chunking: decides whether an exchange is cut into
    chunks. The memory between steps is kept between runs, until release().
    """

    def __init__(self, group: Any, rank: int, problem: Problem, source: End, target: End | None, compute: torch.dtype,
                 name: str, sums: bool = False, measure: bool = True, chunking: Chunking = Chunking(1, False)) -> None:
        self.problem, self.source, self.name = problem, source, name
        self._group = weakref.ref(group)  # the group keeps its plans; with a strong reference the group would never end
        self._rank, self._compute, self._measure, self._chunking = rank, compute, measure, chunking
        self._real = torch.float32 if compute == torch.complex64 else torch.float64
        route = _fft_long.find(problem, source, target)
        self.target = route.target
        self._steps = route.steps
        # For each move: the cut, and the compiled op or the chunks with their ops.
        self._cuts = [None if isinstance(step, Local) else self._cut_of(index, step)
                      for index, step in enumerate(self._steps)]
        self._ops: list[CustomOp | list[Chunk] | None] = [
            None if cut is None or isinstance(step, Local)
            else self._compile(step, cut, "sum" if sums and index == 0 else None)
            for index, (step, cut) in enumerate(zip(self._steps, self._cuts))]
        self._factors: dict[tuple[int, bool, str], torch.Tensor] = {}
        self._between: dict[int, torch.Tensor] = {}
        self._parts = [self._parts_of(index, step) if isinstance(step, Local) else []
                       for index, step in enumerate(self._steps)]
        self._transforms: dict[Any, tuple[Any, bool]] = {}
        self._choices: dict[tuple[int, int], _engines.Choice] = {}
        self._engines = _engines.find()
        # The step whose memory is the result's memory: later complex transforms run in place.
        self._last = len(self._steps) - 1
        if len(self._steps) > 1 and isinstance(self._steps[-1], Local) and not self._steps[-1].is_real:
            self._last -= 1

    @property
    def operand_dtype(self) -> torch.dtype:
        """The dtype of run()'s operand."""
        return self._real if self.problem.kind == "R2C" else self._compute

    def _dtype_of_move(self, step: Move | Refold) -> torch.dtype:
        return self._compute if step.is_complex else self._real

    def _cut_of(self, index: int, step: Move | Refold) -> Cut:
        before = self._steps[index - 1] if index else None
        if isinstance(step, Refold):
            return Cut(0, 1, "an axis is folded")
        if not isinstance(before, Local):
            return Cut(0, 1, "nothing is transformed before it")
        return _fft_chunks.choose(
            before, step, self.problem.item_bytes if step.is_complex else self.problem.item_bytes // 2, self._chunking)

    def _compile(self, step: Move | Refold, cut: Cut, reduction: str | None) -> CustomOp | list[Chunk]:
        dtype = self._dtype_of_move(step)
        if isinstance(step, Refold):
            return _fft_long.compile_refold(self._group(), self._rank, step, dtype, self.name, reduction)
        if cut.chunks > 1:
            return _fft_chunks.compile_chunks(self._group(), self._rank, step, cut, dtype, self.name)
        return move(self._group(), self._rank, step.source, step.target, dtype, self.name, reduction)

    def adjoint(self, sums: bool) -> Plan:
        """The transposed map. Collective. sums: gradients of one element on several ranks are added; otherwise these
        gradients are equal."""
        return Plan(self._group(), self._rank, self.problem.transposed(), self.target, self.source, self._compute,
                    f"{self.name}.backward", sums, self._measure, self._chunking)

    def run(self, local: torch.Tensor, settings: Settings) -> torch.Tensor:
        """The result of this rank, in new memory in C order. ``local`` is not written to."""
        current = aligned(local)
        for index, (step, op) in enumerate(zip(self._steps, self._ops)):
            if isinstance(step, Local):
                if not self._has_chunks(index + 1):  # otherwise the transform runs with the move
                    current = self._transform(index, current, settings)
                continue
            share = step.target.shares[self._rank]
            result = self._room(index, share.local_shape, self._dtype_of_move(step), current.device)
            if isinstance(step, Refold):
                assert isinstance(op, CustomOp)
                _fft_long.run_refold(
                    op, self._rank, step, current, result, self._weight_of(step),
                    lambda shape: self._room(_MIRRORED, shape, self._compute, local.device))
            elif isinstance(op, list):
                self._overlap(index, op, current, result, settings)
            else:
                assert op is not None
                op([current] if step.source.shares[self._rank].pieces else [], [result] if share.pieces else []).wait()
            current = result
        return current.contiguous()

    def _weight_of(self, step: Refold) -> float:
        """The factor on the elements of half a spectrum that stand for themselves alone; the twiddle factors have a
        factor on all elements."""
        if step.half is None or not self.problem.adjoint:
            return 1.0
        return 0.5 if step.is_last else 2.0

    def _has_chunks(self, index: int) -> bool:
        return index < len(self._ops) and isinstance(self._ops[index], list)

    def _overlap(self, index: int, chunks: Sequence[Chunk], local: torch.Tensor, result: torch.Tensor,
                 settings: Settings) -> None:
        """The move ``index`` and the transform before: each chunk is on its way while the next chunk is transformed.
        When this returns or raises, no chunk is on its way, except after Ctrl-C."""
        cut = self._cuts[index]
        assert cut is not None
        under_way: list[Future] = []
        try:
            for chunk in chunks:
                part = None
                if chunk.length:
                    part = self._transform(index - 1, local.narrow(cut.axis, chunk.begin, chunk.length), settings,
                                           _Narrow(cut.axis, chunk.begin, chunk.length))
                under_way.append(_fft_chunks.start(chunk, part, result))
        except Exception:
            # The error of this rank is raised. Memory that peers still read or write must not be reused before their
            # transfers end.
            with contextlib.suppress(Exception):
                _fft_chunks.wait_for_all(under_way)
            raise
        except BaseException:
            _fft_chunks.leave_all(under_way)
            raise
        _fft_chunks.wait_for_all(under_way)

    def _room(self, index: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The memory that step ``index`` writes to: memory of the plan, or, from step ``_last`` on, new memory, which
        becomes the result: later steps run in place."""
        if index >= self._last:
            return _runtime.empty(shape, dtype, device)
        kept = self._between.get(index)
        if kept is None or kept.device != device:
            with torch.inference_mode(False):  # a later run may be outside of inference mode
                kept = self._between[index] = _runtime.empty(shape, dtype, device)
        return kept

    def release(self) -> None:
        """Frees the memory between steps and the twiddle factors; the next run makes them again."""
        self._between.clear()
        self._factors.clear()

    def _parts_of(self, index: int, step: Local) -> list[_Part]:
        """The calls of one step. The operand is not written to, so calls of the first step are not in place; the result
        of an exchange is the plan's own memory."""
        shape, real = step.end.shares[self._rank].local_shape, self.problem.kind if step.is_real else "C2C"
        weighs = self.problem.adjoint and not any(isinstance(one, Refold) and one.half is not None
                                                  for one in self._steps)  # otherwise a Refold does so
        if real == "R2C":
            return [_Part("R2C", step.axes, False, index, shape, self._compute, doubles=weighs)]
        if real == "C2C":
            return [_Part("C2C", step.axes, index > 0, index, shape, self._compute)]
        # One axis after the other: only for the spectrum of a real array would one call give the same result.
        first, last = step.axes[:-1], step.axes[-1]
        half = tuple(extent // 2 + 1 if dim == last else extent for dim, extent in enumerate(shape))
        parts = [_Part("C2C", first, index > 0, _SPECTRUM, half, self._compute)] if first else []
        return [*parts, _Part("C2R", (last,), False, index, shape, self._real, halves=weighs)]

    def _transform(self, index: int, local: torch.Tensor, settings: Settings,
                   chunk: _Narrow | None = None) -> torch.Tensor:
        """Step ``index``; with ``chunk``, ``local`` is this part of the array, and so is the result."""
        parts = self._parts[index]
        if not local.numel():  # no engine takes empty axes
            return local.new_empty(parts[-1].shape, dtype=parts[-1].dtype)
        current = local
        for number, part in enumerate(parts):
            if part.halves:
                current = self._weighted(current.clone() if current is local else current, part.axes[-1],
                                         part.shape[part.axes[-1]], 0.5)
            key = (index, number, settings, current.stride(), current.data_ptr() % ALIGNMENT, current.device.type,
                   chunk and (chunk.begin, chunk.length))
            transform, writes = (self._transforms.get(key)
                                 or self._choose(key, part, array_of(current), current.device.type == "cpu", chunk))
            target = None
            if writes:
                target = current if part.in_place else self._room(part.room, part.shape, part.dtype, current.device)
                target = target if chunk is None or part.in_place else target.narrow(*chunk)
            extent = current.shape[part.axes[-1]]
            current = transform.run(current, target)
            if part.doubles:
                self._weighted(current, part.axes[-1], extent, 2.0)
        step = self._steps[index]
        assert isinstance(step, Local)
        return current if step.turn is None else self._turned(index, step, current, settings.inverse, chunk)

    def _turned(self, index: int, step: Local, local: torch.Tensor, inverse: bool,
                chunk: _Narrow | None) -> torch.Tensor:
        """``local`` times the twiddle factors, in place."""
        key = (index, inverse, str(local.device))
        factors = self._factors.get(key)
        if factors is None:
            assert step.turn is not None
            with torch.inference_mode(False):
                factors = self._factors[key] = _fft_long.factors(step.turn, step.end, self._rank, inverse,
                                                                 self._compute, local.device)
        if chunk is not None and factors.shape[chunk.axis] > 1:
            factors = factors.narrow(*chunk)
        return local.mul_(factors)

    def _choose(self, key: tuple[Any, ...], part: _Part, source: Array, is_cpu: bool,
                chunk: _Narrow | None) -> tuple[Any, bool]:
        """The transform of a part, and whether the transform writes into the given target."""
        index, number, settings = key[:3]
        call = Call(part.kind, part.axes, source, source if part.in_place else _result_of(part, chunk), part.in_place,
                    settings.inverse, settings.torch_norm)
        call = call._replace(factor=settings.factor([call.lengths[axis] for axis in call.axes]))
        choice = _engines.choose(self._engines if is_cpu else self._engines[-1:], call, self._measure)
        try:
            transform = choice.engine.make(choice.engine.library, call, choice.careful)
        except RuntimeError as error:  # this rank's error alone: torch.fft takes every call
            choice = _engines.Choice(self._engines[-1], False, {}, 0, f"{choice.engine.short} refused: {error}")
            transform = choice.engine.make(None, call, False)
        self._choices[index, number] = choice
        made = transform, choice.engine.writes
        self._transforms[key] = made
        return made

    def prepare(self, local: torch.Tensor, settings: Settings) -> None:
        """Chooses and makes the missing local transforms for operands with the layout of ``local``; only the layout is
        read. Not collective."""
        current = array_of(aligned(local))
        for index, step in enumerate(self._steps):
            if not isinstance(step, Local):
                current = packed(step.target.shares[self._rank].local_shape, self._dtype_of_move(step))
                continue
            if not current.elements:
                current = packed(self._parts[index][-1].shape, self._parts[index][-1].dtype)
                continue
            for chunk in self._narrows(index + 1):
                lies = current if chunk is None else current.narrowed(*chunk)
                for number, part in enumerate(self._parts[index]):
                    key = (index, number, settings, lies.strides, lies.begin, local.device.type,
                           chunk and (chunk.begin, chunk.length))
                    if key not in self._transforms:
                        self._choose(key, part, lies, local.device.type == "cpu", chunk)
                    lies = lies if part.in_place else _result_of(part, chunk)
            current = lies  # of chunks the last layout: a move follows, which has its own memory

    def _narrows(self, index: int) -> list[_Narrow | None]:
        """The calls of the transform before the move ``index``: the whole, or the chunks that are not empty."""
        chunks, cut = (self._ops[index], self._cuts[index]) if self._has_chunks(index) else (None, None)
        return ([_Narrow(cut.axis, chunk.begin, chunk.length) for chunk in chunks if chunk.length]
                if isinstance(chunks, list) and cut is not None else [None])

    @staticmethod
    def _weighted(half: torch.Tensor, axis: int, extent: int, weight: float) -> torch.Tensor:
        """Multiplies the elements standing for two conjugate elements of the spectrum by ``weight``: all but the first
        and, of an even extent, the last. In place."""
        half.narrow(axis, 1, (extent - 1) // 2).mul_(weight)
        return half

    # The plan as text and dicts.

    @property
    def engine(self) -> str:
        """The engines chosen for this rank's parts; before a choice, the first candidate."""
        names = [choice.engine.name for _, choice in sorted(self._choices.items())] or [self._engines[0].name]
        return " and ".join(dict.fromkeys(names))

    def _chosen(self, index: int) -> list[_engines.Choice]:
        """The last choice for each part of a step."""
        return [self._choices[index, number] for number in range(len(self._parts[index]))
                if (index, number) in self._choices]

    def traffic(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = []
        for index, (step, op) in enumerate(zip(self._steps, self._ops)):
            if isinstance(step, Local):
                chosen = self._chosen(index)
                steps.append(
                    {"transform": list(step.axes), "shapes": [list(share.local_shape) for share in step.end.shares],
                     "lies": str(step.end.distribution),
                     "engines": [{"engine": choice.engine.short, "why": choice.why, "measured_us": choice.measured,
                                  "elements": choice.elements} for choice in chosen]})
            else:
                cut = self._cuts[index]
                assert op is not None and cut is not None
                moved = (_fft_chunks.merged([chunk.op.traffic() for chunk in op]) if isinstance(op, list)
                         else op.traffic())
                steps.append({"move": moved, "from": str(step.source.distribution), "to": str(step.target.distribution),
                              "chunks": cut.chunks, "chunk_axis": cut.axis if cut.chunks > 1 else None, "why": cut.why})
                if isinstance(step, Refold):
                    steps[-1]["folds"] = {"axis": step.axis, "into": list(step.split), "back": step.is_last}
        return {"name": self.name, "kind": self.problem.kind, "shape": list(self.problem.shape),
                "result_shape": list(self.problem.result_shape), "axes": list(self.problem.axes),
                "world_size": len(self.source.shares), "engine": self.engine, "dtype": str(self._compute),
                "steps": steps}

    def explain(self) -> str:
        traffic = self.traffic()
        lines = [(f"{traffic['kind']} of {traffic['shape']} along axes {traffic['axes']} in {traffic['dtype']}, "
                  f"{traffic['world_size']} ranks, by {traffic['engine']}"),
                 f"the operand lies as {self.source.distribution}, the result as {self.target.distribution}"]
        for number, step in enumerate(traffic["steps"], 1):
            if "transform" in step:
                lines.append(f"{number}. every rank transforms axes {step['transform']}; rank {self._rank} then has "
                             f"{step['shapes'][self._rank]}")
                lines += [f"   rank {self._rank}, by {choice.summary()}" for choice in self._chosen(number - 1)]
                continue
            edges = step["move"]["edges"]
            between = sum(edge["bytes"] for edge in edges if edge["src"] != edge["dst"])
            lines.append(f"{number}. exchange: {human_bytes(between)} between ranks, from {step['from']} to "
                         f"{step['to']}")
            mine = [edge for edge in edges if self._rank in (edge["src"], edge["dst"]) and edge["src"] != edge["dst"]]
            lines += [f"   rank {edge['src']} to rank {edge['dst']}: {human_bytes(edge['bytes'])}" for edge in mine]
            if "folds" in step:
                folds = step["folds"]
                first, second = folds["into"]
                lines.append(f"   axes {folds['axis']} and {folds['axis'] + 1} of {first} x {second} become one again"
                             if folds["back"] else f"   axis {folds['axis']} is folded into {first} x {second} indices")
                continue
            chunks, axis = step["chunks"], step["chunk_axis"]
            cut = ("whole" if chunks == 1
                   else f"{chunks} chunks along axis {axis}, each beside the transform of the next")
            lines.append(f"   {cut} ({step['why']})")
        return "\n".join(lines)
