"""verl's own manager, rollout workers and registry on CPUs, under Ray: two actors send three updates to two rollout
workers. Prints what these compared."""

from __future__ import annotations

import asyncio
import json

import ray
import torch
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig


ENGINE = CheckpointEngineConfig(backend="shardwire", update_weights_bucket_megabytes=1,
                                custom_backend_module="shardwire.adapters.verl",
                                engine_kwargs={"shardwire": {"rollout_dtype": "bfloat16", "timeout": 60.0}})


def weights(step):
    generator = torch.Generator().manual_seed(step)
    return {f"layers.{index}.weight": torch.randn(300, 200 + 100 * index, generator=generator) for index in range(12)}


class Actor(Worker):
    def __init__(self):
        super().__init__()
        import_external_libs(ENGINE.custom_backend_module)
        named = {"is_master": True} if self.rank == 0 else {}
        self.checkpoint_engine = CheckpointEngineRegistry.new("shardwire", bucket_size=1 << 20,
                                                              **ENGINE.engine_kwargs["shardwire"], **named)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        await self.checkpoint_engine.send_weights(iter(weights(global_steps).items()), global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


class Server:
    replica_rank, is_leader_rank, received = 0, True, None

    async def update_weights(self, named, global_steps=None, **kwargs):
        self.received = {name: tensor.clone() async for name, tensor in named}


class Rollout(CheckpointEngineWorker):
    def __init__(self):
        super().__init__(RolloutConfig(name="vllm", checkpoint_engine=ENGINE), None, Server())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def compare(self, step):
        wanted = weights(step)
        got = self.server_adapter.received
        return list(got) == list(wanted) and all(torch.equal(got[name], tensor.bfloat16())
                                                 for name, tensor in wanted.items())


class Replica:
    def __init__(self, workers):
        self.workers = workers

    async def nothing(self, **named):
        pass

    abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = nothing


def group(cls, count):
    pool = RayResourcePool(process_on_nodes=[count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(cls)),
                          device_name="cpu")


if __name__ == "__main__":
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    actors, rollouts = group(Actor, 2), group(Rollout, 2)
    manager = CheckpointEngineManager(config=ENGINE, actor_wg=actors,
                                      replicas=[Replica([worker]) for worker in rollouts.workers])
    results = []
    for step in (1, 2, 3):
        result = manager.update_weights(global_steps=step)
        if asyncio.iscoroutine(result):
            asyncio.run(result)
        results.append(rollouts.compare(step))
    ray.shutdown()
    print("results " + json.dumps(results))
