"""The functions by which torch makes a group's backend (``shardwire_autoload`` registers the functions), and the
timeouts of torch's calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .. import _C
from ..process.log import route

_DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch's default
# c10d counts milliseconds, and reads 0 as no timeout
_SHORTEST = timedelta(milliseconds=1)


def create_from_options(options: Any, backend_options: Any, for_gloo: bool = False) -> Any:
    """Makes a group's backend; called by torch. ``options``: c10d's; ``backend_options``: the caller's pg_options.
    for_gloo: in gloo's place.

    pg_options for another backend of the same group are ignored; of ``shardwire.Options`` the timeout counts when set.
    """
    timeout = chosen_timeout(options, backend_options)
    ranks = list(options.global_ranks_in_group)
    route()
    return _C.create_backend(options.store, options.group_rank, options.group_size, timeout, options.group_id, ranks,
                             for_gloo, is_of_one_job=True)


def chosen_timeout(options: Any, backend_options: Any) -> timedelta:
    """The timeout of a group that torch makes with these arguments."""
    if getattr(backend_options, "backend", None) == "shardwire" and backend_options._timeout != _DEFAULT_TIMEOUT:
        return as_timeout(backend_options._timeout)
    return as_timeout(options.timeout)


def create_in_place_of_gloo(store: Any, rank: int, size: int, timeout: timedelta | None, name: str,
                            ranks: list[int]) -> Any:
    """Makes a group's backend in place of gloo's class; called by torch where shardwire stands in for gloo."""
    route()
    return _C.create_backend(store, rank, size, as_timeout(timeout), name, ranks, for_gloo=True, is_of_one_job=True)


def as_timeout(timeout: timedelta | float | None) -> timedelta:
    """``timeout`` as a timedelta; None means torch's default of 30 minutes, 0 means now. Raises TypeError for other
    types, ValueError for a negative time."""
    if timeout is None:
        return _DEFAULT_TIMEOUT
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        timeout = timedelta(seconds=timeout)
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout is a {type(timeout).__name__}; give seconds (float) or a timedelta")
    if timeout < timedelta(0):
        raise ValueError(f"timeout is {timeout}; give a time that is not negative")
    return max(timeout, _SHORTEST)
