"""The common parts of the jobs in jobs/: a model and its batches, the clock of the steps, and every rank's report for
compare.py.

A job is a program as users of the framework write programs, and asks for gloo. The job calls tick() after each step, or
train() for all steps, and finish() at the end; compare.py starts the job.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("JOB_STEPS", "20"))  # timed steps
WARM_UP = 3  # steps before the timed steps
WIDTH = 1024
_ticks: list[float] = []


def steps() -> range:
    return range(WARM_UP + STEPS)


def model() -> torch.nn.Sequential:
    """Three layers of 1 Mi parameters each, the same on every rank."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


def batch(rank: int, step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's inputs and targets of one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)


def data(rows_per_step: int) -> torch.utils.data.TensorDataset:
    """All ranks' rows of all steps, for frameworks that take a data set."""
    generator = torch.Generator().manual_seed(7)
    count = rows_per_step * len(steps())
    return torch.utils.data.TensorDataset(torch.randn(count, WIDTH, generator=generator),
                                          torch.randn(count, WIDTH, generator=generator))


def loss(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(found, wanted)


def tick() -> None:
    """A step is over."""
    _ticks.append(time.perf_counter())


def train(model: torch.nn.Module, share: int) -> None:
    """Torch's own training loop, on the batches of this share; for frameworks without a loop. Ranks with parts of one
    replica have one share.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in steps():
        given, wanted = batch(share, step)
        optimizer.zero_grad()
        loss(model(given), wanted).backward()
        optimizer.step()
        tick()


def finish(weights: dict[str, torch.Tensor]) -> None:
    """Writes this rank's report: the weights, or the rank's part; the seconds of each timed step; and the backend
    behind gloo's name.
    """
    seconds = [end - begin for begin, end in zip(_ticks[WARM_UP - 1:], _ticks[WARM_UP:])]
    assert len(seconds) == STEPS, f"{len(seconds)} steps were timed, not {STEPS}"
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    report = {"weights": {name: _local(tensor) for name, tensor in weights.items()}, "seconds": seconds,
              "backend": type(backend).__module__.split(".")[0]}
    torch.save(report, Path(os.environ["JOB_REPORTS"]) / f"rank{dist.get_rank()}.pt")


def end() -> None:
    dist.barrier()
    dist.destroy_process_group()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().clone()
