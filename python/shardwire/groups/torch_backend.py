"""The backend in torch: the registration with torch.distributed, and the shared heap of CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import shardwire_autoload

from .. import _C
from ..process import trace


def register() -> None:
    """Registers "shardwire" with torch.distributed, for tensors of the CPU and of torch's present accelerators.
    ``import shardwire`` calls this function. Call again after a package has added a kind of device to torch.
    """
    if not dist.is_available():
        raise ImportError("this torch was built without torch.distributed, which shardwire extends")
    shardwire_autoload.register()
    trace.extend_torchs_dump()


def stand_in_for(name: str) -> None:
    """Makes groups with the backend name ``name`` ("gloo") shardwire's from now on, in this process; torch's gloo is
    "torch_gloo" then.

    Call this before ``init_process_group``, or set SHARDWIRE_AS=gloo in the environment, for which no line changes.
    ValueError for another name. See docs/drop-in.md.
    """
    shardwire_autoload.stand_in_for(name)


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor in the shared heap of this host's ranks: the tensor moves between these ranks in one
    copy.

    Like ``torch.empty``: ``empty(2, 3)`` or ``empty((2, 3))``. An ordinary tensor to everything else in torch.
    dtype: torch's default dtype when absent.
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return _C.heap_empty(list(shape), torch.get_default_dtype() if dtype is None else dtype)  # type: ignore[arg-type]


def enable_cpu_allocator() -> None:
    """Puts every new CPU tensor of this process into the shared heap: models, gradients and buffers move in one copy.

    Earlier tensors stay in their memory. The call cannot be undone. The tensors of a forked child, such as a DataLoader
    worker, are in ordinary memory until the child calls this function.
    """
    _C.enable_cpu_allocator()


def cpu_allocator_enabled() -> bool:
    """Whether :func:`enable_cpu_allocator` was called in this process."""
    return _C.cpu_allocator_enabled()


def in_shared_heap(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory lies in the shared heap."""
    return _C.in_shared_heap(tensor)


def cpu_allocator_debug() -> None:
    """Prints the state of the shared heap: whether new CPU tensors lie there, and the bytes in use."""
    print(f"shardwire: the shared heap takes {'all' if _C.cpu_allocator_enabled() else 'no'} new CPU tensors of this "
          f"process; {_C.heap_used_bytes()} bytes are in use")


def cuda_copy(dst: torch.Tensor, src: torch.Tensor) -> None:
    """Copies the bytes of ``src`` to ``dst``, without a look at shape and dtype. Both are contiguous and have the same
    number of bytes; ValueError else. Between accelerators, and to the CPU, the copy follows the current stream."""
    if not (dst.is_contiguous() and src.is_contiguous()):
        raise ValueError("cuda_copy: dst and src must be contiguous")
    sizes = [each.numel() * each.element_size() for each in (dst, src)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"cuda_copy: dst is {sizes[0]} bytes, src is {sizes[1]} bytes")
    # Not view(-1), which keeps the stride of a lone element
    to, given = (each.detach().as_strided((each.numel(),), (1,)).view(torch.uint8) for each in (dst, src))
    to.copy_(given, non_blocking=True)


def cpu_allocator_owns(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is from :func:`enable_cpu_allocator`'s allocator or :func:`empty`: the same as
    :func:`in_shared_heap`."""
    return _C.in_shared_heap(tensor)
