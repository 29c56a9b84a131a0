"""Lets one rank make a different call from the other ranks, in many ways, and checks that every rank raises: in this
call or the next, at once and not by a timeout.

Columns: raised: every rank that must raise did, in its call or the next; one later: a rank had its part of both, with
right bytes in the next, before the others knew, and raised in the operation after; late: the error took longer than 3
s; timed out: some rank's error is a timeout, or a rank never raised at all; silent: some rank saw success in all;
wrong: the next or the third operation of a rank succeeded with wrong bytes. Kinds in which the call's meaning hides the
difference are listed separately, with the reason; with --check full they must raise as well. --seed S --trial N repeats
a trial.

  ./run bench mismatches                 # every kind with 2, 3 and 4 ranks, one timing each
  ./run bench mismatches --only root --ways tcp
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import torch
import torch.distributed as dist

import record
import shardwire
from campaigns.mismatch_kinds import KINDS, Call, Kind
from campaigns.trial import READY, Rank, Trial, print_table, quantile

SOON, TIMEOUT, DEADLOCK_TIMEOUT = 3.0, 20.0, 2.0
TIMINGS = ("at once", "the odd rank first", "the odd rank late", "scattered")
WHO = {"all": lambda rank, odd: True, "odd": lambda rank, odd: rank == odd, "others": lambda rank, odd: rank != odd}
EXPECTED = {"error": "must raise", "silent": "may succeed", "deadlock": "end by the timeout"}
VERDICTS = ("raised", "one later", "late", "timed out", "silent", "wrong", "broken")


@dataclass
class Plan:
    kind: int  # index in KINDS
    size: int
    odd: int
    root: int
    timing: str
    later: bool
    in_heap: bool
    delays: list[float]
    timeout: float  # the group's, seconds


def plan(seed: int, number: int, timeout: float = TIMEOUT) -> Plan:
    """Kinds in order, then sizes; timings shift so that every kind meets all timings."""
    kind, round_number = number % len(KINDS), number // len(KINDS)
    rng = random.Random(f"{seed}/{number}/mismatch")
    size = max(KINDS[kind].least, 2 + round_number % 3)
    odd, timing = rng.randrange(size), TIMINGS[(round_number + kind) % len(TIMINGS)]
    delays = {"at once": [0.0] * size, "the odd rank first": [0.0 if rank == odd else 0.05 for rank in range(size)],
              "the odd rank late": [0.05 if rank == odd else 0.0 for rank in range(size)],
              "scattered": [rng.uniform(0, 0.01) for _ in range(size)]}[timing]
    # Started and not waited for, the operations of two groups cannot be in each other's way.
    later = rng.random() < 0.3 and KINDS[kind].expects != "deadlock"
    return Plan(kind, size, odd, rng.randrange(size), timing, later, rng.random() < 0.5, delays, timeout)


# ---- in a rank


def live(me: Rank, planned: Plan) -> None:
    torch.set_num_threads(1)
    kind = KINDS[planned.kind]
    dist.init_process_group("shardwire", init_method=f"file://{me.folder}/store", rank=me.rank, world_size=me.size,
                            timeout=timedelta(seconds=planned.timeout))
    call = Call(me.rank, me.size, planned.odd, planned.root, planned.later, planned.in_heap)
    if kind.prepare is not None:
        kind.prepare(call)
    dist.barrier()
    if kind.expects == "deadlock":
        shorten(call, DEADLOCK_TIMEOUT)
    me.publish("state", READY)
    me.page.await_all(list(range(me.size)), "state", READY, 60)
    time.sleep(planned.delays[me.rank])
    report: dict[str, Any] = {"began": [], "steps": []}
    step = kind.odd if call.is_odd else kind.usual
    for name, what in (("call", step), ("next", following), ("third", following)):
        report["began"].append(time.monotonic())
        try:
            what(call)
            call.finish()
        except Exception as error:
            report.update(at=time.monotonic(), step=name, type=type(error).__name__, text=str(error))
            break
        report["steps"].append(name)
        if what is following and (call.held[-1] != FOLLOWING_RESULT).any():
            report["wrong"] = f"{name}: {call.held[-1].tolist()}, not {FOLLOWING_RESULT}"
        if call.is_odd and kind.who == "others":
            break
    me.report(report)
    me.linger()


def shorten(call: Call, seconds: float) -> None:
    """The timeout of later operations: what only a timeout can end need not take 20 s."""
    from shardwire.groups import lookup
    for group in (None, *(made for made in call.made.values() if isinstance(made, dist.ProcessGroup))):
        lookup.resolve_backend(group).set_timeout(timedelta(seconds=seconds))


FOLLOWING_RESULT = 1  # rank r gives r + 1


def following(call: Call) -> None:
    call.all_reduce(3, torch.int64, dist.ReduceOp.MIN)


# ---- the campaign


def mismatch_once(planned: Plan, environment: dict[str, str]) -> dict[str, Any]:
    kind = KINDS[planned.kind]
    with Trial(planned.size, "mismatch") as trial:
        trial.fork(live, planned, environment={"SHARDWIRE_LOG": "info", **environment})
        ranks = list(range(planned.size))
        started = trial.page.await_all(ranks, "state", READY, 60)
        waited = [rank for rank in ranks if WHO[kind.who](rank, planned.odd)]
        reports = trial.collect(waited if started else ranks,
                                time.monotonic() + (planned.timeout + 5 if started else 0))
        return {"planned": planned, "reports": reports}


def judge(outcome: dict[str, Any], checked: bool) -> str:
    kind: Kind = KINDS[outcome["planned"].kind]
    reports = outcome["reports"].values()
    if (any("broken" in report or "ended" in report for report in reports)
            or any("text" in report and not is_ours(report) for report in reports)):
        return "broken"
    if any("wrong" in report for report in reports):
        return "wrong"
    if (kind.expects == "deadlock" and outcome["planned"].later
            and not any("text" in report or "hung" in report for report in reports)):
        return "silent"  # asynchronous calls of two groups may come in any order: no rank waits in between
    if kind.expects == "deadlock":
        return "raised" if all("text" in report and " rank" in report["text"] for report in reports) else "timed out"
    if any("hung" in report or report.get("type") == "TimeoutError" or "reached its timeout" in report.get("text", "")
           for report in reports):
        return "timed out"
    if kind.expects == "silent" and not checked:
        return "silent" if all("text" not in report for report in reports) else "raised"
    if any("text" not in report for report in reports):
        return "silent"
    if seconds_of(outcome) > SOON:
        return "late"
    return "one later" if any(report["step"] == "third" for report in reports) else "raised"


def is_ours(report: dict[str, Any]) -> bool:
    """An error of shardwire's, also an error about a spec or an argument."""
    return hasattr(shardwire, report["type"]) or report["type"] in ("ValueError", "TypeError", "TimeoutError")


