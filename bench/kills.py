"""Kills a random rank at a random moment of a random stream of operations, again and again, and records the errors of
the other ranks.

Each survivor must raise soon (hung: not within the bound, while the group's timeout is longer), must never hold wrong
bytes after an operation that reported success (wrong), and should name the dead rank (named). Backends and transports
take turns in one run. --seed S --trial N repeats a trial.

  ./run bench kills                              # 50 trials over shm, tcp and gloo
  ./run bench kills --trials 500 --ways shm,tcp  # over mpi: --ways mpi, one mpirun for each trial
  ./run bench kills --ways init-shm,init-tcp     # kills while the group is made, after a rank published its address
  ./run bench kills --ways survive-shm,survive-tcp   # one or two die; the others shrink the group, and reduce in it
  ./run bench kills --ways symm-shm,symm-tcp     # the same, in calls of symmetric memory
  ./run bench kills --ways remake-shm,remake-tcp # the same, while the ranks make the group anew again and again
  ./run bench kills --ways pause --trials 60     # SIGSTOP in the middle of a copy, instead of kills
  ./run bench kills --beside 12                  # beside so many programs that only compute
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import torch
import torch.distributed as dist

import record
import shardwire
from campaigns import pauses
from campaigns.busy import busy_loops
from campaigns.going_on import STREAMS, LeftOut
from campaigns.stream import Setting, Stream, WrongBytes, prepare
from campaigns.trial import READY, Rank, Trial, print_table, quantile, rank_main

WAYS = ("shm", "tcp", "mpi", "gloo", "init-shm", "init-tcp", "survive-shm", "survive-tcp", "symm-shm", "symm-tcp",
        "remake-shm", "remake-tcp", "pause")
GOING_ON = ("survive", "symm", "remake")
START_SECONDS, GROUP_TIMEOUT = 180.0, 60.0  # mpirun's ranks import torch each
# The environment of the ranks for each way.
ENVIRONMENT: dict[str, dict[str, str]] = {way: {} if way == "gloo" else {"SHARDWIRE_TRANSPORTS": way.split("-")[-1]}
                                          for way in WAYS}


# ---- in a rank


def live(me: Rank, setting: Setting, init_method: str) -> None:
    """Joins, streams until the first error, looks at what is still in flight, and then does what the setting says."""
    torch.set_num_threads(1)
    ranks = {} if init_method == "mpi://" else {"rank": me.rank, "world_size": me.size}
    try:
        dist.init_process_group(setting.backend, init_method=init_method, timeout=timedelta(seconds=GROUP_TIMEOUT),
                                **ranks)
    except Exception as error:
        me.report({"at": time.monotonic(), "type": type(error).__name__, "text": str(error),
                   "operation": "init_process_group", "part": False, "rank": me.rank})
        return me.linger()
    rank = dist.get_rank()
    behaviour = setting.behaviour[rank]
    if behaviour == "survive":
        shardwire.reconfigure_handles()
    stream = STREAMS.get(setting.stream, Stream)(setting, rank, lambda number: me.page.set(rank, "step", number))
    me.publish("state", READY)
    report: dict[str, Any] = {"wrong": [], "rank": rank}
    try:
        stream.run()
    except WrongBytes as error:
        report["wrong"].append(str(error))
    except LeftOut as error:
        report["at"], report["left_out"] = time.monotonic(), error.ranks
    except Exception as error:
        report["at"] = time.monotonic()
        report["entered"] = stream.entered
        report["type"], report["text"] = type(error).__name__, str(error)
        report["operation"] = str(stream.issuing or stream.inflight[0].operation)
        report["part"] = (stream.issuing or stream.inflight[0].operation).part
    for started in list(stream.inflight):
        try:
            stream.finish(started)
        except WrongBytes as error:
            report["wrong"].append("after the first error: " + str(error))
        except Exception:  # noqa: S110: failed like the first
            pass
    report["finished"] = stream.finished
    if behaviour == "leave":
        me.report(report)
        os._exit(0)
    stream.scribble()
    if behaviour == "survive":
        report.update(again())
    me.report(report)
    if behaviour == "destroy":
        dist.destroy_process_group()
    me.linger()


def again() -> dict[str, Any]:
    """The first reduction that all living ranks have in a new group, and the time of its end: another rank may die in
    between."""
    try:
        while True:
            shardwire.shrink()
            ones = torch.ones(1000)
            try:
                dist.all_reduce(ones)
                failed = False
            except shardwire.PeerFailedError:
                failed = True
            end = time.monotonic()
            verdict = shardwire.agree(not failed)
            if verdict.flag and not verdict.dead:
                return {"again": ones.min().item() if ones.min() == ones.max() else -1.0, "again_at": end}
    except Exception as error:
        return {"again": f"{type(error).__name__}: {error}"}


# ---- the campaign


def plan(seed: int, number: int, way: str) -> tuple[Setting, dict[int, float]]:
    """The setting of a trial, and the ranks to kill: the first after how many seconds, the second, if any, how many
    seconds later, which may be while the others shrink the group."""
    rng = random.Random(f"{seed}/{number}/{'' if way == 'gloo' else way}")
    size = rng.randint(2, 4 if way == "mpi" else 6)
    part = sorted(rng.sample(range(size), rng.randint(2, size - 1))) if size > 2 and rng.random() < 0.4 else []
    kinds = rng.choice((["stay"], ["leave"], ["stay", "leave", "destroy"]))
    goes_on = way.startswith(GOING_ON)
    if goes_on:
        kinds = ["survive"]
    setting = Setting(f"{seed}/{number}", size, "gloo" if way == "gloo" else "shardwire", part,
                      rng.choice((-1, -1, 0, 1, 3)), rng.choice((1 << 12, 1 << 18, 1 << 22, 1 << 24)),
                      {rank: rng.choice(kinds) for rank in range(size)}, way.split("-")[0])
    victim, delay = rng.randrange(size), math.exp(rng.uniform(math.log(1e-4), math.log(0.2)))
    deaths = {victim: delay * (0.1 if way.startswith("init") else 1)}
    if goes_on and size > 2 and rng.random() < 0.5:
        other = rng.choice([rank for rank in range(size) if rank != victim])
        deaths[other] = rng.choice((0.0, math.exp(rng.uniform(math.log(1e-4), math.log(0.2)))))
    return setting, deaths


def kill_once(seed: int, number: int, way: str, bound: float) -> dict[str, Any]:
    setting, deaths = plan(seed, number, way)
    environment = {"SHARDWIRE_LOG": "info", "GLOO_SOCKET_IFNAME": "lo", **ENVIRONMENT[way]}
    with Trial(setting.size, "kills") as trial:
        if way == "mpi":
            arguments = ["--rank-of", f"{seed}/{number}"]
            trial.mpirun(str(Path(__file__).resolve()), arguments, environment)
        else:
            trial.fork(live, setting, f"file://{trial.folder}/store", environment=environment)
        everyone = list(range(setting.size))
        if way.startswith("init"):
            await_address(trial, next(iter(deaths)))
        elif not trial.page.await_all(everyone, "state", READY, START_SECONDS):
            reports = trial.collect(everyone, time.monotonic())
            return {"number": number, "way": way, "setting": asdict(setting), "victims": dict.fromkeys(deaths),
                    "broken": "the ranks did not start", "reports": reports}
        killed, *later = [kill_after(trial, rank, seconds) for rank, seconds in deaths.items()]
        survivors = [rank for rank in everyone if rank not in deaths]
        reports = trial.collect(survivors, (later or [killed])[-1] + bound)
        steps = [trial.page.get(rank, "step") for rank in everyone]
        return {"number": number, "way": way, "setting": asdict(setting),
                "victims": {rank: trial.page.get(rank, "pid") for rank in deaths}, "killed": killed,
                "last_killed": (later or [killed])[-1], "delays": list(deaths.values()), "steps": steps,
                "reports": reports}


def kill_after(trial: Trial, rank: int, seconds: float) -> float:
    """The time of the kill."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.001, max(0.0, end - time.monotonic())))
    return trial.kill(rank)


