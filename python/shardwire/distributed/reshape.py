"""reshape: moves an array from one distribution to another, each element once.

The names are from nvmath.distributed: ``reshape``/``Reshape`` take boxes, ``redistribute``/``Redistribute``
distributions. Here both take either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..compiler.agree import Attempt
from ..compiler.compile_op import CustomOp, compile_op
from ..compiler.layout import kind_of, as_dims
from ..compiler.spec import Pieces
from ..errors import MismatchError
from . import _ends, _meeting, _runtime
from ._operand import Operand, check_apart, order_of, read_out, unwrap, wrap
from ._planned import Planned
from .distribution import Boxes, Dims, Distribution, Placements

__all__ = ["InvalidReshapeState", "Redistribute", "RedistributeOptions", "Reshape", "ReshapeOptions", "redistribute",
           "reshape"]
_Array = TypeVar("_Array")  # the result is of the operand's kind


class InvalidReshapeState(RuntimeError):
    """The object was freed, or an earlier call is missing."""


@dataclass
class ReshapeOptions:
    """Options of :func:`reshape`. logger: of Python's logging; plan() writes the plan there, at level INFO. blocking:
    accepted for programs written for nvmath; the result is complete when a call returns."""

    logger: Any = None
    blocking: Any = "auto"

    def check(self) -> None:
        """ValueError for an invalid option. Called by the call that takes the options, on all ranks alike: an error at
        the construction of the options would leave the other ranks waiting."""
        check_blocking(self.blocking)


RedistributeOptions = ReshapeOptions


def read_options(cls: Any, options: Any) -> Any:
    """``options``: None, a ``cls``, or a dict of its fields."""
    if options is None:
        return cls()
    if not isinstance(options, (cls, Mapping)):
        raise TypeError(f"options is {kind_of(options)}; give a {cls.__name__} or a dict")
    if not isinstance(options, cls):
        unknown = [name for name in options if name not in cls.__dataclass_fields__]
        if unknown:
            raise ValueError(f"options has {unknown[0]!r}; known: {', '.join(cls.__dataclass_fields__)}")
        options = cls(**options)
    options.check()
    check_logger(getattr(options, "logger", None))
    return options


def check_blocking(blocking: Any) -> None:
    if blocking not in (True, "auto"):
        raise ValueError(f"blocking is {kind_of(blocking)}; give True or 'auto'")


def check_logger(logger: Any) -> None:
    """TypeError for an object that takes no lines: plan() would raise on this rank alone."""
    if logger is not None and not callable(getattr(logger, "info", None)):
        raise TypeError(f"logger is {kind_of(logger)}; give one of Python's logging, or None")


class Reshape(Planned):
    """The move of an array from one distribution to another, planned once and executed any number of times.

    operand: this rank's part: a torch tensor, a numpy array or a DTensor; any dtype, dimensions (up to 16) and strides.
        input_box, output_box: the part that this rank holds and the part that this rank wants: a Box, or on all ranks
        the same distribution (Slab, Pencil, Block, BlockCyclic, Boxes, a list of placements). Of a DTensor input_box
        may be None. The input covers the array once; the output covers the array, and may hold parts several times.
    options: ReshapeOptions or a dict. stream: accepted and not used. global_shape: where the local shapes do not
        determine the global shape. out: the destination of results; None: each execute makes a tensor, in the operand's
        order (C or Fortran), in the heap that the ranks share. group: None: the context's.

    Collective over the group, as are plan, execute, reset_operand and redistribution itself; for one thread at a time.
    An error on any rank is raised on all ranks: TypeError, ValueError (:class:`~shardwire.GapError` for a gap),
    MismatchError where ranks were given different arguments.
    """

    _call = "reshape"
    _noun, _state_error = "object", InvalidReshapeState

    def __init__(self, operand: Any, /, input_box: Any, output_box: Any, *, options: Any = None, stream: Any = None,
                 global_shape: Sequence[int] | None = None, out: Any = None, group: Any = None,
                 _keeps: bool = False) -> None:
        self._join(group)
        self._op: CustomOp | None = None
        self._operand: Operand | None = None
        self._out: Operand | None = None
        facts: dict[str, Any] = {}
        with Attempt() as attempt:
            facts, sides = self._read(operand, input_box, output_box, options, global_shape, out)
            # The gradient of a one-off function is collective, and an object may be executed under any grad mode.
            facts["requires_grad"] = facts["requires_grad"] and (not _keeps or torch.is_grad_enabled())
        everyone = _meeting.exchange(self._group, self._call, facts, attempt.error)
        self._key = f"{self._call} {everyone}"
        kept = _meeting.kept_plans(self._group).get(self._key) if _keeps else None
        if kept is None:
            self._settle(everyone, sides)
        else:  # all ranks gave the same arguments before, and so have equal plans
            self._source, self._target, self._dtype, self._facts, self._op = kept

    def _read(self, operand: Any, input_box: Any, output_box: Any, options: Any, global_shape: Any,
              out: Any) -> tuple[dict[str, Any], list[Distribution]]:
        """This rank's arguments for the other ranks, and the input's and the output's distribution."""
        self._logger = read_options(ReshapeOptions, options).logger
        self._operand = wrap(operand)
        own_mesh = None
        if self._operand.package == "DTensor":
            dtensor = self._operand.given
            own_mesh = dtensor.device_mesh
            input_box = Placements(dtensor.placements, own_mesh) if input_box is None else input_box
            global_shape = tuple(dtensor.shape) if global_shape is None else global_shape
        sides = [_ends.read_distribution(input_box, "input_box", self._ranks, own_mesh),
                 _ends.read_distribution(output_box, "output_box", self._ranks, own_mesh)]
        self._mesh = None if own_mesh is None else _ends.result_mesh(sides[1], is_made=out is None)
        requires_grad = self._operand.requires_grad
        facts: dict[str, Any] = {**self._operand.facts(), "input_box": sides[0].describe(),
                                 "output_box": sides[1].describe(), "out": None, "requires_grad": requires_grad,
                                 "global_shape": None if global_shape is None
                                                 else list(as_dims(global_shape, "global_shape"))}
        if out is not None:
            self._out = read_out(out, self._operand)
            self._refuse_gradient(requires_grad)
            facts["out"] = self._out.facts()
        return facts, sides

    @staticmethod
    def _refuse_gradient(requires_grad: bool) -> None:
        """Refuses as torch's own functions with out= do: without its gradient the operand would silently count as a
        constant."""
        if requires_grad and torch.is_grad_enabled():
            raise ValueError("the operand requires grad, and no gradient goes through out=; leave out= away, give "
                             "operand.detach(), or call under torch.no_grad()")

    def _settle(self, facts: Sequence[dict[str, Any]], sides: Sequence[Distribution]) -> None:
        """Computes the two ends from the arguments of all ranks. Pure: an error is raised on all ranks alike."""
        call, size = self._call, len(self._ranks)
        _ends.agree(facts, call, ("dtype", "package", "device", "global_shape", "requires_grad"))
        shapes = [record["shape"] for record in facts]
        source = _ends.resolve(call, "input_box", sides[0], [record["input_box"] for record in facts], size)
        target = _ends.resolve(call, "output_box", sides[1], [record["output_box"] for record in facts], size)
        for what, side in (("input_box", source), ("output_box", target)):
            if side.ndim is not None and side.ndim != len(shapes[0]):
                raise ValueError(f"{call}: {what} has {side.ndim} dimensions, the operand {len(shapes[0])} on rank 0")
        given = facts[0]["global_shape"]
        if isinstance(source, Boxes) and given is None:
            # As in nvmath: the array is the smallest box around all boxes, at any offset.
            source, lower = _ends.at_origin(source)
            if isinstance(target, Boxes):
                target, other = _ends.at_origin(target)
                if other != lower:
                    raise ValueError(f"{call}: the boxes of the input begin at {list(lower)}, those of the output at "
                                     f"{list(other)}; both describe one array")
        dims = _ends.global_shape_of(call, source, shapes, given)
        if isinstance(target, Boxes):
            wanted = target.infer_global_shape(shapes)
            if any(have < want for have, want in zip(dims, wanted)):
                raise ValueError(f"{call}: the output's boxes reach to {list(wanted)}, but the input's make an array "
                                 f"of shape {list(dims)}")
        self._source = _ends.make_end(call, "input_box", source, dims, size)
        self._target = _ends.make_end(call, "output_box", target, dims, size, overlaps=True)
        _ends.check_shapes(call, "the operand", self._source, shapes)
        _ends.check_pieces(call, "the operand", self._source, [record["pieces"] for record in facts])
        self._check_out(facts)
        self._dtype = _dtype_of(facts[0]["dtype"])
        self._facts = facts[self._rank]

    def _check_out(self, facts: Sequence[dict[str, Any]]) -> None:
        given = [record["out"] for record in facts]
        for rank, out in enumerate(given):
            if (out is None) != (given[0] is None):
                raise MismatchError(f"{self._call}: out is given on rank {rank if out else 0} and not on rank "
                                    f"{0 if out else rank}; give it on all ranks or on none")
        if given[0] is None:
            return
        _ends.check_shapes(self._call, "out", self._target, [out["shape"] for out in given])
        _ends.check_pieces(self._call, "out", self._target, [out["pieces"] for out in given])
        for rank, out in enumerate(given):
            if out["dtype"] != facts[0]["dtype"]:
                raise ValueError(f"{self._call}: out has dtype {out['dtype']} on rank {rank}, the operand "
                                 f"{facts[0]['dtype']}")

    @property
    def global_shape(self) -> Dims:
        """The shape of the whole array."""
        return self._source.global_shape

    def plan(self, stream: Any = None) -> None:
        """Compiles the movement. Done once; further calls do nothing. Collective."""
        self._check_alive()
        if self._op is None:
            self._op = move(self._group, self._rank, self._source, self._target, self._dtype, self._call)
            self._log(self._logger, self)

    def execute(self, stream: Any = None, release_workspace: bool = False, sync_symmetric_memory: bool = True) -> Any:
        """Moves the operand and returns the complete result. Collective."""
        self._check_alive()
        if self._op is None:
            raise InvalidReshapeState("execute() comes after plan()")
        operand = self._operand
        if operand is None:
            raise InvalidReshapeState("execute() needs an operand, and reset_operand(None) took it away; give one by "
                                      "reset_operand(...)")
        operand = wrap(operand.given)  # anew, since some arrays can only be read through a copy
        if self._out is not None:
            self._run(operand.tensor.detach(), self._out.tensor)
            return self._out.given
        local = operand.tracked
        result = (_Move.apply(local, self) if local.requires_grad and torch.is_grad_enabled()
                  else self._run(local.detach(), None))
        return unwrap(result, operand.package, self._mesh, self._target.distribution,
                      self.global_shape, len(self._ranks))

    def _run(self, local: torch.Tensor, result: torch.Tensor | None) -> torch.Tensor:
        assert self._op is not None
        local = local.resolve_conj().resolve_neg()
        target = self._target.shares[self._rank]
        if result is None:
            result = _runtime.empty(target.local_shape, self._dtype, local.device, order_of(local))
        self._op([local] if self._source.shares[self._rank].pieces else [], [result] if target.pieces else []).wait()
        return result

    def reset_operand(self, operand: Any = None, *, stream: Any = None) -> None:
        """Takes another operand of the same shape, dtype, package and device; None drops the present operand.
        Collective: an error on one rank is raised on all ranks, and the former operand stays."""
        self._check_alive()
        fresh: Operand | None = None
        with Attempt() as attempt:
            fresh = None if operand is None else self._fitting(operand)
        everyone = _meeting.exchange(self._group, f"{self._call}.reset_operand",
                                     {"given": fresh is not None,
                                      "requires_grad": fresh is not None and fresh.requires_grad}, attempt.error)
        _ends.agree(everyone, f"{self._call}.reset_operand", ("given", "requires_grad"))
        self._operand = fresh

    def reset_operand_unchecked(self, operand: Any = None, *, stream: Any = None) -> None:
        """As reset_operand, without communication: an error is raised on this rank only, and the other ranks' execute
        waits for this rank."""
        self._check_alive()
        self._operand = None if operand is None else self._fitting(operand)

    def release_operand(self) -> None:
        """Drops the operand, without communication."""
        self.reset_operand_unchecked(None)

    def _fitting(self, operand: Any) -> Operand:
        fresh = wrap(operand)
        for key, value in fresh.facts().items():
            if key == "pieces" and value != self._facts[key]:
                raise ValueError(f"the operand is a DTensor that gave this rank {_ends.said_pieces(self._facts[key])}, "
                                 f"the placements of the new one give it {_ends.said_pieces(value)}; bring it there "
                                 "first, by shardwire.redistribute")
            if value != self._facts[key]:
                raise (TypeError if key in ("package", "dtype") else ValueError)(
                    f"the operand's {key} was {self._facts[key]}, the new one's is {value}")
        if self._out is not None:
            self._refuse_gradient(fresh.requires_grad)
            check_apart(self._out, fresh)
        return fresh

    def explain(self) -> str:
        """The bytes between each pair of ranks, as text. After plan()."""
        self._check_alive()
        if self._op is None:
            raise InvalidReshapeState("explain() comes after plan()")
        return (f"{self._call} of {list(self.global_shape)} {self._dtype}: {self._source.distribution} to "
                f"{self._target.distribution}\n{self._op.explain()}")

    def free(self) -> None:
        """Frees operation, operand and out; the object cannot be used any more. A second call does nothing."""
        self._freed = True
        self._op = self._operand = self._out = None