def seconds_of(outcome: dict[str, Any]) -> float:
    """From the moment in which all ranks had begun to the last error."""
    reports = outcome["reports"].values()
    errors = [report["at"] for report in reports if "at" in report]
    begun = [report["began"][0] for report in reports if report.get("began")]
    return max(0.0, max(errors) - max(begun)) if errors and begun else float("nan")


def is_fault(outcome: dict[str, Any], checked: bool) -> bool:
    verdict = judge(outcome, checked)
    if verdict == "silent":
        expects = KINDS[outcome["planned"].kind].expects
        return not (expects == "deadlock" or (expects == "silent" and not checked))
    return verdict not in ("raised", "one later")


def print_outcome(outcome: dict[str, Any], seed: int, number: int, checked: bool, way: str) -> None:
    planned = outcome["planned"]
    print(f"FAULT {judge(outcome, checked)} ({seconds_of(outcome):.1f} s): {KINDS[planned.kind].name}; repeat: --seed "
          f"{seed} --trial {number} --ways {way}")
    print(f"  ranks {planned.size}, odd {planned.odd}, root {planned.root}, {planned.timing}, "
          f"{'async' if planned.later else 'sync'}, in_heap {planned.in_heap}")
    for rank, report in sorted(outcome["reports"].items()):
        said = (report.get("wrong") or report.get("text") or report.get("broken")
                or ("hung: " + report["stacks"][-700:] if "hung" in report else "no error"))
        print(f"  rank {rank}: {report.get('step', '')} {report.get('type', '')} {said}")
    sys.stdout.flush()


