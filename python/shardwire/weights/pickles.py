"""Reads pickles as plain data. Nothing named in a pickle is imported or called: every class and function becomes an
inert Record, which keeps the arguments.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from ..compiler.layout import MAX_DIMS, kind_of
from ..errors import CheckpointError


class Record:
    """An object of a pickle: its name, and its arguments."""

    module = name = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, key: str) -> Any:
        """A field. KeyError for a missing field."""
        state: Any = getattr(self, "state", None)
        if isinstance(state, tuple) and len(state) == 2:  # objects with slots: (None, fields)
            state = state[1] or state[0]
        return state[key]

    def get(self, key: str) -> Any:
        """A field; None for a missing field."""
        try:
            return self[key]
        except KeyError:
            return None

    def __hash__(self) -> int:
        return id(self)


# In Python: a pickle of 14 bytes makes the C class fill a table of 64 GiB, by an index of its memo.
class _Unpickler(pickle._Unpickler):
    # Without the bytearrays of protocol 5, whose room is made, and filled with zeros, before any byte is read. Torch
    # writes none.
    dispatch = {key: load for key, load in pickle._Unpickler.dispatch.items() if key != pickle.BYTEARRAY8[0]}

    def find_class(self, module: str, name: str) -> Any:
        return type(name.rpartition(".")[2] or "Record", (Record,), {"module": module, "name": name})

    def persistent_load(self, identity: Any) -> Any:
        return identity


def unpickle(content: bytes, where: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # any error of a broken pickle
        raise CheckpointError(f"{where}: cannot be read as a pickle: {type(error).__name__}: "
                              f"{str(error)[:100]}") from None


def dims_of(value: Any) -> tuple[int, ...]:
    """The sizes of a torch.Size, which is a Record here, or of a tuple."""
    if isinstance(value, Record):
        value = value.arguments[0]
    dims = tuple(value)
    if not all(is_natural(each) for each in dims) or len(dims) > MAX_DIMS:
        raise ValueError(f"{dims!r:.80} are no sizes")
    return dims


def is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def dtype_name_of(value: Any, name: str) -> str:
    """The name of a pickled dtype such as torch.float32: torch pickles dtypes by name, so a dtype is the class of a
    Record here."""
    found = getattr(value, "name", "")
    if getattr(value, "module", "") != "torch" or not isinstance(getattr(torch, found, torch.float32), torch.dtype):
        raise CheckpointError(f"{name!r} has a dtype that is none: {kind_of(value)}")
    return found