class Redistribute(Reshape):
    """:class:`~shardwire.distributed.reshape.Reshape` by the name and with the argument names of nvmath 1.0."""

    _call = "redistribute"

    def __init__(self, operand: Any, /, input_distribution: Any, output_distribution: Any, *, options: Any = None,
                 stream: Any = None, global_shape: Sequence[int] | None = None, out: Any = None, group: Any = None,
                 _keeps: bool = False) -> None:
        super().__init__(operand, input_distribution, output_distribution, options=options, stream=stream,
                         global_shape=global_shape, out=out, group=group, _keeps=_keeps)


def reshape(operand: _Array, /, input_box: Any, output_box: Any, *, sync_symmetric_memory: bool = True,
            options: Any = None, stream: Any = None, global_shape: Sequence[int] | None = None, out: Any = None,
            group: Any = None) -> _Array:
    """This rank's part of the array, laid out anew; arguments and errors as in :class:`Reshape`. Collective over the
    group.

    Differentiable once. Compiled plans are kept: a further call with equal arguments on all ranks exchanges a few
    hundred bytes and moves.
    """
    return _once(Reshape(operand, input_box, output_box, options=options, stream=stream, global_shape=global_shape,
                         out=out, group=group, _keeps=True))


def redistribute(operand: _Array, /, input_distribution: Any, output_distribution: Any, *,
                 sync_symmetric_memory: bool = True, options: Any = None, stream: Any = None,
                 global_shape: Sequence[int] | None = None, out: Any = None, group: Any = None) -> _Array:
    """:func:`~shardwire.distributed.reshape.reshape` by the name and with the argument names of nvmath 1.0."""
    return _once(Redistribute(operand, input_distribution, output_distribution, options=options, stream=stream,
                              global_shape=global_shape, out=out, group=group, _keeps=True))