def await_address(trial: Trial, rank: int) -> None:
    """Waits until the rank has published its address: the other ranks cannot know a rank that dies earlier."""
    store, key = trial.folder / "store", f"shardwire/{rank}".encode()
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and not (store.exists() and key in store.read_bytes()):
        time.sleep(0.001)


DEATH = r"[^;:]{0,80}?\b(?:died|left|is gone|hung up|ended)"


def judge(outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """One verdict for each survivor: kind (raised, hung, wrong, broken), whether the error names the dead rank, seconds
    from the kill to the error, and of these the seconds in the call that raised: a survivor may check earlier results
    or make tensors when the rank dies."""
    verdicts = []
    part, victims, size = outcome["setting"]["part"], outcome["victims"], outcome["setting"]["size"]
    results = {report["again"] for report in outcome["reports"].values() if "again" in report}
    for rank, report in outcome["reports"].items():
        verdict: dict[str, Any] = {"rank": rank, "kind": "raised", "named": False, "wrong": report.get("wrong", [])}
        if "broken" in report or "ended" in report or "broken" in outcome:
            verdict["kind"] = "broken"
        elif "hung" in report:
            verdict["kind"] = "hung"
        elif "at" not in report:
            verdict["kind"] = "wrong"
        elif outcome["way"] != "gloo" and "type" in report and not hasattr(shardwire, report["type"]):
            verdict["kind"] = "broken"
        else:
            verdict["seconds"] = report["at"] - outcome["killed"]
            verdict["waited"] = report["at"] - max(outcome["killed"], report.get("entered", 0.0))
        if "left_out" in report:
            verdict["named"] = set(report["left_out"]) <= set(victims)
        elif "seconds" in verdict:
            # A subgroup numbers its ranks itself; the pid is the same everywhere.
            numbers = {each for victim in victims
                       for each in ([victim, part.index(victim)] if report["part"] and victim in part else [victim])}
            whom = [*(rf"rank {number}\b" for number in numbers),
                    *(rf"rank \d+ \(pid {pid}\b" for pid in victims.values())]
            verdict["named"] = any(re.search(who + DEATH, report["text"]) for who in whom)
        if "again" in report and "seconds" in verdict:
            verdict["again"] = report.get("again_at", math.inf) - outcome["last_killed"]
            # The last of two deaths may come when the others are done.
            if len(results) > 1 or not results <= {size - 1.0, float(size - len(victims))}:
                verdict["kind"] = "wrong"
        verdicts.append(verdict)
    return verdicts


def print_outcome(outcome: dict[str, Any], seed: int, verdict: dict[str, Any]) -> None:
    """One fault, in full."""
    report = outcome["reports"][verdict["rank"]]
    setting = outcome["setting"]
    print(f"FAULT {verdict['kind']}{'' if verdict['named'] else ', dead rank not named'}: rank {verdict['rank']} of "
          f"{setting['size']}; killed: {', '.join(f'rank {rank}' for rank in outcome['victims'])}; repeat: --ways "
          f"{outcome['way']} --seed {seed} --trial {outcome['number']}")
    print(f"  part {setting['part']}, depth {setting['depth']}, up to {setting['max_bytes']} bytes, behaviour "
          f"{setting['behaviour']}, steps {outcome.get('steps')}")
    for name in ("operation", "type", "text", "again", "wrong", "broken", "ended", "stacks", "log"):
        if report.get(name):
            print(f"  {name}: {report[name]}")
    sys.stdout.flush()


def table(results: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    # waited: the part of the time to the error that the survivor was in the call; again: from the last kill to the
    # first reduction in the new group
    rows = [["way", "kills", "survivors", "raised", "hung", "wrong", "broken", "dead rank named", "p50", "p99", "max",
             "waited p50", "p99", "max", "again p50", "p99", "max"]]
    for way, outcomes in results.items():
        verdicts = [verdict for outcome in outcomes for verdict in judge(outcome)]
        count = {kind: sum(verdict["kind"] == kind for verdict in verdicts) for kind in ("raised", "hung", "broken")}
        wrong = sum(bool(verdict["wrong"]) or verdict["kind"] == "wrong" for verdict in verdicts)
        named = sum(verdict["named"] for verdict in verdicts)
        seconds = [verdict["seconds"] for verdict in verdicts if "seconds" in verdict]
        waited = [verdict["waited"] for verdict in verdicts if "waited" in verdict]
        later = [verdict["again"] for verdict in verdicts if "again" in verdict]
        times = [f"{quantile(each, part) * 1e3:.1f} ms" if each else "" for each in (seconds, waited, later)
                 for part in (0.5, 0.99, 1.0)]
        share = f"{named} ({100 * named / max(1, len(verdicts)):.1f} %)"
        rows.append([way, str(len(outcomes)), str(len(verdicts)), str(count["raised"]), str(count["hung"]), str(wrong),
                     str(count["broken"]), share, *times])
    return rows


def is_fault(verdict: dict[str, Any], way: str) -> bool:
    """gloo never names the rank."""
    return verdict["kind"] != "raised" or bool(verdict["wrong"]) or (way != "gloo" and not verdict["named"])


def campaign(seed: int, numbers: list[int], ways: list[str], bound: float) -> dict[str, list[dict[str, Any]]]:
    """All outcomes by way; the ways take turns."""
    prepare(1 << 24)
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    try:
        for number in numbers:
            for way in ways:
                outcome = kill_once(seed, number, way, bound)
                results[way].append(outcome)
                for verdict in judge(outcome):
                    if is_fault(verdict, way) and way != "gloo":
                        print_outcome(outcome, seed, verdict)
    except KeyboardInterrupt:
        print(f"interrupted in trial {number}", flush=True)
    return results


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50, help="of each way")
    parser.add_argument("--ways", default="shm,tcp,gloo", help="some of " + ", ".join(WAYS))
    parser.add_argument("--seed", type=int, default=None, help="(default: random, printed)")
    parser.add_argument("--trial", type=int, help="this one only")
    parser.add_argument("--bound", type=float, default=20.0,
                        help="seconds from the kill after which a survivor counts as hung")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="busy loops beside the ranks")
    parser.add_argument("--json", metavar="FILE", help="also write all outcomes there")
    parser.add_argument("--rank-of", metavar="SEED/TRIAL", help=argparse.SUPPRESS)  # in a rank that mpirun started
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # print the results so far
    if options.rank_of:
        seed, number = (int(word) for word in options.rank_of.split("/"))
        setting, _deaths = plan(seed, number, "mpi")
        rank_main(Path(options.folder), int(os.environ["OMPI_COMM_WORLD_RANK"]), setting.size, live, setting, "mpi://")
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        sys.exit(f"kills.py: --ways has {', '.join(sorted(unknown))}; give some of {', '.join(WAYS)}")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    numbers = [options.trial] if options.trial is not None else list(range(options.trials))
    print(f"seed {seed}; torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    tables, faults = [], []
    with busy_loops(options.beside):
        if "pause" in ways:
            rows, faults = pauses.campaign(seed, numbers)
            tables.append(record.printed(f"Pauses, seed {seed}", rows))
        results = campaign(seed, numbers, [way for way in ways if way != "pause"], options.bound)
        if results:
            tables.append(record.printed(f"Seed {seed}", table(results)))
    for each in tables:
        print_table([each["columns"], *each["rows"]])
    faults += [f"{way}, rank {verdict['rank']}: {verdict['kind']}{'' if verdict['named'] else ', dead rank not named'} "
               f"(--ways {way} --seed {seed} --trial {outcome['number']})" for way in results if way != "gloo"
               for outcome in results[way] for verdict in judge(outcome) if is_fault(verdict, way)]
    if options.json:
        record.write(options.json, "kills", tables, results=results, verdict=faults)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
