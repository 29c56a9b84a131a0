"""The work of one rank in a case of run_network.py. Every value is known, so each step is checked."""

import ctypes
import faulthandler
import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import shardwire
from shardwire import Layout, Replicate, Shard

CLONE_NEWNET = 0x40000000
SIZE, PER_HOST = 4, 2
ADDRESSES = ("10.84.0.1", "10.84.0.2")


class WrongBytes(Exception):
    """An operation succeeded, and its result is wrong."""


def enter(namespace):
    """Moves this process, which has one thread, to a network namespace."""
    with open(f"/run/netns/{namespace}", "rb") as opened:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(opened.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"entering the network namespace {namespace}")


def check(what, got, wanted):
    if not torch.equal(got, wanted):
        raise WrongBytes(f"{what}: {int((got != wanted).sum())} of {got.numel()} values are wrong")


def one_round(rank, number, op, queue, check):
    for elems in (1, 1000, 1 << 17):
        base = torch.arange(elems, dtype=torch.float32) % 1000 + number
        values = base + rank
        dist.all_reduce(values)
        check("all_reduce", values, base * SIZE + sum(range(SIZE)))
        root = number % SIZE
        sent = base.clone() if rank == root else torch.empty(elems)
        dist.broadcast(sent, src=root)
        check("broadcast", sent, base)
    mine = torch.arange(SIZE * 5000, dtype=torch.int64) // 5000 + 10 * rank + 100 * number
    got = torch.empty_like(mine)
    dist.all_to_all_single(got, mine)
    check("all_to_all", got, torch.arange(SIZE * 5000) // 5000 * 10 + rank + 100 * number)
    n = 512
    rows = n // SIZE
    whole = torch.arange(n * n, dtype=torch.float32).reshape(n, n) + number
    out = torch.empty(n, rows)
    op([whole[rank * rows:(rank + 1) * rows].clone()], [out]).wait()
    check("compile_op", out, whole[:, rank * rows:(rank + 1) * rows])
    # every rank puts one entry at rank 0 and takes one; together the ranks take all entries
    queue.put(torch.full((3000,), float(rank + number)))
    taken = queue.get_tensor()
    total = torch.full((1,), float(taken.flatten()[0]) if taken.numel() > 0 else -1.0)
    check("queue", taken, total.expand(3000))
    dist.all_reduce(total)
    check("queue", total, torch.tensor([float(sum(range(SIZE)) + SIZE * number)]))


def collectives(rank, pipe, port, options):
    """Rounds of operations until the runner stops rank 0. With options["rounds"] each rank counts this many rounds and
    its wrong results instead, so that received bytes decide nothing here."""
    timeout = timedelta(seconds=options["timeout"])
    store = dist.TCPStore(ADDRESSES[0], port, SIZE, rank == 0, timeout=timeout, wait_for_workers=False)
    pipe.send("store")
    pipe.recv()
    dist.init_process_group("shardwire", store=store, rank=rank, world_size=SIZE, timeout=timeout)
    for peer, line in zip(range(SIZE), shardwire.describe_transports().splitlines()):
        wanted = "shm" if peer // PER_HOST == rank // PER_HOST else "tcp"
        assert peer == rank or line.startswith(f"rank {peer}: {wanted}"), line
    n = 512
    rows = n // SIZE
    op = shardwire.compile_op(None, (n, n), torch.float32, [{"offset": (rank * rows, 0), "shape": (rows, n)}],
                              [{"offset": (0, rank * rows), "shape": (n, rows)}])
    queue = shardwire.Queue(location=0, name="work", capacity=64)
    number, longest, stop, wrong = 0, 0.0, torch.zeros(1), []

    def count(what, got, wanted):
        if got.shape != wanted.shape or got.dtype != wanted.dtype or not torch.equal(got, wanted):
            wrong.append(what)

    while not stop.item() and (options["rounds"] == 0 or number < options["rounds"]):
        begun = time.monotonic()
        one_round(rank, number, op, queue, count if options["rounds"] > 0 else check)
        number += 1
        longest = max(longest, time.monotonic() - begun if number > 1 else 0)  # the first round makes links
        if number == 1:
            pipe.send("working")
        if rank == 0 and pipe.poll():
            pipe.recv()
            stop.fill_(1)
        if options["rounds"] == 0:
            dist.broadcast(stop, src=0)
    dist.barrier()
    return f"{number} rounds, the longest {1000 * longest:.0f} ms" + (f", {len(wrong)} wrong results" if wrong else "")


def weights(rank, pipe, port, options):
    """Ranks 0 and 1 publish, ranks 2 and 3, a job of its own on the other host, fetch."""
    host, mine = rank // PER_HOST, rank % PER_HOST
    timeout = timedelta(seconds=options["timeout"])
    store = dist.TCPStore(ADDRESSES[host], port, PER_HOST, mine == 0, timeout=timeout, wait_for_workers=False)
    pipe.send("store")
    pipe.recv()
    dist.init_process_group("shardwire", store=store, rank=mine, world_size=PER_HOST, timeout=timeout)
    meeting = f"tcp://{ADDRESSES[0]}:{port + 1}"
    if host == 0:
        state = {"w": (Layout(torch.tensor([0, 1]), [Shard(0)], [512, 512], torch.float32), torch.zeros(256, 512))}
        published = shardwire.publish(meeting, "policy", state)
        pipe.send("working")
        version, stop = 0, torch.zeros(1)
        while not stop.item():
            version += 1
            state["w"][1].fill_(version)
            published.commit(version)
            time.sleep(0.05)
            if mine == 0 and pipe.poll():
                pipe.recv()
                stop.fill_(1)
            # In step, as the ranks of a training: the ranks need a common version (docs/publish.md). A broadcast would
            # let rank 0 go ahead.
            dist.all_reduce(stop)
        published.close()
        return version
    subscribed = shardwire.subscribe(meeting, "policy", {
        "w": Layout(torch.tensor([0, 1]), [Replicate()], [512, 512], torch.float32)}, timeout=timeout)
    fetches, stop = 0, torch.zeros(1)
    while not stop.item():
        version = subscribed.fetch(newer=True, timeout=timeout)
        check("fetch", subscribed.target["w"], torch.full((512, 512), float(version)))
        fetches += 1
        if fetches == 1:
            pipe.send("working")
        if mine == 0 and pipe.poll():
            pipe.recv()
            stop.fill_(1)
        dist.broadcast(stop, src=0)
    subscribed.close()
    return fetches


def leaving(rank, pipe, port, options):
    """Rank 0 ends its group right after a broadcast, while the last bytes are on the way."""
    timeout = timedelta(seconds=options["timeout"])
    store = dist.TCPStore(ADDRESSES[0], port, SIZE, rank == 0, timeout=timeout, wait_for_workers=False)
    KEPT.append(store)
    pipe.send("store")
    pipe.recv()
    dist.init_process_group("shardwire", store=store, rank=rank, world_size=SIZE, timeout=timeout)
    pipe.send("working")
    base = torch.arange(225000, dtype=torch.float32)
    values = base.clone() if rank == 0 else torch.empty(225000)
    dist.broadcast(values, src=0)
    check("broadcast", values, base)
    dist.destroy_process_group()
    return 1


def idle(rank, pipe, port, options):
    """Ranks 0 and 1 wait for messages of ranks 2 and 3, which send none: no bytes are under way."""
    timeout = timedelta(seconds=options["timeout"])
    store = dist.TCPStore(ADDRESSES[0], port, SIZE, rank == 0, timeout=timeout, wait_for_workers=False)
    pipe.send("store")
    pipe.recv()
    dist.init_process_group("shardwire", store=store, rank=rank, world_size=SIZE, timeout=timeout)
    values = torch.full((1000,), float(rank))
    dist.all_reduce(values)
    check("all_reduce", values, torch.full((1000,), float(sum(range(SIZE)))))
    awaited = dist.irecv(values, src=rank + PER_HOST) if rank < PER_HOST else None
    time.sleep(0.5)  # the last acknowledgements of the all_reduce arrive meanwhile
    pipe.send("working")
    if awaited is not None:
        awaited.wait()
    pipe.recv()
    return 1


JOBS = {"collectives": collectives, "weights": weights, "leaving": leaving, "idle": idle}
KEPT = []  # stores: rank 0 serves the others to the end


def main(rank, pipe, namespace, port, options):
    """The process of one rank, forked: sends ("right", rounds) or (the error's type, its text), each with the time."""
    os.environ.update({"SHARDWIRE_JOB_TOKEN": "of the network's tests", "OMP_NUM_THREADS": "1"},
                      **options.get("environment", {}))
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    try:
        enter(namespace)
        done = JOBS[options["job"]](rank, pipe, port, options)
        outcome = ("right", str(done))
    except Exception as error:  # noqa: BLE001: the runner judges
        outcome = (type(error).__name__, str(error))
    pipe.send((*outcome, time.monotonic()))
    # The store and its server live on until all ranks have an outcome, as in a job where a trainer goes on.
    # After an error the word "stop" may still lie in the pipe.
    while pipe.recv() != "end":
        pass
    ending = threading.Timer(20, os._exit, (9,))  # an end that hangs is a failure, too
    ending.start()
    if dist.is_initialized():
        dist.destroy_process_group()
    ending.cancel()
    pipe.send("ended")
    os._exit(0)
