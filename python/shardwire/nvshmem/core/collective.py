"""Collectives on teams. ``stream`` is accepted and not used. Tensors and numpy arrays; they need not be symmetric."""

from __future__ import annotations

import time
from typing import Any

import torch

from ...plain.tensor_bytes import item_bytes, reach
from . import utils
from .all_pes import NvshmemInvalid, world
from .memory import as_moved, as_tensor, bytes_of
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
    bxor. Both have one dtype, and one shape unless both are contiguous: then the first elements of ``src_array`` count,
    as many as ``dst_array`` has. Else NvshmemInvalid on this PE, and MismatchError on all PEs where their numbers of
    elements differ.
    """
    found, (dst, src) = Teams.team_of(team), _fitted(as_tensor(dst_array), as_tensor(src_array), 1, False)
    found.all_reduce(_begun(dst, src), op)
    _require_alike(dst, src)


def reducescatter(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, op: str, stream: Any = None) -> None:
    """This PE's equal part of the reduction of all ``src_array``, whose elements behind the parts are not read."""
    found = Teams.team_of(team)
    found.reduce_scatter(*_fitted(as_tensor(dst_array), as_tensor(src_array), found.size, False), op)


def alltoall(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, stream: Any = None) -> None:
    """Sends part r of ``src_array`` to PE r. A longer ``dst_array`` keeps its rest."""
    Teams.team_of(team).all_to_all(*_fitted(as_moved(dst_array), as_moved(src_array), 1, True))


def fcollect(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, stream: Any = None) -> None:
    """All PEs' ``src_array``, one behind the other. A longer ``dst_array`` keeps its rest."""
    found = Teams.team_of(team)
    found.all_gather(*_fitted(as_moved(dst_array), as_moved(src_array), found.size, True))


def broadcast(team: Any, dst_array: torch.Tensor, src_array: torch.Tensor, root: int = 0, stream: Any = None) -> None:
    """Copies ``src_array`` of ``root`` into ``dst_array`` of all. Shapes and dtypes of both of ``root`` are as in
    :func:`reduce`."""
    found, dst = Teams.team_of(team), as_moved(dst_array)
    if found.rank != root:
        found.broadcast(dst, root)
        return
    dst, src = _fitted(dst, as_moved(src_array), 1, False)
    found.broadcast(_begun(dst, src), root)
    _require_alike(dst, src)


def _fitted(dst: torch.Tensor, src: torch.Tensor, parts: int, is_of_dst: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Both, where the longer of them is too long without the elements that do not count, as in NVSHMEM. parts: how
    often the length of the one is in the other, which is dst (is_of_dst) or src."""
    longer, shorter = (dst, src) if is_of_dst else (src, dst)
    count = parts * shorter.numel()
    if (dst.dtype != src.dtype or dst.shape == src.shape and parts == 1 or longer.numel() < count
            or not (dst.is_contiguous() and src.is_contiguous())):
        return dst, src  # the collective raises for unsuitable tensors
    longer, shorter = longer.view(-1)[:count], shorter.view(-1)
    return (longer, shorter) if is_of_dst else (shorter, longer)


def _begun(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """``dst`` with the elements of ``src``. For a ``dst`` of another shape or dtype a copy of ``src``: the other PEs
    wait for this PE's collective, which compares the tensors of all PEs."""
    if dst.shape != src.shape or dst.dtype != src.dtype:
        return src.clone()
    if dst.data_ptr() != src.data_ptr() or dst.stride() != src.stride():
        is_apart = dst.data_ptr() + reach(dst) <= src.data_ptr() or src.data_ptr() + reach(src) <= dst.data_ptr()
        dst.copy_(src if is_apart else src.clone())
    return dst


def _require_alike(dst: torch.Tensor, src: torch.Tensor) -> None:
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise NvshmemInvalid(f"the destination is {dst.dtype} of shape {tuple(dst.shape)}, and the source {src.dtype} "
                             f"of shape {tuple(src.shape)}: give two of one shape and dtype, or a longer source")


def collective_on_buffer(coll: str, team: Any, dest: torch.Tensor, src: torch.Tensor, dtype: str | None = None,
                         op: str | None = None, root: int = 0, stream: Any = None,
                         enable_timing: bool = False) -> float:
    """A collective over buffers of bytes, whose elements are of ``dtype``, one of NVSHMEM's names ("float", "int64",
    ...). coll: "reduce", "reducescatter", "alltoall", "fcollect" or "broadcast".

    The shorter buffer counts, as in :func:`put`; a longer buffer keeps its rest. Returns the duration in milliseconds;
    0 without enable_timing.
    """
    if coll not in ("reduce", "reducescatter", "alltoall", "fcollect", "broadcast"):
        raise NvshmemInvalid(f"coll is {coll!r}; give 'reduce', 'reducescatter', 'alltoall', 'fcollect' or 'broadcast'")
    kind = utils.dtype_of_name(dtype)
    if kind is None:
        raise NvshmemInvalid(f"dtype is {dtype!r}; give one of {', '.join(sorted(utils._NAMES))}")
    if coll.startswith("reduce") and op is None:
        raise NvshmemInvalid(f"coll is {coll!r}, which takes op")
    size = Teams.team_of(team).size
    to, given = (_elements(buffer, kind) for buffer in (dest, src))
    to_parts = size if coll in ("alltoall", "fcollect") else 1
    given_parts = size if coll in ("alltoall", "reducescatter") else 1
    count = min(to.numel() // to_parts, given.numel() // given_parts)
    to, given = to[:count * to_parts], given[:count * given_parts]
    begin = time.perf_counter()
    if coll == "reduce":
        reduce(team, to, given, op or "")
    elif coll == "reducescatter":
        reducescatter(team, to, given, op or "")
    elif coll == "alltoall":
        alltoall(team, to, given)
    elif coll == "fcollect":
        fcollect(team, to, given)
    else:
        broadcast(team, to, given, root)
    return (time.perf_counter() - begin) * 1e3 if enable_timing else 0.0


def _elements(buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The buffer as elements of ``dtype``, without a last element that is cut."""
    flat = bytes_of(as_tensor(buffer))
    size = item_bytes(dtype)
    return flat[:flat.numel() // size * size].view(dtype)
