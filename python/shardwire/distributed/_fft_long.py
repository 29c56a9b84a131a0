"""The route of a transform along an axis that stays cut: the four-step algorithm.

An axis of n = rows * width indices is folded into two: index j of the operand lies at row j // width and column j %
width. Four steps follow, all over all ranks:

1. Each rank gets whole columns, and transforms along the rows' axis (and along all other axes).
2. Each element is multiplied by a twiddle factor, exp(-2 pi i row column / n).
3. Each rank gets whole rows, and transforms along the columns' axis.
4. Index row + rows * column of the result goes where the caller wants this index.

So each rank transforms and stores its part only, in three exchanges. Without this route one rank transforms the whole
axis.

A real array takes half of the arithmetic and half of the bytes. Step 1 of R2C transforms real columns into rows 0 to
rows // 2, and steps 2 and 3 need these rows only. Index k of the result and index n - k are conjugate numbers, so a row
r > 0 also has the elements of row rows - r, in the other order. Step 4 takes both from it: the first half of row r, and
the second half, conjugated and reversed, for row rows - r. C2R goes the other way: its first exchange brings the two
halves of columns 0 to width // 2 from half a spectrum, and step 3 makes real rows. So the mirror image needs no
exchange of its own, and odd lengths are no other case. Where the real axis is another one than the folded one, it is
whole, and needs no mirror image.

Pure arithmetic, the same on every rank, except for ``factors`` and ``run_refold``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from ..compiler.compile_op import CustomOp, compile_op
from ..compiler.layout import MAX_DIMS
from . import _fft_route
from ._ends import End
from ._fft_route import (Local, Move, Problem, Route, Step, Turn, _full, _largest, _move_cost, find_route,
                         transform_cost)
from ._grid import ProcessGrid
from .distribution import BlockCyclic, Dims, Distribution, Piece, Share, Slab

# A rank's local array is folded as so many boxes at most; an array in more boxes is first brought into slabs.
_MOST_VIEWS = 64
# So many foldings of an axis are compared.
_MOST_SPLITS = 3
# A multiplication by the twiddle factors, for each byte, relative to one byte moved between ranks.
_TURN = 0.25
# The cost of five steps besides bytes and exchanges, in bytes. On two ranks the route is then taken from 2^17 complex64
# on: the route was slower at 2^16 and faster at 2^18 (docs/benchmarks.md).
_STEPS = 700_000
# Larger prime factors are not looked for.
_LARGEST_FACTOR = 1 << 20
# Twiddle factors are computed in blocks of so many, in double precision.
_BLOCK = 1 << 18


class View(NamedTuple):
    """A box of the folded array in a local array that is not folded. place: the begin in the local array; step: from
    one row to the next, in indices of the local array."""

    offset: Dims
    shape: Dims
    place: Dims
    step: int


class Refold(NamedTuple):
    """The array goes from ``plain`` to the folded array, or back where ``is_last``. views: by rank, of ``plain``.
    split: the extents of the folded axis. is_complex: complex elements move. half: None, or ``plain`` is half the
    spectrum of a real array along ``axis``, and ``folded`` comes from ``_half_end``; half: the other axes that are
    transformed, as dimensions of the folded array."""

    plain: End
    folded: End
    axis: int
    views: tuple[tuple[View, ...], ...]
    split: tuple[int, int]
    is_last: bool
    is_complex: bool
    half: Dims | None

    @property
    def source(self) -> End:
        return self.folded if self.is_last else self.plain

    @property
    def target(self) -> End:
        return self.plain if self.is_last else self.folded


def find(problem: Problem, source: End, target: End | None) -> Route:
    """The cheapest route, with an axis that stays cut or without; arguments as of ``find_route``."""
    best = find_route(problem, source, target)
    # The folded array has one dimension more, and a move takes MAX_DIMS.
    if len(source.shares) > 1 and best.cost > 2 * _fft_route._LATENCY and len(problem.shape) < MAX_DIMS:
        for axis in problem.axes:
            for split in _splits_of(problem, axis, source, target):
                route = _route(problem, source, target, axis, split)
                if route.cost < best.cost:
                    best = route
    return best


def _splits_of(problem: Problem, axis: int, source: End, target: End | None) -> Iterator[tuple[int, int]]:
    """Foldings of an axis, (rows, width): foldings that a block-cyclic end has already, and even ones."""
    extent, size = _full(problem)[axis], len(source.shares)
    seen = set()
    for end in (source, target):
        if end is not None and isinstance(end.distribution, BlockCyclic):
            width = max((piece.shape[axis] for share in end.shares for piece in share.pieces), default=0) * size
            if 1 < width < extent and extent % width == 0:
                seen.add((extent // width, width) if end is source else (width, extent // width))
    yield from sorted(seen)
    yield from (split for split in splits(extent, size) if split not in seen)


@functools.lru_cache(maxsize=64)
def splits(extent: int, size: int) -> tuple[tuple[int, int], ...]:
    """The best foldings (rows, width) for ``size`` ranks, the best first; none for a prime and for 1."""
    divisors, rest, factor = [1], extent, 2
    while rest > 1:
        if factor > _LARGEST_FACTOR or factor * factor > rest:
            factor = rest
        powers, power = [1], 1
        while rest % factor == 0:
            rest, power = rest // factor, power * factor
            powers.append(power)
        divisors = [one * other for one in divisors for other in powers]
        factor += 1

    def order(rows: int) -> tuple[float, int]:
        """The largest rank's elements first. Transforms are fast where both extents are about equal."""
        width = extent // rows
        return (max(-(-rows // size) * width, -(-width // size) * rows)
                * (1 + 0.02 * abs(math.log2(rows / width))), rows)

    return tuple((rows, extent // rows)
                 for rows in sorted(divisors, key=order) if 1 < rows < extent)[:_MOST_SPLITS]


def _route(problem: Problem, source: End, target: End | None, axis: int, split: tuple[int, int]) -> Route:
    size, item, kind, (rows, width) = len(source.shares), problem.item_bytes, problem.kind, split
    folded, turned = _with(problem.shape, axis, split), _with(problem.result_shape, axis, (width, rows))
    inner: Dims = tuple(dim + (dim > axis) for dim in problem.axes)
    outer: Dims = (axis + 1,)
    real = inner[-1]
    half = tuple(dim for dim in inner if dim != axis) if kind != "C2C" and real == axis else None
    between = folded  # the array of step 2: where the operand is real, half of it
    if kind == "R2C" or half is not None:
        halved = real if kind == "R2C" else axis + 1
        between = (*folded[:halved], folded[halved] // 2 + 1, *folded[halved + 1:])
    elif kind == "C2R":
        inner, outer = inner[:-1], (axis + 1, real)
    columns, lines = _end(Slab(axis + 1), between, size), _end(Slab(axis), between, size)
    steps: list[Step] = []
    cost = float(_STEPS)
    is_complex = kind != "R2C"
    views = fold(source, axis, width)
    if max(map(len, views)) > _MOST_VIEWS:
        slabs = _end(Slab(axis), source.global_shape, size)
        steps.append(Move(source, slabs, is_complex))
        cost += _move_cost(source, slabs, _item(problem, is_complex))
        source, views = slabs, fold(slabs, axis, width)
    is_half = half is not None and kind == "C2R"
    first = _folded_end(axis, folded, size, is_half)
    steps.append(Refold(source, first, axis, views, split, False, is_complex, half if is_half else None))
    cost += _exchange_cost(_seen(source, folded, views), first, _item(problem, is_complex))
    # The gradient of a half spectrum counts each element once; of the whole spectrum most stand for two.
    scale = {"R2C": 2.0, "C2R": 0.5}[kind] if half is not None and problem.adjoint else 1.0
    real_lines = _end(Slab(axis), _with(problem.result_shape, axis, split), size) if kind == "C2R" else lines
    steps += [Local(inner, kind == "R2C", columns, Turn(axis, rows * width, scale)), Move(columns, lines, True),
              Local(outer, kind == "C2R", real_lines)]
    extents = _with(_full(problem), axis, split)
    # As in find_route: an array before its transform, of which reals count as complex elements.
    cost += transform_cost([extents[dim] for dim in inner], first if kind == "R2C" else columns, item)
    cost += _TURN * _largest(columns) * item
    cost += _move_cost(columns, lines, item) + transform_cost([extents[dim] for dim in outer], lines, item)
    is_complex = kind != "C2R"
    is_half = half is not None and kind == "R2C"
    final = _open_end(problem, axis, rows, size, is_half) if target is None else target
    views, slabs = fold(final, axis, rows), final
    if max(map(len, views)) > _MOST_VIEWS:
        slabs = _end(Slab(axis), problem.result_shape, size)
        views = fold(slabs, axis, rows)
    last = _folded_end(axis, turned, size, is_half)
    steps.append(Refold(slabs, last, axis, views, (width, rows), True, is_complex, half if is_half else None))
    cost += _exchange_cost(last, _seen(slabs, turned, views), _item(problem, is_complex))
    if slabs is not final:
        steps.append(Move(slabs, final, is_complex))
        cost += _move_cost(slabs, final, _item(problem, is_complex))
    return Route(tuple(steps), final, cost)


def _with(dims: Dims, axis: int, pair: tuple[int, int]) -> Dims:
    return (*dims[:axis], *pair, *dims[axis + 1:])


def _end(distribution: Distribution, dims: Dims, size: int) -> End:
    return End(distribution, dims, tuple(distribution.share(rank, dims, size) for rank in range(size)))


def _folded_end(axis: int, dims: Dims, size: int, is_half: bool) -> End:
    """The folded array, each rank with whole columns. is_half: with columns 0 to width // 2 only. A second piece of a
    rank is then the second half of these columns: conjugated, and in the other order of rows and columns."""
    end = _end(Slab(axis + 1), dims, size)
    if not is_half:
        return end
    rows, width = dims[axis:axis + 2]
    kept = _end(Slab(axis + 1), (*dims[:axis + 1], width // 2 + 1, *dims[axis + 2:]), size)
    return End(end.distribution, dims, tuple(
        Share(share.local_shape, tuple(half for piece in share.pieces for half in _halves(piece, axis, rows, width)))
        for share in kept.shares))


def _halves(piece: Piece, axis: int, rows: int, width: int) -> Iterator[Piece]:
    """The columns of ``piece`` as two pieces of the folded array; the second one without columns 0 and width / 2, which
    are their own mirror images."""
    begin, count = piece.offset[axis + 1], piece.shape[axis + 1]
    first, end = max(begin, 1), min(begin + count, (width + 1) // 2)
    for height, at, place, columns in ((rows // 2 + 1, (0, begin), (0, 0), count),
                                       (rows // 2, (0, width - end + 1), (rows - rows // 2, first - begin),
                                        end - first)):
        if columns > 0:
            yield Piece((*piece.offset[:axis], *at, *piece.offset[axis + 2:]),
                        (*piece.shape[:axis], height, columns, *piece.shape[axis + 2:]),
                        (*piece.local_offset[:axis], *place, *piece.local_offset[axis + 2:]))


def _item(problem: Problem, is_complex: bool) -> int:
    return problem.item_bytes if is_complex else problem.item_bytes // 2


def _open_end(problem: Problem, axis: int, rows: int, size: int, is_half: bool) -> End:
    """The cheapest end: each rank keeps what the rank has computed, which is block-cyclic, where all have as many rows;
    else slabs. Of half a spectrum a rank has computed rows of both ends, which no block-cyclic end keeps."""
    dims = problem.result_shape
    if rows % size or is_half:
        return _end(Slab(axis), dims, size)
    grid = ProcessGrid(shape=_with((1,) * len(dims), axis, (size,)),  # type: ignore[arg-type]
                       layout=ProcessGrid.Layout.ROW_MAJOR)
    return _end(BlockCyclic(grid, [rows // size if dim == axis else max(extent, 1)
                                   for dim, extent in enumerate(dims)]), dims, size)


def _exchange_cost(source: End, target: End, item: int) -> float:
    """As _move_cost; without the latency of an exchange where nothing goes to another rank."""
    own = all(sum(math.prod(piece.shape) for piece in before.pieces) == sum(
        _fft_route._common(a.offset, a.shape, b.offset, b.shape) for a in before.pieces for b in after.pieces)
              for before, after in zip(source.shares, target.shares))
    return _move_cost(source, target, item) - (_fft_route._LATENCY if own else 0)


def _seen(end: End, folded: Dims, views: Sequence[Sequence[View]]) -> End:
    """``end`` with its pieces as boxes of the folded array."""
    return End(end.distribution, folded, tuple(
        Share(share.local_shape, tuple(Piece(view.offset, view.shape, view.place) for view in of_rank))
        for share, of_rank in zip(end.shares, views)))


def fold(end: End, axis: int, width: int) -> tuple[tuple[View, ...], ...]:
    """The local arrays of ``end`` as boxes of the array whose ``axis`` is folded into rows of ``width``."""
    folded = []
    for share in end.shares:
        views: list[View] = []
        for piece in share.pieces:
            if not all(piece.shape):
                continue
            begin, left, place = piece.offset[axis], piece.shape[axis], piece.local_offset[axis]
            while left:
                row, column = divmod(begin, width)
                whole = left // width if not column else 0
                count, across = (whole, width) if whole else (1, min(width - column, left))
                _append(views, axis, View(
                    (*piece.offset[:axis], row, column, *piece.offset[axis + 1:]),
                    (*piece.shape[:axis], count, across, *piece.shape[axis + 1:]),
                    (*piece.local_offset[:axis], place, *piece.local_offset[axis + 1:]), width))
                begin, left, place = begin + count * across, left - count * across, place + count * across
        folded.append(tuple(views))
    return tuple(folded)


def _append(views: list[View], axis: int, view: View) -> None:
    """Appends ``view``, or makes the last view longer where ``view`` has its next rows, equally far in memory."""
    if views:
        last = views[-1]
        count, more = last.shape[axis], view.shape[axis]
        step = view.place[axis] - last.place[axis] if count == 1 else last.step
        if ((*view.offset[:axis], *view.offset[axis + 1:]) == (*last.offset[:axis], *last.offset[axis + 1:])
                and (*view.shape[:axis], *view.shape[axis + 1:]) == (*last.shape[:axis], *last.shape[axis + 1:])
                and (*view.place[:axis], *view.place[axis + 1:]) == (*last.place[:axis], *last.place[axis + 1:])
                and view.offset[axis] == last.offset[axis] + count and step > 0
                and view.place[axis] == last.place[axis] + count * step and (more == 1 or view.step == step)):
            views[-1] = last._replace(shape=(*last.shape[:axis], count + more, *last.shape[axis + 1:]), step=step)
            return
    views.append(view)


def view_of(tensor: torch.Tensor, axis: int, view: View) -> torch.Tensor:
    """The part of a local tensor, with any strides, as a box of the folded array."""
    strides = tensor.stride()
    begin = tensor.storage_offset() + sum(place * stride for place, stride in zip(view.place, strides))
    return tensor.as_strided(view.shape, _with(strides, axis, (view.step * strides[axis], strides[axis])), begin)


def factors(turn: Turn, end: End, rank: int, inverse: bool, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The twiddle factors for the columns of ``rank``; other dimensions have one index."""
    share = end.shares[rank]
    rows, first = share.local_shape[turn.axis], share.pieces[0].offset[turn.axis + 1]
    columns = torch.arange(first, first + share.local_shape[turn.axis + 1], device="cpu")
    table = torch.empty((rows, len(columns)), dtype=dtype, device="cpu")
    step = max(1, _BLOCK // max(1, len(columns)))
    for begin in range(0, rows, step):
        some = torch.arange(begin, min(rows, begin + step), device="cpu")
        angles = (some[:, None] * columns % turn.extent).to(torch.float64) * (2 * math.pi / turn.extent)
        table[begin:begin + step] = torch.polar(torch.full_like(angles, turn.scale), angles if inverse else -angles)
    shape = [1] * len(share.local_shape)
    shape[turn.axis:turn.axis + 2] = table.shape
    return table.reshape(shape).to(device)


def compile_refold(group: Any, rank: int, step: Refold, dtype: torch.dtype, name: str,
                   reduction: str | None) -> CustomOp:
    """The compiled op of ``step``. Collective."""
    plain = [{"offset": view.offset, "shape": view.shape} for view in step.views[rank]]
    folded = [{"offset": piece.offset, "shape": piece.shape} for piece in _pieces(step, rank)]
    inputs, outputs = (folded, plain) if step.is_last else (plain, folded)
    # Of an even number of rows, half a spectrum has only the first element of the row in the middle.
    return compile_op(group, shape=step.folded.global_shape, dtype=dtype, inputs=inputs, outputs=outputs,
                      reduction=reduction, overlap=None if reduction else "any",
                      allow_gaps=step.half is not None and not step.is_last, name=f"shardwire.distributed.{name}")


def _pieces(step: Refold, rank: int) -> list[Piece]:
    return [piece for piece in step.folded.shares[rank].pieces if all(piece.shape)]


def run_refold(op: CustomOp, rank: int, step: Refold, source: torch.Tensor, target: torch.Tensor, weight: float,
               room: Callable[[Dims], torch.Tensor]) -> None:
    """Brings ``source`` to ``target``: the local arrays of the step's ends, the folded array in the order of step 3.

    weight: of half a spectrum, a factor on the elements that stand for themselves alone. room: memory for the second
    half of the columns. The last step writes to ``source``."""
    axis, pieces = step.axis, _pieces(step, rank)
    grid = source.transpose(axis, axis + 1) if step.is_last else target
    plain = [view_of(target if step.is_last else source, axis, view) for view in step.views[rank]]
    parts = [grid[tuple(slice(at, at + extent) for at, extent in zip(piece.local_offset, piece.shape))]
             for piece in pieces]
    mirrored = parts[1] if len(parts) > 1 else None
    if mirrored is not None:
        parts[1] = room(tuple(mirrored.shape))
    if step.is_last:
        if pieces and weight != 1.0:
            _weigh_ends(grid, step, pieces[0].offset[axis + 1], weight)
        if mirrored is not None:
            _mirror(parts[1], mirrored, step)
        op(parts, plain).wait()
        return
    op(plain, parts).wait()
    if mirrored is not None:
        _mirror(mirrored, parts[1], step)
    if pieces and step.half is not None:
        _complete(grid, step, pieces[0].offset[axis + 1])
        if weight != 1.0:
            _weigh_ends(grid, step, pieces[0].offset[axis + 1], weight)


def _mirror(target: torch.Tensor, source: torch.Tensor, step: Refold) -> None:
    """Writes the mirror image of some columns without the first: index k goes to n - k, and index 0 of the other
    transformed axes stays."""
    assert step.half is not None
    image = source.flip((step.axis, step.axis + 1, *step.half))
    target.copy_((image.roll([1] * len(step.half), step.half) if step.half else image).conj())


def _complete(grid: torch.Tensor, step: Refold, begin: int) -> None:
    """The second half of the columns that are their own mirror images: 0, whose first element has no partner, and of an
    even width width / 2. begin: the rank's first column."""
    axis, (rows, width) = step.axis, step.split
    for column, first in ((0, 1), (width // 2, 0))[:2 - width % 2]:
        if begin <= column < begin + grid.shape[axis + 1]:
            line, count = grid.narrow(axis + 1, column - begin, 1), (rows - first) // 2
            _mirror(line.narrow(axis, rows - count, count), line.narrow(axis, first, count), step)


def _weigh_ends(grid: torch.Tensor, step: Refold, begin: int, weight: float) -> None:
    """Multiplies the elements of half a spectrum that stand for themselves alone: the first and, of an even extent, the
    last. In place. begin: the rank's first column."""
    rows, width = step.split
    extent = rows * width
    for index in {0} | ({extent // 2} if extent % 2 == 0 else set()):
        row, column = divmod(index, width)
        if begin <= column < begin + grid.shape[step.axis + 1]:
            grid.select(step.axis + 1, column - begin).select(step.axis, row).mul_(weight)
