"""The end of the program: features close their objects, and then every group ends.

torch calls no function of shardwire when a program ends without destroy_process_group, and a callback on a future
during the interpreter's shutdown aborts the process. So every live group ends before the shutdown. The handler is
registered when shardwire is imported: the program's own handlers, registered later, run before this handler and may use
shardwire, even features first loaded then.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

from .. import _C
# log ends last, so that lines about the end of the groups still reach the program's handlers
from . import log  # noqa: F401

_at_exit = contextlib.ExitStack()
_at_exit.callback(_C.shutdown_all)
atexit.register(_at_exit.close)


def close_at_exit(close: Callable[[], None]) -> None:
    """Calls ``close`` at the end of the program, while the groups still work. The function registered last is called
    first."""
    _at_exit.callback(close)
