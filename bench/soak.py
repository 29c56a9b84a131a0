"""Uses everything at once for a given time: leftovers show as growth.

    ./run bench soak [--seconds 3600] [--settle 300] [--ranks 4] [--only collectives,queues] [--every 60]

Each round of a rank is one use of each kind in campaigns/soak_kinds.py: collectives, compiled ops, queues, symmetric
memory, teams, publications, checkpoints, FFTs and groups, with shapes that change. Prints the memory of each rank's
process every --every seconds, and exits with 1 when a rank's process grew: when the minimum of the last third of the
time after --settle is more than 1 MiB above the minimum of the first third, or descriptors, threads or mappings grew by
more than the usual variation.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import torch
import torch.distributed as dist

import record
import shardwire  # noqa: F401  registers the backend
from shardwire.groups.mpi import tcp_store
from campaigns.soak_kinds import KINDS, Soaked
from campaigns.trial import Rank, Trial, print_table

MIB = 1 << 20
MEMORY = ("anonymous", "shared", "malloc", "free in malloc")
COLUMNS = (*MEMORY, "descriptors", "threads", "mappings")
# How much each may grow. Of descriptors, threads and mappings there are more or fewer at each look: what serves a
# subscription ends a little later.
LIMITS = {"anonymous": MIB, "shared": MIB, "descriptors": 16, "threads": 8, "mappings": 64}


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]


def footprint() -> dict[str, int]:
    """The memory of this process: resident bytes of its own and of shared memory, malloc's of all arenas in use and
    free, and numbers of objects. malloc first returns its free pages to the system: how many it keeps depends on the
    order of calls, and would hide a leak, or look like one."""
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return {"anonymous": int(status["RssAnon"].split()[0]) * 1024, "shared": int(status["RssShmem"].split()[0]) * 1024,
            "malloc": info.uordblks + info.hblkhd, "free in malloc": info.fordblks,
            "descriptors": len(os.listdir("/proc/self/fd")), "threads": int(status["Threads"]),
            "mappings": Path("/proc/self/maps").read_text().count("\n")}


def soak(me: Rank, args: argparse.Namespace, port: int) -> None:
    """A rank: rounds until rank 0's time is over, and the process's memory at the end of some rounds."""
    torch.set_num_threads(1)
    store = tcp_store("127.0.0.1", port, None, False, timedelta(minutes=5))
    dist.init_process_group("shardwire", store=store, rank=me.rank, world_size=me.size, timeout=timedelta(seconds=120))
    kinds = [KINDS[name] for name in args.only]
    soaked, begin, held, number = Soaked(me.rank, me.size, me.folder), time.monotonic(), [], 0
    while True:
        elapsed = torch.tensor([time.monotonic() - begin])
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)  # no rank runs ahead, and all stop, and look, after the same round
        if elapsed.item() >= len(held) * args.every or elapsed.item() >= args.seconds:
            held.append((elapsed.item(), number, footprint()))
            me.publish("step", len(held))
            me.report({"held": held})
        if elapsed.item() >= args.seconds:
            break
        for kind in kinds:
            kind(soaked, number)
        number += 1
    dist.barrier()
    me.report({"held": held, "over": True})
    dist.destroy_process_group()


def row_of(rank: int, seconds: float, number: int, values: dict[str, int]) -> list[str]:
    return [f"{seconds:.0f} s", str(number), str(rank),
            *(f"{values[name] / MIB:.2f}" if name in MEMORY else str(values[name]) for name in COLUMNS)]


def grown(held: list[tuple[float, int, dict[str, int]]], settle: float) -> list[str]:
    """The growth of each figure: by the minimum of each third of the reports after the seconds of `settle`, since
    malloc keeps more or less of freed memory."""
    looks = [values for seconds, _, values in held if seconds >= settle] or [held[-1][2]]
    third = max(1, len(looks) // 3)
    by = {name: min(look[name] for look in looks[-third:]) - min(look[name] for look in looks[:third])
          for name in LIMITS}
    return [f"{name} grew by {by[name] / (MIB if name in MEMORY else 1):.2f}" for name, limit in LIMITS.items()
            if by[name] > limit]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600, help="how long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=300,
                        help="seconds until caches have what they keep (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="processes, at least 2 (default: %(default)s)")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS),
                        help=f"kinds, of {','.join(KINDS)} (default: all)")
    parser.add_argument("--every", type=float, default=60, help="seconds between looks (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the first and the last look there")
    args = parser.parse_args(given)
    if unknown := [name for name in args.only if name not in KINDS]:
        parser.error(f"--only: there is no kind {unknown[0]!r}; the kinds are {', '.join(KINDS)}")
    if args.ranks < 2:
        parser.error("--ranks: publications want two ranks at least")
    return args


def campaign(args: argparse.Namespace) -> bool:
    """Whether a rank's process grew, or broke."""
    print(f"torch {torch.__version__}, {args.ranks} ranks, {args.seconds:.0f} s of {', '.join(args.only)}; memory in "
          "MiB", flush=True)
    everyone = list(range(args.ranks))
    # In this process, as torchrun has it in its own: what the groups leave in it is no rank's. A FileStore keeps all
    # keys in each rank.
    store = tcp_store("127.0.0.1", 0, None, True, timedelta(minutes=5))
    with Trial(args.ranks, "soak") as trial:
        trial.fork(soak, args, store.port)
        reports = follow(trial, everyone, args.seconds)
    print_table([["at", "round", "rank", *COLUMNS]]
                + [row_of(rank, *look) for rank in everyone for look in reports[rank].get("held", [])])
    verdict = []
    for rank, report in reports.items():
        what = grown(report["held"], args.settle) if "over" in report else [failure_of(report)]
        verdict += [f"rank {rank}: {each}" for each in what]
        print(f"rank {rank}: {'; '.join(what) or 'nothing grew'}")
        if "over" not in report:
            print(report.get("broken") or report.get("stacks") or "")
    if args.json:
        write_record(args.json, "soak", args.settle, reports, "Of each rank a look when caches are full, and the last",
                     verdict)
    return bool(verdict)


