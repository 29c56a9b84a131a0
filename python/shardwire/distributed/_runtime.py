"""The ranks that take part: the context that ``initialize`` makes, and the group behind every call of
``shardwire.distributed``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .. import _C
from .._integers import as_integer
from ..groups.lookup import end_process_group, global_ranks, resolve_backend, shardwire_group
from ..compiler.layout import kind_of
from ..groups.mpi import create_process_group_from_mpi
from .process_group import MPIProcessGroup, ProcessGroup, group_behind

_BACKENDS = ("shardwire", "mpi", "nccl", "nvshmem")


@dataclass(frozen=True)
class DistributedContext:
    """The settings made by ``initialize``. rank and size belong to ``group``.

    device_id: the number of the caller's accelerator, or None; tensors are moved from any device. process_group: the
        given :class:`~shardwire.distributed.process_group.ProcessGroup`, for a communicator of mpi4py one over the
        communicator, else the group. communicator: the given mpi4py communicator, or None. backends: the given names.
    group: the shardwire group, for ``group=`` of the other functions.
    """

    device_id: int | None
    process_group: Any
    communicator: Any
    backends: tuple[str, ...]
    rank: int
    size: int
    group: Any

    @property
    def nvshmem_available(self) -> bool:
        """Whether "nvshmem" is among the backends, as in nvmath. The bytes travel over shardwire's transports."""
        return "nvshmem" in self.backends

    @property
    def nccl_comm(self) -> None:
        """None: there is no communicator of NCCL."""
        return None


_lock = threading.Lock()
_context: DistributedContext | None = None
_end: str = ""  # how finalize ends the group: "default", "own", or "" for the caller's group


def initialize(device_id: int | None = None, process_group: Any = None, backends: Sequence[str] | None = None, *,
               communicator: Any = None, process_group_or_comm: Any = None) -> None:
    """Fixes the ranks of ``shardwire.distributed``. Collective over these ranks; call it once, before anything else
    here.

    device_id: the caller's accelerator, or None; kept in the context, and otherwise not used.
    process_group: a shardwire process group (or its name), a communicator of mpi4py, a
        :class:`~shardwire.distributed.process_group.ProcessGroup`, or None: torch's default group, made by
        ``init_process_group("shardwire")`` where there is none yet.
    communicator, process_group_or_comm: older names of process_group; give one of the three. backends: accepted for
        programs written for nvmath; all bytes travel over shardwire's transports.

    Raises RuntimeError when already initialized, TypeError and ValueError for an argument that is no group.
    """
    global _context, _end
    if device_id is not None and as_integer(device_id) is None:
        raise TypeError(f"device_id is {kind_of(device_id)}; give an int or None")
    names = _read_backends(backends)
    given = [each for each in (process_group, communicator, process_group_or_comm) if each is not None]
    if len(given) > 1:
        raise TypeError("process_group, communicator and process_group_or_comm are the same; give one of them")
    process_group = given[0] if given else None
    with _lock:
        if _context is not None:
            raise RuntimeError("shardwire.distributed was initialized before; call finalize() first")
        comm = None
        ends = ""
        shown: Any = None
        if callable(getattr(process_group, "Get_rank", None)):
            comm, ends = process_group, "own"
            group, shown = create_process_group_from_mpi(comm), MPIProcessGroup(comm)
        elif isinstance(process_group, ProcessGroup):
            shown = process_group
            group, ends = group_behind(process_group)
        else:
            if process_group is None and not dist.is_initialized():
                dist.init_process_group("shardwire")
                ends = "default"
            group = shown = shardwire_group(process_group)
        backend = resolve_backend(group)
        _context = DistributedContext(device_id, shown, comm, names, _C.rank(backend), len(global_ranks(backend)),
                                      group)
        _end = ends


def _read_backends(backends: Any) -> tuple[str, ...]:
    if backends is None:
        return ("shardwire",)
    if isinstance(backends, str) or not isinstance(backends, Sequence):
        raise TypeError(f"backends is {kind_of(backends)}; give a list of names")
    for name in backends:
        if name not in _BACKENDS:
            raise ValueError(f"backends has {kind_of(name)}; known: {', '.join(_BACKENDS)}")
    return tuple(backends)


def finalize() -> None:
    """Ends the group that ``initialize`` made; the caller's group lives on. Collective. Does nothing when nothing is
    initialized."""
    global _context, _end
    with _lock:
        if _context is None:
            return
        group, ends = _context.group, _end
        _context, _end = None, ""
    from ._meeting import forget
    forget()
    if ends == "default":
        dist.destroy_process_group()
    elif ends == "own":
        end_process_group(group)


def get_context() -> DistributedContext | None:
    """The context, or None before ``initialize`` and after ``finalize``."""
    return _context


def group_of(group: Any) -> Any:
    """The group itself: ``group`` (a group or its name), else the context's, else torch's default group.

    RuntimeError where there is none of these; TypeError or ValueError when ``group`` is no shardwire group.
    """
    if group is None and _context is not None:
        return _context.group
    if group is None and not dist.is_initialized():
        raise RuntimeError("shardwire.distributed was not initialized: call "
                           "shardwire.distributed.initialize(device_id, comm) first, or give group=")
    return shardwire_group(group)


def known_size() -> int:
    """The number of ranks of the context's group, else of torch's default group."""
    return len(global_ranks(resolve_backend(group_of(None))))


def own_rank() -> int | None:
    """This rank in the context's group, else in torch's default group; None where there is neither."""
    if _context is not None:
        return _context.rank
    return dist.get_rank() if dist.is_initialized() else None


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device, order: str = "C") -> torch.Tensor:
    """An uninitialised tensor in C or Fortran order; a CPU tensor lies in the heap that the ranks share."""
    sizes = list(shape) if order == "C" else list(reversed(shape))
    tensor = _C.heap_empty(sizes, dtype) if device.type == "cpu" else torch.empty(sizes, dtype=dtype, device=device)
    return tensor if order == "C" else tensor.permute(*range(len(sizes) - 1, -1, -1))
