"""The time that a kernel takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass
class BenchmarkResult:
    """NKIPy's result of a benchmark, in milliseconds."""

    mean_ms: float
    min_ms: float
    max_ms: float
    std_dev_ms: float
    iterations: int
    warmup_iterations: int
    durations_ms: list[float] = field(default_factory=list, repr=False)


class KernelTimes(BenchmarkResult):
    """Seconds of each timed call, and statistics, which are in milliseconds too, as :class:`kernels.BenchmarkResult`.
    mode: "host", the whole call as the caller sees it; "device", the compiled code alone."""

    def __init__(self, mode: str, warmup: int, iterations: int, seconds: tuple[float, ...]) -> None:
        self.mode, self.warmup, self.seconds = mode, warmup, seconds
        each = [value * 1e3 for value in seconds]
        super().__init__(statistics.fmean(each), min(each), max(each), statistics.pstdev(each), iterations, warmup,
                         each)

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

    def __repr__(self) -> str:
        return f"KernelTimes({self})"

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
