"""agree and revoke, as ULFM has both: a rank ends a group for ranks that noticed no failure, and all ranks decide
alike."""

from __future__ import annotations

import os
import queue
import signal
import socket
import time
from datetime import timedelta
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import raises
from fork_ranks import meet
from shardwire import _C

GROUP_TIMEOUT_S = 20  # of run_ranks


def _sum(group=None):
    ones = torch.ones(3)
    dist.all_reduce(ones, group=group)
    return ones[0].item()


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _pids(rank, size, group=None):
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid(), group=group)
    return pids


def _notice(rank, pid):
    return f"rank {rank} (pid {pid} on host {socket.gethostname()}) revoked the group"


# ---- every kind of wait of a rank that noticed nothing. A setup returns the waiting call; rank 0 never comes


def _recv(rank, size):
    return None if rank == 0 else dist.irecv(torch.zeros(1), src=rank % (size - 1) + 1).wait


def _any_source(rank, size):
    return lambda: dist.recv(torch.zeros(1))


def _all_reduce(rank, size):
    return None if rank == 0 else dist.all_reduce(torch.ones(1 << 20), async_op=True).wait


def _barrier(rank, size):
    return dist.barrier


def _compiled_op(rank, size):
    row, whole = {"offset": [rank], "shape": [1]}, {"offset": [0], "shape": [size]}
    op = shardwire.compile_op(None, [size], torch.float32, [row], [whole])
    return lambda: op([torch.ones(1)], [torch.zeros(size)]).wait()


def _compiling(rank, size):
    row, whole = {"offset": [rank], "shape": [1]}, {"offset": [0], "shape": [size]}
    return lambda: shardwire.compile_op(None, [size], torch.float32, [row], [whole])


def _symmetric_wait(rank, size):
    flags = shardwire.symm.zeros(1, dtype=torch.int64)
    return lambda: shardwire.symm.signal_wait(flags[0], "eq", 1)


def _symmetric_wait_for_one(rank, size):
    flags = shardwire.symm.zeros(1, dtype=torch.int64)
    return lambda: shardwire.symm.signal_wait(flags[0], "eq", 1, source=rank % (size - 1) + 1)


def _symmetric_barrier(rank, size):
    shardwire.symm.zeros(1, dtype=torch.int64)
    return shardwire.symm.barrier


def _stand_by(rank, size, setup):
    """Rank 0 lives, and revokes while the other ranks wait."""
    shardwire.reconfigure_handles()
    part = dist.new_group([0, 1])
    notice = _notice(0, _pids(rank, size)[0])
    wait = setup(rank, size)
    meet("waiting")
    begin = time.monotonic()
    if rank == 0:
        shardwire.revoke()
        shardwire.revoke()
    else:
        raises(shardwire.AbortedError, wait, contains=notice)
    raises(shardwire.AbortedError, _sum, contains=notice)
    assert time.monotonic() - begin < GROUP_TIMEOUT_S / 2
    meet("raised")
    if rank < 2:
        assert _sum(part) == 2  # another group
    meet("summed")
    assert shardwire.agree(0b1111 ^ 1 << rank) == (0b1000, (), shardwire.reconfigure_handles())
    shardwire.shrink()
    assert (dist.get_rank(), _sum()) == (rank, size)


@pytest.mark.parametrize("setup", [_recv, _any_source, _all_reduce, _barrier, _compiled_op, _compiling, _symmetric_wait,
                                   _symmetric_wait_for_one, _symmetric_barrier])
def test_ranks_that_noticed_nothing_leave_their_operations(run_ranks, setup):
    run_ranks(3, _stand_by, setup)


# ---- queues, which have separate links