def _once(one: Reshape) -> Any:
    one.plan()
    _meeting.keep_plan(one._group, one._key, (one._source, one._target, one._dtype, one._facts, one._op))
    return one.execute()


def move(group: Any, rank: int, source: _ends.End, target: _ends.End, dtype: torch.dtype, name: str,
         reduction: str | None = None) -> CustomOp:
    """The compiled op that brings an array from one end to the other. Collective. Of equal copies of the input the
    nearest supplies an element."""
    def regions(end: _ends.End) -> list[Any]:
        share = end.shares[rank]
        return [Pieces(share.local_shape, share.pieces)] if share.pieces else []
    return compile_op(group, shape=source.global_shape, dtype=dtype, inputs=regions(source),  # type: ignore[arg-type]
                      outputs=regions(target), reduction=reduction, overlap=None if reduction else "any",
                      name=f"shardwire.distributed.{name}")


class _Move(torch.autograd.Function):
    """The differentiable form: gradients go back the same way, and are added where the output held an element several
    times; a DTensor's replicas have equal gradients by contract."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, one: Reshape) -> torch.Tensor:
        ctx.ends = (one._group, one._rank, one._source, one._target, one._dtype, one._call, one._key,
                    None if one._facts["package"] == "DTensor" else "sum")
        ctx.shape = local.shape  # any shape without elements on a rank that holds nothing
        return one._run(local.detach(), None)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        group, rank, source, target, dtype, call, key, reduction = ctx.ends
        key = f"backward {key}"
        op = _meeting.kept_plans(group).get(key)
        if op is None:
            op = move(group, rank, target, source, dtype, f"{call}.backward", reduction)
        _meeting.keep_plan(group, key, op)
        result = _runtime.empty(source.shares[rank].local_shape, dtype, grad.device)
        op([grad.resolve_conj().resolve_neg()] if target.shares[rank].pieces else [],
           [result] if source.shares[rank].pieces else []).wait()
        return result.reshape(ctx.shape), None


def _dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name.partition(".")[2])

