"""The contents of one queue on the holder's rank: entries, getters waiting for an entry, putters waiting for room.
Plain state without threads: the hub calls the functions from one thread at a time (but for add_getter), and a callback
notifies each served getter or putter.

Getters are served in the order of arrival, local or not. The same holds for putters waiting for room. The entries of
one putter become visible in the order of sending. An entry handed out but not taken (the getter died or gave up) goes
back to its place.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from typing import Any, Callable

import torch


READY, NOTHING, OVER = "ready", "nothing", "over"


class Entry:
    """One tensor or object: the description (`head`), the bytes, and the place in the order."""

    __slots__ = ("head", "parts", "number")

    def __init__(self, head: bytes, parts: list[torch.Tensor]) -> None:
        self.head, self.parts, self.number = head, parts, -1

    def __lt__(self, other: Entry) -> bool:
        return self.number < other.number


def _nobody(_: str) -> None:
    pass


class Getter:
    """Waits for an entry, or (takes=False) until there is an entry. `serve(entry or None, why)` is called once; `why`
    is READY, NOTHING, OVER, or the text of the failure."""

    __slots__ = ("serve", "takes")

    def __init__(self, serve: Callable[[Entry | None, str], None], takes: bool) -> None:
        self.serve, self.takes = serve, takes


class Putting:
    """Entries to become visible together: one put, or a transaction. `notify(outcome)` is called once: READY, OVER
    (closed) or NOTHING (no room)."""

    __slots__ = ("entries", "missing", "source", "admitted", "fetch", "notify", "room")

    def __init__(self, source: Any, notify: Callable[[str], None], fetch: Callable[[], None] | None = None) -> None:
        # fetch: starts to bring the bytes, once there is room
        self.source, self.notify, self.fetch = source, notify, fetch
        self.entries: list[Entry] = []
        self.missing = 0  # parts with bytes still on the way
        self.admitted = False
        self.room = 0  # reserved room, in entries

    def end(self, outcome: str) -> None:
        """Calls `notify`, and releases all references: a reference cycle would keep the bytes until Python collects
        cycles."""
        notify, self.notify, self.fetch, self.entries = self.notify, _nobody, None, []
        notify(outcome)


class HeldQueue:
    """The entries of one queue on this rank."""

    def __init__(self, key: str, about: list[Any], capacity: int | None, survives: bool) -> None:
        self.key, self.about, self.capacity, self.survives = key, about, capacity, survives
        self.entries: deque[Entry] = deque()  # by number
        self.getters: deque[Getter] = deque()
        self.watchers: list[Getter] = []  # getters with takes=False
        self.for_room: deque[Putting] = deque()
        # source -> puts not visible yet, oldest first
        self.in_order: dict[Any, deque[Putting]] = {}
        self.reserved = 0  # room of admitted puts not visible yet
        self.closed = False
        self.failure: str | None = None
        self.revoked = ""
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
        """Bytes of a put of `source` are here: makes complete puts visible, in order, up to the first incomplete
        put."""
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
        # Before the getters: a getter may end the process with the entry, and the answer would be lost.
        for putting in visible:
            putting.end(READY)
        self.serve()

    def give_up(self, putting: Putting) -> None:
        """A putter died or gave up before the put was visible."""
        if putting in self.for_room:
            self.for_room.remove(putting)
        line = self.in_order.get(putting.source)
        if line is not None and putting in line:
            line.remove(putting)
            self.reserved -= putting.room
            self.arrived(putting.source)
        putting.notify, putting.fetch, putting.entries = _nobody, None, []
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
        self.serve()
        if not may_wait and self.forget(getter):
            getter.serve(None, NOTHING)

    def add_getter(self, getter: Getter) -> bool:
        """Adds a getter that waits and takes an entry. One step, which nothing can interrupt: on any thread. Returns
        whether the hub must call serve() now."""
        self.getters.append(getter)
        return bool(self.entries or self.closed or self.failure or self.revoked)

    def serve(self) -> None:
        """Hands out entries, or the reason why none will come."""
        while self.entries and self.getters:
            entry, getter = self.entries.popleft(), self.getters.popleft()
            getter.serve(entry, READY)
            self._admit_waiting()
        why = READY if self.entries else OVER if self.closed and not self.in_order else self.failure
        why = self.revoked or why
        if why is None:
            return
        waiting, self.watchers = self.watchers, []
        for watcher in waiting:
            watcher.serve(None, why)
        while why != READY and self.getters:
            self.getters.popleft().serve(None, why)

    def forget(self, getter: Getter) -> bool:
        """Ends the getter's wait. Returns whether the getter was still waiting."""
        line: Any = self.getters if getter.takes else self.watchers
        if getter not in line:
            return False
        line.remove(getter)
        return True

    def give_back(self, entries: list[Entry]) -> None:
        """Entries handed out and not taken go back to their places in the order."""
        for entry in entries:
            bisect.insort(self.entries, entry)
        self.serve()

    def fail(self, failure: str) -> None:
        """A putter died: getters with an empty queue get the failure, since the missing entries are unknown."""
        self.failure = self.failure or failure
        self.serve()

    def close(self) -> None:
        """Nothing more can be put; entries in the queue can still be taken."""
        self.closed = True
        waiting, self.for_room = list(self.for_room), deque()
        for putting in waiting:
            putting.end(OVER)
        self.serve()

    def revoke(self, notice: str) -> None:
        """Ends everything: all waits, now and later, end with the notice."""
        self.closed, self.revoked = True, notice
        waiting = [*self.for_room, *(putting for line in self.in_order.values() for putting in line)]
        self.entries.clear()
        self.for_room.clear()
        self.in_order.clear()
        for putting in waiting:
            putting.end(OVER)
        self.serve()
