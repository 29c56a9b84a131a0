"""Chooses among the three patterns of a call of ``compile_and_load``: SPMD, MPMD, or no communication. The choice is
made before anything is compiled or sent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from .. import _C
from ..compiler.layout import kind_of
from ..compiler.who_plans import NEEDS_GROUP, NOBODY_KNOWS, check_kinds, check_place, check_text, group_of


@dataclass(frozen=True, slots=True)
class Pattern:
    """backend: the group, where communication is on and there is one. ships: rank 0 compiles and sends the bytes."""

    backend: Any
    ships: bool
    cc: bool
    rank: int | None
    world: int | None
    folder: str  # under build_dir


def choose_pattern(is_spmd: Any, cc_enabled: Any, rank_id: Any, world_size: Any, group: Any) -> Pattern:
    """The pattern of a call. ValueError or TypeError for arguments that contradict each other or the group."""
    check_kinds(is_spmd, cc_enabled, rank_id, world_size)
    if is_spmd is None:
        raise TypeError("is_spmd is None; give True or False")
    backend = group_of(group, cc_enabled)
    rank, world = rank_id, world_size
    if backend is not None:
        check_place(rank_id, world_size, backend)
        rank, world = _C.rank(backend), _C.size(backend)
    elif rank is None and dist.is_available() and dist.is_initialized():
        rank = dist.get_rank()  # only the folder's name: communication was declined
    cc = cc_enabled if cc_enabled is not None else backend is not None and world > 1
    if cc and (rank is None or world is None):
        raise ValueError(NOBODY_KNOWS)
    if cc and is_spmd and backend is None:
        raise ValueError(NEEDS_GROUP)
    ships = bool(cc and is_spmd)
    folder = "spmd" if ships else "local" if is_spmd or rank is None else f"rank_{rank}"
    return Pattern(backend if cc else None, ships, bool(cc), rank, world, folder)


def build_folder(build_dir: Any) -> str:
    """Where packages are kept: the argument, else SHARDWIRE_KERNEL_DIR, else shardwire/kernels in the user's cache."""
    if build_dir is not None:
        if not isinstance(build_dir, (str, os.PathLike)):
            raise TypeError(f"build_dir is {kind_of(build_dir)}; give a path or None")
        return os.path.abspath(check_text(os.fspath(build_dir), "build_dir"))
    named = os.environ.get("SHARDWIRE_KERNEL_DIR")
    if named:
        return os.path.abspath(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "shardwire", "kernels")
