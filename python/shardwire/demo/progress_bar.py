"""A progress bar in bytes on stderr: tqdm's where installed, a plain bar otherwise, nothing without a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """``with Progress(total) as bar: bar.advance(bytes, "checking")``. Shown only when stderr is a terminal, and only
    after half a second."""

    def __init__(self, total: int) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._label = ""
        self._bar: Any = None
        self._drawn_at = 0.0
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()
        if self._shown:
            try:
                from tqdm import tqdm
                self._bar = tqdm(total=self._total, unit="B", unit_scale=True, leave=False, delay=0.5,
                                 dynamic_ncols=True, file=sys.stderr)
            except ImportError:
                pass

    def advance(self, count: int, label: str) -> None:
        """Adds ``count`` bytes of finished work; ``label`` names the kind of work."""
        self._done = min(self._done + count, self._total)
        if not self._shown:
            return
        if self._bar is not None:
            if label != self._label:
                self._bar.set_description(label)
            self._bar.update(count)
        else:
            now = time.monotonic()
            if now - self._began > 0.5 and (now - self._drawn_at > 0.1 or label != self._label):
                self._drawn_at = now
                filled = 30 * self._done // self._total
                sys.stderr.write(f"\r{label:>16} [{'#' * filled}{'.' * (30 - filled)}] "
                                 f"{100 * self._done // self._total:3d} %")
                sys.stderr.flush()
        self._label = label

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._drawn_at:
            sys.stderr.write("\r" + " " * 60 + "\r")
            sys.stderr.flush()
