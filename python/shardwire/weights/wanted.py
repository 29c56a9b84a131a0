"""The parts of the source's tensors wanted by some ranks: the bytes of files to read for these ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from .descriptions import Weight
from .matching import Match, Placed, Space

Ranges = tuple[tuple[int, int], ...]  # begin and end in each dimension


@dataclass(frozen=True, slots=True)
class Asking:
    """ranks: the group ranks for which this rank reads, together with other ranks of its host; group_ranks: the global
    rank of each group rank. which, count: this rank's place among the host's readers, and their number.
    """

    ranks: Collection[int]
    group_ranks: Sequence[int]
    which: int
    count: int


def wanted_ranges(found: Match, targets: dict[str, Weight], asking: Asking) -> Iterator[tuple[Placed, list[Ranges]]]:
    """Each moved source weight, and the wanted boxes of its space, in the weight's own coordinates (boxes may lie
    outside)."""
    for space in found.spaces:
        boxes = _boxes(space, targets, asking)
        for placed in space.sources:
            turn = slice(None, None, -1) if placed.transposed else slice(None)
            yield placed, [tuple((begin - at, end - at) for (begin, end), at in zip(box, placed.offset))[turn]
                           for box in boxes]


def _boxes(space: Space, targets: dict[str, Weight], asking: Asking) -> list[Ranges]:
    boxes = set()
    for placed in space.targets:
        turn = slice(None, None, -1) if placed.transposed else slice(None)
        for rank, layout in targets[placed.name].layouts.items():
            share = layout.share(asking.group_ranks[rank]) if rank in asking.ranks else None
            for box in () if share is None else share.boxes:
                boxes.add(tuple((start + at, start + at + count)
                                for start, count, at in zip(box.offset[turn], box.shape[turn], placed.offset)))
    return sorted(boxes)


def meet(one: Ranges, other: Ranges) -> Ranges | None:
    """The intersection of two boxes; None for nothing."""
    met = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other))
    return None if any(begin >= end for begin, end in met) else met
