"""Process groups: making a group beside or without torch's default group, names for groups, and the backend of a group
of any kind."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _C
from .timeouts import as_timeout
from ..process.log import route

# Names given by name_process_group and create_process_group. Weak: naming a group does not keep it alive.
_named: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_tables: list[weakref.WeakKeyDictionary[Any, Any]] = []
# Of create_process_group: these names are part of the keys by which ranks meet, so no other code may take names
_names = map("shardwire:{}".format, itertools.count())
# Of create_over_fresh_store: the names of these groups are local to this rank
_fresh_counter = itertools.count()
# Before 2.0 a backend is itself torch's ProcessGroup; since 2.0 a ProcessGroup wraps the backend.
IS_WRAPPED = hasattr(dist.ProcessGroup, "_register_backend")


def table_by_group() -> weakref.WeakKeyDictionary[Any, Any]:
    """A table by torch's group, or by the native backend, of what belongs to the group's present members: when a group
    gets other members (torch 2.14), its entries end."""
    _tables.append(weakref.WeakKeyDictionary())
    return _tables[-1]


def forget_members(group: Any) -> None:
    """The group has other members now."""
    for key in (group, resolve_backend(group)):
        for table in _tables:
            table.pop(key, None)


# The stores of groups made here: standalone groups are not in torch's table of stores.
store_by_group: weakref.WeakKeyDictionary[Any, Any] = table_by_group()


def create_process_group(store: Any, rank: int, size: int, timeout: timedelta | float | None = None,
                         name: str | None = None, standalone: bool = False) -> Any:
    """Makes a group of the processes that share ``store``, beside the default group or without a default group.

    Collective: every rank of 0..size-1 calls, with the same ``name`` (or each without). Blocks until all have met.

    store: any torch.distributed store that the processes share (TCPStore, FileStore). One store may serve several
        groups made in the same order. Ranks meet by the number of groups that their process has made with this
        function, over any stores: all ranks of a group must have made equally many. So no two ranks of a group can be
        threads of one process.
    timeout: seconds or a timedelta for meeting, and for the group's operations; None: 30 minutes.
    name: for messages and :func:`find_process_group`.
    standalone: leaves the group out of torch's tables. Then ``destroy_process_group()`` does not end the group: call
        :func:`end_process_group`, or drop the last reference to the group. ``compile_op``, :class:`Queue`, sync and the
        group's own methods accept a standalone group; functions of torch.distributed that look a group up do not.

    Returns a ``torch.distributed.ProcessGroup`` known to torch: use the group as ``group=`` in torch.distributed
    functions, in ``compile_op``, and end the group with ``torch.distributed.destroy_process_group(group)``. The group
    has its own ranks: functions that take global ranks (``src``, ``dst``) take the group's ranks. Note that
    ``destroy_process_group()`` without a group, as always, ends all groups.
    """
    if isinstance(rank, bool) or isinstance(size, bool) or not isinstance(rank, int) or not isinstance(size, int):
        raise TypeError("rank and size must be ints")
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in a group of {size} ranks (0..{size - 1})")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; give a str or None")
    # Arguments are checked before a number is taken
    period = as_timeout(timeout)
    unique = next(_names)
    return create_under_prefix(dist.PrefixStore(f"{unique}/{name or ''}/", store), rank, size, period, unique, name,
                               standalone)


def create_over_fresh_store(store: Any, rank: int, size: int, timeout: timedelta | float | None, name: str | None,
                            standalone: bool = False) -> Any:
    """As create_process_group, for a store with this group alone: ranks may have made different numbers of groups
    before."""
    return create_under_prefix(store, rank, size, as_timeout(timeout), f"shardwire:fresh:{next(_fresh_counter)}", name,
                               standalone)


def begin_names_anew(digest: str) -> None:
    """For processes that join and may have made different numbers of groups before: torch and create_process_group
    number the groups, and ranks meet under these names. digest: hexadecimal, equal on all ranks, and given once."""
    global _names
    _names = map(f"shardwire:{digest}:{{}}".format, itertools.count())
    set_next_number(int(digest[:12], 16) if dist.is_initialized() else 0)


def set_next_number(number: int) -> None:
    """The number that torch gives to its next group: 0 before the default group is made, and after
    dist.destroy_process_group()."""
    if hasattr(c10d, "_world"):
        c10d._world.group_count = number
    else:
        c10d._group_count = number


def end_process_group(group: Any = None) -> None:
    """Ends a group on this rank, standalone or not: pending and later operations fail on this rank with AbortedError,
    and peers that wait for this rank are notified."""
    ended = [resolve_backend(group)]
    known = torch_table("pg_map")
    group = group_object(group)
    if group in known:
        if dist.is_initialized() and group is c10d._get_default_group():  # with which all other groups of torch end
            ended = [backend for each in known if (backend := shardwire_behind(each)) is not None]
        dist.destroy_process_group(group)
    # torch 1.13 only forgets a group. Where others still hold the object, such as the frames of an exception, a failed
    # group would make peers in later groups give this process up (SHARDWIRE_GRACE_S).
    for backend in ended:
        backend.shutdown()


def create_under_prefix(prefixed: Any, rank: int, size: int, period: timedelta, unique: str, name: str | None,
                        standalone: bool = False) -> Any:
    route()
    backend = _C.create_backend(prefixed, rank, size, period, name or unique)
    group = wrap_backend(backend, prefixed, rank, size) if IS_WRAPPED else backend
    store_by_group[group] = prefixed
    if standalone:
        if hasattr(group, "_set_group_name"):
            group._set_group_name(unique)
    else:
        _make_known(group, prefixed, unique, size, name)
    if name is not None:
        name_process_group(group, name)
    return group


def wrap_backend(backend: Any, store: Any, rank: int, size: int) -> Any:
    """torch's ProcessGroup around a backend."""
    group = dist.ProcessGroup(store, rank, size)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    group._register_backend(torch.device("cpu"), custom, backend)
    return group


