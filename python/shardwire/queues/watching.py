"""Waiting for one of several queues: what Queue.wait_any does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from . import wire
from .entries import OVER, READY, Getter
from .use_link import Call

if TYPE_CHECKING:
    from .queue import Queue


def wait_any(queues: Sequence[Queue], seconds: float) -> list[Queue]:
    """Those that have an entry or are closed, in order; empty after `seconds`."""
    deadline = time.monotonic() + seconds
    changed = threading.Event()
    with _watching(queues, changed, deadline) as watches:
        while True:
            changed.clear()
            ready = [watch.queue for watch in watches if watch.is_ready()]
            left = deadline - time.monotonic()
            if ready or left <= 0:
                return ready
            if not changed.wait(min(left, queues[0].hub.silence / 2)):
                for watch in watches:
                    watch.check()


class _Watch:
    """One queue of a wait_any."""

    def __init__(self, queue: Queue, changed: threading.Event, deadline: float) -> None:
        self.queue, self.why = queue, ""
        self._changed = changed
        self._link, number = queue.source("wait", deadline)
        self._getter: Getter | None = None
        self._call: Call | None = None
        self._ping: Call | None = None
        if self._link is None:
            held = queue.held()
            self._getter = getter = Getter(self._serve, False)
            queue.hub.post(lambda: held.get(getter, True))
        else:
            self._call = self._link.ask(wire.WAIT, number)
            self._call.work.get_future().then(lambda _: changed.set())

    def _serve(self, _: Any, why: str) -> None:
        self.why = why
        self._changed.set()

    def is_ready(self) -> bool:
        if self._link is not None and self._call is not None and self._call.work.is_completed():
            answer = self._link.answer(self._call, None)
            assert answer is not None
            self._call = None
            self.why = {wire.OK: READY, wire.OVER: OVER}.get(answer.op, answer.head.decode())
        if self.why not in ("", READY, OVER):
            raise self.queue.error_of(self.why)
        return bool(self.why)

    def check(self) -> None:
        """After a long silence: whether the holder still answers."""
        if self._link is not None and self._call is not None:
            self._link.answer(self._link.ask(wire.PING), None)

    def end(self) -> None:
        if self._getter is not None and not self.why:
            self.queue.hub.post(partial(self.queue.held().forget, self._getter))
        elif self._link is not None and self._call is not None:
            self._link.give_up(self._call)


@contextmanager
def _watching(queues: Sequence[Queue], changed: threading.Event, deadline: float) -> Iterator[list[_Watch]]:
    watches: list[_Watch] = []
    try:
        for queue in queues:
            watches.append(_Watch(queue, changed, deadline))
        yield watches
    finally:
        for watch in watches:
            watch.end()
