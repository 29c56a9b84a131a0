"""Sight into a running job: what each rank waits for, and since when.

``python -m shardwire.status`` shows this user's jobs on this host that were started with SHARDWIRE_STATUS=1, or called
:func:`serve`. See docs/sight.md.
"""

from __future__ import annotations

import json
from typing import Any, cast

from .. import _C

__all__ = ["serve", "snapshot", "stop"]


def serve() -> str:
    """From now on this process reports its state to ``python -m shardwire.status``; returns the socket's path, which
    only this user can open.

    A separate thread answers, which needs neither the GIL nor the group: also while this process hangs. A further call
    returns the same path. Any thread may call. SystemFailure when the folder or the socket cannot be made.
    """
    return _C.serve_status()


def stop() -> None:
    """Ends what :func:`serve` (or SHARDWIRE_STATUS=1) began, and removes the socket. Does nothing otherwise. The end of
    the process does the same."""
    _C.stop_serving_status()


def snapshot() -> dict[str, Any]:
    """The present state of this process, as :func:`serve` reports: ``pid``, ``host`` and ``groups``, a list with
    operations in flight, the last operations and the peers.

    Times are seconds. Takes at most 0.1 s per group, where an operation makes progress at the same time. Any thread may
    call.
    """
    return cast("dict[str, Any]", json.loads(_C.status_json()))
