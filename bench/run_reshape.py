"""Runs every reshape bench in turns and prints one table: memcpy, local strided copy, gloo, DTensor, MPI_Alltoallw,
shardwire.

The programs take turns in rounds, so that a slow spell of the machine hits all of them; a median is over all rounds.
Ratios are to the local strided copy of the same bytes, by all ranks at once, in the same run. Run it on an otherwise
quiet machine.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import processes
import record

HERE = pathlib.Path(__file__).resolve().parent
YARDSTICK = "local_copy"
# latency_cases.cc and alltoallw_bench.cc time single calls on each rank, and rank 0 makes the report.
TIMES = "Times of the slowest rank (of rerun, barrier, allreduce_4B and mpi_allreduce_4B: of rank 0)"
# The two cases of each ratio, and the goal for two ranks if there is one.
RATIOS = (
    ("heap", "local_copy", 1.25),
    ("heap", "local_memcpy_runs", None),
    ("heap", "alltoallw", None),
    ("heap", "gloo_all_gather", None),
    ("heap", "dtensor_redistribute", None),
    ("ordinary", "local_copy", 2.2),
    ("ordinary", "alltoallw", None),
    ("partial_sum_heap", "partial_none_heap", 1.3),
    ("partial_sum_ordinary", "partial_none_ordinary", 1.3),
    ("partial_sum_heap", "local_copy", None),
    ("allreduce_4B", "mpi_allreduce_4B", None),
)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("-i", "--iterations", type=int, default=7, help="per program and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", default=os.environ.get("SHARDWIRE_BENCH_BUILD", ""),
                        help="the build folder (default: $SHARDWIRE_BENCH_BUILD)")
    parser.add_argument("--json", metavar="FILE", help="also write all samples there")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one program may take")
    return parser.parse_args()


def find_build(named):
    if not named:
        sys.exit("run_reshape.py: say where the benches are built: --build DIR or SHARDWIRE_BENCH_BUILD (./run bench "
                 "does it all)")
    folder = pathlib.Path(named) / "bench"
    if not folder.is_dir():
        sys.exit(f"run_reshape.py: there is no {folder}: build with -DSHARDWIRE_BENCH=ON (./run bench does it all)")
    return folder


def mpi_command(ranks):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", "-n", str(ranks), *root, "--oversubscribe", "--bind-to", "none"]


def programs(options):
    """(title, command) of what can run here; says what cannot, and why."""
    build, common = find_build(options.build), ["--rows", str(options.rows), "--columns", str(options.columns), "-i",
                                                str(options.iterations), "--json"]
    ranks = ["-n", str(options.ranks)]
    found, missing = [], []
    if (build / "reshape_bench").exists():
        found.append(("shardwire", [str(build / "reshape_bench"), *ranks, *common]))
    else:
        missing.append("reshape_bench is not built (libcli11-dev and nlohmann-json3-dev)")
    if (build / "alltoallw_bench").exists() and shutil.which("mpirun"):
        found.append(("openmpi", [*mpi_command(options.ranks), str(build / "alltoallw_bench"), *common]))
    else:
        missing.append("alltoallw_bench is not built, or there is no mpirun (openmpi-bin and libopenmpi-dev)")
    if subprocess.run([sys.executable, "-c", ("import torch.distributed as d; assert d.is_gloo_available() if "
                                              "hasattr(d, 'is_gloo_available') else True")],
                      capture_output=True).returncode == 0:
        found.append(("torch", [sys.executable, str(HERE / "gloo_reshape.py"), *ranks, *common]))
    else:
        missing.append(f"{sys.executable} has no torch with gloo")
    for line in missing:
        print(f"left out: {line}", file=sys.stderr)
    return found, missing


def run(command, timeout):
    """The JSON line that the program printed last."""
    done = processes.run(command, timeout=timeout)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"run_reshape.py: {' '.join(command)} ended with "
                 f"{done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def merge(merged, report):
    for name, case in report["cases"].items():
        entry = merged["cases"].setdefault(name, {"bench": report["bench"], "bytes": case["bytes"], "us": []})
        entry["us"] += case["us"]
    merged["counts"].update(report["counts"])


def print_tables(merged, options):
    cases = merged["cases"]
    middles = {name: statistics.median(case["us"]) for name, case in cases.items()}
    yardstick = middles.get(YARDSTICK)
    print(f"Shard(0) -> Shard(1), f32 {options.rows} x {options.columns}, {options.ranks} ranks on {os.cpu_count()} "
          f"cores. {TIMES}")
    shown = {}
    print(f"{'case':<26} {'by':<16} {'n':>6} {'median(us)':>12} {'min(us)':>12} {'GB/s':>8} {'x local_copy':>13}")
    for name, case in sorted(cases.items(), key=lambda item: (item[1]["bytes"] == 0, middles[item[0]])):
        moves = case["bytes"] > 0
        rate = f"{case['bytes'] / middles[name] / 1e3:.2f}" if moves else "-"
        ratio = f"{middles[name] / yardstick:.2f}" if moves and yardstick else "-"
        shown[name, case["bench"]] = {"n": len(case["us"]), "median, us": middles[name], "least, us": min(case["us"]),
                                      "GB/s": case["bytes"] / middles[name] / 1e3 if moves else None,
                                      "x local_copy": middles[name] / yardstick if moves and yardstick else None}
        print(f"{name:<26} {case['bench']:<16} {len(case['us']):>6} {middles[name]:>12.2f} {min(case['us']):>12.2f} "
              f"{rate:>8} {ratio:>13}")
    for name, value in merged["counts"].items():
        print(f"{name:<43} {value:>6g}")
    print()
    print(f"{'ratio of medians':<50} {'is':>8} {'goal':>8}")
    compared = {}
    for above, below, goal in RATIOS:
        if above in middles and below in middles:
            compared[f"{above} / {below}",] = {"is": middles[above] / middles[below], "goal, at most": goal}
            print(f"{above + ' / ' + below:<50} {middles[above] / middles[below]:>8.3f} "
                  f"{'<= ' + str(goal) if goal else '-':>8}")
    size = f"f32 {options.rows} x {options.columns}, {options.ranks} ranks"
    return [record.table(f"{TIMES}, {size}", ["case", "by"], shown),
            record.table(f"Ratios of medians, {size}", ["ratio"], compared)]


def main():
    options = parse_arguments()
    merged = {"cases": {}, "counts": {}}
    found, missing = programs(options)
    for number in range(options.rounds):
        for title, command in found:
            print(f"round {number + 1} of {options.rounds}: {title}", file=sys.stderr, flush=True)
            merge(merged, run(command, options.timeout))
    tables = print_tables(merged, options)
    if options.json:
        record.write(options.json, "move", tables, {line.split()[0]: line for line in missing},
                     called="reshape", **merged)
    return 0


if __name__ == "__main__":
    sys.exit(main())
