"""Products of distributed matrices, F(alpha A @ B + beta C).

Every matrix has any distribution; which parts move is chosen by bytes (``_tiling``), the moves are compiled ops around
torch's own product (``_product``), and what follows is torch's (``_epilogs``). Matrices of FP8 have scales
(``_quantization``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...compiler.agree import Attempt
from ...compiler.layout import Replicate, kind_of
from .. import _ends, _meeting
from .._fft_chunks import are_between_hosts, host_with_wires
from .._operand import Operand, check_writable, unwrap, wrap
from .._planned import Planned
from ..distribution import Distribution, Placements
from ..reshape import read_options
from . import _block_scales
from ._epilogs import Epilog, check_aux, check_inputs, read_epilog
from ._gradient import transposed, unpacked
from ._options import (FP4, MatmulEpilog, MatmulEpilogPreferences, MatmulOptions, MatmulPlanPreferences, Qualifier,
                       read_dtype, read_qualifiers)
from ._problem import Problem, Work
from ._product import Settings, Types
from ._quantization import (Rounding, blocks_of, check_scales, dequantized, given_scales, is_fp4, is_narrow,
                            said_of)

_NAMES = ("a", "b", "c")


class InvalidMatmulState(RuntimeError):
    """The object was freed, or an earlier call is missing."""


class _Scales(NamedTuple):
    alpha: Any = 1
    beta: Any = 0


class Matmul(Planned):
    """A product F(alpha op(A) @ op(B) + beta C) of distributed matrices, planned once and executed any number of times.

    a, b, c: this rank's parts: torch tensors, numpy arrays or DTensors of one package, of two dimensions and any
        strides. a and b have one dtype: float16, bfloat16, float32, float64, complex64, complex128, or on the CPU an
        integer type; or each has a dtype of FP8, or both have FP4. c has the dtype of the result, and needs beta.
    distributions: of A, B, and of C and the result: each a Distribution, a pair (lower, upper), a list of boxes or a
        list of placements. None for a DTensor's own placements.
    alpha, beta: numbers, equal on all ranks; beta without c is ignored, with a warning. qualifiers: for a, b and c
        whether they are transposed and conjugated: an array of ``matrix_qualifiers_dtype``. options: MatmulOptions or a
        dict. stream: accepted and not used. group: None: the context's. quantization_scales: of operands of FP8:
        MatmulQuantizationScales or a dict.

    Collective over the group, as plan, execute and reset_operands are; for one thread at a time. Operands are not
    written to, except c, unless the option inplace is False. An error on any rank is raised on all ranks: TypeError,
    ValueError, MismatchError where ranks were given different arguments. Differentiable once, in a, b, c and a bias.
    """

    _noun, _state_error = "Matmul", InvalidMatmulState

    def __init__(self, a: Any, b: Any, /, c: Any = None, *, distributions: Sequence[Any] | None = None,
                 alpha: Any = None, beta: Any = None, qualifiers: Any = None, quantization_scales: Any = None,
                 options: Any = None, stream: Any = None, group: Any = None,
                 _epilog: tuple[Any, Any, Any] | None = None) -> None:
        self._call = "linalg.advanced.Matmul" if _epilog is None else "linalg.advanced.matmul"
        self._join(group)
        self._operands: list[Operand | None] = []
        self._mesh: Any = None
        self._epilog = self._wanted = Epilog(MatmulEpilog.DEFAULT, {})
        self._quantities: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        with Attempt() as attempt:
            facts = self._read(a, b, c, distributions, alpha, beta, qualifiers, quantization_scales, options, _epilog)
        everyone = _meeting.exchange(self._group, self._call, facts, attempt.error)
        self._facts = everyone[self._rank]
        self._key = f"{self._call} {everyone}"
        self._choose_place(everyone)
        kept = None if _epilog is None else _meeting.kept_plans(self._group).get(self._key)
        if kept is not None:  # all ranks gave the same arguments before, and so have equal plans
            self._problem: Problem = kept
            self._epilog = self._wanted
            return
        self._problem = self._settle(everyone)
        self._everyone = everyone
        if _epilog is not None:
            self._settle_result([record["epilog"] for record in everyone])

    # Arguments.

    def _read(self, a: Any, b: Any, c: Any, distributions: Any, alpha: Any, beta: Any, qualifiers: Any,
              quantization_scales: Any, options: Any, epilog: tuple[Any, Any, Any] | None) -> dict[str, Any]:
        """This rank's arguments for the other ranks."""
        given: MatmulOptions = read_options(MatmulOptions, options)
        self._logger, self._is_inplace = given.logger, bool(given.inplace) and c is not None
        operands = [wrap(value, name) for name, value in zip(_NAMES, (a, b, c)) if name != "c" or c is not None]
        self._operands = list(operands)
        first = operands[0].tensor
        self._check_operands(operands)
        of_c = operands[2].tensor.dtype if c is not None else None
        sums, result = given.dtypes_for(first.dtype, of_c)
        self._wants_amax, self._is_block = given.result_amax, given.block_scaling
        self._qualifiers = read_qualifiers(qualifiers, first.dtype.is_complex)
        if is_narrow(first.dtype) or is_fp4(first.dtype):
            self._check_narrow(operands)
        self._quantities = given_scales(quantization_scales)
        self._device = first.device
        check_scales(self._quantities, self._scaled(operands, result), self._blocks(operands), first.device)
        if not (first.dtype.is_floating_point or first.dtype.is_complex) and first.device.type != "cpu":
            raise TypeError(f"the operands have dtype {first.dtype} and lie on {first.device.type}; torch "
                            "multiplies matrices of integers on the CPU only")
        if c is not None and beta is None:
            raise ValueError("c is given, and beta is not; give both or none")
        beta = self._factor_of_c(beta, len(operands))
        if self._is_inplace:
            check_writable(operands[2], "c", ", or inplace=False")
        self._scales = _Scales(read_scale(alpha, 1, "alpha", sums), read_scale(beta, 0, "beta", sums))
        self._sides = self._read_sides(distributions, operands)
        facts = {"dtype": str(first.dtype), "dtype of b": str(operands[1].tensor.dtype), "result_type": str(result),
                 "quantization_scales": said_of(self._quantities), "result_amax": given.result_amax,
                 "block_scaling": given.block_scaling, "package": operands[0].package,
                 "device": first.device.type, "operands": list(_NAMES[:len(operands)]),
                 "alpha": repr(self._scales.alpha), "beta": repr(self._scales.beta),
                 "qualifiers": [list(item) for item in self._qualifiers], "sums": str(sums),
                 "grid": None if given.grid is None else list(given.grid), "panels": given.panels,
                 "inplace": given.inplace if c is not None else False,
                 "wires": host_with_wires(self._group), "of": [operand.facts() for operand in operands],
                 "global_shapes": [list(operand.given.shape) if operand.package == "DTensor" else None
                                   for operand in operands],
                 "distributions": [None if side is None else side.describe() for side in self._sides],
                 "requires_grad": [operand.tracked.requires_grad and (epilog is None or torch.is_grad_enabled())
                                   for operand in (operands if self._is_inplace else operands[:2])]}
        if given.inplace is None and c is not None:
            facts["overwrites"] = self._may_overwrite(operands, result, epilog)
        if epilog is not None:
            facts["epilog"] = self._read_epilog(*epilog, dtype=sums, result=result, package=operands[0].package)
        return facts

    def _factor_of_c(self, beta: Any, count: int) -> Any:
        """The caller's beta; None, with a warning, where the product has no c. count: of the operands."""
        if beta is None or count == 3:
            return beta
        (self._logger or logging.getLogger("shardwire")).warning(
            "%s: beta is %s, and the product has no c; beta is ignored", self._call, beta)
        return None

    @staticmethod
    def _may_overwrite(operands: Sequence[Operand], result: torch.dtype, epilog: Any) -> list[Any]:
        """Whether the result goes into c by default as far as this rank is concerned, and why c cannot be written."""
        learns = [operand.tracked for operand in operands]
        if epilog is not None and isinstance(epilog[1], Mapping):
            learns += [value for value in epilog[1].values() if isinstance(value, torch.Tensor)]
        tracks = epilog is None or torch.is_grad_enabled()
        if operands[2].tensor.dtype != result or (tracks and any(value.requires_grad for value in learns)):
            return [False, None]
        try:
            check_writable(operands[2], "c", ", or inplace=False")
        except ValueError as error:
            return [True, str(error)]
        return [True, None]

    def _choose_place(self, everyone: Sequence[dict[str, Any]]) -> None:
        """Whether the result goes into c where the caller did not say. The same on all ranks."""
        said: list[Any] = [record.get("overwrites") or [False, None] for record in everyone]
        if not all(may for may, _ in said):
            return
        for rank, (_, reason) in enumerate(said):
            if reason is not None:
                raise ValueError(f"{self._call}: rank {rank}: {reason}")
        self._is_inplace = True
        self._facts = {**self._facts, "requires_grad": [False] * 3}  # of later operands, too

    @staticmethod
    def _check_operands(operands: Sequence[Operand]) -> None:
        first = operands[0]
        for name, operand in zip(_NAMES, operands):
            if operand.tensor.dim() != 2:
                raise ValueError(f"{name} has {operand.tensor.dim()} dimensions; a product takes matrices")
            if operand.package != first.package:
                raise TypeError(f"{name} is of {operand.package}, a of {first.package}; give all of one package")
            if operand.tensor.device != first.tensor.device:
                raise ValueError(f"{name} lies on {operand.tensor.device}, a on {first.tensor.device}; give all on one "
                                 "device")
        if operands[1].tensor.dtype != first.tensor.dtype and not all(is_narrow(one.tensor.dtype)
                                                                      for one in operands[:2]):
            raise TypeError(f"b has dtype {operands[1].tensor.dtype}, a {first.tensor.dtype}; give both of one dtype")

    def _check_narrow(self, operands: Sequence[Operand]) -> None:
        """TypeError or ValueError for operands of FP8 or FP4 that cannot be multiplied."""
        for index, (name, operand) in enumerate(zip(_NAMES, operands)):
            if operand.requires_grad:
                raise TypeError(f"{name} requires grad, and a product of FP8 has no gradient; give a tensor without")
            if self._is_block and name != "c":
                reason = _block_scales.why_not(operand.tensor, self._axis(index) if is_fp4(operand.tensor.dtype)
                                               else None)
                if reason is not None:
                    raise ValueError(f"{name} {reason}")

    def _axis(self, index: int) -> int:
        """The dimension of the addends in a or b as stored."""
        return index if self._qualifiers[index].transpose else 1 - index

    def _scaled(self, operands: Sequence[Operand], result: torch.dtype) -> list[str]:
        """The matrices that need a scale."""
        dtypes = [operand.tensor.dtype for operand in operands]
        if not is_narrow(dtypes[0]) and not is_fp4(dtypes[0]):
            return []
        return ([name for name, dtype in zip(_NAMES, dtypes) if is_narrow(dtype) or is_fp4(dtype)]
                + ["d"] * (is_narrow(result) and not self._is_block))

    def _blocks(self, operands: Sequence[Operand]) -> dict[str, tuple[str, int]] | None:
        return {name: blocks_of(operand.tensor.numel(), operand.tensor.dtype)
                for name, operand in zip(_NAMES, operands)} if self._is_block else None

    def _read_sides(self, distributions: Any, operands: Sequence[Operand]) -> list[Distribution | None]:
        """The distributions of a, b and the result; None: every rank gets the whole result."""
        if distributions is None:
            distributions = (None, None, None)
        if isinstance(distributions, (str, Mapping)) or not isinstance(distributions, Sequence) or len(
                distributions) != 3:
            raise ValueError(f"distributions is {kind_of(distributions)}; give three: of a, of b, and of c and the "
                             "result")
        is_dtensor = operands[0].package == "DTensor"
        sides: list[Distribution | None] = []
        for index, side in enumerate(distributions):
            own = operands[min(index, len(operands) - 1)].given
            if is_dtensor and side is None and index < len(operands):
                side = Placements(own.placements, own.device_mesh)
            if side is None and index == 2:
                sides.append(None)
                continue
            sides.append(_ends.read_distribution(side, f"distributions[{index}]", self._ranks,
                                                 own.device_mesh if is_dtensor else None))
        if is_dtensor:
            target = sides[2]
            self._mesh = (operands[0].given.device_mesh if target is None
                          else _ends.result_mesh(target, is_made=not self._is_inplace))
        return sides

    def _read_epilog(self, kind: Any, inputs: Any, preferences: Any, dtype: torch.dtype, result: torch.dtype,
                     package: str) -> dict[str, Any]:
        """The epilog, which takes effect when the ranks have agreed (``_settle_result``)."""
        given: MatmulPlanPreferences = read_options(MatmulPlanPreferences, preferences)
        chosen = given.epilog or MatmulEpilogPreferences()
        self._wanted = read_epilog(kind, inputs, package, dtype.is_complex)._replace(
            aux=None if chosen.aux_type is None else read_dtype(chosen.aux_type, "aux_type"),
            wants_amax=chosen.aux_amax)
        check_aux(self._wanted, result, bool(self._quantities))
        self._check_gradients(self._wanted, self._operands)
        target = self._sides[2]
        if package == "DTensor" and target is not None and self._is_inplace and "AUX" in self._wanted.kind.name:
            _ends.result_mesh(target)  # the auxiliary output is a DTensor, also where the result is c
        return self._wanted.facts

    def _check_gradients(self, epilog: Epilog, operands: Sequence[Operand | None]) -> None:
        """ValueError where a gradient that the caller expects would be lost, or would go into the graph of c."""
        if not torch.is_grad_enabled():
            return
        c = operands[2] if len(operands) == 3 else None
        if epilog.sums_all and c is not None and c.requires_grad:
            raise ValueError("c requires grad, and ALLREDUCE adds c over the ranks without a gradient; give c.detach()")
        for name, value in epilog.inputs.items():
            if self._is_inplace and value.requires_grad:
                raise ValueError(f"epilog_inputs[{name!r}] requires grad, and inplace overwrites c, which has no "
                                 f"gradient; give {name}.detach(), or no inplace")

    # Settling: pure, so an error is raised on all ranks alike.

    def _settle(self, facts: Sequence[dict[str, Any]]) -> Problem:
        call = self._call
        _ends.agree(facts, call, ("dtype", "dtype of b", "operands", "package", "device", "alpha", "beta", "qualifiers",
                                  "result_type", "quantization_scales", "result_amax", "block_scaling", "sums", "grid",
                                  "panels", "inplace", "global_shapes", "requires_grad"))
        mine = facts[0]
        ends = [self._end_of(index, facts) for index in range(2)]
        if mine["dtype"] == f"torch.{FP4}":
            ends = [unpacked(end, self._axis(index)) for index, end in enumerate(ends)]
        a, b = (transposed(end) if item.transpose else end for end, item in zip(ends, self._qualifiers))
        if a.global_shape[1] != b.global_shape[0]:
            said = [f"{name} is {end.global_shape[0]} x {end.global_shape[1]}{' transposed' * item.transpose}"
                    for name, end, item in zip(_NAMES, ends, self._qualifiers)]
            raise ValueError(f"{call}: {' and '.join(said)}; the {a.global_shape[1]} columns of the first and the "
                             f"{b.global_shape[0]} rows of the second must be as many")
        size = len(self._ranks)
        grid = mine["grid"]
        if grid is not None and grid[0] * grid[1] * grid[2] != size:
            raise ValueError(f"{call}: grid is {grid}, and there are {size} ranks; give three numbers whose product is "
                             "the number of ranks")
        settings = Settings(None if grid is None else (grid[0], grid[1], grid[2]), mine["panels"],
                            are_between_hosts([record["wires"] for record in facts]))
        types = Types(*(read_dtype(mine[key].partition(".")[2], key)
                        for key in ("dtype", "dtype of b", "sums", "result_type")))
        if mine["block_scaling"]:
            types = types._replace(a=torch.bfloat16, b=torch.bfloat16)
        return Problem(self._rank, a, b, types, settings, mine["package"] != "DTensor", call)

    def _end_of(self, index: int, facts: Sequence[dict[str, Any]]) -> _ends.End:
        """The end of a or b as stored."""
        call, name = self._call, _NAMES[index]
        what = f"the distribution of {name}"
        own = self._sides[index]
        assert own is not None
        side = _ends.of_matrix(_ends.resolve(call, what, own, [record["distributions"][index] for record in facts],
                                             len(self._ranks)))
        if side.ndim not in (None, 2):
            raise ValueError(f"{call}: {what} has {side.ndim} dimensions; a product takes matrices")
        return _ends.stored_end(call, name, side, [record["of"][index] for record in facts],
                                facts[0]["global_shapes"][index], len(self._ranks))

    def _settle_result(self, facts: Sequence[dict[str, Any]]) -> None:
        """Checks the epilog and c of all ranks, and compiles. Collective."""
        call, size, dims, problem = self._call, len(self._ranks), self._problem.shape, self._problem
        epilog = self._wanted
        _ends.agree(facts, call, ("epilog", "epilog_inputs", "aux_scale", "aux_type", "aux_amax"))
        described = [record["distributions"][2] for record in self._everyone]
        if any((item is None) != (described[0] is None) for item in described):
            raise _ends.MismatchError(f"{call}: the distribution of the result is given on some ranks only; give it on "
                                      "all ranks")
        own = self._sides[2]
        if epilog.sums_all:
            mesh = self._mesh  # of DTensors; else all ranks, whatever mesh the caller's placements have
            layers = 1 if mesh is None else len(own.placements) if isinstance(own, Placements) else mesh.ndim
            side: Distribution = Placements([Replicate()] * layers, mesh).grouped(self._ranks)
        elif own is None:
            raise ValueError(f"{call}: distributions[2] is None; give the distribution of the result")
        else:
            side = _ends.of_matrix(_ends.resolve(call, "the distribution of the result", own, described, size))
        if side.ndim not in (None, 2):
            raise ValueError(f"{call}: the distribution of the result has {side.ndim} dimensions; a product is a "
                             "matrix")
        end = _ends.make_end(call, "the distribution of the result", side, dims, size, overlaps=True)
        if len(self._everyone[0]["of"]) == 3:
            of = [record["of"][2] for record in self._everyone]
            _ends.check_shapes(call, "c", end, [record["shape"] for record in of])
            _ends.check_pieces(call, "c", end, [record["pieces"] for record in of])
        for rank, record in enumerate(facts):
            check_inputs(call, epilog, rank, record["inputs"], end.shares[rank].local_shape, self._floats())
            if self._is_block and is_narrow(problem.result) and any(
                    extent % _block_scales.TILE for extent in end.shares[rank].local_shape):
                raise ValueError(f"{call}: the result has local shape {end.shares[rank].local_shape} on rank {rank}; "
                                 f"with block scales both extents are multiples of {_block_scales.TILE}")
        self._end, self._epilog = end, epilog
        self._compile()

    def _floats(self) -> list[str]:
        """The dtypes that an epilog's input may have."""
        problem = self._problem
        taken = [problem.sums, problem.result] if not is_narrow(problem.result) else [problem.sums]
        narrow = [torch.bfloat16, torch.float16] if self._quantities else []
        return [str(dtype) for dtype in (*taken, *narrow)]

    def _compile(self) -> None:
        is_plain = (self._epilog.kind <= MatmulEpilog.ALLREDUCE and len(self._operands) == 2
                    and self._scales.alpha == 1 and not self._quantities)
        adds_c = self._epilog.sums_all and len(self._operands) == 3
        self._problem.compile(
            self._group, self._end, self._epilog.kind, not is_plain,
            read_dtype(self._facts["of"][2]["dtype"].partition(".")[2], "c") if adds_c else None)
        self._log(self._logger, self)

    # Operations.

    def plan(self, *, preferences: Any = None, epilog: Any = None, epilog_inputs: Any = None,
             stream: Any = None) -> None:
        """Chooses what moves, and compiles the moves. A further call may give another epilog. Collective.

        epilog: a MatmulEpilog. epilog_inputs: a dict: "bias" (an entry for each row of the local result), "relu_aux" or
            "gelu_aux" (from an earlier product). preferences: MatmulPlanPreferences or a dict.
        """
        self._check_alive()
        facts: dict[str, Any] = {}
        with Attempt() as attempt:
            facts = self._read_epilog(epilog, epilog_inputs, preferences, self._problem.sums, self._problem.result,
                                      self._facts["package"])
        self._settle_result(_meeting.exchange(self._group, f"{self._call}.plan", facts, attempt.error))

    def execute(self, *, release_workspace: bool = False, stream: Any = None) -> Any:
        """This rank's part of the result; with an epilog that has auxiliary outputs, a pair: the result, and a dict of
        these outputs. Collective.

        The result is c, or else new memory: in Fortran order where a and b are in Fortran order, else in C order.
        release_workspace: frees the memory for parts that travel.
        """
        problem = self._planned()
        operands = [None if operand is None else wrap(operand.given) for operand in self._operands]
        if None in operands:
            raise InvalidMatmulState("execute() needs operands, and reset_operands() took them away; give others by "
                                     "reset_operands(...)")
        a, b, *rest = [operand.tracked for operand in operands if operand is not None]
        is_fortran = all(tensor.t().is_contiguous() for tensor in (a, b))
        order = "F" if is_fortran and not (a.is_contiguous() and b.is_contiguous()) else "C"
        self._check_gradients(self._epilog, operands)
        if self._is_inplace and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (a, b, *rest)):
            raise ValueError("inplace overwrites c, which has no gradient; give tensors without grad, or no inplace")
        rounding = Rounding(problem.result, scales=self._quantities, is_block=self._is_block,
                            wants_amax=self._wants_amax, sums=problem.sums, aux=self._epilog.aux,
                            aux_scale=self._epilog.aux_scale, wants_aux_amax=self._epilog.wants_amax)
        alpha, beta = self._scales
        work = Work(reads=alpha != 0, releases=release_workspace, order=order)
        if self._quantities:
            a, b = (dequantized(tensor, self._quantities[name], self._axis(index))
                    for index, (tensor, name) in enumerate(zip((a, b), _NAMES)))
            alpha, beta = alpha * rounding.factor("a", "b"), beta * rounding.factor("c")
        a, b = (as_multiplied(tensor, item) for tensor, item in zip((a, b), self._qualifiers))
        value, aux = problem.run(self._group, a, b, rest[0] if rest else None, alpha, beta, self._epilog, rounding,
                                 work)
        if self._is_inplace:
            value = rest[0].copy_(value)
        assert problem.c is not None
        package, size = self._facts["package"], len(self._ranks)

        def given(tensor: torch.Tensor) -> Any:
            if tensor.dim() == 1 and package == "DTensor":
                return tensor
            assert problem.c is not None
            return unwrap(tensor, package, self._mesh, problem.c.distribution, problem.shape, size)
        result = operands[2].given if self._is_inplace and operands[2] is not None else given(value)
        return (result, {name: given(tensor) for name, tensor in aux.items()}) if aux else result

    def reset_operands(self, a: Any = None, b: Any = None, c: Any = None, *, alpha: Any = None, beta: Any = None,
                       quantization_scales: Any = None, epilog_inputs: Any = None, stream: Any = None) -> None:
        """Takes other operands of the same shapes, dtype, package and device, and other factors and scales; what is
        None stays.
        Without arguments: as release_operands. Collective: an error on one rank is raised on all ranks, and everything
        stays as it was."""
        self._check_alive()
        values = (a, b, c)
        fresh = None
        with Attempt() as attempt:
            fresh = self._fitting(values, alpha, beta, epilog_inputs, quantization_scales)
        said = ([name for name, value in zip(_NAMES, values) if value is not None]
                + ["epilog_inputs"] * (epilog_inputs is not None))
        facts = {"operands": said, "alpha": repr(alpha), "beta": repr(beta),
                 "aux_scale": None if fresh is None else fresh[2].facts["aux_scale"],
                 "quantization_scales": {} if fresh is None else said_of(fresh[3])}
        call = f"{self._call}.reset_operands"
        _ends.agree(_meeting.exchange(self._group, call, facts, attempt.error), call, tuple(facts))
        assert fresh is not None
        if said or any(value is not None for value in (alpha, beta, quantization_scales)):
            self._take(fresh)
        else:
            self.release_operands()

    def reset_operands_unchecked(self, a: Any = None, b: Any = None, c: Any = None, *, alpha: Any = None,
                                 beta: Any = None, quantization_scales: Any = None, epilog_inputs: Any = None,
                                 stream: Any = None) -> None:
        """As reset_operands, without communication, except that the first alpha other than 1 may compile other moves:
        an error is raised on this rank only, and the other ranks' execute waits for this rank."""
        self._check_alive()
        self._take(self._fitting((a, b, c), alpha, beta, epilog_inputs, quantization_scales))

    def _take(self, fresh: tuple[list[Operand | None], _Scales, Epilog, dict[str, Any]]) -> None:
        self._operands, self._scales, self._epilog, self._quantities = fresh
        if self._problem.product is not None and not self._problem.is_wide and self._scales.alpha != 1:
            self._compile()

    def release_operands(self) -> None:
        """Drops the operands, without communication."""
        self._check_alive()
        self._operands = [None] * len(self._operands)

    def _fitting(self, values: Sequence[Any], alpha: Any, beta: Any, inputs: Any,
                 quantities: Any) -> tuple[list[Operand | None], _Scales, Epilog, dict[str, Any]]:
        if values[2] is not None and len(self._operands) == 2:
            raise ValueError("c is given, and this product has no c; make another Matmul")
        beta = self._factor_of_c(beta, len(self._operands))
        operands = list(self._operands)
        for index, value in enumerate(values[:len(operands)]):
            if value is None:
                continue
            fresh = wrap(value, _NAMES[index])
            fresh.check_like(_NAMES[index], self._facts["of"][index])
            if index == 2 and self._is_inplace:
                check_writable(fresh, "c", ", or inplace=False")
            known = self._facts["requires_grad"]
            if index < len(known) and fresh.tracked.requires_grad != known[index]:
                raise ValueError(f"{_NAMES[index]} {'required no' if fresh.tracked.requires_grad else 'required'} "
                                 "grad, and the new one differs; give a tensor like the former one")
            operands[index] = fresh
        sums, scales = self._problem.sums, self._scales
        scales = _Scales(read_scale(alpha, scales.alpha, "alpha", sums), read_scale(beta, scales.beta, "beta", sums))
        epilog = self._epilog
        if inputs is not None:
            fresh_epilog = read_epilog(epilog.kind, inputs, self._facts["package"], sums.is_complex)
            if fresh_epilog.facts["inputs"] != epilog.facts["inputs"]:
                raise ValueError(f"the epilog inputs were {epilog.facts['inputs']}, the new ones are "
                                 f"{fresh_epilog.facts['inputs']}")
            epilog = fresh_epilog._replace(aux=epilog.aux, wants_amax=epilog.wants_amax)
            check_aux(epilog, self._problem.result, bool(self._quantities))
        self._check_gradients(epilog, operands)
        merged = {**self._quantities, **given_scales(quantities)}
        blocks = {name: blocks_of(math.prod(of["shape"]), read_dtype(of["dtype"].partition(".")[2], name))
                  for name, of in zip(_NAMES, self._facts["of"])}
        check_scales(merged, list(self._quantities), blocks if self._is_block else None, self._device)
        return operands, scales, epilog, merged

    def explain(self) -> str:
        """The algorithm, and the bytes between each pair of ranks, as text. After plan()."""
        product = self._planned().product
        assert product is not None
        return product.explain()

    def free(self) -> None:
        """Frees plan and operands; the object cannot be used any more. A second call does nothing."""
        if not self._freed:
            self._freed = True
            self._operands = []
            del self._problem

    def _planned(self) -> Problem:
        self._check_alive()
        if self._problem.product is None:
            raise InvalidMatmulState("this comes after plan()")
        return self._problem


