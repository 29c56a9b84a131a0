"""Epilogs: the function F of F(alpha A @ B + beta C), as torch's operations on the local part of the result.

A bias has an entry for each row of the local part. So nothing moves, and torch differentiates everything here. Sums
along rows or columns of the whole matrix (BGRADA, BGRADB, DRELU_BGRAD, DGELU_BGRAD) are products with a vector of ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..._integers import as_integer
from ...compiler.layout import kind_of
from .._operand import wrap
from ._options import MatmulEpilog
from ._quantization import Rounding, is_narrow

_AUX_SCALE = "aux_quantization_scale"


class Epilog(NamedTuple):
    """kind: the caller's. inputs: the local parts of the epilog's inputs by name. aux, aux_scale: dtype and scale of an
    auxiliary output; None where the caller gave none. wants_amax: whether its largest magnitude is returned."""

    kind: MatmulEpilog
    inputs: dict[str, torch.Tensor]
    aux_scale: Any = None
    aux: torch.dtype | None = None
    wants_amax: bool = False

    @property
    def sums_all(self) -> bool:
        """Whether every rank gets the whole result."""
        return self.kind == MatmulEpilog.ALLREDUCE

    @property
    def facts(self) -> dict[str, Any]:
        """The description for the other ranks."""
        return {"epilog": self.kind.name, "epilog_inputs": sorted(self.inputs),
                "aux_scale": None if self.aux_scale is None else repr(float(self.aux_scale)),
                "aux_type": str(self.aux), "aux_amax": self.wants_amax,
                "inputs": {name: [list(value.shape), str(value.dtype), value.device.type]
                           for name, value in self.inputs.items()}}


def needed(kind: MatmulEpilog) -> str | None:
    """The name of an epilog's input."""
    if "BIAS" in kind.name:
        return "bias"
    return {"DRELU": "relu_aux", "DGELU": "gelu_aux"}.get(kind.name.partition("_")[0])


def vector(kind: MatmulEpilog) -> str | None:
    """The name of an epilog's vector of sums."""
    return {"BGRADA": "bgrada", "BGRADB": "bgradb", "DRELU_BGRAD": "drelu_bgrad",
            "DGELU_BGRAD": "dgelu_bgrad"}.get(kind.name)


def read_epilog(kind: Any, inputs: Any, package: str, is_complex: bool) -> Epilog:
    """The caller's epilog. TypeError or ValueError for another value, and for inputs that the epilog does not take."""
    if kind is None:
        kind = MatmulEpilog.DEFAULT
    number = as_integer(kind)
    if number is None:
        raise TypeError(f"epilog is {kind_of(kind)}; give a MatmulEpilog")
    kind = MatmulEpilog(number)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise TypeError(f"epilog_inputs is {kind_of(inputs)}; give a dict")
    inputs = dict(inputs or {})
    aux_scale = inputs.pop(_AUX_SCALE, None)
    names, wanted = sorted(inputs), [needed(kind)] if needed(kind) else []
    if names != wanted:
        raise ValueError(f"epilog_inputs has {names}; {kind.name} takes {wanted}")
    if is_complex and ("RELU" in kind.name or "GELU" in kind.name):
        raise ValueError(f"{kind.name} is for real numbers, and the operands are complex")
    read = {}
    for name, value in inputs.items():
        operand = wrap(value, f"epilog_inputs[{name!r}]")
        if operand.package != package:
            raise TypeError(f"epilog_inputs[{name!r}] is of {operand.package}, the operands of {package}; give both of "
                            "one package")
        read[name] = operand.tracked
    return Epilog(kind, read, aux_scale)


def check_inputs(call: str, epilog: Epilog, rank: int, inputs: Mapping[str, Any], shape: tuple[int, ...],
                 floats: Sequence[str]) -> None:
    """ValueError or TypeError where an input of ``rank`` does not fit the local shape of its result. floats: the dtypes
    that an input may have."""
    for name, (given, dtype, _) in inputs.items():
        if name == "bias":
            shapes, what = [[shape[0]], [shape[0], 1]], "an entry for each row of the local result"
        else:
            shapes, what = [list(shape)], "the shape of the local result"
        dtypes = ["torch.bool"] if name == "relu_aux" else floats
        if given not in shapes:
            raise ValueError(f"{call}: epilog_inputs[{name!r}] has shape {given} on rank {rank}; it has {what}, here "
                             f"{shapes[0]}")
        if dtype not in dtypes:
            raise TypeError(f"{call}: epilog_inputs[{name!r}] has dtype {dtype} on rank {rank}; {epilog.kind.name} "
                            f"takes {' or '.join(dict.fromkeys(dtypes))}")


def check_aux(epilog: Epilog, result: torch.dtype, takes_narrow: bool) -> None:
    """ValueError where the epilog or its auxiliary output does not fit. result: the dtype of the result. takes_narrow:
    the operands are of FP8."""
    name, aux = epilog.kind.name, epilog.aux
    if takes_narrow and (vector(epilog.kind) is not None or name.startswith(("DRELU", "DGELU"))):
        raise ValueError(f"{name} is not for operands of FP8")
    if not takes_narrow and aux not in (None, result):
        raise ValueError(f"aux_type is {aux}; an auxiliary output has the dtype of the result, {result}")
    if is_narrow(aux) != (epilog.aux_scale is not None):
        raise ValueError(f"aux_type is {aux}, and epilog_inputs has {'no ' * (epilog.aux_scale is None)}{_AUX_SCALE}; "
                         "give both or none")
    if is_narrow(aux) and not name.startswith("GELU_AUX"):
        raise ValueError(f"aux_type is {aux}, and {name} has no auxiliary output of FP8; GELU_AUX has one")
    if epilog.wants_amax and not is_narrow(aux):
        raise ValueError(f"aux_amax is set, and aux_type is {aux}; give an aux_type of FP8")


def apply(epilog: Epilog, value: torch.Tensor, rounding: Rounding) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The rounded result, and the auxiliary outputs that concern the local part alone."""
    name = epilog.kind.name
    aux: dict[str, torch.Tensor] = {}
    if "bias" in epilog.inputs:
        value = value + epilog.inputs["bias"].reshape(-1, 1).to(value.dtype)
    if name.startswith("RELU"):
        if "AUX" in name:
            aux["relu_aux"] = value > 0
        value = value.relu()
    elif name.startswith("GELU"):
        if "AUX" in name:
            rounding.auxiliary("gelu_aux", value.detach(), aux)
        value = torch.nn.functional.gelu(value, approximate="tanh")
    elif name.startswith("DRELU"):
        value = value * epilog.inputs["relu_aux"]
    elif name.startswith("DGELU"):
        value = torch.ops.aten.gelu_backward(value, epilog.inputs["gelu_aux"].to(value.dtype), approximate="tanh")
    return rounding.result(value, aux), aux
