"""shardwire.Queue: order and content against an oracle, capacity, transactions, several locations, names, waiting, and
closing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import queue as standard
import random
import threading
import time
from collections import OrderedDict

import pytest
import torch
from ranks import group, raised, run_ranks

import shardwire
from shardwire import Queue

SEED = int(os.environ.get("SHARDWIRE_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float64]


def entry_of(rng, source, number):
    """Entry `number` of a source, the same on every rank: tensors of 0 bytes to 2 MiB, and objects with tensors."""
    shape = rng.choice([(), (0,), (3,), (7, 5), (100, 41), (1 << 10, 130), (1 << 19,)])
    generator = torch.Generator().manual_seed(source * 100003 + number)
    tensor = (torch.rand(shape, generator=generator) * 100).to(rng.choice(DTYPES))
    kind = rng.random()
    if kind < 0.5:
        return tensor
    if kind < 0.75:
        return {"source": source, "number": number, "tensors": [tensor, tensor], "name": "x" * rng.randint(0, 2000)}
    return (source, number, rng.randint(0, 1 << 80))


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return (type(other) is torch.Tensor and one.dtype == other.dtype and one.shape == other.shape
                and torch.equal(one, other))
    if isinstance(one, dict):
        return type(other) is dict and list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return type(other) is list and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


# ---- order and content

COUNT = 60


def put_and_get(rank, seed, location, capacity):
    """Every rank puts COUNT entries, tagged, and gets until all are there. Returns the received entries, (source,
    number) in order.
    """
    q = Queue(group(), location, capacity=capacity)
    done = Queue(group(), location)
    entries = [list(entries_of(seed, source)) for source in range(4)]
    got, problems = [], []

    def getter():
        while True:
            try:
                tag, value = q.get(timeout=30)
            except shardwire.errors.ClosedError:
                return
            if not equal(entries[tag[0]][tag[1]], value):
                problems.append(tag)
            got.append(tag)
    thread = threading.Thread(target=getter)
    thread.start()
    rng = random.Random(seed + rank)
    works = []
    for number, value in enumerate(entries[rank]):
        works.append(q.put([(rank, number), value], async_op=rng.random() < 0.5))
    for work in works:
        work.wait()
    done.put(rank)
    if rank == location:
        for _ in range(4):
            done.get(timeout=30)
        q.close()
    thread.join()
    assert not problems, f"entries came with other bytes: {problems}"
    return got


def entries_of(seed, source):
    rng = random.Random(seed * 31 + source)
    for number in range(COUNT):
        yield entry_of(rng, source, number)


@pytest.mark.parametrize("capacity, way", [(None, ""), (3, ""), (3, "tcp")])
def test_every_entry_comes_once_whole_and_in_its_sources_order(capacity, way, monkeypatch):
    print("seed", SEED)
    if way:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    results = run_ranks(4, put_and_get, SEED, SEED % 4, capacity, timeout=90)
    everything = sorted(tag for got in results for tag in got)
    assert everything == [(source, number) for source in range(4) for number in range(COUNT)]
    for got in results:  # entries of one source reached each getter in the order of the puts
        for source in range(4):
            mine = [number for from_, number in got if from_ == source]
            assert mine == sorted(mine)


def one_getter(rank, seed):
    """A single getter sees each source's whole order."""
    q = Queue(group(), 0, capacity=5)
    if rank == 2:
        return [q.get(timeout=30)[:2] for _ in range(2 * COUNT)]
    for number in range(COUNT):
        q.put((rank, number, torch.ones(random.Random(seed + number).choice([1, 3000, 70000]))), async_op=True)
    return None


def test_async_puts_of_all_sizes_keep_their_order():
    got = run_ranks(3, one_getter, SEED)[2]
    assert [tag for tag in got if tag[0] == 0] == [(0, number) for number in range(COUNT)]
    assert [tag for tag in got if tag[0] == 1] == [(1, number) for number in range(COUNT)]


