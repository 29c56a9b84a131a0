"""Lines of log of the Python side."""

from __future__ import annotations

import os
import sys

_LEVELS = ("error", "warn", "info", "debug")


def log(level: str, text: str) -> None:
    """As the native side does: one write for a line, by SHARDWIRE_LOG."""
    chosen = os.environ.get("SHARDWIRE_LOG", "warn").lower()
    if _LEVELS.index(level) <= (_LEVELS.index(chosen) if chosen in _LEVELS else 1):
        try:
            os.write(sys.__stderr__.fileno(), f"shardwire {level} [{os.getpid()}]: {' '.join(text.split())}\n".encode())  # type: ignore[union-attr]
        except (OSError, AttributeError, ValueError):
            pass  # nobody reads it
