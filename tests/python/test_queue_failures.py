"""shardwire.Queue when ranks die, stop, are interrupted or fork: an error with the rank's name or the timeout, and no
entry is lost or half there."""

from __future__ import annotations

import asyncio
import os
import pickle
import queue as standard
import random
import re
import resource
import signal
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fork_ranks import meet
from ranks import await_file
from run_program import run_program

import shardwire
from shardwire import Queue
from shardwire.groups.mpi import tcp_store
from shardwire.launch import free_port
from shardwire.queues import hub, wire

pytestmark = pytest.mark.any_torch

SEED = int(os.environ.get("SHARDWIRE_TEST_SEED", random.SystemRandom().randrange(1 << 30)))


def raised(call, *args, **options):
    try:
        call(*args, **options)
    except BaseException as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


def joined(folder, rank, size, timeout=20):
    return shardwire.create_process_group(dist.FileStore(str(folder / "store"), size), rank, size, timeout=timeout,
                                          name="job")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


# ---- a dead holder

def dead_holder(rank, size, folder):
    group = joined(folder, rank, size)
    full, empty = Queue(group, 0, capacity=1), Queue(group, 0, "empty")
    full.put(rank) if rank == 0 else full.wait()
    assert rank != 2 or not empty.wait(0.01)
    meet("ready")
    if rank == 0:
        time.sleep(0.3)  # by then the other ranks are mostly in their calls
        die()
    start = time.monotonic()
    if rank == 1:
        results = [raised(full.put, torch.ones(100000)), raised(full.get), raised(empty.get), raised(full.qsize),
                   raised(full.put, 1, block=False)]
    else:
        results = [raised(empty.get), raised(Queue.wait_any, [full, empty]), raised(next, empty.stream()),
                   raised(full.close)]
    assert time.monotonic() - start < 10, "it took a timeout to see a death"
    meet("over", size - 1)
    return results


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_dead_holder_is_named(run_ranks, tmp_path, monkeypatch, way):
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    results = run_ranks(3, dead_holder, tmp_path, init=False, may_die=(0,))
    for kind, text in results[1] + results[2]:
        assert (kind is shardwire.PeerFailedError and "rank 0 of group 'job', which holds the queue, died" in text
                and "(pid" in text), (kind, text)


def queue_of_the_living(rank, size, folder):
    """Rank 1 uses the queues of rank 0, which dies, and of rank 2, and makes no other call."""
    group = joined(folder, rank, size)
    of_dead, of_living = Queue(group, 0, "dead"), Queue(group, 2, "living")
    if rank == 1:
        assert of_dead.qsize() == 0
        of_living.put("first")
    meet("ready")
    if rank == 0:
        die()
    if rank == 1:
        kind, _ = raised(of_dead.get)
        time.sleep(1.5)  # three times SHARDWIRE_GRACE_S
        of_living.put("second")
        meet("over", size - 1)
        return kind
    got = [of_living.get(), of_living.get(timeout=15)]
    meet("over", size - 1)
    return got


def test_a_queue_of_living_ranks_outlives_a_death(run_ranks, tmp_path):
    _, kind, got = run_ranks(3, queue_of_the_living, tmp_path, init=False, may_die=(0,))
    assert kind is shardwire.PeerFailedError and got == ["first", "second"]


# ---- dead putters

def dead_putter(rank, size, folder):
    group = joined(folder, rank, size)
    strict, lasting = Queue(group, 0), Queue(group, 0, survive=True)
    if rank == 1:
        for q in (strict, lasting):
            q.put("whole")
            puts = q.transaction().__enter__()
            puts.put(torch.ones(100000))
        meet("put")
        time.sleep(0.3)  # by then the other ranks are mostly in their calls
        die()
    meet("put")
    if rank == 2:
        assert strict.get() == "whole"
    meet("empty", size - 1)
    start = time.monotonic()
    failed = raised(strict.get)
    waited = raised(strict.wait)
    assert time.monotonic() - start < 10
    meet("failed", size - 1)
    if rank == 2:
        strict.put("of a survivor")
        assert strict.get() == "of a survivor"
        lasting.put("more")
    meet("seen", size - 1)
    got = [lasting.get(timeout=10), lasting.get(timeout=10), raised(lasting.get, timeout=0.3)[0]] if rank == 0 else None
    meet("over", size - 1)
    return failed, waited, got