def kinds(rank):
    q = Queue(group(), 0)
    if rank == 1:
        strided = torch.arange(24.0).reshape(4, 6)
        for tensor in (strided.t(), torch.tensor(3), torch.tensor([1 + 2j]).conj(), torch.nn.Parameter(torch.ones(2)),
                       torch.zeros(2, 0)):
            q.put_tensor(tensor)
        changed = torch.ones(100000)
        q.put_tensor(changed)
        changed.zero_()  # put was over: the entry is not touched
        q.put_object(OrderedDict(a=torch.ones(2)))
        q.put(b"x" * 100000)
        return None
    strided = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(q.get_tensor(), strided.t()) and q.get_tensor().item() == 3
    assert torch.equal(q.get_tensor(), torch.tensor([1 - 2j]))
    assert torch.equal(q.get_tensor(), torch.ones(2)) and q.get_tensor().shape == (2, 0)
    assert (q.get_tensor() == 1).all()
    assert raised(q.get_tensor)[0] is TypeError
    back, left = q.get_object(return_size=True)
    assert type(back) is OrderedDict and torch.equal(back["a"], torch.ones(2))
    return q.get_object(), left


def test_kinds_of_entries():
    value, _ = run_ranks(2, kinds)[0]
    assert value == b"x" * 100000


def other_default_device(rank):
    q, back = Queue(group(), 0), Queue(group(), 1)
    tensors = [torch.arange(3.0), torch.arange(200000.0), torch.empty(0, 2)]
    with torch.device("meta"):
        if rank == 1:
            for tensor in tensors:
                q.put_tensor(tensor)
            q.put({"a": tensors[1], "b": list(range(3000))})
            return back.get()
        got = [q.get_tensor() for _ in tensors] + [q.get()["a"]]
        back.put("here")
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, [*tensors, tensors[1]]))
    return "here"


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_the_default_device_does_not_matter():
    assert run_ranks(2, other_default_device) == ["here"] * 2


def into_out(rank):
    q, back = Queue(group(), 0), Queue(group(), 0)
    if rank == 0:
        for _ in range(2):
            q.put_tensor(torch.arange(50000.0))
        q.put_tensor(torch.arange(50000.0))
        out = torch.empty(50000)
        assert q.get(out=out) is out and torch.equal(out, torch.arange(50000.0))
        back.get()
        return q.qsize()
    out = torch.empty(50000)
    address = out.data_ptr()
    assert q.get_tensor(out=out) is out and out.data_ptr() == address and torch.equal(out, torch.arange(50000.0))
    kind, text = raised(q.get, out=torch.empty(3))
    assert kind is ValueError and "float32[3]" in text and "float32[50000]" in text, text
    spread = torch.zeros(50000, 2)[:, 1]
    q.get(out=spread)
    assert torch.equal(spread, torch.arange(50000.0))
    for value in {"an": "object"}, {"a long head": list(range(100000))}:
        q.put(value)
        assert raised(q.get, out=out)[0] is TypeError
        assert q.get(timeout=20) == value
    q.put_tensor(torch.arange(3.0))
    for wrong, kind, why in ((torch.empty(1).expand(3), ValueError, "expanded"),
                             (torch.empty(3).as_strided((2, 2), (1, 1)), ValueError, "share memory"),
                             (torch.empty(3, device="meta"), TypeError, "meta"),
                             (torch.empty(3).to_sparse(), TypeError, "sparse"), ("text", TypeError, "'text'")):
        for get in (q.get, q.get_tensor, lambda out: asyncio.run(q.get_async(out=out))):
            found, text = raised(get, out=wrong)
            assert found is kind and why in text and "in the queue still" in text, text
    assert torch.equal(q.get(), torch.arange(3.0))
    back.put(None)
    return None


def test_get_into_out():
    assert run_ranks(2, into_out)[0] == 0


# ---- fairness

def until_waiting(q, getters=0, putters=0):
    """On the holder: returns when so many getters wait for an entry, and so many putters for room."""
    end = time.monotonic() + 30
    while (counts := q.hub.holder.counts(q.held()))[1] < getters or counts[2] < putters:
        assert time.monotonic() < end, f"nobody came to wait: {counts}"
        time.sleep(0.001)


def fair(rank):
    q = Queue(group(), 0)
    if rank == 0:
        until_waiting(q, getters=1)  # rank 1
        got = []
        local = threading.Thread(target=lambda: got.append(q.get(timeout=20)))
        local.start()
        until_waiting(q, getters=2)
        q.put("first")
        q.put("second")
        local.join()
        return got
    return [q.get(timeout=20)]


def test_a_local_getter_does_not_overtake_a_remote_one():
    assert run_ranks(2, fair) == [["second"], ["first"]]


# ---- capacity

