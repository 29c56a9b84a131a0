"""Waiting for one of several queues: the implementation of Queue.wait_any."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import _C
from . import wire
from .use_link import Call
from .wire import Outcome

if TYPE_CHECKING:
    from .queue import Queue


def wait_any(queues: Sequence[Queue], seconds: float) -> list[Queue]:
    """The queues with an entry, and closed queues, in order; empty after `seconds`. 0: the queues ready now."""
    deadline = time.monotonic() + seconds
    changed = threading.Event()
    with _watching(queues, changed, deadline, seconds > 0) as watches:
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

    def __init__(self, queue: Queue, changed: threading.Event, deadline: float, block: bool) -> None:
        self.queue, self.why = queue, ""
        self._changed, self._block = changed, block
        self._link, number = queue.source("wait", deadline if block else queue.deadline(False, None)[0])
        self._local: Any = None
        self._call: Call | None = None
        if self._link is None:
            self._local = _C.QueueLocalCall(queue.hub.holder, queue.held())
            self._local.get(False, block)
            if block:
                self._local.when_over(queue.hub.notice(changed.set))
            else:
                self._local.wait(queue.hub.silence)
        else:
            self._call = self._link.ask(wire.WAIT, number, flags=0 if block else wire.NOT_BLOCKING)
            if block:
                self._call.then(changed.set)

    def is_ready(self) -> bool:
        if self._local is not None and self._local.is_over():
            self.why = wire.result_of(self._local).outcome
        if self._link is not None and self._call is not None and (not self._block or self._call.is_completed()):
            answer = self._link.answer(self._call, None)
            assert answer is not None
            self._call = None
            self.why = answer.outcome()
        if self.why not in ("", Outcome.READY, Outcome.OVER, Outcome.NOTHING):
            raise self.queue.error_of(self.why)
        return self.why in (Outcome.READY, Outcome.OVER)

    def check(self) -> None:
        """After a long silence: checks that the holder still answers."""
        if self._link is not None and self._call is not None:
            self._link.answer(self._link.ask(wire.PING), None)

    def end(self) -> None:
        if self._local is not None:
            self._local.give_up()
        elif self._link is not None and self._call is not None:
            self._link.give_up(self._call)


@contextmanager
def _watching(queues: Sequence[Queue], changed: threading.Event, deadline: float,
              block: bool) -> Iterator[list[_Watch]]:
    watches: list[_Watch] = []
    try:
        for queue in queues:
            watches.append(_Watch(queue, changed, deadline, block))
        yield watches
    finally:
        for watch in watches:
            watch.end()
