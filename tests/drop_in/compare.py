"""Frameworks that ask for gloo, run unchanged over gloo and over shardwire under gloo's name (SHARDWIRE_AS=gloo): equal
weights, and the time of a step.

compare.py [JOB...]: the jobs of jobs/ in turns, gloo first, and one table. Called by ../../run frameworks, with the
packages in the environment; the table names the missing package of a job. Weights are equal when the weights of every
rank are equal, bit for bit, after all runs. A step's time is the median over rank 0's timed steps of all runs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from entry_points import write_entry_points  # noqa: E402

BACKENDS = {"gloo": {}, "shardwire": {"SHARDWIRE_AS": "gloo"}}


class Job(NamedTuple):
    """A program of jobs/ with its words. packages: the needed packages beside torch, by pip's names; the first is the
    framework, and its version is shown.
    """

    name: str
    title: str
    program: str
    words: tuple[str, ...] = ()
    ranks: int = 2
    packages: tuple[str, ...] = ()
    torchrun: bool = True


JOBS = [
    Job("ddp", "DDP", "with_ddp.py"),
    Job("fsdp", "FSDP2", "with_fsdp.py", ("fsdp",)),
    Job("fsdp-tp", "FSDP2 x TP", "with_fsdp.py", ("fsdp-tp",), 4),
    Job("dcp", "DCP, every other save asynchronous", "with_checkpoint.py"),
    Job("pipeline", "pipelining, 1F1B", "with_pipeline.py"),
    Job("lightning", "Lightning, DDP", "with_lightning.py", packages=("lightning",)),
    Job("fabric", "Fabric, DDP", "with_fabric.py", packages=("lightning",)),
    Job("accelerate", "accelerate", "with_accelerate.py", packages=("accelerate",)),
    Job("trainer", "Hugging Face's Trainer", "with_trainer.py", packages=("transformers", "accelerate")),
    *(Job(f"zero{stage}", f"DeepSpeed, ZeRO {stage}", "with_deepspeed.py", (str(stage),), packages=("deepspeed",))
      for stage in (1, 2, 3)),
    Job("torchtitan", "torchtitan's Llama 3, FSDP2 x TP", "with_torchtitan.py", ranks=4, packages=("torchtitan",)),
    Job("ray", "Ray Train", "with_ray.py", ("2",), packages=("ray",), torchrun=False),
]


class JobFailed(Exception):
    """A job that failed, with the end of the output."""


class Outcome(NamedTuple):
    """The result of a job. milliseconds: of a step, by backend. differs: the first unequal weight, with the rank; empty
    where all are equal.
    """

    milliseconds: dict[str, float]
    differs: str


def missing(job: Job) -> str:
    """The first missing package; empty where all packages are installed."""
    for package in job.packages:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return package
    return ""


def version(job: Job) -> str:
    return importlib.metadata.version(job.packages[0] if job.packages else "torch").split("+")[0]


def run(job: Job, backend: str, steps: int, reports: Path, limit: float, plugins: Path) -> None:
    """One run of a job over one backend; afterwards `reports` has the ranks' reports. JobFailed when the job fails or
    takes more than `limit` seconds.

    plugins: a folder by which torch finds shardwire like an installed package.
    """
    reports.mkdir()
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)] if job.torchrun else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(plugins), *filter(None, sys.path)]),
           "OMP_NUM_THREADS": "1", "JOB_REPORTS": str(reports), "JOB_STEPS": str(steps),
           "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    env.pop("SHARDWIRE_AS", None)
    env.update(BACKENDS[backend])
    try:
        done = subprocess.run([sys.executable, *start, str(HERE / "jobs" / job.program), *job.words], env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=limit, check=False, cwd=reports)
    except subprocess.TimeoutExpired as late:
        raise JobFailed(f"{job.name} over {backend} took more than {limit:.0f} s\n{_end(late.output)}") from None
    if done.returncode != 0:
        raise JobFailed(f"{job.name} over {backend} ended with status {done.returncode}\n{_end(done.stdout)}")


def _end(said: Any) -> str:
    """The last words of the ranks, without torchrun's later report."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines)
                if number and re.match(r"[EW]\d{4} .*torch/distributed/elastic/", line)), len(lines))
    return "\n".join("    " + line for line in lines[:end][-40:])