def _in_queues(rank, size):
    shardwire.reconfigure_handles()
    notice = _notice(2, _pids(rank, size)[2])
    empty, full = shardwire.Queue(location=0), shardwire.Queue(location=0, capacity=1)
    if rank == 0:
        full.put("one")
        local = ThreadPoolExecutor(1).submit(raises, shardwire.AbortedError, empty.get, contains=notice)
    meet("full")
    put = full.put("two", async_op=True) if rank < 2 else None
    if rank == 0:
        held = [each.held() for each in (empty, full)]
        counts = empty.hub.holder.counts
        while counts(held[0])[1] < 2 or counts(held[1])[2] < 2:  # of rank 0 and rank 1
            time.sleep(0.001)
        meet("waiting", 2)
        raises(shardwire.AbortedError, put.wait, contains=notice)
        local.result(20)
    elif rank == 1:
        raises(shardwire.AbortedError, empty.get, contains=notice)
        raises(shardwire.AbortedError, put.wait, contains=notice)
    else:
        meet("waiting", 2)
        shardwire.resolve_backend(None).revoke()
    for later in (lambda: full.put(1), full.get, full.qsize, lambda: empty.wait(1),
                  lambda: shardwire.Queue(location=1)):
        raises(shardwire.AbortedError, _until_it_fails, later, contains=notice)
    shardwire.shrink()
    again = shardwire.Queue(location=1)
    again.put(rank)
    dist.barrier()
    if rank == 1:
        assert sorted(again.get() for _ in range(size)) == [0, 1, 2]


def _until_it_fails(call):
    """The queues of the revoking rank end a moment later."""
    end = time.monotonic() + GROUP_TIMEOUT_S / 2
    while time.monotonic() < end:
        try:
            call()
        except (queue.Empty, queue.Full):
            pass
        time.sleep(0.001)


def test_waits_in_queues_end(run_ranks):
    run_ranks(3, _in_queues)


def _ended_at_once(rank, size):
    """Every rank ends the group as soon as it has the error, before the queues have looked for the notice."""
    group = dist.new_group(range(size))
    notice = _notice(1, _pids(rank, size)[1])
    empty = shardwire.Queue(group, location=0)
    empty.qsize()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(raises, shardwire.AbortedError, empty.get, contains=notice)
        time.sleep(0.3)  # the queues looked at least once
        meet("waiting")
        if rank == 1:
            shardwire.revoke(group)
        raises(shardwire.AbortedError, _until_it_fails, lambda: _sum(group), contains=notice)
        shardwire.end_process_group(group)
        waiting.result(GROUP_TIMEOUT_S / 2)


def test_waits_in_queues_end_though_the_group_is_ended_at_once(run_ranks):
    run_ranks(3, _ended_at_once)


def _before_the_holder(rank, size):
    """Rank 1 uses a queue that rank 0 has not made."""
    shardwire.reconfigure_handles()
    notice = _notice(2, _pids(rank, size)[2])
    if rank == 1:
        late = shardwire.Queue(location=0)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(raises, shardwire.AbortedError, late.get, contains=notice)
            while not _C.store_has(late.hub.store, "0/request/1"):
                time.sleep(0.001)
            meet("waiting")
            waiting.result(GROUP_TIMEOUT_S / 2)
    else:
        meet("waiting")
        if rank == 2:
            shardwire.revoke()
    with pytest.raises(shardwire.AbortedError):
        dist.barrier()
    shardwire.shrink()
    assert _sum() == size


def test_a_wait_for_the_holder_ends(run_ranks):
    run_ranks(3, _before_the_holder)


# ---- without links


def _without_links(rank, size):
    handles = shardwire.reconfigure_handles()
    notice = _notice(0, shardwire.survive.process_handles.parse_handle(handles[0]).pid)
    if rank == 3:
        work = dist.irecv(torch.zeros(1), src=2)
    meet("waiting")
    if rank == 0:
        shardwire.revoke()
    elif rank == 3:
        raises(shardwire.AbortedError, work.wait, contains=notice)
    else:
        while not _C.revocation(shardwire.resolve_backend(None)):
            time.sleep(0.001)
        raises(shardwire.AbortedError, _sum, contains=notice)
    shardwire.shrink()
    assert _sum() == size