def _make_known(group: Any, store: Any, unique: str, size: int, name: str | None) -> None:
    """Enters the group in torch's tables, like new_group, so that functions with ``src`` and destroy_process_group
    accept the group."""
    torch_table("pg_map")[group] = ("shardwire", store)
    torch_table("pg_names")[group] = unique
    torch_table("pg_group_ranks")[group] = {rank: rank for rank in range(size)}
    world: Any = getattr(c10d, "_world", None)
    if world is None:  # 1.13
        return
    group._set_group_name(unique)
    if hasattr(group, "_set_group_desc"):
        group._set_group_desc(name or unique)
    world.pg_backend_config[group] = "cpu:shardwire"
    tag = f"ptd:{unique}"
    world.pg_to_tag[group] = tag
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.tags_to_pg.setdefault("", []).append(group)
    if hasattr(c10d, "_register_process_group"):  # functional collectives find groups by name
        c10d._register_process_group(unique, group)


def name_process_group(group: Any, name: str) -> None:
    """Gives ``group`` a name for :func:`find_process_group` and for ``compile_op(name, ...)``. Local to this process.

    A name of another living group moves to this group. Raises TypeError when ``group`` is no shardwire group.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; give a str")
    if not name:
        raise ValueError("name is empty; give a name")
    resolve_backend(group)
    _named[name] = c10d._get_default_group() if group is None else group


def find_process_group(name: str) -> Any:
    """The group with this name: given by :func:`name_process_group` or ``create_process_group(name=...)``, else a
    shardwire group whose name or description (``group_desc``) is ``name`` in torch. "default_pg" and "WORLD" are
    torch's names of the default group.

    None when no group has the name, as in moodist. A call that takes a name in place of a group raises ValueError with
    the known names: ``resolve_backend(name)`` checks a name, while ``group=None`` is the default group.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; give a str")
    group = _named.get(name)
    if group is None:
        group = _known_groups().get(name)
    return c10d._get_default_group() if group is None and name == "WORLD" and dist.is_initialized() else group


def group_named(name: str) -> Any:
    """As :func:`find_process_group`; ValueError, with the known names, when no group has the name."""
    group = find_process_group(name)
    if group is None:
        raise ValueError(f"no shardwire process group is named {name!r}; known: "
                         f"{', '.join(sorted(map(repr, _known_groups()))) or 'none'}. Name one with "
                         "shardwire.name_process_group(group, name)")
    return group


def _known_groups() -> dict[str, Any]:
    """The groups of shardwire by their names."""
    known: dict[str, Any] = dict(_named)
    for group, names in _torch_groups():
        if shardwire_behind(group) is not None:
            for each in names:
                known.setdefault(each, group)
    return known


def name_of_group(group: Any) -> str:
    """A name by which :func:`find_process_group` finds the group, also on other ranks where the group has the same
    name."""
    if group is None:
        return "WORLD"
    for name, named in list(_named.items()):
        if named is group:
            return name
    for known, names in _torch_groups():
        if known is group and names:
            return names[0]
    raise ValueError("this group has no name by which other ranks could find it; give it one with "
                     "shardwire.name_process_group on all ranks")


