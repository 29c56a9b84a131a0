"""Profiling: the operations of a time span, as a file for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch.distributed as dist

from .trace import trace

_begin_ns: int | None = None


def enable_profiling(enabled: bool) -> None:
    """True: the operations of all groups of this process count from now on. False: writes these operations to
    ``shardwire-trace-RANK.json`` in the current folder; RANK is the process's in the default group, or its number.

    The file has the operations that the flight recorder remembers: SHARDWIRE_RECORDED_OPS of each group, 256 by default
    (docs/sight.md). An operation that is not over has the duration until now.
    """
    global _begin_ns
    if enabled:
        trace()  # from here on all groups record
        _begin_ns = time.time_ns()
    elif _begin_ns is not None:
        begin, _begin_ns = _begin_ns, None
        rank = dist.get_rank() if dist.is_initialized() else os.getpid()
        with open(f"shardwire-trace-{rank}.json", "w") as file:
            json.dump({"traceEvents": _events(trace(), begin)}, file)


def _events(recorded: dict[str, Any], begin_ns: int) -> list[dict[str, Any]]:
    """The recorder's operations from ``begin_ns`` on, in Chrome's format: one line for each group."""
    pid = os.getpid()
    entries = [entry for entry in recorded["entries"] if entry["time_created_ns"] >= begin_ns]
    # A message has the name of its pair of ranks: a collective of the same group counts.
    groups = {entry["pg_id"]: entry["process_group"][0] for entry in sorted(entries, key=lambda one: not one["is_p2p"])}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": f"group {name}"}}
        for number, name in groups.items()]
    for entry in entries:
        created, ended = entry["time_created_ns"], entry["time_discovered_completed_ns"] or time.time_ns()
        events.append({"ph": "X", "name": entry["operation"], "pid": pid, "tid": entry["pg_id"],
                       "ts": created / 1e3, "dur": (ended - created) / 1e3})
    return events
