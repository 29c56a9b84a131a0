"""A user's program, for types_check.py: what mypy must know of what calls give. Never run."""

from typing import Any

import torch
from typing_extensions import assert_type

import shardwire


class Array(torch.Tensor):
    pass


class Model(torch.nn.Module):
    pass


def typed(model: Model, array: Array, queue: shardwire.Queue) -> None:
    assert_type(shardwire.load("folder", model), Model)
    assert_type(shardwire.distributed.fft.fft(array, distribution=None), Array)
    assert_type(queue.get(return_size=True), "tuple[Any, int]")
    assert_type(queue.get_tensor(), torch.Tensor)
    assert_type(len(queue), int)
    assert_type(queue.put(1, async_op=True), shardwire.QueueWork)
    assert_type(shardwire.status.snapshot(), "dict[str, Any]")


async def awaited(queue: shardwire.Queue, subscription: shardwire.Subscription) -> None:
    assert_type(await queue.put_async(1), None)
    assert_type(await queue.put(1, async_op=True), None)
    assert_type(await subscription.fetch_async(), int)
    async for _ in queue:
        pass
