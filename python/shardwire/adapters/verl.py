"""shardwire as a checkpoint engine of verl: brings the actors' weights to the rollout workers. See docs/adapters.md.

The import of this module registers the engine as "shardwire" in verl's ``CheckpointEngineRegistry``; verl imports the
module by its configuration::

    actor_rollout_ref.rollout.checkpoint_engine.backend=shardwire
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=shardwire.adapters.verl

Written for verl 0.9.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ..groups.lookup import create_over_fresh_store, end_process_group
from ..groups.mpi import tcp_store
from ._buckets import Buckets

_HOST = "shardwire_host"
_STORE_TIMEOUT = timedelta(minutes=5)  # torch's default


@CheckpointEngineRegistry.register("shardwire")
class ShardwireCheckpointEngine(CheckpointEngine):
    """One rank's end. Actor rank 0 sends the tensors of its generator, bucket by bucket, to all rollout workers. The
    other actors only iterate over their generators, which take part in gathering.

    The group is kept from update to update while the same workers take part, and made anew after a worker was replaced
    or had an error.

    bucket_size: bytes of each of two buckets, the same on every rank; a longer tensor is sent in pieces. is_master:
        this is actor rank 0.
    rebuild_group: ends the group after each update. rollout_dtype: the dtype to which floating weights are cast on the
        way ("bfloat16", a torch.dtype); None: no cast.
    timeout: seconds for making the group, and for each of its operations.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, rebuild_group: bool = False,
                 rollout_dtype: str | torch.dtype | None = None, timeout: float = 600.0) -> None:
        if isinstance(rollout_dtype, str):
            rollout_dtype = getattr(torch, rollout_dtype.removeprefix("torch."), None)
            if not isinstance(rollout_dtype, torch.dtype):
                raise ValueError("rollout_dtype is no dtype of torch; give one such as 'bfloat16', or None")
        self.bucket_size, self.is_master, self.rebuild_group, self.timeout = (
            bucket_size, is_master, rebuild_group, timeout)
        self.rollout_dtype = rollout_dtype
        self.rank = self.world_size = -1
        self._server: Any = None
        self._group: Any = None
        self._members = ""
        self._incarnation = ""
        self._buckets: Buckets | None = None

    def prepare(self) -> dict[str, Any]:
        """The identity of this worker, so that all workers can check whether the group still fits; of actor rank 0 also
        the address of the group's store."""
        if self.is_master and self._server is None:
            host = ray.util.get_node_ip_address().strip("[]")
            self._server = tcp_store(host, 0, None, True, _STORE_TIMEOUT)
        if self._group is None:
            self._incarnation = secrets.token_hex(8)
        address = (self._server.host, self._server.port) if self.is_master else None
        return {"incarnation": self._incarnation, _HOST: address}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int,
                       metadata: list[dict]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        address = metadata[0][_HOST]
        if address is None:
            raise ValueError("actor rank 0 has no store for the group: make its engine with is_master=True")
        taking_part = [metadata[0], *metadata[actor_wg_world_size:]]
        members = hashlib.sha256(" ".join(each["incarnation"] for each in taking_part).encode()).hexdigest()
        size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "address": [address] * len(ranks),
                    "members": [members] * len(ranks)}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, address: tuple[str, int], members: str) -> None:
        """Joins the other workers, unless the group of exactly these workers exists. Rank -1 is an actor that sends
        nothing."""
        if rank >= 0 and (self._group is None or self._members != members):
            self._end_group()
            store = self._server if self.is_master else tcp_store(*address, None, False, _STORE_TIMEOUT)
            self._group = create_over_fresh_store(dist.PrefixStore(members, store), rank, world_size, self.timeout,
                                                  "shardwire.adapters.verl", standalone=True)
            self._members = members
        self.rank, self.world_size = rank, world_size
        if self._group is not None:
            self._buckets = Buckets(self._group, rank, self.bucket_size)

    def finalize(self) -> None:
        self._buckets = None
        if self.rebuild_group:
            self._end_group()

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """weights: yields (name, tensor), each whole (a DTensor is gathered); every actor's generator yields the same
        names in the same order."""
        if self.rank > 0:
            raise RuntimeError(f"rank {self.rank} is a rollout worker; it receives weights")
        if self.rank < 0:
            async for _ in _whole(weights):
                pass
            return
        done = False
        try:
            await self._prepared().send(_whole(weights), global_steps, self.rollout_dtype)
            done = True
        finally:
            if not done:  # the other workers, amid the stream, get an error; the next update makes a new group
                self._end_group()

    @torch.no_grad()
    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yields (name, tensor) on the CPU. Each tensor is valid until the next is requested, so copy tensors to
        keep."""
        if self.rank <= 0:
            raise RuntimeError("this is an actor; it sends weights")
        done = False
        try:
            async for named in self._prepared().receive(global_steps):
                yield named
            done = True
        finally:
            if not done:
                self._end_group()

    def _prepared(self) -> Buckets:
        if self._buckets is None:
            raise RuntimeError("call prepare and init_process_group before each update")
        return self._buckets

    def _end_group(self) -> None:
        group, self._group, self._members = self._group, None, ""
        if group is not None:
            end_process_group(group)


async def _whole(weights: Any) -> AsyncIterator[tuple[str, torch.Tensor]]:
    """Yields from an iterator of either kind; DTensors are gathered, on every rank alike."""
    if hasattr(weights, "__aiter__"):
        async for name, weight in weights:
            yield name, weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    else:
        for name, weight in weights:
            yield name, weight.full_tensor() if hasattr(weight, "full_tensor") else weight
