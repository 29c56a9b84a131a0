"""The route of an FFT over ranks: the place where each axis is transformed, and the moves between. Pure arithmetic, the
same on every rank.

An axis can be transformed where each rank's box spans the axis. So a route is a series of steps: a local transform of
all possible axes, a move to a cut that leaves other axes whole, and so on, until all axes are transformed and the array
has the wanted distribution. Candidates for cuts are the source, the target, slabs, pencils, and one rank with the whole
array. Dijkstra's algorithm finds the cheapest route. _fft_long.py has a further route, for an axis that stays cut.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Union

from ._ends import End, is_exact
from .distribution import Box, Boxes, Dims, Distribution, Pencil, Share, Slab, _OnGrid

if TYPE_CHECKING:
    from ._fft_long import Refold

# The cost of one exchange besides its bytes, in bytes that could be copied in the same time (about 30 us).
_LATENCY = 100_000
# A local transform along an axis of up to 256 indices, for each byte, relative to one byte moved between ranks.
_TRANSFORM = 1.0
# A rank reads and writes its own part of a move too, at memory's rate.
_OWN = 0.5


@dataclass(frozen=True)
class Problem:
    """A transform of ``kind`` "C2C", "R2C" or "C2R" along ``axes`` of an array; of R2C and C2R the last axis is the
    real one.

    shape: of the array before, result_shape: after. item_bytes: of a complex element. adjoint: the transposed map of
    the other real kind, for gradients: the half spectrum is weighted.
    """

    kind: str
    axes: Dims
    shape: Dims
    result_shape: Dims
    item_bytes: int
    adjoint: bool = False

    def transposed(self) -> Problem:
        """The problem of the transposed map."""
        kind = {"C2C": "C2C", "R2C": "C2R", "C2R": "R2C"}[self.kind]
        return replace(self, kind=kind, shape=self.result_shape, result_shape=self.shape, adjoint=not self.adjoint)


def read_axes(axes: Sequence[int] | None, ndim: int) -> Dims:
    """The axes counted from the front. ValueError for no axes, for a repeated axis and for a number that is no axis."""
    read = tuple(range(ndim)) if axes is None else tuple(axis + ndim if axis < 0 else axis for axis in axes)
    if not read or len(set(read)) != len(read) or any(not 0 <= axis < ndim for axis in read):
        raise ValueError(f"axes is {list(axes or ())} for {ndim} dimensions; give each axis once, and at least one")
    return read


def problem_of(call: str, kind: str, dims: Dims, axes: Dims, parity: str, compute: str) -> Problem:
    """The transform of an array of shape ``dims``. ValueError for an axis without indices before or after."""
    result = list(dims)
    last = axes[-1]
    if kind == "R2C":
        result[last] = dims[last] // 2 + 1
    elif kind == "C2R":
        result[last] = 2 * (dims[last] - 1) + (parity == "odd")
    for axis in axes:
        if dims[axis] < 1 or result[axis] < 1:
            raise ValueError(f"{call}: axis {axis} has {dims[axis]} indices, and {result[axis]} in the result; a "
                             "transform needs at least one"
                             + (" (last_axis_parity='odd' makes one of one)" if dims[axis] == 1 else ""))
    return Problem(kind, axes, dims, tuple(result), 8 if compute == "complex64" else 16)


class Turn(NamedTuple):
    """A multiplication by the twiddle factors of an axis of ``extent`` indices, which is folded into ``axis`` and the
    next (_fft_long.py), and by ``scale``."""

    axis: int
    extent: int
    scale: float


class Local(NamedTuple):
    """Every rank transforms ``axes`` of its box. is_real: the axes include the real axis, which is the last."""

    axes: Dims
    is_real: bool
    end: End  # the distribution after the transform
    turn: Turn | None = None  # follows the transform


class Move(NamedTuple):
    """The array goes from one cut to another."""

    source: End
    target: End
    is_complex: bool  # of R2C and C2R: the spectrum moves, not the real array


Step = Union[Local, Move, "Refold"]


class Route(NamedTuple):
    steps: tuple[Step, ...]
    target: End
    cost: float


class _State(NamedTuple):
    end: End
    done: frozenset[int]
    is_complex: bool


def find_route(problem: Problem, source: End, target: End | None) -> Route:
    """The cheapest route from ``source`` to ``target``; with None, to the cheapest end."""
    size = len(source.shares)
    everything = frozenset(problem.axes)
    start = _State(source, frozenset(), problem.kind != "R2C")
    order = itertools.count()
    queue: list[tuple[float, int, _State, tuple[Step, ...]]] = []
    best: dict[tuple[tuple[Share, ...], frozenset[int], bool], float] = {}
    cuts: dict[Dims, list[End]] = {}

    def push(cost: float, state: _State, steps: tuple[Step, ...]) -> None:
        local = _local_step(problem, state)
        if local is not None:
            cost += transform_cost([_full(problem)[axis] for axis in local.axes], state.end, problem.item_bytes)
            state = _State(local.end, state.done | set(local.axes),
                           (problem.kind != "C2R") if local.is_real else state.is_complex)
            steps = (*steps, local)
        key = (state.end.shares, state.done, state.is_complex)
        if cost < best.get(key, math.inf):
            best[key] = cost
            heapq.heappush(queue, (cost, next(order), state, steps))

    push(0.0, start, ())
    while queue:
        cost, _, state, steps = heapq.heappop(queue)
        if cost > best[state.end.shares, state.done, state.is_complex]:
            continue
        finished = state.done == everything
        if finished and (target is None or state.end.shares == target.shares):
            return Route(steps, state.end if target is None else target, cost)
        item = problem.item_bytes if state.is_complex else problem.item_bytes // 2
        if finished:
            assert target is not None
            push(cost + _move_cost(state.end, target, item), _State(target, state.done, state.is_complex),
                 (*steps, Move(state.end, target, state.is_complex)))
            continue
        if steps and isinstance(steps[-1], Move):
            continue  # two moves in a row: one would have been enough
        dims = state.end.global_shape
        if dims not in cuts:
            cuts[dims] = _cuts(dims, size, target)
        for end in cuts[dims]:
            after = _State(end, state.done, state.is_complex)
            if end.shares != state.end.shares and _local_step(problem, after) is not None:
                push(cost + _move_cost(state.end, end, item), after, (*steps, Move(state.end, end, state.is_complex)))
    raise AssertionError("one rank that has all can always transform all")


def _local_step(problem: Problem, state: _State) -> Local | None:
    """The transform that ``state`` allows, of as many axes as possible; None where ``state`` allows none."""
    whole = {axis for axis in problem.axes if axis not in state.done and _is_whole(state.end, axis)}
    if not whole or not is_exact(state.end):
        return None
    real = problem.axes[-1]
    if problem.kind == "R2C" and not state.is_complex:
        if real not in whole:  # the real axis comes first
            return None
    elif problem.kind == "C2R" and real in whole and len(whole) + len(state.done) < len(problem.axes):
        whole.discard(real)  # and last in C2R
        if not whole:
            return None
    axes = tuple(axis for axis in problem.axes if axis in whole)
    if problem.kind == "C2C" or real not in whole:
        return Local(axes, False, state.end)
    return Local(axes, True, _with_extent(state.end, real, problem.result_shape))


def _is_whole(end: End, axis: int) -> bool:
    """Whether each rank has nothing, or one box that spans ``axis``."""
    extent = end.global_shape[axis]
    return all(share.is_one_box and share.local_shape[axis] == extent for share in end.shares
               if math.prod(share.local_shape))


def _with_extent(end: End, axis: int, dims: Dims) -> End:
    """The same cut of an array with another extent along an axis without a cut."""
    shares = []
    for share in end.shares:
        local = list(share.local_shape)
        if local[axis] == end.global_shape[axis]:
            local[axis] = dims[axis]
        shares.append(Share(tuple(local), tuple(piece._replace(shape=tuple(local)) for piece in share.pieces)))
    return End(end.distribution, dims, tuple(shares))


def _largest(end: End) -> int:
    return max(math.prod(share.local_shape) for share in end.shares)


def _full(problem: Problem) -> Dims:
    """The shape of the array with the whole spectrum, or of the real array."""
    return problem.result_shape if problem.kind == "C2R" else problem.shape


def transform_cost(extents: Sequence[int], end: End, item: int) -> float:
    """Of the busiest rank's transforms along axes of these extents."""
    return _TRANSFORM * sum(max(1.0, math.log2(extent) / 8) for extent in extents) * _largest(end) * item


