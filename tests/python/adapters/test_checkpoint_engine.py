"""shardwire.adapters.checkpoint_engine under the real checkpoint-engine's process groups. (checkpoint-engine's
ParameterServer needs GPUs.)
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("checkpoint_engine",
                    reason="checkpoint-engine is not installed: ./run frameworks makes an environment that has it")

import checkpoint_engine.distributed as engine_dist  # noqa: E402
from ranks import run_ranks  # noqa: E402

import shardwire.adapters.checkpoint_engine as adapter  # noqa: E402


def as_the_parameter_server_does(rank: int, store_path: str) -> list[Any]:
    adapter.use()
    assert not engine_dist.is_initialized()
    engine_dist.init_process_group(rank, 3, dist.FileStore(store_path, 3), backend="nccl")
    assert engine_dist.is_initialized() and dist.get_backend() == "shardwire"
    metas: list[Any] = [None] * 3
    engine_dist.all_gather_object(metas, {"rank": rank, "names": ["a", "b"]})
    some = engine_dist.new_group([0, 2])
    smallest = torch.tensor([10 + rank, 20 - rank])
    engine_dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    bucket = torch.full((100,), rank, dtype=torch.uint8)
    if rank != 1:
        engine_dist.broadcast(bucket, src=2, group=some)
        engine_dist.barrier(group=some)
        engine_dist.destroy_process_group(some)
    with pytest.raises(RuntimeError, match="has a process group already"):
        adapter.use()
    engine_dist.barrier()
    engine_dist.destroy_process_group()
    return [metas, smallest.tolist(), bucket.unique().tolist(), engine_dist.is_initialized()]


def test_its_process_groups_are_ours(tmp_path: Any) -> None:
    results = run_ranks(3, as_the_parameter_server_does, str(tmp_path / "store"), join=False)
    for rank, (metas, smallest, bucket, initialized) in enumerate(results):
        assert metas == [{"rank": each, "names": ["a", "b"]} for each in range(3)]
        assert smallest == [10, 18] and bucket == [1 if rank == 1 else 2] and not initialized
