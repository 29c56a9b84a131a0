"""Runs the C++ tests for RDMA devices in machines with devices: the contract, compile_op and collectives over rdma
inside one machine and across two, and the death of a machine. And the tests of encrypted tcp, since the machines'
kernel has TLS, which the kernel of the host may lack.

Usage: run_rdma.py --build FOLDER [--quick] [--only NAME,...]
Prints one line per part, the failures, and "N passed, N failed, N skipped". If no machine can be started (no QEMU, no
kernel), prints the reason and counts every part as skipped.
"""

import argparse
import collections
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import kernel
from machines import Machines

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gtest_results  # noqa: E402

Count = collections.namedtuple("Count", "passed failed skipped")
# nodes: machines; ranks: 0 if the tests start the ranks; cases: of random tests; limit: seconds; memory: MiB of each
Part = collections.namedtuple("Part", "name nodes ranks program filter cases limit memory", defaults=[2048])

PARTS = [
    Part("contract", 1, 0, "tests_backend_transport_rdma", "*", 0, 420),
    Part("tls", 1, 0, "tests_backend_transport_tcp", "TcpTls.*:Tcp/*/Tls-*Killed*:*Sleep*:*Ring*:*WakeUp*", 0, 240),
    Part("power-cut", 2, 2, "tests_backend_transport_rdma", "RdmaPowerCut.IsNoticedWhileFetching", 0, 90),
    Part("power-cut-idle", 2, 2, "tests_backend_transport_rdma", "RdmaPowerCut.IsNoticedWhileIdle", 0, 90),
    # Across two machines the ranks are processes started by the rig, as mpirun does elsewhere
    # (tests/support/launched_ranks.h). Tests of deaths and sleepers need ranks started by the
    # test.
    Part("contract-two", 2, 6, "tests_backend_transport_rdma",
         "Rdma/*/Processes:-*Killed*:*Sleep*:*Ring*:*WakeUp*:*EveryPair*", 0, 240),
    Part("compile_op-two", 2, 6, "tests_oracle", "Paths/OracleTest.*:-*copied", 300, 240),
    Part("collectives-two", 2, 6, "tests_oracle", "Paths/CollectivesOracleTest.*:-*copied*:*_processes", 300, 240),
    Part("compile_op", 1, 0, "tests_oracle", "Paths/OracleTest.*:-*copied", 2000, 240),
    Part("collectives", 1, 0, "tests_oracle", "Paths/CollectivesOracleTest.*:-*copied*", 1000, 240),
    # one of the ranks dies with 2 GiB
    Part("failures", 1, 0, "tests_multiprocess", "-TwoHosts.*:ManyGroups.*:*LimitedAddressSpace*", 0, 300, 4096),
    # Without the tests that choose shm or tcp, which need no RDMA device, and without the tests of many ranks, whose
    # rings are more than the machine's memory.
    Part("communicator", 1, 0, "tests_backend",
         "-Options*:*LateLinks*/shm:*LateLinks*/tcp:LateLinksOfTwoHosts*:*Many*:*AreMadeByThe*/rdma:*AreAllMade*/rdma:"
         "*ACompiledOpMakes*/rdma:*RandomOperations*Peers*/rdma", 0, 420, 4096),
]

# A job of torch.distributed over two machines. Importing torch takes 40 s there, in torchrun and once more in the
# worker.
TORCH_LIMIT = 480
TORCH_SCRIPT = """
"$RIG_PYTHON" -m torch.distributed.run --nnodes 2 --nproc_per_node 1 --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port 29561 \\
  $RIG_TORCHRUN "$RIG_ROOT"/tests/python/two_nodes_job.py
"""

# Started on each machine: the machine's share of the ranks, or the unchanged program.
SCRIPT = """
export PATH=$PATH:/usr/sbin
if [ "$RIG_RANKS" = 0 ]; then
  GTEST_OUTPUT=xml:"$RIG_RESULTS"/all.xml timeout -k 5 "$RIG_LIMIT" "$RIG_PROGRAM"
  exit
fi
export SHARDWIRE_TEST_FOLDER=$RIG_RESULTS OMPI_COMM_WORLD_SIZE=$RIG_RANKS
status=0
for ((rank = NODE_RANK; rank < RIG_RANKS; rank += NNODES)); do
  OMPI_COMM_WORLD_RANK=$rank GTEST_OUTPUT=xml:"$RIG_RESULTS"/rank$rank.xml timeout -k 5 "$RIG_LIMIT" "$RIG_PROGRAM" >"$RIG_RESULTS"/rank$rank.log 2>&1 &
  children="$children $!"
done
for child in $children; do wait "$child" || status=$?; done
exit $status
"""


def run_part(part, build, quick):
    """The kernel of an emulated machine crashes once in a while, at boot (machines.py) and later. A crash of a kernel
    is no defect of a program that runs on the kernel: the part is then run once more, and the cause is printed."""
    count, crashes = run_part_once(part, build, quick)
    if crashes:
        print(f"  rdma {part.name} is run once more: {'; '.join(crashes)}", flush=True)
        count, crashes = run_part_once(part, build, quick)
    return count


