"""Options, enumerations and qualifiers of matrix products, by nvmath's names and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from ..._integers import as_count
from ...compiler.layout import kind_of
from ..reshape import check_blocking


class MatmulEpilog(IntEnum):
    """The function F of F(alpha A @ B + beta C). The numbers are cuBLASMp's."""

    DEFAULT = 0
    ALLREDUCE = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36
    RELU_AUX = 130
    RELU_AUX_BIAS = 134
    DRELU = 136
    DRELU_BGRAD = 152
    GELU_AUX = 160
    GELU_AUX_BIAS = 164
    DGELU = 192
    DGELU_BGRAD = 208
    BGRADA = 256
    BGRADB = 512


class MatmulAlgoType(IntEnum):
    """Hints for cuBLASMp, accepted for programs written for nvmath."""

    DEFAULT = 0
    SPLIT_P2P = 1
    SPLIT_MULTICAST = 2
    ATOMIC_P2P = 3
    ATOMIC_MULTICAST = 4
    NO_OVERLAP = 5


class MatmulComputeType(IntEnum):
    """The precision of sums, by cuBLAS's numbers. Sums here are never less precise than the type says."""

    COMPUTE_16F = 64
    COMPUTE_16F_PEDANTIC = 65
    COMPUTE_32F = 68
    COMPUTE_32F_PEDANTIC = 69
    COMPUTE_64F = 70
    COMPUTE_64F_PEDANTIC = 71
    COMPUTE_32I = 72
    COMPUTE_32I_PEDANTIC = 73
    COMPUTE_32F_FAST_16F = 74
    COMPUTE_32F_FAST_16BF = 75
    COMPUTE_32F_FAST_TF32 = 77
    COMPUTE_32F_EMULATED_16BFX9 = 78
    COMPUTE_64F_EMULATED_FIXEDPOINT = 79


FP4 = "float4_e2m1fn_x2"
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_SINGLE = ("float32", "complex64", "float16", "bfloat16", *_FP8, FP4)
# Compute type -> dtypes of operands; the types without a row are for float32 and complex64.
_COMPUTES = {64: ("float16",), 65: ("float16",), 68: _SINGLE, 69: _SINGLE, 72: ("int32",), 73: ("int32",),
             **dict.fromkeys((70, 71, 79), ("float64", "complex128"))}
# dtype of the operands -> dtype of the sums.
SUMS = {"float16": torch.float32, "bfloat16": torch.float32, "float32": torch.float32, "float64": torch.float64,
        "complex64": torch.complex64, "complex128": torch.complex128,
        **dict.fromkeys((*_FP8, FP4), torch.float32),
        **{name: getattr(torch, name) for name in ("int8", "uint8", "int16", "int32", "int64")}}
_CUDA_NAMES = {"CUDA_R_16F": "float16", "CUDA_R_16BF": "bfloat16", "CUDA_R_32F": "float32", "CUDA_R_64F": "float64",
               "CUDA_C_32F": "complex64", "CUDA_C_64F": "complex128", "CUDA_R_8F_E4M3": _FP8[0],
               "CUDA_R_8F_E5M2": _FP8[1], "CUDA_R_4F_E2M1": FP4}


