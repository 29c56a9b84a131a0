"""The time that a kernel takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Seconds of each timed call, and statistics. mode: "host", the whole call as the caller sees it; "device", the
    compiled code alone."""

    mode: str
    warmup: int
    iterations: int
    seconds: tuple[float, ...] = field(repr=False)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    @property
    def most(self) -> float:
        return max(self.seconds)

    def __str__(self) -> str:
        times = ", ".join(f"{label} {value * 1e6:.1f} us" for label, value in (
            ("median", self.median), ("mean", self.mean), ("least", self.least), ("most", self.most)))
        return f"{self.iterations} calls ({self.mode}): {times}"


def measure(call: Callable[[], object], device: torch.device, mode: str, warmup: int, iterations: int) -> KernelTimes:
    """Times ``call``. On an accelerator the host's times end when the device is done, and the device's times are
    between two of its events."""
    module = None if device.type == "cpu" else getattr(torch, device.type)
    for _ in range(warmup):
        call()
    if module is not None:
        module.synchronize(device)
    seconds = []
    for _ in range(iterations):
        if mode == "device" and module is not None:
            begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3)
            continue
        start = time.perf_counter()
        call()
        if module is not None:
            module.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return KernelTimes(mode, warmup, iterations, tuple(seconds))
