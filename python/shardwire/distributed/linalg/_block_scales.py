"""Scales of blocks of 32 elements (MXFP8): one uint8 for each block, x for the factor 2^(x - 127), in cuBLAS's order;
and of blocks of 16 numbers of 4 bits (NVFP4): one float8_e4m3fn.

A block lies along the dimension in which a matrix is contiguous in memory, its minor dimension. The scales of 128 x 128
elements (NVFP4: 128 x 64) lie together, 512 bytes; these tiles follow each other along the minor dimension. Pure.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK, TILE = 32, 128
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of FP4, by the code
_BIAS, _LARGEST = 127, 254


def place(major: Any, block: Any, blocks: int) -> Any:
    """The place of the scale of a block in a row. blocks: the blocks of a row, in which four lie together."""
    tile = blocks // 4 * (major // TILE) + block // 4
    return tile * (TILE * 4) + major % 32 * 16 + major % TILE // 32 * 4 + block % 4


def is_fortran(matrix: torch.Tensor) -> bool:
    """Whether the minor dimension is the first of the last two."""
    return matrix.stride(-2) <= matrix.stride(-1)


def why_not(matrix: torch.Tensor, axis: int | None = None) -> str | None:
    """The reason why a matrix has no block scales; None where it has. axis: of FP4, the dimension of the addends."""
    extents = tuple(matrix.shape)
    if any(extent % (TILE // 4 if dim == axis else TILE) for dim, extent in enumerate(extents)):
        return (f"is {extents[0]} x {extents[1]} on this rank; with block scales both extents are multiples of {TILE}"
                + (f", and of {TILE // 4} bytes along the addends of FP4" if axis is not None else ""))
    if axis is not None and matrix.numel() and axis != 1 - is_fortran(matrix):
        return (f"is contiguous along dimension {1 - axis}; FP4 is packed, and contiguous, along the dimension of the "
                f"addends, here {axis}")
    return None


def scaled(matrix: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """The elements times the scales of their blocks, in float32 and in the matrix's order in memory. axis: 0 or 1,
    along which blocks lie."""
    rows = matrix.t() if axis == 0 else matrix
    if scale.dtype == torch.uint8:
        rows, factors, length = rows.to(torch.float32), torch.exp2(scale.to(torch.float32) - _BIAS), BLOCK
    else:
        rows, factors, length = unpacked(rows), scale.to(torch.float32), BLOCK // 2
    each = factors[_table(rows, length)]
    product = (rows.reshape(*each.shape, length) * each[..., None]).reshape(rows.shape)
    return product.t() if axis == 0 else product


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """FP4 as float32: two numbers of each byte along the last dimension, the first one in the low half."""
    codes = packed.view(torch.uint8)
    values = torch.tensor([*MAGNITUDES, *(-each for each in MAGNITUDES)], device=packed.device)
    return values[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]


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


def _table(rows: torch.Tensor, length: int = BLOCK) -> torch.Tensor:
    """The places of the scales of a matrix of rows, for each row and each of its blocks of ``length`` elements."""
    blocks = rows.shape[1] // length
    places: torch.Tensor = place(torch.arange(rows.shape[0], device=rows.device)[:, None],
                                 torch.arange(blocks, device=rows.device), blocks)
    return places