def _move_cost(source: End, target: End, item: int) -> float:
    """The busiest rank's bytes."""
    most = 0.0
    for before, after in zip(source.shares, target.shares):
        own = sum(_common(a.offset, a.shape, b.offset, b.shape) for a in before.pieces for b in after.pieces)
        busy = max(math.prod(before.local_shape), math.prod(after.local_shape)) - own
        most = max(most, busy + _OWN * own)
    return _LATENCY + most * item


def _common(a: Dims, m: Dims, b: Dims, n: Dims) -> int:
    count = 1
    for x, p, y, q in zip(a, m, b, n):
        count *= max(0, min(x + p, y + q) - max(x, y))
    return count


def _cuts(dims: Dims, size: int, target: End | None) -> list[End]:
    """Cuts of an array for a route. The target's own cut is first: an array that ends there needs no further move."""
    found: list[End] = []
    seen = set()
    if target is not None and (isinstance(target.distribution, _OnGrid)
                               or (dims == target.global_shape and is_exact(target))):
        distribution = target.distribution
        found.append(End(distribution, dims, tuple(distribution.share(rank, dims, size) for rank in range(size))))
        seen.add(found[0].shares)
    for distribution in _distributions(dims, size):
        end = End(distribution, dims, tuple(distribution.share(rank, dims, size) for rank in range(size)))
        if end.shares not in seen:
            seen.add(end.shares)
            found.append(end)
    return found


def _distributions(dims: Dims, size: int) -> Iterator[Distribution]:
    ndim = len(dims)
    yield from (Slab(dim) for dim in range(ndim))
    for pair in itertools.combinations(range(ndim), 2):
        yield from (Pencil(pair, (first, size // first)) for first in range(2, size // 2 + 1) if size % first == 0)
    nothing = Box((0,) * ndim, (0,) * ndim)
    yield Boxes([Box((0,) * ndim, dims), *[nothing] * (size - 1)])
