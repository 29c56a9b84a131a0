"""What the calls of shardwire.symm take alike: groups or teams, ranks, times."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from .._groups import resolve_backend


def backend_of(group: Any) -> Any:
    """The native backend of a group, of a group's name, of None (the default group), or of a :class:`Team`."""
    backend = getattr(group, "_symm_backend", None)
    return resolve_backend(group) if backend is None else backend


def seconds_of(timeout: float | timedelta | None) -> float | None:
    """``timeout`` in seconds; None: the group's. TypeError or ValueError for what is no time."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a {type(timeout).__name__}; give seconds (float) or a timedelta, or None for the group's")
    if math.isnan(timeout) or timeout <= 0:
        raise ValueError(f"timeout is {timeout}; give a positive time")
    return float(timeout)