def read(job: Job, backend: str, reports: Path) -> list[dict[str, Any]]:
    """The reports of one run by rank. JobFailed when one is missing, or when another backend than the one asked for did
    the work."""
    import torch

    found = []
    for rank in range(job.ranks):
        path = reports / f"rank{rank}.pt"
        if not path.exists():
            raise JobFailed(f"{job.name} over {backend}: rank {rank} left no report")
        found.append(torch.load(path))
        if (found[-1]["backend"] == "shardwire") != (backend == "shardwire"):
            raise JobFailed(f"{job.name} over {backend}: the group was {found[-1]['backend']}'s")
        if not found[-1]["weights"]:
            raise JobFailed(f"{job.name} over {backend}: rank {rank} reports no weights")
    return found


def difference(wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """The first weight that differs between two runs' reports; empty where all weights are equal bit for bit."""
    import torch

    for rank, (one, other) in enumerate(zip(wanted, found)):
        if one["weights"].keys() != other["weights"].keys():
            return f"rank {rank}: the names of the weights"
        for name, tensor in one["weights"].items():
            twin = other["weights"][name]
            if (tensor.dtype != twin.dtype or tensor.shape != twin.shape
                    or not torch.equal(tensor.reshape(-1).view(torch.uint8), twin.reshape(-1).view(torch.uint8))):
                return f"rank {rank}: {name}"
    return ""


def compared(job: Job, runs: int, steps: int, limit: float) -> Outcome:
    """The job over both backends, `runs` times in turns."""
    seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    first, differs = None, ""
    with tempfile.TemporaryDirectory(prefix="shardwire-frameworks-") as folder:
        plugins = write_entry_points(Path(folder))
        for number in range(runs):
            for backend in BACKENDS:
                reports = Path(folder) / f"{backend}{number}"
                run(job, backend, steps, reports, limit, plugins)
                found = read(job, backend, reports)
                seconds[backend] += found[0]["seconds"]
                first = first or found
                differs = differs or difference(first, found)
    return Outcome({backend: 1e3 * statistics.median(times) for backend, times in seconds.items()}, differs)


def row(job: Job, outcome: Outcome) -> str:
    """A line of the table, in Markdown's form."""
    over_gloo, over_us = outcome.milliseconds["gloo"], outcome.milliseconds["shardwire"]
    weights = f"DIFFER ({outcome.differs})" if outcome.differs else "equal"
    framework = f"{job.packages[0] if job.packages else 'torch'} {version(job)}"
    return (f"| {job.title} | {framework} | {job.ranks} | {over_gloo:.1f} | {over_us:.1f} | {over_us / over_gloo:.2f} "
            f"| {weights} |")


HEAD = "| | version | ranks | gloo, ms a step | shardwire, ms a step | ratio | weights |\n|---|---|---|---|---|---|---|"


def main(words: list[str] | None = None) -> int:
    """The exit status: 0 when every job that ran gave equal weights, else 1."""
    parser = argparse.ArgumentParser(prog="./run frameworks jobs",
                                     description="Frameworks over gloo and over shardwire in its place: equal weights, "
                                                 "time of a step.")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="some of: " + ", ".join(job.name for job in JOBS))
    parser.add_argument("--runs", type=int, default=3, help="runs of each job over each backend, in turns (3)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a run (20)")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for one run of one job (300)")
    chosen = parser.parse_args(words)
    unknown = set(chosen.jobs) - {job.name for job in JOBS}
    if unknown or chosen.runs < 1 or chosen.steps < 1:
        parser.error(f"no job named {', '.join(sorted(unknown))}" if unknown else "--runs and --steps are at least 1")
    wanted = [job for job in JOBS if not chosen.jobs or job.name in chosen.jobs]
    print(f"torch {importlib.metadata.version('torch')}, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"{time.strftime('%Y-%m-%d')}; {chosen.runs} runs of {chosen.steps} steps each\n")
    print(HEAD, flush=True)
    failures, ran = [], 0
    for job in wanted:
        if package := missing(job):
            failures.append(f"{job.name}: {package} is not installed")
            continue
        try:
            outcome = compared(job, chosen.runs, chosen.steps, chosen.limit)
        except JobFailed as why:
            failures.append(str(why))
            continue
        ran += 1
        print(row(job, outcome), flush=True)
        if outcome.differs:
            failures.append(f"{job.name}: weights differ at {outcome.differs}")
    print("\n".join(["", *failures, f"{ran} of {len(wanted)} jobs ran, {len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
