"""Object collectives, also within subgroups with common ranks."""

import pytest
import torch
import torch.distributed as dist

from both_backends import both  # noqa: F401
from conftest import TORCH


def thing(rank):
    return {"rank": rank, "text": "x" * (3000 * rank), "tensor": torch.arange(4.0) + rank, "nested": [None, (rank,)]}


def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, thing(rank))
    broadcast = [thing(7), "second"] if rank == 1 else [None, None]
    dist.broadcast_object_list(broadcast, src=1)
    mine = [None]
    dist.scatter_object_list(mine, [thing(10 + k) for k in range(size)] if rank == 0 else None, src=0)
    everything = [None] * size if rank == size - 1 else None
    dist.gather_object(thing(rank + 20), everything, dst=size - 1)
    assert gathered[size - 1]["rank"] == size - 1 and mine[0]["rank"] == 10 + rank
    return gathered, broadcast, mine, everything


@pytest.mark.parametrize("size", [2, 3])
def test_object_collectives(both, size):
    both(size, objects)


def sent(rank, size):
    if rank == 0:
        dist.send_object_list([thing(3), "tail"], dst=1)
        return "sent"
    received = [None, None]
    dist.recv_object_list(received, src=0)
    return received


@pytest.mark.skipif(TORCH < (2, 4), reason="this torch has no send_object_list")
def test_objects_from_rank_to_rank(both):
    both(2, sent)


def in_subgroups(rank, size):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    half, column = halves[rank // 2], columns[rank % 2]
    gathered = [None] * 2
    dist.all_gather_object(gathered, rank, group=half)
    value = torch.full((5,), float(rank))
    dist.all_reduce(value, group=half)
    dist.all_reduce(value, group=column)
    broadcast = torch.full((3,), float(rank))
    dist.broadcast(broadcast, src=rank % 2, group=column)
    for group in (half, column):
        dist.barrier(group)
        dist.destroy_process_group(group)
    dist.barrier()
    assert value.tolist() == [6.0] * 5 and gathered == [rank // 2 * 2, rank // 2 * 2 + 1]
    return gathered, value, broadcast


def test_subgroups(both):
    both(4, in_subgroups)