def close_without_a_location(rank, size, folder):
    group = joined(folder, rank, size)
    q = Queue(group, [0, 2])
    if rank == 1:
        q.put("last")
    meet("ready")
    if rank == 0:
        die()
    if rank == 1:
        time.sleep(0.3)  # by then the death is known
        return raised(q.close)
    return list(q)


def test_a_queue_is_closed_at_its_living_locations(run_ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWIRE_GRACE_S", "-1")
    _, (kind, text), got = run_ranks(3, close_without_a_location, tmp_path, init=False, may_die={0}, timeout=40)
    assert kind is shardwire.PeerFailedError and "rank 0" in text and got == ["last"]


def test_getters_are_notified_that_a_putter_died(run_ranks, tmp_path):
    results = run_ranks(3, dead_putter, tmp_path, init=False, may_die=(1,))
    for failed, waited, _ in (results[0], results[2]):
        for kind, text in (failed, waited):
            assert (kind is shardwire.PeerFailedError and "rank 1 of group 'job', which had put into it, died" in text
                    and "(pid" in text), (kind, text)
    assert results[0][2] == ["whole", "more", standard.Empty]


def recorded_putter(rank, size, folder):
    group = joined(folder, rank, size)
    q = Queue(group, 2)
    if rank == 1:
        q.put(1)
        die()
    if rank == 2:
        q.get()
        await_file(folder / "trace_2")
    meet("over", size - 1)
    # A rank's file is written again when another of its groups fails
    return rank == 2 and list(pickle.loads((folder / "trace_2").read_bytes())["pg_config"].values())


def test_the_flight_recorder_writes_the_file_of_the_jobs_rank(run_ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    groups = run_ranks(3, recorded_putter, tmp_path, init=False, may_die=(1,))[2]
    assert ("job: queues of rank 2, used by rank 1", "[2, 1]") in [(each["name"], each["ranks"]) for each in groups]
    others = tmp_path / "trace_0"
    assert not others.exists() or b"queues of rank 2" not in others.read_bytes()


def leaving_putter(rank, size, folder):
    group = joined(folder, rank, size)
    q = Queue(group, 0)
    if rank == 1:
        q.put(1)
        q.hub.stop()  # as at the end of a program
        meet("over")
        return None
    result = [q.get(timeout=10), raised(q.get, timeout=0.5)[0]]
    meet("over")
    return result


def test_a_putter_that_ends_orderly_is_no_failure(run_ranks, tmp_path):
    assert run_ranks(2, leaving_putter, tmp_path, init=False)[0] == [1, standard.Empty]


# ---- kills at random moments

def log(folder, rank, what, tag):
    with open(folder / f"{what}.log", "ab", buffering=0) as file:
        file.write(f"{rank}:{tag[0]}:{tag[1]}\n".encode())


def killed_at_random(rank, size, folder, seed):
    """Rank 0 holds the queue; ranks 1, 2, 3 put, ranks 4, 5, 6 get. Ranks 1 and 4 live, the other users are killed."""
    group = joined(folder, rank, size, timeout=15)
    q = Queue(group, 0, capacity=6, survive=True)
    rng = random.Random(seed * 10 + rank)
    if rank in (2, 3, 5, 6):
        threading.Timer(rng.uniform(0.05, 0.8), die).start()
    if rank == 0:
        meet("put all", 2)
        meet("got all", 2)
        return q.qsize()
    if rank <= 3:
        number = 0
        while rank != 1 or number < 150:
            tag = (rank, number)
            log(folder, rank, "begun", tag)
            q.put([tag, torch.full((rng.choice([1, 2000, 60000, 300000]),), float(rank * 1000 + number))], timeout=15)
            log(folder, rank, "put", tag)
            number += 1
        (folder / "put all").touch()
        meet("put all", 2)
        return None
    while True:
        put_all = (folder / "put all").exists()
        try:
            tag, tensor = q.get(timeout=2)
        except standard.Empty:
            if rank == 4 and put_all:
                break
            continue
        assert (tensor == float(tag[0] * 1000 + tag[1])).all(), f"a mixture in {tag}"
        log(folder, rank, "got", tag)
    meet("got all", 2)
    return None


@pytest.mark.parametrize("turn", range(int(os.environ.get("SHARDWIRE_KILL_TURNS", "4"))))
def test_kills_of_putters_and_getters_lose_nothing_and_mix_nothing(run_ranks, tmp_path, monkeypatch, turn):
    if turn % 4 == 3:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "tcp")
    seed = SEED + turn
    print("seed", seed)
    results = run_ranks(7, killed_at_random, tmp_path, seed, init=False, may_die=(2, 3, 5, 6), timeout=60)
    assert results[0] == 0
    lines = {what: [tuple(map(int, line.split(":"))) for line in (tmp_path / f"{what}.log").read_text().splitlines()]
             for what in ("begun", "put", "got")}
    begun, put = ({tag[1:] for tag in lines[what]} for what in ("begun", "put"))
    got = Counter(tag[1:] for tag in lines["got"])
    assert max(got.values()) == 1, f"got twice: {[tag for tag, count in got.items() if count > 1]}"
    assert set(got) <= begun
    lost = put - set(got)
    assert len(lost) <= 2, f"{lost}: a killed getter may have taken one entry and died before it wrote that down"
    for getter in range(4, 7):
        for putter in range(1, 4):
            order = [number for rank, source, number in lines["got"] if (rank, source) == (getter, putter)]
            # The entry of a killed getter arrives later than the entries of other getters.
            assert sum(one > other for one, other in zip(order, order[1:])) <= 2, order


# ---- a stopped holder

def stop(holder):
    os.kill(holder, signal.SIGSTOP)
    while any(text.rpartition(")")[2].split()[0] != "T"
              for text in (path.read_text() for path in Path(f"/proc/{holder}/task").glob("*/stat"))):
        time.sleep(0.001)  # a thread stops when the kernel schedules the thread again


def stopped_holder(rank, size, folder):
    group = joined(folder, rank, size, timeout=3)
    q = Queue(group, 0)
    if rank == 0:
        (folder / "pid").write_text(str(os.getpid()))
        q.put("there")
        meet("ready")
        meet("over")
        return q.qsize()
    q.wait()
    meet("ready")
    holder = int((folder / "pid").read_text())
    time.sleep(0.2)  # a holder at rest
    stop(holder)
    try:
        start = time.monotonic()
        in_time = raised(q.get, timeout=0.5)
        after = time.monotonic() - start
        silent = raised(q.get, timeout=30)
        silence = time.monotonic() - start - after
        getting = raised(q.get)
        begin = time.monotonic()
        putting = raised(q.put, torch.ones(100000))
        put_time = time.monotonic() - begin
    finally:
        os.kill(holder, signal.SIGCONT)
    assert q.get(timeout=20) == "there", "an entry was lost by getters that gave up"
    meet("over")
    return in_time, after, silent, silence, getting, putting, put_time


def test_a_stopped_holder_is_a_timeout_and_loses_nothing(run_ranks, tmp_path):
    left, (in_time, after, silent, silence, getting, putting, put_time) = run_ranks(
        2, stopped_holder, tmp_path, init=False, timeout=60)
    assert in_time[0] is standard.Empty and after < 2
    for error in silent, getting, putting:
        assert error[0] is shardwire.TimeoutError, error
        assert "rank 0 of group 'job', which holds the queue" in error[1], error
        assert re.search(r"has answered nothing for (3|2\.9)", error[1]), error
    assert silence < 8
    assert 2.5 < put_time < 5.5, "a put waits for a silent holder once"
    assert left <= 1


def getter_without_memory(rank, size, folder):
    group = joined(folder, rank, size)
    q = Queue(group, 0)
    if rank == 0:
        q.put(torch.ones(25_000_000))
        q.put("second")
        meet("ready")
        meet("failed")
        got = [q.get(timeout=10), q.get(timeout=10)]
        q.put("third")
        meet("over")
        return got[0].numel(), got[1], q.qsize()
    assert q.qsize() <= 2
    meet("ready")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (60 << 20), limits[1]))
    errors = [raised(q.get), raised(lambda: asyncio.run(q.get_async()))]
    left = q.qsize()  # there is still no memory for the bytes that were refused
    resource.setrlimit(resource.RLIMIT_AS, limits)
    meet("failed")
    assert q.get(timeout=20) == "third"
    meet("over")
    return errors, left


