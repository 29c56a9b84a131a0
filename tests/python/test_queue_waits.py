"""shardwire.Queue: getters of the holder's rank receive the messages of a link, and putters read their answers late.
Nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
import os
import queue as standard
import random
import signal
import threading
import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from fork_ranks import meet
from ranks import group as group_of
from ranks import run_ranks as run_members

import shardwire
from shardwire import Queue

pytestmark = pytest.mark.any_torch

SEED = int(os.environ.get("SHARDWIRE_TEST_SEED", random.SystemRandom().randrange(1 << 30)))


def joined(folder, rank, size, timeout=20):
    return shardwire.create_process_group(dist.FileStore(str(folder / "store"), size), rank, size, timeout=timeout,
                                          name="job")


# ---- the driven link

def driven_link_dies(rank, size, folder):
    """Rank 0 waits in get() and drives the link of rank 1. Rank 1 dies, and rank 2 puts the entry."""
    group = joined(folder, rank, size)
    lasting, strict = Queue(group, 0, survive=True), Queue(group, 0)
    if rank == 1:
        meet("linked", 2)
        lasting.put("first")
        strict.put("strict")
        meet("first")
        time.sleep(0.3)  # by then rank 0 is mostly in its call
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        lasting.qsize()
        meet("linked", 2)
        meet("first")
        time.sleep(1)
        lasting.put("second")
        meet("over", 2)
        return None
    got = [lasting.get(), strict.get()]
    meet("first")
    start = time.monotonic()
    try:
        strict.get()
    except shardwire.PeerFailedError as error:
        got.append("rank 1" in str(error))
    assert time.monotonic() - start < 10
    got.append(lasting.get())
    meet("over", 2)
    return got


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_getter_goes_on_when_the_link_that_it_drives_dies(run_ranks, tmp_path, monkeypatch, way):
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    assert run_ranks(3, driven_link_dies, tmp_path, init=False, may_die=(1,))[0] == ["first", "strict", True, "second"]


def without_links(rank):
    """Rank 0 waits before any other rank has a link; then a thread of rank 0 puts, and then rank 1."""
    q, go = Queue(group_of(), 0), Queue(group_of(), 1)
    if rank == 1:
        time.sleep(0.3)
        q.put("of rank 1")
        return go.get(timeout=20)
    got = [q.get(timeout=20)]
    threading.Timer(0.2, q.put, ("of a thread",)).start()
    got.append(q.get(timeout=20))
    start = time.monotonic()
    with pytest.raises(standard.Empty):
        q.get(timeout=0.2)
    assert 0.15 < time.monotonic() - start < 5
    go.put("over")
    return got


def test_a_getter_waits_with_and_without_a_link():
    assert run_members(2, without_links) == [["of rank 1", "of a thread"], "over"]


COUNT = 200


def many_getters(rank, seed, remote_waits):
    """Ranks 1 to 3 put without waiting; three threads of rank 0 and one of rank 1 get, with short timeouts."""
    q = Queue(group_of(), 0)
    rng = random.Random(seed + rank)
    got = [[] for _ in range(3)]

    def take(mine, own_seed):
        waits = random.Random(own_seed)
        while True:
            try:
                source, number, tensor = q.get(timeout=waits.choice(remote_waits if rank else [0, 0.001, 0.003, 20]))
            except standard.Empty:
                continue
            except shardwire.ClosedError:
                return
            assert (tensor == float(number)).all()
            mine.append((source, number))
    getters = [threading.Thread(target=take, args=(mine, seed + number)) for number, mine in enumerate(got)]
    for getter in getters[:{0: 3, 1: 1}.get(rank, 0)]:
        getter.start()
    works = []
    for number in range(COUNT if rank else 0):
        size = rng.choice([1, 1, 1, 700, 40000])
        works.append(q.put((rank, number, torch.full((size,), float(number))), async_op=True))
        if rng.random() < 0.1:
            works.pop(0).wait()
    for work in works:
        work.wait()
    done = Queue(group_of(), 0, "done")
    if rank:
        done.put(rank)
    else:
        for _ in range(3):
            done.get(timeout=60)
        q.close()
    for getter in getters[:{0: 3, 1: 1}.get(rank, 0)]:
        getter.join()
    return got


@pytest.mark.parametrize("way, remote_waits", [("", [20]), ("", [0, 0.001, 0.003, 20]), ("tcp", [0.001, 20])])
def test_many_getters_that_give_up_get_every_entry_once(way, remote_waits, monkeypatch):
    print("seed", SEED)
    if way:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    lists = [mine for got in run_members(4, many_getters, SEED, remote_waits, timeout=90) for mine in got]
    assert Counter(tag for mine in lists for tag in mine) == Counter(
        (source, number) for source in (1, 2, 3) for number in range(COUNT))
    # An entry handed to rank 1 that comes back may come after later entries
    for mine in lists if remote_waits == [20] else []:
        for source in (1, 2, 3):
            numbers = [number for from_, number in mine if from_ == source]
            assert numbers == sorted(numbers)


# ---- late reads of answers

def late_answers(rank):
    """More puts than the link has room for answers, and nobody reads the answers until the end."""
    q = Queue(group_of(), 0)
    if rank == 0:
        return [q.get(timeout=60) for _ in range(3000)] == list(range(3000))
    works = [q.put(number, async_op=True) for number in range(3000)]
    assert q.qsize() >= 0  # this answer passes the unread answers
    works[2999].wait()
    assert all(work.done() for work in works)
    for work in works:
        work.wait()
    return True


def test_answers_may_be_read_late():
    assert run_members(2, late_answers, timeout=90) == [True, True]


def holder_dies_before_the_answer(rank, size, folder):
    group = joined(folder, rank, size)
    full = Queue(group, 0, capacity=1)
    if rank == 0:
        full.put(0)
        meet("put")
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    full.qsize()
    work = full.put(torch.ones(100000), async_op=True)
    meet("put")
    end = time.monotonic() + 10
    while not work.done():
        assert time.monotonic() < end
        time.sleep(0.01)
    return type(work.exception())


def test_a_late_answer_of_a_dead_holder_is_an_error(run_ranks, tmp_path):
    results = run_ranks(2, holder_dies_before_the_answer, tmp_path, init=False, may_die=(0,))
    assert results[1] is shardwire.PeerFailedError


# ---- asyncio

def local_put_waits(rank):
    """A task puts into the full queue of its own rank; the put is over when an entry is taken."""
    q = Queue(group_of(), 0, capacity=1)

    async def body():
        await q.put_async("first")
        second = asyncio.ensure_future(q.put_async("second"))
        await asyncio.sleep(0.1)
        assert not second.done()
        assert q.get() == "first"
        await second
        with pytest.raises(standard.Full):
            await q.put_async("third", timeout=0.1)
        return q.get()
    return asyncio.run(body())


def test_a_task_waits_for_room_on_its_own_rank():
    assert run_members(1, local_put_waits) == ["second"]


def test_a_closed_queue_is_not_drained_while_a_getter_of_the_holder_may_give_back():
    holder = shardwire._C.QueueHolder("group")
    held = holder.hold("key", "[]", 0, False)
    put, first, second, third = (shardwire._C.QueueLocalCall(holder, held) for _ in range(4))
    put.put([shardwire._C.QueueEntry(b"last", [])], True)
    first.get(True, True)
    holder.close(held)
    second.get(True, True)
    assert first.result()[2] == b"last" and not second.is_over()
    first.give_back()
    third.get(True, True)
    assert second.result()[2] == b"last" and not third.is_over()
    second.taken()
    assert third.is_over() and third.result()[2] is None
