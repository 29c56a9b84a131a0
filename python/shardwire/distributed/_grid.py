"""Ranks in a grid."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Tuple

from .._integers import as_integer
from ..compiler.layout import kind_of, as_dims

Dims = Tuple[int, ...]


class ProcessGrid:
    """Ranks arranged in a grid of ``shape``, by rows (ROW_MAJOR) or columns (COL_MAJOR), or in the places of
    ``process_array`` (nested lists or an ndarray).

    layout may be left out where the grid has one dimension of more than one rank. ValueError for a grid that does not
    hold each rank once.
    """

    class Layout(IntEnum):
        COL_MAJOR = 0
        ROW_MAJOR = 1

    def __init__(self, *, shape: Sequence[int] | None = None, layout: ProcessGrid.Layout | None = None,
                 process_array: Any = None) -> None:
        if process_array is not None:
            if layout is not None:
                raise ValueError(
                    "layout says how ranks fill a grid, and process_array where each one is; give one of them")
            ranks, found = _flatten(process_array)
            if shape is not None and tuple(shape) != found:
                raise ValueError(
                    f"shape is {list(shape)}, but process_array has the shape {list(found)}; leave shape out")
            if sorted(ranks) != list(range(len(ranks))):
                raise ValueError(
                    f"process_array holds the ranks {ranks}; it must hold each of 0..{len(ranks) - 1} once")
            self._shape, self._layout = found, None
        else:
            if shape is None:
                raise ValueError("give shape, or process_array")
            self._shape = as_dims(shape, "shape")
            if any(extent < 1 for extent in self._shape):
                raise ValueError(f"shape is {list(self._shape)}; a grid has at least one rank along each dimension")
            if layout is None:
                if sum(extent > 1 for extent in self._shape) > 1:
                    raise ValueError(f"a grid of shape {list(self._shape)} can be filled by rows or by columns; give "
                                     "layout=ProcessGrid.Layout.ROW_MAJOR or COL_MAJOR")
                layout = ProcessGrid.Layout.ROW_MAJOR
            if not isinstance(layout, ProcessGrid.Layout):
                raise TypeError(f"layout is {kind_of(layout)}; give ProcessGrid.Layout.ROW_MAJOR or COL_MAJOR")
            self._layout = layout
            steps = [math.prod(self._shape[:dim] if layout is ProcessGrid.Layout.COL_MAJOR else self._shape[dim + 1:])
                     for dim in range(len(self._shape))]
            ranks = [sum(coord * step for coord, step in zip(coords, steps))
                     for coords in itertools.product(*map(range, self._shape))]
        self._ranks = tuple(ranks)
        self._process_array = process_array
        self._coords = {rank: coords for rank, coords in zip(self._ranks, itertools.product(*map(range, self._shape)))}

    @property
    def shape(self) -> Dims:
        """The number of ranks along each dimension."""
        return self._shape

    @property
    def layout(self) -> ProcessGrid.Layout | None:
        """The order of ranks in the grid, or None with ``process_array``."""
        return self._layout

    @property
    def process_array(self) -> Any:
        """The array given to the constructor, or None."""
        return self._process_array

    @property
    def size(self) -> int:
        """The number of ranks in the grid."""
        return len(self._ranks)

    def coords(self, rank: int) -> Dims:
        """The coordinates of ``rank``."""
        return self._coords[rank]

    def with_more(self, more: int) -> ProcessGrid:
        """The grid with ``more`` dimensions of one rank at the end."""
        made = copy.copy(self)
        made._shape, made._process_array = self._shape + (1,) * more, None
        made._coords = {rank: coords + (0,) * more for rank, coords in self._coords.items()}
        return made

    def describe(self) -> list[Any]:
        """Plain values; equal where the ranks are in the same places."""
        return [list(self._shape), list(self._ranks)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessGrid) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self._shape, self._ranks))

    def __repr__(self) -> str:
        how = f", layout={self._layout.name}" if self._layout is not None else f", ranks={list(self._ranks)}"
        return f"ProcessGrid(shape={list(self._shape)}{how})"


def squarest(count: int, dims: int) -> Dims:
    """``count`` as a product of ``dims`` factors, of which the largest is as small as possible; smaller factors
    first."""
    if dims == 1:
        return (count,)
    best: Dims | None = None
    for factor in range(1, math.isqrt(count) + 1 if dims == 2 else count + 1):
        if count % factor == 0:
            found = tuple(sorted((factor, *squarest(count // factor, dims - 1))))
            if best is None or found[-1] < best[-1]:
                best = found
    assert best is not None
    return best


def _flatten(value: Any) -> tuple[list[int], Dims]:
    """The ints of nested lists or of an ndarray in order, and the shape."""
    level = [value.tolist() if hasattr(value, "tolist") else value]
    shape: list[int] = []
    while isinstance(level[0], (list, tuple)):
        lengths = {len(row) if isinstance(row, (list, tuple)) else -1 for row in level}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError("process_array is no grid: its rows have different lengths, or none")
        shape.append(lengths.pop())
        level = [item for row in level for item in row]
    ranks = [rank for item in level if (rank := as_integer(item)) is not None]
    if len(ranks) < len(level):
        raise TypeError("process_array holds something that is no int; give ranks")
    return ranks, tuple(shape)
