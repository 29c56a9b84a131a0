"""What the jobs in jobs/ share: a model and its batches, the clock of the steps, and the report that every rank leaves for compare.py.

A job is a program as the framework's own users write it, and it asks for gloo. It calls tick() after each step, or train() for all of them, and finish() at its end; compare.py starts it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("JOB_STEPS", "20"))  # that are timed
WARM_UP = 3  # steps before those
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
    """For frameworks that take a data set: all ranks' rows of all steps."""
    generator = torch.Generator().manual_seed(7)
    count = rows_per_step * len(steps())
    return torch.utils.data.TensorDataset(torch.randn(count, WIDTH, generator=generator), torch.randn(count, WIDTH, generator=generator))


def loss(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(found, wanted)


def tick() -> None:
    """A step is over."""
    _ticks.append(time.perf_counter())


def train(model: torch.nn.Module, share: int) -> None:
    """The loop of frameworks that leave it as torch's own, on the batches of this share; ranks that hold parts of one replica have one share."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in steps():
        given, wanted = batch(share, step)
        optimizer.zero_grad()
        loss(model(given), wanted).backward()
        optimizer.step()
        tick()


def finish(weights: dict[str, torch.Tensor]) -> None:
    """Writes this rank's report: its weights, or its part of them; the seconds of each timed step; and who stood behind gloo's name."""
    seconds = [end - begin for begin, end in zip(_ticks[WARM_UP - 1:], _ticks[WARM_UP:])]
    assert len(seconds) == STEPS, f"{len(seconds)} steps were timed, not {STEPS}"
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    report = {"weights": {name: _local(tensor) for name, tensor in weights.items()}, "seconds": seconds, "backend": type(backend).__module__.split(".")[0]}
    torch.save(report, Path(os.environ["JOB_REPORTS"]) / f"rank{dist.get_rank()}.pt")


def end() -> None:
    dist.barrier()
    dist.destroy_process_group()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().clone()
