"""A reader paused by SIGSTOP in the middle of a copy from its peer's memory, while the peer's operation times out and
the peer uses its tensor for something else. After SIGCONT the reader must raise, or hold the right bytes.

The parent sees the progress of the copy: the reader's output lies in memory mapped by both, and the reader is stopped
when a byte in the middle has changed and the last byte has not. Rank 0 owns the tensor, rank 1 reads the tensor.
"""

from __future__ import annotations

import mmap
import random
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import shardwire

from .trial import READY, Rank, Trial

OWNER_TIMEOUT, READER_TIMEOUT = 0.4, 60.0
BLANK, GIVEN, SCRIBBLE = 0, 11, 99
KINDS = ("broadcast", "scatter", "run", "all_reduce", "reduce_scatter")
MIB = 1 << 20
# "free": the owner gives its memory back to the system instead of writing there; only possible for ordinary tensors.
TENSORS = ("heap", "heap", "ordinary", "free")


@dataclass
class Pause:
    kind: str
    tensors: str
    mib: int
    watch: int  # byte of the output whose change shows that the copy is in the middle


def plan(seed: int, number: int) -> Pause:
    rng = random.Random(f"{seed}/{number}/pause")
    mib = rng.choice((4, 4, 8, 16))
    # Mostly in the last segment (of 4 MiB): after the last segment the control lane is not polled.
    last = rng.random() < 0.7
    return Pause(rng.choice(KINDS), rng.choice(TENSORS), mib,
                 rng.randrange((mib - 4) * MIB if last else MIB // 2, mib * MIB - MIB))


def _call(pause: Pause, rank: int, mine: torch.Tensor, out: torch.Tensor, op: Any) -> Any:
    """Starts the operation in which rank 1's output is what rank 0 gave."""
    if pause.kind == "broadcast":
        return dist.broadcast(mine if rank == 0 else out, 0, async_op=True)
    if pause.kind == "scatter":
        return dist.scatter(torch.empty_like(mine) if rank == 0 else out, [mine, mine] if rank == 0 else None, 0,
                            async_op=True)
    if pause.kind == "run":
        return op([mine], []) if rank == 0 else op([], [out])
    if pause.kind == "all_reduce":
        return dist.all_reduce(mine if rank == 0 else out, async_op=True)
    part = torch.zeros(out.numel() if rank == 1 else mine.numel(), dtype=torch.uint8)
    return dist.reduce_scatter(out if rank == 1 else part.clone(), [mine, mine] if rank == 0 else [part, part],
                               async_op=True)


def _compiled(rank: int, size: int) -> Any:
    box = [{"offset": [0], "shape": [size]}]
    return shardwire.compile_op(None, shape=[size], dtype=torch.uint8, inputs=box if rank == 0 else [],
                                outputs=box if rank == 1 else [])


def live(me: Rank, pause: Pause, shared: mmap.mmap) -> None:
    torch.set_num_threads(1)
    timeout = OWNER_TIMEOUT if me.rank == 0 else READER_TIMEOUT
    group = shardwire_group(me)
    size = pause.mib * MIB
    op = _compiled(me.rank, size) if pause.kind == "run" else None
    out = torch.frombuffer(shared, dtype=torch.uint8)
    mine = shardwire.empty(size, dtype=torch.uint8) if pause.tensors == "heap" else torch.empty(size, dtype=torch.uint8)
    mine.fill_(GIVEN)
    dist.barrier()
    group(timeout)
    me.publish("state", READY)
    report: dict[str, Any] = {"rank": me.rank}
    try:
        _call(pause, me.rank, mine, out, op).wait()
    except Exception as error:
        report["type"], report["text"] = type(error).__name__, str(error)
    else:
        wrong = (out != GIVEN).sum().item() if me.rank == 1 else 0
        report["wrong"] = int(wrong)
    if me.rank == 0:
        if pause.tensors == "free":
            del mine
        else:
            mine.fill_(SCRIBBLE)
        me.publish("mark", 1)
    me.report(report)
    me.linger()


def shardwire_group(me: Rank) -> Any:
    """Joins; returns what sets this rank's timeout for later operations."""
    dist.init_process_group("shardwire", init_method=f"file://{me.folder}/store", rank=me.rank, world_size=me.size,
                            timeout=timedelta(seconds=READER_TIMEOUT))
    from shardwire.groups import lookup
    backend = lookup.resolve_backend(None)
    return lambda seconds: backend.set_timeout(timedelta(seconds=seconds))


def pause_once(seed: int, number: int) -> dict[str, Any]:
    """The outcome: "missed" when the copy was over before the reader stopped, or before the owner's timeout, else
    raised, right, wrong, hung or broken."""
    pause = plan(seed, number)
    with Trial(2, "pause") as trial:
        shared = mmap.mmap(-1, pause.mib * MIB)
        watched, last = pause.watch, len(shared) - 1
        trial.fork(live, pause, shared, environment={"SHARDWIRE_TRANSPORTS": "shm", "SHARDWIRE_LOG": "info"})
        outcome: dict[str, Any] = {"number": number, "pause": pause}
        if not trial.page.await_all([0, 1], "state", READY, 60):
            return {**outcome, "kind": "broken", "reports": trial.collect([0, 1], time.monotonic())}
        deadline = time.monotonic() + 10
        while shared[watched] == BLANK and time.monotonic() < deadline:
            pass
        trial.stop(1)
        time.sleep(0.01)  # the signal is on its way; only the memory's later state counts
        is_missed = shared[last] != BLANK or shared[watched] == BLANK
        was_stuck = not is_missed and not trial.page.await_all([0], "mark", 1, 20)
        trial.go_on(1)
        reports = trial.collect([0, 1], time.monotonic() + 20)
        kind = verdict(reports[0], reports[1], is_missed, was_stuck)
        return {**outcome, "kind": kind, "reports": reports}


def verdict(owner: dict[str, Any], reader: dict[str, Any], is_missed: bool, was_stuck: bool) -> str:
    """`was_stuck`: the owner's call did not end while the reader was stopped."""
    if any("broken" in report or "ended" in report for report in (owner, reader)):
        return "broken"
    if was_stuck or "hung" in owner or "hung" in reader:
        return "hung"
    if reader.get("wrong"):
        return "wrong"
    if is_missed or "text" not in owner:  # an owner without an error changed its tensor after a whole copy
        return "missed"
    return "raised" if "text" in reader else "right"


def is_named(outcome: dict[str, Any]) -> bool:
    """Whether the error of a raising reader gives the cause, which is the owner's timeout, and not a consequence."""
    text = outcome["reports"][1].get("text", "")
    return "timeout" in text and "rank 0" in text


def is_fault(outcome: dict[str, Any]) -> bool:
    return outcome["kind"] in ("wrong", "hung", "broken") or (outcome["kind"] == "raised" and not is_named(outcome))


def campaign(seed: int, numbers: list[int]) -> tuple[list[list[str]], list[str]]:
    """The table, and the faults."""
    counts: Counter[tuple[str, str]] = Counter()
    seen, faults = [], []
    for number in numbers:
        outcome = pause_once(seed, number)
        pause, kind = outcome["pause"], outcome["kind"]
        seen.append((f"{pause.kind}, {pause.tensors}", kind))
        counts[seen[-1]] += 1
        if kind == "raised" and not is_named(outcome):
            counts[(seen[-1][0], "cause not named")] += 1
        if is_fault(outcome):
            faults.append(f"pause: {kind} (--ways pause --seed {seed} --trial {number})")
            print(f"FAULT {faults[-1]}: {pause}\n  {outcome['reports']}", flush=True)
    columns = ["raised", "right", "wrong", "hung", "broken", "cause not named", "missed"]
    rows = [["paused reader", "trials", *columns]]
    for name in sorted({name for name, _ in counts}):
        rows.append(
            [name, str(sum(each == name for each, _ in seen)), *(str(counts[(name, column)]) for column in columns)])
    rows.append(["all", str(len(seen)),
                 *(str(sum(counts[(name, column)] for name in {name for name, _ in seen})) for column in columns)])
    return rows, faults
