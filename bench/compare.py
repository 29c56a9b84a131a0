"""shardwire beside gloo and several MPIs, by one loop for all of them:
`./run bench collectives --compare openmpi,intelmpi,mpich,gloo`.

Each peer is a separate program around the same loop (bench/peers/loop.cc). For each operation and number of ranks the
programs take turns in rounds, and another program begins each round, so that a slow spell of the machine hits all of
them. A time is the slowest rank's. Ratios are to the fastest peer and to a memcpy of as many bytes by all ranks at once
in the same run. The exit status is 1 when a peer is missing. Run it on an otherwise quiet machine.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import processes
import record
from peers import plot, programs, table

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = {"collectives": ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv",
                         "barrier"),
         "reshape": ("reshape",)}
ROW_UP_TO = 4096  # bytes of a call; longer calls are timed one by one


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="./run bench PART --compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--compare", required=True, help="some of " + ", ".join(programs.PEERS) + ": openmpi is the "
                        "machine's, the other MPIs are installed from PyPI into build/peers")
    parser.add_argument("-n", "--ranks", default="2,4", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--only", default="", help="names of operations")
    parser.add_argument("--min-bytes", type=int, default=4)
    parser.add_argument("--max-bytes", type=int, default=64 << 20)
    parser.add_argument("-i", "--iterations", type=int, default=50, help="samples in a round (default: %(default)s)")
    parser.add_argument("-w", "--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls-in-row", type=int, default=20,
                        help=f"calls in one sample up to {ROW_UP_TO} bytes (default: %(default)s)")
    parser.add_argument("--cell-seconds", type=float, default=1.0,
                        help="a cell of one round ends early after this time, with 3 samples at least")
    parser.add_argument("--keep-buffers", action="store_true", help="do not rewrite the buffers before each sample")
    parser.add_argument("--no-pin", action="store_true", help="leave all ranks to the scheduler; by default each rank "
                        "of every peer has a core of its own where there are enough cores")
    parser.add_argument("--json", metavar="FILE", help="also write all cells there")
    parser.add_argument("--plot", metavar="FOLDER", help="also draw size against time there, as SVG")
    parser.add_argument("--build", default=os.environ.get("SHARDWIRE_BENCH_BUILD", ""), help=argparse.SUPPRESS)
    parser.add_argument("--peers", default=str(ROOT / "build" / "peers"), help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one program may take")
    options = parser.parse_args(arguments)
    options.compare = [name for name in options.compare.split(",") if name]
    options.ranks = [int(word) for word in options.ranks.split(",")]
    options.operations = [name for name in options.only.split(",") if name] or list(PARTS[options.part])
    for what, given, known in (("peer", options.compare, programs.PEERS),
                               ("operation", options.operations, PARTS[options.part])):
        for name in given:
            if name not in known:
                parser.error(f"there is no {what} {name}; there are {', '.join(known)}")
    if min(options.ranks) < 2:
        parser.error("-n: a comparison needs 2 ranks or more")
    return options


def sizes_of(options):
    size, sizes = options.min_bytes, []
    while size <= options.max_bytes:
        sizes.append(size)
        size *= 4
    return sizes


def pins(ranks, options):
    return not options.no_pin and ranks <= len(os.sched_getaffinity(0))


def find_programs(options):
    """The programs, ours first, and the reason of each missing peer."""
    build = pathlib.Path(options.build).resolve() / "bench"
    try:
        found = programs.ours(build)
    except programs.Missing as why:
        sys.exit(f"compare.py: {why}")
    missing = {}
    for name in options.compare:
        try:
            found.append(programs.program_of(name, build, pathlib.Path(options.peers)))
        except programs.Missing as why:
            missing[name] = str(why)
    return found, missing


def run(program, ranks, operations, options):
    """One turn of a program: the loop's results."""
    with contextlib.ExitStack() as stack:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        shared = stack.enter_context(tempfile.NamedTemporaryFile(prefix="bench-compare-", dir=memory))
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardwire-compare-")))
        settings = {"operations": operations, "sizes": sizes_of(options), "iterations": options.iterations,
                    "warmup": options.warmup, "calls_in_row": options.calls_in_row, "row_up_to": ROW_UP_TO,
                    "cell_seconds": options.cell_seconds, "rewrite": not options.keep_buffers,
                    "pin": pins(ranks, options),
                    "shared": shared.name, "results": str(folder / "results.json")}
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        command = program.command(ranks, str(folder / "settings.json"))
        try:
            done = processes.run(command, timeout=options.timeout, env={**os.environ, **program.environment})
        except subprocess.TimeoutExpired:
            raise programs.Missing(f"{ranks} ranks took more than {options.timeout:g} s") from None
        if done.returncode or not (folder / "results.json").exists():
            raise programs.Missing(f"{shlex.join(command)} ended with {done.returncode}: "
                                   f"{(done.stdout + done.stderr)[-1000:]}")
        return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def measure(found, missing, options):
    """(name, result) of every turn. A peer that fails takes part no more: `missing` has the reason."""
    results = []
    for ranks in options.ranks:
        for operation in options.operations:
            for number in range(options.rounds):
                begin = number % len(found)
                for program in found[begin:] + found[:begin]:
                    if program.by in missing:
                        continue
                    print(f"{ranks} ranks, {operation}, round {number + 1} of {options.rounds}: {program.by}",
                          file=sys.stderr, flush=True)
                    yardstick = [table.YARDSTICK] if program.by == "ordinary" and operation != "barrier" else []
                    try:
                        result = run(program, ranks, [operation, *yardstick], options)
                    except programs.Missing as why:
                        if program.by in programs.OURS:
                            sys.exit(f"compare.py: {why}")
                        missing[program.by] = str(why)
                        continue
                    results.append((program.by, result))
    return results


