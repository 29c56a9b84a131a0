"""save: treats files as ranks. The ranks of a host write each file, each rank its rows, every byte once: a rank writes
its own rows directly, and the rest arrives by the compiled op."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

import torch

from ..compiler.future import Seconds, as_seconds
from ..compiler.layout import kind_of
from ..errors import CheckpointError, MismatchError
from ..compiler.agree import Attempt, Meeting
from .descriptions import Weight, collect, describe
from .direct_rows import cover, local_rows
from .simple_layouts import Rows
from .holdings import Holdings
from .hosts import host_name, ranks_by_host
from .matching import Match, joined, match
from .movement import End, compile_movement
from .name_maps import as_name_map
from .problems import Problems
from .progress import SILENT, Progress, ProgressArgument
from .save_files import Draft, wait_for_removals
from .save_plan import plan_files, rows_of

_MOST_BYTES = 5_000_000_000  # of one file, as in transformers


def save(source: Any, folder: str | os.PathLike[str], group: Any = None, mapping: Any = None, *,
         max_file_bytes: int = _MOST_BYTES, metadata: Mapping[str, str] | None = None, timeout: Seconds = None,
         progress: ProgressArgument = None) -> list[str]:
    """Writes ``source`` as a safetensors checkpoint into ``folder``, each byte once. Returns the paths of the files, on
    every rank.

    Collective: every rank of ``group`` (None: the default group) calls. The folder is made when missing; all ranks
    share the folder. A single file is called model.safetensors; several files, named as in transformers, have an index.
    The ranks with a part of ``source`` share the writing on each host; a file is written by ranks of one host.

    source, mapping: as for :func:`shardwire.sync`; the mapping's target names are the names in the files. Of tied
        weights the first name is written; non-persistent buffers are not written. None: a rank that gives no weights.
    max_file_bytes: the most bytes of a file with more than one tensor.
    metadata: strings for the header of each file; "format": "pt" is always there.
    progress: how to show the progress. None: rank 0 shows a bar on a terminal, else a line every few seconds; False:
        nothing; else a function called with the finished bytes on this rank and the total.

    **Replicas are not compared** (:func:`shardwire.check_replicas` does). Where ranks hold one name with different
    values, the files get a mixture of the values of all ranks. ``save(model if rank == 0 else None, folder)`` writes
    rank 0's values only.

    A reader finds the old checkpoint of the folder, whole, until the new checkpoint is whole on the disk, and from then
    on the new one, even when any rank fails or is killed meanwhile. Jobs that save into one folder at once take turns,
    and the last one's checkpoint stays. When all ranks are killed, hidden files (``.*.shardwire-*.tmp``) may be left.
    Raises the same error on every rank: SystemFailure for errors of the system (a full disk), CheckpointError for a
    folder that is a file or is not shared, and the errors of sync.
    """
    meeting = Meeting(group, "save", None)
    blobs = [b"", b"", b""]
    shown = SILENT
    with Attempt() as attempt:
        meeting.seconds = as_seconds(timeout)
        shown = Progress(f"save {folder}", progress, meeting.rank)
        options = _options(folder, max_file_bytes, metadata)
        renames = as_name_map(mapping).source
        have = Holdings(source, "source", meeting.global_rank, meeting.ranks)
        # here, since rows written by another rank are not checked below
        have.refuse_lazy_views()
        # Of an earlier save, whose space may be needed
        wait_for_removals()
        if meeting.rank == 0:
            _make_folder(options["folder"])
        facts = {"host": host_name(), "token": secrets.token_hex(4), "has": bool(have.entries), "options": options}
        blobs = [describe(have, renames), b"", json.dumps(facts).encode()]
    everyone = meeting.exchange(blobs, attempt.error)
    ranks = [json.loads(given[2]) for given in everyone]
    for rank, facts in enumerate(ranks):
        if facts["options"] != ranks[0]["options"]:
            raise MismatchError(f"save: rank 0 gives {ranks[0]['options']}, rank {rank} gives {facts['options']}; all "
                                "ranks give the same")
    problems = Problems()
    sources = collect([given[0] for given in everyone], "source", problems)
    targets = joined(sources, problems)
    found = match(sources, targets, problems, strict=False)
    problems.raise_any("save")
    if not found.spaces:
        raise ValueError("save: no rank has a source with any weights")
    with shown:
        return _save(meeting, ranks, have, sources, targets, found, shown)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as failure:
        raise CheckpointError(f"{folder} is a file, and save writes a folder with the files of the checkpoint; give "
                              "the path of a folder") from failure


def _options(folder: Any, max_file_bytes: Any, metadata: Any) -> dict[str, Any]:
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"folder is {kind_of(folder)}; give a path")
    if not isinstance(max_file_bytes, int) or isinstance(max_file_bytes, bool) or max_file_bytes < 1:
        raise ValueError(f"max_file_bytes is {kind_of(max_file_bytes)}; give a number of bytes above 0")
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, Mapping) or not all(isinstance(text, str) for pair in metadata.items()
                                                    for text in pair):
        raise TypeError("metadata is no mapping of str to str, which is all that the format holds")
    for text in (*metadata, *metadata.values()):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"metadata has the text {text!r}: half of a surrogate pair is no text")
    return {"folder": os.path.abspath(os.path.expanduser(folder)), "max_file_bytes": max_file_bytes,
            "metadata": {"format": "pt", **metadata}}


def _save(meeting: Meeting, ranks: list[Any], have: Holdings, sources: dict[str, Weight], targets: dict[str, Weight],
          found: Match, shown: Progress) -> list[str]:
    options = ranks[0]["options"]
    hosts = ranks_by_host([facts["host"] for facts in ranks],
                          [rank for rank, facts in enumerate(ranks) if facts["has"]])
    files = plan_files(found, sources, targets, hosts, options["max_file_bytes"], options["metadata"])
    draft = Draft(options["folder"], ranks[0]["token"], files)
    mine = [number for number, file in enumerate(files) if file.creator == meeting.rank]
    whole = False
    try:
        with meeting.together():
            for number in mine:
                draft.create(number)
        _write(meeting, draft, have, targets, found, shown)
        shown.begin("bringing it onto the disk")
        with meeting.together():
            for number in mine:
                draft.sync(number)
        mover = files[0].creator
        paths: list[str] = []
        with Attempt() as attempt:
            if meeting.rank == mover:
                draft.check()
                paths = draft.publish(options["metadata"], meeting.seconds)
        facts = meeting.exchange([json.dumps(paths).encode(), b"", b""], attempt.error)
        whole = True
        return json.loads(facts[mover][0])
    finally:
        if not whole:
            draft.discard()


def _write(meeting: Meeting, draft: Draft, have: Holdings, targets: dict[str, Weight], found: Match,
           shown: Progress) -> None:
    """Writes the bytes of all ranks' tensors into the files: directly for whole rows of this rank, by the compiled op
    into mapped files for the rest."""
    layouts: dict[str, Any] = {}
    views: dict[str, Any] = {}
    with Attempt() as attempt:
        tensors = have.tensors()
        spaces = {space.targets[0].name: space for space in found.spaces}
        for number, file in enumerate(draft.files):
            own: list[tuple[int, torch.Tensor]] = []
            for index, stored in enumerate(file.tensors):
                part = rows_of(file, index, meeting.rank)
                if part is None:
                    continue
                space, dtype = spaces[stored.name], targets[stored.name].dtype
                begin, end = (part.start, part.stop) if isinstance(part, Rows) else (0, stored.rows)
                here = cover(local_rows(space, space.sources, have.entries, tensors, meeting.global_rank, dtype), begin,
                             end)
                if here is None:
                    layouts[stored.name] = part
                    views[stored.name] = draft.view(number, stored, part, dtype)
                else:
                    own += [(stored.begin + rows.begin * stored.row_bytes, rows.tensor) for rows in here]
            if own:  # another host's files may not be visible here yet
                shown.begin("writing", sum(tensor.numel() * tensor.element_size() for _, tensor in own))
                draft.write(number, own, shown)
    if any(given[0] for given in meeting.exchange([b"some" if layouts else b"", b"", b""], attempt.error)):
        movement = compile_movement(meeting, found, End.of(have), End(layouts, lambda: views, lambda: views), "save")
        shown.begin("moving", movement.num_bytes())
        shown.wait(movement.run(meeting.seconds), movement.num_bytes())
        meeting.settle(None)  # all ranks' bytes are in the page cache
