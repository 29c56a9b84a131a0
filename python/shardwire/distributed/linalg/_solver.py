"""direct_solver and DirectSolver: systems of linear equations with distributed matrices, by nvmath.distributed.linalg's
names.

The ranks exchange their arguments first, so that all make the same plan or raise the same error. ``_system`` chooses
the layout, and ``_factors`` factorizes and solves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...compiler.agree import Attempt
from ...compiler.layout import kind_of
from ...plain.tensor_bytes import is_within_reach
from .. import _ends, _meeting, _runtime
from .._operand import Operand, check_writable, order_of, unwrap, wrap
from .._planned import Planned
from ..distribution import Distribution, Placements
from ..reshape import check_blocking, read_options
from ._options import read_count, read_dtype
from ._system import Factored, Settings, System

_NAMES = ("a", "b")
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_FACTORIZATIONS = ("lu", "cholesky")


class InvalidDirectSolverState(RuntimeError):
    """The object was freed, or an earlier call is missing."""


@dataclass
class DirectSolverOptions:
    """Options of a direct solver.

    logger: of Python's logging; plan() writes the plan there, at level INFO. blocking, handle: accepted for programs
        written for nvmath; the result is complete when a call returns.
    inplace_a: factorize() overwrites a with the factors, as LAPACK packs them: L below the diagonal and U above, of the
        matrix with its rows swapped, or Cholesky's L on and below the diagonal. Memory is saved where a has whole
        columns, dealt to the ranks in panels, in Fortran order. inplace_b: solve() overwrites b with the solution, and
        returns b.
    factorization: "lu", with partial pivoting, or "cholesky", for a Hermitian positive definite matrix, of which only
        the part on and below the diagonal is read. panel_width: the columns that are factorized at once; None: by the
        size. Both equal on all ranks, as inplace_a and inplace_b are.
    """

    logger: Any = None
    blocking: Any = "auto"
    inplace_a: bool = True
    inplace_b: bool = True
    handle: Any = None
    factorization: str = "lu"
    panel_width: int | None = None

    def check(self) -> None:
        """TypeError or ValueError for an invalid option. Called by the call that takes the options."""
        for name in ("inplace_a", "inplace_b"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {kind_of(getattr(self, name))}; give True or False")
        check_blocking(self.blocking)
        if self.factorization not in _FACTORIZATIONS:
            raise ValueError(f"factorization is {kind_of(self.factorization)}; give 'lu' or 'cholesky'")
        self.panel_width = read_count(self.panel_width, "panel_width")


class DirectSolver(Planned):
    """The systems A X = B of a distributed matrix, factorized once and solved any number of times.

    a, b: this rank's parts of A (n x n, or batch x n x n) and of B (n x k or n, or with the batch in front): torch
        tensors, numpy arrays or DTensors of one package and one dtype: float32, float64, complex64 or complex128.
    distributions: of A, and of B and X: each a Distribution, a pair (lower, upper), a list of boxes or a list of
        placements. None for a DTensor's own placements.
    options: DirectSolverOptions or a dict; by default a and b are overwritten, as nvmath does. stream: accepted and
        not used. group: None: the context's.

    Collective over the group, as plan, factorize, solve and reset_operands are; for one thread at a time. An error on
    any rank is raised on all ranks: TypeError, ValueError, MismatchError where ranks were given different arguments,
    torch.linalg.LinAlgError from factorize() for a singular matrix or one that is not positive definite; a is then
    partly overwritten. Not differentiable.
    """

    _call = "linalg.DirectSolver"
    _noun, _state_error = "DirectSolver", InvalidDirectSolverState

    def __init__(self, a: Any, b: Any, /, *, distributions: Sequence[Any] | None = None, options: Any = None,
                 stream: Any = None, group: Any = None) -> None:
        self._join(group)
        self._operands: list[Operand | None] = []
        self._mesh: Any = None  # of a solution that is a new DTensor
        self._system: System | None = None
        self._factored: Factored | None = None
        facts: dict[str, Any] = {}
        with Attempt() as attempt:
            facts = self._read(a, b, distributions, options)
        self._everyone = _meeting.exchange(self._group, self._call, facts, attempt.error)
        self._facts = self._everyone[self._rank]
        self._key = f"{self._call} {self._everyone}"
        if self._key not in _meeting.kept_plans(self._group):
            self._settle()

    # Arguments.

    def _read(self, a: Any, b: Any, distributions: Any, options: Any) -> dict[str, Any]:
        """This rank's arguments for the other ranks."""
        self._options: DirectSolverOptions = read_options(DirectSolverOptions, options)
        operands = [wrap(value, name) for name, value in zip(_NAMES, (a, b))]
        self._check_operands(operands)
        self._operands = list(operands)
        self._sides = self._read_sides(distributions, operands)
        chosen = self._options
        return {"dtype": str(operands[0].tensor.dtype), "package": operands[0].package,
                "device": operands[0].tensor.device.type, "factorization": chosen.factorization,
                "panel_width": chosen.panel_width, "inplace_a": chosen.inplace_a, "inplace_b": chosen.inplace_b,
                "of": [operand.facts() for operand in operands],
                "global_shapes": [list(operand.given.shape) if operand.package == "DTensor" else None
                                  for operand in operands],
                "distributions": [side.describe() for side in self._sides]}

    def _check_operands(self, operands: Sequence[Operand]) -> None:
        first, second = operands
        for name, operand in zip(_NAMES, operands):
            if operand.tensor.dtype not in _DTYPES:
                raise TypeError(f"{name} has dtype {operand.tensor.dtype}; a solver takes float32, float64, complex64 "
                                "and complex128")
            if torch.is_grad_enabled() and operand.tracked.requires_grad:
                raise ValueError(f"{name} requires grad, and no gradient goes through a solver; give {name}.detach(), "
                                 "or call under torch.no_grad()")
        for key in ("package", "dtype", "device"):
            have, want = (str(getattr(each if key == "package" else each.tensor, key)) for each in (second, first))
            if have != want:
                raise (ValueError if key == "device" else TypeError)(
                    f"the {key} of b is {have}, and of a {want}; give both of one {key}")
        if first.tensor.dim() not in (2, 3):
            raise ValueError(f"a has {first.tensor.dim()} dimensions; give a matrix, or a batch of matrices")
        if second.tensor.dim() not in (first.tensor.dim() - 1, first.tensor.dim()):
            raise ValueError(f"b has {second.tensor.dim()} dimensions, and a {first.tensor.dim()}; give as many, or "
                             "one less for a single right-hand side")
        for name, operand, is_written in zip(_NAMES, operands, (self._options.inplace_a, self._options.inplace_b)):
            if is_written:
                check_writable(operand, name, f", or inplace_{name}=False")
        if self._options.inplace_a and is_within_reach(first.tensor, second.tensor):
            raise ValueError("a and b share memory, and inplace_a overwrites a before b is read; give a copy, or "
                             "inplace_a=False")

    def _read_sides(self, distributions: Any, operands: Sequence[Operand]) -> list[Distribution]:
        if distributions is None:
            distributions = (None, None)
        if isinstance(distributions, (str, Mapping)) or not isinstance(distributions, Sequence) or len(
                distributions) != 2:
            raise ValueError(f"distributions is {kind_of(distributions)}; give two: of a, and of b and the solution")
        sides = []
        for index, (side, operand) in enumerate(zip(distributions, operands)):
            own_mesh = operand.given.device_mesh if operand.package == "DTensor" else None
            if own_mesh is not None and side is None:
                side = Placements(operand.given.placements, own_mesh)
            side = _ends.read_distribution(side, f"distributions[{index}]", self._ranks, own_mesh)
            if own_mesh is not None and not isinstance(side, Placements):
                raise TypeError(f"the operands are DTensors, and the solution one too: give placements, not {side}")
            sides.append(side)
        if operands[1].package == "DTensor" and not self._options.inplace_b:
            self._mesh = _ends.result_mesh(sides[1])
        return sides

    # Settling: pure, so an error is raised on all ranks alike.

    def _settle(self) -> None:
        call, facts = self._call, self._everyone
        _ends.agree(facts, call, ("dtype", "package", "device", "factorization", "panel_width", "inplace_a",
                                  "inplace_b", "global_shapes"))
        a, b = self._ends = self._end_of(0), self._end_of(1)
        *batch, rows, columns = a.global_shape
        if rows != columns:
            raise ValueError(f"{call}: a is {rows} x {columns}; give a square matrix")
        if list(b.global_shape[:len(batch) + 1]) != [*batch, rows]:
            raise ValueError(f"{call}: a has the shape {list(a.global_shape)} and b {list(b.global_shape)}; b needs "
                             + (f"{batch[0]} matrices of " if batch else "") + f"{rows} rows")

    def _end_of(self, index: int) -> _ends.End:
        call, name, size, everyone = self._call, _NAMES[index], len(self._ranks), self._everyone
        what = f"the distribution of {name}"
        side = _ends.resolve(call, what, self._sides[index],
                             [record["distributions"][index] for record in everyone], size)
        of = [record["of"][index] for record in everyone]
        ndim = len(of[0]["shape"])
        if ndim == 2:
            side = _ends.of_matrix(side)
        if side.ndim not in (None, ndim):
            raise ValueError(f"{call}: {what} has {side.ndim} dimensions, and {name} {ndim}")
        return _ends.stored_end(call, name, side, of, everyone[0]["global_shapes"][index], size)

    # Operations.

    def plan(self, *, stream: Any = None) -> None:
        """Chooses the layout and compiles the moves. A further call does nothing. Collective."""
        self._check_alive()
        if self._system is not None:
            return
        facts = self._facts
        self._system = _meeting.kept_plans(self._group).get(self._key)
        if self._system is None:
            self._system = System(self._group, self._rank, *self._ends, Settings(
                facts["factorization"], facts["panel_width"], facts["inplace_a"],
                read_dtype(facts["dtype"].partition(".")[2], "dtype")), self._call)
        self._log(self._options.logger, self)

    def factorize(self, *, stream: Any = None) -> None:
        """Factorizes a as it is now. Collective."""
        system = self._planned()
        self._factored = None
        self._factored = system.factorize(self._group, self._local(0))

    def solve(self, *, stream: Any = None) -> Any:
        """This rank's part of the solution for b as it is now: in b with inplace_b, else in new memory in the order of
        b, C or Fortran. Collective."""
        system = self._planned()
        if self._factored is None:
            raise InvalidDirectSolverState("solve() comes after factorize(), also after another a")
        local, operand = self._local(1), self._operands[1]
        assert operand is not None
        if self._options.inplace_b:
            system.solve(self._group, self._factored, local, local)
            return operand.given
        x = _runtime.empty(local.shape, local.dtype, local.device, order_of(local))
        system.solve(self._group, self._factored, local, x)
        return unwrap(x, operand.package, self._mesh, system.b.distribution, system.b.global_shape, len(self._ranks))

    def _local(self, index: int) -> torch.Tensor:
        operand = self._operands[index]
        if operand is None:
            raise InvalidDirectSolverState(f"this needs {_NAMES[index]}, which release_operands() took away; give "
                                           "another by reset_operands(...)")
        return wrap(operand.given).tensor.detach().resolve_conj().resolve_neg()

    def reset_operands(self, *, a: Any = None, b: Any = None, stream: Any = None) -> None:
        """Takes other operands of the same shapes, dtype, package and device; what is None stays. Another a needs
        factorize() again. Without arguments: as release_operands. Collective: an error on one rank is raised on all
        ranks, and everything stays as it was."""
        self._check_alive()
        fresh: list[Operand | None] = []
        with Attempt() as attempt:
            fresh = self._fitting((a, b))
        said, call = [name for name, value in zip(_NAMES, (a, b)) if value is not None], f"{self._call}.reset_operands"
        _ends.agree(_meeting.exchange(self._group, call, {"operands": said}, attempt.error), call,
                    ("operands",))
        self._take(fresh, a, b)

    def reset_operands_unchecked(self, *, a: Any = None, b: Any = None, stream: Any = None) -> None:
        """As reset_operands, without communication: an error is raised on this rank only, and the other ranks' next
        call waits for this rank."""
        self._check_alive()
        self._take(self._fitting((a, b)), a, b)

    def _take(self, fresh: list[Operand | None], a: Any, b: Any) -> None:
        if a is None and b is None:
            self.release_operands()
            return
        self._operands = fresh
        if a is not None:
            self._factored = None

    def _fitting(self, values: Sequence[Any]) -> list[Operand | None]:
        fresh = [former if value is None else wrap(value, name)
                 for name, value, former in zip(_NAMES, values, self._operands)]
        for name, value, operand, former in zip(_NAMES, values, fresh, self._facts["of"]):
            if value is None or operand is None:
                continue
            operand.check_like(name, former)
        if None not in fresh:
            self._check_operands([operand for operand in fresh if operand is not None])
        return fresh

    def release_operands(self) -> None:
        """Drops the operands, without communication. The factors stay."""
        self._check_alive()
        self._operands = [None, None]

    def explain(self) -> str:
        """The algorithm, and the bytes between each pair of ranks, as text. After plan()."""
        return self._planned().explain()

    def free(self) -> None:
        """Frees plan, factors and operands; the object cannot be used any more. A second call does nothing."""
        self._freed = True
        self._operands, self._system, self._factored = [], None, None

    def _planned(self) -> System:
        self._check_alive()
        if self._system is None:
            raise InvalidDirectSolverState("this comes after plan()")
        return self._system


class _Once(DirectSolver):
    _call = "linalg.direct_solver"


def direct_solver(a: Any, b: Any, /, *, distributions: Sequence[Any] | None = None, options: Any = None,
                  stream: Any = None, group: Any = None) -> Any:
    """This rank's part of the solution X of A X = B. Arguments and errors as in :class:`DirectSolver`. Collective.

    Plans are kept (8 per group, until finalize): a further call with equal arguments on all ranks exchanges a few
    hundred bytes, factorizes and solves.
    """
    with _Once(a, b, distributions=distributions, options=options, group=group) as one:
        one.plan()
        _meeting.keep_plan(one._group, one._key, one._system)
        one.factorize()
        return one.solve()