def capacity(rank):
    q, go = Queue(group(), 0, capacity=2), Queue(group(), 0)
    if rank == 0:
        go.get()
        before = q.qsize()
        start = time.monotonic()
        kind, text = raised(q.put, "no", timeout=0.2)
        assert kind is standard.Full and "capacity is 2" in text and 0.15 < time.monotonic() - start < 5, text
        assert raised(q.put, "no", block=False)[0] is standard.Full
        until_waiting(q, putters=1)  # rank 1
        time.sleep(0.3)
        got = [q.get(timeout=10) for _ in range(3)]
        return before, got, q.qsize()
    q.put(1)
    q.put(torch.ones(100000))
    assert q.full() and raised(q.put, torch.ones(100000), block=False)[0] is standard.Full
    kind, text = raised(q.put, torch.ones(100000), timeout=0.2)
    assert kind is standard.Full and "0.2 s" in text
    go.put(None)
    start = time.monotonic()
    q.put("late", timeout=20)
    return time.monotonic() - start


def test_capacity_blocks_putters_until_there_is_room():
    (before, got, after), waited = run_ranks(2, capacity)
    assert before == 2 and got[0] == 1 and torch.equal(got[1], torch.ones(100000)) and got[2] == "late" and after == 0
    assert waited > 0.2


# ---- transactions

def transactions(rank, seed):
    q = Queue(group(), 0, capacity=40)
    rng = random.Random(seed + rank)
    if rank == 0:
        seen = []
        for _ in range(3):
            while True:
                source, number, count, tensor = q.get(timeout=30)
                assert tensor.numel() == 0 or (tensor == number).all()
                seen.append((source, number))
                if number == count - 1:
                    break
                for at in range(number + 1, count):  # the rest of the batch is there already
                    other = q.get(block=False)
                    assert other[:2] == (source, at), (other[:2], source, at)
                break
        return len(seen)
    for turn in range(3 if rank == 1 else 0):
        count = rng.randint(1, 20)
        with q.transaction() as puts:
            for number in range(count):
                puts.put((turn, number, count, torch.full((rng.choice([0, 10, 50000]),), float(number))),
                         async_op=rng.random() < 0.5)
                assert q.qsize() == 0 or turn > 0
    return None


def test_a_transaction_appears_as_one():
    print("seed", SEED)
    assert run_ranks(2, transactions, SEED)[0] == 3


def dropped_transactions(rank):
    q, go = Queue(group(), [0, 1], capacity=3), Queue(group(), 0)
    if rank == 2:
        try:
            with q.transaction() as puts:
                puts.put_tensor(torch.ones(100000))
                puts.put_object("never")
                raise KeyError("stop")
        except KeyError:
            pass
        with q.transaction() as puts:
            puts.put("a")
            puts.put("b")
        with q.transaction():
            pass
        kind, text = raised(fill, q)
        assert kind is ValueError and "4 entries" in text and "capacity of 3" in text
        assert raised(puts.put, 1)[0] is ValueError
        go.put(None)
        go.put(None)
        return None
    go.get(timeout=20) if rank == 0 else q.wait(20)
    return [q.get(block=False), q.get(block=False), q.qsize()]


def fill(q):
    with q.transaction() as puts:
        for number in range(4):
            puts.put(number)


def test_a_transaction_that_fails_leaves_nothing():
    assert run_ranks(3, dropped_transactions)[:2] == [["a", "b", 0]] * 2


def rolled_back_puts(rank):
    q = Queue(group(), 0)
    if rank == 0:
        return q.get(timeout=20)
    q.put("before")
    ((link, _),) = q.links_made()
    calls = []
    with contextlib.suppress(KeyError), q.transaction() as puts:
        calls += [put.call for number in range(5) for put in puts.put(number, async_op=True).pending()]
        raise KeyError("stop")
    assert len(calls) == 5 and [call for call, _ in link._abandoned] == calls
    for call in calls:
        assert call.wait(20.0)
    assert q.qsize() <= 1 and not link._abandoned  # the request received the answers of before
    return None


def test_the_answers_of_puts_that_were_rolled_back_are_received():
    assert run_ranks(2, rolled_back_puts)[0] == "before"


# ---- several locations

def several(rank):
    q = Queue(group(), [2, 0])
    if rank == 1:
        for number in range(5):
            q.put([number, torch.full((30000,), float(number))])
        kind, text = raised(q.get)
        assert kind is ValueError and "none of its locations [2, 0]" in text, text
        return raised(q.qsize)[0] is ValueError
    got = [q.get(timeout=10) for _ in range(5)]
    assert all((tensor == number).all() for number, tensor in got)
    return [number for number, _ in got]


def test_each_location_gets_every_entry():
    assert run_ranks(3, several) == [[0, 1, 2, 3, 4], True, [0, 1, 2, 3, 4]]


