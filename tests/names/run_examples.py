"""Runs the examples of nvmath.distributed over shardwire.distributed, and prints a table: script, ranks, seconds, ok
or the reason of the failure.

    git clone --depth 1 https://github.com/NVIDIA/nvmath-python
    ./run python tests/names/run_examples.py nvmath-python [--only TEXT] [--limit SECONDS]

The repository may also be a git directory without a work tree, or a folder of scripts. Needs Open MPI's mpiexec, and an
mpi4py that this Python finds. Each script runs on two ranks, or on four where the script says so. In the script's
processes `nvmath` is shardwire, `cupy` is numpy, devices of CUDA are the CPU, and streams, events and device contexts
do nothing. A script is ok when all ranks end with status 0.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

from stand_ins import Nothing, cuda_on_the_cpu, module, tree_of

MPIEXEC = "/usr/bin/mpiexec"
FAILED = "this rank failed: "


def stand_in_for_nvmath() -> None:
    for name in ("", ".distribution", ".fft", ".linalg", ".linalg.advanced", ".process_group", ".reshape"):
        importlib.import_module("shardwire.distributed" + name)
    names = ("CUDA_R_8F_E4M3", "CUDA_R_8F_E5M2", "CUDA_R_16F", "CUDA_R_16BF", "CUDA_R_32F", "CUDA_R_64F")
    module("nvmath", distributed=sys.modules["shardwire.distributed"], CudaDataType=enum.Enum("CudaDataType", names))
    for name in [each for each in sys.modules if each.startswith("shardwire.distributed")]:
        sys.modules["nvmath" + name.removeprefix("shardwire")] = sys.modules[name]


def stand_in_for_cupy() -> None:
    import numpy

    def rand(*shape: int, dtype: Any = numpy.float64) -> Any:
        return numpy.random.random_sample(shape).astype(dtype)

    def benchmark(function: Any, *_: Any, **__: Any) -> types.SimpleNamespace:
        begin = time.perf_counter()
        function()
        return types.SimpleNamespace(gpu_times=numpy.array([time.perf_counter() - begin]))

    numpy.random.rand = rand  # type: ignore[assignment]
    cuda = {"Device": Nothing, "Stream": Nothing, "Event": Nothing, "get_current_stream": Nothing,
            "runtime": types.SimpleNamespace(getDeviceCount=lambda: 1, setDevice=Nothing)}
    numpy.cuda = module("cupy.cuda", **cuda)  # type: ignore[attr-defined]
    numpy.asnumpy = numpy.asarray  # type: ignore[attr-defined]
    sys.modules["cupy"] = numpy
    profiler = module("cupyx.profiler", benchmark=benchmark)
    module("cupyx", profiler=profiler)
    system = types.SimpleNamespace(num_devices=1, get_num_devices=lambda: 1)
    module("cuda", core=module("cuda.core", system=system, Device=Nothing))


def be_rank(script: str) -> None:
    """Runs the script as one rank of MPI. A failed rank ends the job: other ranks may wait for this rank."""
    from mpi4py import MPI
    try:
        stand_in_for_nvmath()
        stand_in_for_cupy()
        sys.argv = [script]
        # numpy has the address of an array elsewhere.
        source = pathlib.Path(script).read_text().replace(".data.ptr", ".ctypes.data")
        with cuda_on_the_cpu():
            exec(compile(source, script, "exec", dont_inherit=True), {"__name__": "__main__", "__file__": script})
    except BaseException as error:  # pylint: disable=broad-except
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} at `{place.line}`: {error}".replace("\n", " ")
        # One write, because mpiexec mixes the ranks' lines.
        os.write(2, f"{traceback.format_exc()}\n{FAILED}{reason}\n".encode())
        MPI.COMM_WORLD.Abort(1)


@contextlib.contextmanager
def scripts_of(repository: pathlib.Path) -> Iterator[pathlib.Path]:
    """The folder that has the scripts."""
    with tree_of(repository, "examples/distributed") as tree:
        inner = tree / "examples" / "distributed"
        yield inner if inner.is_dir() else tree


def ranks_of(script: pathlib.Path) -> int:
    return 4 if script.stem.endswith("_4p") or "requires 4 processes" in script.read_text() else 2


def reason_of(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip("- ")] or ["no output"]
    reasons = [line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)]
    return reasons[0] if reasons else lines[-1]


def run(script: pathlib.Path, limit: float) -> str:
    # `timeout` ends mpiexec by SIGTERM, and mpiexec then ends the ranks.
    command = ["timeout", str(limit), MPIEXEC, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks_of(script)),
               sys.executable, __file__, "--rank", str(script)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 124:
        return f"not done after {limit:g} s"
    return "ok" if done.returncode == 0 else reason_of(done.stdout + done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=pathlib.Path, help="of nvmath-python")
    parser.add_argument("--only", default="", help="only scripts whose path has this text")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one script (600)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        be_rank(str(given.repository))
        return
    found = []
    with scripts_of(given.repository.resolve()) as folder:
        for script in sorted(folder.rglob("*.py")):
            name = str(script.relative_to(folder))
            if given.only in name:
                begin = time.monotonic()
                found.append(run(script, given.limit))
                print(f"{name:<70} {ranks_of(script)} {time.monotonic() - begin:6.1f} s  {found[-1]}", flush=True)
    num_ok = found.count("ok")
    print(f"{len(found)} scripts, {num_ok} ok, {len(found) - num_ok} failed")
    sys.exit(num_ok < len(found) or not found)


if __name__ == "__main__":
    main()