@dataclass
class MatmulOptions:
    """Options of a product.

    compute_type: a MatmulComputeType that fits the operands' dtype, or None. Sums of float16, bfloat16 and FP8 are
        computed in float32, other sums in the operands' dtype.
    scale_type: the dtype of alpha and beta: that of the sums, or None. result_type: the dtype of the result; None: C's,
        else A's. A dtype is a torch.dtype, numpy's, a name, or a CudaDataType of nvmath.
    inplace: the result is written to c, where c is given, and c is returned. None: as True, except where an operand or
        a bias requires grad, or c has another dtype than the result: then the result is new memory.
    result_amax, block_scaling: for operands of FP8. With result_amax the product also returns "result_amax", the
        largest magnitude of this rank's part before scaling and rounding. With block_scaling each block of 32 elements
        has a scale (MXFP8), and a result of FP8 comes with its scales, "d_out_scale". Operands of FP4 need
        block_scaling, with blocks of 16 elements (NVFP4), and a result_type or c.
    algo_type, sm_count_communication: hints for GPUs, checked and not used.
    logger: of Python's logging; plan() writes the plan there, at level INFO, and a call the warning that beta is
        ignored. None: the warning goes to the logger "shardwire". blocking: accepted for programs written for nvmath;
        the result is complete when a call returns.
    grid: three numbers whose product is the number of ranks: into how many parts the rows of the result, the columns
        and the addends are cut; None: as few bytes as possible move. panels: the number of parts in which factors
        travel while others are multiplied; None: by size and transport. Both equal on all ranks.
    """

    inplace: bool | None = None
    compute_type: int | None = None
    scale_type: Any = None
    result_type: Any = None
    algo_type: int | None = None
    result_amax: bool = False
    block_scaling: bool = False
    sm_count_communication: int | None = None
    logger: Any = None
    blocking: Any = "auto"
    grid: Sequence[int] | None = None
    panels: int | None = None

    def check(self) -> None:
        """ValueError for an invalid option. Called by the call that takes the options, on all ranks alike: an error at
        the construction of the options would leave the other ranks waiting."""
        for name in ("inplace", "result_amax", "block_scaling"):
            if not isinstance(getattr(self, name), bool) and not (name == "inplace" and self.inplace is None):
                raise TypeError(f"{name} is {kind_of(getattr(self, name))}; give True or False")
        if self.compute_type is not None:
            MatmulComputeType(self.compute_type)
        if self.algo_type is not None:
            MatmulAlgoType(self.algo_type)
        for name in ("sm_count_communication", "panels"):
            setattr(self, name, read_count(getattr(self, name), name))
        if self.grid is not None:
            given = tuple(self.grid)
            parts = [number for each in given if (number := as_count(each, 1)) is not None]
            if not len(parts) == len(given) == 3:
                raise ValueError(f"grid is {kind_of(self.grid)}; give three numbers from 1: parts of the rows, of the "
                                 "columns and of the addends")
            self.grid = parts
        check_blocking(self.blocking)

    def dtypes_for(self, dtype: torch.dtype, c: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
        """The dtypes of sums and result for an A of ``dtype``. TypeError or ValueError where there are none."""
        name = str(dtype).partition(".")[2]
        if name not in SUMS:
            raise TypeError(f"the operands have dtype {dtype}; a product takes {', '.join(SUMS)}")
        sums = SUMS[name]
        if self.compute_type is not None and name not in _COMPUTES.get(self.compute_type, ("float32", "complex64")):
            raise ValueError(f"compute_type is {MatmulComputeType(self.compute_type).name}, which is not for operands "
                             f"of {dtype}")
        if self.scale_type is not None and read_dtype(self.scale_type, "scale_type") != sums:
            raise ValueError(f"scale_type is {kind_of(self.scale_type)}; alpha and beta of operands of {dtype} have "
                             f"{sums}")
        wanted = read_dtype(self.result_type, "result_type") if self.result_type is not None else c or dtype
        if name in (*_FP8, FP4):
            self._check_narrow(name, wanted, c)
            return sums, wanted
        for option in ("result_amax", "block_scaling"):
            if getattr(self, option):
                raise ValueError(f"{option} is set, which is for operands of FP8, and these have {dtype}")
        if c is not None and c != wanted:
            raise TypeError(f"c has dtype {c}, and result_type is {wanted}; both are of one array")
        if wanted not in (dtype, sums):
            raise TypeError(f"the result would have dtype {wanted}; for operands of {dtype} the result has {dtype}"
                            + (f" or {sums}" if sums != dtype else ""))
        return sums, wanted

    def _check_narrow(self, name: str, result: torch.dtype, c: torch.dtype | None) -> None:
        """TypeError or ValueError for a result and a C that operands of FP8, or FP4, cannot have."""
        if name == FP4 and not self.block_scaling:
            raise ValueError(f"the operands have dtype torch.{FP4}, which needs the option block_scaling")
        taken = (*(_FP8 if name in _FP8 else ()), "float16", "bfloat16", "float32")
        for dtype, what in ((result, "the result would have"), (c, "c has")):
            if dtype is not None and str(dtype).partition(".")[2] not in taken:
                raise TypeError(f"{what} dtype {dtype}; for operands of torch.{name} it has {', '.join(taken)}")
        if self.inplace and c is not None and c != result:
            raise TypeError(f"inplace writes the result to c, which has dtype {c}, and result_type is {result}")
        if self.block_scaling and c is not None and str(c).partition(".")[2] in _FP8:
            raise TypeError(f"c has dtype {c}; with block_scaling it has float16, bfloat16 or float32")


@dataclass
class MatmulEpilogPreferences:
    """aux_type: the dtype of "gelu_aux": that of the result, or None; for operands of FP8 also a dtype of FP8, which
    needs "aux_quantization_scale" among the epilog's inputs. None: that of the result, or float32 where the result is
    of FP8. aux_amax: an auxiliary output of FP8 comes with its largest magnitude before scaling, "gelu_aux_amax"."""

    aux_type: Any = None
    aux_amax: bool = False


@dataclass
class MatmulPlanPreferences:
    """epilog: a MatmulEpilogPreferences, a dict of its fields, or None."""

    epilog: Any = None

    def check(self) -> None:
        """TypeError or ValueError for an invalid preference."""
        given = self.epilog
        if given is not None and not isinstance(given, (MatmulEpilogPreferences, Mapping)):
            raise TypeError(f"preferences.epilog is {kind_of(given)}; give a MatmulEpilogPreferences or a dict")
        if isinstance(given, Mapping):
            self.epilog = MatmulEpilogPreferences(**given)


class Qualifier(NamedTuple):
    """How a stored matrix enters the product."""

    transpose: bool = False
    conjugate: bool = False


def read_qualifiers(qualifiers: Any, is_complex: bool) -> list[Qualifier]:
    """Of A and B. ``qualifiers``: None, or for A, B and C a dict each, or an array of matrix_qualifiers_dtype."""
    if qualifiers is None:
        return [Qualifier(), Qualifier()]
    if isinstance(qualifiers, (str, Mapping)) or not hasattr(qualifiers, "__len__") or len(qualifiers) != 3:
        raise ValueError(f"qualifiers is {kind_of(qualifiers)}; give an array of matrix_qualifiers_dtype with three "
                         "entries, for a, b and c")
    names = ("is_transpose", "is_conjugate")
    try:
        read = [Qualifier(*(bool(item.get(name, False) if isinstance(item, Mapping) else item[name])
                            for name in names)) for item in qualifiers]
    except (IndexError, KeyError, TypeError, ValueError):
        raise ValueError("qualifiers has an entry without is_transpose and is_conjugate; give an array of "
                         "matrix_qualifiers_dtype") from None
    if any(read[2]):
        raise ValueError("qualifiers[2] is set, and c is added as stored; leave the qualifiers of c at 0")
    if not is_complex and any(item.conjugate for item in read):
        raise ValueError("a qualifier says is_conjugate, and the operands are real")
    return read[:2]


def read_dtype(value: Any, what: str) -> torch.dtype:
    """A torch.dtype of torch's, numpy's or CUDA's name of a dtype."""
    if isinstance(value, torch.dtype):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", ""))
    found = getattr(torch, _CUDA_NAMES.get(str(name), str(name)), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{what} is {kind_of(value)}; give a dtype")
    return found


def read_count(value: Any, what: str) -> int | None:
    """None, or a number from 1 as an int. ValueError for another value."""
    number = None if value is None else as_count(value, 1)
    if number is None and value is not None:
        raise ValueError(f"{what} is {kind_of(value)}; give a number from 1, or None")
    return number


def __getattr__(name: str) -> Any:
    if name == "matrix_qualifiers_dtype":  # numpy is imported only by programs that name the dtype
        import numpy
        return numpy.dtype([("structure", object), ("is_transpose", "<i1"), ("is_conjugate", "<i1")])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
