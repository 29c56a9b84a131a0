"""How deep tuples lie in each other in a key, or in a member of a set.

Python hashes nested tuples by C's recursion, and does not count: too many end the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DEEPEST_KEY = 1000  # 81 bytes of stack each, in Python 3.11; some threads have 512 KiB


def deepest(keys: Iterable[Any], depths: dict[int, int]) -> int:
    """The most tuples in each other in any of the keys. depths: of each tuple by its id, kept from call to call for as long as the tuples live."""
    return max((_depth(key, depths) for key in keys if type(key) is tuple and tuple in map(type, key)), default=1)  # most hold none


def _depth(value: tuple[Any, ...], depths: dict[int, int]) -> int:
    waiting = [value]
    while waiting:
        each = waiting[-1]
        inner = [item for item in each if type(item) is tuple]
        unknown = [item for item in inner if id(item) not in depths]
        if not unknown:
            depths[id(each)] = 1 + max((depths[id(item)] for item in inner), default=0)
            waiting.pop()
        waiting += unknown
    return depths[id(value)]
