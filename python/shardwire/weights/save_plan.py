"""The plan of a save: the tensors of each file, their places in the file, and the writing rank of each row. Pure; the
same on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .descriptions import Weight
from .simple_layouts import Rows, Whole
from .matching import Match
from .safetensors_file import DTYPES, Stored, build_header, dtype_name

# A smaller tensor is written by one rank: a share of the tensor would cost less than the request for the share.
_SHARED_FROM = 1 << 20


@dataclass(slots=True)
class PlannedFile:
    """One planned file. writers: group ranks, all of one host, since two hosts cannot share a page of a file. The first
    writer creates the file."""

    header: bytes
    tensors: list[Stored]
    writers: list[int]
    size: int

    @property
    def creator(self) -> int:
        return self.writers[0]


@dataclass(slots=True)
class _Host:
    writers: list[int]
    weights: list[tuple[Weight, str, int]] = field(default_factory=list)  # with dtype name and bytes
    total: int = 0


def plan_files(found: Match, sources: Mapping[str, Weight], targets: Mapping[str, Weight], hosts: Sequence[list[int]],
               max_bytes: int, metadata: Mapping[str, str]) -> list[PlannedFile]:
    """hosts: the writing ranks of each host. Each tensor goes to a host that holds some of the tensor; among several,
        to the host with the fewest bytes so far."""
    planned = [_Host(writers) for writers in hosts]
    for space in found.spaces:
        (placed,) = space.targets
        weight = targets[placed.name]
        kind = dtype_name(weight.dtype, weight.name)
        size = DTYPES[kind][0] * math.prod(weight.shape)
        holders = {rank for source in space.sources for rank in sources[source.name].layouts}
        near = [host for host in planned if holders & set(host.writers)]
        host = min(near, key=lambda each: each.total)
        host.weights.append((weight, kind, size))
        host.total += size
    files = []
    for host in planned:
        for number, part in enumerate(_cut(host.weights, max_bytes)):
            # Wide elements first, so that every tensor is aligned.
            part.sort(key=lambda each: -DTYPES[each[1]][0])
            header, tensors = build_header([(weight.name, kind, weight.shape) for weight, kind, _ in part], metadata)
            turn = number % len(host.writers)
            files.append(PlannedFile(header, tensors, host.writers[turn:] + host.writers[:turn], tensors[-1].end))
    return files


def _cut(weights: list[tuple[Weight, str, int]], max_bytes: int) -> list[list[tuple[Weight, str, int]]]:
    parts: list[list[tuple[Weight, str, int]]] = []
    total = 0
    for entry in weights:
        if not parts or total + entry[2] > max_bytes:
            parts.append([])
            total = 0
        parts[-1].append(entry)
        total += entry[2]
    return parts


def rows_of(file: PlannedFile, index: int, rank: int) -> Any:
    """The part of the file's tensor ``index`` that ``rank`` writes: a Whole, Rows, or None."""
    stored = file.tensors[index]
    if rank not in file.writers:
        return None
    writers = sorted(file.writers)  # in the order of ranks: mostly the order of shards
    if stored.end - stored.begin < _SHARED_FROM or not stored.shape or stored.shape[0] < len(writers):
        return Whole(stored.shape) if writers[index % len(writers)] == rank else None
    # As torch.chunk cuts, so that shards over these ranks stay on their ranks
    size = -(-stored.shape[0] // len(writers))
    start = min(writers.index(rank) * size, stored.shape[0])
    stop = min(start + size, stored.shape[0])
    return Rows(stored.shape, start, stop) if start < stop else None
