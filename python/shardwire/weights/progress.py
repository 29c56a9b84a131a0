"""The progress of a long call: a bar on a terminal, else a line of log every few seconds, or the caller's own
function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Union

from ..compiler.future import Future
from ..compiler.layout import kind_of
from ..process.log import log

ProgressArgument = Union[bool, Callable[[int, int], Any], None]
_BAR_FROM_S, _BAR_EVERY_S = 1.0, 0.2
_LINE_EVERY_S = 5.0
_CALL_EVERY_S = 0.1
_LOOK_S = 0.2  # while a transfer runs
_BAR = 30


class Progress:
    """The progress of one call on this rank. Used by the calling thread, as a context. given: None: the group's rank 0
    shows a bar or lines; False: nothing; else a function, called with the finished bytes and the total on this rank,
    several times a second, and once at the end.
    """

    def __init__(self, what: str, given: ProgressArgument, rank: int) -> None:
        if given not in (None, True, False) and not callable(given):
            raise TypeError(f"progress is {kind_of(given)}; give a function of two numbers, False for silence, or None")
        self._what = what if len(what) <= 120 else f"{what[:117]}..."
        self._call = given if callable(given) else None
        self._shows = given is True or given is None and rank == 0
        self._is_bar = self._shows and _is_terminal()
        self._begun = time.monotonic()
        self._next = self._begun + (_CALL_EVERY_S if self._call else _BAR_FROM_S if self._is_bar else _LINE_EVERY_S)
        self._step, self.done, self.total = "", 0, 0
        self._was_shown = False

    def begin(self, step: str, num_bytes: int = 0) -> None:
        """Begins a step of the call; ``num_bytes`` is added to the total."""
        self._step = step
        self.total += num_bytes
        self.look()

    def add(self, num_bytes: int) -> None:
        self.done += num_bytes
        self.look()

    def wait(self, future: Future, num_bytes: int = 0) -> None:
        """Waits for a transfer of ``num_bytes``, which are added at the end."""
        while (self._call or self._shows) and not future.done():
            try:
                future.synchronize(_LOOK_S)
            except TimeoutError:
                pass  # of the look, or of the operation: then the wait below raises
            self.look()
        future.wait()
        self.add(num_bytes)

    def look(self, is_end: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not is_end:
            return
        if self._call is not None:
            self._next = now + _CALL_EVERY_S
            try:
                self._call(self.done, self.total)
            # An error of the function must not end a call in which other ranks take part
            except Exception as error:
                self._call = None
                log("warn",
                    f"{self._what}: progress= raised {type(error).__name__}: {error}; it is not called any more")
        elif self._is_bar:
            self._next = now + _BAR_EVERY_S
            filled = _BAR * self.done // self.total if self.total else 0
            self._draw(f"\r{self._what} [{'#' * filled}{' ' * (_BAR - filled)}] {self._text(now)}\x1b[K")
        elif self._shows:
            self._next = now + _LINE_EVERY_S
            log("info", f"{self._what}: {self._text(now)}", is_news=True)
        self._was_shown = True

    def _draw(self, text: str) -> None:
        """Writes to the terminal. A terminal that is gone must not end a call in which other ranks take part."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # AttributeError: sys.stderr is None
            self._is_bar = self._shows = False

    def _text(self, now: float) -> str:
        seconds = now - self._begun
        amount = (f"{_size(self.done)} of {_size(self.total)}, {_size(self.done / max(seconds, 1e-9))}/s, "
                  if self.total else "")
        return f"{self._step}, {amount}{seconds:.0f} s" if self._step else f"{amount}{seconds:.0f} s"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: Any, *_error: Any) -> None:
        if kind is None and (self._call or self._was_shown):
            self._step = "done"
            self.look(is_end=True)
        if self._is_bar and self._was_shown:
            self._draw("\n")


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (OSError, ValueError):  # stderr is closed
        return False


SILENT = Progress("", False, 0)


def _size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
