"""The group or team, an argument of all calls of shardwire.symm."""

from __future__ import annotations

from typing import Any

from ..groups.lookup import resolve_backend


def backend_of(group: Any) -> Any:
    """The native backend of a group, of a group's name, of None (the default group), or of a :class:`Team`."""
    backend = getattr(group, "_symm_backend", None)
    return resolve_backend(group) if backend is None else backend
