"""``python -m shardwire.status [PID...]``: the state of the ranks of running jobs on this host, as a table that is
drawn again every second.

--once draws the table once; --json prints the picture as JSON, once; --web [PORT] serves a page on 127.0.0.1 (see
docs/sight.md).
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import sys
import time
from typing import Any

from . import picture, processes, table, web

_CLEAR = "\x1b[H\x1b[2J"  # clears the screen and moves the cursor to the top


def main(words: list[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 when no process of this user reports."""
    arguments = _parser().parse_args(words)
    if arguments.web is not None:
        return web.serve(arguments.web, lambda: _look(arguments.pids))
    if arguments.json or arguments.once:
        seen = _look(arguments.pids)
        print(json.dumps(seen) if arguments.json else _drawn(seen))
        return 0 if seen["processes"] else 1
    try:
        with table.hidden_cursor(sys.stdout.write):
            while True:
                sys.stdout.write(_CLEAR + _drawn(_look(arguments.pids)) + "\n")
                sys.stdout.flush()
                time.sleep(arguments.every)
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shardwire.status",
                                     description="What the ranks of running jobs on this host do.")
    parser.add_argument("pids", metavar="PID", type=int, nargs="*",
                        help="only these processes (all of this user's, without)")
    parser.add_argument("--once", action="store_true", help="draw the table once")
    parser.add_argument("--json", action="store_true", help="the picture as JSON, once")
    parser.add_argument("--every", metavar="SECONDS", type=float, default=1.0, help="how long between two pictures (1)")
    parser.add_argument("--web", metavar="PORT", type=int, nargs="?", const=0,
                        help="serve a page on 127.0.0.1, at this port or a free one; its address is printed")
    return parser


def _look(pids: list[int]) -> dict[str, Any]:
    return picture.picture(processes.look(pids), socket.gethostname())


def _drawn(seen: dict[str, Any]) -> str:
    return (table.rendered(seen, shutil.get_terminal_size((160, 50)).columns) if sys.stdout.isatty()
            else table.plain(seen))


if __name__ == "__main__":
    sys.exit(main())