def matmul(a: Any, b: Any, /, c: Any = None, *, distributions: Sequence[Any] | None = None, alpha: Any = None,
           beta: Any = None, epilog: Any = None, epilog_inputs: Any = None, qualifiers: Any = None,
           quantization_scales: Any = None, options: Any = None, preferences: Any = None, stream: Any = None,
           group: Any = None) -> Any:
    """This rank's part of F(alpha op(A) @ op(B) + beta C). Arguments and errors as in :class:`Matmul` and
    :meth:`Matmul.plan`. Collective.

    Plans are kept (8 per group, with their memory, until finalize): a further call with equal arguments on all ranks
    exchanges a few hundred bytes and multiplies.
    """
    one = Matmul(a, b, c, distributions=distributions, alpha=alpha, beta=beta, qualifiers=qualifiers,
                 quantization_scales=quantization_scales, options=options, group=group,
                 _epilog=(epilog, epilog_inputs, preferences))
    _meeting.keep_plan(one._group, one._key, one._problem)
    return one.execute()


def as_multiplied(tensor: torch.Tensor, qualifier: Qualifier) -> torch.Tensor:
    """The view of a stored matrix that is multiplied."""
    view = tensor.t() if qualifier.transpose else tensor
    return view.conj() if qualifier.conjugate else view


def read_scale(value: Any, default: Any, what: str, dtype: torch.dtype) -> Any:
    """A factor as Python's number. TypeError or ValueError where it does not fit ``dtype``."""
    if value is None:
        return default
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{what} requires grad, and no gradient goes to {what}; give {what}.detach(), or multiply the "
                         "result")
    try:
        if isinstance(value, str):
            raise TypeError
        number = complex(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} is {kind_of(value)}; give a number") from None
    if dtype.is_complex:
        return number
    if number.imag:
        raise ValueError(f"{what} is {value}, and the operands are real; give a real number")
    if dtype.is_floating_point:
        return number.real
    if not number.real.is_integer():
        raise ValueError(f"{what} is {value}, and the operands are integers; give an integer")
    return int(getattr(value, "real", number.real))
