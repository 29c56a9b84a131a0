"""check_replicas: compares the values of all ranks that hold the same elements of one weight.

The boxes of two ranks may overlap in part. So each rank cuts its boxes at the edges of the boxes of all ranks: two of
the resulting cells are equal boxes, or have no common element. The ranks exchange a digest of each cell that several
ranks hold.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import _C
from ..compiler.agree import Attempt, Meeting
from ..compiler.future import Seconds, as_seconds
from ..errors import MismatchError
from ..plain.tensor_bytes import bytes_of
from .descriptions import Weight, collect, describe
from .holdings import Holdings
from .name_maps import as_name_map
from .problems import Problems

# The differences listed in the error; further differences are counted only.
_LISTED = 20


def check_replicas(source: Any, group: Any = None, *, timeout: Seconds = None) -> None:
    """Raises MismatchError, on every rank, where ranks that hold the same elements of one name have different bits.
    The error names the weight, the elements and the ranks.

    Collective: every rank of ``group`` (None: the default group) calls. For a check before :func:`shardwire.save`,
    ``sync`` or ``publish``, which do not compare replicas: each rank reads all of its weights once, and a digest of 16
    bytes for each replicated box goes to all ranks.

    source: as for :func:`shardwire.sync`, with the same errors. None: a rank without weights. Addends of a Partial are
        no replicas.
    """
    meeting = Meeting(group, "check_replicas", None)
    blobs = [b"", b"", b""]
    with Attempt() as attempt:
        meeting.seconds = as_seconds(timeout)
        have = Holdings(source, "source", meeting.global_rank, meeting.ranks)
        have.refuse_lazy_views()
        blobs[0] = describe(have, as_name_map(None).source)
    everyone = meeting.exchange(blobs, attempt.error)
    problems = Problems()
    weights = collect([given[0] for given in everyone], "source", problems)
    problems.raise_any("check_replicas")
    digests = b""
    with Attempt() as attempt:
        tensors = have.tensors()
        digests = json.dumps([[weight.name, *cell] for weight in weights.values() if weight.name in tensors
                              for cell in _digests(weight, meeting, tensors[weight.name])]).encode()
    differences = _differences([json.loads(given[0]) for given in meeting.exchange([digests, b"", b""], attempt.error)])
    if differences:
        more = f"; and {len(differences) - _LISTED} more" if len(differences) > _LISTED else ""
        raise MismatchError(f"check_replicas: {'; '.join(differences[:_LISTED])}{more}. Ranks that hold the same "
                            "elements of one name must have equal values")


def _digests(weight: Weight, meeting: Meeting, tensor: torch.Tensor) -> Iterator[tuple[Any, Any, str]]:
    """(offset, shape, digest) of each cell of this rank that another rank holds as well."""
    if any(layout.pending_reduction is not None for layout in weight.layouts.values()):
        return
    boxes = {rank: _boxes(layout.share(meeting.ranks[rank])) for rank, layout in weight.layouts.items()}
    everywhere = [box for found in boxes.values() for box in found]
    edges = [{edge for box in everywhere for edge in (box.offset[d], box.offset[d] + box.shape[d])}
             for d in range(tensor.dim())]
    others = [box for rank, found in boxes.items() if rank != meeting.rank for box in found]
    for box in boxes[meeting.rank]:
        for offset, shape in _cells(box, edges, [other for other in others if _meet(box, other)]):
            begin = [at - first + base for at, first, base in zip(offset, box.offset, box.local_offset)]
            part = tensor.detach()[tuple(slice(at, at + size) for at, size in zip(begin, shape))]
            content = memoryview(bytes_of(part.cpu()).numpy())
            yield offset, shape, hashlib.blake2b(content, digest_size=16).hexdigest()


def _boxes(share: Any) -> list[_C.Box]:
    return [] if share is None else [box for box in share.boxes if 0 not in box.shape]


def _meet(box: _C.Box, other: _C.Box) -> bool:
    return all(a < b + q and b < a + p for a, p, b, q in zip(box.offset, box.shape, other.offset, other.shape))


def _cells(box: _C.Box, edges: Sequence[set[int]], others: Sequence[_C.Box]
           ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The parts of the box that ``others`` hold too, cut at ``edges`` (by dimension): (offset, shape)."""
    if not others:
        return
    cuts = []
    for first, size, edges_here in zip(box.offset, box.shape, edges):
        inner = sorted(edge for edge in edges_here if first < edge < first + size)
        cuts.append(list(itertools.pairwise([first, *inner, first + size])))
    for spans in itertools.product(*cuts):
        offset, shape = tuple(begin for begin, _ in spans), tuple(end - begin for begin, end in spans)
        if any(_meet(_C.Box(offset, shape, offset), other) for other in others):
            yield offset, shape


def _differences(ranks: Sequence[Sequence[Any]]) -> list[str]:
    holders: dict[Any, dict[str, list[int]]] = {}
    for rank, cells in enumerate(ranks):
        for name, offset, shape, digest in cells:
            holders.setdefault((name, tuple(offset), tuple(shape)), {}).setdefault(digest, []).append(rank)
    return [_text(name, offset, shape, list(found.values())) for (name, offset, shape), found in holders.items()
            if len(found) > 1]


def _text(name: str, offset: Sequence[int], shape: Sequence[int], classes: Sequence[Sequence[int]]) -> str:
    where = ", ".join(f"{begin}:{begin + size}" for begin, size in zip(offset, shape))
    sides = " and ".join(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
                         f"{', ...' if len(ranks) > 8 else ''}" for ranks in classes[:4])
    return f"{name!r}{f'[{where}]' if where else ''} differs between {sides}"