def test_an_entry_for_which_a_getter_has_no_memory_goes_back(run_ranks, tmp_path):
    there, (errors, left) = run_ranks(2, getter_without_memory, tmp_path, init=False)
    assert there == (25_000_000, "second", 0) and left == 2
    for kind, text in errors:
        assert kind is RuntimeError and "memory" in text, text


def interrupted_transaction(rank, size, folder):
    group = joined(folder, rank, size, timeout=12)
    q = Queue(group, 0)
    if rank == 0:
        (folder / "pid").write_text(str(os.getpid()))
        meet("ready")
        meet("over")
        return q.qsize()
    q.put("there")
    meet("ready")
    holder = int((folder / "pid").read_text())
    stop(holder)
    start = time.monotonic()
    try:
        with q.transaction() as puts:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            puts.put(torch.ones(3))
    except KeyboardInterrupt:
        pass
    took = time.monotonic() - start
    os.kill(holder, signal.SIGCONT)
    q.put("later")
    meet("over")
    return took


def test_ctrl_c_ends_a_transaction_though_the_holder_is_stopped(run_ranks, tmp_path):
    left, took = run_ranks(2, interrupted_transaction, tmp_path, init=False)
    assert took < 3 and left == 2


def awaited_put(rank, size, folder):
    group = joined(folder, rank, size, timeout=3)
    q = Queue(group, 0)
    if rank == 0:
        (folder / "pid").write_text(str(os.getpid()))
        q.put("there")
        meet("ready")
        meet("over")
        return None
    q.wait()
    meet("ready")
    holder = int((folder / "pid").read_text())

    async def puts():
        gaps = [time.monotonic()]

        async def tick():
            while True:
                gaps.append(time.monotonic())
                await asyncio.sleep(0.05)
        ticking = asyncio.ensure_future(tick())
        try:
            await q.put_async(torch.zeros(4))
        except shardwire.TimeoutError as error:
            text = str(error)
        await asyncio.sleep(0.2)
        ticking.cancel()
        return text, max(after - before for before, after in zip(gaps, gaps[1:]))

    stop(holder)
    try:
        return asyncio.run(puts())
    finally:
        os.kill(holder, signal.SIGCONT)
        meet("over")


