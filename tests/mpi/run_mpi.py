"""Runs C++ tests whose ranks are processes of an MPI job: every rank runs all tests, and a test passes when every rank
passes.

Usage: run_mpi.py BUILD [--quick]. Prints one line per program, the failures, and "N passed, N failed, N skipped"; exit
status 1 when a test failed, or without mpirun: a machine that cannot run these tests has not passed.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gtest_results  # noqa: E402
import network_namespaces  # noqa: E402

# Rank 0 writes to the log, each other rank to a separate file. Each rank has its results in a file, since several ranks
# would choose one name.
WRAPPER = """
rank=${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}
export GTEST_OUTPUT=xml:$SHARDWIRE_TEST_FOLDER/rank$rank.xml
[ "$rank" = 0 ] || exec >"$SHARDWIRE_TEST_FOLDER/rank$rank.log" 2>&1
exec "$@"
"""


def mpirun(ranks, *more):
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), "--mca", "btl_base_warn_component_unused", "0", *more]
    return command + (["--allow-run-as-root"] if os.geteuid() == 0 else [])


AGENT = """#!/bin/sh
# How mpirun starts its daemon on another host: "agent HOST COMMAND".
host=$1
shift
exec ip netns exec "$host" unshare -u sh -c "hostname $host; $*"
"""


@contextlib.contextmanager
def two_hosts(ranks):
    """A command prefix and options of mpirun for a job on two hosts joined by a network only: two network namespaces of
    this machine with different host names. None where the namespaces cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="shardwire-mpi-agent-") as folder, contextlib.ExitStack() as stack:
        try:
            first, second = stack.enter_context(network_namespaces.two_namespaces("10.78.0"))
        except OSError as error:
            print(f"no two hosts: {error}", flush=True)
            yield None
            return
        agent = pathlib.Path(folder) / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        hosts = f"{first}:{ranks - ranks // 2},{second}:{ranks // 2}"
        on_the_first = ["ip", "netns", "exec", first, "unshare", "-u", "sh", "-c", f'hostname {first}; exec "$@"', "sh"]
        yield on_the_first, ["--host", hosts, "--mca", "plm_rsh_agent", str(agent)]


def run_on_two_hosts(title, program, ranks, limit, **environment):
    with two_hosts(ranks) as hosts:
        if hosts is None:
            print(f"{title}: NOT RUN: two network namespaces cannot be made here", flush=True)
            return 0, 0, 1
        return run(title, program, ranks, limit, mpi_options=hosts[1], prefix=hosts[0], **environment)


def run(title, program, ranks, limit, mpi_options=(), may_die=(), prefix=(), **environment):
    """How many tests passed, failed and were skipped; says which failed."""
    with tempfile.TemporaryDirectory(prefix="shardwire-mpi-") as folder:
        env = {**os.environ, "SHARDWIRE_TEST_FOLDER": folder, "SHARDWIRE_TRANSPORTS": "mpi", **environment}
        child = subprocess.Popen([*prefix, *mpirun(ranks, *mpi_options), "sh", "-c", WRAPPER, "sh", str(program)],
                                 env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output = child.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            output = child.communicate()[0].decode(errors="replace") + f"\n{title}: still running after {limit} s\n"
        except BaseException:
            os.killpg(child.pid, 9)
            raise
        logs = {f"rank{rank}": (pathlib.Path(folder) / f"rank{rank}.log") for rank in range(1, ranks)}
        outcomes, missing = gtest_results.read(
            [pathlib.Path(folder) / f"rank{rank}.xml" for rank in range(ranks) if rank not in may_die])
        passed, failed, skipped = gtest_results.count(outcomes)
        lost = bool(missing) or not outcomes or (child.returncode != 0 and not may_die and not failed)
        if lost or failed:
            print(output)
            for name, log in logs.items():
                if log.exists():
                    print(f"--- {name}\n" + log.read_text(errors="replace"))
        print(f"{title}: {passed} passed, {failed + lost} failed, {skipped} skipped", flush=True)
        for test, outcome in outcomes.items():
            if outcome.failed:
                print(f"  failed: {test}")
        if lost:
            print(f"  failed: {title}: a rank did not get to the end (status {child.returncode})")
        return passed, failed + lost, skipped


def main():
    build, quick = pathlib.Path(sys.argv[1]).resolve(), "--quick" in sys.argv
    if shutil.which("mpirun") is None:
        print("mpi: there is no mpirun (Debian: openmpi-bin): nothing was tested", file=sys.stderr)
        print("0 passed, 1 failed, 0 skipped")
        return 1
    cases = {"SHARDWIRE_ORACLE_CASES": "400" if quick else "4000"}
    programs = [
        ("contract", "tests_mpi", 5, 600, {"GTEST_FILTER": "-MpiDeath.*:MpiPairs.*"}),
        # No earlier test may have made the pair.
        ("pairs left behind", "tests_mpi", 2, 120, {"GTEST_FILTER": "MpiPairs.*"}),
        # By default mpirun ends all ranks when one dies.
        ("death", "tests_mpi", 2, 60,
         {"GTEST_FILTER": "MpiDeath.*", "mpi_options": ["--mca", "orte_enable_recovery", "1"], "may_die": [1]}),
        ("compile_op", "tests_oracle", 6, 800, {"GTEST_FILTER": "Paths/OracleTest.*:-*copied", **cases}),
        ("collectives", "tests_oracle", 5, 800,
         {"GTEST_FILTER": "Paths/CollectivesOracleTest.*:-*copied*:*_processes", **cases}),
    ]
    counts = [0, 0, 0]
    for title, name, ranks, limit, environment in programs:
        program = build / "tests" / name
        if not program.exists():
            print(f"mpi: {program} is missing: was MPI (libopenmpi-dev) there when this was built?", file=sys.stderr)
            counts[1] += 1
            continue
        counts = [sum(pair) for pair in zip(counts, run(title, program, ranks, limit, **environment))]
    # The pairs' test works on one host only. Then shared memory on each host and MPI between them in one group.
    for title, name, ranks, environment in [
        ("contract, two hosts", "tests_mpi", 4, {"GTEST_FILTER": "-MpiDeath.*:MpiPairs.*:*EveryPair*"}),
        ("compile_op, two hosts", "tests_oracle", 6,
         {"GTEST_FILTER": "Paths/OracleTest.*:-*copied", "SHARDWIRE_TRANSPORTS": "shm,mpi", **cases}),
    ]:
        if (build / "tests" / name).exists():
            counts = [sum(pair) for pair in zip(
                counts, run_on_two_hosts(title, build / "tests" / name, ranks, 600, **environment))]
    print("{} passed, {} failed, {} skipped".format(*counts))
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
