"""What a queue holds, on the rank that holds it: entries, who waits for one, who waits for room. Plain state, no threads: the hub calls it from one
thread at a time, and whoever is served is told by a callback.

Getters are served in the order in which they came, local or not, and so are putters that wait for room. What a putter sent is seen in the order in which it
sent it. An entry that was handed out but not taken (its getter died or gave up) goes back to where it was.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from typing import Any, Callable

import torch


READY, NOTHING, OVER = "ready", "nothing", "over"


class Entry:
    """One tensor or object: what it is (`head`), its bytes, and its place in the order."""

    __slots__ = ("head", "parts", "number")

    def __init__(self, head: bytes, parts: list[torch.Tensor]) -> None:
        self.head, self.parts, self.number = head, parts, -1

    def __lt__(self, other: Entry) -> bool:
        return self.number < other.number


def _nobody(_: str) -> None:
    pass


class Getter:
    """Somebody who waits for an entry, or (takes=False) for there to be one. `serve(entry or None, why)` is called once; `why` is READY, NOTHING, OVER,
    or the text of what failed."""

    __slots__ = ("serve", "takes")

    def __init__(self, serve: Callable[[Entry | None, str], None], takes: bool) -> None:
        self.serve, self.takes = serve, takes


class Putting:
    """Entries that become visible together: one put, or a transaction. `tell(outcome)` is called once: READY, OVER (closed) or NOTHING (no room)."""

    __slots__ = ("entries", "missing", "source", "admitted", "fetch", "tell", "room")

    def __init__(self, source: Any, tell: Callable[[str], None], fetch: Callable[[], None] | None = None) -> None:
        self.source, self.tell, self.fetch = source, tell, fetch  # fetch: starts to bring the bytes, once there is room
        self.entries: list[Entry] = []
        self.missing = 0  # parts whose bytes are still on their way
        self.admitted = False
        self.room = 0  # entries it has room for

    def end(self, outcome: str) -> None:
        """Tells, and lets go of everything: a circle of references would keep the bytes until Python looks for circles."""
        tell, self.tell, self.fetch, self.entries = self.tell, _nobody, None, []
        tell(outcome)


class HeldQueue:
    """The entries of one queue on this rank."""

    def __init__(self, key: str, about: list[Any], capacity: int | None, survives: bool) -> None:
        self.key, self.about, self.capacity, self.survives = key, about, capacity, survives
        self.entries: deque[Entry] = deque()  # by number
        self.getters: deque[Getter] = deque()
        self.watchers: list[Getter] = []  # who waits without taking
        self.for_room: deque[Putting] = deque()
        self.in_order: dict[Any, deque[Putting]] = {}  # source -> what it sent and is not visible yet, oldest first
        self.reserved = 0  # room of admitted ones that are not visible yet
        self.closed = False
        self.failure: str | None = None
        self._numbers = itertools.count()

    # ---- putting

    def put(self, putting: Putting, may_wait: bool) -> None:
        if self.closed:
            putting.end(OVER)
            return
        count = len(putting.entries)
        if not self._has_room(count) or self.for_room:
            if not may_wait:
                putting.end(NOTHING)
                return
            self.for_room.append(putting)
            return
        self._admit(putting)

    def _has_room(self, count: int) -> bool:
        return self.capacity is None or len(self.entries) + self.reserved + count <= self.capacity

    def _admit(self, putting: Putting) -> None:
        putting.admitted, putting.room = True, len(putting.entries)
        self.reserved += putting.room
        self.in_order.setdefault(putting.source, deque()).append(putting)
        if putting.fetch is not None:
            putting.fetch()
        self.arrived(putting.source)

    def arrived(self, source: Any) -> None:
        """Bytes of something that `source` sent are here: what is complete, and has nothing older before it, is seen now."""
        line = self.in_order.get(source)
        visible = []
        while line and line[0].missing == 0:
            putting = line.popleft()
            self.reserved -= putting.room
            for entry in putting.entries:
                entry.number = next(self._numbers)
                self.entries.append(entry)
            visible.append(putting)
        if line is not None and not line:
            del self.in_order[source]
        for putting in visible:  # before the getters: one that ends its process with what it got would take the answer with it
            putting.end(READY)
        self._serve()

    def give_up(self, putting: Putting) -> None:
        """A putter went or gave up before what it put could be seen."""
        if putting in self.for_room:
            self.for_room.remove(putting)
        line = self.in_order.get(putting.source)
        if line is not None and putting in line:
            line.remove(putting)
            self.reserved -= putting.room
            self.arrived(putting.source)
        putting.tell, putting.fetch, putting.entries = _nobody, None, []
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self.for_room and self._has_room(len(self.for_room[0].entries)):
            self._admit(self.for_room.popleft())

    # ---- getting

    def get(self, getter: Getter, may_wait: bool) -> None:
        if getter.takes:
            self.getters.append(getter)
        else:
            self.watchers.append(getter)
        self._serve()
        if not may_wait and self.forget(getter):
            getter.serve(None, NOTHING)

    def _serve(self) -> None:
        while self.entries and self.getters:
            entry, getter = self.entries.popleft(), self.getters.popleft()
            getter.serve(entry, READY)
            self._admit_waiting()
        why = READY if self.entries else OVER if self.closed and not self.in_order else self.failure
        if why is None:
            return
        waiting, self.watchers = self.watchers, []
        for watcher in waiting:
            watcher.serve(None, why)
        if why != READY:
            waiting, self.getters = list(self.getters), deque()
            for getter in waiting:
                getter.serve(None, why)

    def forget(self, getter: Getter) -> bool:
        """Whether it was still waiting. It waits no more."""
        line: Any = self.getters if getter.takes else self.watchers
        if getter not in line:
            return False
        line.remove(getter)
        return True

    def give_back(self, entries: list[Entry]) -> None:
        """Entries that were handed out and not taken: where they were in the order."""
        for entry in entries:
            bisect.insort(self.entries, entry)
        self._serve()

    def fail(self, failure: str) -> None:
        """Somebody who put died: who finds nothing here is told, since nobody knows what would have come."""
        self.failure = self.failure or failure
        self._serve()

    def close(self) -> None:
        """Nothing more can be put; what is here can still be taken."""
        self.closed = True
        waiting, self.for_room = list(self.for_room), deque()
        for putting in waiting:
            putting.end(OVER)
        self._serve()
