"""A backend's shrink(), and torch's dist.shrink_group on top of it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import raises
from fork_ranks import meet

torchs = pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group")


def _sum(group=None):
    ones = torch.ones(3)
    dist.all_reduce(ones, group=group)
    return ones[0].item()


def _shrink_default(rank, size):
    dist.new_group([0, 1])  # ends with the default group
    if rank == 2:  # takes no part, and lives on
        meet("over")
        dist.destroy_process_group()
        return
    made = dist.shrink_group([2])
    assert made is dist.group.WORLD
    assert (dist.get_rank(), dist.get_world_size()) == ([0, 1, None, 2][rank], size - 1)
    assert _sum() == size - 1
    # The numbers of the default group are the job's from now on.
    assert shardwire.global_ranks() == list(range(size - 1))
    ends = dist.new_group([0, size - 2])
    if dist.get_rank() != 1:
        assert _sum(ends) == 2
    meet("over")


@torchs
def test_the_default_group(run_ranks):
    run_ranks(4, _shrink_default)


def _shrink_part(rank, size):
    part = dist.new_group([1, 2, 3])
    meet("made")
    if rank in (1, 3):
        made = dist.shrink_group([1], group=part)
        assert (made.rank(), made.size(), _sum(made)) == (rank // 2, 2, 2)
        assert shardwire.global_ranks(made) == [1, 3]
        values = torch.full((2,), float(rank))
        dist.broadcast(values, src=3, group=made)
        assert values.tolist() == [3, 3]
    assert _sum() == size


@torchs
def test_another_group(run_ranks):
    run_ranks(4, _shrink_part)


def _shrink_after_deaths(rank, size):
    """The process that serves the store need not live: the ranks meet by their handles."""
    shardwire.reconfigure_handles()
    meet("known")
    if rank in (0, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    raises(shardwire.PeerFailedError, lambda: [_sum() for _ in range(100_000)])
    dist.shrink_group([0, 2], shrink_flags=dist.SHRINK_ABORT if hasattr(dist, "SHRINK_ABORT") else 1)
    assert (dist.get_rank(), _sum()) == (rank // 2, size - 2)


@torchs
def test_after_deaths(run_ranks):
    run_ranks(4, _shrink_after_deaths, may_die={0, 2})


def _shrink_backend(rank, size):
    backend = shardwire.resolve_backend()
    assert backend.supports_shrinking
    for wrong in ([], [rank], [size], [-1], [(rank + 1) % size] * 2, list(range(size))):
        raises(ValueError, backend.shrink, wrong, contains="shrink: ranks")
    if rank != 1:
        options = shardwire.Options()
        options._timeout = timedelta(seconds=7)
        made = backend.shrink([1], opts_override=options)
        assert (made.rank(), made.size(), made.options._timeout) == (rank // 2, 2, timedelta(seconds=7))
        ones = torch.ones(2)
        made.allreduce([ones]).wait()
        assert ones.tolist() == [2, 2]
        made.shutdown()
    dist.barrier()  # the old group is as it was


def test_a_backend_is_shrunk(run_ranks):
    run_ranks(3, _shrink_backend)


def _absent(rank, size):
    backend = shardwire.resolve_backend()
    shardwire.reconfigure_handles()
    if rank == 0:
        options = shardwire.Options()
        options._timeout = timedelta(seconds=1)
        raises(shardwire.TimeoutError, backend.shrink, [1], 0, options, contains="rank 1 (pid")
    dist.barrier()


def test_a_rank_that_does_not_come_is_named(run_ranks):
    run_ranks(3, _absent)


def _late(rank, size, with_handles):
    backend = shardwire.resolve_backend()
    if with_handles:
        shardwire.reconfigure_handles()
    options = shardwire.Options()
    options._timeout = timedelta(seconds=1)
    if rank == 0:
        raises((shardwire.TimeoutError, shardwire.PeerFailedError), backend.shrink, [2], 0, options)
    meet("too late")
    if rank == 1:
        raises(shardwire.ShardwireError, backend.shrink, [2], 0, options)
    meet("again")
    if rank < 2:
        options._timeout = timedelta(seconds=20)
        made = backend.shrink([2], 0, options)
        ones = torch.ones(2)
        made.allreduce([ones]).wait()
        assert ones.tolist() == [2, 2]
        made.shutdown()
    dist.barrier()


@pytest.mark.parametrize("with_handles", [False, True])
def test_after_a_call_that_failed_the_next_one_is_a_new_meeting(run_ranks, with_handles):
    run_ranks(3, _late, with_handles)
