"""Each bench of bench/ still runs, with little to do; the figures mean nothing here. The campaigns have separate tests,
and the C++ benches are among the C++ tests.

Left out are kernels.py, which compiles for minutes (test_kernels.py has its ops), rounds.py and symm.py, which need
thousands of rounds and a C++ program.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from run_program import run_program

BENCH = Path(__file__).resolve().parents[2] / "bench"

RUNS = {
    "beside.py": ["--ranks", "2", "--loops", "1", "--iterations", "20", "--turns", "1", "--timeout", "0.5"],
    "cast.py": ["--rows", "64", "--cols", "64", "-i", "2"],
    "collectives.py": ["-n", "2", "-i", "2", "-w", "1", "--max-bytes", "256", "--latency-calls", "20", "--only",
                       "all_reduce,latency"],
    "experts.py": ["--tokens", "16", "--hidden", "32", "--ranks", "2", "--rounds", "1", "--repeats", "1"],
    "faults.py": ["--calls", "ShortAllReduce,NewGroup", "--faults", "killed", "--ways", "shm", "--timeout", "30",
                  "--soon", "20"],
    "fft.py": ["--shapes", "16x16,64", "--ranks", "2", "--ways", "shm", "--rounds", "1", "--repeats", "1"],
    "gloo_reshape.py": ["-n", "2", "--rows", "64", "--columns", "64", "-i", "2"],
    "groups.py": ["--ranks", "2", "--rounds", "1", "--turns", "1", "--many", "2", "--json", os.devnull],
    "matmul.py": ["--sizes", "32", "--ranks", "2", "--rounds", "1", "--repeats", "1", "--dtype", "float32,float64",
                  "--only", "shardwire,dtensor-shardwire"],
    "queues.py": ["--rounds", "5", "--entries", "2", "--turns", "1", "--bytes", "4096", "--json", os.devnull],
    "solver.py": ["--sizes", "32", "--ranks", "2", "--rounds", "1", "--repeats", "1", "--dtype", "float32,float64",
                  "--only", "shardwire"],
    "weights.py": ["-i", "1", "--hidden", "64", "--layers", "1"],
}
# Benches with ranks started by the launcher.
LAUNCHED = {"cast.py"}


@pytest.mark.any_torch
@pytest.mark.parametrize("name", RUNS)
def test_a_bench_runs(name: str) -> None:
    launcher = ["-m", "shardwire.launch", "-n", "2"] if name in LAUNCHED else []
    run = run_program([sys.executable, *launcher, BENCH / name, *RUNS[name]],
                      env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    assert re.search(r"\d\.\d", run.stdout), f"no figure: {said}"


@pytest.mark.any_torch
def test_faults_writes_no_part_of_its_page() -> None:
    run = run_program([sys.executable, "-B", BENCH / "faults.py", "--write-docs", "--calls", "Run"])
    assert run.returncode == 2 and "--write-docs writes the whole page" in run.stderr, run.stderr


# A rank fails while another rank waits for it.
FAILURES = {
    "groups": """
children = {}
for rank in range(2):
    if not (child := os.fork()):
        time.sleep(0.1 if rank == 1 else 600)
        os._exit(1)
    children[child] = rank
sys.exit(f"rank {groups.first_failure(children)} failed")
""",
    "queues": """
def fail(pair):
    raise RuntimeError("wrong bytes")

queues.forked(lambda rank: None)(fail)
time.sleep(600)
""",
    "weights": """
class Rank:
    def __init__(self, rank, size, options, folder, barrier, pipe):
        self.rank, self.barrier = rank, barrier

def case(self):
    assert self.rank != 1, "wrong bytes"
    self.barrier.wait()

weights.Rank, weights.CASES["sync"] = Rank, (case, 2)
weights.run("sync", types.SimpleNamespace(ranks=1), "")
"""}
SAID = {"groups": "rank 1 failed", "queues": "the consumer failed", "weights": "a rank of sync failed"}


@pytest.mark.any_torch
@pytest.mark.parametrize("name", FAILURES)
def test_a_bench_ends_when_a_rank_fails(name: str) -> None:
    head = f"import os, sys, time, types\nsys.path.insert(0, {str(BENCH)!r})\nimport {name}\n"
    run = run_program([sys.executable, "-B", "-c", head + FAILURES[name]])
    assert run.returncode == 1 and SAID[name] in run.stderr, run.stdout + run.stderr
