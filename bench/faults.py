"""A rank is missing while the other ranks make a call: what each call of shardwire does then, over each transport.

    ./run bench faults                        # all calls, all faults, shm and tcp; a table
    ./run bench faults --write-docs           # writes docs/faults.md, too; system_calls.py has the page's other table
    ./run bench faults --calls Run --ways shm --faults killed

Three ranks make the call once; then the fault happens to rank 1, and ranks 0 and 2 make the call again, with a timeout
of --timeout seconds. killed: SIGKILL. left: the program ends without the call, and without destroy_process_group().
stopped: SIGSTOP, for ever. late: SIGSTOP, and SIGCONT after a third of the timeout. A killed, stopped or left rank must
be named by the error of each other rank, a killed or left rank long before the timeout; a late rank must do no harm.
"""

from __future__ import annotations

import argparse
import atexit
import os
import re
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import torch
import torch.distributed as dist

import shardwire
from campaigns.missing_calls import CALLS
from campaigns.trial import READY, Rank, Trial
from system_calls import HEAD, INTRODUCTION, kept_section, section_of

SIZE, MISSING = 3, 1
FAULTS = ("killed", "left", "stopped", "late")
WAYS = ("shm", "tcp")
START_SECONDS = 120.0
SLACK_SECONDS = 2.0  # beyond the timeout
PAGE = Path(__file__).resolve().parents[1] / "docs" / "faults.md"


# ---- in a rank


