"""Factors of one matrix whose columns are dealt to the ranks in panels, and the solution of systems with these factors.

Every rank holds whole columns. So pivots are found, and rows swapped, without communication: the owner of a panel
factorizes it alone (torch's LAPACK), and sends it once to all ranks. LU with partial pivoting: P A = L U. Cholesky:
A = L L^H. For each panel, in the order of the columns:

    1. all ranks receive the panel, with the rows to be swapped;
    2. the owner of the next panel swaps and updates the next panel, factorizes it, and starts to send it;
    3. all ranks swap and update their other columns to the right, while the next panel is on its way.

The columns to the left get all swaps of the panels behind them at the end, in one pass.

A product whose inner size is one panel is slow: it reads and writes all columns to the right for few multiplications.
So for Cholesky adjacent panels form a group. A panel updates at once only the columns of its own group. At the end of a
group, all its panels together update the next group, and then the columns behind the next group, in parts: after each
part, a panel that has arrived goes first. A column gets the same updates in the same order and parts, whenever panels
arrive. LU has no groups: the swaps inside a group took longer than the group saved with up to 2,048 columns.

Systems are solved by blocks of rows. By columns (L, and U): each rank adds up what its columns contribute; a block's
owner gets the sum from all ranks, solves the block, and goes on with its columns. By rows (L^H): a block's owner sends
the solved block to all ranks, since L^H has its columns where L has its rows. In both, the next block goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import _runtime


# Columns of a group of Cholesky's panels, and own columns that are updated at once.
AT_ONCE = 256
# Own columns for which Cholesky computes the same rows: products of few columns are slow, and of many compute more
# above the diagonal.
STEP = 64


class Panels(NamedTuple):
    """n columns in panels of ``width``, dealt in turns to ``size`` ranks; seen from ``rank``."""

    n: int
    width: int
    size: int
    rank: int

    @property
    def total(self) -> int:
        """The number of panels."""
        return -(-self.n // self.width)

    def owner(self, panel: int) -> int:
        """The rank that holds the panel."""
        return panel % self.size

    def is_mine(self, panel: int) -> bool:
        """Whether this rank holds the panel."""
        return self.owner(panel) == self.rank

    def span(self, panel: int) -> slice:
        """The panel's columns in the matrix, and the rows of its block on the diagonal."""
        return slice(panel * self.width, min(self.n, (panel + 1) * self.width))

    def place(self, panel: int) -> slice:
        """The columns of an own panel in the local array."""
        span, begin = self.span(panel), panel // self.size * self.width
        return slice(begin, begin + span.stop - span.start)

    def after(self, panel: int) -> int:
        """The local column where own panels behind ``panel`` begin."""
        return ((panel - self.rank) // self.size + 1) * self.width

    def row(self, column: int) -> int:
        """The column of the matrix that is the local column ``column``."""
        return (column // self.width * self.size + self.rank) * self.width + column % self.width

    @property
    def mine(self) -> Sequence[int]:
        """The own panels."""
        return range(self.rank, self.total, self.size)


class _Message(NamedTuple):
    """A factorized panel on its way: the rows from the diagonal on, LAPACK's pivots, and 0 or the number of the first
    column without a pivot. All are views of the memory that is sent, which has the rows from the first diagonal of the
    group on, so that the panels of a group are one matrix. The next panel of the group overwrites the numbers."""

    factors: torch.Tensor
    pivots: torch.Tensor
    failed: torch.Tensor


class _Block(NamedTuple):
    """Factorized panels as one: their columns in the matrix, and the factors from the first diagonal on."""

    span: slice
    factors: torch.Tensor


class Factors:
    """The factors of one matrix.

    backend: of the group. columns: the own columns (n rows; Fortran order is the fastest), overwritten by the
    factors.
    """

    _has_groups = False

    def __init__(self, backend: Any, panels: Panels, columns: torch.Tensor) -> None:
        self._backend, self._panels, self._columns = backend, panels, columns
        self._at_once = max(1, AT_ONCE // panels.width)  # panels
        item, width = columns.element_size(), len(self._group(0)) * panels.width
        self._buffers = [_runtime.empty((panels.n * width * item + 4 * (panels.width + 1),), torch.uint8,
                                        columns.device) for _ in range(2)]
        self._matrix = columns  # the factors of the newest group, from the first diagonal on

    # The parts in which LU and Cholesky differ.

    def _factorize_panel(self, message: _Message, block: torch.Tensor) -> None:
        raise NotImplementedError

    def _receive(self, message: _Message, first: int) -> None:
        """Takes what a panel, whose first row is ``first``, says about rows."""

    def _finish(self) -> None:
        """After the last panel."""

    def _update(self, block: _Block, begin: int, end: int) -> None:
        """Swaps and updates the local columns from ``begin`` to ``end``, which lie behind the block."""
        raise NotImplementedError

    def addend(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        """This rank's addend to the right-hand side, for solve(). rows: of B, from row ``first`` on."""
        raise NotImplementedError

    def solve(self, sums: torch.Tensor) -> torch.Tensor:
        """The own rows of the solution, in the order of the own columns. sums: n rows; the right-hand side is the sum
        of all ranks' sums, which are overwritten. Collective."""
        raise NotImplementedError

    # Factorization.

    def factorize(self) -> int:
        """Factorizes. 0, or the number, from 1, of the first column without a pivot; equal on all ranks. Collective."""
        panels, columns = self._panels, self._columns
        message, work = self._send(0)
        later: list[tuple[_Block, int, int]] = []
        for panel in range(panels.total):
            while later and work is not None and not work.is_completed():
                self._update(*later.pop(0))
            if work is not None:
                work.wait()
            failed, span, group = int(message.failed), panels.span(panel), self._group(panel)
            if failed:
                return span.start + failed
            self._receive(message, span.start)
            block = _Block(span, message.factors)
            if panels.is_mine(panel):
                columns[span.start:, panels.place(panel)] = message.factors
            is_last = panel + 1 == group.stop
            if is_last:
                for each in later:
                    self._update(*each)
                first = panels.span(group.start).start
                block = _Block(slice(first, span.stop), self._matrix[:, :span.stop - first])
                group = self._group(panel + 1)
            begin, end = panels.after(panel), columns.shape[1]
            if self._has_groups:
                end = min(panels.after(group.stop - 1), end)
            if panel + 1 < panels.total:
                if panels.is_mine(panel + 1):
                    left, begin = begin, panels.place(panel + 1).stop
                    self._update(block, left, begin)
                message, work = self._send(panel + 1)
            if begin < end:
                self._update(block, begin, end)
            if is_last:
                step = self._at_once * panels.width
                later = [(block, start, min(start + step, columns.shape[1]))
                         for start in range(end, columns.shape[1], step)]
        self._finish()
        self._buffers = []
        return 0

    def _group(self, panel: int) -> range:
        """The panels of the panel's group."""
        count = self._at_once if self._has_groups else 1
        first = panel // count * count
        return range(first, min(self._panels.total, first + count))

    def _send(self, panel: int) -> tuple[_Message, Any]:
        """The owner factorizes the panel; all ranks start its broadcast. The buffer was used by the group before the
        last one, which has arrived everywhere."""
        panels, columns, item = self._panels, self._columns, self._columns.element_size()
        span, group = panels.span(panel), self._group(panel)
        first = panels.span(group.start).start
        rows, left, right = panels.n - first, span.start - first, span.stop - first
        buffer = self._buffers[group.start // len(self._group(0)) % 2]
        if left == 0:
            width = panels.span(group.stop - 1).stop - first
            self._matrix = buffer[:rows * width * item].view(columns.dtype).view(width, rows).t()
        memory = buffer[left * rows * item:right * rows * item + 4 * (right - left + 1)]
        numbers = memory[(right - left) * rows * item:].view(torch.int32)
        message = _Message(self._matrix[left:, left:right], numbers[:-1], numbers[-1])
        if panels.is_mine(panel):
            self._factorize_panel(message, columns[span.start:, panels.place(panel)])
        return message, self._broadcast(memory, panel)

    # Communication: None where there is one rank.

    def _broadcast(self, tensor: torch.Tensor, panel: int) -> Any:
        if self._panels.size == 1:
            return None
        options = dist.BroadcastOptions()
        options.rootRank = self._panels.owner(panel)
        return self._backend.broadcast([tensor], options)

    def _reduce(self, sums: torch.Tensor, panel: int) -> Any:
        if self._panels.size == 1:
            return None
        options = dist.ReduceOptions()
        options.rootRank = self._panels.owner(panel)
        return self._backend.reduce([sums[self._panels.span(panel)]], options)

    # Substitution.

    def _by_columns(self, sums: torch.Tensor, order: Sequence[int], is_upper: bool, is_unit: bool) -> None:
        """Solves with the triangle whose columns are the own columns. order: of the panels. Afterwards each block of
        ``sums`` is the solution on the block's owner, and 0 on the other ranks."""
        panels, work = self._panels, self._reduce(sums, order[0])
        for number, panel in enumerate(order):
            if work is not None:
                work.wait()
            rows, is_mine = panels.span(panel), panels.is_mine(panel)
            column = self._columns[:, panels.place(panel)] if is_mine else self._columns
            if is_mine:
                sums[rows] = torch.linalg.solve_triangular(column[rows], sums[rows], upper=is_upper,
                                                           unitriangular=is_unit)
            else:
                sums[rows] = 0
            if number + 1 == len(order):
                break
            ahead = panels.span(order[number + 1])
            if is_mine:
                sums[ahead].addmm_(column[ahead], sums[rows], alpha=-1)
            work = self._reduce(sums, order[number + 1])
            rest = slice(0, ahead.start) if is_upper else slice(ahead.stop, panels.n)
            if is_mine and rest.start < rest.stop:
                sums[rest].addmm_(column[rest], sums[rows], alpha=-1)

    def _own_rows(self, sums: torch.Tensor) -> torch.Tensor:
        own = [sums[self._panels.span(panel)] for panel in self._panels.mine]
        return torch.cat(own) if own else sums[:0]


class LU(Factors):
    """P A = L U: L with ones on the diagonal, below; U above."""

    def __init__(self, backend: Any, panels: Panels, columns: torch.Tensor) -> None:
        super().__init__(backend, panels, columns)
        self._order = torch.arange(panels.n, device=columns.device)  # row i of P A is row order[i] of A
        # Of each panel: the rows that get another row, and that other row.
        self._swaps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _factorize_panel(self, message: _Message, block: torch.Tensor) -> None:
        torch.linalg.lu_factor_ex(block, out=(message.factors, message.pivots, message.failed))

    def _receive(self, message: _Message, first: int) -> None:
        moved = dict[int, int]()
        for row, pivot in enumerate(message.pivots.tolist()):
            if row != pivot - 1:
                moved[row], moved[pivot - 1] = moved.get(pivot - 1, pivot - 1), moved.get(row, row)
        there, here = (torch.tensor(list(rows), dtype=torch.int64, device=self._order.device) + first
                       for rows in (moved.keys(), moved.values()))
        self._swaps.append((there, here))

    def _finish(self) -> None:
        rows = order = self._order
        for panel, (there, here) in reversed(list(enumerate(self._swaps))):
            if self._panels.is_mine(panel):
                end = self._panels.span(panel).stop
                below = self._columns.t()[self._panels.place(panel), end:]
                below.copy_(below.index_select(1, order[end:] - end))
            order = rows.index_copy(0, there, here)[order]
        self._order = order

    def _update(self, block: _Block, begin: int, end: int) -> None:
        rows, factors = block.span, block.factors
        width = rows.stop - rows.start
        # Element by element along each column, whose elements are neighbours in memory.
        there, here = (each.expand(end - begin, -1) for each in self._swaps[rows.start // self._panels.width])
        transposed = self._columns[:, begin:end].t()
        transposed.scatter_(1, there, transposed.gather(1, here))
        upper = self._columns[rows, begin:end]
        # Transposed, a matrix in C order is in LAPACK's order.
        upper.copy_(torch.linalg.solve_triangular(factors[:width].t(), upper.t(), upper=True, left=False,
                                                  unitriangular=True).t())
        if rows.stop < self._panels.n:
            self._columns[rows.stop:, begin:end].addmm_(factors[width:], upper, alpha=-1)

    def addend(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        places = torch.empty_like(self._order).scatter_(0, self._order, torch.arange(
            self._panels.n, device=rows.device))[first:first + rows.shape[0]]
        sums = _runtime.empty((self._panels.n, rows.shape[1]), rows.dtype, rows.device)
        return sums.zero_().index_copy_(0, places, rows)

    def solve(self, sums: torch.Tensor) -> torch.Tensor:
        order = range(self._panels.total)
        self._by_columns(sums, order, False, True)
        self._by_columns(sums, order[::-1], True, False)
        return self._own_rows(sums)


def cholesky(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """L, and 0 or the number of the first column without a positive pivot. OpenBLAS takes a NaN for positive."""
    lower, failed = torch.linalg.cholesky_ex(matrices)
    undefined = lower.diagonal(dim1=-2, dim2=-1).real.isnan()
    if undefined.any():
        failed = torch.where((failed == 0) & undefined.any(-1), undefined.int().argmax(-1).int() + 1, failed)
    return lower, failed


class Cholesky(Factors):
    """A = L L^H. Elements above the diagonal are neither read nor meaningful."""

    _has_groups = True

    def _factorize_panel(self, message: _Message, block: torch.Tensor) -> None:
        width = block.shape[1]
        lower, failed = cholesky(block[:width])
        message.factors[:width] = lower
        message.failed.copy_(failed)
        if block.shape[0] > width and not failed:
            message.factors[width:] = torch.linalg.solve_triangular(lower.mH, block[width:], upper=True, left=False)

    def _update(self, block: _Block, begin: int, end: int) -> None:
        panels, columns, first, factors = self._panels, self._columns, block.span.start, block.factors
        # Rows of the factors for the own columns, as columns: so whole runs of memory are copied.
        own = [slice(span.start - first, span.stop - first) for span in map(panels.span, panels.mine)
               if begin <= panels.place(span.start // panels.width).start < end]
        above = torch.cat([factors.t()[:, each] for each in own], 1).conj()
        step = max(1, STEP // panels.width) * panels.width
        starts = range(begin, end, step)
        last = panels.row(starts[-1])
        for left in starts[:-1]:
            top = panels.row(left)
            columns[top:last, left:left + step].addmm_(factors[top - first:last - first],
                                                       above[:, left - begin:left - begin + step], alpha=-1)
        columns[last:, begin:end].addmm_(factors[last - first:], above, alpha=-1)

    def addend(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        sums = _runtime.empty((self._panels.n, rows.shape[1]), rows.dtype, rows.device).zero_()
        sums[first:first + rows.shape[0]] = rows
        return sums

    def solve(self, sums: torch.Tensor) -> torch.Tensor:
        self._by_columns(sums, range(self._panels.total), False, False)
        own = self._own_rows(sums)
        self._by_rows(own, [_runtime.empty((self._panels.width, sums.shape[1]), sums.dtype, sums.device)
                            for _ in range(2)])
        return own

    def _by_rows(self, own: torch.Tensor, buffers: list[torch.Tensor]) -> None:
        """Solves with L^H: ``own``, the own rows of the right-hand side, become those of the solution."""
        panels, ahead = self._panels, self._panels.total - 1
        solved, work = self._send_rows(ahead, own, buffers)
        for panel in range(ahead, 0, -1):
            if work is not None:
                work.wait()
            rows, former, end = panels.span(panel), solved, panels.after(panel - 1)
            if panels.is_mine(panel - 1):
                place = panels.place(panel - 1)
                own[place].addmm_(self._columns[rows, place].mH, former, alpha=-1)
                end = place.start
            solved, work = self._send_rows(panel - 1, own, buffers)
            if end:
                own[:end].addmm_(self._columns[rows, :end].mH, former, alpha=-1)
        if work is not None:
            work.wait()

    def _send_rows(self, panel: int, own: torch.Tensor, buffers: list[torch.Tensor]) -> tuple[torch.Tensor, Any]:
        span = self._panels.span(panel)
        solved = buffers[panel % 2][:span.stop - span.start]
        if self._panels.is_mine(panel):
            place = self._panels.place(panel)
            own[place] = torch.linalg.solve_triangular(self._columns[span, place].mH, own[place], upper=True)
            solved.copy_(own[place])
        return solved, self._broadcast(solved, panel)
