"""Scales of blocks for ``quantization_scales``, and numbers of 4 bits, by nvmath 1.0's names. Tensors are torch's.

MXFP8: one uint8 x for 32 elements of FP8, which stands for 2^(x - 127). NVFP4: one float8_e4m3fn for 16 elements of
FP4. Each rank makes the scales of its own part. A block lies along the dimension in which the
part is contiguous in memory, axis -1 or -2; the order of the scales is cuBLAS's. The extent along the axis is a
multiple of four blocks, and the other extent of 128. Dimensions before the last two are a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch

from ....._integers import as_count
from .....compiler.layout import as_dims, kind_of
from ... import _block_scales

__all__ = ["BlockScalingFormat", "apply_mxfp8_scale", "create_mxfp8_scale", "expand_block_scale",
           "get_block_scale_offset", "get_mxfp8_scale_offset", "invert_mxfp8_scale", "quantize_to_fp4",
           "to_block_scale", "unpack_fp4"]


class BlockScalingFormat(str, Enum):
    """How the elements of a block, and its scale, are stored."""

    NVFP4 = "NVFP4"
    MXFP8 = "MXFP8"


class _Blocks(NamedTuple):
    """shape: of the elements. axis: along which blocks lie, -1 or -2. length: elements of a block."""

    shape: tuple[int, ...]
    axis: int
    length: int

    @property
    def scales(self) -> tuple[int, ...]:
        """The shape of one scale for each block."""
        extents = list(self.shape)
        extents[self.axis] //= self.length
        return tuple(extents)

    def places(self, index: Sequence[Any]) -> Any:
        """The places of scales. index: of blocks, an entry for each dimension."""
        before, batch = 0, self.shape[:-2]
        for at, extent in zip(index, batch):
            before = before * extent + at
        of_matrix = math.prod(self.shape[-2:]) // self.length
        place = _block_scales.place(index[-3 - self.axis], index[self.axis], self.scales[self.axis])
        return before * of_matrix + place

    def all_places(self, device: torch.device) -> torch.Tensor:
        """The places of all scales, in their shape."""
        index = torch.meshgrid(*(torch.arange(extent, device=device) for extent in self.scales), indexing="ij")
        places: torch.Tensor = self.places(index)
        return places


def create_mxfp8_scale(x: torch.Tensor, exponent: int, stream: Any = None) -> torch.Tensor:
    """The same scale, 2^exponent, for all blocks of ``x``: a tensor of uint8. exponent: -127 to 128."""
    _check_tensor(x, "x")
    number = as_count(exponent, -127)
    if number is None or number > 128:
        raise ValueError(f"exponent is {kind_of(exponent)}; give a number from -127 to 128")
    return torch.full((x.numel() // _block_scales.BLOCK,), number + 127, dtype=torch.uint8, device=x.device)


def invert_mxfp8_scale(mx_scales: torch.Tensor) -> torch.Tensor:
    """The scales 1 / s of scales s, as a new tensor. The inverse of 2^128 is taken as 2^-127."""
    _check_scale(mx_scales, "mx_scales", BlockScalingFormat.MXFP8)
    return 254 - mx_scales.clamp(max=254)


def get_block_scale_offset(index: Sequence[Any], operand_or_shape: Any, block_scaling_format: Any, *,
                           axis: int | None = None) -> Any:
    """The place of a block's scale in the scales of an operand.

    index: an int for each dimension, or a tensor of ints for each, which broadcast; along ``axis`` the number of the
    block. operand_or_shape: a tensor, or the shape of the elements as a tuple, which needs ``axis``.
    """
    blocks = _blocks_of(operand_or_shape, axis, block_scaling_format)
    if len(index) != len(blocks.shape):
        raise ValueError(f"index has {len(index)} entries, and the operand {len(blocks.shape)} dimensions; give an "
                         "entry for each")
    return blocks.places(index)


def get_mxfp8_scale_offset(x: torch.Tensor, index: Sequence[Any]) -> Any:
    """The place of the scale of ``x[index]`` in the scales of ``x``, by the name of nvmath 0.9. index: an int for each
    dimension, or a tensor of ints for each, which broadcast."""
    _check_tensor(x, "x")
    blocks = _blocks_of(x, None, BlockScalingFormat.MXFP8)
    if len(index) != x.dim():
        raise ValueError(f"x has {x.dim()} dimensions, and index {len(index)} entries; give an entry for each")
    of_blocks = list(index)
    of_blocks[blocks.axis] = of_blocks[blocks.axis] // blocks.length
    return blocks.places(of_blocks)


def to_block_scale(scale_tensor: torch.Tensor, operand_or_shape: Any, block_scaling_format: Any, *,
                   axis: int | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """The scales in cuBLAS's order. scale_tensor: in the shape of the operand, with one entry for each block along
    ``axis``. out: a tensor for the result, of the same dtype and number of elements."""
    blocks = _blocks_of(operand_or_shape, axis, block_scaling_format)
    _check_scale(scale_tensor, "scale_tensor", BlockScalingFormat(block_scaling_format))
    if tuple(scale_tensor.shape) != blocks.scales:
        raise ValueError(f"scale_tensor has shape {tuple(scale_tensor.shape)}; a scale for each block has shape "
                         f"{blocks.scales}")
    if out is None:
        out = torch.empty(scale_tensor.numel(), dtype=scale_tensor.dtype, device=scale_tensor.device)
    elif out.dtype != scale_tensor.dtype or tuple(out.shape) != (scale_tensor.numel(),):
        raise ValueError(f"out is {out.dtype}{list(out.shape)}; give {scale_tensor.dtype}[{scale_tensor.numel()}]")
    out.view(torch.uint8)[blocks.all_places(out.device)] = scale_tensor.contiguous().view(torch.uint8)
    return out


def expand_block_scale(scales_1d: torch.Tensor, operand_or_shape: Any, block_scaling_format: Any, *,
                       axis: int | None = None, output_dtype: Any = "smallest",
                       device: str | None = None) -> torch.Tensor:
    """The scale of each element, in the shape of the operand. output_dtype: float16, float32 or float64; "smallest":
    the dtype of the stored scales, uint8 or float8_e4m3fn. ValueError for a dtype that cannot hold the scales. device:
    of the result; None: that of the scales."""
    blocks, kind = _blocks_of(operand_or_shape, axis, block_scaling_format), BlockScalingFormat(block_scaling_format)
    _check_scale(scales_1d, "scales_1d", kind)
    if tuple(scales_1d.shape) != (math.prod(blocks.scales),):
        raise ValueError(f"scales_1d has shape {tuple(scales_1d.shape)}; give {math.prod(blocks.scales)} scales")
    stored = scales_1d.to(device or scales_1d.device).view(torch.uint8)
    each = stored[blocks.all_places(stored.device)].repeat_interleave(blocks.length, blocks.axis)
    if kind == BlockScalingFormat.NVFP4:
        each = each.view(torch.float8_e4m3fn)
    if output_dtype in ("smallest", each.dtype):
        return each
    return _as_dtype(torch.exp2(each.to(torch.float64) - 127) if kind == BlockScalingFormat.MXFP8
                     else each.to(torch.float64), output_dtype)


def apply_mxfp8_scale(x: torch.Tensor, scales_1d: torch.Tensor, output_dtype: Any = "smallest") -> torch.Tensor:
    """The values that ``x`` with its scales stands for. scales_1d: for example the "d_out_scale" of a product.
    output_dtype: float16, float32 or float64; "smallest": the first of these in whose normal range all values lie.
    A product with a float32 ``result_type`` gives such values at once."""
    _check_tensor(x, "x")
    factors = expand_block_scale(scales_1d, x, BlockScalingFormat.MXFP8, output_dtype=torch.float64)
    return _as_dtype(x.to(torch.float64) * factors, output_dtype)


def quantize_to_fp4(x: torch.Tensor, axis: int) -> torch.Tensor:
    """float32 as FP4 (torch.float4_e2m1fn_x2, torch 2.8 and later): two neighbours along ``axis``, -1 or -2, in one
    byte, the first one in the low half. Each element becomes the nearest number, of two the smaller magnitude, and at
    most 6. The result is contiguous along ``axis``, which has half of the extent."""
    _check_tensor(x, "x")
    _check_axis(x, axis)
    if x.dtype != torch.float32 or x.shape[axis] % 2:
        raise ValueError(f"x is {x.dtype}{list(x.shape)}; give float32, with an even extent along axis {axis}")
    magnitudes = _block_scales.MAGNITUDES
    steps = torch.tensor([(low + high) / 2 for low, high in zip(magnitudes, magnitudes[1:])], device=x.device)
    codes = torch.bucketize(x.abs(), steps).to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 3)
    codes = codes if axis == -1 else codes.transpose(-1, -2)
    packed = (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous().view(_fp4())
    return packed if axis == -1 else packed.transpose(-1, -2)


def unpack_fp4(fp4_tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """FP4 as float32, with twice the extent along ``axis``, -1 or -2, along which the numbers were packed."""
    _check_tensor(fp4_tensor, "fp4_tensor")
    _check_axis(fp4_tensor, axis)
    if fp4_tensor.dtype != _fp4():
        raise ValueError(f"fp4_tensor has dtype {fp4_tensor.dtype}; give {_fp4()}")
    if axis == -1:
        return _block_scales.unpacked(fp4_tensor)
    return _block_scales.unpacked(fp4_tensor.transpose(-1, -2)).transpose(-1, -2)


def _fp4() -> torch.dtype:
    found = getattr(torch, "float4_e2m1fn_x2", None)
    if found is None:
        raise ValueError("this torch has no float4_e2m1fn_x2; torch 2.8 and later have")
    return found  # type: ignore[no-any-return]


def _blocks_of(operand_or_shape: Any, axis: int | None, block_scaling_format: Any) -> _Blocks:
    """The blocks of an operand. ValueError where the operand has no blocks in this format."""
    kind, name = BlockScalingFormat(block_scaling_format), ""
    if isinstance(operand_or_shape, torch.Tensor):
        shape, name = tuple(operand_or_shape.shape), str(operand_or_shape.dtype).partition(".")[2]
    elif isinstance(operand_or_shape, tuple):
        shape = as_dims(operand_or_shape, "operand_or_shape")
    else:
        raise ValueError(f"operand_or_shape is {kind_of(operand_or_shape)}; give a torch.Tensor, or a shape as a tuple")
    if len(shape) < 2:
        raise ValueError(f"the operand has {len(shape)} dimensions; give at least two dimensions")
    wanted = axis - len(shape) if axis is not None and axis >= 0 else axis
    if isinstance(operand_or_shape, torch.Tensor):
        own = -2 if _block_scales.is_fortran(operand_or_shape) else -1
        if wanted not in (None, own):
            raise ValueError(f"axis is {axis}, and the operand is contiguous along {own}; give {own} or None")
        wanted = own
    if wanted not in (-1, -2):
        raise ValueError(f"axis is {axis}; give -1 or -2: the dimension along which blocks lie")
    if name.startswith("float4"):
        shape = tuple(extent * (1 + (dim - len(shape) == wanted)) for dim, extent in enumerate(shape))
    if name.startswith("float4" if kind == BlockScalingFormat.MXFP8 else "float8"):
        raise ValueError(f"the operand has dtype torch.{name}, which has no scales in the format {kind.value}")
    length = 32 if kind == BlockScalingFormat.MXFP8 else 16
    for dim, least in ((wanted, 4 * length), (-3 - wanted, _block_scales.TILE)):
        if shape[dim] < 1 or shape[dim] % least:
            raise ValueError(f"the operand has shape {shape}; in the format {kind.value} the extent of dimension "
                             f"{dim} is a multiple of {least}")
    return _Blocks(shape, wanted, length)


def _as_dtype(values: torch.Tensor, wanted: Any) -> torch.Tensor:
    """float64 in a narrower dtype. ValueError where values lie outside of its normal range."""
    dtypes = (torch.float16, torch.float32, torch.float64)
    if wanted != "smallest" and wanted not in dtypes:
        raise TypeError(f"output_dtype is {kind_of(wanted)}; give 'smallest', torch.float16, float32 or float64")
    magnitudes = values[values != 0].abs()
    least, most = (float(magnitudes.min()), float(magnitudes.max())) if magnitudes.numel() else (1.0, 1.0)
    fitting = [dtype for dtype in dtypes if dtype == torch.float64
               or (torch.finfo(dtype).tiny <= least and most <= torch.finfo(dtype).max)]
    if wanted != "smallest" and wanted not in fitting:
        raise ValueError(f"output_dtype is {wanted}, and magnitudes are {least} to {most}; give {fitting[0]}")
    return values.to(fitting[0] if wanted == "smallest" else wanted)


def _check_axis(value: torch.Tensor, axis: Any) -> None:
    if axis not in (-1, -2) or value.dim() < -axis:
        raise ValueError(f"axis is {kind_of(axis)}, of a tensor of {value.dim()} dimensions; give -1 or -2")


def _check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} is {kind_of(value)}; give a torch.Tensor")


def _check_scale(scale: Any, name: str, kind: BlockScalingFormat) -> None:
    _check_tensor(scale, name)
    taken = ["uint8"] + ["float8_e4m3fn"] * (kind == BlockScalingFormat.NVFP4)
    if str(scale.dtype).partition(".")[2] not in taken:
        raise ValueError(f"{name} has dtype {scale.dtype}; the scales of blocks are {' or '.join(taken)}")
