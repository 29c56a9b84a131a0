"""Objects that plain bytes hold by their address: a Queue is written as what its reader needs to make its own handle of the same queue.

The class registers itself, so that the serializer knows no feature. A process that reads the first handle of a kind may not have loaded the feature yet; the module that
registers the class is loaded then.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# By tag in the bytes: the module that calls register_handle. Bytes name a tag, and never a module.
_REGISTERED_BY = {b"Q": "shardwire.queues.queue"}
HANDLE_TAGS = frozenset(_REGISTERED_BY)


class Handle(NamedTuple):
    """How objects of one class are written and read."""

    tag: bytes
    num_values: int
    address: Callable[[Any], Sequence[Any]]  # num_values texts and numbers; TypeError where the object has no address
    make: Callable[[Sequence[Any], bool], Any]  # from these values, and whether the reader trusts pickles of their writer


_by_class: dict[type, Handle] = {}


def register_handle(cls: type, handle: Handle) -> None:
    _by_class[cls] = handle


def handle_of(value: Any) -> Handle | None:
    """How ``value`` is written; None where no class of it is registered."""
    return next((handle for cls, handle in _by_class.items() if isinstance(value, cls)), None)


def handle_with(tag: bytes) -> Handle:
    """How the objects with this one of HANDLE_TAGS are read."""
    importlib.import_module(_REGISTERED_BY[tag])
    return next(handle for handle in _by_class.values() if handle.tag == tag)
