"""moodist's options and methods of groups, for programs that were written for moodist: :func:`use` puts the methods on
torch's groups. See docs/adapters.md.

Written for moodist 0.11, which is not needed. In moodist the options choose CUDA kernels, copy engines and chunks. Here
options are kept and can be read back, and nothing depends on options.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from .. import _C
from ..compiler.layout import kind_of
from ..groups.lookup import name_of_group, name_process_group, resolve_backend, shardwire_behind, shardwire_group

_FLAGS = ("prefer_kernel_less", "force_kernel_less")
_NUMBERS = ("num_chunks", "chunk_size", "method")
_given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_default = {"prefer_kernel_less": False}


def _get(group: Any, name: str) -> Any:
    return _given.get(group, {}).get(name, _default.get(name, False if name in _FLAGS else None))


def _set(group: Any, name: str, value: Any) -> None:
    _given.setdefault(group, {})[name] = value


def _read(name: str, value: Any) -> Any:
    """The value of an option: of a flag a bool; else an int, or None. ValueError or TypeError for no option."""
    if name in _FLAGS:
        return bool(value)
    if name not in _NUMBERS:
        raise ValueError(f"{name!r} is no option; give some of {', '.join(_FLAGS + _NUMBERS)}")
    if value is None:
        return None
    try:
        number = int(value)  # also of 2.0, "2" and True, as in moodist
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} is {kind_of(value)}; give an int or None") from None
    return None if number == -1 else number  # moodist's number for None


class ShardwireOptions:
    """The options of a group, as attributes: ``prefer_kernel_less`` and ``force_kernel_less``, bools; ``num_chunks``,
    ``chunk_size`` and ``method``, ints or None. ``options(num_chunks=2)`` is a :class:`ShardwireOptionsContext`.

    pg: a group of shardwire, its name, or None for the default group.
    """

    _pg: Any

    def __init__(self, pg: Any) -> None:
        object.__setattr__(self, "_pg", shardwire_group(pg))

    def __call__(self, **kwargs: Any) -> ShardwireOptionsContext:
        return ShardwireOptionsContext(self._pg, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in _FLAGS + _NUMBERS:
            raise AttributeError(f"{name!r} is no option; there are {', '.join(_FLAGS + _NUMBERS)}")
        return _get(self._pg, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FLAGS + _NUMBERS:
            raise AttributeError(f"{name!r} is no option; there are {', '.join(_FLAGS + _NUMBERS)}")
        _set(self._pg, name, _read(name, value))


class ShardwireOptionsContext:
    """Options that hold inside of ``with``, which gives the group."""

    def __init__(self, pg: Any, overrides: Mapping[str, Any]) -> None:
        self._pg = shardwire_group(pg)
        self._overrides = {name: _read(name, value) for name, value in overrides.items()}
        self._before: dict[str, Any] = {}

    def __enter__(self) -> Any:
        self._before = {name: _get(self._pg, name) for name in self._overrides}
        for name, value in self._overrides.items():
            _set(self._pg, name, value)
        return self._pg

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        for name, value in self._before.items():
            _set(self._pg, name, value)


class PreferKernelLessContext:
    """Sets the option prefer_kernel_less at once. The end of a ``with`` restores the option."""

    def __init__(self, pg: Any, value: bool) -> None:
        self.pg = shardwire_group(pg)
        self.old_value, self.new_value = _get(self.pg, "prefer_kernel_less"), bool(value)
        _set(self.pg, "prefer_kernel_less", self.new_value)

    def __enter__(self) -> PreferKernelLessContext:
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        _set(self.pg, "prefer_kernel_less", self.old_value)


def set_prefer_kernel_less(value: bool) -> None:
    """prefer_kernel_less of the groups that were not given a value of their own."""
    _default["prefer_kernel_less"] = bool(value)


def _name(group: Any) -> str:
    """A name for find_process_group."""
    try:
        return name_of_group(group)
    except ValueError:  # of a group outside of torch's tables
        name = _C.group_name(resolve_backend(group))
        name_process_group(group, name)
        return name


def _queue(group: Any, location: Any = None, streaming: bool = False, name: str | None = None) -> Any:
    from .. import Queue
    return Queue(process_group=group, location=location, streaming=streaming, name=name)


def _options(group: Any, **overrides: Any) -> Any:
    options = ShardwireOptions(group)
    return options(**overrides) if overrides else options


_METHODS = {
    "moodist_name": _name,
    "Queue": _queue,
    "options": _options,
    "prefer_kernel_less": PreferKernelLessContext,
    "get_prefer_kernel_less": lambda group: _get(shardwire_group(group), "prefer_kernel_less"),
    "set_prefer_kernel_less": lambda group, value: _set(shardwire_group(group), "prefer_kernel_less", bool(value)),
}


def use() -> None:
    """Gives torch's groups moodist's methods, in this process: ``moodist_name()``, ``Queue(location, streaming,
    name)``, ``options(**overrides)``, ``prefer_kernel_less(value)`` and its ``get_`` and ``set_``. And ``barrier()`` of
    a group of shardwire waits, as moodist's does; the returned work is then complete."""
    kind: Any = dist.ProcessGroup
    if hasattr(kind, "moodist_name"):
        return
    plain_barrier = kind.barrier

    def barrier(group: Any, *args: Any, **kwargs: Any) -> Any:
        work = plain_barrier(group, *args, **kwargs)
        if shardwire_behind(group) is not None:
            work.wait()
        return work

    kind.barrier = barrier
    for name, method in _METHODS.items():
        # A function: a class as an attribute would not be bound to the group
        setattr(kind, name, lambda group, *args, _method=method, **kwargs: _method(group, *args, **kwargs))