def test_a_notice_makes_missing_links(run_ranks, monkeypatch):
    monkeypatch.setenv("SHARDWIRE_LINKS", "lazy")
    run_ranks(5, _without_links)


# ---- deaths


def _after_a_death(rank, size, dying):
    """One rank notices the death, and revokes; two ranks wait in a queue, which the death does not end."""
    shardwire.reconfigure_handles()
    living = [each for each in range(size) if each != dying]
    noticing, holding, waiting = living
    notice = _notice(noticing, _pids(rank, size)[noticing])
    entries = shardwire.Queue(location=holding)
    if rank == waiting:
        entries.put("first")  # makes the link
    if rank == holding:
        assert entries.get() == "first"
    meet("linked")
    if rank == dying:
        _kill()
    backend = shardwire.resolve_backend(None)
    if rank == noticing:
        raises(shardwire.PeerFailedError, lambda: [_sum() for _ in range(100_000)], contains=f"rank {dying} (pid")
        backend.revoke()
        raises(shardwire.PeerFailedError, _sum, contains=f"rank {dying} (pid")  # the first reason stays
    else:
        raises(shardwire.AbortedError, entries.get, contains=notice)
    verdict = backend.agree(0b110 | (rank == holding))
    assert (verdict.flag, verdict.dead) == (0b110, (dying,))
    assert backend.agree(flag=rank != waiting)[:2] == (False, (dying,))
    shardwire.shrink()
    assert (dist.get_rank(), _sum()) == (living.index(rank), size - 1)


@pytest.mark.parametrize("dying", [0, 2])
def test_after_a_death_nobody_noticed_the_others_leave(run_ranks, dying):
    run_ranks(4, _after_a_death, dying, may_die={dying})


def _revoker_dies(rank, size):
    """The revoking rank, and with this rank the store, ends at once."""
    shardwire.reconfigure_handles()
    if rank == 2:
        work = dist.irecv(torch.zeros(1), src=1)
    meet("waiting")
    if rank == 0:
        shardwire.revoke()
        _kill()
    raises(shardwire.AbortedError, work.wait if rank == 2 else _sum, contains="rank 0 (pid")
    assert shardwire.agree(7)[:2] == (7, (0,))
    shardwire.shrink()
    assert _sum() == size - 1


def test_the_revoking_rank_dies(run_ranks):
    run_ranks(3, _revoker_dies, may_die={0})


# ---- other groups, and calls that are refused


def _groups(rank, size):
    part = dist.new_group([1, 2], timeout=timedelta(seconds=20))
    store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
    own = shardwire.create_process_group(store, rank, size, timeout=20, name="own", standalone=True)
    backend = shardwire.resolve_backend(own)
    handles = shardwire.reconfigure_handles(own)
    meet("made")
    if rank == 1:
        backend.revoke()
        shardwire.revoke(part)
    ones = torch.ones(1)
    raises(shardwire.AbortedError, lambda: backend.allreduce([ones]).wait(), contains="rank 1 (pid")
    if rank == 2:
        raises(shardwire.AbortedError, _sum, part, contains="revoked the group")
    assert backend.agree(True) == (True, (), handles)
    raises(TypeError, backend.agree, "yes")
    raises(TypeError, shardwire.agree, 0.5, "own")
    assert shardwire.agree(-1, group="own").flag == -1
    assert shardwire.agree(2 ** 80 + rank, "own").flag == 2 ** 80
    made = shardwire.shrink(own)
    shardwire.resolve_backend(made).allreduce([ones]).wait()
    assert _sum() == size
    raises(ValueError, shardwire.resolve_backend(None).agree, contains="shardwire.reconfigure_handles(group)")
    backend = shardwire.resolve_backend(made)
    backend.shutdown()
    raises(shardwire.AbortedError, backend.revoke, contains="was shut down")


def test_other_groups_and_wrong_calls(run_ranks):
    run_ranks(3, _groups)
