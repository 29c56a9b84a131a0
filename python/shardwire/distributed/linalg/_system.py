"""The system that all ranks agreed on: where its matrices lie, where they are solved, and the moves between the two.

A batch with at least as many matrices as ranks is solved without communication: each rank gets whole matrices. Else the
columns of each matrix are dealt to the ranks (``_factors``), one matrix after the other. Right-hand sides come in slabs
of rows, and solutions leave in the blocks of rows that belong to the own columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, List, NamedTuple, Tuple, Union

import torch

from ...groups.lookup import resolve_backend
from .. import _meeting, _runtime
from .._ends import End
from .._grid import ProcessGrid
from ..distribution import BlockCyclic, Dims, Distribution, Piece, Share, Slab
from ..reshape import move
from ._factors import LU, Cholesky, Factors, Panels, cholesky

# The columns of a panel; smaller ones, down to the least, where a rank has fewer panels. A caller's own layout of whole
# columns is factorized where it lies, up to the most.
WIDTH, PANELS_PER_RANK, LEAST_WIDTH, MOST_WIDTH = 128, 4, 8, 256
# Right-hand sides that are solved at once: every rank has a row for each row of the matrix.
AT_ONCE = 256

# Factors of matrices dealt to the ranks, or torch's factors and pivots of whole matrices.
Factored = Union[List[Factors], Tuple[torch.Tensor, torch.Tensor]]


class Settings(NamedTuple):
    """Options, equal on all ranks. panel_width: the caller's, or None. keeps_factors: whether the factors are written
    to a."""

    factorization: str
    panel_width: int | None
    keeps_factors: bool
    dtype: torch.dtype


class _Move:
    """The move between two ends; a copy where every rank has what it wants; nothing where there are no elements.
    below: panels; only their blocks on the diagonal and the elements below these blocks move."""

    def __init__(self, group: Any, rank: int, source: End, target: End, dtype: torch.dtype, name: str,
                 below: Panels | None = None) -> None:
        self.is_copy = all(have.is_as(want) for have, want in zip(source.shares, target.shares))
        if below is not None and not self.is_copy:
            target = _below(target, below)
        self._has, self._wants = (bool(end.shares[rank].pieces) for end in (source, target))
        self.op = (None if self.is_copy or 0 in source.global_shape
                   else move(group, rank, source, target, dtype, name))

    def run(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Collective. Both are the local arrays, of any strides."""
        if self.op is not None:
            self.op([source] if self._has else [], [target] if self._wants else []).wait()
        elif self.is_copy and target.data_ptr() != source.data_ptr():
            target.copy_(source)


