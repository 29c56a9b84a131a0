"""Scales of blocks (MXFP8) for ``quantization_scales``: one uint8 x for 32 elements, which stands for 2^(x - 127).

Each rank makes the scales of its own part, whose two extents are multiples of 128. A block lies along the dimension in
which the part is contiguous in memory; the order of the scales is cuBLAS's. Tensors are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....._integers import as_count
from .....compiler.layout import kind_of
from ... import _block_scales

__all__ = ["apply_mxfp8_scale", "create_mxfp8_scale", "get_mxfp8_scale_offset", "invert_mxfp8_scale"]


def create_mxfp8_scale(x: torch.Tensor, exponent: int, stream: Any = None) -> torch.Tensor:
    """The same scale, 2^exponent, for all blocks of ``x``: a tensor of uint8. exponent: -127 to 128."""
    _check_tensor(x, "x")
    number = as_count(exponent, -127)
    if number is None or number > 128:
        raise ValueError(f"exponent is {kind_of(exponent)}; give a number from -127 to 128")
    return torch.full((x.numel() // _block_scales.BLOCK,), number + 127, dtype=torch.uint8, device=x.device)


def invert_mxfp8_scale(scale: torch.Tensor) -> torch.Tensor:
    """The scales 1 / s of scales s, as a new tensor. The inverse of 2^128 is taken as 2^-127."""
    _check_scale(scale)
    return 254 - scale.clamp(max=254)


def get_mxfp8_scale_offset(x: torch.Tensor, index: Sequence[Any]) -> Any:
    """The place of the scale of ``x[index]`` in the scales of ``x``. index: an int for each dimension, or a tensor of
    ints for each, which broadcast. x: of two or more dimensions; the scales of its matrices follow each other."""
    _check_tensor(x, "x")
    if x.dim() < 2 or len(index) != x.dim():
        raise ValueError(f"x has {x.dim()} dimensions, and index {len(index)} entries; give at least two dimensions, "
                         "and an entry for each")
    *batch, row, column = index
    place: Any = 0
    if batch:
        strides = x.stride()[:-2]
        place = sum(at * stride for at, stride in zip(batch, strides)) // min(strides)
    extents = x.shape[-2:]
    within = (_block_scales.offset(column, row, extents[0]) if _block_scales.is_fortran(x)
              else _block_scales.offset(row, column, extents[1]))
    return place * (extents[0] * extents[1] // _block_scales.BLOCK) + within


def apply_mxfp8_scale(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values that ``x`` with its scales stands for, in float32. scale: for example the "d_out_scale" of a product.
    A product with a float32 ``result_type`` gives such values at once."""
    _check_tensor(x, "x")
    _check_scale(scale)
    if scale.shape != (x.numel() // _block_scales.BLOCK,):
        raise ValueError(f"scale has shape {tuple(scale.shape)}, and x has {x.numel()} elements; give a scale for each "
                         f"{_block_scales.BLOCK}")
    index = torch.meshgrid(*(torch.arange(extent, device=x.device) for extent in x.shape), indexing="ij")
    factors = torch.exp2(scale.to(torch.float32) - 127)
    return x.to(torch.float32) * factors[get_mxfp8_scale_offset(x, index)]


def _check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} is {kind_of(value)}; give a torch.Tensor")


def _check_scale(scale: Any) -> None:
    _check_tensor(scale, "scale")
    if scale.dtype != torch.uint8:
        raise ValueError(f"scale has dtype {scale.dtype}; the scales of blocks are torch.uint8")
