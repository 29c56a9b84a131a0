"""Matches source names with target names: from the descriptions of all ranks to the list of global tensors to move.

Pure: every rank has the same descriptions, hence the same result and, where the sides do not fit together, the same
error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from .descriptions import Weight
from .name_maps import Part, Split
from .problems import Problems


@dataclass(slots=True)
class Placed:
    """A weight in a space, and the position of the weight's first element."""

    name: str
    offset: tuple[int, ...]
    transposed: bool


@dataclass(slots=True)
class Space:
    """One global tensor of the compiled op, with the source and target weights that are the tensor or parts of it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # of the sources
    # Of the targets; compile_op casts where the dtypes differ
    output_dtype: torch.dtype
    reduction: str | None
    sources: list[Placed]
    targets: list[Placed]


@dataclass(slots=True)
class Match:
    spaces: list[Space]
    # Names of the target without a source
    missing: list[str] = field(default_factory=list)
    # Names of the source without a target
    unused: list[str] = field(default_factory=list)


def joined(sources: dict[str, Weight], problems: Problems) -> dict[str, Weight]:
    """The weights of a checkpoint of ``sources``, with common names; of tied weights the first. For ``match`` as
    targets."""
    result = {}
    first: dict[str, Weight] = {}
    kept = []
    for weight in sources.values():
        if isinstance(weight.place, Split):
            problems.add("shape", f"{weight.name!r}: the mapping splits it into "
                                  f"{', '.join(map(repr, weight.place.names))}, whose sizes nothing says here")
        elif not weight.optional and first.setdefault(weight.alias, weight) is weight:
            kept.append(weight)
    for name, weights in _by_space(kept, "source", problems).items():
        shape = _joined_shape(weights) if len(weights) == weights[0].part.count else None
        if shape is None:
            problems.add("shape",
                         f"{_shapes(weights)}: cannot be joined into {name!r} of {weights[0].part.count} parts")
            continue
        result[name] = Weight(name, shape, weights[0].dtype, Part(name), {}, False, False, name)
    return result


def match(sources: dict[str, Weight], targets: dict[str, Weight], problems: Problems, strict: bool) -> Match:
    """Raises nothing: misfits are added to ``problems``; with ``strict`` also names without a counterpart."""
    _place_splits(sources, targets)
    source_places = _by_space(sources.values(), "source", problems)
    kept = _without_ties(targets, source_places, problems)
    target_places = _by_space(kept, "target", problems)
    result = Match([])
    for name in dict.fromkeys([*target_places, *source_places]):
        _fit(name, source_places.get(name, []), target_places.get(name, []), result, problems)
    wanted_spaces = {weight.part.name for weight in targets.values()}
    moved = {sources[placed.name].alias for space in result.spaces for placed in space.sources}
    result.unused = [name for name in result.unused if sources[name].alias not in moved and not sources[name].optional
                                                       and not (sources[name].part.name in wanted_spaces
                                                                and sources[name].part.name not in target_places)]
    result.missing = [name for name in result.missing if not targets[name].optional or targets[name].absent]
    if strict:
        for kind, names in (("missing", result.missing), ("unused", result.unused)):
            for name in names:
                problems.add(kind, repr(name))
    return result


def _place_splits(sources: dict[str, Weight], targets: dict[str, Weight]) -> None:
    """A source split by a mapping becomes a separate space; the targets named by the split become parts of this
    space."""
    part_of = {}
    for weight in sources.values():
        if isinstance(weight.place, Split):
            for index, name in enumerate(weight.place.names):
                part_of[name] = Part(weight.name, index, len(weight.place.names))
            weight.place = Part(weight.name)
    for weight in targets.values():
        if weight.place == Part(weight.name) and weight.name in part_of:
            weight.place = part_of[weight.name]


def _by_space(weights: Iterable[Weight], side: str, problems: Problems) -> dict[str, list[Weight]]:
    spaces: dict[str, list[Weight]] = {}
    for weight in weights:
        same = spaces.setdefault(weight.part.name, [])
        first = same[0] if same else weight
        if (any(other.part.index == weight.part.index for other in same)
                or (weight.part.count, weight.part.dim) != (first.part.count, first.part.dim)):
            problems.add("twice", f"{side} {first.name!r} and {weight.name!r} are both {weight.part.name!r}")
            continue
        same.append(weight)
    return spaces


def _without_ties(targets: dict[str, Weight], sources: dict[str, list[Weight]], problems: Problems) -> list[Weight]:
    """Of tied targets one with a source: one storage is written once."""
    groups: dict[str, list[Weight]] = {}
    for weight in targets.values():
        groups.setdefault(weight.alias, []).append(weight)
    chosen = {}
    for alias, group in groups.items():
        fed = [weight for weight in group if sources.get(weight.part.name)]
        chosen[alias] = (fed or group)[0]
        origins = {tuple(source.alias for source in sources[weight.part.name]) for weight in fed}
        if len(origins) > 1:
            problems.add("tied", " and ".join(repr(weight.name) for weight in fed))
    return [weight for weight in targets.values() if chosen[weight.alias] is weight]


def _fit(name: str, sources: list[Weight], targets: list[Weight], result: Match, problems: Problems) -> None:
    """One space: whole against whole, parts against parts, or the parts of one side against the whole of the other."""
    if not sources or not targets:
        result.missing += [weight.name for weight in targets]
        result.unused += [weight.name for weight in sources]
        return
    counts = (sources[0].part.count, targets[0].part.count)
    if counts == (1, 1):
        _join(name, sources, targets, result, problems)
    elif counts[0] == counts[1] and sources[0].part.dim == targets[0].part.dim:
        for index in range(counts[0]):
            ours, theirs = ([weight for weight in side if weight.part.index == index] for side in (sources, targets))
            if ours and theirs:
                _join(f"{name}[{index}]", ours, theirs, result, problems)
            else:
                result.missing += [weight.name for weight in theirs]
                result.unused += [weight.name for weight in ours]
    elif 1 in counts and (len(sources), len(targets)) == counts:
        _join(name, sources, targets, result, problems)
    elif 1 in counts:
        # Without all parts the positions of the present parts are unknown.
        result.missing += [weight.name for weight in targets]
        result.unused += [weight.name for weight in sources]
    else:
        problems.add("shape",
                     f"{name!r}: {counts[0]} parts in the source, {counts[1]} in the target, or along other dimensions")


def _join(name: str, sources: list[Weight], targets: list[Weight], result: Match, problems: Problems) -> None:
    whole_source, whole_target = _joined_shape(sources), _joined_shape(targets)
    if whole_source is None or whole_source != whole_target:
        problems.add("shape", f"{_shapes(sources)} in the source, {_shapes(targets)} in the target")
        return
    dtypes = [{weight.dtype for weight in side} for side in (sources, targets)]
    if len(dtypes[0]) > 1 or len(dtypes[1]) > 1 or not _converts(sources[0].dtype, targets[0].dtype):
        problems.add("dtype", f"{_dtypes(sources)} in the source, {_dtypes(targets)} in the target")
        return
    pending = {layout.pending_reduction for weight in sources for layout in weight.layouts.values()} - {None}
    if len(pending) > 1:
        problems.add("contradict", f"{_shapes(sources)}: they wait for the reductions "
                                   f"{', '.join(sorted(map(repr, pending)))}, but are one tensor")
        return
    dtype, output_dtype = sources[0].dtype, targets[0].dtype
    result.spaces.append(
        Space(name, whole_source, dtype, output_dtype, next(iter(pending), None), _placed(sources), _placed(targets)))


def _converts(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a move can convert the source's dtype to the target's: compile_op casts between floating types, and
    between complex types. A dtype that this torch lacks is a name, and no dtype."""
    if not (isinstance(source, torch.dtype) and isinstance(target, torch.dtype)):
        return False
    return (source == target or (source.is_floating_point and target.is_floating_point)
            or (source.is_complex and target.is_complex))