def test_a_put_that_a_stopped_holder_fails_does_not_hold_the_event_loop(run_ranks, tmp_path):
    text, gap = run_ranks(2, awaited_put, tmp_path, init=False, timeout=60)[1]
    assert "has answered nothing" in text
    assert gap < 2, f"the event loop stood still for {gap:.1f} s"


DAEMONS = """
import threading, torch.distributed as dist, shardwire
dist.init_process_group("shardwire")
q = shardwire.Queue(None, location=0)
for _ in range(3):
    threading.Thread(target=q.get, daemon=True).start()
time.sleep(0.3)
dist.barrier()
"""


def test_daemon_threads_in_get_may_be_there_at_the_end_of_the_program(launcher, tmp_path):
    script = tmp_path / "daemons.py"
    script.write_text("import time" + DAEMONS)
    for _ in range(3):
        done = run_program([sys.executable, launcher, "-n", "3", str(script)], 60)
        assert done.returncode == 0, done.stderr


def never_made(rank, size, folder):
    group = joined(folder, rank, size, timeout=15)
    result = None
    if rank == 1:
        result = (raised(Queue(group, 0, "lonely").get, timeout=0.5),
                  raised(Queue(group, 0, "lonely").put, 1, timeout=0.5))
        (folder / "other").touch()
        Queue(group, 1, "mine").put(1)
        await_file(folder / "made")
        result += (raised(Queue(group, 0, "lonely").get, timeout=0.5),)
    else:
        await_file(folder / "other")
        Queue(group, 0, "another")
        (folder / "made").touch()
    meet("over")
    return result


def test_a_rank_that_made_no_queue_is_named(run_ranks, tmp_path):
    for kind, text in run_ranks(2, never_made, tmp_path, init=False)[1]:
        assert kind is shardwire.TimeoutError and "rank 0 of group 'job'" in text and ("has not made" in text), (
            kind, text)
        assert "or is late" in text or "or is stopped" in text, text  # which of them, nothing shows


# ---- death during the join

def lost_request(rank, size, folder):
    """Two users took numbers; one was killed before its connection request, the other is slow."""
    group = joined(folder, rank, size, timeout=40)
    q = Queue(group, 0)
    got = None
    if rank == 1:
        store = q.hub.store
        lost, slow = (int(store.add("0/requests", 1)) for _ in range(2))
        assert (lost, slow) == (1, 2)
        q.put("taken", timeout=30)
        store.set(f"0/request/{slow}", "1")
        link = q.hub._make_link(0, slow, 1, wire.USER, 30)
        meet("over")
        del link
    else:
        got = q.get(timeout=35)
        meet("over")
    return got


