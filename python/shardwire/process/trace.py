"""The flight recorder: the last operations of all groups of this process, in the format of torch's recorder
(docs/sight.md)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any, cast

from .. import _C


def trace(*, only_active: bool = False) -> dict[str, Any]:
    """The contents of this process's flight recorders: a dict with ``entries``, ``pg_config``, ``pg_status`` and
    ``version``, as in torch's flight recorder.

    ``torchfrtrace`` reads files made by ``pickle.dump(shardwire.trace(), file)`` and named ``<prefix><rank>`` in one
    folder. only_active: leave finished operations out. Takes microseconds per entry and stops no thread. Any thread may
    call.
    """
    return cast("dict[str, Any]", json.loads(_C.trace_json(only_active)))


def extend_torchs_dump() -> None:
    """Extends torch's ``_dump_fr_trace`` and ``_dump_fr_trace_json``, where torch has these functions, by shardwire's
    operations: callers see the whole process."""
    import torch._C._distributed_c10d as c10d
    for name, extended in (("_dump_fr_trace", _extended_pickle), ("_dump_fr_trace_json", _extended_json)):
        torchs = getattr(c10d, name, None)
        if torchs is not None and not hasattr(torchs, "shardwire_extends"):
            setattr(c10d, name, extended(torchs))


def _extended_pickle(torchs: Callable[..., bytes]) -> Callable[..., bytes]:
    # The parameters' names are torch's
    def dump(includeCollectives: bool = True, includeStackTraces: bool = True, onlyActive: bool = False) -> bytes:
        whole = _joined(pickle.loads(torchs(includeCollectives, includeStackTraces, onlyActive)), includeCollectives,
                        onlyActive)
        return pickle.dumps(whole, protocol=2)
    return _marked(dump, torchs)


def _extended_json(torchs: Callable[..., Any]) -> Callable[..., Any]:
    def dump(includeCollectives: bool = True, onlyActive: bool = False) -> Any:
        text = torchs(includeCollectives, onlyActive)
        whole = json.dumps(_joined(json.loads(text), includeCollectives, onlyActive))
        return whole.encode() if isinstance(text, bytes) else whole
    return _marked(dump, torchs)


def _marked(dump: Callable[..., Any], torchs: Callable[..., Any]) -> Callable[..., Any]:
    dump.__doc__ = f"{torchs.__doc__}\n\nExtended by shardwire with the operations of its groups (docs/sight.md)."
    dump.shardwire_extends = torchs  # type: ignore[attr-defined]
    return dump


def _joined(whole: dict[str, Any], collectives: bool, only_active: bool) -> dict[str, Any]:
    """torch's dump with shardwire's entries behind torch's own; numbers of records and groups continue torch's
    numbers."""
    ours = trace(only_active=only_active)
    entries = list(whole.get("entries", []))
    first_record = max((entry["record_id"] for entry in entries), default=-1) + 1
    first_group = max((int(number) for number in whole["pg_status"]), default=-1) + 1
    for entry in ours["entries"] if collectives else []:
        entries.append({**entry, "record_id": entry["record_id"] + first_record, "pg_id": entry["pg_id"] + first_group})
    status = {str(int(number) + first_group): each for number, each in ours["pg_status"].items()}
    joined = {**whole, "pg_config": {**ours["pg_config"], **whole["pg_config"]},
              "pg_status": {**whole["pg_status"], **status}}
    return {**joined, "entries": entries} if collectives else joined
