"""Integers of callers: Python's, and every other type with ``__index__``, such as numpy's."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(value: Any) -> int | None:
    """``value`` as an int. None for a bool, of numpy or torch too, and for a value that is no integer."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_count(value: Any, least: int) -> int | None:
    """:func:`as_integer`; None for an integer below ``least``, too."""
    number = as_integer(value)
    return None if number is None or number < least else number
