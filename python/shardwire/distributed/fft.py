"""fft: Fourier transforms of arrays distributed over the ranks of a group, with nvmath.distributed's names.

Any number of dimensions, any axes (the other dimensions are batches), any distribution before and after; C2C, R2C and
C2R.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import torch

from .._integers import as_count
from ..compiler.agree import Attempt
from ..compiler.layout import kind_of, as_dims, is_device_mesh
from . import _ends, _engines, _fft_chirp, _meeting, _runtime
from ._fft_chunks import Chunking, are_between_hosts, host_with_wires
from ._fft_chirp import AnyPlan
from ._fft_dispatch import dispatch_dtensors
from ._fft_plan import Settings
from ._fft_route import problem_of, read_axes
from ._memory import dtype_in
from ._operand import Operand, unwrap, wrap
from ._planned import Planned
from .distribution import Block, Boxes, ConvertDistributionError, Dims, Distribution, Placements, Slab
from .reshape import read_options

__all__ = ["FFT", "FFTDirection", "FFTOptions", "InvalidFFTState", "allocate_operand", "dispatch_dtensors", "fft",
           "ifft", "irfft", "rfft"]
_Array = TypeVar("_Array")  # the result is of the operand's kind

_KINDS = ("C2C", "C2R", "R2C")
_NORMS = (None, "backward", "ortho", "forward")
# dtype of the operand -> (complex, real) dtypes of the computation, then (complex, real) dtypes of the caller's result.
_WIDTHS = {"float16": ("complex64", "float32", "complex32", "float16"),
           "bfloat16": ("complex64", "float32", "complex64", "bfloat16"),
           "complex32": ("complex64", "float32", "complex32", "float16"),
           "float32": ("complex64", "float32", "complex64", "float32"),
           "complex64": ("complex64", "float32", "complex64", "float32"),
           "float64": ("complex128", "float64", "complex128", "float64"),
           "complex128": ("complex128", "float64", "complex128", "float64")}


class InvalidFFTState(RuntimeError):
    """The object was freed, or an earlier call is missing."""


class FFTDirection(IntEnum):
    """FORWARD has exp(-2 pi i k n / N), INVERSE exp(+2 pi i k n / N)."""

    FORWARD = -1
    INVERSE = 1


@dataclass
class FFTOptions:
    """Options of a transform.

    fft_type: "C2C", "R2C", "C2R", or None: by the operand, C2C or R2C.
    redistribute, reshape: two names of one option; the older one, reshape, counts where given: whether the result is
        distributed as the operand, where one distribution is given. False leaves the cheaper result: Slab.Y for Slab.X,
        Slab.X for other slabs, also for a Block that cuts as a slab does, and for others the distribution at the end of
        the transform (``FFT.output_distribution``).
    last_axis_parity: of C2R, whether the last transformed axis of the result is "even", 2 (m - 1), or "odd", 2 (m - 1)
        + 1.
    logger: of Python's logging; plan() writes the plan there, at level INFO. blocking: accepted for programs written
        for nvmath; the result is complete when a call returns.
    measure: whether each local transform's engine is chosen by measuring, once in a process for each layout; False: the
        first available engine. Ranks may differ in this option.
    chunks: the number of parts into which a local transform and the next exchange are cut, so that the exchange of one
        part overlaps the transform of the next: 1 for whole, None for the number that is likely to be fastest
        (``FFT.explain()`` has number and reason). At most as many as there are indices. Equal on all ranks.
    """

    fft_type: str | None = None
    redistribute: bool = True
    last_axis_parity: str = "even"
    logger: Any = None
    blocking: Any = "auto"
    reshape: bool | None = None
    measure: bool = True
    chunks: int | None = None

    def check(self) -> None:
        """ValueError for an invalid option. Called by the call that takes the options, on all ranks alike: an error at
        the construction of the options would leave the other ranks waiting."""
        if self.chunks is not None:
            chunks = as_count(self.chunks, 1)
            if chunks is None:
                raise ValueError(f"chunks is {kind_of(self.chunks)}; give a number from 1, or None")
            self.chunks = chunks
        for name, known in (("fft_type", (None, *_KINDS)), ("reshape", (None, True, False)), ("measure", (True, False)),
                            ("redistribute", (True, False)), ("last_axis_parity", ("even", "odd")),
                            ("blocking", (True, "auto"))):
            value = getattr(self, name)
            if value not in known or name != "blocking" and isinstance(value, int) and not isinstance(value, bool):
                raise ValueError(f"{name} is {kind_of(value)}; give one of {', '.join(map(repr, known))}")

    @property
    def returns(self) -> bool:
        """Whether the result is distributed as the operand."""
        return self.redistribute if self.reshape is None else self.reshape


class FFT(Planned):
    """A transform of an array distributed over ranks, planned once and executed any number of times.

    operand: this rank's part: a torch tensor, a numpy array or a DTensor of float16, bfloat16, float32, float64 or
        their complex types. float16, bfloat16 and complex32 are computed in float32.
    distribution: a Distribution for operand and result, or a pair of distributions: the operand's and the result's. Of
        a DTensor the distribution may be None. options: FFTOptions or a dict. stream: accepted and not used.
    axes: the axes to transform, the real one of R2C and C2R last; None: all. norm: None: nothing is scaled, as in
        nvmath; "backward", "ortho" or "forward" as in torch.fft and numpy.fft. global_shape: of the operand, where the
        local shapes do not determine the global shape.
    group: None: the context's.

    Collective over the group, as plan, execute and reset_operand are; for one thread at a time. The operand is never
    written to. An error on any rank is raised on all ranks: TypeError, ValueError, MismatchError where ranks were given
    different arguments.
    """

    _noun, _state_error = "FFT", InvalidFFTState

    def __init__(self, operand: Any, /, distribution: Any = None, *, options: Any = None, stream: Any = None,
                 axes: Sequence[int] | None = None, norm: str | None = None, global_shape: Sequence[int] | None = None,
                 group: Any = None, _call: str = "fft.FFT", _inverse: bool | None = None,
                 _error: Exception | None = None) -> None:
        self._call = _call
        self._join(group)
        self._wires = host_with_wires(self._group)
        self._inverse = _inverse
        self._plans: dict[bool, AnyPlan] = {}
        self._swapped = False
        self._operand: Operand | None = None
        # How DTensors are placed at the two ends
        self._placed: tuple[Placements | None, Placements | None] = (None, None)
        # The values that every execute needs, found by the first: for small transforms the search takes about as long
        # as the transform.
        self._usual: Settings | None = None
        self._dtypes: tuple[torch.dtype, torch.dtype] | None = None
        facts: dict[str, Any] = {}
        with Attempt() as attempt:
            if _error is not None:
                raise _error
            facts, sides = self._read(operand, distribution, options, axes, norm, global_shape)
        everyone = _meeting.exchange(self._group, _call, facts, attempt.error)
        self._key = f"{_call} {everyone}"
        kept = None if _inverse is None else _meeting.kept_plans(self._group).get(self._key)
        if kept is None:
            self._settle(everyone, sides)
        else:  # all ranks gave the same arguments before, and so have equal plans
            self._problem, self._source, self._target, self._norm, self._facts, self._chunking, plan = kept
            self._plans[False] = plan

    def _read(self, operand: Any, distribution: Any, options: Any, axes: Any, norm: Any,
              global_shape: Any) -> tuple[dict[str, Any], list[Distribution | None]]:
        """This rank's arguments for the other ranks, and the distributions of operand and result."""
        given = read_options(FFTOptions, options)
        self._logger = given.logger
        _engines.find()  # SHARDWIRE_FFT_ENGINE may name an engine missing on this rank's host
        self._operand = wrap(operand)
        kind = _read_kind(self._operand, given, self._call)
        if norm not in _NORMS:
            raise ValueError(f"norm is {kind_of(norm)}; give one of {', '.join(map(repr, _NORMS))}")
        sides = self._read_sides(distribution, given)
        if self._operand.package == "DTensor":
            global_shape = tuple(self._operand.given.shape) if global_shape is None else global_shape
        facts = {**self._operand.facts(), "kind": kind, "norm": norm,
                 "axes": None if axes is None else list(as_dims(axes, "axes")),
                 "last_axis_parity": given.last_axis_parity, "measure": given.measure,
                 "chunks": given.chunks, "wires": self._wires, "redistribute": given.returns,
                 "distribution": [None if side is None else side.describe() for side in sides],
                 "global_shape": None if global_shape is None else list(as_dims(global_shape, "global_shape")),
                 # The gradient of a one-off function is collective; an object may be executed under any grad mode.
                 "requires_grad": self._operand.requires_grad and (self._inverse is None or torch.is_grad_enabled())}
        return facts, sides

    def _read_sides(self, distribution: Any, options: FFTOptions) -> list[Distribution | None]:
        """The distributions of operand and result; None: see _settle."""
        assert self._operand is not None
        dtensor = self._operand.given if self._operand.package == "DTensor" else None
        pair = list(distribution) if isinstance(distribution, (list, tuple)) else [distribution, distribution]
        if len(pair) != 2:
            raise ValueError(f"distribution has {len(pair)} entries; give a Distribution, or a pair: the operand's and "
                             "the result's")
        is_pair = isinstance(distribution, (list, tuple))
        own_mesh = None if dtensor is None else dtensor.device_mesh
        read: list[Distribution] = []
        for index, side in enumerate(pair):
            if dtensor is not None and side is None:
                side = Placements(dtensor.placements, own_mesh)
            read.append(_ends.read_distribution(side, f"distribution[{index}]" if is_pair else "distribution",
                                                self._ranks, own_mesh))
        sides: list[Distribution | None] = list(read)
        if dtensor is not None:
            first, last = read
            _ends.result_mesh(last)
            assert isinstance(last, Placements)
            if not isinstance(first, Placements) or not is_device_mesh(first.mesh):
                first = Placements(dtensor.placements, own_mesh)  # gives each rank the same parts (_settle checks)
            self._placed = first, last
        elif not is_pair and not options.returns:
            sides[1] = None
        if not is_pair and dtensor is None and sides[0] is not None and sides[0].describe()[0] == "Box":
            raise ValueError("a Box gives the place of the operand, and not of the result: give a pair, "
                             "distribution=[input_box, output_box]")
        return sides

    def _settle(self, facts: Sequence[dict[str, Any]], sides: Sequence[Distribution | None]) -> None:
        """Computes the problem and its two ends from the arguments of all ranks. Pure: an error is raised on all ranks
        alike."""
        call, size = self._call, len(self._ranks)
        _ends.agree(facts, call, ("dtype", "package", "device", "kind", "norm", "axes", "last_axis_parity",
                                  "redistribute", "global_shape", "requires_grad", "chunks"))
        mine = facts[self._rank]
        self._chunking = Chunking(mine["chunks"], are_between_hosts([record["wires"] for record in facts]))
        shapes = [record["shape"] for record in facts]
        assert sides[0] is not None
        source = _ends.resolve(call, "the operand's distribution", sides[0],
                               [record["distribution"][0] for record in facts], size)
        if source.ndim is not None and any(len(shape) != source.ndim for shape in shapes):
            rank = next(rank for rank, shape in enumerate(shapes) if len(shape) != source.ndim)
            raise ValueError(f"{call}: the operand has {len(shapes[rank])} dimensions on rank {rank}, {source} "
                             f"{source.ndim}")
        dims = _ends.global_shape_of(call, source, shapes, mine["global_shape"])
        axes = read_axes(mine["axes"], len(dims))
        self._problem = problem_of(call, mine["kind"], dims, axes, mine["last_axis_parity"],
                                   _WIDTHS[mine["dtype"].partition(".")[2]][0])
        self._source = _ends.make_end(call, "the operand's distribution", source, dims, size)
        _ends.check_shapes(call, "the operand", self._source, shapes)
        _ends.check_pieces(call, "the operand", self._source, [record["pieces"] for record in facts])
        target: Distribution | None = None
        if any((record["distribution"][1] is None) != (sides[1] is None) for record in facts):
            raise _ends.MismatchError(f"{call}: some ranks give one distribution, and some a pair; give the same on "
                                      "all ranks")
        if sides[1] is not None:
            target = _ends.resolve(call, "the result's distribution", sides[1],
                                   [record["distribution"][1] for record in facts], size)
        elif len(dims) > 1 and (slab := _as_slab(source, len(dims), size)) is not None:
            target = Slab(1 if slab.partition_dim % len(dims) == 0 else 0)
        self._target = None if target is None else _ends.make_end(call, "the result's distribution", target,
                                                                  self._problem.result_shape, size, overlaps=True)
        self._norm, self._facts = mine["norm"], mine

    # Properties.

    @property
    def global_extents(self) -> Dims:
        """The shape of the whole operand."""
        return self._problem.shape

    @property
    def output_distribution(self) -> Distribution:
        """The distribution of the result. Where the options leave the distribution open, known after plan()."""
        end = self._source if self._swapped else self._target
        return self._planned(False).target.distribution if end is None else end.distribution

    def explain(self) -> str:
        """The plan for people: each step, who exchanges with whom, bytes, and the local engine. After plan()."""
        return self._planned(self._swapped).explain()

    def traffic(self) -> dict[str, Any]:
        """The plan for programs: name, world_size, engine, and steps, each {"transform": axes} or {"move": the dict of
        CustomOp.traffic(), "chunks": number, "why": text}."""
        return self._planned(self._swapped).traffic()

    def plot(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Draws the plan into ``path``, which ends in .svg."""
        from ._fft_plot import save_stages
        save_stages(self.traffic(), path, title)

    # Operations.

    def plan(self, *, stream: Any = None) -> None:
        """Finds the route, compiles the moves, and chooses the engines of the local transforms, which may be measured:
        some tenths of a second. Done once; further calls do nothing. The other direction of a C2C is chosen at its
        first execution. Collective."""
        self._check_alive()
        if self._swapped not in self._plans:
            made = self._plans[self._swapped] = self._make_plan(self._swapped)
            if self._target is None:
                self._target = made.target
            self._log(self._logger, made)

    def _make_plan(self, swapped: bool) -> AnyPlan:
        source, target = (self._target, self._source) if swapped else (self._source, self._target)
        assert source is not None
        compute = getattr(torch, _WIDTHS[self._facts["dtype"].partition(".")[2]][0])
        made = _fft_chirp.plan(self._group, self._rank, self._problem, source, target, compute, self._call,
                               measure=self._facts["measure"], chunking=self._chunking)
        if self._operand is not None:
            local = self._operand.tensor
            like = local if local.dtype == made.operand_dtype else torch.empty_like(local, dtype=made.operand_dtype)
            made.prepare(like, self._settings_of(None))
        return made

    def execute(self, *, direction: Any = None, stream: Any = None, sync_symmetric_memory: bool = True,
                release_workspace: bool = False) -> Any:
        """Transforms the operand and returns the complete result: new memory in C order, in the heap that the ranks
        share where this costs no further copy. Collective.

        direction: an FFTDirection, its value or its name, for C2C; None: forward, and inverse for C2R.
            release_workspace: frees the memory between steps. Ranks may differ.
        """
        plan = self._planned(self._swapped)
        operand = self._operand
        if operand is None:
            raise InvalidFFTState("execute() needs an operand, and reset_operand(None) took it away; give one by "
                                  "reset_operand(...)")
        operand = wrap(operand.given)  # anew, since some arrays can only be read through a copy
        settings = self._settings_of(direction)
        local = operand.tracked
        tracked = local.requires_grad and torch.is_grad_enabled()
        result = _Transform.apply(local, self, plan, settings) if tracked else self._run(local.detach(), plan, settings)
        if release_workspace:
            plan.release()
        placed = self._placed[not self._swapped]
        return unwrap(result, operand.package, None if placed is None else placed.mesh, placed,
                      plan.target.global_shape, len(self._ranks))

    def _settings_of(self, direction: Any) -> Settings:
        if direction is not None:
            return Settings(read_direction(direction, self._problem.kind, self._inverse), self._norm)
        if self._usual is None:
            self._usual = Settings(read_direction(None, self._problem.kind, self._inverse), self._norm)
        return self._usual

    def _run(self, local: torch.Tensor, plan: AnyPlan, settings: Settings) -> torch.Tensor:
        if self._dtypes is None:
            wide_complex, _, out_complex, out_real = _WIDTHS[self._facts["dtype"].partition(".")[2]]
            if self._facts["package"] == "numpy":
                out_complex = wide_complex  # numpy has no complex32
            self._dtypes = (plan.operand_dtype,
                            getattr(torch, out_real if self._problem.kind == "C2R" else out_complex))
        taken, given = self._dtypes
        local = local.resolve_conj().resolve_neg()
        result = plan.run(local if local.dtype == taken else local.to(taken), settings)
        return result if result.dtype == given else result.to(given)

    def _planned(self, swapped: bool) -> AnyPlan:
        self._check_alive()
        if swapped not in self._plans:
            raise InvalidFFTState("this comes after plan()")
        return self._plans[swapped]

    def reset_operand(self, operand: Any = None, *, distribution: Any = None, stream: Any = None) -> None:
        """Takes another operand of the same dtype, package and device; None drops the present operand.

        distribution: None or the former distribution: the operand is distributed as before; for C2C also the
            distribution of the result: then the new result is distributed as the former operand.

        Collective: an error on one rank is raised on all ranks, and the former operand stays.
        """
        self._check_alive()
        fresh, fits = None, [self._swapped]
        with Attempt() as attempt:
            fresh, fits = self._fitting(operand, distribution)
        everyone = _meeting.exchange(self._group, "fft.FFT.reset_operand",
                                     {"given": fresh is not None, "fits": fits,
                                      "requires_grad": fresh is not None and fresh.requires_grad}, attempt.error)
        _ends.agree(everyone, "fft.FFT.reset_operand", ("given", "requires_grad"))
        common = [swapped for swapped in (False, True) if all(swapped in record["fits"] for record in everyone)]
        if not common:
            said = [" and ".join("the result's" if swapped else "the operand's" for swapped in record["fits"])
                    for record in everyone]
            raise _ends.MismatchError("fft.FFT.reset_operand: ranks say different distributions: "
                                      + ", ".join(f"{text} on rank {rank}" for rank, text in enumerate(said)))
        self._operand, self._swapped = fresh, common[0]
        if self._plans:
            self.plan()

    def reset_operand_unchecked(self, operand: Any = None, *, distribution: Any = None, stream: Any = None) -> None:
        """As reset_operand, without communication: an error is raised on this rank only, and the other ranks' execute
        waits for this rank. A distribution must be one that was planned for; all ranks give the same."""
        self._check_alive()
        fresh, fits = self._fitting(operand, distribution)
        planned = [swapped for swapped in fits if swapped in self._plans or swapped == self._swapped]
        if not planned:
            raise InvalidFFTState("no plan is there for operands distributed as the result; call reset_operand first")
        self._operand, self._swapped = fresh, planned[0]

    def release_operand(self) -> None:
        """Drops the operand, without communication."""
        self.reset_operand_unchecked(None)

    def _fitting(self, operand: Any, distribution: Any) -> tuple[Operand | None, list[bool]]:
        """The operand, and the ends that the operand may belong to (True: the result's): a Box may be this rank's at
        both ends."""
        if operand is None:
            return None, [self._swapped]
        fresh = wrap(operand)
        said = fresh.facts()
        for key, value in said.items():
            if key not in ("shape", "pieces") and value != self._facts[key]:
                raise (TypeError if key in ("package", "dtype") else ValueError)(
                    f"the operand's {key} was {self._facts[key]}, the new one's is {value}")
        fits = [self._swapped] if distribution is None else self._ends_of(distribution, fresh)
        end = self._target if fits[0] else self._source  # a box of both ends is the same box at both
        assert end is not None
        share = end.shares[self._rank]
        if tuple(fresh.tensor.shape) != share.local_shape and (share.pieces or fresh.tensor.numel()):
            raise ValueError(f"the new operand has shape {list(fresh.tensor.shape)}, but {end.distribution} of the "
                             f"global shape {list(end.global_shape)} gives this rank {list(share.local_shape)}")
        if said["pieces"] not in (None, share.plain):
            raise ValueError("the new operand is a DTensor, whose own placements give this rank "
                             f"{_ends.said_pieces(said['pieces'])}, but {end.distribution} of the global shape "
                             f"{list(end.global_shape)} {_ends.said_pieces(share.plain)}; bring it there first, by "
                             "shardwire.redistribute")
        return fresh, fits

    def _ends_of(self, distribution: Any, fresh: Operand) -> list[bool]:
        """Whether ``distribution`` is the operand's (False), the result's (True), or may be both, in the original order
        of the ends."""
        is_pair = (isinstance(distribution, (list, tuple)) and distribution
                   and not all(map(_ends.is_index, distribution)))
        first = distribution[0] if is_pair else distribution
        own_mesh = fresh.given.device_mesh if fresh.package == "DTensor" else None
        said = _ends.read_distribution(first, "distribution", self._ranks, own_mesh)
        fits = [swapped for swapped, end in ((False, self._source), (True, self._target))
                if end is not None and self._lies_so(said, end)]
        if fits and self._problem.kind != "C2C":
            if fits[0]:
                raise ValueError(f"the distribution of a {self._problem.kind} cannot change: its result is another "
                                 "array; make another FFT")
            return [False]
        if fits:
            return fits
        raise ValueError(f"the distribution is {said}; it can be the operand's, {self._source.distribution}, or the "
                         "result's, "
                         f"{'which is not known before plan()' if self._target is None else self._target.distribution}")

    def _lies_so(self, said: Distribution, end: _ends.End) -> bool:
        if said == end.distribution:
            return True
        if isinstance(said, (Slab, Block)):  # a Slab may be said as a Block, and the other way round
            try:
                return all(said.share(rank, end.global_shape, len(self._ranks)).is_as(share)
                           for rank, share in enumerate(end.shares))
            except ValueError:  # another number of dimensions or ranks
                return False
        if said.describe()[0] != "Box":
            return False
        share, box = end.shares[self._rank], end.distribution
        return isinstance(box, Boxes) and share.is_one_box and said.describe()[1:] == [
            list(share.pieces[0].offset), [a + b for a, b in zip(share.pieces[0].offset, share.local_shape)]]

    def free(self) -> None:
        """Frees plans and operand; the object cannot be used any more. A second call does nothing."""
        self._freed = True
        self._plans.clear()
        self._operand = None


def fft(operand: _Array, /, distribution: Any = None, *, sync_symmetric_memory: bool = True, options: Any = None,
        stream: Any = None, axes: Sequence[int] | None = None, norm: str | None = None,
        global_shape: Sequence[int] | None = None, group: Any = None) -> _Array:
    """The forward transform of a complex array: this rank's part of the result. Arguments and errors as in
    :class:`FFT`. Collective.

    Differentiable once. Plans are kept (8 per group, with their memory, until finalize): a further call with equal
    arguments on all ranks exchanges a few hundred bytes and transforms.
    """
    return _once("fft.fft", operand, distribution, options, axes, norm, global_shape, group, False)


def ifft(operand: _Array, /, distribution: Any = None, *, sync_symmetric_memory: bool = True, options: Any = None,
         stream: Any = None, axes: Sequence[int] | None = None, norm: str | None = None,
         global_shape: Sequence[int] | None = None, group: Any = None) -> _Array:
    """The inverse transform of a complex array, as :func:`fft`. With norm=None nothing is divided by the number of
    elements; norm="backward" divides."""
    return _once("fft.ifft", operand, distribution, options, axes, norm, global_shape, group, True)


def rfft(operand: _Array, /, distribution: Any = None, *, sync_symmetric_memory: bool = True, options: Any = None,
         stream: Any = None, axes: Sequence[int] | None = None, norm: str | None = None,
         global_shape: Sequence[int] | None = None, group: Any = None) -> _Array:
    """The forward transform of a real array, as :func:`fft`: for n indices along the last axis the result has n // 2 +
    1 indices."""
    return _once("fft.rfft", operand, distribution, options, axes, norm, global_shape, group, False)


def irfft(operand: _Array, /, distribution: Any = None, *, sync_symmetric_memory: bool = True, options: Any = None,
          stream: Any = None, axes: Sequence[int] | None = None, norm: str | None = None,
          global_shape: Sequence[int] | None = None, group: Any = None) -> _Array:
    """The inverse of :func:`rfft`: a real array, times the number of elements unless norm="backward". See
    ``last_axis_parity``. The option fft_type does not count."""
    return _once("fft.irfft", operand, distribution, options, axes, norm, global_shape, group, True)


def _once(call: str, operand: Any, distribution: Any, options: Any, axes: Any, norm: Any, global_shape: Any, group: Any,
          inverse: bool) -> Any:
    one = FFT(operand, distribution=distribution, options=options, axes=axes, norm=norm, global_shape=global_shape,
              group=group, _call=call, _inverse=inverse)
    one.plan()
    _meeting.keep_plan(one._group, one._key, (one._problem, one._source, one._target, one._norm, one._facts,
                                              one._chunking, one._plans[False]))
    return one.execute()


def allocate_operand(shape: Sequence[int], package: Any, *, input_dtype: Any = None, distribution: Any,
                     memory_space: str | None = None, fft_type: str | None = None, logger: Any = None,
                     group: Any = None) -> Any:
    """An uninitialised operand of the local ``shape`` in the heap that the ranks share: its first exchange copies each
    byte once.

    package: torch or numpy, the modules. input_dtype: the package's, or its default. memory_space: "cpu" (or None).
        Collective, and checked on all ranks as :class:`FFT` checks.
    """
    name = getattr(package, "__name__", None)
    tensor = operand = torch.empty(0, device="cpu")
    with Attempt() as attempt:
        if memory_space not in (None, "cpu"):
            raise ValueError(f"memory_space is {kind_of(memory_space)}; operands are made in 'cpu'")
        dtype = dtype_in(package, input_dtype)
        tensor = _runtime.empty(as_dims(shape, "shape"), dtype, torch.device("cpu"))
        operand = tensor.numpy() if name == "numpy" else tensor
    FFT(operand, distribution=distribution, options={"fft_type": fft_type}, group=group, _call="fft.allocate_operand",
        _error=attempt.error).free()
    return operand


# Arguments.

def read_direction(direction: Any, kind: str, default: bool | None) -> bool:
    """Whether the direction is the inverse. ValueError for a direction that the kind does not have."""
    if direction is None:
        return kind == "C2R" if default is None else default
    try:
        if isinstance(direction, bool):
            raise ValueError
        inverse = (FFTDirection[direction.upper()] if isinstance(direction, str)
                   else FFTDirection(direction)) == FFTDirection.INVERSE
    except (KeyError, ValueError):
        raise ValueError(f"direction is {kind_of(direction)}; give FFTDirection.FORWARD or INVERSE") from None
    if kind != "C2C" and inverse != (kind == "C2R"):
        raise ValueError(f"a {kind} goes {'forward' if kind == 'R2C' else 'inverse'} only")
    return inverse


def _as_slab(source: Distribution, ndim: int, size: int) -> Slab | None:
    """A Slab, or the Slab that cuts every array as a Block does: as in nvmath, both leave the result in the other
    slab."""
    if not isinstance(source, Block):
        return source if isinstance(source, Slab) else None
    try:
        slab = source.to(Slab, ndim=ndim, num_ranks=size)
    except ConvertDistributionError:
        return None
    assert isinstance(slab, Slab)
    return slab


def _read_kind(operand: Operand, options: FFTOptions, call: str) -> str:
    dtype = operand.tensor.dtype
    name = str(dtype).partition(".")[2]
    if name not in _WIDTHS:
        raise TypeError(f"the operand has dtype {dtype}; a transform takes {', '.join(_WIDTHS)}")
    forced = {"fft.fft": "C2C", "fft.ifft": "C2C", "fft.rfft": "R2C", "fft.irfft": "C2R"}.get(call)
    if call == "fft.ifft" and options.fft_type == "C2R":  # as irfft, in nvmath too
        forced = "C2R"
    kind = forced or options.fft_type or ("C2C" if dtype.is_complex else "R2C")
    if call != "fft.irfft" and forced is not None and options.fft_type not in (None, forced):
        raise ValueError(f"options say fft_type {options.fft_type!r}, but {call} is {forced}")
    if (kind == "R2C") == dtype.is_complex:
        raise ValueError(f"{kind} takes a {'real' if kind == 'R2C' else 'complex'} operand, this one has dtype {dtype}")
    return kind


class _Transform(torch.autograd.Function):
    """The differentiable form: the gradient goes through the transposed map, a transform of the other direction."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, one: FFT, plan: AnyPlan, settings: Settings) -> torch.Tensor:
        ctx.kept = (one._group, plan, settings, f"{one._swapped} {one._key}", local.dtype,
                    one._facts["package"] != "DTensor")
        ctx.shape = local.shape  # any shape without elements on a rank that holds nothing
        return one._run(local.detach(), plan, settings)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        group, plan, settings, key, dtype, sums = ctx.kept
        key = f"backward {key}"
        back = _meeting.kept_plans(group).get(key)
        if back is None:
            back = plan.adjoint(sums)
        _meeting.keep_plan(group, key, back)
        result = back.run(grad.resolve_conj().resolve_neg().to(back.operand_dtype), settings.adjoint())
        return result.to(dtype).reshape(ctx.shape), None, None, None