def group_object(group: Any) -> Any:
    """torch's object of ``group``: None (the default group; ValueError where there is none), a name, or the object."""
    if group is None:
        resolve_backend(None)
        return c10d._get_default_group()
    return group_named(group) if isinstance(group, str) else group


def shardwire_group(group: Any) -> Any:
    """As :func:`group_object`, with the errors of :func:`resolve_backend` for a group without shardwire."""
    resolve_backend(group)
    return group_object(group)


def store_of(group: Any) -> Any:
    """The store through which the group's ranks met, under the group's own prefix: no other group of this store has
    these keys. ``group`` as for :func:`group_object`."""
    group = group_object(group)
    if group in store_by_group:
        return store_by_group[group]
    entry = torch_table("pg_map").get(group)
    if entry is None or entry[1] is None:
        raise ValueError("this group is not known to torch any more (was it destroyed?), or was made in C++: it has no "
                         "store to meet ranks through")
    if hasattr(c10d, "_world"):
        return entry[1]
    return dist.PrefixStore(c10d._pg_names[group], entry[1])  # 1.13: its table has the store shared by all groups


def torch_table(name: str) -> Any:
    """torch's table of its groups: "pg_map", of each group's backend and store, "pg_names" or "pg_group_ranks"."""
    world: Any = getattr(c10d, "_world", None)
    return getattr(c10d, f"_{name}") if world is None else getattr(world, name)


def _torch_groups() -> Iterator[tuple[Any, list[str]]]:
    """torch's groups with their names and descriptions."""
    for group, name in list(torch_table("pg_names").items()):
        description = getattr(group, "group_desc", None)
        yield group, [each for each in (name, description) if isinstance(each, str) and each not in ("", "undefined")]


def resolve_backend(group: Any = None) -> Any:
    """The native backend behind ``group``: None (the default group), a name, a torch.distributed group with shardwire
    for CPU, or a native backend. TypeError for another type, ValueError for a group without shardwire or a missing
    group.
    """
    if group is None:
        if not dist.is_initialized():
            raise ValueError("there is no default process group; call "
                             "torch.distributed.init_process_group('shardwire', ...) first, or give a group")
        group = c10d._get_default_group()
    elif isinstance(group, str):
        group = group_named(group)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of the group")
    if not isinstance(group, dist.ProcessGroup) and not _C.is_backend(group):
        raise TypeError(f"group is a {type(group).__name__}; give a process group, the name of one, or None for the "
                        "default group")
    backend = shardwire_behind(group)
    if backend is None:
        raise ValueError(f"the group's backend for CPU tensors is {_backend_found(group)}, not shardwire; make the "
                         "group with backend='shardwire' or 'cpu:shardwire,...'")
    return backend


def _backend_found(group: Any) -> str:
    """The name of the backend for CPU tensors in a group without shardwire."""
    read = getattr(dist, "get_backend_config", dist.get_backend)  # 1.13 has no "cpu:gloo,cuda:nccl"
    try:
        config = str(read(group))
    except (AssertionError, RuntimeError, TypeError, ValueError):  # a group that torch does not know
        return f"that of a {type(group).__name__}"
    return dict(pair.split(":") for pair in config.split(",")).get("cpu", "absent") if ":" in config else config


def group_around(backend: Any) -> Any:
    """torch's group with this native backend. ValueError when the group is not known any more."""
    for group in (*(group for group, _ in _torch_groups()), *store_by_group):
        if shardwire_behind(group) is backend:
            return group
    raise ValueError("this backend is in no group of this process (was the group destroyed?)")


def shardwire_behind(group: Any) -> Any | None:
    """The shardwire backend of a group or of a debug wrapper around one; None for groups of other backends."""
    if _C.is_backend(group):
        return group
    if not IS_WRAPPED:
        return None
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # no backend for CPU
        return None
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    return backend if _C.is_backend(backend) else None


def global_ranks(group: Any = None) -> list[int]:
    """The job's rank of each member of ``group``, in group order."""
    return _C.global_ranks(resolve_backend(group))


def describe_collectives(group: Any = None) -> str:
    """The table by which collectives choose an algorithm in ``group``: bytes of a rank's tensor, algorithm, reason."""
    return _C.describe_collectives(resolve_backend(group))


def describe_transports(group: Any = None) -> str:
    """One line per peer of this rank in ``group``: the transport and data path, and the reason against a faster one.

    The last line names the instruction set of the kernels (see SHARDWIRE_ISA), and how moves larger than the caches are
    stored, with the rates measured on this host.
    """
    return _C.describe(resolve_backend(group))
