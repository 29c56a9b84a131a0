"""The user's classes in plain objects: namedtuples and dataclasses, by the name under which both ends registered the
class.

The bytes have the name and the fields. The reader makes an object of the class registered under the name on its own
side: bytes never bring or import a class, and no code of the class runs. Fields are set as by ``copy.copy``, without
``__init__`` and ``__post_init__``.
"""

from __future__ import annotations

import dataclasses
from types import MemberDescriptorType
from typing import Any, TypeVar

from .keys import NESTING, NO_KEYS

_Class = TypeVar("_Class", bound=type)


class Record:
    """One registered class."""

    __slots__ = ("cls", "name", "fields", "is_tuple")

    def __init__(self, cls: type, name: str, fields: tuple[str, ...], is_tuple: bool) -> None:
        self.cls, self.name, self.fields, self.is_tuple = cls, name, fields, is_tuple

    def values_of(self, value: Any) -> list[Any]:
        """The fields' values; AttributeError for a missing field."""
        return list(tuple.__iter__(value)) if self.is_tuple else [getattr(value, field) for field in self.fields]

    def make(self, values: Any) -> Any:
        """A namedtuple of these values."""
        return tuple.__new__(self.cls, values)

    def empty(self) -> Any:
        """A dataclass without fields, for ``fill``."""
        return object.__new__(self.cls)

    def fill(self, made: Any, values: list[Any]) -> Any:
        for field, value in zip(self.fields, values):
            object.__setattr__(made, field, value)
        return made


def _check_fields(cls: type, fields: tuple[str, ...]) -> None:
    """TypeError for a field whose value goes through a descriptor of the class, such as a property: the descriptor's
    code would run where an object is read."""
    for field in fields:
        owner = next((base for base in cls.__mro__ if field in vars(base)), None)
        kept = None if owner is None else vars(owner)[field]
        if hasattr(type(kept), "__set__") and not isinstance(kept, MemberDescriptorType):  # a slot is no code
            raise TypeError(f"{cls!r} cannot be registered: its field {field!r} is a {type(kept).__name__}, whose code "
                            "would run where an object is read; give the class a plain field")


by_class: dict[type, Record] = {}
by_name: dict[str, Record] = {}


def register_plain(cls: _Class, name: str | None = None) -> _Class:
    """Lets objects of ``cls``, a namedtuple or a dataclass, travel without pickle: by :func:`serialize` and through
    every :class:`Queue`.

    Both ends register the class, and the reader gets the class registered on its own side: nothing is imported, and no
    code of the class runs, also not ``__init__`` and ``__post_init__``. All fields travel, and nothing else. A reader
    without the class, or with other fields in the class, gets a ValueError with this reason. A dataclass must not be a
    key of a dict or a member of a set; a namedtuple may be.

    name: the name of the class on both ends; None: the module and qualified name. Give a name where the two ends are
        different programs. A new class with the same module and qualified name replaces the class before.

    Returns ``cls``, so the function serves as a decorator, above ``@dataclass``. Raises TypeError for another kind of
    class and for a field behind a property or another descriptor that sets the field, ValueError where another class
    has the name. Usable from any thread.
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
        _check_fields(cls, record.fields)
        NO_KEYS.add(cls)
    else:
        raise TypeError(f"{cls!r} is neither a namedtuple nor a dataclass; only these can be registered (put "
                        "@register_plain above @dataclass)")
    NESTING.add(cls)
    by_class[cls] = by_name[name] = record
    return cls
