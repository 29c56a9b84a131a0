"""The backend's place in torch.distributed: registration, making groups for torch, the shared heap, the end of the process."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import shardwire_autoload

from . import _C, _trace
from ._log import route

_DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch's
_SHORTEST = timedelta(milliseconds=1)  # c10d counts milliseconds, and takes 0 for no timeout


def register() -> None:
    """Registers "shardwire" with torch.distributed, for tensors of the CPU and of the accelerators that torch has by now. ``import shardwire``
    calls it. Call it again after a package has added a kind of device to torch.
    """
    if not dist.is_available():
        raise ImportError("this torch was built without torch.distributed, which shardwire extends")
    shardwire_autoload.register()
    _trace.extend_torchs_dump()


def create_from_options(options: Any, backend_options: Any, for_gloo: bool = False) -> Any:
    """What torch calls when a group with this backend is made. ``options`` is c10d's; ``backend_options`` the caller's pg_options. for_gloo: in gloo's place.

    Those for another backend of the same group are not ours to judge; of ours (``shardwire.Options``) the timeout counts when it is set.
    """
    timeout = as_timeout(options.timeout)
    if getattr(backend_options, "backend", None) == "shardwire" and backend_options._timeout != _DEFAULT_TIMEOUT:
        timeout = as_timeout(backend_options._timeout)
    ranks = list(options.global_ranks_in_group)
    route()
    return _C.create_backend(options.store, options.group_rank, options.group_size, timeout, options.group_id, ranks, for_gloo, is_of_one_job=True)


def stand_in_for(name: str) -> None:
    """Makes groups that are asked for by the name ``name`` ("gloo") shardwire's from now on, in this process; torch's gloo is "torch_gloo" then.

    Call it before ``init_process_group``, or set SHARDWIRE_AS=gloo in the environment, for which no line changes. ValueError for another name. See docs/drop-in.md.
    """
    shardwire_autoload.stand_in_for(name)


def create_in_place_of_gloo(store: Any, rank: int, size: int, timeout: timedelta | None, name: str, ranks: list[int]) -> Any:
    """What torch calls in place of gloo's class, where ours stands in."""
    route()
    return _C.create_backend(store, rank, size, as_timeout(timeout), name, ranks, for_gloo=True, is_of_one_job=True)


def as_timeout(timeout: timedelta | float | None) -> timedelta:
    """``timeout`` as a timedelta; None means torch's default of 30 minutes, 0 means now. Raises TypeError or ValueError for what is no time."""
    if timeout is None:
        return _DEFAULT_TIMEOUT
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        timeout = timedelta(seconds=timeout)
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout is a {type(timeout).__name__}; give seconds (float) or a timedelta")
    if timeout < timedelta(0):
        raise ValueError(f"timeout is {timeout}; give a time that is not negative")
    return max(timeout, _SHORTEST)


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor in the heap that all ranks of this host share: it moves between them in one copy.

    Like ``torch.empty``: ``empty(2, 3)`` or ``empty((2, 3))``. An ordinary tensor to everything else in torch.
    dtype: torch's default dtype when absent.
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return _C.heap_empty(list(shape), torch.get_default_dtype() if dtype is None else dtype)  # type: ignore[arg-type]


def enable_cpu_allocator() -> None:
    """Puts every CPU tensor that this process makes from now on into the shared heap: models, gradients and buffers move in one copy.

    Earlier tensors stay where they are. It cannot be undone. The tensors of a forked child, such as a DataLoader worker, lie in ordinary memory
    until it calls this itself.
    """
    _C.enable_cpu_allocator()


def cpu_allocator_enabled() -> bool:
    """Whether :func:`enable_cpu_allocator` was called in this process."""
    return _C.cpu_allocator_enabled()


def in_shared_heap(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory lies in the shared heap."""
    return _C.in_shared_heap(tensor)


def cpu_allocator_owns(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory was given by :func:`enable_cpu_allocator`'s allocator or :func:`empty`: the same as :func:`in_shared_heap`."""
    return _C.in_shared_heap(tensor)


# torch calls nothing of ours when a program ends without destroy_process_group, and a callback on a future that runs while the interpreter is
# taken apart ends the process with an abort. So every live group ends before that.
atexit.register(_C.shutdown_all)
