"""The ways to divide a matrix product over ranks, and the choice between them by the bytes that must move.

The product of an M x K and a K x N matrix is M x N x K multiplications. A tiling gives each rank a box of them: some
rows and columns of the result, and some of the K addends of each element. The known algorithms are tilings:

    all-gather + product       ranks share rows or columns; the other matrix is gathered
    product + reduce-scatter   ranks share the addends; the partial results are summed where the result lies
    product + all-reduce       the same, where every rank wants the whole result
    SUMMA                      ranks share rows and columns; parts of both matrices travel along the grid

Candidates are taken from the distributions of the three matrices and from even grids. Everything here is arithmetic:
all ranks compute the same tiling.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Tuple

from .._ends import End, is_exact
from ..distribution import Piece, Share

# Ranges (begin, end) of indices along one dimension, in the order of the local array.
Indices = Tuple[Tuple[int, int], ...]

# The price of an exchange in bytes, and the price of a byte that a rank copies from its own memory.
_LATENCY, _OWN = 1 << 15, 0.25
# Multiplications that take as long as one byte on its way.
_MULTIPLICATIONS_PER_BYTE = 4
# Costs are computed for so many ranks: in large groups for a sample.
_SAMPLE = 64


class Tile(NamedTuple):
    """The part of one rank: rows and columns of the result, and the inner indices of the addends."""

    rows: Indices
    cols: Indices
    inner: Indices

    @property
    def is_empty(self) -> bool:
        """Whether the rank multiplies nothing."""
        return not (self.rows and self.cols and self.inner)


class Tiling(NamedTuple):
    """The tiles by rank. grid: how many different parts of the rows, columns and inner indices there are. is_regular:
    whether the tiles are all combinations of these parts."""

    tiles: tuple[Tile, ...]
    grid: tuple[int, int, int]
    is_regular: bool = True


class Sides(NamedTuple):
    """The ends of the two factors and the result, and the bytes of an element of each."""

    a: End
    b: End
    c: End
    items: tuple[int, int, int]


def indices_of(share: Share, dim: int) -> Indices:
    """The indices that a rank holds along ``dim``, adjacent ranges joined. A share is the product of its indices."""
    found = sorted({(piece.local_offset[dim], piece.offset[dim], piece.shape[dim]) for piece in share.pieces})
    return joined((begin, begin + extent) for _, begin, extent in found)


def joined(ranges: Iterator[tuple[int, int]] | Sequence[tuple[int, int]]) -> Indices:
    """The nonempty ranges, adjacent ones as one."""
    result: list[tuple[int, int]] = []
    for begin, end in ranges:
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        elif end > begin:
            result.append((begin, end))
    return tuple(result)


def length(indices: Indices) -> int:
    """The number of indices."""
    return sum(end - begin for begin, end in indices)


def part(indices: Indices, number: int, count: int) -> Indices:
    """Part ``number`` of ``count`` about equal parts, in the order of the indices."""
    total = length(indices)
    first, last = total * number // count, total * (number + 1) // count
    result, place = [], 0
    for begin, end in indices:
        low, high = max(first, place), min(last, place + end - begin)
        if high > low:
            result.append((begin + low - place, begin + high - place))
        place += end - begin
    return tuple(result)


def share_of(rows: Indices, cols: Indices) -> Share:
    """The share of a rank that holds the product of these indices."""
    pieces, row = [], 0
    for row_begin, row_end in rows:
        col = 0
        for col_begin, col_end in cols:
            pieces.append(Piece((row_begin, col_begin), (row_end - row_begin, col_end - col_begin), (row, col)))
            col += col_end - col_begin
        row += row_end - row_begin
    return Share((length(rows), length(cols)), tuple(pieces))


def holds(share: Share, rows: Indices, cols: Indices) -> bool:
    """Whether the local array of ``share`` is the product of these indices, in this order."""
    return (indices_of(share, 0), indices_of(share, 1)) == (rows, cols)


def common(first: Indices, second: Indices) -> int:
    """The number of indices in both."""
    count, left, right = 0, sorted(first), sorted(second)
    i = j = 0
    while i < len(left) and j < len(right):
        count += max(0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return count


def choose(sides: Sides, grid: tuple[int, int, int] | None = None) -> Tiling:
    """The cheapest tiling. grid: the caller's; ValueError where no tiling has this grid."""
    best, least = None, math.inf
    for tiling in tilings(sides, grid):
        if grid is None or tiling.grid == grid:
            price = cost(sides, tiling)
            if price < least:
                best, least = tiling, price
    if best is None:
        raise ValueError(f"grid is {list(grid or ())}, and there are {len(sides.c.shares)} ranks; give three factors "
                         "of this number: parts of the rows, of the columns and of the addends")
    return best


def tilings(sides: Sides, grid: tuple[int, int, int] | None = None) -> Iterator[Tiling]:
    """The candidates: first from the distributions, then even grids."""
    (m, n), k, size = sides.c.global_shape, sides.a.global_shape[1], len(sides.c.shares)
    held = [[(indices_of(share, 0), indices_of(share, 1)) for share in end.shares] for end in sides[:3]]
    of_a, of_b, of_c = held
    whole = [joined([(0, extent)]) for extent in (m, n, k)]
    rows = [[pair[0] for pair in of_c], [pair[0] for pair in of_a], [whole[0]] * size]
    cols = [[pair[1] for pair in of_c], [pair[1] for pair in of_b], [whole[1]] * size]
    inner = [[whole[2]] * size, [pair[1] for pair in of_a], [pair[0] for pair in of_b]]
    # Where one matrix is cut in any way at all, each rank can multiply what concerns its part.
    irregular: dict[tuple[int, ...], bool] = {
        (0, 0, 0): is_exact(sides.c), (1, 2, 1): is_exact(sides.a), (2, 1, 2): is_exact(sides.b)}
    seen = set()
    for which in itertools.product(range(3), repeat=3):
        tiles = tuple(map(Tile, rows[which[0]], cols[which[1]], inner[which[2]]))
        if tiles in seen:
            continue
        seen.add(tiles)
        found = _grid_of(tiles, (m, n, k))
        if found is not None:
            yield Tiling(tiles, found)
        elif irregular.get(which):
            parts = 1 if which == (0, 0, 0) else size
            yield Tiling(tiles, (size if which[0] != 2 else 1, size if which[1] != 2 else 1, parts), False)
    for shape in _factors(size) if grid is None else [grid] if math.prod(grid) == size else []:
        for order in itertools.permutations(range(3)):
            yield Tiling(_even((m, n, k), shape, order), shape)


