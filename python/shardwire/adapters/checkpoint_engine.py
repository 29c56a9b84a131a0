"""shardwire under checkpoint-engine: :func:`use` makes shardwire the transport of checkpoint-engine's process groups.
See docs/adapters.md.

Written for checkpoint-engine 0.4. The ParameterServer itself needs GPUs (or NPUs); its tensors are staged through the
host.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from checkpoint_engine.distributed import base


class DistributedShardwire(base.TorchBackend):
    """checkpoint-engine's ``Distributed``: torch's functions, over a default group of shardwire."""

    def init_process_group(self, rank: int, world_size: int, store: Any, **kwargs: Any) -> None:
        """As checkpoint-engine calls the method; the given ``backend`` is ignored."""
        dist.init_process_group("shardwire", world_size=world_size, rank=rank,
                                timeout=kwargs.get("timeout", timedelta(minutes=10)), store=store)


def use() -> None:
    """Makes shardwire checkpoint-engine's transport in this process. Every rank calls use() before its ParameterServer
    makes a group."""
    if base._BACKEND_INSTANCE.is_initialized():
        raise RuntimeError("checkpoint-engine has a process group already; call "
                           "shardwire.adapters.checkpoint_engine.use() before it makes one")
    base._BACKEND_INSTANCE = DistributedShardwire()
