"""A local transform as an engine sees it: the memory layout of the arrays, the axes, and the factor on the result."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..plain.tensor_bytes import contiguous_strides

# Heaps and torch align arrays to so many bytes; engines prefer this alignment.
ALIGNMENT = 64


class Array(NamedTuple):
    """The layout of a tensor: strides in elements, and the begin modulo ALIGNMENT bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    begin: int = 0

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return _ITEMS[self.dtype]

    @property
    def elements(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def resized(self, shape: tuple[int, ...]) -> Array:
        """A part of the given shape at the same place: the strides stay."""
        return self._replace(shape=shape)

    def narrowed(self, dim: int, begin: int, length: int) -> Array:
        """As ``tensor.narrow``."""
        return self._replace(shape=(*self.shape[:dim], length, *self.shape[dim + 1:]),
                             begin=(self.begin + begin * self.strides[dim] * self.item) % ALIGNMENT)

    def scratch(self) -> torch.Tensor:
        """Memory with this layout. No byte is touched."""
        span = (1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides)) if self.elements
                else 0)
        raw = torch.empty(span * self.item + 2 * ALIGNMENT, dtype=torch.uint8, device="cpu")
        begin = -raw.data_ptr() % ALIGNMENT + self.begin
        return raw[begin:begin + span * self.item].view(self.dtype).as_strided(self.shape, self.strides)


_ITEMS = {torch.float32: 4, torch.float64: 8, torch.complex64: 8, torch.complex128: 16}


def array_of(tensor: torch.Tensor) -> Array:
    """The layout of ``tensor``."""
    return Array(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.data_ptr() % ALIGNMENT)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy where the tensor begins inside an element, as views of numpy's may: scratch memory for
    measurements cannot begin inside an element, and engines do not expect such a begin."""
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor


def packed(shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """The layout of new memory in C order."""
    return Array(shape, tuple(contiguous_strides(shape)), dtype)


class Call(NamedTuple):
    """kind: "C2C", "R2C" or "C2R"; of R2C and C2R the last of ``axes`` is the real one, and C2R has one axis only.
    in_place: source is target.

    norm: torch.fft's name of the scale; factor: the scale as a number, by which results are multiplied.
    """

    kind: str
    axes: tuple[int, ...]
    source: Array
    target: Array
    in_place: bool
    inverse: bool
    norm: str = "backward"
    factor: float = 1.0

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of all dimensions as the transform counts them: of the real array where there is one."""
        return (self.target if self.kind == "C2R" else self.source).shape

    @property
    def batches(self) -> list[int]:
        """The dimensions without a transform, the outermost in memory first."""
        return sorted((dim for dim in range(len(self.source.shape)) if dim not in self.axes),
                      key=lambda dim: -self.source.strides[dim])

    @property
    def elements(self) -> int:
        """Elements of the larger array."""
        return max(self.source.elements, self.target.elements)

    def at_most(self, elements: int) -> Call:
        """A part of the call with about so many elements, cut along the outer batches; one whole transform where a
        single transform has more."""
        source, target, count = list(self.source.shape), list(self.target.shape), self.elements
        for dim in self.batches:
            if count <= elements:
                break
            rest = count // source[dim]
            source[dim] = target[dim] = max(1, min(source[dim], elements // rest))
            count = rest * source[dim]
        return self._replace(source=self.source.resized(tuple(source)), target=self.target.resized(tuple(target)))