def campaign(seed: int, numbers: list[int], ways: list[str], checked: bool,
             timeout: float = TIMEOUT) -> list[dict[str, Any]]:
    outcomes = []
    try:
        for number in numbers:
            way = ways[(number // len(KINDS)) % len(ways)]
            environment = {"SHARDWIRE_TRANSPORTS": way, **({"SHARDWIRE_CHECK": "full"} if checked else {})}
            outcome = mismatch_once(plan(seed, number, timeout), environment)
            outcome["way"], outcome["number"] = way, number
            outcomes.append(outcome)
            if is_fault(outcome, checked):
                print_outcome(outcome, seed, number, checked, way)
    except KeyboardInterrupt:
        print(f"interrupted in trial {number}", flush=True)
    return outcomes


def table(outcomes: list[dict[str, Any]], checked: bool) -> list[list[str]]:
    rows = [["kind", "trials", *VERDICTS, "p50", "max", "both shown"]]
    names = list(dict.fromkeys(KINDS[outcome["planned"].kind].name for outcome in outcomes))
    for name in [*names, None]:
        mine = [outcome for outcome in outcomes if name in (None, KINDS[outcome["planned"].kind].name)]
        verdicts = [judge(outcome, checked) for outcome in mine]
        seconds = [value for outcome in mine if (value := seconds_of(outcome)) == value]
        texts = [report["text"] for outcome in mine for report in outcome["reports"].values() if "text" in report]
        shown = sum("disagree" in text for text in texts)
        rows.append([name or "all", str(len(mine)), *(str(verdicts.count(verdict)) for verdict in VERDICTS),
                     f"{quantile(seconds, 0.5) * 1e3:.1f} ms", f"{quantile(seconds, 1.0) * 1e3:.1f} ms",
                     f"{shown} of {len(texts)}"])
    return rows


def by_expectation(outcomes: list[dict[str, Any]], checked: bool) -> list[list[str]]:
    """The table of the sums: the kinds that must raise do not hide behind the kinds that need not."""
    rows = [["kinds", *table([], checked)[0][1:]]]
    for expects, words in EXPECTED.items():
        mine = [outcome for outcome in outcomes if KINDS[outcome["planned"].kind].expects == expects]
        if mine:
            count = len({outcome["planned"].kind for outcome in mine})
            rows.append([f"{count} that {words}", *table(mine, checked)[-1][1:]])
    return rows


def verdict_of(outcomes: list[dict[str, Any]], seed: int, checked: bool) -> list[str]:
    return [f"{judge(outcome, checked)}: {KINDS[outcome['planned'].kind].name} (--seed {seed} --trial "
            f"{outcome['number']} --ways {outcome['way']})" for outcome in outcomes if is_fault(outcome, checked)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3,
                        help="each round has every kind once; with 2, 3 and 4 ranks in turns")
    parser.add_argument("--first", type=int, default=0, help="the first round's number")
    parser.add_argument("--ways", default="shm,tcp", help="transports, by rounds in turns")
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--check", choices=("usual", "full"), default="usual",
                        help="full: with SHARDWIRE_CHECK=full, where nothing may be silent")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="the group's, seconds")
    parser.add_argument("--seed", type=int, default=None, help="(default: random, printed)")
    parser.add_argument("--trial", type=int, help="this one only")
    parser.add_argument("--json", metavar="FILE", help="also write the sums of the kinds there")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # print the results so far
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    checked = options.check == "full"
    numbers = ([options.trial] if options.trial is not None
               else list(range(options.first * len(KINDS), (options.first + options.rounds) * len(KINDS))))
    numbers = [number for number in numbers if options.only in KINDS[number % len(KINDS)].name]
    print(f"seed {seed}; {len(KINDS)} kinds; torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    outcomes = campaign(seed, numbers, options.ways.split(","), checked, options.timeout)
    rows = table(outcomes, checked)
    print_table(rows)
    if options.json:
        record.write(options.json, "mismatches",
                     [record.printed(f"Seed {seed}", by_expectation(outcomes, checked))],
                     verdict=verdict_of(outcomes, seed, checked))
    for kind in KINDS:
        if kind.expects != "error":
            print(f"{kind.expects}: {kind.name}: {kind.reason}")
    return int(any(is_fault(outcome, checked) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