# ---- names

ANSWERS = "answers, by a name that is longer than those texts that are written where they are met"


def names(rank):
    if rank == 2:
        return None  # takes no part: named queues need no other ranks
    if rank == 1:
        q = Queue("my_group", 0, name="work", capacity=4)
        q.put("before it was made there", timeout=20)
        answers = q_from(pickle.dumps(Queue(group(), 1, ANSWERS)))
        q.put(answers)
        return answers.get(timeout=20)
    time.sleep(0.3)  # rank 1 puts by now
    q = Queue(group(), 0, name="work", capacity=4)
    # not compared by size: rank 1 may put between two looks
    assert Queue(group(), 0, name="work", capacity=4).held() is q.held()
    kind, text = raised(Queue, group(), 0, "work")
    assert kind is ValueError and "[[0], 4, False]" in text and "[[0], None, False]" in text, text
    assert raised(pickle.dumps, Queue(group(), 0))[0] is TypeError
    first, answers = q.get(timeout=20), q.get(timeout=20)
    assert type(answers) is Queue and answers.name == ANSWERS and answers.location == 1
    answers.put(first)
    return None


def q_from(data):
    return pickle.loads(data)


def test_named_queues_are_made_at_any_time_and_travel():
    assert run_ranks(3, names)[1] == "before it was made there"


def unlike(rank):
    q = Queue(group(), 0, capacity=1 + rank)
    if rank == 1:
        return raised(q.put, 1)
    q.wait(1)
    return None


def test_queues_that_were_made_differently_are_reported():
    kind, text = run_ranks(2, unlike)[1]
    assert kind is ValueError and "[[0], 2, False]" in text and "[[0], 1, False]" in text, text


# ---- several groups