def failure_of(report: dict[str, Any]) -> str:
    """How a rank failed."""
    if "broken" in report:
        return f"broke: {report['broken'].strip().splitlines()[-1]}"
    if "ended" in report:
        return f"ended by itself, wait status {report['ended']}"
    return "made no report" if "hung" in report else "was at work when another rank failed, or when the time was over"


def write_record(path: str, part: str, settle: float, reports: dict[int, dict[str, Any]], title: str,
                 verdict: list[str]) -> None:
    """Of each rank the first look after `settle` seconds, and the last look."""
    rows = [row_of(rank, *look) for rank, report in reports.items()
            for held in [[each for each in report.get("held", []) if each[0] >= settle]]
            for look in held[:1] + held[1:][-1:]]
    record.write(path, part, [record.printed(f"{title}; memory in MiB", [["at", "round", "rank", *COLUMNS], *rows])],
                 verdict=verdict)


def follow(trial: Trial, ranks: list[int], seconds: float) -> dict[int, dict[str, Any]]:
    """The ranks' last reports, when all ranks are through or a rank failed; shows rank 0's looks as they come."""
    shown, deadline = 0, time.monotonic() + seconds + 300
    while True:
        reports = trial.collect(ranks, deadline)
        for look in reports[0].get("held", [])[shown:]:
            print("  ".join(row_of(0, *look)), flush=True)
            shown += 1
        if (all("over" in report for report in reports.values()) or time.monotonic() > deadline
                or any("broken" in report or "ended" in report for report in reports.values())):
            return reports
        time.sleep(0.5)


if __name__ == "__main__":
    raise SystemExit(campaign(arguments(sys.argv[1:])))
