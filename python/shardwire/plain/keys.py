"""Limits for the cost of hashing a key, or a member of a set.

Python hashes nested tuples by recursion in C, without a limit: a deep nest ends the process. Python also does not cache
the hash of a tuple: a tuple with another tuple in two places hashes the inner tuple twice, so a nest of n such tuples
takes 2^n steps, from a few bytes each. The comparison of two equal nests takes as many steps, also for frozensets,
whose hashes are cached. So this module counts each value in keys as often as Python meets the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

# Each level takes 81 bytes of stack in Python 3.11; some threads have 512 KiB
DEEPEST_KEY = 1000
# The number of values in addition to the written bytes: half a second of hashing
MOST_IN_KEYS = 1 << 26
ENDLESS = 1 << 62  # the end of counting

# Types of keys that may hold values, and the registered classes
NESTING: set[type] = {tuple, frozenset, torch.Size}
# The dataclasses among NESTING: a reader sets the fields only after keys were hashed
NO_KEYS: set[type] = set()
_TUPLES = frozenset((b"t", b"P"))
_TAGS = frozenset((b"t", b"Z", b"z", b"P"))  # the tags of NESTING's types in the bytes
_UNFIT = "a dataclass as a key or member"
_TOO_DEEP = f"a key or member of more than {DEEPEST_KEY} tuples in each other"
_TOO_MANY = (f"keys and members that share tuples, with more than {MOST_IN_KEYS} values in all where each counts as "
             "often as it is met")


class Ref(int):
    """The number of a node, among the values of a reader."""

    __slots__ = ()


class WrittenKeys:
    """The keys of one object to be written. ``add`` and ``wrong`` return a text about an error; empty: no error."""

    def __init__(self) -> None:
        # Depth and count of tuples and frozensets, by id: the tuples live as long as the object
        self._known: dict[int, tuple[int, int]] = {}
        self.count = 0  # of all values in keys

    def add(self, keys: Iterable[Any]) -> str:
        for key in keys:
            if type(key) not in NESTING:
                continue
            if type(key) in NO_KEYS:
                return _UNFIT
            if NESTING.isdisjoint(map(type, key)):  # most
                self.count += 1 + len(key)
                continue
            depth, count = _measure(key, self._known)
            self.count += count
            if depth > DEEPEST_KEY:
                return _UNFIT if depth == ENDLESS else _TOO_DEEP
        return ""

    def wrong(self, head_bytes: int) -> str:
        return _TOO_MANY if self.count > MOST_IN_KEYS + head_bytes else ""


class ReadKeys:
    """The keys of one object being read. kinds, made: of the nodes, as far as known."""

    def __init__(self, kinds: list[bytes], made: list[Any], head_bytes: int) -> None:
        self._kinds, self._made = kinds, made
        self._limit = MOST_IN_KEYS + head_bytes
        self._depths: dict[int, int] = {}  # of tuples with nodes inside
        self._unfit: set[int] = set()  # tuples and frozensets with a dataclass inside
        self._counts: dict[int, int] = {}  # values in tuples and frozensets with nodes inside
        self.count = 0

    def nest(self, number: int, items: list[Any]) -> None:
        """Notes node ``number``, a tuple or frozenset, before the node is made of ``items``; nodes among ``items`` are
        made already."""
        refs = [item for item in items if type(item) is Ref]
        if any(self._kinds[ref] == b"D" or ref in self._unfit for ref in refs):
            self._unfit.add(number)
        if self._kinds[number] in _TUPLES:
            self._depths[number] = 1 + max((self._depths.get(ref, 0) for ref in refs), default=0)
        self._counts[number] = min(ENDLESS, 1 + len(items) - len(refs) + sum(
            self._count_of(ref) if self._kinds[ref] in _TAGS else 1 for ref in refs))

    def add(self, number: int, keys: list[Any]) -> str:
        """Checks the keys of node ``number`` before Python hashes the keys."""
        if Ref not in map(type, keys):
            return ""
        for key in keys:
            if type(key) is Ref and (self._kinds[key] == b"D" or key in self._unfit):
                return f"{_UNFIT}, in node {number}"
            if type(key) is Ref and self._kinds[key] in _TAGS:
                if self._depths.get(key, 0) > DEEPEST_KEY:
                    return f"{_TOO_DEEP}, in node {number}"
                self.count += self._count_of(key)
        return f"{_TOO_MANY}, with those of node {number}" if self.count > self._limit else ""

    def _count_of(self, ref: int) -> int:
        return self._counts.get(ref) or 1 + len(self._made[ref])


def _measure(value: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    waiting = [value]
    while waiting:
        each = waiting[-1]
        if type(each) in NO_KEYS:
            return ENDLESS, 0
        inner = [item for item in each if type(item) in NESTING]
        unknown = [item for item in inner if id(item) not in known]
        if not unknown:
            # Other types hash without recursion
            depth = 1 + max((known[id(item)][0] for item in inner), default=0) if isinstance(each, tuple) else 0
            count = 1 + len(each) - len(inner) + sum(known[id(item)][1] for item in inner)
            known[id(each)] = depth, min(ENDLESS, count)
            waiting.pop()
        waiting += unknown
    return known[id(value)]
