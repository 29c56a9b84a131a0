"""The user's classes that plain objects may hold: namedtuples and dataclasses, by the name under which both ends registered them.

Bytes have the name and the fields. The reader makes the class that it registered under that name itself: bytes never bring or import a class, and no code of the class runs
to make an object of it. Fields are set as ``copy.copy`` sets them, without ``__init__`` and ``__post_init__``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from .keys import NESTING, NO_KEYS

_Class = TypeVar("_Class", bound=type)


class Record:
    """One registered class."""

    __slots__ = ("cls", "name", "fields", "is_tuple")

    def __init__(self, cls: type, name: str, fields: tuple[str, ...], is_tuple: bool) -> None:
        self.cls, self.name, self.fields, self.is_tuple = cls, name, fields, is_tuple

    def values_of(self, value: Any) -> list[Any]:
        """The fields' values; AttributeError where one is not set."""
        return list(tuple.__iter__(value)) if self.is_tuple else [getattr(value, field) for field in self.fields]

    def make(self, values: Any) -> Any:
        """A namedtuple of these values."""
        return tuple.__new__(self.cls, values)

    def empty(self) -> Any:
        """A dataclass without its fields, for ``fill``."""
        return object.__new__(self.cls)

    def fill(self, made: Any, values: list[Any]) -> Any:
        for field, value in zip(self.fields, values):
            object.__setattr__(made, field, value)
        return made


by_class: dict[type, Record] = {}
by_name: dict[str, Record] = {}


def register_plain(cls: _Class, name: str | None = None) -> _Class:
    """Lets objects of ``cls``, a namedtuple or a dataclass, travel without pickle: by :func:`serialize` and through every :class:`Queue`.

    Both ends register it, and the reader gets the class that it registered itself: nothing is imported, and of the class's own code none runs, so ``__init__`` and
    ``__post_init__`` do not. All fields travel, and nothing but the fields. A reader that did not register the class, or has other fields in it, gets a ValueError that
    says so. A dataclass is no key of a dict and no member of a set here; a namedtuple may be.

    name: by which the ends know the class; None: its module and qualified name. Give one where the two ends are different programs. A class that is made anew under the
    same module and qualified name takes the place of the one before.

    Returns ``cls``, so that it serves as a decorator, above ``@dataclass``. Raises TypeError for another kind of class, ValueError where another class has the name.
    Usable from any thread.
    """
    if not isinstance(cls, type):
        raise TypeError(f"cls is {cls!r}; give a class")
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"name is {name!r}; give a text, or None")
    name = name or f"{cls.__module__}.{cls.__qualname__}"
    before = by_name.get(name)
    if before is not None and (before.cls.__module__, before.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{before.cls!r} is registered as {name!r} already; give {cls!r} another name, on both ends")
    fields = getattr(cls, "_fields", None)
    if issubclass(cls, tuple) and isinstance(fields, tuple) and all(isinstance(field, str) for field in fields):
        record = Record(cls, name, fields, True)
    elif dataclasses.is_dataclass(cls):
        record = Record(cls, name, tuple(field.name for field in dataclasses.fields(cls)), False)
        try:
            record.empty()
        except TypeError as error:
            raise TypeError(f"{cls!r} cannot be registered: {error}") from None
        NO_KEYS.add(cls)
    else:
        raise TypeError(f"{cls!r} is neither a namedtuple nor a dataclass; only these can be registered (put @register_plain above @dataclass)")
    NESTING.add(cls)
    by_class[cls] = by_name[name] = record
    return cls