def test_a_link_request_that_was_begun_and_not_done_holds_up_nobody(run_ranks, tmp_path):
    assert run_ranks(2, lost_request, tmp_path, init=False)[0] == "taken"


def interrupted_naming(rank, size):
    store = tcp_store("127.0.0.1", free_port(), None, True, timedelta(seconds=20))
    group = shardwire.create_process_group(store, rank, size, timeout=5)
    uuid, hub.uuid = hub.uuid, SimpleNamespace(uuid4=lambda: signal.raise_signal(signal.SIGINT))
    kind, _ = raised(Queue, group, 0)
    hub.uuid = uuid
    q = Queue(group, 0)
    q.put("named")
    return kind, q.get(timeout=10)


def test_who_is_interrupted_while_it_names_the_queues_leaves_them_to_the_next(run_ranks):
    assert run_ranks(1, interrupted_naming, init=False) == [(KeyboardInterrupt, "named")]


# ---- Ctrl-C and fork

def interrupted(rank, size, folder):
    group = joined(folder, rank, size)
    here, there = Queue(group, rank, f"of {rank}"), Queue(group, 1 - rank, f"of {1 - rank}")
    full = Queue(group, 0, "full", capacity=1)
    if rank == 1:
        meet("ready")
        meet("over")
        return None
    full.put(0)
    meet("ready")
    waited = []

    def interrupted_soon(call):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        call()

    for call in (here.get, there.get, lambda: full.put(1), lambda: Queue.wait_any([here, there]),
                 lambda: next(there.stream())):
        start = time.monotonic()
        kind, _ = raised(interrupted_soon, call)
        assert kind is KeyboardInterrupt, kind
        waited.append(time.monotonic() - start)
    here.put("a")
    there.put("b")
    assert (here.get(timeout=5) == "a" and there.get(timeout=5) == "b" and full.get() == 0
            and full.qsize() == 0), "an interrupted call took or left something"
    meet("over")
    return max(waited)


def test_control_c_ends_the_wait_and_takes_nothing(run_ranks, tmp_path):
    assert run_ranks(2, interrupted, tmp_path, init=False)[0] < 1.5


def forked(rank, size, folder):
    group = joined(folder, rank, size)
    q = Queue(group, 0)
    q.put(rank)
    result = None
    if rank == 0:
        reader, writer = os.pipe()
        if os.fork() == 0:
            kind, text = raised(q.put, 1)
            os.write(writer, f"{kind.__name__}: {text}".encode())
            os._exit(0)
        result = os.read(reader, 1000).decode()
        os.wait()
        assert sorted([q.get(timeout=10), q.get(timeout=10)]) == [0, 1]
    meet("over")
    return result


def test_a_forked_child_gets_an_error(run_ranks, tmp_path):
    text = run_ranks(2, forked, tmp_path, init=False)[0]
    assert text.startswith("ShardwireError: this process was forked from rank 0 of group 'job'"), text


def group_destroyed(rank, size):
    q, back = Queue(None, 0, "outlives"), Queue(None, 1, "back")
    q.put(rank)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 1:
        return back.get(timeout=10)
    back.put(sorted([q.get(timeout=10), q.get(timeout=10)]))
    return None


@pytest.mark.parametrize("how", ["revoke", "stop"])
def test_a_link_that_is_made_meanwhile_does_not_break_the_end(run_ranks, how):
    def ends(rank, size):
        made = hub.Hub(dist.group.WORLD, shardwire.resolve_backend(dist.group.WORLD))

        def end():
            ended.append(len(made._users))
            made._users[len(ended)] = link  # as another thread does in link_to()
        ended, link = [], SimpleNamespace(revoke=end, leave=end, backend=SimpleNamespace(shutdown=lambda: None))
        made._users[0] = link
        made.revoke("a notice") if how == "revoke" else made.stop()
        return ended
    assert run_ranks(1, ends) == [[1]]


def test_it_outlives_destroy_process_group(run_ranks):
    assert run_ranks(2, group_destroyed)[1] == [0, 1]
