"""Epilogs: the function F of F(alpha A @ B + beta C), as torch's operations on the local part of the result.

A bias has an entry for each row of the local part. So nothing moves, and torch differentiates everything here. Sums
along rows or columns of the whole matrix (BGRADA, BGRADB, DRELU_BGRAD, DGELU_BGRAD) are products with a vector of ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ...compiler.layout import kind_of
from .._operand import wrap
from ._options import MatmulEpilog


class Epilog(NamedTuple):
    """kind: the caller's. inputs: the local parts of the epilog's inputs by name."""

    kind: MatmulEpilog
    inputs: dict[str, torch.Tensor]

    @property
    def sums_all(self) -> bool:
        """Whether every rank gets the whole result."""
        return self.kind == MatmulEpilog.ALLREDUCE

    @property
    def facts(self) -> dict[str, Any]:
        """The description for the other ranks."""
        return {"epilog": self.kind.name, "epilog_inputs": sorted(self.inputs),
                "inputs": {name: [list(value.shape), str(value.dtype), value.device.type]
                           for name, value in self.inputs.items()}}


def needed(kind: MatmulEpilog) -> str | None:
    """The name of the input that an epilog needs."""
    if "BIAS" in kind.name:
        return "bias"
    return {"DRELU": "relu_aux", "DGELU": "gelu_aux"}.get(kind.name.partition("_")[0])


def vector(kind: MatmulEpilog) -> str | None:
    """The name of the vector of sums that an epilog returns."""
    return {"BGRADA": "bgrada", "BGRADB": "bgradb", "DRELU_BGRAD": "drelu_bgrad",
            "DGELU_BGRAD": "dgelu_bgrad"}.get(kind.name)


def read_epilog(kind: Any, inputs: Any, package: str, is_complex: bool) -> Epilog:
    """The caller's epilog. TypeError or ValueError for another value, and for inputs that the epilog does not take."""
    if kind is None:
        kind = MatmulEpilog.DEFAULT
    if isinstance(kind, bool) or not isinstance(kind, int):
        raise TypeError(f"epilog is {kind_of(kind)}; give a MatmulEpilog")
    kind = MatmulEpilog(kind)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise TypeError(f"epilog_inputs is {kind_of(inputs)}; give a dict")
    names, wanted = sorted(inputs or {}), [needed(kind)] if needed(kind) else []
    if names != wanted:
        raise ValueError(f"epilog_inputs has {names}; {kind.name} takes {wanted}")
    if is_complex and ("RELU" in kind.name or "GELU" in kind.name):
        raise ValueError(f"{kind.name} is for real numbers, and the operands are complex")
    read = {}
    for name, value in (inputs or {}).items():
        operand = wrap(value, f"epilog_inputs[{name!r}]")
        if operand.package != package:
            raise TypeError(f"epilog_inputs[{name!r}] is of {operand.package}, the operands of {package}; give both of "
                            "one package")
        read[name] = operand.tracked
    return Epilog(kind, read)


def check_inputs(call: str, epilog: Epilog, rank: int, inputs: Mapping[str, Any], shape: tuple[int, ...],
                 sums: str, result: str) -> None:
    """ValueError or TypeError where an input of ``rank`` does not fit the local shape of its result."""
    for name, (given, dtype, _) in inputs.items():
        if name == "bias":
            shapes, what = [[shape[0]], [shape[0], 1]], "an entry for each row of the local result"
        else:
            shapes, what = [list(shape)], "the shape of the local result"
        dtypes = ["torch.bool"] if name == "relu_aux" else [sums, result]
        if given not in shapes:
            raise ValueError(f"{call}: epilog_inputs[{name!r}] has shape {given} on rank {rank}; it has {what}, here "
                             f"{shapes[0]}")
        if dtype not in dtypes:
            raise TypeError(f"{call}: epilog_inputs[{name!r}] has dtype {dtype} on rank {rank}; {epilog.kind.name} "
                            f"takes {' or '.join(dict.fromkeys(dtypes))}")


def apply(epilog: Epilog, value: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The result in ``dtype``, and the auxiliary outputs that concern the local part alone."""
    name, aux = epilog.kind.name, {}
    if "bias" in epilog.inputs:
        value = value + epilog.inputs["bias"].reshape(-1, 1).to(value.dtype)
    if name.startswith("RELU"):
        if "AUX" in name:
            aux["relu_aux"] = value > 0
        value = value.relu()
    elif name.startswith("GELU"):
        if "AUX" in name:
            aux["gelu_aux"] = value.detach().to(dtype)
        value = torch.nn.functional.gelu(value, approximate="tanh")
    elif name.startswith("DRELU"):
        value = value * epilog.inputs["relu_aux"]
    elif name.startswith("DGELU"):
        value = torch.ops.aten.gelu_backward(value, epilog.inputs["gelu_aux"].to(value.dtype), approximate="tanh")
    return value.to(dtype), aux
