"""Functions that also take another package's order of positional arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def other_order(at: int, kind: type, names: Sequence[str], fixed: int = 0) -> Callable[[_Function], _Function]:
    """A decorator: where the positional argument ``at`` is a ``kind``, the arguments from ``fixed`` on have the names
    ``names``, in this order."""
    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) <= at or not isinstance(args[at], kind):
                return function(*args, **kwargs)
            moved = args[fixed:]
            if len(moved) > len(names):
                raise TypeError(f"{function.__qualname__} takes at most {len(names)} arguments by position")
            for name in names[:len(moved)]:
                if name in kwargs:
                    raise TypeError(f"{function.__qualname__} got two values for {name!r}")
            return function(*args[:fixed], **dict(zip(names, moved)), **kwargs)
        return cast(_Function, call)
    return decorate
