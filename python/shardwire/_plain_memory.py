"""Where the elements of dense tensors lie."""

from __future__ import annotations

from typing import Any

import torch


def storage_address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def untyped(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    return (1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))) * tensor.element_size()


def contiguous_strides(shape: Any) -> list[int]:
    if len(shape) == 1:
        return [1]
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