def report_of(results, missing, options, where, command):
    return {"bench": "compare", "part": options.part, **where, "command": command, "ranks": options.ranks,
            "rounds": options.rounds, "iterations": options.iterations, "calls_in_row": options.calls_in_row,
            "row_up_to": ROW_UP_TO, "rewritten": not options.keep_buffers,
            "pinned": [ranks for ranks in options.ranks if pins(ranks, options)],
            "by": {by: result["version"] for by, result in results}, "missing": missing,
            "lacks": {by: sorted({name for other, result in results if other == by for name in result["lacks"]})
                      for by, _ in results},
            "cells": table.cells_of(results)}


def head(report):
    """The lines before the tables: machine, method, versions."""
    lines = [f"{report['cpu']}, {report['cores']} cores, Linux {report['kernel']}, load {report['load_before']:.1f} "
             f"before; {report['date']}, commit {report['commit']}{' with changes' if report['changed'] else ''}",
             f"{report['rounds']} rounds of at most {report['iterations']} samples; a sample up to "
             f"{report['row_up_to']} bytes is the mean of {report['calls_in_row']} calls, else one call, of the "
             "slowest rank",
             "buffers are " + ("rewritten before each sample" if report["rewritten"] else "not rewritten")
             + f"; the calling thread of each rank is pinned to a core with {report['pinned'] or 'no number of'} ranks"]
    lines += [f"{by}: {version}" for by, version in report["by"].items()]
    lines += [f"{by} has no {', '.join(names)}" for by, names in report["lacks"].items() if names]
    return lines


def main():
    options = parse_arguments()
    found, missing = find_programs(options)
    results = measure(found, missing, options)
    report = report_of(results, missing, options, record.WHERE, "./run bench " + shlex.join(sys.argv[1:]))
    names = [program.by for program in found if program.by in {cell["by"] for cell in report["cells"]}]
    print("\n".join(head(report) + table.text_table(report["cells"], names)))
    if options.json:
        record.warn_of_commit()
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    if options.plot:
        print(plot.draw(report["cells"], names, options.plot))
    for name, why in missing.items():
        print(f"missing: {name}: {why}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
