"""The two ends of a movement: the parts of a global array on every rank, agreed on and checked by all ranks alike.

All functions here are pure: every rank calls them with the arguments of all ranks, and gets the same end or the same
error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

from ..compiler.layout import kind_of, as_dims, is_device_mesh
from ..errors import GapError, MismatchError
from .distribution import (BindDistributionError, Block, BlockCyclic, Box, Boxes, Dims, Distribution, Piece, Placements,
                           Share, Slab, _OnGrid)


class End(NamedTuple):
    """The distribution of an array of ``global_shape`` over the ranks; ``shares`` by rank."""

    distribution: Distribution
    global_shape: Dims
    shares: tuple[Share, ...]


def read_distribution(value: Any, what: str, group_ranks: Sequence[int], mesh: Any = None) -> Distribution:
    """A caller's distribution: a Distribution, a pair (lower, upper) of numbers as a Box, a list of Box (one for each
    rank) or a list of placements, in the group's rank numbers. mesh: for placements without a mesh: the mesh of the
    operand where the operand is a DTensor."""
    if isinstance(value, (list, tuple)) and value:
        if len(value) == 2 and all(map(is_index, value)):
            value = Box(*value)
        else:
            boxes = [Box(*item) if not isinstance(item, Box) and isinstance(item, (list, tuple)) and len(item) == 2
                                   and all(map(is_index, item)) else item for item in value]
            value = Boxes(boxes) if all(isinstance(item, Box) for item in boxes) else Placements(value)
    if not isinstance(value, Distribution):
        raise TypeError(f"{what} is {kind_of(value)}; give a Box, a Slab or another distribution")
    if mesh is not None and isinstance(value, Placements) and value.mesh is None:
        value = Placements(value.placements, mesh)
    return value.grouped(group_ranks)


def result_mesh(side: Distribution, is_made: bool = True) -> Any:
    """The mesh of a result that is a DTensor. TypeError for a distribution that a DTensor cannot have. is_made: the
    DTensor is made, which needs a DeviceMesh; False: the result is written to a DTensor of the caller."""
    if not isinstance(side, Placements):
        raise TypeError(f"the operand is a DTensor, and its result one too: give placements for it, not {side}")
    if is_made and not is_device_mesh(side.mesh):
        raise TypeError(f"the operand is a DTensor, and its result one too, but the mesh of {side} is "
                        f"{kind_of(side.mesh)}; give a DeviceMesh")
    return side.mesh


def is_index(value: Any) -> bool:
    """Whether ``value`` is a corner of a box: one int for each dimension."""
    return isinstance(value, (list, tuple)) and all(isinstance(item, SupportsIndex) and not isinstance(item, bool)
                                                    for item in value)


def agree(facts: Sequence[dict[str, Any]], call: str, keys: Sequence[str]) -> None:
    """MismatchError where ranks differ in one of ``keys``."""
    for key in keys:
        for rank, record in enumerate(facts):
            if record[key] != facts[0][key]:
                raise MismatchError(f"{call}: the {key} differs between ranks: {_said(facts[0][key])} on rank 0, "
                                    f"{_said(record[key])} on rank {rank}; give the same on all ranks")


def _said(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def resolve(call: str, what: str, own: Distribution, described: Sequence[Sequence[Any]], size: int) -> Distribution:
    """The distribution as a whole: Boxes where each rank gave its own Box, else the distribution that all ranks
    gave."""
    kinds = [item[0] for item in described]
    for rank, item in enumerate(described):
        if kinds[rank] != kinds[0] or (kinds[0] != "Box" and item != described[0]):
            raise MismatchError(f"{call}: {what} differs between ranks: {_name(described[0])} on rank 0, {_name(item)} "
                                f"on rank {rank}; give the same distribution on all ranks, or a Box on every rank")
    if kinds[0] != "Box":
        return own
    ndims = [len(item[1]) for item in described]
    for rank, ndim in enumerate(ndims):
        if ndim != ndims[0]:
            raise ValueError(f"{call}: {what} has {ndim} dimensions on rank {rank}, and {ndims[0]} on rank 0")
    return Boxes([Box(item[1], item[2]) for item in described])


def of_matrix(side: Distribution) -> Distribution:
    """A cut of one dimension, as a cut of the rows of a matrix. Other distributions stay."""
    if side.ndim != 1:
        return side
    if isinstance(side, Slab):
        return Slab(side.partition_dim)
    if isinstance(side, (Block, BlockCyclic)):
        grid, first = side.process_grid.with_more(1), (*side.first_process, 0)
        return (Block(grid, first_process=first) if isinstance(side, Block)
                else BlockCyclic(grid, (*side.block_sizes, 1), first_process=first))
    return side


def _name(item: Sequence[Any]) -> str:
    return f"{item[0]}({', '.join(map(str, item[1:]))})"


def at_origin(boxes: Boxes) -> tuple[Boxes, Dims]:
    """The boxes moved so that the smallest box around all begins at 0, and the distance of the move."""
    shares = [box for box in boxes._boxes if all(box.extents)]
    ndim = boxes.ndim or 0
    lower = tuple(min((box.lower[dim] for box in shares), default=0) for dim in range(ndim))
    moved = [Box(tuple(a - b for a, b in zip(box.lower, lower)), tuple(a - b for a, b in zip(box.upper, lower)))
             for box in boxes._boxes]
    return Boxes(moved), lower


def global_shape_of(call: str, distribution: Distribution, shapes: Sequence[Sequence[int]],
                    given: Sequence[int] | None) -> Dims:
    """The global shape of the local ``shapes``, or the given shape."""
    ndims = [len(shape) for shape in shapes]
    for rank, ndim in enumerate(ndims):
        if ndim != ndims[0]:
            raise ValueError(f"{call}: the operand has {ndim} dimensions on rank {rank}, and {ndims[0]} on rank 0")
    if given is not None:
        dims = as_dims(given, "global_shape")
        if len(dims) != ndims[0]:
            raise ValueError(f"{call}: global_shape has {len(dims)} dimensions, the operand {ndims[0]}")
        return dims
    return distribution.infer_global_shape(shapes)


def make_end(call: str, what: str, distribution: Distribution, global_shape: Dims, size: int,
             overlaps: bool = False) -> End:
    """All ranks' shares, which cover the array: once, or at least once with ``overlaps``. ValueError or GapError
    otherwise."""
    shares = tuple(distribution.share(rank, global_shape, size) for rank in range(size))
    if not isinstance(distribution, _OnGrid):
        check_cover(f"{call}: {what}", shares, global_shape, overlaps or isinstance(distribution, Placements))
    return End(distribution, global_shape, shares)


def check_shapes(call: str, what: str, end: End, shapes: Sequence[Sequence[int]]) -> None:
    """BindDistributionError naming the first rank whose local array has another shape than the distribution
    requires."""
    for rank, (share, shape) in enumerate(zip(end.shares, shapes)):
        outside = not share.pieces and math.prod(shape) == 0
        if tuple(shape) != share.local_shape and not outside:
            raise BindDistributionError(
                f"{call}: {what} has shape {list(shape)} on rank {rank}, but {end.distribution} of the global shape "
                f"{list(end.global_shape)} gives that rank {list(share.local_shape)}")


def check_pieces(call: str, what: str, end: End, pieces: Sequence[Any]) -> None:
    """ValueError naming the first rank whose DTensor holds other parts of the array than the distribution requires.
    pieces: by rank, from ``Operand.facts``."""
    for rank, (share, own) in enumerate(zip(end.shares, pieces)):
        if own is not None and own != share.plain:
            raise ValueError(f"{call}: {what} is a DTensor, whose own placements give rank {rank} {said_pieces(own)}, "
                             f"but {end.distribution} of the global shape {list(end.global_shape)} gives that rank "
                             f"{said_pieces(share.plain)}; bring the DTensor there first, by shardwire.redistribute")


def stored_end(call: str, name: str, side: Distribution, of: Sequence[dict[str, Any]],
               given: Sequence[int] | None, size: int) -> End:
    """The checked end of the operand ``name``. of: ``Operand.facts`` by rank. given: the global shape, where known."""
    shapes = [record["shape"] for record in of]
    if isinstance(side, Boxes) and given is None:
        side, _ = at_origin(side)
    dims = global_shape_of(call, side, shapes, given)
    end = make_end(call, f"the distribution of {name}", side, dims, size)
    check_shapes(call, name, end, shapes)
    check_pieces(call, name, end, [record["pieces"] for record in of])
    return end


def said_pieces(pieces: Sequence[Any]) -> str:
    """Pieces, given as plain values, as text: the place of each piece in the global array."""
    regions = [_region(Piece(*(tuple(field) for field in piece))) for piece in pieces[:4]]
    return " and ".join(regions) + (" and more" if len(pieces) > 4 else "") if regions else "nothing"


def is_exact(end: End) -> bool:
    """Whether every element lies on one rank only; at least one rank has each element."""
    return sum(math.prod(share.local_shape) for share in end.shares) == math.prod(end.global_shape)


def check_cover(what: str, shares: Sequence[Share], global_shape: Dims, overlaps: bool) -> None:
    """ValueError where boxes overlap and must not; GapError where no rank holds a part of the array. The texts name
    boxes and ranks."""
    boxes = [(rank, piece) for rank, share in enumerate(shares) for piece in share.pieces if all(piece.shape)]
    if not overlaps:
        _check_overlaps(what, boxes)
        if sum(math.prod(piece.shape) for _, piece in boxes) == math.prod(global_shape):
            return
    gap = _first_gap(global_shape, [piece for _, piece in boxes])
    if gap is not None:
        raise GapError(f"{what} leaves {_region(gap)} of the global shape {list(global_shape)} to no rank")


def _check_overlaps(what: str, boxes: list[tuple[int, Piece]]) -> None:
    if not boxes:
        return
    # Along the dimension with the most cuts, a box meets few others.
    dim = max(range(len(boxes[0][1].shape)), key=lambda dim: len({piece.offset[dim] for _, piece in boxes}), default=-1)
    ordered = boxes if dim < 0 else sorted(boxes, key=lambda item: item[1].offset[dim])
    for place, (rank, piece) in enumerate(ordered):
        for other_rank, other in ordered[place + 1:]:
            if dim >= 0 and other.offset[dim] >= piece.offset[dim] + piece.shape[dim]:
                break
            common = _meet(piece, other)
            if common is not None:
                first, second = sorted((rank, other_rank))
                raise ValueError(f"{what} overlaps: ranks {first} and {second} both have {_region(common)}")


def _meet(a: Piece, b: Piece) -> Piece | None:
    begin = tuple(max(x, y) for x, y in zip(a.offset, b.offset))
    end = tuple(min(x + m, y + n) for x, m, y, n in zip(a.offset, a.shape, b.offset, b.shape))
    return (Piece(begin, tuple(e - s for s, e in zip(begin, end)), begin) if all(e > s for s, e in zip(begin, end))
            else None)


def _first_gap(global_shape: Dims, boxes: Sequence[Piece]) -> Piece | None:
    origin = (0,) * len(global_shape)
    left = [Piece(origin, global_shape, origin)] if all(global_shape) else []
    for box in boxes:
        left = [rest for region in left for rest in _subtract(region, box)]
    return min(left, default=None)


def _subtract(region: Piece, box: Piece) -> list[Piece]:
    common = _meet(region, box)
    if common is None:
        return [region]
    rest = []
    offset, shape = list(region.offset), list(region.shape)
    for dim in range(len(shape)):
        end, cut_begin, cut_end = offset[dim] + shape[dim], common.offset[dim], common.offset[dim] + common.shape[dim]
        for begin, extent in ((offset[dim], cut_begin - offset[dim]), (cut_end, end - cut_end)):
            if extent:
                where = (*offset[:dim], begin, *offset[dim + 1:])
                rest.append(Piece(where, (*shape[:dim], extent, *shape[dim + 1:]), where))
        offset[dim], shape[dim] = cut_begin, common.shape[dim]
    return rest


def _region(piece: Piece) -> str:
    return "[" + ", ".join(f"{begin}:{begin + extent}" for begin, extent in zip(piece.offset, piece.shape)) + "]"
