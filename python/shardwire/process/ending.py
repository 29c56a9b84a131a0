"""The end of the program: features close what they hold, and then every group ends.

torch calls nothing of ours when a program ends without destroy_process_group, and a callback on a future that runs while the interpreter is taken apart ends the process with
an abort. So every live group ends before that. The handler is registered when shardwire is imported: the program's own handlers, registered later, run before it and may use
shardwire, even features that are first loaded then.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

from .. import _C
from . import log  # noqa: F401: log ends last, so that lines about the end of the groups still reach the program's handlers

_at_exit = contextlib.ExitStack()
_at_exit.callback(_C.shutdown_all)
atexit.register(_at_exit.close)


def close_at_exit(close: Callable[[], None]) -> None:
    """Has ``close`` called when the program ends, while the groups still work. What was registered last is closed first."""
    _at_exit.callback(close)
