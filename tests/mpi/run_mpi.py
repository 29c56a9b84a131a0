"""Runs C++ tests whose ranks are processes of an MPI job: every rank runs all tests, and a test passes when it passes on each.

Usage: run_mpi.py BUILD [--quick]. Prints one line per program, what failed, and "N passed, N failed, N skipped"; exit status 1 when anything
failed, or where there is no mpirun: a machine that cannot run these tests has not passed them.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

# Rank 0 writes to the log; the others to files of their own. Each has its results in a file, since several would choose one name.
WRAPPER = """
rank=${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}
export GTEST_OUTPUT=xml:$SHARDWIRE_TEST_FOLDER/rank$rank.xml
[ "$rank" = 0 ] || exec >"$SHARDWIRE_TEST_FOLDER/rank$rank.log" 2>&1
exec "$@"
"""


def mpirun(ranks, *more):
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), "--mca", "btl_base_warn_component_unused", "0", *more]
    return command + (["--allow-run-as-root"] if os.geteuid() == 0 else [])


def run(title, program, ranks, limit, mpi_options=(), may_die=(), **environment):
    """Outcomes by test: how often it passed, failed, was skipped on the ranks. Empty when the ranks did not get through."""
    with tempfile.TemporaryDirectory(prefix="shardwire-mpi-") as folder:
        env = dict(os.environ, SHARDWIRE_TEST_FOLDER=folder, SHARDWIRE_TRANSPORTS="mpi", **environment)
        child = subprocess.Popen([*mpirun(ranks, *mpi_options), "sh", "-c", WRAPPER, "sh", str(program)], env=env, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output = child.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            output = child.communicate()[0].decode(errors="replace") + f"\n{title}: still running after {limit} s\n"
        logs = {f"rank{rank}": (pathlib.Path(folder) / f"rank{rank}.log") for rank in range(1, ranks)}
        outcomes, complete = read(pathlib.Path(folder), [rank for rank in range(ranks) if rank not in may_die])
        failed = [name for name, (_, bad, _) in outcomes.items() if bad]
        if not complete or failed or (child.returncode and not may_die):
            print(output)
            for name, log in logs.items():
                if log.exists():
                    print(f"--- {name}\n" + log.read_text(errors="replace"))
        if not complete or (child.returncode and not may_die and not failed):
            outcomes[f"{title}: a rank did not get to the end (status {child.returncode})"] = (0, 1, 0)
        return outcomes


def read(folder, ranks):
    outcomes, complete = {}, True
    for rank in ranks:
        path = folder / f"rank{rank}.xml"
        if not path.exists():
            complete = False
            continue
        for case in xml.parse(path).iter("testcase"):
            if case.get("status") != "run":
                continue
            passed, failed, skipped = outcomes.get(f"{case.get('classname')}.{case.get('name')}", (0, 0, 0))
            bad, skip = case.find("failure") is not None, case.get("result") == "skipped"
            outcomes[f"{case.get('classname')}.{case.get('name')}"] = (passed + (not bad and not skip), failed + bad, skipped + skip)
    return outcomes, complete and bool(outcomes)


def main():
    build, quick = pathlib.Path(sys.argv[1]).resolve(), "--quick" in sys.argv
    if shutil.which("mpirun") is None:
        print("mpi: there is no mpirun (Debian: openmpi-bin): nothing was tested", file=sys.stderr)
        print("0 passed, 1 failed, 0 skipped")
        return 1
    cases = {"SHARDWIRE_ORACLE_CASES": "400" if quick else "4000"}
    programs = [
        ("contract", "tests_mpi", 5, 600, {"GTEST_FILTER": "-MpiDeath.*"}),
        # By default mpirun ends all ranks when one dies.
        ("death", "tests_mpi", 2, 60, {"GTEST_FILTER": "MpiDeath.*", "mpi_options": ["--mca", "orte_enable_recovery", "1"], "may_die": [1]}),
        ("compile_op", "tests_oracle", 6, 1800, {"GTEST_FILTER": "Paths/OracleTest.*:-*copied", **cases}),
        ("collectives", "tests_oracle", 5, 1800, {"GTEST_FILTER": "Paths/CollectivesOracleTest.*:-*copied*:*_processes", **cases}),
    ]
    passed = failed = skipped = 0
    for title, name, ranks, limit, environment in programs:
        program = build / "tests" / name
        if not program.exists():
            print(f"mpi: {program} is missing: was MPI (libopenmpi-dev) there when this was built?", file=sys.stderr)
            failed += 1
            continue
        outcomes = run(title, program, ranks, limit, **environment)
        counts = [sum(1 for good, bad, skip in outcomes.values() if test(good, bad, skip)) for test in
                  (lambda good, bad, skip: not bad and good, lambda good, bad, skip: bad, lambda good, bad, skip: not bad and not good)]
        print(f"{title}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped", flush=True)
        for test, (_, bad, _) in outcomes.items():
            if bad:
                print(f"  failed: {test}")
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
