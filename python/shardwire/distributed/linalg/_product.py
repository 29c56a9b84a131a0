"""One distributed product, compiled: ops that move parts of the matrices, and torch's product of local parts.

A product is cut into panels. While torch multiplies one panel, the next panel of the factors is on the way, and so is
the result of the panel before. Where both factors move, panels are parts of the addends (SUMMA). Otherwise panels are
parts of the rows or columns of the result, and no sum is cut. Every rank has the same number of panels, and panel i is
part i of each rank's own tile.

Sums are in a fixed order: torch's inside a tile, by panels, then by ranks. So results are the same bits in every run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ...compiler.compile_op import CustomOp, compile_op
from ...compiler.future import Future
from ...compiler.spec import Pieces
from ...plain.tensor_bytes import item_bytes
from .. import _runtime
from .._ends import End
from .._fft_chunks import leave_all, wait_for_all
from ..distribution import Piece, Share, Slab
from ..reshape import move
from ._tiling import (Indices, Sides, Tile, choose, is_two_steps, joined, length, moved, name_of, part,
                      share_of)

# Between hosts: the panels of a product, and the minimum of bytes of a panel. On one host, the cores that multiply
# copy, too; there panels only bound the memory for what is gathered.
PANELS, LEAST_BYTES, MOST_BYTES = 4, 1 << 19, 1 << 28
_ROWS, _COLS, _INNER = range(3)


class Types(NamedTuple):
    """dtypes of the factors, of the sums, and of the result."""

    a: torch.dtype
    b: torch.dtype
    sums: torch.dtype
    result: torch.dtype


class Settings(NamedTuple):
    """grid: the caller's, or None. panels: the caller's number, or None. over_wires: whether wires connect hosts of the
    group. Equal on all ranks."""

    grid: tuple[int, int, int] | None
    panels: int | None
    over_wires: bool


class _Factor:
    """A factor that moves into the tiles: an op for each panel, and two buffers in turns."""

    def __init__(self, group: Any, rank: int, end: End, shares: list[list[Share]], dtype: torch.dtype,
                 name: str) -> None:
        self.dtype = dtype
        self.held = bool(end.shares[rank].pieces)
        self.shapes = [of_rank[rank].local_shape for of_rank in shares]
        self.ops = [move(group, rank, end, End(end.distribution, end.global_shape, tuple(of_rank)), dtype, name)
                    for of_rank in shares]
        self.buffers: list[torch.Tensor | None] = [None, None]

    def start(self, number: int, local: torch.Tensor) -> Future:
        """Starts the move of panel ``number``."""
        shape = self.shapes[number]
        buffer = self.buffers[number % 2]
        if buffer is None or buffer.shape != shape or buffer.device != local.device:
            buffer = _kept(shape, self.dtype, local.device)
            self.buffers[number % 2] = buffer
        raw = local.conj() if local.is_conj() else local
        return self.ops[number]([raw] if self.held else [], [buffer] if math.prod(shape) else [])

    def panel(self, number: int, local: torch.Tensor) -> torch.Tensor:
        """Panel ``number``, which has arrived."""
        buffer = self.buffers[number % 2]
        assert buffer is not None
        return buffer.conj() if local.is_conj() else buffer


class _Out(NamedTuple):
    """The op that moves the result of a panel. parts: places in the local part of the result; None: this rank wants
    nothing."""

    op: CustomOp
    is_empty: bool
    parts: tuple[tuple[slice, ...], ...] | None

    def start(self, done: torch.Tensor, result: torch.Tensor) -> Future:
        """Starts the move of ``done`` into ``result``."""
        return self.op([] if self.is_empty else [done], [result[part] for part in self.parts or ()])


class Product:
    """a @ b: the ends are those of the factors as multiplied (M x K, K x N) and of the result. Made by all ranks
    alike."""

    def __init__(self, group: Any, rank: int, a: End, b: End, c: End, types: Types, settings: Settings,
                 name: str) -> None:
        self._rank, self.name, self.settings = rank, name, settings
        self.a, self.b, self.c, self.types = a, b, c, types
        self._is_zero = 0 in (*c.global_shape, a.global_shape[1])
        self._buffer: torch.Tensor | None = None
        self._factors: list[_Factor | None] = [None, None]
        self._out: list[_Out] = []
        self._spread: CustomOp | None = None
        self.panels = 1
        if self._is_zero:
            return
        items = [item_bytes(dtype) for dtype in types]
        sides = Sides(a, b, c, (items[0], items[1], items[2]))
        tiling = choose(sides, settings.grid)
        moves_a, moves_b, self._moves_c = moved(sides, tiling)
        self.tiling, self.algorithm = tiling, name_of(sides, tiling)
        self._tile = tiling.tiles[rank]
        self._axis = _INNER if moves_a and moves_b else _COLS if moves_b else _ROWS
        self.panels = self._count(sides)
        panels = [[self._panel(tile, number) for tile in tiling.tiles] for number in range(self.panels)]
        if moves_a:
            self._factors[0] = self._factor(group, a, [[_share(tile.rows, tile.inner, tile) for tile in of_rank]
                                                for of_rank in panels], types.a, "a")
        if moves_b:
            self._factors[1] = self._factor(group, b, [[_share(tile.inner, tile.cols, tile) for tile in of_rank]
                                                for of_rank in panels], types.b, "b")
        if self._moves_c:
            self._compile_out(group)

    def _factor(self, group: Any, end: End, shares: list[list[Share]], dtype: torch.dtype, which: str) -> _Factor:
        return _Factor(group, self._rank, end, shares, dtype, f"{self.name}, {which}")

    def _count(self, sides: Sides) -> int:
        """The number of panels: at most the number of indices of the largest tile along the axis."""
        moves_a, moves_b, moves_c = moved(sides, self.tiling)
        extent = max(length(tile[self._axis]) for tile in self.tiling.tiles)
        most = max(moves_a * length(tile.rows) * length(tile.inner) * sides.items[0]
                   + moves_b * length(tile.inner) * length(tile.cols) * sides.items[1]
                   + moves_c * length(tile.rows) * length(tile.cols) * sides.items[2] for tile in self.tiling.tiles)
        if not most:
            return 1
        wanted = self.settings.panels
        if wanted is None:
            wanted = max(min(PANELS, most // LEAST_BYTES) if self.settings.over_wires else 1, -(-most // MOST_BYTES))
        return max(1, min(wanted, extent))

    def _panel(self, tile: Tile, number: int) -> Tile:
        axes = list(tile)
        axes[self._axis] = part(tile[self._axis], number, self.panels)
        return Tile(*axes)

    def _compile_out(self, group: Any) -> None:
        """The ops that bring results of tiles to the ranks of the result, and sum where ranks share the addends."""
        tiles, is_cut = self.tiling.tiles, self._axis != _INNER and self.tiling.is_regular and self.panels > 1
        adds = self.tiling.grid[2] > 1
        sums = exact_end(self.c) if is_two_steps(self.c, self.tiling) else self.c
        share = self._middle = sums.shares[self._rank]
        name = f"shardwire.distributed.{self.name}, result"
        for number in range(self.panels if is_cut else 1):
            tile = self._panel(self._tile, number) if is_cut else self._tile
            boxes = _boxes_of(share, self._axis, joined(sorted(
                pair for indices in {of_rank[self._axis] for of_rank in tiles if not of_rank.is_empty}
                for pair in part(indices, number, self.panels)))) if is_cut else []
            outputs = [{"offset": box.offset, "shape": box.shape} for box in boxes] if is_cut else _regions(share)
            op = compile_op(
                group, shape=self.c.global_shape, dtype=self.types.sums, output_dtype=self.types.result,
                inputs=_regions(_share(tile.rows, tile.cols, self._tile)), outputs=outputs,
                reduction="sum" if adds else None, overlap=None if adds else "any", name=name)
            self._out.append(_Out(op, tile.is_empty, tuple(
                tuple(slice(begin, begin + extent) for begin, extent in zip(box.local_offset, box.shape))
                for box in boxes) if is_cut else None if not share.pieces else ((slice(None), slice(None)),)))
        if sums is not self.c:
            self._spread = move(group, self._rank, sums, self.c, self.types.result, f"{self.name}, result")

    # Execution.

    def run(self, a: torch.Tensor, b: torch.Tensor, order: str = "C") -> torch.Tensor:
        """This rank's part of the result. Collective. a, b: the local parts, of any strides, lazily conjugated or not;
        order: of the result in memory, "C" or "F"."""
        target = self.c.shares[self._rank]
        if self._is_zero:
            return torch.zeros(target.local_shape, dtype=self.types.result, device=a.device)
        shape = (0, 0) if self._tile.is_empty else (length(self._tile.rows), length(self._tile.cols))
        if not self._moves_c:
            partial = _runtime.empty(target.local_shape, self.types.sums, a.device, order)
            self._multiply(a, b, partial[:shape[0], :shape[1]], None)
            return partial.to(self.types.result)
        if self._buffer is None or self._buffer.device != a.device:
            self._buffer = _kept(shape, self.types.sums, a.device)
        result = _runtime.empty(target.local_shape, self.types.result, a.device, order)
        if self._spread is None:
            self._multiply(a, b, self._buffer, result)
            return result
        middle = _runtime.empty(self._middle.local_shape, self.types.result, a.device)
        self._multiply(a, b, self._buffer, middle)
        self._spread([middle] if self._middle.pieces else [], [result] if target.pieces else []).wait()
        return result

    def _multiply(self, a: torch.Tensor, b: torch.Tensor, partial: torch.Tensor, result: torch.Tensor | None) -> None:
        """Multiplies panel by panel into ``partial``, and moves from there into ``result``."""
        local, started = (a, b), [self._start(0, a, b)]
        moving: list[Future] = []
        try:
            for number in range(self.panels):
                if number + 1 < self.panels:
                    started.append(self._start(number + 1, *local))
                for future in started[number]:
                    future.wait()
                done = self._of_panel(partial, number)
                if not self._tile.is_empty and done.numel():
                    self._multiply_panel(a, b, done, number)
                if result is not None and len(self._out) > 1:
                    moving.append(self._out[number].start(done, result))
            if result is not None and len(self._out) == 1:
                moving.append(self._out[0].start(partial, result))
        except BaseException:
            leave_all([future for futures in (*started, moving) for future in futures])
            raise
        wait_for_all(moving)

    def _start(self, number: int, a: torch.Tensor, b: torch.Tensor) -> list[Future]:
        return [factor.start(number, local) for factor, local in zip(self._factors, (a, b)) if factor is not None]

    def _of_panel(self, partial: torch.Tensor, number: int) -> torch.Tensor:
        """The part of ``partial`` that a panel concerns."""
        if self._axis == _INNER:
            return partial
        total = partial.shape[self._axis]
        begin, end = total * number // self.panels, total * (number + 1) // self.panels
        return partial[begin:end] if self._axis == _ROWS else partial[:, begin:end]

    def _multiply_panel(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, number: int) -> None:
        first, second = self._factors
        of_a = first.panel(number, a) if first is not None else self._own_part(a, number, _ROWS)
        of_b = second.panel(number, b) if second is not None else self._own_part(b, number, _COLS)
        if not of_a.shape[1]:
            return
        of_a, of_b = of_a.to(self.types.sums), of_b.to(self.types.sums)
        if self._axis == _INNER and length(self._tile.inner) * number // self.panels:
            out.addmm_(of_a, of_b)
        else:
            torch.mm(of_a, of_b, out=out)

    def _own_part(self, local: torch.Tensor, number: int, axis: int) -> torch.Tensor:
        """The part for a panel of a factor that does not move."""
        return self._of_panel(local, number) if self._axis == axis else local

    def release(self) -> None:
        """Frees the memory that runs keep."""
        self._buffer = None
        for factor in self._factors:
            if factor is not None:
                factor.buffers = [None, None]

    def explain(self) -> str:
        """The algorithm and the moves, as text."""
        (m, n), k = self.c.global_shape, self.a.global_shape[1]
        if self._is_zero:
            return f"{self.name}: {m} x {k} times {k} x {n}: nothing to multiply"
        rows, cols, inner = self.tiling.grid
        text = [f"{self.name}: {m} x {k} times {k} x {n}, {self.types.sums}: {self.algorithm}; {rows} x {cols} parts "
                f"of the result, {inner} of the addends; {self.panels} panel{'s' * (self.panels > 1)}"]
        ops = ([op for factor in self._factors if factor is not None for op in factor.ops]
               + [out.op for out in self._out] + [self._spread] * (self._spread is not None))
        return "\n".join(text + [op.explain() for op in ops if op is not None])


def exact_end(end: End) -> End:
    """The array of ``end`` in slabs, each element once."""
    size, dims = len(end.shares), end.global_shape
    slab = Slab(0 if dims[0] >= size else 1)
    return End(slab, dims, tuple(slab.share(rank, dims, size) for rank in range(size)))


def _kept(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):  # a later run may be outside of inference mode
        return _runtime.empty(shape, dtype, device)


def _share(rows: Indices, cols: Indices, tile: Tile) -> Share:
    return Share((0, 0), ()) if tile.is_empty else share_of(rows, cols)


def _boxes_of(share: Share, axis: int, indices: Indices) -> list[Piece]:
    """The boxes of a share at these indices along an axis."""
    boxes = []
    for piece in share.pieces:
        for begin, end in indices:
            low, high = max(begin, piece.offset[axis]), min(end, piece.offset[axis] + piece.shape[axis])
            if low < high and all(piece.shape):
                offset, shape, place = (list(field) for field in piece)
                place[axis] += low - offset[axis]
                offset[axis], shape[axis] = low, high - low
                boxes.append(Piece(tuple(offset), tuple(shape), tuple(place)))
    return boxes


def _regions(share: Share) -> list[Any]:
    return [Pieces(share.local_shape, share.pieces)] if share.pieces else []
