"""The exchanged descriptions of one side: names, shapes, dtypes, layouts, common names (Part), and the names that share
a storage."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MismatchError, ShardwireError
from .simple_layouts import decode_layout, encode_layout
from .holdings import Holdings
from .name_maps import Part, Place, Renames, Split, place_of
from .problems import Problems


@dataclass(slots=True)
class Weight:
    """One name of one side, over all ranks. layouts: by the group rank of each rank that has the name."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: Place
    layouts: dict[int, Any]
    optional: bool
    absent: bool
    alias: str = ""  # the first name with the same storage

    @property
    def part(self) -> Part:
        assert isinstance(self.place, Part)
        return self.place

    @property
    def common_shape(self) -> tuple[int, ...]:
        """The shape of the common tensor, which is never transposed."""
        return self.shape[::-1] if self.part.transposed else self.shape


def describe(holdings: Holdings, renames: Renames) -> bytes:
    """This rank's part of one side. Layouts are listed once, since thousands of parameters share a few layouts."""
    layouts: dict[str, int] = {}
    tensors = []
    for holding in holdings.entries.values():
        place = place_of(renames, holding.name, holdings.side)
        if place is None:
            continue
        for text in (holding.name, *(place.names if isinstance(place, Split) else (place.name,))):
            _check_text(text, holding.name, holdings.side)
        layout = encode_layout(holding.layout)
        which = -1 if layout is None else layouts.setdefault(json.dumps(layout), len(layouts))
        where = encode_place(holding.name, place)
        tensors.append([holding.name, list(holding.shape), str(holding.dtype), which, holding.alias, holding.optional,
                        holding.absent, where])
    return zlib.compress(json.dumps([list(layouts), tensors]).encode(), 1)


def _check_text(text: str, name: str, side: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{side} {name!r}: the name{'' if text == name else f' {text!r} that mapping gives it'} has "
                         "half of a surrogate pair, which is no text; rename it") from None


def encode_place(name: str, place: Place | None) -> Any:
    """As JSON; None for a name that is left out."""
    if place is None:
        return None
    if isinstance(place, Split):
        return list(place.names)
    return {} if place == Part(name) else {"part": [place.name, place.index, place.count, place.dim, place.transposed]}


@contextlib.contextmanager
def _readable(side: str) -> Iterator[None]:
    """MismatchError for descriptions that ``describe`` did not write: another job may have another version."""
    try:
        yield
    except ShardwireError:
        raise
    except (zlib.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise MismatchError(f"the description of the {side} cannot be read: {type(error).__name__}: "
                            f"{str(error)[:200]}; use one release of shardwire in all jobs") from error


def names_in(description: bytes) -> list[str]:
    with _readable("source"):
        return [str(tensor[0]) for tensor in json.loads(zlib.decompress(description))[1]]


def moved_to(description: bytes, places: Mapping[str, Any]) -> bytes:
    """The description with other places, by name as in ``encode_place``: for a side described before the mapping is
    known."""
    with _readable("source"):
        layouts, tensors = json.loads(zlib.decompress(description))
        moved = [[*tensor[:-1], places[tensor[0]]] for tensor in tensors if places[tensor[0]] is not None]
        return zlib.compress(json.dumps([layouts, moved]).encode(), 1)


def collect(descriptions: Sequence[bytes], side: str, problems: Problems) -> dict[str, Weight]:
    """All ranks' descriptions of one side as one table. Contradictions between ranks are added to ``problems``."""
    with _readable(side):
        return _collected(descriptions, side, problems)


def _collected(descriptions: Sequence[bytes], side: str, problems: Problems) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    ties = _Ties()
    ranks_of: dict[bytes, list[int]] = {}
    for rank, description in enumerate(descriptions):
        ranks_of.setdefault(description, []).append(rank)
    for description, ranks in ranks_of.items():
        layouts, tensors = json.loads(zlib.decompress(description))
        decoded: dict[Any, Any] = {}
        for name, dims, dtype_name, which, alias, optional, absent, where in tensors:
            shape, dtype = tuple(dims), getattr(torch, dtype_name.removeprefix("torch."), None)
            if not isinstance(dtype, torch.dtype):
                dtype = dtype_name  # this torch lacks the dtype; a file may choose any name
            key = (which, shape, dtype)
            if key not in decoded:
                decoded[key] = decode_layout(None if which < 0 else json.loads(layouts[which]), shape, dtype)
            place: Place = (Split(tuple(where)) if isinstance(where, list) else Part(*where["part"]) if where
                            else Part(name))
            weight = weights.get(name)
            if weight is None:
                weight = weights[name] = Weight(name, shape, dtype, place, {}, optional, absent)
            else:
                _compare(weight, shape, dtype, place, ranks[0], side, problems)
                weight.optional, weight.absent = weight.optional and optional, weight.absent or absent
            weight.layouts.update(dict.fromkeys(ranks, decoded[key]))
            ties.add(ranks[0], name, alias)
    for rank, one, other in ties.contradictions():
        problems.add("contradict", f"{side} {one!r} and {other!r} are tied on some ranks, but not on rank {rank}")
    for weight in weights.values():
        weight.alias = ties.first(weight.name)
        pending = any(layout.pending_reduction is not None for layout in weight.layouts.values())
        if pending and len(set(weight.layouts.values())) > 1:
            problems.add("contradict",
                         f"{side} {weight.name!r}: a Partial layout on some ranks, and another layout on others")
    return weights


def _compare(weight: Weight, shape: tuple[int, ...], dtype: torch.dtype, place: Place, rank: int, side: str,
             problems: Problems) -> None:
    first = next(iter(weight.layouts))
    for what, here, there in (("shape", list(weight.shape), list(shape)), ("dtype", weight.dtype, dtype),
                              ("place", weight.place, place)):
        if here != there:
            problems.add("contradict", f"{side} {weight.name!r}: {what} {here} on rank {first}, {there} on rank {rank}")


class _Ties:
    """Names that share a storage on some rank, and so on all ranks with a storage for these names. The first name seen
    stands for all."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}
        self.order: dict[str, int] = {}
        # By rank and the rank's number for the storage
        self.names: dict[tuple[int, int], list[str]] = {}

    def first(self, name: str) -> str:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def add(self, rank: int, name: str, alias: int) -> None:
        self.parent.setdefault(name, name)
        self.order.setdefault(name, len(self.order))
        if alias < 0:
            return
        tied = self.names.setdefault((rank, alias), [])
        tied.append(name)
        early, late = sorted((self.first(tied[0]), self.first(name)), key=self.order.__getitem__)
        self.parent[late] = early

    def contradictions(self) -> Iterator[tuple[int, str, str]]:
        """A rank and two names: the names are tied on another rank and have separate storages on this rank."""
        seen: dict[tuple[int, str], str] = {}
        for (rank, _), tied in self.names.items():
            other = seen.setdefault((rank, self.first(tied[0])), tied[0])
            if other is not tied[0]:
                yield rank, other, tied[0]
