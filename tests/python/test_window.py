"""torch's one-sided windows (torch 2.14 and later): dist._new_window over symmetric memory."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import raises
from fork_ranks import meet

pytestmark = pytest.mark.skipif(not hasattr(dist, "_new_window"), reason="this torch has no windows")


def _within(seconds):
    from torch._C._distributed_c10d import WaitSignalOptions

    options = WaitSignalOptions()
    options.timeout = timedelta(seconds=seconds)
    return options


def _ring(rank, size, links):
    """Each rank puts to the next rank and signals; model: the elements that the previous rank has put."""
    assert dist._supports_window()
    right, left = (rank + 1) % size, (rank - 1) % size
    mine = shardwire.symm.zeros(3, 4)
    window = dist._new_window(mine)
    draw = random.Random(rank)
    model, others = torch.zeros(12), random.Random(left)
    for turn in range(50):
        count, offset = draw.randrange(1, 12), draw.randrange(12)
        count = min(count, 12 - offset)
        window.put(torch.full((count,), float(rank * 1000 + turn)), right, offset, turn % 2 == 0)
        window.signal(right, turn % 3 == 0).wait()
        count, offset = others.randrange(1, 12), others.randrange(12)
        model[offset:offset + min(count, 12 - offset)] = left * 1000 + turn
        window.wait_signal(left, turn % 5 == 0).wait()
        assert torch.equal(mine.view(-1), model), turn
        window.signal(left, False)  # the window was read
        window.wait_signal(right, False)
    assert torch.equal(window.map_remote_tensor(rank), mine)
    assert str(window.get_attr(rank).access_type).endswith("UNIFIED")
    if links == "addresses" or right == rank:
        assert window.map_remote_tensor(right)[0, 0].item() in (0.0, *(rank * 1000.0 + turn for turn in range(50)))
        assert str(window.get_attr(right).access_type).endswith("UNIFIED")
    else:
        raises((RuntimeError, ValueError), window.map_remote_tensor, right, contains=f"rank {right}")
        assert str(window.get_attr(right).access_type).endswith("SEPARATE")
    window.tensor_deregister()
    raises(ValueError, window.put, torch.ones(1), right, 0, False, contains="has no tensor")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_puts_and_signals(run_ranks, links, size):
    run_ranks(size, _ring, links)


def _signals(rank, size):
    window = dist._new_window()
    other = 1 - rank
    if rank == 0:
        for _ in range(3):
            window.signal(other, False)
    else:
        works = [window.wait_signal(other, True) for _ in range(4)]  # one more than there are signals
        for work in works[:3]:
            work.wait()
        assert [work.is_completed() for work in works] == [True, True, True, False]
    dist.barrier()
    if rank == 1:
        begin = time.monotonic()
        raises(shardwire.TimeoutError, works[3].wait, timedelta(milliseconds=100))
        raises(shardwire.TimeoutError, window.wait_signal, other, False, _within(0.1))
        assert time.monotonic() - begin < 5
    dist.barrier()
    if rank == 0:
        window.signal(other, False)
        window.signal(other, False)
    else:
        works[3].wait()
        window.wait_signal(other, False)  # the call that timed out took no signal
    dist.barrier()


def test_each_wait_takes_one_signal(run_ranks, links):
    run_ranks(2, _signals)


def _refusals(rank, size):
    window = dist._new_window()
    raises(ValueError, window.put, torch.ones(1), 0, 0, False, contains="has no tensor")
    raises(ValueError, window.tensor_register, torch.ones(4), contains="does not lie in symmetric memory")
    mine = shardwire.symm.zeros(4)
    # One error on all ranks, and the group stays usable.
    raises((shardwire.MismatchError, ValueError), window.tensor_register, mine if rank == 0 else mine[:2])
    raises(ValueError, window.tensor_register, mine if rank == 0 else shardwire.symm.get_peer_tensor(mine, 0),
           contains="own part")
    # A block of other ranks: its rank 0 is this group's rank 1, so a put would go to another rank's memory.
    back = shardwire.symm.split_strided(None, 1, -1, 2)
    raises(ValueError, window.tensor_register, back.zeros(4), contains="was made by a group of the job's ranks 1, 0")
    window.tensor_register(mine, owning=False)
    for arguments in ((torch.ones(2), 0, 3), (torch.ones(1), 0, -1), (torch.ones(1), size, 0)):
        raises(ValueError, window.put, *arguments, False)
    raises((TypeError, ValueError), window.put, torch.ones(1, dtype=torch.int32), 0, 0, False)
    window.put(torch.ones(2), 1 - rank, 2, False)
    dist.barrier()
    assert mine.tolist() == [0, 0, 1, 1]
    del mine
    gc.collect()
    raises(ValueError, window.put, torch.ones(1), 0, 0, False, contains="keep the tensor")
    dist.barrier()


def test_wrong_calls(run_ranks):
    run_ranks(2, _refusals)


def _die(rank, size):
    window = dist._new_window(shardwire.symm.zeros(4))
    meet("made")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(shardwire.PeerFailedError, window.wait_signal, 1, False, contains="rank 1")
    dist.destroy_process_group()


def test_a_wait_for_a_dead_rank_names_the_rank(run_ranks, links):
    run_ranks(2, _die, may_die={1})