def _joined_shape(weights: list[Weight]) -> tuple[int, ...] | None:
    """The shape of the joined parts, None where the parts do not fit."""
    dim = weights[0].part.dim
    shapes = [weight.common_shape for weight in weights]
    if len(weights) == 1:
        return shapes[0]
    first = shapes[0]
    if any(len(shape) != len(first) or len(shape) <= dim
           or (*shape[:dim], *shape[dim + 1:]) != (*first[:dim], *first[dim + 1:]) for shape in shapes):
        return None
    return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1:])


def _placed(weights: list[Weight]) -> list[Placed]:
    placed, at = [], 0
    for weight in sorted(weights, key=lambda weight: weight.part.index):
        shape, dim = weight.common_shape, weight.part.dim
        offset = tuple(at if axis == dim and len(weights) > 1 else 0 for axis in range(len(shape)))
        placed.append(Placed(weight.name, offset, weight.part.transposed))
        at += shape[dim] if len(weights) > 1 else 0
    return placed


def _dtypes(weights: list[Weight]) -> str:
    return ", ".join(f"{weight.name!r} {weight.dtype}" for weight in weights)


def _shapes(weights: list[Weight]) -> str:
    return " + ".join(f"{weight.name!r} {list(weight.shape)}" + (" (transposed)" if weight.part.transposed else "")
                      for weight in weights)


