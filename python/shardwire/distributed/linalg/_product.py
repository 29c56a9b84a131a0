"""One distributed product, compiled: the moves as ops, and torch's product of the local parts between them.

A product is cut into panels: while torch multiplies one panel, the next is on its way. Where both factors move, panels
are parts of the addends (SUMMA); where one moves, parts of its own rows or columns, so that no sum is cut. Every rank
has the same number of panels, and panel i is part i of each rank's own tile.

Sums are in a fixed order: torch's inside a tile, by panels, then by ranks. So results are the same bits in every run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ...compiler.compile_op import CustomOp, compile_op
from ...compiler.future import Future
from ...compiler.spec import Pieces
from .. import _runtime
from .._ends import End
from .._fft_chunks import leave_all
from ..distribution import Share, Slab
from ..reshape import move
from ._tiling import (Indices, Sides, Tile, Tiling, choose, is_two_steps, length, moved, name_of, part,
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
    """One factor on its way into the tiles: an op for each panel, or none where each rank has what it needs."""

    def __init__(self, group: Any, rank: int, end: End, shares: list[list[Share]], dtype: torch.dtype,
                 name: str) -> None:
        self.dtype = dtype
        self.held = bool(end.shares[rank].pieces)
        self.shapes = [of_rank[rank].local_shape for of_rank in shares]
        self.ops = [move(group, rank, end, End(end.distribution, end.global_shape, tuple(of_rank)), dtype, name)
                    for of_rank in shares]
        self.buffers: list[torch.Tensor | None] = [None, None]

    def start(self, number: int, local: torch.Tensor) -> Future:
        """Starts panel ``number``; its buffer is that of the panel before the last one."""
        shape = self.shapes[number]
        buffer = self.buffers[number % 2]
        if buffer is None or buffer.shape != shape or buffer.device != local.device:
            buffer = _kept(shape, self.dtype, local.device)
            self.buffers[number % 2] = buffer
        raw = local.conj() if local.is_conj() else local  # bytes move as they lie in memory
        return self.ops[number]([raw] if self.held else [], [buffer] if math.prod(shape) else [])

    def panel(self, number: int, local: torch.Tensor) -> torch.Tensor:
        """Panel ``number``, which has arrived."""
        buffer = self.buffers[number % 2]
        assert buffer is not None
        return buffer.conj() if local.is_conj() else buffer


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
        self._out: list[CustomOp] = []
        self.panels = 1
        if self._is_zero:
            return
        items = [torch.empty(0, dtype=dtype, device="cpu").element_size() for dtype in types]
        sides = Sides(a, b, c, (items[0], items[1], items[2]))
        tiling = choose(sides, settings.grid)
        moves_a, moves_b, self._moves_c = moved(sides, tiling)
        self.tiling, self.algorithm = tiling, name_of(sides, tiling)
        self._tile = tiling.tiles[rank]
        self._axis = _INNER if moves_a == moves_b else _ROWS if moves_a else _COLS
        self.panels = self._count(sides, moves_a, moves_b)
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

    def _count(self, sides: Sides, moves_a: bool, moves_b: bool) -> int:
        """The number of panels: at most as many as the largest tile has indices along the axis."""
        extent = max(length(tile[self._axis]) for tile in self.tiling.tiles)
        most = max(moves_a * length(tile.rows) * length(tile.inner) * sides.items[0]
                   + moves_b * length(tile.inner) * length(tile.cols) * sides.items[1] for tile in self.tiling.tiles)
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
        """The ops that bring the parts of the result to its ranks, and sum them where ranks share the addends."""
        source = End(self.c.distribution, self.c.global_shape,
                     tuple(_share(tile.rows, tile.cols, tile) for tile in self.tiling.tiles))
        name = f"{self.name}, result"
        if self.tiling.grid[2] == 1:
            self._out = [move(group, self._rank, source, self.c, self.types.result, name)]
            return
        sums = exact_end(self.c) if is_two_steps(self.c, self.tiling) else self.c
        self._middle = sums.shares[self._rank]
        self._out = [compile_op(
            group, shape=self.c.global_shape, dtype=self.types.sums, output_dtype=self.types.result,
            inputs=_regions(source.shares[self._rank]), outputs=_regions(self._middle), reduction="sum",
            name=f"shardwire.distributed.{name}")]
        if sums is not self.c:
            self._out.append(move(group, self._rank, sums, self.c, self.types.result, name))

    # Execution.

    def run(self, a: torch.Tensor, b: torch.Tensor, order: str = "C") -> torch.Tensor:
        """This rank's part of the result. Collective. a, b: the local parts, of any strides, lazily conjugated or not;
        order: of the result in memory, "C" or "F"."""
        target = self.c.shares[self._rank]
        if self._is_zero:
            return torch.zeros(target.local_shape, dtype=self.types.result, device=a.device)
        shape = ((0, 0) if self._tile.is_empty else (length(self._tile.rows), length(self._tile.cols)))
        partial = self._room(shape if self._moves_c else target.local_shape, a.device, order)
        self._multiply(a, b, partial[:shape[0], :shape[1]])
        if not self._moves_c:
            return partial.to(self.types.result)
        if self.tiling.grid[2] == 1:
            partial = partial.to(self.types.result)
        given = [] if self._tile.is_empty else [partial]
        result = _runtime.empty(target.local_shape, self.types.result, a.device, order)
        if len(self._out) == 2:
            middle = _runtime.empty(self._middle.local_shape, self.types.result, a.device)
            self._out[0](given, [middle] if self._middle.pieces else []).wait()
            given = [middle] if self._middle.pieces else []
        self._out[-1](given, [result] if target.pieces else []).wait()
        return result

    def _room(self, shape: tuple[int, ...], device: torch.device, order: str) -> torch.Tensor:
        """Memory for the sums: kept between runs where they move on."""
        if not self._moves_c:
            return _runtime.empty(shape, self.types.sums, device, order)
        if self._buffer is None or self._buffer.device != device:
            self._buffer = _kept(shape, self.types.sums, device)
        return self._buffer

    def _multiply(self, a: torch.Tensor, b: torch.Tensor, partial: torch.Tensor) -> None:
        local, moving = (a, b), [factor for factor in self._factors if factor is not None]
        started: list[list[Future]] = []

        def start(number: int) -> None:
            started.append([factor.start(number, local[which]) for which, factor in enumerate(self._factors)
                            if factor is not None])
        try:
            if moving:
                start(0)
            for number in range(self.panels):
                if moving:
                    if number + 1 < self.panels:
                        start(number + 1)
                    for future in started[number]:
                        future.wait()
                if not self._tile.is_empty:
                    self._multiply_panel(a, b, partial, number)
        except BaseException:
            leave_all([future for futures in started for future in futures])
            raise

    def _multiply_panel(self, a: torch.Tensor, b: torch.Tensor, partial: torch.Tensor, number: int) -> None:
        first, second = self._factors
        total = length(self._tile[self._axis])
        begin, end = total * number // self.panels, total * (number + 1) // self.panels
        if begin == end:
            return
        of_a = first.panel(number, a) if first is not None else a
        of_b = second.panel(number, b) if second is not None else b
        out = partial
        if self._axis == _ROWS:
            out = partial[begin:end]
        elif self._axis == _COLS:
            out = partial[:, begin:end]
        of_a, of_b = of_a.to(self.types.sums), of_b.to(self.types.sums)
        if self._axis == _INNER and begin:
            out.addmm_(of_a, of_b)
        else:
            torch.mm(of_a, of_b, out=out)

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
        text = [f"{self.name}: {m} x {k} times {k} x {n}, {self.types.sums}: {self.algorithm}; {rows} x {cols} parts of "
                f"the result, {inner} of the addends; {self.panels} panel{'s' * (self.panels > 1)}"]
        ops = [op for factor in self._factors if factor is not None for op in factor.ops] + self._out
        return "\n".join(text + [op.explain() for op in ops])


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


def _regions(share: Share) -> list[Any]:
    return [Pieces(share.local_shape, share.pieces)] if share.pieces else []
