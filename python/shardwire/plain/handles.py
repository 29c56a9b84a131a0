"""Objects held by address in plain bytes: a Queue is written as the values from which a reader makes another handle of
the same queue.

The class registers itself, so the serializer knows no feature. When a process reads the first handle of a kind without
the feature loaded, the module that registers the class is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# By tag in the bytes: the module that calls register_handle. Bytes name a tag, and never a module.
_REGISTERED_BY = {b"Q": "shardwire.queues.queue"}
HANDLE_TAGS = frozenset(_REGISTERED_BY)


class Handle(NamedTuple):
    """The functions for writing and reading objects of one class."""

    tag: bytes
    num_values: int
    # num_values texts and numbers; TypeError for an object without an address
    address: Callable[[Any], Sequence[Any]]
    # From the values of address(), and whether the reader trusts pickles of the writer
    make: Callable[[Sequence[Any], bool], Any]


_by_class: dict[type, Handle] = {}


def register_handle(cls: type, handle: Handle) -> None:
    _by_class[cls] = handle


def handle_of(value: Any) -> Handle | None:
    """The Handle that writes ``value``; None where no class of ``value`` is registered."""
    return next((handle for cls, handle in _by_class.items() if isinstance(value, cls)), None)


def handle_with(tag: bytes) -> Handle:
    """The Handle that reads objects with ``tag``, one of HANDLE_TAGS."""
    importlib.import_module(_REGISTERED_BY[tag])
    return next(handle for handle in _by_class.values() if handle.tag == tag)
