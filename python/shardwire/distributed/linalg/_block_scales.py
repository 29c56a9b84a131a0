"""Scales of blocks of 32 elements (MXFP8): one uint8 for each block, x for the factor 2^(x - 127), in cuBLAS's order.

A block lies along the dimension in which a matrix is contiguous in memory, its minor dimension. The scales of 128 x 128
elements lie together, 512 bytes; these tiles follow each other along the minor dimension. Pure.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK, TILE = 32, 128
_BIAS, _LARGEST = 127, 254


def offset(major: Any, minor: Any, extent: int) -> Any:
    """The place of an element's scale. major, minor: the element's indices, ints or tensors. extent: of the minor
    dimension."""
    return place(major, minor // BLOCK, extent // BLOCK)


def place(major: Any, block: Any, blocks: int) -> Any:
    """The place of the scale of a block in a row. blocks: the blocks of a row, in which four lie together."""
    tile = blocks // 4 * (major // TILE) + block // 4
    return tile * (TILE * 4) + major % 32 * 16 + major % TILE // 32 * 4 + block % 4


def is_fortran(matrix: torch.Tensor) -> bool:
    """Whether the minor dimension is the first of the last two."""
    return matrix.stride(-2) <= matrix.stride(-1)


def why_not(matrix: torch.Tensor) -> str | None:
    """The reason why a matrix has no block scales; None where it has."""
    extents = tuple(matrix.shape)
    if any(extent % TILE for extent in extents):
        return f"is {extents[0]} x {extents[1]} on this rank; with block scales both extents are multiples of {TILE}"
    return None


def scaled(matrix: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The elements times the scales of their blocks, in float32 and in the matrix's order in memory."""
    flips = is_fortran(matrix)
    rows = matrix.t() if flips else matrix
    factors = torch.exp2(scale[_table(rows)].to(torch.float32) - _BIAS)
    product = (rows.to(torch.float32).reshape(*factors.shape, BLOCK) * factors[..., None]).reshape(rows.shape)
    return product.t() if flips else product


def quantized(matrix: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A float32 matrix in an 8-bit ``dtype``, and the scales by which the result is to be multiplied: for each block
    the least power of two that brings its largest finite magnitude into the range of ``dtype``."""
    flips = is_fortran(matrix)
    rows = matrix.t() if flips else matrix
    blocks = rows.reshape(rows.shape[0], rows.shape[1] // BLOCK, BLOCK)
    limit = torch.finfo(dtype).max
    magnitudes = torch.where(blocks.isfinite(), blocks.abs(), blocks.new_zeros(())).amax(-1)
    mantissa, exponent = torch.frexp(magnitudes.to(torch.float64) / limit)
    exponent = torch.where(mantissa > 0.5, exponent, exponent - 1)
    exponent = torch.where(magnitudes > 0, exponent, torch.full_like(exponent, -_BIAS)).clamp(-_BIAS, _LARGEST - _BIAS)
    narrow = saturated(torch.ldexp(blocks, -exponent[..., None]), dtype).reshape(rows.shape)
    scale = torch.empty(matrix.numel() // BLOCK, dtype=torch.uint8, device=matrix.device)
    scale[_table(rows)] = (exponent + _BIAS).to(torch.uint8)
    return narrow.t() if flips else narrow, scale


def saturated(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``value`` in an 8-bit ``dtype``: what lies beyond its range becomes the largest number. NaN stays NaN."""
    limit = torch.finfo(dtype).max
    return value.clamp(-limit, limit).to(dtype)


def _table(rows: torch.Tensor) -> torch.Tensor:
    """The places of the scales of a matrix of rows, for each row and each of its blocks."""
    major = torch.arange(rows.shape[0], device=rows.device)
    minor = torch.arange(0, rows.shape[1], BLOCK, device=rows.device)
    return offset(major[:, None], minor, rows.shape[1])
