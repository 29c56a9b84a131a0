"""Arguments that all calls of shardwire.symm share: groups or teams, ranks, times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ..compiler.future import as_seconds
from ..groups.lookup import resolve_backend


def backend_of(group: Any) -> Any:
    """The native backend of a group, of a group's name, of None (the default group), or of a :class:`Team`."""
    backend = getattr(group, "_symm_backend", None)
    return resolve_backend(group) if backend is None else backend


def seconds_of(timeout: float | timedelta | None) -> float | None:
    """``timeout`` in seconds; None: the group's; 0: now. TypeError or ValueError for a value that is no time."""
    return as_seconds(timeout)
