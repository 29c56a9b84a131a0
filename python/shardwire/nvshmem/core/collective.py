"""Collectives on teams. ``stream`` is accepted and not used. Tensors need not be symmetric."""

from __future__ import annotations

from typing import Any

import torch

from .all_pes import world
from .team_table import Teams


def barrier(team: Any, stream: Any = None) -> None:
    """Waits until all PEs of the team have called."""
    Teams.team_of(team).barrier()


def sync(team: Any, stream: Any = None) -> None:
    """:func:`barrier`."""
    Teams.team_of(team).sync()


def barrier_all(stream: Any = None) -> None:
    """:func:`barrier` of all PEs."""
    world().barrier()


def sync_all(stream: Any = None) -> None:
    """:func:`barrier_all`."""
    world().sync()


def reduce(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, op: str, stream: Any = None) -> None:
    """The reduction of all PEs' ``src_array`` into ``dst_array`` of all. op: sum, min, max, and prod, mean, band, bor,
    bxor.
    """
    found = Teams.team_of(team)
    if dst_array.data_ptr() != src_array.data_ptr():
        dst_array.copy_(src_array)
    found.all_reduce(dst_array, op)


def reducescatter(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, op: str, stream: Any = None) -> None:
    """This PE's equal part of the reduction of all ``src_array``."""
    Teams.team_of(team).reduce_scatter(dst_array, src_array, op)


def alltoall(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, stream: Any = None) -> None:
    """Sends part r of ``src_array`` to PE r."""
    Teams.team_of(team).all_to_all(dst_array, src_array)


def fcollect(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, stream: Any = None) -> None:
    """All PEs' ``src_array``, one behind the other."""
    Teams.team_of(team).all_gather(dst_array, src_array)


def broadcast(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, root: int = 0, stream: Any = None) -> None:
    """Copies ``src_array`` of ``root`` into ``dst_array`` of all."""
    found = Teams.team_of(team)
    if found.rank == root and dst_array.data_ptr() != src_array.data_ptr():
        dst_array.copy_(src_array)
    found.broadcast(dst_array, root)
