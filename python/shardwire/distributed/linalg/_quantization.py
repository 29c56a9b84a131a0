"""Scales of FP8 and FP4 operands and of results, and how a product rounds.

With one scale for a matrix, the parts travel as 8-bit floats, and the scales of A and B are factors of the result. With
a scale for each block (``_block_scales``), a rank's part becomes bfloat16 before it travels: scaled elements of 8 or 4
bits are exact in bfloat16. Sums are float32 in both cases. A result of FP8 is scaled, limited to the range of its dtype
and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...compiler.layout import kind_of
from . import _block_scales
from ._block_scales import quantized, saturated
from ._options import FP4

_NARROW = ("float8_e4m3fn", "float8_e5m2")


@dataclass
class MatmulQuantizationScales:
    """Scales of FP8 matrices: of a and b, of c where c is of FP8, and of d, the result, where the result is of FP8.

    Each is a number, or a float32 tensor with one element, whose value is read by each execute(), equal on all ranks.
    With the option block_scaling: of a and b a uint8 tensor with a scale for each block of this rank's part, as
    ``helpers.matmul.create_mxfp8_scale`` makes it, or with operands of FP4 a float8_e4m3fn tensor, and nothing for d.
    The product is F(alpha (a A) @ (b B) + beta c C),
    times d.
    """

    a: Any = None
    b: Any = None
    c: Any = None
    d: Any = None


def is_narrow(dtype: torch.dtype | None) -> bool:
    """Whether ``dtype`` is of FP8."""
    return str(dtype).partition(".")[2] in _NARROW


def is_fp4(dtype: torch.dtype) -> bool:
    """Whether ``dtype`` has two numbers of FP4 in a byte."""
    return str(dtype).partition(".")[2] == FP4


def blocks_of(elements: int, dtype: torch.dtype) -> tuple[str, int]:
    """The dtype and the number of the block scales of a matrix with so many elements, of FP4 bytes."""
    return ("float8_e4m3fn", elements * 4 // _block_scales.BLOCK) if is_fp4(dtype) else (
        "uint8", elements // _block_scales.BLOCK)


def given_scales(given: Any) -> dict[str, Any]:
    """The scales that a caller gave, by name. TypeError for another kind of object."""
    if isinstance(given, MatmulQuantizationScales):
        given = vars(given)
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"quantization_scales is {kind_of(given)}; give a MatmulQuantizationScales or a dict")
    return {name: value for name, value in (given or {}).items() if value is not None}


def check_scales(scales: Mapping[str, Any], names: Sequence[str], blocks: Mapping[str, tuple[str, int]] | None,
                 device: torch.device) -> None:
    """TypeError or ValueError for scales that are missing, too many or of another kind. names: the matrices that need a
    scale. blocks: with block scales, their dtype and number (``blocks_of``) in this rank's part of each matrix."""
    if not names and scales:
        raise ValueError("quantization_scales is given, which is for operands of FP8; leave it out")
    if sorted(scales) != sorted(names):
        raise ValueError(f"quantization_scales has {sorted(scales)}; these dtypes and options take {sorted(names)}")
    for name, value in scales.items():
        _check_scale(f"quantization_scales[{name!r}]", value, None if blocks is None else blocks[name], device)


def _check_scale(what: str, value: Any, blocks: tuple[str, int] | None, device: torch.device) -> None:
    if isinstance(value, torch.Tensor) and value.device != device:
        raise ValueError(f"{what} lies on {value.device}, the operands on {device}; give it there")
    if blocks is not None:
        kind, count = blocks
        if not isinstance(value, torch.Tensor) or str(value.dtype) != f"torch.{kind}" or value.shape != (count,):
            raise ValueError(f"{what} is {_said(value)}; with block_scaling give a {kind} tensor of {count} scales, as "
                             f"helpers.matmul.{'create_mxfp8' if kind == 'uint8' else 'to_block'}_scale makes it")
    elif isinstance(value, torch.Tensor):
        if value.dtype != torch.float32 or value.shape not in ((), (1,)):
            raise ValueError(f"{what} is {_said(value)}; give a number, or a float32 tensor with one element")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {kind_of(value)}; give a number, or a float32 tensor with one element")


def _said(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else kind_of(value)


def said_of(scales: Mapping[str, Any]) -> dict[str, Any]:
    """The scales for the other ranks: a value, or "blocks"."""
    return {name: "blocks" if _is_blocks(value) else repr(float(value)) for name, value in sorted(scales.items())}


def dequantized(part: torch.Tensor, scale: torch.Tensor | None, axis: int) -> torch.Tensor:
    """A part as it travels: with the scales of its blocks applied, in bfloat16; without such scales as it is. axis: the
    dimension of the addends, along which FP4 is packed."""
    if scale is None or not _is_blocks(scale):
        return part
    if not is_fp4(part.dtype):
        axis = 0 if _block_scales.is_fortran(part) else 1
    return _block_scales.scaled(part, scale, axis).to(torch.bfloat16)


def _is_blocks(scale: Any) -> bool:
    return isinstance(scale, torch.Tensor) and str(scale.dtype) in ("torch.uint8", "torch.float8_e4m3fn")


class Rounding:
    """The dtypes of the result and of an auxiliary output, and how float32 becomes FP8 where they are of FP8."""

    def __init__(self, result: torch.dtype, *, sums: torch.dtype, scales: Mapping[str, Any], is_block: bool,
                 wants_amax: bool, aux: torch.dtype | None, aux_scale: Any, wants_aux_amax: bool) -> None:
        self.dtype, self.scales = result, scales
        self._is_block, self._wants_amax = is_block, wants_amax
        self._aux = aux or (sums if is_narrow(result) else result)
        self._aux_scale, self._wants_aux_amax = aux_scale, wants_aux_amax

    def factor(self, *names: str) -> float:
        """The product of the scales of these matrices; 1 for a matrix without a scale, or with scales of blocks."""
        product = 1.0
        for name in names:
            scale = self.scales.get(name, 1.0)
            product *= 1.0 if _is_blocks(scale) else float(scale)
        return product

    def result(self, value: torch.Tensor, aux: dict[str, torch.Tensor]) -> torch.Tensor:
        """``value`` in the dtype of the result; auxiliary outputs are added to ``aux``."""
        if self._wants_amax:
            aux["result_amax"] = _amax(value)
        if not is_narrow(self.dtype):
            return value.to(self.dtype)
        if self._is_block:
            narrow, aux["d_out_scale"] = quantized(value, self.dtype)
            return narrow
        return saturated(value * self.factor("d"), self.dtype)

    def auxiliary(self, name: str, value: torch.Tensor, aux: dict[str, torch.Tensor]) -> None:
        """Adds ``value`` to ``aux`` as auxiliary output ``name``."""
        if self._wants_aux_amax:
            aux[f"{name}_amax"] = _amax(value)
        aux[name] = (saturated(value * float(self._aux_scale), self._aux) if is_narrow(self._aux)
                     else value.to(self._aux))


def _amax(value: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of a rank's part, as a tensor with one element; 0 for a part without elements."""
    return value.detach().abs().amax().reshape(1) if value.numel() else value.new_zeros(1)
