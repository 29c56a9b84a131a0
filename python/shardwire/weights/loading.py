"""load: treats files as ranks. The readers' parts of the files, mapped or read, are inputs of one compiled op, which
takes each box from the nearest reader."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch

from ..compiler.future import Seconds, as_seconds
from ..compiler.agree import Attempt, Meeting, check_strict
from .checkpoint_folder import INDEX, SINGLE, FileSet
from .dcp_folder import METADATA, DcpFolder
from .descriptions import collect, describe
from .simple_layouts import Whole
from .holdings import Holding, Holdings
from .hosts import host_name, ranks_by_host
from .matching import match
from .movement import End, compile_movement
from .name_maps import as_name_map
from .problems import Problems
from .progress import SILENT, Progress, ProgressArgument
from .regular_file import as_path
from .wanted import Asking


# Where mypy does not see torch, a module may be any type, and the other two overloads never match.
_Module = TypeVar("_Module", bound=torch.nn.Module)


@overload
def load(path: Any, target: _Module, group: Any = None, mapping: Any = None, *, strict: bool = True, device: Any = None,
         timeout: Seconds = None, progress: ProgressArgument = None) -> _Module: ...
@overload
def load(path: Any, target: Mapping[str, Any], group: Any = None, mapping: Any = None, *,  # type: ignore[misc]
         strict: bool = True, device: Any = None, timeout: Seconds = None,
         progress: ProgressArgument = None) -> dict[str, Any]: ...
@overload
def load(path: Any, target: None, group: Any = None, mapping: Any = None, *, strict: bool = True,  # type: ignore[misc]
         device: Any = None, timeout: Seconds = None, progress: ProgressArgument = None) -> None: ...


def load(path: Any, target: Any, group: Any = None, mapping: Any = None, *, strict: bool = True, device: Any = None,
         timeout: Seconds = None, progress: ProgressArgument = None) -> Any:
    """Fills ``target`` from safetensors files, or from a folder of torch.distributed.checkpoint, for any layouts.

    Returns the target; for a dict a new dict with the allocated tensors.

    Collective: every rank of ``group`` (None: the default group) calls. Each byte wanted by a host's ranks is read from
    the file system once per host, evenly shared among the host's ranks with a ``path``, and moved into place by one
    compiled op.

    path: a .safetensors file; a folder with model.safetensors, or model.safetensors.index.json and its files, or one
        ``*.safetensors``; a list of files; a folder written by torch.distributed.checkpoint; None on a rank that must
        not read. ``~`` is the user's home. All ranks name the same files.
    target, mapping, strict, device: as for :func:`shardwire.sync`; the source's names are the names in the files.
    progress: how to show the progress. None: rank 0 shows a bar on a terminal, else a line every few seconds; False:
        nothing; else a function called with the finished bytes on this rank and the total.

    Raises the same error on every rank: CheckpointError (a ValueError) with file, tensor and numbers for a missing or
    broken file, SystemFailure for an unreadable file, and the errors of sync. Files must not be changed during the
    load.
    """
    meeting = Meeting(group, "load", None)
    files: FileSet | DcpFolder | None = None
    shown = SILENT
    try:
        wanted: Holdings | None = None
        blobs = [b"", b"", b""]
        with Attempt() as attempt:
            meeting.seconds = as_seconds(timeout)
            shown = Progress(f"load {path}", progress, meeting.rank)
            names = as_name_map(mapping)
            files = _open(path)
            have = _FileHoldings(files)
            wanted = Holdings(target, "target", meeting.global_rank, meeting.ranks)
            blobs = [describe(have, names.source), describe(wanted, names.target),
                     json.dumps([host_name(), path is not None, bool(strict)]).encode()]
        everyone = meeting.exchange(blobs, attempt.error)
        assert wanted is not None
        with shown:
            return _load(meeting, files, wanted, everyone, strict, device, shown)
    finally:
        if files is not None:
            files.close()


def _load(meeting: Meeting, files: FileSet | DcpFolder | None, wanted: Holdings, everyone: list[list[bytes]],
          strict: bool, device: Any, shown: Progress) -> Any:
    facts = [json.loads(given[2]) for given in everyone]
    check_strict("load", [is_strict for _, _, is_strict in facts])
    readers = [rank for rank, (_, reads, _) in enumerate(facts) if reads]
    if not readers:
        raise ValueError("load: no rank gives a path")
    problems = Problems()
    sources, targets = (collect([given[which] for given in everyone], side, problems)
                        for which, side in enumerate(("source", "target")))
    found = match(sources, targets, problems, strict)
    problems.raise_any("load")
    hosts = ranks_by_host([host for host, _, _ in facts], range(len(facts)))
    layouts: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    with Attempt() as attempt:
        wanted.allocate(frozenset(placed.name for space in found.spaces for placed in space.targets), device)
        if files is not None:
            layouts, tensors = files.supply(found, targets, _asking(meeting, hosts, readers), shown)
    source = End(layouts, lambda: tensors, lambda: tensors)
    movement = compile_movement(meeting, found, source, End.of(wanted), "load", attempt.error)
    shown.begin("moving", movement.num_bytes())
    shown.wait(movement.run(meeting.seconds), movement.num_bytes())
    return wanted.result()


def _asking(meeting: Meeting, hosts: list[list[int]], readers: list[int]) -> Asking:
    """The ranks for which this rank reads: the ranks of its host; on the first host with readers, also the ranks of all
    hosts without readers."""
    reading = [ranks for ranks in hosts if set(ranks) & set(readers)]
    mine = next(ranks for ranks in reading if meeting.rank in ranks)
    ranks = set(mine)
    if mine is reading[0]:
        ranks.update(rank for others in hosts if others not in reading for rank in others)
    here = [rank for rank in mine if rank in readers]
    return Asking(ranks, meeting.ranks, here.index(meeting.rank), len(here))


def _open(path: Any) -> FileSet | DcpFolder | None:
    if path is None:
        return None
    if isinstance(path, (str, os.PathLike)):
        folder = as_path(path)
        if (folder / METADATA).is_file() and not (folder / SINGLE).is_file() and not (folder / INDEX).is_file():
            return DcpFolder(folder)
    return FileSet(path)


class _FileHoldings(Holdings):
    """The tensors of files as one side of a movement."""

    def __init__(self, files: FileSet | DcpFolder | None) -> None:
        super().__init__(None, "source", 0, ())
        for index, (name, shape, dtype) in enumerate(() if files is None else files.entries()):
            self.entries[name] = Holding(name, shape, dtype, Whole(shape), index)