def live(me: Rank, name: str, fault: str, timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("shardwire", init_method=f"file://{me.folder}/store", rank=me.rank, world_size=me.size,
                            timeout=timedelta(seconds=timeout))
    call = CALLS[name](me.rank, me.size, MISSING, me.folder, timeout)
    call()
    dist.barrier()
    me.publish("state", READY)
    while not me.page.get(me.rank, "mark"):
        time.sleep(0.001)
    if me.rank == MISSING and fault == "left":
        atexit._run_exitfuncs()
        os._exit(1)
    begin = time.monotonic()
    try:
        call()
        report = {"kind": "success", "text": ""}
    except Exception as error:
        report = {"kind": type(error).__name__, "text": str(error)}
    me.report({**report, "seconds": time.monotonic() - begin})
    me.linger()


# ---- the trials


def try_once(name: str, fault: str, way: str, timeout: float) -> dict[int, dict[str, Any]]:
    """The reports of the ranks that are not missing."""
    with Trial(SIZE, "faults") as trial:
        trial.fork(live, name, fault, timeout, environment={"SHARDWIRE_TRANSPORTS": way})
        everyone = list(range(SIZE))
        if not trial.page.await_all(everyone, "state", READY, START_SECONDS):
            return trial.collect(everyone, time.monotonic())
        if fault == "killed":
            trial.kill(MISSING)
        elif fault in ("stopped", "late"):
            trial.stop(MISSING)
        trial.page.set(MISSING, "mark", 1)
        while fault in ("killed", "left") and MISSING not in trial.reap():
            time.sleep(0.001)
        others = [rank for rank in everyone if rank != MISSING]
        for rank in others:
            trial.page.set(rank, "mark", 1)
        begin = time.monotonic()
        if fault == "late":
            time.sleep(timeout / 3)
            trial.go_on(MISSING)
        return trial.collect(others, begin + 3 * timeout + SLACK_SECONDS)


def judge(report: dict[str, Any], name: str, fault: str, soon: float, timeout: float) -> str:
    """Empty: the rank did what it must."""
    if "kind" not in report or "ended" in report:
        return "no report: " + "; ".join(f"{key}: {value}" for key, value in report.items())
    if fault == "late":
        return "" if report["kind"] == "success" else f"{report['kind']} for a late rank: {report['text']}"
    if report["kind"] == "success":
        return "" if CALLS[name].may_succeed else "success without the missing rank"
    limit = soon if fault in ("killed", "left") else timeout + SLACK_SECONDS
    if not issubclass(getattr(shardwire, report["kind"], Exception), shardwire.ShardwireError):
        return f"{report['kind']}: {report['text']}"
    if not re.search(rf"\brank {MISSING}\b", report["text"]):
        return f"rank {MISSING} is not named: {report['text']}"
    return "" if report["seconds"] <= limit else f"after {report['seconds']:.1f} s: {report['text']}"


def cell_of(reports: dict[int, dict[str, Any]]) -> str:
    """ "PeerFailedError": one word, or two where the ranks differ."""
    return " or ".join(sorted({report.get("kind", "none") for report in reports.values()}))


def title_of(name: str) -> str:
    return (CALLS[name].__doc__ or name).splitlines()[0]


def table(cells: dict[tuple[str, str, str], str], ways: list[str], faults: list[str]) -> list[str]:
    """Lines of Markdown. One cell for all transports where they agree."""
    lines = [f"| call | {' | '.join(faults)} |", "|---" * (len(faults) + 1) + "|"]
    for name in dict.fromkeys(name for name, _, _ in cells):
        row = []
        for fault in faults:
            found = {way: cells[name, fault, way] for way in ways}
            row.append(found[ways[0]] if len(set(found.values())) == 1
                       else "; ".join(f"{way}: {said}" for way, said in found.items()))
        lines.append(f"| {title_of(name)} | {' | '.join(row)} |")
    return lines


def page_of(lines: list[str], calls: list[str], soon: float, timeout: float) -> str:
    notes = [f"* {title_of(name)}: {kind.may_succeed}." for name, kind in CALLS.items() if kind.may_succeed]
    before = (
        "# What a call does when a rank is missing", "",
        "`./run bench faults --write-docs` makes this page: three ranks make a call once, then the fault happens to "
        f"rank 1, and ranks 0 and 2 make the call again, with a timeout of {timeout:g} s. Each cell has the error of "
        "the other ranks, over shm and over tcp.", "",
        "* *killed*: SIGKILL. *left*: the program ended without the call, and without `destroy_process_group()`. The "
        f"error comes within {soon:g} s and names rank 1.",
        "* *stopped*: SIGSTOP, for ever. The error comes when the timeout passes, and names rank 1.",
        "* *late*: SIGSTOP, and SIGCONT after a third of the timeout. The call succeeds, with the right result.", "")
    after = ("", *notes, "",
             "[Errors](errors.md) has the words of the texts, and [survive](survive.md) how the other ranks go on.")
    beside = ["", HEAD, "", wrapped(INTRODUCTION), "", *calls] if calls else []
    return "\n".join([*map(wrapped, before), *lines, *map(wrapped, after), *beside, ""])


def wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, 120, subsequent_indent="  " if paragraph.startswith("*") else "",
                         break_long_words=False, break_on_hyphens=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench faults", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", default=",".join(CALLS), help="some of " + ", ".join(CALLS))
    parser.add_argument("--faults", default=",".join(FAULTS), help="some of " + ", ".join(FAULTS))
    parser.add_argument("--ways", default=",".join(WAYS), help="some of " + ", ".join(WAYS))
    parser.add_argument("--timeout", type=float, default=3.0, help="of the group, seconds")
    parser.add_argument("--soon", type=float, default=2.0, help="seconds until the error for a dead rank (%(default)g)")
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--system-calls", type=Path, metavar="FILE",
                        help="what tests_backend_faults has reported, for --write-docs")
    options = parser.parse_args()
    names, faults, ways = options.calls.split(","), options.faults.split(","), options.ways.split(",")
    for given, known in ((names, CALLS), (faults, FAULTS), (ways, WAYS)):
        unknown = [word for word in given if word not in known]
        if unknown:
            parser.error(f"{', '.join(unknown)}: give some of {', '.join(known)}")
        if options.write_docs and set(given) != set(known):
            parser.error("--write-docs writes the whole page: leave out --calls, --faults and --ways")
    cells, wrong, longest = {}, [], dict.fromkeys(faults, 0.0)
    for name in names:
        for fault in faults:
            for way in ways:
                reports = try_once(name, fault, way, options.timeout)
                cells[name, fault, way] = cell_of(reports)
                for rank, report in reports.items():
                    longest[fault] = max(longest[fault], report.get("seconds", float("inf")))
                    said = judge(report, name, fault, options.soon, options.timeout)
                    if said:
                        wrong.append(f"{name}, {fault}, {way}, rank {rank}: {said}")
    lines = table(cells, ways, faults)
    print("\n".join(lines), "", *(f"{fault}: the longest call took {seconds:.2f} s"
                                  for fault, seconds in longest.items()), sep="\n")
    print(*(f"WRONG: {each}" for each in wrong), f"{len(cells)} trials, {len(wrong)} wrong", sep="\n")
    if options.write_docs and not wrong:
        calls = section_of(options.system_calls) if options.system_calls else kept_section(PAGE)
        PAGE.write_text(page_of(lines, calls, options.soon, options.timeout))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