def queues_of_groups(rank):
    import torch.distributed as dist
    disjoint = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    alike = [dist.new_group([0, 1, 2, 3]) for _ in range(3)]
    got = []
    for number, of in enumerate([disjoint, *alike]):
        q = Queue(of, 0, name="work")
        if q.hub.rank == 0:
            got.append([q.get(timeout=20) for _ in range(q.hub.size - 1)])
        else:
            q.put((number, rank // 2 if of is disjoint else 0), timeout=20)
        dist.barrier()  # the next group comes after this one
    return got


def test_queues_of_several_groups_meet_users_of_their_own():
    got = run_ranks(4, queues_of_groups, default_group=True)
    alike = [[(number, 0)] * 3 for number in (1, 2, 3)]
    assert got == [[[(0, 0)], *alike], [], [[(0, 1)]], []]


# ---- waiting

def waiting(rank):
    here, there, go = (Queue(group(), rank, f"mine {rank}"), Queue(group(), 1 - rank, f"mine {1 - rank}"),
                       Queue(group(), 0))
    if rank == 1:
        assert raised(here.get, timeout=0.1)[0] is standard.Empty
        assert not here.wait(0.1) and not there.wait(0.1) and Queue.wait_any([here, there], 0.1) == []
        kind, text = raised(there.get, timeout=0.2)
        assert kind is standard.Empty and "0.2 s" in text
        assert (raised(there.get, block=False)[0] is standard.Empty
                and raised(here.get, block=False)[0] is standard.Empty)
        go.put(None)
        assert Queue.wait_any([here, there], 20) == [here] and here.get() == "to you"
        go.put(None)
        assert Queue.wait_any([here, there], 20) == [there] and there.wait() and there.get() == "at home"
        return here.empty() and there.qsize() == 0
    go.get()
    time.sleep(0.2)  # the other rank waits by now
    there.put("to you")
    go.get()
    time.sleep(0.2)  # again
    here.put("at home")
    return True


def test_waits_and_timeouts():
    assert run_ranks(2, waiting) == [True, True]


def now(rank):
    """timeout=0 means now: only present entries and room count, on any rank."""
    q, full, over = Queue(group(), 0, "now"), Queue(group(), 0, "full", capacity=1), Queue(group(), 0)
    if rank == 0:
        assert q.wait(0) is False
        q.put("a")
        q.put("b")
        q.put("c")
        assert q.wait(0) is True and q.get(timeout=0) == "a"
        return over.get(timeout=20)
    assert q.wait(20)
    full.put(1, timeout=0)
    assert raised(full.put, 2, timeout=0)[0] is standard.Full and full.get(timeout=0) == 1
    with full.transaction(timeout=0) as puts:
        puts.put(3)
    while q.qsize() != 2:
        pass
    assert (Queue.wait_any([q, full, over], 0) == [q, full] and q.get(timeout=0) == "b"
            and asyncio.run(q.get_async(timeout=0)) == "c")
    assert raised(q.get, timeout=0)[0] is standard.Empty and Queue.wait_any([q, over], 0) == [] and q.wait(0) is False
    full.close()
    assert full.wait(0) and full.get(timeout=0) == 3 and raised(full.get, timeout=0)[0] is shardwire.ClosedError
    over.put(True, timeout=0)
    return True


def test_a_timeout_of_0_is_now():
    assert run_ranks(2, now) == [True, True]


def idle(rank):
    q, go = Queue(group(), 0), Queue(group(), 0)
    if rank == 0:
        q.put("warm")
        go.get(timeout=20)
        before = time.process_time()
        raised(go.get, timeout=2)
        spent = time.process_time() - before
        q.put("go on")
        return spent
    q.get()
    go.put(None)
    before = time.process_time()
    q.get(timeout=20)
    return time.process_time() - before


def test_who_waits_burns_no_core():
    spent = run_ranks(2, idle)
    assert max(spent) < 0.5, f"seconds of a core within 2 s of waiting: {spent}"


# ---- closing and streaming

def closing(rank):
    q, full = Queue(group(), 0), Queue(group(), 0, capacity=1)
    if rank == 0:
        full.put(0)
        late = []
        thread = threading.Thread(target=lambda: late.append(raised(full.put, 1, timeout=20)))
        thread.start()
        time.sleep(0.1)  # the putter waits for room by now
        for number in range(20):
            q.put([number, torch.ones(20000) * number])
        q.close()
        q.close()
        kind, text = raised(q.put, 1)
        assert kind is shardwire.ClosedError and "closed" in text
        full.close()
        thread.join()
        assert late[0][0] is shardwire.ClosedError
        return full.get()
    got = [int(tensor[0]) for _, tensor in q.stream(ahead=3)]
    assert raised(q.get)[0] is shardwire.ClosedError and raised(q.put, 1)[0] is shardwire.ClosedError and list(q) == []
    assert q.wait()  # a closed queue ends the wait; get() then raises
    return got


def give_up_often(rank):
    """Rank 0: what each of three threads got, with waits that mostly end before an entry comes."""
    q = Queue(group(), 0)
    if rank == 1:
        for number in range(400):
            q.put(number)
            time.sleep(0.0005)
        q.close()
        return None
    got = [[] for _ in range(3)]

    def take(mine, seed):
        rng = random.Random(seed)
        while True:
            try:
                mine.append(q.get(timeout=rng.random() * 0.004))
            except standard.Empty:
                continue
            except shardwire.ClosedError:
                return
    others = [threading.Thread(target=take, args=(got[number], number)) for number in range(2)]
    for other in others:
        other.start()
    take(got[2], 2)
    for other in others:
        other.join()
    return got


def test_getters_that_give_up_while_entries_come_lose_nothing():
    got = run_ranks(2, give_up_often)[0]
    assert sorted(number for mine in got for number in mine) == list(range(400))
    assert all(mine == sorted(mine) for mine in got)


def test_close_lets_getters_drain():
    assert run_ranks(2, closing) == [0, list(range(20))]


def streaming(rank):
    q, over = Queue(group(), 0), Queue(group(), 0)
    if rank == 0:
        for number in range(10):
            q.put(number)
        over.get(timeout=20)
        return [q.get(timeout=10) for _ in range(7)]
    stream = q.stream(ahead=4)
    got = [next(stream) for _ in range(3)]
    stream.close()
    over.put(None)
    return got


def test_what_a_stream_did_not_reach_goes_back_in_order():
    assert run_ranks(2, streaming) == [[3, 4, 5, 6, 7, 8, 9], [0, 1, 2]]


def leaves_a_stream(rank, folder):
    """Rank 0 holds a closed queue; rank 2 waits in it while rank 1 has two entries that it asked for ahead."""
    q = Queue(group(), 0)
    gone = folder / "gone"
    if rank == 0:
        for number in range(3):
            q.put(number)
        q.close()
        while not gone.exists():
            time.sleep(0.01)
        return q.qsize()
    if rank == 1:
        stream = q.stream(ahead=2)
        got = [next(stream)]
        while q.qsize() > 0:  # the answers to what was asked ahead
            time.sleep(0.01)
        (folder / "asked").touch()
        time.sleep(0.2)  # rank 2 waits meanwhile
        stream.close()
        return got
    while not (folder / "asked").exists():
        time.sleep(0.01)
    got = list(q)
    gone.touch()
    return got


def test_a_closed_queue_is_not_drained_while_entries_may_come_back(tmp_path):
    assert run_ranks(3, leaves_a_stream, tmp_path) == [0, [0], [1, 2]]


# ---- asyncio

def with_asyncio(rank):
    """Rank 0 holds; both ranks put and get by tasks: many wait at once, one is cancelled, and the loop goes on
    meanwhile.
    """
    q, back = Queue(group(), 0, capacity=3), Queue(group(), 1)
    big = torch.arange(200000.0)

    async def getters(of, count):
        values = await asyncio.wait_for(asyncio.gather(*(of.get_async(timeout=30) for _ in range(count))), 40)
        return sorted(values)

    async def cancelled(of):
        waiting = asyncio.ensure_future(of.get_async(timeout=30))
        await asyncio.sleep(0.05)  # the getter waits by now
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def rank_0():
        await cancelled(q)
        await q.put_async("after a getter was cancelled")
        assert await q.get_async() == "after a getter was cancelled"
        await asyncio.gather(*(back.put_async(number) for number in range(20)))
        await back.put(big, async_op=True)
        assert await getters(q, 50) == list(range(50))
        with pytest.raises(standard.Empty):
            await q.get_async(timeout=0.05)
        await back.put_async("close")

    async def rank_1():
        await cancelled(back)
        assert await getters(back, 20) == list(range(20))
        out = torch.empty(200000)
        assert await back.get_async(out=out) is out and torch.equal(out, big)
        works = [q.put(number, async_op=True) for number in range(25)]
        await asyncio.gather(*(q.put_async(number) for number in range(25, 50)), *works)
        assert works[0].exception() is None and works[0].is_completed() and "done" in repr(works[0])
        assert await back.get_async() == "close"
        back.close()
        with pytest.raises(shardwire.ClosedError):
            await back.put_async(1)
        assert [value async for value in back] == []

    asyncio.run(rank_1() if rank else rank_0())
    return True


def test_tasks_of_asyncio_put_and_get():
    assert run_ranks(2, with_asyncio) == [True, True]


def first_tasks(rank):
    """The first puts and gets of tasks, whose links come in the reverse order of the calls."""
    q, back = Queue(group(), 0), Queue(group(), 0)
    if rank == 0:
        got = [q.get(timeout=20) for _ in range(3)]
        for number in range(3):
            back.put(number)
        return got + [q.get(timeout=20)]

    async def body():
        from shardwire.queues import awaiting
        in_thread, waits = awaiting.in_thread, iter((0.3, 0.2, 0.1, 0, 0.2, 0.1, 0))

        async def later(call):
            wait = next(waits)
            result = await in_thread(call)
            await asyncio.sleep(wait)
            return result
        awaiting.in_thread = later
        puts = [asyncio.ensure_future(q.put_async(number)) for number in range(4)]
        await asyncio.sleep(0)
        puts[1].cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        got = await asyncio.gather(*(back.get_async(timeout=20) for _ in range(3)))
        await q.put_async("the end")
        assert not q.hub.turns
        return got
    return asyncio.run(body())


def test_the_first_tasks_put_and_get_in_the_order_of_the_calls():
    assert run_ranks(2, first_tasks) == [[0, 2, 3, "the end"], [0, 1, 2]]


def taken_back(rank):
    """A task takes and puts nothing if cancelled while its entry's bytes arrive, or while its put waits for room."""
    q, full, go = Queue(group(), 0), Queue(group(), 0, capacity=1), Queue(group(), 0)
    big = torch.arange(1 << 20, dtype=torch.float32)
    if rank == 0:
        full.put(0)
        q.put(big)  # rank 1 begins when this entry comes
        go.get(timeout=20)
        assert full.get(timeout=20) == 0
        full.put("next")
        assert full.get() == "next" and full.empty()
        return bool(torch.equal(q.get(timeout=20), big))

    async def body():
        from shardwire.queues import awaiting
        started, in_thread = asyncio.Event(), awaiting.in_thread

        async def noted(call):
            started.set()
            return await in_thread(call)
        q.links(None)
        full.links(None)
        awaiting.in_thread = noted
        getter = asyncio.ensure_future(q.get_async())
        await started.wait()
        getter.cancel()
        putter = asyncio.ensure_future(full.put_async("never"))
        await asyncio.sleep(0.05)  # the putter waits for room by now
        putter.cancel()
        for task in (getter, putter):
            with pytest.raises(asyncio.CancelledError):
                await task
        while any(thread.name == "shardwire-await" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        await go.put_async(None)
    asyncio.run(body())
    return True


def test_a_cancelled_task_takes_and_puts_nothing():
    assert run_ranks(2, taken_back) == [True, True]


# ---- as Python's queue.Queue, and as a context

def as_pythons(rank):
    with Queue(location=0, name="own", group=group(), capacity=0) as q:
        assert q.maxsize == 0 and q.capacity is None and q and len(q) == 0
        q.put_nowait(torch.nn.Parameter(torch.ones(2)))
        q.put_nowait(1)
        assert len(q) == 2
        back = q.get_tensor()
        assert type(back) is torch.Tensor and not back.requires_grad and q.get_nowait() == 1
        assert raised(q.get_nowait)[0] is standard.Empty
    kind, text = raised(q.put, 1)
    assert kind is shardwire.ClosedError
    full = Queue(group(), 0, capacity=1)
    assert full.maxsize == 1
    with full.transaction() as puts:
        puts.put(1)
        assert "1 puts, open" in repr(puts)
    assert raised(full.put_nowait, 1)[0] is standard.Full
    work = full.put(2, async_op=True)
    assert "running" in repr(work) and work.exception() is None
    full.close()
    assert raised(work.wait)[0] is raised(work.wait)[0] is shardwire.ClosedError and "failed: " in repr(work)
    assert type(work.exception()) is shardwire.ClosedError
    try:
        with Queue(group(), 0, name="raises") as left:
            left.hub.stop()
            raise KeyError("of the block")
    except KeyError:
        return True


def test_names_and_ways_of_pythons_queue():
    assert run_ranks(1, as_pythons) == [True]


# ---- beside collectives, and without pickle

def beside_collectives(rank):
    q = Queue(group(), 0)
    stop = threading.Event()
    moved = []

    def traffic():
        while not stop.is_set():
            q.put([rank, torch.ones(3000)])
            q.get(timeout=10)
            moved.append(1)
    thread = threading.Thread(target=traffic)
    thread.start()
    op = shardwire.compile_op(group(), [4 * 3], torch.float32, [{"offset": [4 * rank], "shape": [4]}],
                              [{"offset": [0], "shape": [12]}])
    for turn in range(200):
        out = torch.empty(12)
        op([torch.full((4,), float(rank + turn))], [out]).wait()
        assert out[0] == turn and out[11] == 2 + turn
    stop.set()
    thread.join()
    assert len(moved) > 5
    return True


def test_collectives_of_the_group_are_not_disturbed():
    assert run_ranks(3, beside_collectives) == [True] * 3


class Custom:
    def __init__(self, value):
        self.value = value


def with_pickle(rank):
    plain, trusting = Queue(group(), 0), Queue(group(), 0, allow_pickle=True)
    if rank == 1:
        kind, text = raised(plain.put, Custom(1))
        assert kind is TypeError and "allow_pickle=True" in text
        trusting.put(Custom(torch.ones(5)))
        return True
    return torch.equal(trusting.get().value, torch.ones(5))


def test_pickle_only_where_it_is_asked_for():
    assert run_ranks(2, with_pickle) == [True, True]


def brought_trust(rank):
    """Rank 1 puts its own queues, and puts objects that need pickle into these queues; rank 0 reads."""
    plain, trusting = Queue(group(), 0, "plain"), Queue(group(), 0, "trusting", allow_pickle=True)
    if rank == 1:
        reply = Queue(group(), 1, "reply", allow_pickle=True)
        reply.put(Custom(1))
        reply.put(Custom(2))
        plain.put({"reply": reply})
        trusting.put({"reply": reply})
        return Queue(group(), 0, "over").get(timeout=20)
    refused, taken = plain.get()["reply"], trusting.get()["reply"]
    assert not refused.allow_pickle and taken.allow_pickle and q_from(pickle.dumps(taken)).allow_pickle
    kind, text = raised(refused.get, timeout=20)
    assert kind is ValueError and "written by pickle" in text, text
    assert taken.get(timeout=20).value == 1, "what was refused stays in the queue"
    Queue(group(), 0, "over").put(True)
    return True


def test_a_queue_that_was_read_trusts_whom_its_reader_trusts():
    assert run_ranks(2, brought_trust) == [True, True]


def unreadable(rank):
    """Rank 0 holds the queue, and rank 1 does not; both find entries that they cannot read."""
    plain, trusting = Queue(group(), 0, "q"), Queue(group(), 0, "q", allow_pickle=True)
    turns = Queue(group(), [0, 1])
    if rank == 0:
        trusting.put([Custom(1), torch.ones(30000)])
        trusting.put(Custom(2))
    turns.put(rank)
    turns.get(timeout=20), turns.get(timeout=20)
    for get in plain.get, lambda: asyncio.run(plain.get_async()), lambda: next(plain.stream()):
        for _ in range(2):
            kind, text = raised(get)
            assert kind is ValueError and "written by pickle" in text, text
    turns.put(rank)
    turns.get(timeout=20), turns.get(timeout=20)
    if rank == 0:
        return None
    return plain.qsize(), trusting.get(timeout=20)[0].value, raised(plain.get)[0], trusting.get(timeout=20).value


def test_what_a_getter_cannot_read_stays_in_the_queue():
    assert run_ranks(2, unreadable)[1] == (2, 1, ValueError, 2)


def reading_makes_nothing(rank):
    q = Queue(group(), 0, "x", capacity=7)
    # the name is "w" now
    data = bytes(shardwire.serialize([q]).numpy()).replace(b"\x01\x00\x00\x00x", b"\x01\x00\x00\x00w")
    threads = threading.active_count()
    (read,) = shardwire.deserialize(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    assert "not used here yet" in repr(read) and list(q.hub.held) == ["name x"] and threading.active_count() == threads
    assert shardwire.deserialize(shardwire.serialize(read)).name == "w"  # the unused queue can be sent on
    mine = Queue(group(), 0, "w")
    kind, text = raised(read.put, 1)
    assert kind is ValueError and "[[0], None, False]" in text and "[[0], 7, False]" in text, text
    (same,) = shardwire.deserialize(shardwire.serialize([mine]))
    same.put("by the handle")
    assert repr(same) == repr(mine) and mine.get() == "by the handle"
    return True


def test_reading_a_queue_makes_no_queue():
    assert run_ranks(1, reading_makes_nothing) == [True]


def test_wrong_arguments():
    def body(rank):
        assert raised(Queue, group(), 5) == (ValueError,
                                             "location is [5]; give different ranks of 0 to 0, at least one")
        assert raised(Queue, group(), [0, 0])[0] is ValueError and raised(Queue, group(), [])[0] is ValueError
        assert raised(Queue, group(), "0")[0] is TypeError and raised(Queue, group(), True)[0] is TypeError
        assert raised(Queue, group(), 0, 3)[0] is TypeError and raised(Queue, group(), 0, capacity=-1)[0] is ValueError
        assert raised(Queue, group())[0] is TypeError
        q = Queue(group(), 0)
        assert raised(q.put_tensor, [1])[0] is TypeError and raised(q.put, torch.ones(2).to_sparse())[0] is TypeError
        assert raised(q.get, timeout=-1)[0] is ValueError
        q.put(1, async_op=True).wait(float("inf"))
        assert q.get(timeout=float("inf")) == 1
        return True
    assert run_ranks(1, body) == [True]


def freed(rank):
    import gc
    import weakref
    gc.disable()  # an object that only the search for circles would free stays
    q = Queue(group(), 0)
    if rank == 1:
        for number in range(6):
            tensor = torch.full((1 << 18,), float(number))
            seen = weakref.ref(tensor)
            work = q.put(tensor, async_op=True)
            work.wait()
            del tensor
            assert seen() is None, "a put that is over keeps its tensor"
        return None
    used = []
    for number in range(6):
        q.put(torch.ones(1 << 18))
        for _ in range(2):
            q.get(timeout=20)
        used.append(shardwire._C.heap_used_bytes())
    return used


def test_entries_are_freed_when_they_were_taken():
    used = run_ranks(2, freed)[0]
    assert used[-1] <= 3 << 20, used  # one entry may have come already


def test_a_putter_is_notified_before_a_getter():
    """A getter may end its process after the last entry; the putter's answer must be on its way by then."""
    holder = shardwire._C.QueueHolder("group")
    held = holder.hold("key", "[]", 0, False)
    get, put = (shardwire._C.QueueLocalCall(holder, held) for _ in range(2))
    get.when_over(1)
    get.when_over(3)  # another task awaits the same get
    put.when_over(2)
    get.get(True, True)
    put.put([shardwire._C.QueueEntry(b"last", [])], True)
    assert [holder.next_notice() for _ in range(3)] == [2, 1, 3] and get.result()[2] == b"last"