def _grid_of(tiles: Sequence[Tile], dims: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """The grid of tiles which are all combinations of parts of the rows, columns and inner indices; None: of others."""
    full = [tile for tile in tiles if not tile.is_empty]
    parts = [{tile[axis] for tile in full} for axis in range(3)]
    for axis, extent in enumerate(dims):
        ranges = sorted(pair for indices in parts[axis] for pair in indices)
        if joined(ranges) != joined([(0, extent)]) or sum(map(length, parts[axis])) != extent:
            return None
    if len(set(full)) != len(full) or len(full) != math.prod(map(len, parts)):
        return None
    return len(parts[0]), len(parts[1]), len(parts[2])


def _factors(size: int) -> Iterator[tuple[int, int, int]]:
    for first in range(1, size + 1):
        if size % first == 0:
            rest = size // first
            yield from ((first, second, rest // second) for second in range(1, rest + 1) if rest % second == 0)


def _even(dims: tuple[int, int, int], grid: tuple[int, int, int], order: Sequence[int]) -> tuple[Tile, ...]:
    """Even parts; order: the axes of the grid, the slowest along the ranks first."""
    tiles = []
    for places in itertools.product(*(range(grid[axis]) for axis in order)):
        at = dict(zip(order, places))
        tiles.append(Tile(*(_even_part(dims[axis], grid[axis], at[axis]) for axis in range(3))))
    return tuple(tiles)


def _even_part(extent: int, count: int, place: int) -> Indices:
    base, more = divmod(extent, count)
    begin = place * base + min(place, more)
    return joined([(begin, begin + base + (place < more))])


def cost(sides: Sides, tiling: Tiling) -> float:
    """The busiest rank's bytes on their way, with its multiplications counted as bytes."""
    moves_a, moves_b, moves_c = moved(sides, tiling)
    size = len(tiling.tiles)
    most = 0.0
    for rank in range(0, size, max(1, size // _SAMPLE)):
        tile = tiling.tiles[rank]
        price = length(tile.rows) * length(tile.cols) * length(tile.inner) / _MULTIPLICATIONS_PER_BYTE
        for moves, end, item, (rows, cols) in ((moves_a, sides.a, sides.items[0], (tile.rows, tile.inner)),
                                               (moves_b, sides.b, sides.items[1], (tile.inner, tile.cols))):
            if moves:
                own = _own(end, rank, rows, cols)
                price += item * (length(rows) * length(cols) - (1 - _OWN) * own)
        if moves_c:
            own = 0 if tile.is_empty else _own(sides.c, rank, tile.rows, tile.cols)
            given = 0 if tile.is_empty else length(tile.rows) * length(tile.cols)
            taken = math.prod(sides.c.shares[rank].local_shape)
            if is_two_steps(sides.c, tiling):
                busy = 2 * max(given, taken)
            else:
                busy = max(given, taken * tiling.grid[2]) - own
            price += sides.items[2] * (busy + _OWN * own)
        most = max(most, price)
    return most + _LATENCY * (moves_a + moves_b + moves_c)


def _own(end: End, rank: int, rows: Indices, cols: Indices) -> int:
    share = end.shares[rank]
    return common(rows, indices_of(share, 0)) * common(cols, indices_of(share, 1))


def moved(sides: Sides, tiling: Tiling) -> tuple[bool, bool, bool]:
    """Which of the three matrices must move: not where every rank has what its tile needs, or makes what it wants."""
    full = [(rank, tile) for rank, tile in enumerate(tiling.tiles) if not tile.is_empty]
    return (any(not holds(sides.a.shares[rank], tile.rows, tile.inner) for rank, tile in full),
            any(not holds(sides.b.shares[rank], tile.inner, tile.cols) for rank, tile in full),
            tiling.grid[2] > 1 or any(
                not (share.is_empty if tile.is_empty else holds(share, tile.rows, tile.cols))
                for share, tile in zip(sides.c.shares, tiling.tiles)))


def is_two_steps(c: End, tiling: Tiling) -> bool:
    """Whether sums that several ranks want are computed once, by slabs, and then spread."""
    return tiling.grid[2] > 1 and len(c.shares) > 2 and not is_exact(c)


def name_of(sides: Sides, tiling: Tiling) -> str:
    """The algorithm in the field's words."""
    moves_a, moves_b, moves_c = moved(sides, tiling)
    rows, cols, inner = tiling.grid
    if inner > 1:
        gathers = "all-gather + " if moves_a or moves_b else ""
        return f"{gathers}product + {'reduce-scatter' if is_exact(sides.c) else 'all-reduce'}"
    if rows > 1 and cols > 1 and moves_a and moves_b:
        return "SUMMA"
    return ("all-gather + " if moves_a or moves_b else "") + "product" + (" + move" if moves_c else "")
