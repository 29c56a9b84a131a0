"""One rank's part of the demo: lay the weights out, compile, run, check, and measure the comparisons."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

import shardwire
from shardwire.compiler.layout import Layout

from . import today
from .tensor_parallel import inference_placement, training_placement

Source = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all ranks. meeting, gloo_meeting: paths of empty files, which the ranks use as stores to meet."""

    num_ranks: int
    runs: int
    ordinary: bool
    compare: bool
    timeout: timedelta
    meeting: str
    gloo_meeting: str
    cast: torch.dtype | None = None  # of the inference mesh's floating tensors; None: no cast

    @property
    def training(self) -> list[int]:
        return list(range(self.num_ranks // 2))

    @property
    def inference(self) -> list[int]:
        return list(range(self.num_ranks // 2, self.num_ranks))


@dataclass(slots=True)
class RankReport:
    """The measurements of one rank. Times in seconds; intervals are (begin, end) on the machine's monotonic clock;
    sizes in bytes."""

    compile_seconds: float = 0.0
    run_intervals: list[tuple[float, float]] = field(default_factory=list)
    memcpy_intervals: list[tuple[float, float]] = field(default_factory=list)
    today_intervals: list[tuple[float, float]] = field(default_factory=list)
    received_bytes: int = 0
    mismatched_bytes: int = 0
    scratch_bytes: int = 0
    grown_bytes: int = 0
    traffic: dict[str, Any] | None = None  # rank 0's


def layouts_of(source: Source, settings: Settings) -> tuple[dict[str, Layout], dict[str, Layout], dict[str, int]]:
    """Training and inference layout of every parameter, and how many parameters each rule placed."""
    training: dict[str, Layout] = {}
    inference: dict[str, Layout] = {}
    rules: dict[str, int] = {}
    for name, tensor in source.items():
        shape = tuple(tensor.shape)
        training[name] = Layout(settings.training, [training_placement(shape)], shape, tensor.dtype)
        placement, rule = inference_placement(name, shape, len(settings.inference))
        dtype = settings.cast if settings.cast is not None and tensor.dtype.is_floating_point else tensor.dtype
        inference[name] = Layout(settings.inference, [placement], shape, dtype)
        rules[rule] = rules.get(rule, 0) + 1
    return training, inference, rules


def run_rank(rank: int, settings: Settings, source: Source, meet: Callable[[], None],
             notify: Callable[[int, str], None]) -> RankReport:
    """The whole work of rank ``rank``. ``meet`` returns when all ranks have called; ``notify(bytes, what)`` reports
    progress."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(settings.meeting, settings.num_ranks)
    group = shardwire.create_process_group(store, rank, settings.num_ranks, settings.timeout)
    training, inference, _ = layouts_of(source, settings)
    held = _allocate(training, rank, settings)
    wanted = _allocate(inference, rank, settings)
    for name, tensor in held.items():
        tensor.copy_(_part(training[name], source[name], rank))
        notify(tensor.numel() * tensor.element_size(), "laying out")
    _poison(wanted.values())
    report = RankReport(received_bytes=_num_bytes(wanted))

    meet()
    before = _private_bytes()
    begin = time.perf_counter()
    op = shardwire.compile_op(group, inputs=training, outputs=inference, name="training mesh to inference mesh",
                              timeout=settings.timeout)
    report.compile_seconds = time.perf_counter() - begin
    start = op.bind({name: [tensor] for name, tensor in held.items()},
                    {name: [tensor] for name, tensor in wanted.items()})
    for _ in range(settings.runs):
        _poison(wanted.values())
        meet()
        begin = time.perf_counter()
        start().wait()
        report.run_intervals.append((begin, time.perf_counter()))
        notify(report.received_bytes, "moving")
    meet()
    report.grown_bytes = max(0, _private_bytes() - before)
    report.scratch_bytes = int(op.stats().get("scratch_bytes", 0))
    if rank == 0:
        report.traffic = op.traffic()
    for name, tensor in wanted.items():
        report.mismatched_bytes += count_mismatches(tensor,
                                                    _expected(tensor, _part(inference[name], source[name], rank)))
        notify(tensor.numel() * tensor.element_size(), "checking")
    meet()
    report.memcpy_intervals = _measure_memcpy(wanted, settings.runs, meet, notify)
    if settings.compare:
        report.today_intervals = today.measure(rank, settings, held, wanted, training, inference, meet, notify)
    return report


def _allocate(layouts: dict[str, Layout], rank: int, settings: Settings) -> Source:
    """The local tensors of ``rank``; none for a rank outside of the mesh."""
    tensors = {}
    for name, layout in layouts.items():
        shape = layout.local_shape(rank)
        if shape is not None:
            tensors[name] = (torch.empty(shape, dtype=layout.dtype) if settings.ordinary
                             else shardwire.empty(shape, dtype=layout.dtype))
    return tensors


def _part(layout: Layout, tensor: torch.Tensor, rank: int) -> torch.Tensor:
    part = layout.take(tensor, rank)
    assert part is not None, f"rank {rank} is outside of {layout}"
    return part


def _expected(tensor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The expected contents of ``tensor`` from this part of the source. The cast of a NaN is some NaN, with bits that
    differ between torch's code paths."""
    if part.dtype == tensor.dtype:
        return part
    cast = part.to(tensor.dtype)
    return torch.where(cast.isnan() & tensor.isnan(), tensor, cast)


def _num_bytes(tensors: Source) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _poison(tensors: Iterable[torch.Tensor]) -> None:
    """Fills the tensors with a pattern that no weight has, so that missing bytes are found."""
    for tensor in tensors:
        ctypes.memset(tensor.data_ptr(), 0xA5, tensor.numel() * tensor.element_size())


def count_mismatches(tensor: torch.Tensor, expected: torch.Tensor) -> int:
    """The number of bytes of ``tensor`` that differ from ``expected`` (the same shape and dtype); NaNs are compared by
    bits."""
    if tensor.numel() == 0:
        return 0
    mine, theirs = bytes_of(tensor), bytes_of(expected)
    return 0 if torch.equal(mine, theirs) else int((mine != theirs).sum())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _private_bytes() -> int:
    """Resident memory of this process that no file or shared mapping accounts for."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _measure_memcpy(wanted: Source, runs: int, meet: Callable[[], None],
                    notify: Callable[[int, str], None]) -> list[tuple[float, float]]:
    """The yardstick: every receiving rank copies as many bytes, tensor by tensor, from its own memory to the same
    places, all ranks at the same time."""
    copies = [(tensor.data_ptr(), tensor.clone(), tensor.numel() * tensor.element_size()) for tensor in wanted.values()
              if tensor.numel()]
    intervals = []
    for _ in range(runs):
        meet()
        begin = time.perf_counter()
        for address, source, count in copies:
            ctypes.memmove(address, source.data_ptr(), count)
        intervals.append((begin, time.perf_counter()))
        notify(_num_bytes(wanted), "memcpy")
    return intervals
