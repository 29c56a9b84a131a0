"""The functions by which torch makes a group's backend (``shardwire_autoload`` registers the functions)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .. import _C
from ..process.log import route
from .lookup import resolve_backend
from .timeouts import DEFAULT_TIMEOUT, as_timeout


def create_from_options(options: Any, backend_options: Any, for_gloo: bool = False) -> Any:
    """Makes a group's backend; called by torch. ``options``: c10d's; ``backend_options``: the caller's pg_options.
    for_gloo: in gloo's place.

    pg_options for another backend of the same group are ignored; of ``shardwire.Options`` the timeout counts when set.
    """
    timeout = chosen_timeout(options, backend_options)
    ranks = list(options.global_ranks_in_group)
    route()
    return _C.create_backend(options.store, options.group_rank, options.group_size, timeout, options.group_id, ranks,
                             for_gloo, is_of_one_job=True, parent=default_backend())


def default_backend() -> Any:
    """The default group's backend, which knows the ranks that died; None without a default group of ours."""
    try:
        return resolve_backend(None)
    except ValueError:
        return None


def chosen_timeout(options: Any, backend_options: Any) -> timedelta:
    """The timeout of a group that torch makes with these arguments."""
    if getattr(backend_options, "backend", None) == "shardwire" and backend_options._timeout != DEFAULT_TIMEOUT:
        return as_timeout(backend_options._timeout)
    return as_timeout(options.timeout)


def create_in_place_of_gloo(store: Any, rank: int, size: int, timeout: timedelta | None, name: str,
                            ranks: list[int]) -> Any:
    """Makes a group's backend in place of gloo's class; called by torch where shardwire stands in for gloo."""
    route()
    return _C.create_backend(store, rank, size, as_timeout(timeout), name, ranks, for_gloo=True, is_of_one_job=True,
                             parent=default_backend())
