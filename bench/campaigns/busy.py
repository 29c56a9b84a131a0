"""Other programs on the cores: processes that only compute."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """`count` busy processes, to the end of the with statement. The processes end without this process, too."""
    loops = [subprocess.Popen(
        ["sh", "-c", 'while kill -0 "$PPID"; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done 2>/dev/null'])
             for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
