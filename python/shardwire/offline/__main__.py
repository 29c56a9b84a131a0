"""``python -m shardwire.offline``: plans an operation of any number of ranks on one machine. See docs/offline.md.

Exit status: 0 when the operation could be planned, 2 when the description or a file is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from .description import plan_description, read_description
from .ready import READY


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options = _parse(argv)
    try:
        given = READY[options.ready]() if options.ready else read_description(options.description)
        if options.write:
            _write(options.write, given)
        made = plan_description(given, options.topology, os.path.dirname(options.description or ""))
        print(made.explain())
        if options.json:
            made.save(options.json)
        if options.picture:
            made.plot(options.picture)
    except (ValueError, TypeError, NotImplementedError, OSError, ImportError) as error:
        print(f"shardwire.offline: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardwire.offline",
                                     description="Plans what compile_op would move between any number of ranks, "
                                                 "without them.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("description", nargs="?", help="a JSON file (docs/offline.md)")
    which.add_argument("--ready", choices=sorted(READY), help="a description that comes with shardwire")
    parser.add_argument("--topology", metavar="FILE", help="hosts and links, in place of the description's")
    parser.add_argument("--json", metavar="FILE", help="writes all numbers")
    parser.add_argument("--picture", metavar="FILE", help="draws who sends what to whom: .svg, or .png")
    parser.add_argument("--write", metavar="FILE", help="writes the description itself, to be changed")
    return parser.parse_args(argv)


def _write(path: str, given: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(given, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
