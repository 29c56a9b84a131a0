"""Callers of a queue that leave in the middle: a Ctrl-C while an entry arrives, an event loop that ends, a transaction
that is used again, and calls after the holder's death."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref

import pytest
import torch
from fork_ranks import meet
from ranks import group, run_ranks

import shardwire
from shardwire import Queue, _C
from shardwire.queues.hub import hub_of
from shardwire.queues.use_link import UseLink

pytestmark = pytest.mark.any_torch


def interrupted_while_bytes_come(rank):
    work, answers = Queue(group(), 0, "work"), Queue(group(), 0, "answers")
    if rank == 0:
        work.put(torch.arange(1 << 20))
        first = answers.get(timeout=20)
        meet("interrupted")
        return first, answers.get(timeout=20), work.get(timeout=20).numel()
    answers.put("before")
    arrives = UseLink.arrives

    def interrupt(self, work, until):
        raise KeyboardInterrupt

    UseLink.arrives = interrupt
    with pytest.raises(KeyboardInterrupt):
        work.get(timeout=20)
    UseLink.arrives = arrives
    meet("interrupted")
    time.sleep(0.5)  # rank 0 waits in an empty queue
    answers.put("after")
    return None


def test_ctrl_c_while_bytes_come_is_no_death():
    assert run_ranks(2, interrupted_while_bytes_come)[0] == ("before", "after", 1 << 20)


def threads_of_await():
    return [each for each in threading.enumerate() if each.name == "shardwire-await"]


def loop_ends(rank):
    entries = Queue(group(), 0, "entries")
    if rank == 0:
        entries.put(torch.arange(1 << 18))
        meet("put")
        meet("left", 2)
        return entries.get(timeout=20).numel()
    meet("put")
    entries.wait()
    receive = UseLink.receive

    def slow(self, call, parts):
        time.sleep(0.5)
        return receive(self, call, parts)

    UseLink.receive = slow

    async def cancelled():
        getter = asyncio.ensure_future(entries.get_async())
        while not threads_of_await():
            await asyncio.sleep(0.01)
        getter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getter

    asyncio.run(cancelled())
    while threads_of_await():
        time.sleep(0.01)
    meet("left", 2)
    return None


def test_a_get_that_ends_with_its_event_loop_takes_nothing():
    assert run_ranks(2, loop_ends)[0] == 1 << 18


def stops_while_a_link_is_made(rank):
    entries = Queue(group(), 0, "entries")
    if rank == 0:
        meet("stopped")
        return entries.qsize()
    hub = hub_of(group())[1]
    request_link = hub._request_link
    made = []

    def stop(holder, limit):
        made.append(request_link(holder, limit))
        hub.stop()
        return made[0]

    hub._request_link = stop
    with pytest.raises(shardwire.ShardwireError, match="were ended on rank 1"):
        entries.put("late", timeout=20)
    with pytest.raises(shardwire.ShardwireError):  # the backend of the link was shut down
        _C.revocation(made[0])
    meet("stopped")
    return 0


def test_a_link_that_is_made_while_the_queues_end_is_ended_too():
    assert run_ranks(2, stops_while_a_link_is_made) == [0, 0]


def uses_again(rank):
    entries = Queue(group(), 0, "entries")
    puts = entries.transaction()
    with pytest.raises(KeyError), puts:
        puts.put("dropped")
        raise KeyError("the block's own error")
    for number in range(2):
        with puts:
            puts.put(number)
    return [entries.get(timeout=5) for _ in range(entries.qsize())]


def test_a_transaction_may_be_used_again():
    assert run_ranks(1, uses_again)[0] == [0, 1]


def puts_to_the_dead(rank):
    entries = Queue(group(), 0, "entries")
    if rank == 0:
        entries.get(timeout=20)
        os.kill(os.getpid(), signal.SIGKILL)
    entries.put(1)
    alive = []
    for _ in range(10):
        batch = torch.zeros(1 << 16)
        alive.append(weakref.ref(batch))
        for _ in range(200):  # until the death is known
            try:
                entries.put(batch)
            except shardwire.PeerFailedError:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("the holder is dead")
        del batch
    gc.collect()
    return sum(each() is not None for each in alive)


def test_failed_puts_keep_no_tensors():
    assert run_ranks(2, puts_to_the_dead, may_die=(0,))[1] <= 1  # the first put may have been under way
