"""The stream of named tensors of the adapters (adapters/_buckets.py), without the packages that the adapters serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import torch
from conftest import TORCH
from ranks import group, run_ranks

from shardwire.adapters._buckets import Buckets

WEIGHTS = [("bytes", torch.arange(100, dtype=torch.uint8)), ("empty", torch.zeros(0, 3, dtype=torch.float64)),
           ("long", torch.arange(70, dtype=torch.float64)), ("scalar", torch.tensor(7, dtype=torch.int16))]


def stream(rank: int, bucket_bytes: int) -> list[tuple[str, torch.Tensor]]:
    buckets = Buckets(group(), rank, bucket_bytes)

    async def weights() -> AsyncIterator[tuple[str, torch.Tensor]]:
        for each in WEIGHTS:
            yield each

    async def all_of_them() -> list[tuple[str, torch.Tensor]]:
        if rank == 0:
            await buckets.send(weights(), 1, None)
            return WEIGHTS
        return [(name, tensor.clone()) async for name, tensor in buckets.receive(1)]
    with torch.device("meta"):  # engines load weights under a default device of their own
        return asyncio.run(all_of_them())


@pytest.mark.skipif(TORCH < (2, 1), reason="the packages need a newer torch")
@pytest.mark.parametrize("bucket_bytes", [64, 100, 1000])
def test_empty_tensors_behind_a_full_bucket(bucket_bytes: int) -> None:
    for found in run_ranks(2, stream, bucket_bytes):
        assert [name for name, _ in found] == [name for name, _ in WEIGHTS]
        assert all(torch.equal(one, other) for (_, one), (_, other) in zip(found, WEIGHTS))
