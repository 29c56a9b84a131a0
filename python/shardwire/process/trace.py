"""The flight recorder: the last operations of all groups of this process, in the form of torch's own (docs/sight.md)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any, cast

from .. import _C


def trace(*, only_active: bool = False) -> dict[str, Any]:
    """What the flight recorders of this process hold: a dict with ``entries``, ``pg_config``, ``pg_status`` and ``version``, as torch's flight recorder has them.

    ``pickle.dump(shardwire.trace(), file)`` into files named ``<prefix><rank>`` of one folder is what ``torchfrtrace`` reads. only_active: without operations that are
    over. Takes microseconds per entry and stops nobody. Any thread may call.
    """
    return cast("dict[str, Any]", json.loads(_C.trace_json(only_active)))


def extend_torchs_dump() -> None:
    """Makes torch's ``_dump_fr_trace`` and ``_dump_fr_trace_json`` tell of our operations, too, where torch has them: what calls them sees the whole process."""
    import torch._C._distributed_c10d as c10d
    for name, extended in (("_dump_fr_trace", _extended_pickle), ("_dump_fr_trace_json", _extended_json)):
        torchs = getattr(c10d, name, None)
        if torchs is not None and not hasattr(torchs, "shardwire_extends"):
            setattr(c10d, name, extended(torchs))


def _extended_pickle(torchs: Callable[..., bytes]) -> Callable[..., bytes]:
    def dump(includeCollectives: bool = True, includeStackTraces: bool = True, onlyActive: bool = False) -> bytes:  # torch's names
        whole = _joined(pickle.loads(torchs(includeCollectives, includeStackTraces, onlyActive)), includeCollectives, onlyActive)
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
    """torch's dump with our entries behind its own; numbers of records and groups go on where its end."""
    ours = trace(only_active=only_active)
    entries = list(whole.get("entries", []))
    first_record = max((entry["record_id"] for entry in entries), default=-1) + 1
    first_group = max((int(number) for number in whole["pg_status"]), default=-1) + 1
    for entry in ours["entries"] if collectives else []:
        entries.append({**entry, "record_id": entry["record_id"] + first_record, "pg_id": entry["pg_id"] + first_group})
    status = {str(int(number) + first_group): each for number, each in ours["pg_status"].items()}
    joined = {**whole, "pg_config": {**ours["pg_config"], **whole["pg_config"]}, "pg_status": {**whole["pg_status"], **status}}
    return {**joined, "entries": entries} if collectives else joined