class System:
    """A X = B; a, b: the ends of A, and of B and X, as the caller gave them. Collective, as all methods that take the
    group are. No reference to the group is kept, since the group keeps systems."""

    def __init__(self, group: Any, rank: int, a: End, b: End, settings: Settings, name: str) -> None:
        self.a, self.b, self.settings, self._name = a, b, settings, name
        size = len(a.shares)
        self._is_vector = len(b.global_shape) < len(a.global_shape)
        of_a, of_b = _lifted(a, False), _lifted(b, self._is_vector)
        self.batch, self.n, self._columns = of_b.global_shape
        self.is_whole = self.batch >= size
        self.panels = Panels(self.n, self._width(of_a, size), size, rank)
        inner = [_end(of_a, Slab(0) if self.is_whole else self._cyclic(2, self.panels.width, size)),
                 _end(of_b, Slab(0) if self.is_whole else Slab(1)),
                 _end(of_b, Slab(0) if self.is_whole else self._cyclic(1, self.panels.width, size))]
        self._shapes = [end.shares[rank].local_shape for end in inner]
        self._first_row = inner[1].shares[rank].pieces[0].offset[1]

        below = self.panels if settings.factorization == "cholesky" and not self.is_whole else None

        def to(source: End, target: End, what: str, below: Panels | None = None) -> _Move:
            return _Move(group, rank, source, target, settings.dtype, f"{name}, {what}", below)
        self._in, self._of_b = to(of_a, inner[0], "a", below), to(of_b, inner[1], "b")
        self._of_x = to(inner[2], of_b, "x")
        self._back = to(inner[0], of_a, "factors", below) if settings.keeps_factors else None

    def _width(self, a: End, size: int) -> int:
        """The columns of a panel: the caller's number, else those of the caller's layout where whole columns are dealt
        already, else by the size."""
        if self.settings.panel_width is not None:
            return min(self.settings.panel_width, max(1, self.n))
        own = int(getattr(a.distribution, "block_sizes", (0,))[-1])
        if LEAST_WIDTH <= own <= MOST_WIDTH and _end(a, self._cyclic(2, own, size)).shares == a.shares:
            return own
        return max(LEAST_WIDTH, min(WIDTH, self.n // (size * PANELS_PER_RANK)))

    def _cyclic(self, dim: int, width: int, size: int) -> Distribution:
        grid, blocks = [1, 1, 1], [max(1, extent) for extent in (self.batch, self.n, max(self.n, self._columns))]
        grid[dim], blocks[dim] = size, width
        return BlockCyclic(ProcessGrid(shape=grid), blocks)

    def _empty(self, which: int, device: torch.device) -> torch.Tensor:
        return _runtime.empty(self._shapes[which], self.settings.dtype, device)

    def _as_inside(self, local: torch.Tensor, is_vector: bool) -> torch.Tensor:
        local = local.unsqueeze(-1) if is_vector else local
        return local if local.dim() == 3 else local.unsqueeze(0)

    def factorize(self, group: Any, a: torch.Tensor) -> Factored:
        """The factors of the local part ``a``; torch.linalg.LinAlgError on all ranks where a matrix has none."""
        local = self._as_inside(a, False)
        if self._back is not None and self._in.is_copy and local.transpose(1, 2).is_contiguous():
            inside = local
        else:
            batch, rows, columns = self._shapes[0]
            inside = _runtime.empty((batch, columns, rows), a.dtype, a.device).transpose(1, 2)
            self._in.run(local, inside)
        factored = self._factorize_whole(group, inside) if self.is_whole else self._factorize_dealt(group, inside)
        if self._back is not None:
            self._back.run(factored[0] if isinstance(factored, tuple) else inside, local)
        return factored

    def _factorize_dealt(self, group: Any, inside: torch.Tensor) -> Factored:
        backend, done = resolve_backend(group), list[Factors]()
        kind = LU if self.settings.factorization == "lu" else Cholesky
        for number in range(self.batch if self.n else 0):
            factors = kind(backend, self.panels, inside[number])
            failed = factors.factorize()
            if failed:
                raise self._failure(number, failed)
            done.append(factors)
        return done

    def _factorize_whole(self, group: Any, inside: torch.Tensor) -> Factored:
        if self.settings.factorization == "lu":
            factors, pivots, failed = torch.linalg.lu_factor_ex(inside)
        else:
            factors, failed = cholesky(inside)
            pivots = failed
        first = next(((number, column) for number, column in enumerate(failed.tolist()) if column), None)
        everyone = _meeting.exchange(group, f"{self._name}.factorize", {"failed": first, "matrices": len(inside)})
        before = 0
        for record in everyone:
            if record["failed"]:
                raise self._failure(before + record["failed"][0], record["failed"][1])
            before += record["matrices"]
        return factors, pivots

    def _failure(self, number: int, column: int) -> Exception:
        which = f"matrix {number} of the batch" if len(self.a.global_shape) == 3 else "a"
        return torch.linalg.LinAlgError(f"{self._name}: {which} is " + (
            f"singular: U[{column - 1}, {column - 1}] is exactly 0" if self.settings.factorization == "lu" else
            f"not positive definite: the leading minor of order {column} is not positive"))

    def solve(self, group: Any, factored: Factored, b: torch.Tensor, x: torch.Tensor) -> None:
        """Solves for the local part ``b``, and writes the local part of the solution to ``x``, which may be ``b``."""
        inside, solved = self._empty(1, b.device), self._empty(2, b.device)
        self._of_b.run(self._as_inside(b, self._is_vector), inside)
        if isinstance(factored, tuple):
            solved.copy_(torch.linalg.lu_solve(*factored, inside) if self.settings.factorization == "lu"
                         else torch.cholesky_solve(inside, factored[0]))
        else:
            step = max(AT_ONCE, self.n // self.panels.size)
            for number, factors in enumerate(factored):
                for begin in range(0, self._columns, step):
                    solved[number, :, begin:begin + step] = factors.solve(
                        factors.addend(inside[number, :, begin:begin + step], self._first_row))
        self._of_x.run(solved, self._as_inside(x, self._is_vector))

    def explain(self) -> str:
        """The algorithm and the moves, as text."""
        kind, panels = self.settings.factorization, self.panels
        how = ("whole matrices on each rank" if self.is_whole else
               f"{panels.total} panels of {panels.width} columns, dealt to {panels.size} ranks")
        ops = [each.op.explain() for each in (self._in, self._of_b, self._of_x, self._back)
               if each is not None and each.op is not None]
        return "\n".join([f"{self._name}: {self.batch} x {self.n} x {self.n}, {self._columns} right-hand sides, "
                          f"{self.settings.dtype}: {kind}; {how}", *ops])


def _end(like: End, distribution: Distribution) -> End:
    size, dims = len(like.shares), like.global_shape
    return End(distribution, dims, tuple(distribution.share(rank, dims, size) for rank in range(size)))


def _lifted(end: End, is_vector: bool) -> End:
    """The same array as batch x rows x columns."""
    front = 3 - len(end.global_shape) - is_vector

    def lift(dims: Dims, value: int) -> Dims:
        return (value,) * front + tuple(dims) + (value,) * is_vector
    shares = (Share(lift(share.local_shape, 1), tuple(
        Piece(lift(piece.offset, 0), lift(piece.shape, 1), lift(piece.local_offset, 0)) for piece in share.pieces))
        for share in end.shares)
    return End(end.distribution, lift(end.global_shape, 1), tuple(shares))


def _below(end: End, panels: Panels) -> End:
    """The end without what lies above the panels' blocks on the diagonal."""
    def cut(piece: Piece) -> Iterator[Piece]:
        (number, row, left), (count, rows, columns) = piece.offset, piece.shape
        bottom, right = row + rows, left + columns
        while left < right and left // panels.width * panels.width < bottom:
            # All rows of the columns up to the end of the panel that has the first row on the diagonal.
            top, end = max(row, left // panels.width * panels.width), panels.span(max(row, left) // panels.width).stop
            offset, shape = (number, top, left), (count, bottom - top, min(right, end) - left)
            yield Piece(offset, shape, tuple(local + new - old for local, new, old in
                                             zip(piece.local_offset, offset, piece.offset)))
            left = end
    return End(end.distribution, end.global_shape, tuple(
        Share(share.local_shape, tuple(part for piece in share.pieces for part in cut(piece))) for share in end.shares))
