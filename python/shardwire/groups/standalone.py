"""Groups outside of torch's tables, by moodist's names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .. import _C
from .lookup import create_process_group, shardwire_behind

ShardwireBackend = _C.ProcessGroupShardwire


class _OfShardwire(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        import torch.distributed as dist
        return isinstance(instance, dist.ProcessGroup) and shardwire_behind(instance) is not None


class ShardwireProcessGroup(metaclass=_OfShardwire):
    """``ShardwireProcessGroup(store, rank, size)`` is :func:`create_process_group` with ``standalone=True``;
    ``isinstance(group, ShardwireProcessGroup)`` says whether a group of torch is shardwire's for CPU tensors."""

    def __new__(cls, store: Any, rank: int, size: int) -> Any:
        return create_process_group(store, rank, size, standalone=True)


def create_shardwire_backend(store: Any, rank: int, size: int, timeout: timedelta | float) -> Any:
    """:func:`create_process_group` with ``standalone=True``. Collective."""
    return create_process_group(store, rank, size, timeout, standalone=True)
