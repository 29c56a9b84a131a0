"""One cut, said as a distribution of another kind (:meth:`Distribution.to`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ..compiler.layout import Shard, as_dims
from ._grid import Dims, ProcessGrid
from .distribution import (Block, BlockCyclic, Box, Boxes, ConvertDistributionError, Distribution, Pencil, Piece,
                           Placements, Share, Slab)


def convert(source: Distribution, cls: Any, ndim: int | None, global_shape: Sequence[int] | None,
            count: int) -> Distribution:
    """``source`` as a ``cls`` over ``count`` ranks; see :meth:`Distribution.to`."""
    if not (isinstance(cls, type) and issubclass(cls, Distribution)):
        raise ValueError(f"{cls!r} is no kind of distribution")
    own = source.ndim if global_shape is None else len(as_dims(global_shape, "global_shape"))
    wanted = own if ndim is None else ndim
    own = wanted if own is None else own
    if own is None or wanted is None:
        raise ValueError(f"{source} is for arrays of any number of dimensions; give ndim")
    if wanted < own:
        raise ValueError(f"ndim is {ndim}, but {source} cuts arrays of {own} dimensions; give at least as many")
    if isinstance(source, Box) and global_shape is None:
        raise ConvertDistributionError(f"{source} is what one rank holds of one array; give global_shape=")
    # Without a shape: arrays with parts of equal and of different lengths, and with fewer indices than ranks.
    shapes: list[Dims] = ([as_dims(global_shape, "global_shape")] if global_shape is not None else [
        tuple(count * (dim + 2) + more for dim in range(own)) for more in (0, 1)] + [
        tuple(count * (own + 2 - dim) - 1 for dim in range(own)), (1,) * own])
    shares = [[_with_more(source.share(rank, shape, count), wanted - own) for rank in range(count)] for shape in shapes]
    whole = [(*shape, *(1,) * (wanted - own)) for shape in shapes]
    for candidate in _candidates(cls, shares[0], whole[0], count):
        try:
            if all(candidate.share(rank, dims, count).is_as(share)
                   for dims, parts in zip(whole, shares) for rank, share in enumerate(parts)):
                return candidate
        except ValueError:
            continue
    of_shape = "arrays of every shape" if global_shape is None else f"an array of shape {list(whole[0])}"
    raise ConvertDistributionError(f"{source} cuts {of_shape} over {count} ranks as no {cls.__name__} does")


def _with_more(share: Share, more: int) -> Share:
    """The share with ``more`` dimensions of one index at the end."""
    if not more:
        return share
    ones, zeros = (1,) * more, (0,) * more
    return Share(share.local_shape + ones, tuple(
        Piece(piece.offset + zeros, piece.shape + ones, piece.local_offset + zeros) for piece in share.pieces))


def _candidates(cls: type[Distribution], shares: Sequence[Share], dims: Dims, count: int) -> Iterator[Distribution]:
    """Distributions of kind ``cls`` that may cut the same way; :func:`convert` compares each."""
    ndim = len(dims)
    grids = [(first, second) for first in range(1, count + 1) if count % first == 0 for second in [count // first]]
    if cls is Boxes and all(share.is_one_box or share.is_empty for share in shares):
        begins = [share.pieces[0].offset if share.is_one_box else (0,) * ndim for share in shares]
        yield Boxes(
            [Box(begin, tuple(map(sum, zip(begin, share.local_shape)))) for begin, share in zip(begins, shares)])
    if cls is Slab:
        yield from (Slab(dim, ndim) for dim in range(ndim))
    if cls is Pencil:
        yield from (Pencil(pair, grid) for pair in itertools.permutations(range(ndim), 2) for grid in grids)
    if cls is Block or cls is BlockCyclic:
        sizes = [max((piece.shape[dim] for share in shares for piece in share.pieces), default=1) or 1
                 for dim in range(ndim)]
        for shape in _grid_shapes(count, ndim):
            for layout in (ProcessGrid.Layout.ROW_MAJOR, ProcessGrid.Layout.COL_MAJOR):
                grid = ProcessGrid(shape=shape, layout=layout)
                if cls is BlockCyclic:
                    yield BlockCyclic(grid, sizes)
                yield Block(grid)
    if cls is Placements:
        yield from (Placements([Shard(dim)]) for dim in range(ndim))
        for grid_shape in grids:
            mesh = [list(range(row * grid_shape[1], (row + 1) * grid_shape[1])) for row in range(grid_shape[0])]
            yield from (Placements([Shard(first), Shard(second)], mesh)
                        for first, second in itertools.permutations(range(ndim), 2))


def _grid_shapes(count: int, ndim: int) -> Iterator[Dims]:
    if ndim == 1:
        yield (count,)
        return
    for factor in range(1, count + 1):
        if count % factor == 0:
            yield from ((factor, *rest) for rest in _grid_shapes(count // factor, ndim - 1))
