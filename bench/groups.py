"""The cost of making groups: init_process_group, a further new_group of all ranks, and many groups in one process,
beside gloo in turns.

    ./run bench groups [--ranks 2,8,32,64] [--rounds 5] [--many 100]

Each backend's ranks are processes, forked from a process that has imported torch, so that only the making of groups is
timed. All ranks wait for each other before a measurement, which ends when the slowest rank has its group. Prints
medians in milliseconds and the ratio to gloo, and for --many groups the threads and descriptors that each group of a
rank adds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import statistics
import sys
import tempfile
import time

import torch.distributed as dist

import processes
import record
import shardwire  # noqa: F401: registers the backend
from shardwire.groups.mpi import tcp_store

LIMIT = datetime.timedelta(seconds=300)
PORT_CHARACTERS = 8


def count(folder: str) -> int:
    return len(os.listdir(f"/proc/self/{folder}"))


def rank_main(rank: int, args: argparse.Namespace, backend: str, size: int, many: int, port: int, report: str) -> None:
    """One rank: times in the store's hands, printed by rank 0 into the file `report`."""
    store = tcp_store("127.0.0.1", port, size + 1, False, LIMIT)

    def meet(name: str) -> None:
        store.add(name, 1)
        while int(store.add(name, 0)) < size:
            time.sleep(0.001)

    def slowest(name: str, seconds: float) -> float:
        store.set(f"{name}/{rank}", repr(seconds))
        return max(float(store.get(f"{name}/{other}")) for other in range(size)) if rank == 0 else 0.0

    lines = []
    meet("start")
    begin = time.perf_counter()
    dist.init_process_group(backend, store=dist.PrefixStore("world", store), rank=rank, world_size=size, timeout=LIMIT)
    lines.append(f"init {slowest('init', time.perf_counter() - begin)}")
    before = count("task"), count("fd")
    for i in range(many or args.rounds):
        meet(f"group{i}")
        begin = time.perf_counter()
        group = dist.new_group(list(range(size)))
        lines.append(f"group {slowest(f'took{i}', time.perf_counter() - begin)}")
        if not many:
            meet(f"gone{i}")
            dist.destroy_process_group(group)
    groups = len(lines) - 1
    lines += [f"threads {(count('task') - before[0]) / groups}", f"descriptors {(count('fd') - before[1]) / groups}"]
    if rank == 0:
        with open(report, "w") as file:
            file.write("\n".join(lines))
    meet("end")
    os._exit(0)  # nothing here is about the end, and gloo's takes seconds with many ranks


def measure(args: argparse.Namespace, backend: str, size: int, many: int = 0) -> dict[str, list[float]]:
    with tempfile.NamedTemporaryFile() as report:
        # Forked before the server has threads: a thread inside libc's resolver leaves a locked mutex to the children,
        # which no thread unlocks (seen with torch 2.13).
        ports_out, ports_in = os.pipe()
        children = {}
        for rank in range(size):
            if not (child := os.fork()):
                try:
                    processes.end_with_parent()
                    rank_main(rank, args, backend, size, many, int(os.read(ports_out, PORT_CHARACTERS)), report.name)
                except BaseException as error:  # a rank never comes back into the parent's code
                    print(f"{backend}, rank {rank} of {size}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            children[child] = rank
        server = tcp_store("127.0.0.1", 0, size + 1, True, LIMIT)
        os.write(ports_in, f"{server.port:{PORT_CHARACTERS}d}".encode() * size)
        failed = first_failure(children)
        os.close(ports_out)
        os.close(ports_in)
        if failed is not None:
            raise SystemExit(f"rank {failed} of {size} of {backend} failed")
        found: dict[str, list[float]] = {}
        for line in open(report.name):
            name, value = line.split()
            found.setdefault(name, []).append(float(value))
        return found


def first_failure(children: dict[int, int]) -> int | None:
    """Waits for the children, pid -> rank. When a rank fails, the others are killed: they may wait for this rank."""
    living, failed = dict(children), None
    while living:
        pid, status = os.wait()
        rank = living.pop(pid, None)
        if failed is None and rank is not None and status != 0:
            failed = rank
            for other in living:
                os.kill(other, signal.SIGKILL)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,8,32,64", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="groups in a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3,
                        help="turns of each backend, one after the other (default: %(default)s)")
    parser.add_argument("--many", type=int, default=100,
                        help="groups that are kept in one process, of 2 ranks; 0: none (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write shardwire's medians there, in ms")
    args = parser.parse_args()
    figures, taken, kept = {}, {}, {}
    print(f"torch {dist.torch.__version__ if hasattr(dist, 'torch') else ''}, {os.cpu_count()} cores; medians of "
          f"{args.turns} turns, ms")
    print(f"{'ranks':>6} {'':>18} {'gloo':>9} {'shardwire':>9} {'ratio':>6}")
    for size in map(int, args.ranks.split(",")):
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(args.turns):
            for backend in ("gloo", "shardwire"):
                for name, values in measure(args, backend, size).items():
                    times.setdefault((name, backend), []).extend(values)
        for name in ("init", "group"):
            gloo, ours = (1e3 * statistics.median(times[name, backend]) for backend in ("gloo", "shardwire"))
            what = "new_group" if name == "group" else "init_process_group"
            figures[f"{size} ranks {name}"] = ours
            taken[size, what] = {"shardwire": ours, "gloo": gloo}
            print(f"{size:6} {what:>18} {gloo:9.1f} {ours:9.1f} {ours / gloo:6.2f}", flush=True)
    if args.many:
        for backend in ("gloo", "shardwire"):
            found = measure(args, backend, 2, args.many)
            kept[backend,] = {"threads": found["threads"][0], "descriptors": found["descriptors"][0],
                              "ms": 1e3 * statistics.median(found["group"])}
            print(f"{args.many} groups of 2 ranks, {backend}: {found['threads'][0]:.2f} threads and "
                  f"{found['descriptors'][0]:.2f} descriptors each, {1e3 * statistics.median(found['group']):.1f} ms "
                  "each")
    if args.json:
        tables = [record.table("Time until the slowest rank has its group, ms", ["ranks", "call"], taken, ["shardwire"],
                               ["gloo"])]
        if kept:
            tables.append(record.table(f"Each of {args.many} groups of 2 ranks that are kept", ["backend"], kept))
        record.write(args.json, "groups", tables, figures=figures)


if __name__ == "__main__":
    main()
