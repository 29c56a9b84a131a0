"""The choice of the compiling rank: the arguments shared by ``compile_op`` and ``DeviceKernel.compile_and_load``."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from .. import _C
from ..groups.lookup import resolve_backend
from .layout import kind_of

NOBODY_KNOWS = ("cc_enabled is True, but rank and world size are not known; initialise torch.distributed, give a "
                "group, or give rank_id and world_size")
NEEDS_GROUP = ("is_spmd=True ships what rank 0 compiles, which needs a process group; initialise torch.distributed, or "
               "give is_spmd=False so that every rank compiles")


def check_kinds(is_spmd: Any, cc_enabled: Any, rank_id: Any, world_size: Any) -> None:
    """TypeError or ValueError for impossible values. is_spmd may be None where the caller allows None."""
    if is_spmd is not None and not isinstance(is_spmd, bool):
        raise TypeError(f"is_spmd is {kind_of(is_spmd)}; give True or False")
    if cc_enabled is not None and not isinstance(cc_enabled, bool):
        raise TypeError(f"cc_enabled is {kind_of(cc_enabled)}; give True, False, or None to decide by the group")
    for name, value in (("rank_id", rank_id), ("world_size", world_size)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name} is {kind_of(value)}; give an int or None")
    if world_size is not None and world_size < 1:
        raise ValueError(f"world_size is {world_size}; give a positive one")
    if rank_id is not None and (rank_id < 0 or world_size is not None and rank_id >= world_size):
        raise ValueError(f"rank_id is {rank_id}, which is no rank of "
                         f"{'the group' if world_size is None else f'0..{world_size - 1}'}")


def check_text(text: str, what: str) -> str:
    """The text. ValueError for half of a surrogate pair, which Python has in the names of some files."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is {text!r}, which has half of a surrogate pair and is no text; give "
                         "another") from None
    return text


def check_name(name: Any) -> str:
    """The name of an op, "" for None. TypeError or ValueError for values that are no name."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name is {kind_of(name)}; give a str or None")
    return check_text(name or "", "name")


def check_keeping(use_cached: Any, build_dir: Any) -> str:
    """The folder of kept plans, "" for none. TypeError for impossible values."""
    if not isinstance(use_cached, bool):
        raise TypeError(f"use_cached_if_exists is {kind_of(use_cached)}; give True or False")
    if build_dir is None:
        return ""
    folder = os.fspath(build_dir) if isinstance(build_dir, (str, os.PathLike)) else None
    if not isinstance(folder, str) or not folder:
        raise TypeError(f"build_dir is {kind_of(build_dir)}; give a path or None")
    return os.path.abspath(check_text(folder, "build_dir"))


def check_place(rank_id: int | None, world_size: int | None, backend: Any) -> None:
    """ValueError where the values differ from the group's."""
    for name, given, own in (("rank_id", rank_id, _C.rank(backend)), ("world_size", world_size, _C.size(backend))):
        if given is not None and given != own:
            raise ValueError(f"{name} is {given}, but in the group it is {own}; leave it out where there is a group")


def group_of(group: Any, cc_enabled: Any) -> Any | None:
    """The backend to communicate in: of the given group, else of the default group; None without a group, or when
    communication is declined."""
    if cc_enabled is False or group is None and not (dist.is_available() and dist.is_initialized()):
        return None
    return resolve_backend(group)


def place_without_group(group: Any, is_spmd: bool | None, cc_enabled: bool | None, rank_id: int | None,
                        world_size: int | None) -> tuple[int, int]:
    """The rank and the number of ranks to plan for, where ``compile_op`` does not communicate. ValueError where neither
    is known."""
    if cc_enabled and (rank_id is None or world_size is None):
        raise ValueError(NOBODY_KNOWS)
    if cc_enabled and is_spmd:
        raise ValueError(NEEDS_GROUP)
    if rank_id is not None and world_size is not None:
        return rank_id, world_size
    if rank_id is not None or world_size is not None:
        name, other = ("rank_id", "world_size") if world_size is None else ("world_size", "rank_id")
        raise ValueError(f"{name} is given and {other} is not; give both to plan without a group")
    if group is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        if cc_enabled is None:
            resolve_backend(None)  # raises the error for a missing group
        return 0, 1
    backend = resolve_backend(group)
    return _C.rank(backend), _C.size(backend)
