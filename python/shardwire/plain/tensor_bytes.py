"""Dense tensors as bytes: the places of elements in memory, and the names of dtypes."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import _C


def storage_address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def untyped(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of the last element."""
    return (1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))) * tensor.element_size()


def is_within_reach(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory from the first element of a tensor to the last meets that of the other tensor."""
    return bool(one.numel() and other.numel() and one.data_ptr() < other.data_ptr() + reach(other)
                and other.data_ptr() < one.data_ptr() + reach(one))


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """In C order, and no lazily conjugated or negated view: native loops and collectives read the memory as it is."""
    return tensor.contiguous().resolve_conj().resolve_neg()


def contiguous_strides(shape: Any) -> list[int]:
    if len(shape) == 1:
        return [1]
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


class Broken(ValueError):
    """The bytes do not have the format of ``serialize``."""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense CPU tensor as a flat uint8 tensor; a view of a contiguous tensor. ValueError for a tensor
    with freed storage."""
    _C.require_memory(tensor, "the tensor")
    flat = tensor.contiguous()
    if flat.dim() != 1 or flat.stride(0) != 1:  # a lone element may have any stride, which view() below refuses
        flat = flat.as_strided((flat.numel(),), (1,))
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def typed(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``flat`` (uint8, one dimension) as elements of ``dtype``; a view where the address allows a view."""
    if dtype == torch.uint8:
        return flat
    size = item_bytes(dtype)
    if flat.data_ptr() % size or flat.storage_offset() % size:
        flat = flat.clone()
    if not dtype.is_complex:
        return flat.view(dtype)
    half = {8: torch.float32, 16: torch.float64, 4: torch.float16}[size]
    return torch.view_as_complex(flat.view(half).reshape(-1, 2))


@functools.cache
def item_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype, device="cpu").element_size()


@functools.lru_cache(256)
def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or "q" in name:
        raise Broken(f"{name!r} is no dtype of this torch ({torch.__version__})")
    return dtype


@functools.cache
def name_of(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
