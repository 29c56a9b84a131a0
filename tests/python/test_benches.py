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
    "matmul.py": ["--sizes", "32", "--ranks", "2", "--rounds", "1", "--repeats", "1", "--only",
                  "shardwire,dtensor-shardwire"],
    "queues.py": ["--rounds", "5", "--entries", "2", "--turns", "1", "--bytes", "4096", "--json", os.devnull],
    "solver.py": ["--sizes", "32", "--ranks", "2", "--rounds", "1", "--repeats", "1", "--only", "shardwire"],
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