def run_part_once(part, build, quick):
    """The counts, and the crashes of machines' kernels."""
    program = build / "tests" / part.program
    if not program.exists():
        print(f"rdma {part.name}: {program} is missing: was libibverbs-dev there when this was built?")
        return Count(0, 1, 0), []
    # A folder that the machines see: each has a separate /tmp, so the folder is shared by name.
    results = pathlib.Path(tempfile.mkdtemp(prefix="shardwire-rdma-"))
    said, start = io.BytesIO(), time.monotonic()
    cases = part.cases // 5 if quick else part.cases
    environment = {"RIG_PROGRAM": program, "RIG_RESULTS": results, "RIG_RANKS": part.ranks,
                   "RIG_LIMIT": part.limit - 30, "GTEST_FILTER": part.filter}
    environment |= {"SHARDWIRE_TRANSPORTS": "rdma", "SHARDWIRE_ORACLE_CASES": max(cases, 50), "GTEST_COLOR": "no"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        show = [str(build)] if str(build).startswith(("/tmp/", "/run/", "/dev/shm/")) else []
        with Machines(SCRIPT, nodes=part.nodes, memory=part.memory, timeout=part.limit, write=[str(results)], show=show,
                      out=said) as machines:
            status = machines.run()
        outcomes, unread = gtest_results.read([results / f"rank{rank}.xml" for rank in range(part.ranks)]
                                              or [results / "all.xml"])
        missing = [path.stem for path in unread]
        if part.name.startswith("power-cut"):
            missing = [name for name in missing if name != "rank1"]  # the machine of rank 1 is dead
        count = Count(*gtest_results.count(outcomes))
        lost = bool(missing) or not outcomes or (status != 0 and not count.failed)
        count = count._replace(failed=count.failed + lost)
        print(f"rdma {part.name}: {count.passed} passed, {count.failed} failed, {count.skipped} skipped "
              f"({time.monotonic() - start:.0f} s)", flush=True)
        for test, outcome in outcomes.items():
            if outcome.failed:
                print(f"  failed: {test}\n"
                      + "\n".join(f"    {line}" for line in outcome.text[:1500].splitlines()[:12]))
        if lost:
            print(f"  did not get to the end: {' '.join(missing) or 'a machine'} (status {status})")
            logs = ([said.getvalue().decode(errors="replace")]
                    + [path.read_text(errors="replace") for path in sorted(results.glob("*.log"))])
            for log in logs:
                print("\n".join(f"    {line}" for line in log.splitlines()[-25:]))
        return count, machines.crashes
    finally:
        shutil.rmtree(results, ignore_errors=True)


def run_torch(python, package):
    """One test: torchrun on two machines, over rdma."""
    asked = "import importlib.metadata as m; print(m.version('torch'))"
    version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False).stdout.strip()
    if version.startswith("2.6"):
        print("rdma torch-two: NOT RUN, Debian 13's torchrun asks for libuv, which its torch was built without")
        return Count(0, 0, 1)
    # Debian's 1.13 has no metadata, and on Python 3.11 its torchrun starts no workers without redirects.
    redirects = "" if version and not version.startswith("1.13") else "-r 1 -t 1"
    values = {"RIG_PYTHON": python, "RIG_ROOT": pathlib.Path(__file__).resolve().parents[2], "RIG_TORCHRUN": redirects,
              "PYTHONPATH": package}
    values |= {"SHARDWIRE_JOB_WIRE": "rdma", "OMP_NUM_THREADS": 1, "PYTHONUNBUFFERED": 1}
    os.environ.update({name: str(value) for name, value in values.items()})
    os.environ.pop("SHARDWIRE_TRANSPORTS", None)
    said, start = io.BytesIO(), time.monotonic()
    with Machines(TORCH_SCRIPT, nodes=2, memory=3072, timeout=TORCH_LIMIT, out=said) as machines:
        status = machines.run()
    text = said.getvalue().decode(errors="replace")
    good = status == 0 and "DONE 0" in text and "DONE 1" in text
    print(f"rdma torch-two: {int(good)} passed, {int(not good)} failed, 0 skipped ({time.monotonic() - start:.0f} s)",
          flush=True)
    if not good:
        print(f"  torchrun over two machines: status {status}\n"
              + "\n".join(f"    {line}" for line in text.splitlines()[-40:]))
    return Count(int(good), int(not good), 0)


def main():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a build folder with the C++ tests")
    parser.add_argument("--python", help="an interpreter with torch, for the part torch-two")
    parser.add_argument("--package", help="the folder that holds the shardwire package built for it")
    parser.add_argument("--quick", action="store_true", help="a fifth of the random cases")
    parser.add_argument("--only", default="", help="names of parts: " + ", ".join(part.name for part in PARTS))
    options = parser.parse_args()
    wanted = [part for part in PARTS if not options.only or part.name in options.only.split(",")]
    with_torch = options.python and options.package and (not options.only or "torch-two" in options.only.split(","))
    for name in [name for name in os.environ if re.match(r"SHARDWIRE_(?!RIG_|ORACLE_SEED$|TEST_(?!FOLDER$))", name)]:
        del os.environ[name]
    total = Count(0, 0, 0)
    try:
        kernel.prepare()
    except kernel.Unavailable as reason:
        print(f"rdma: NOT RUN, no machine can be had: {reason}")
        print(f"0 passed, 0 failed, {len(wanted)} skipped")
        return 0
    if with_torch:
        total = run_torch(options.python, options.package)
    for part in wanted:
        total = Count(*(a + b for a, b in zip(total, run_part(part, options.build.resolve(), options.quick))))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
