"""Times of small operations, and delays of errors after a death and a timeout, beside programs that only compute.
Backends take turns.

    ./run bench beside                           # 2, 3 and 6 ranks beside 0, 8 and 12 busy loops, shardwire and gloo
    ./run bench beside --ranks 6 --loops 12 --turns 5
    ./run bench beside --ranks 6 --loops 12 --turns 5 --only "all_reduce 4 B"     # without deaths and timeouts

A busy loop is a process that does nothing else. Each trial forks its ranks and runs the operations one after the other.
Then the trial kills a rank while the other ranks sum, or leaves the other ranks waiting until their timeout.
Milliseconds on rank 0: median, mean and 99th percentile of each operation, medians of the turns; the longest of the
survivors' times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import torch
import torch.distributed as dist

import record
import shardwire
from campaigns.busy import busy_loops
from campaigns.trial import READY, Rank, Trial, print_table

START_SECONDS = 180.0
NEVER = 60.0  # a survivor without an error after this time
VICTIM = 1
OPERATIONS = ("all_reduce 4 B", "all_reduce 256 KiB", "barrier", "monitored_barrier", "all_to_all 8 B",
              "4 async all_reduce 16 B", "async all_reduce, 0.2 ms")


def operations() -> dict[str, Callable[[], object]]:
    """The operations with a median and a mean. The last operation computes for 0.2 ms between the call and the wait."""
    one, four, many = torch.ones(1), torch.ones(4), torch.ones(1 << 16)
    counts = torch.ones(dist.get_world_size(), dtype=torch.int64)
    received = torch.empty_like(counts)

    def several() -> None:
        for work in [dist.all_reduce(four, async_op=True) for _ in range(4)]:
            work.wait()

    def computing() -> None:
        work = dist.all_reduce(four, async_op=True)
        until = time.perf_counter() + 2e-4
        while time.perf_counter() < until:
            pass
        work.wait()

    return dict(zip(OPERATIONS, (
        lambda: dist.all_reduce(one), lambda: dist.all_reduce(many), dist.barrier, dist.monitored_barrier,
        lambda: dist.all_to_all_single(received, counts), several, computing)))


def timed(call: Callable[[], object], iterations: int) -> tuple[float, float, float]:
    dist.barrier()
    times = []
    for _ in range(iterations):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    settled = sorted(times[iterations // 10 :])
    return statistics.median(settled), statistics.fmean(settled), settled[len(settled) * 99 // 100]


def live(me: Rank, backend: str, iterations: int, only: str, timeout: float) -> None:
    """`timeout`: of the group, where a rank stays away to the end; 0: the rank is killed. `only`: the one operation to
    call, after which all ranks end; empty: all operations.
    """
    torch.set_num_threads(1)
    if backend == "shardwire":
        shardwire.stand_in_for("gloo")  # monitored_barrier is refused under another name
    dist.init_process_group("gloo", init_method=f"file://{me.folder}/store", rank=me.rank, world_size=me.size,
                            timeout=timedelta(seconds=timeout or 300))
    calls = {only: operations()[only]} if only else operations()
    report: dict[str, Any] = {name: timed(call, iterations) for name, call in calls.items()} if iterations else {}
    dist.barrier()
    me.publish("state", READY)
    if timeout and me.rank == VICTIM:
        me.linger()
    begin = time.monotonic()
    try:
        while not only:
            dist.all_reduce(torch.ones(1))
    except RuntimeError:
        report["noticed"], report["waited"] = time.monotonic(), time.monotonic() - begin
    me.report(report)
    me.linger()


def trial(backend: str, ranks: int, iterations: int, only: str, timeout: float) -> dict[str, Any]:
    """Of rank 0 the times of operations; of all survivors the longest time to the error, in ms."""
    with Trial(ranks, "beside") as ranks_here:
        ranks_here.fork(live, backend, iterations, only, timeout,
                        environment={"SHARDWIRE_LOG": "error", "GLOO_SOCKET_IFNAME": "lo"})
        if not ranks_here.page.await_all(list(range(ranks)), "state", READY, START_SECONDS):
            sys.exit(f"beside.py: {ranks} ranks of {backend} did not come through in {START_SECONDS} s: "
                     f"{ranks_here.collect([0], 0)}")
        survivors = [rank for rank in range(ranks) if rank != VICTIM]
        killed = 0.0
        if not timeout and not only:
            time.sleep(0.2)
            killed = ranks_here.kill(VICTIM)
        reports = ranks_here.collect(survivors, time.monotonic() + NEVER)
    for rank, report in reports.items():
        if (only or "noticed") not in report:
            print(f"beside.py: rank {rank} of {ranks} of {backend} has no figures: {report}", file=sys.stderr,
                  flush=True)
    noticed = [each["waited"] if timeout else each["noticed"] - killed for each in reports.values()
               if "noticed" in each]
    # A rank that does not come back has no figures either.
    names = ([only] if only else OPERATIONS) if iterations else ()
    return {**{name: reports[0].get(name, (float("inf"),) * 3) for name in names},
            "noticed": max(noticed) * 1e3 if len(noticed) == len(survivors) else float("inf")}


def row(backend: str, ranks: int, loops: int, outcomes: list[dict[str, Any]], timeouts: list[float],
        timeout: float) -> list[list[str]]:
    rows = []
    for name in [each for each in outcomes[0] if each != "noticed"]:
        figures = [statistics.median(outcome[name][part] for outcome in outcomes) for part in range(3)]
        rows.append([str(ranks), str(loops), name, backend, *(f"{figure:.3f}" for figure in figures)])
    if not timeouts:
        return rows
    for name, values in (("kill to error", [outcome["noticed"] for outcome in outcomes]),
                         (f"timeout of {timeout * 1e3:.0f} ms", timeouts)):
        rows.append([str(ranks), str(loops), name, backend, f"{statistics.median(values):.1f}",
                     f"{max(values):.1f} at most", ""])
    return rows


def write_record(path: str, rows: list[list[str]]) -> None:
    """The medians of both backends beside each other, and the means, as the table has them as text."""
    tables = []
    for place, title in ((4, "Medians, and medians of errors' delays"), (5, "Means, and the longest delays")):
        cells: dict[tuple[str, ...], dict[str, float]] = {}
        for each in rows[1:]:
            cells.setdefault(tuple(each[:3]), {})[each[3]] = float(each[place].split()[0])
        tables.append(record.table(f"{title}, ms", rows[0][:3], cells, ["shardwire"], ["gloo"]))
    record.write(path, "beside", tables)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,3,6")
    parser.add_argument("--loops", default="0,8,12", help="how many busy loops run beside the ranks")
    parser.add_argument("--backends", default="shardwire,gloo")
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="one operation, such as 'barrier', without deaths and timeouts")
    parser.add_argument("--timeout", type=float, default=5, help="seconds of the group whose rank stays away")
    parser.add_argument("--json", metavar="FILE", help="also write the table there")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    rows = [["ranks", "loops", "operation", "backend", "median ms", "mean ms", "p99 ms"]]
    for loops in [int(word) for word in options.loops.split(",")]:
        with busy_loops(loops):
            for ranks in [int(word) for word in options.ranks.split(",")]:
                backends = options.backends.split(",")
                outcomes: dict[str, list[dict[str, Any]]] = {backend: [] for backend in backends}
                timeouts: dict[str, list[float]] = {backend: [] for backend in backends}
                for _ in range(options.turns):
                    for backend in backends:
                        outcomes[backend].append(trial(backend, ranks, options.iterations, options.only, 0))
                        if not options.only:
                            timeouts[backend].append(trial(backend, ranks, 0, "", options.timeout)["noticed"])
                for backend in backends:
                    rows += row(backend, ranks, loops, outcomes[backend], timeouts[backend], options.timeout)
    print_table(rows)
    if options.json:
        write_record(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
