"""Makes one result of the ranks' measurements: the numbers, the table, the JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from shardwire.compiler.plot import byte_matrix, human_bytes

from . import today
from .job import RankReport, Settings


@dataclass(frozen=True, slots=True)
class Result:
    """The demo's numbers; the JSON has exactly these keys. Rates in 1e9 bytes per second.

    bytes: received by the inference ranks in one run. run_ms, memcpy_ms behind memcpy_gbps, today_ms: medians of runs,
    each from the first rank's start to the last rank's end. ratio_to_memcpy: gbps / memcpy_gbps, 1 being as fast as
    memcpy. extra_bytes: staging memory of all ranks plus the growth of the ranks' private memory from before compiling
    until after the runs. today_ms: None when not measured.
    """

    bytes: int
    tensors: int
    ranks: int
    compile_ms: float
    run_ms: float
    gbps: float
    memcpy_gbps: float
    ratio_to_memcpy: float
    today_ms: float | None
    extra_bytes: int
    mismatched_bytes: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def summarise(reports: list[RankReport], num_tensors: int) -> Result:
    """One result from all ranks' reports."""
    num_bytes = sum(report.received_bytes for report in reports)
    run = _median_seconds([report.run_intervals for report in reports])
    # Ranks that received nothing copied nothing: the yardstick leaves these ranks out.
    memcpy = _median_seconds([report.memcpy_intervals for report in reports if report.received_bytes]
                             or [reports[0].memcpy_intervals])
    gbps, memcpy_gbps = _rate(num_bytes, run), _rate(num_bytes, memcpy)
    usual = _median_seconds([report.today_intervals for report in reports]) if reports[0].today_intervals else None
    return Result(bytes=num_bytes, tensors=num_tensors, ranks=len(reports),
                  compile_ms=_ms(max(report.compile_seconds for report in reports)), run_ms=_ms(run),
                  gbps=_figure(gbps), memcpy_gbps=_figure(memcpy_gbps),
                  ratio_to_memcpy=_figure(gbps / memcpy_gbps) if memcpy_gbps else 0.0,
                  today_ms=None if usual is None else _ms(usual),
                  extra_bytes=sum(report.scratch_bytes + report.grown_bytes for report in reports),
                  mismatched_bytes=sum(report.mismatched_bytes for report in reports))


def _median_seconds(intervals: list[list[tuple[float, float]]]) -> float:
    """Median over runs of (last rank's end - first rank's begin)."""
    return median(max(end for _, end in run) - min(begin for begin, _ in run) for run in zip(*intervals))


def _rate(num_bytes: int, seconds: float) -> float:
    return num_bytes / seconds / 1e9 if seconds > 0 else 0.0


def _figure(value: float) -> float:
    """Five digits: more than a measurement has."""
    return float(f"{value:.5g}")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def table(result: Result, reports: list[RankReport], settings: Settings, what: str, rules: dict[str, int]) -> str:
    """The result for people."""
    memory = "ordinary memory" if settings.ordinary else "the shared heap"
    staging = sum(report.scratch_bytes for report in reports)
    placed = ", ".join(f"{count} {rule}" for rule, count in sorted(rules.items(), key=lambda item: -item[1]))
    rows = [
        ("model", what),
        ("training mesh", f"ranks {_span(settings.training)}, every parameter cut along dimension 0"),
        ("inference mesh", f"ranks {_span(settings.inference)}, tensor parallel: {placed}"),
        ("moved", f"{human_bytes(result.bytes)} in {result.tensors} tensors, {memory}, one compiled op"),
        ("compile", f"{result.compile_ms:.2f} ms, once"),
        ("run", f"{result.run_ms:.2f} ms, median of {settings.runs}"),
        ("rate", f"{result.gbps:.2f} GB/s"),
        ("memcpy", (f"{result.memcpy_gbps:.2f} GB/s, the receiving processes copying as many bytes at once; ratio "
                    f"{result.ratio_to_memcpy:.2f}")),
        ("extra memory", f"{human_bytes(result.extra_bytes)} over all ranks, of which {human_bytes(staging)} staging"),
    ]
    if result.today_ms is not None and result.run_ms > 0:
        rows.append(("today's way", f"{result.today_ms:.0f} ms, {result.today_ms / result.run_ms:.1f} times as long"))
    wrong = f"{result.mismatched_bytes} BYTES DIFFER FROM THE SOURCE"
    rows.append(("check", wrong if result.mismatched_bytes else "every byte equals the source"))
    wide = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(wide)}  {text}" for name, text in rows]
    if result.today_ms is not None:
        lines.append(f"({today.DESCRIPTION};\n DTensor.redistribute cannot be compared with: it does not move between "
                     "two meshes)")
    return "\n".join(lines)


def matrix_text(traffic: dict[str, Any]) -> str:
    """The bytes from rank to rank, as text: rows send, columns receive. Ranks without traffic are left out; empty for
    more than 16 ranks."""
    matrix = byte_matrix(traffic)
    senders = [rank for rank, row in enumerate(matrix) if any(row)]
    receivers = [rank for rank in range(len(matrix)) if any(row[rank] for row in matrix)]
    if not senders or len(matrix) > 16:
        return ""
    head = "from \\ to".ljust(10) + "".join(f"rank {rank}".rjust(11) for rank in receivers)
    return "\n".join([head]
                     + [f"rank {rank}".ljust(10) + "".join(human_bytes(matrix[rank][to]).rjust(11) for to in receivers)
                        for rank in senders])


def _span(ranks: list[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
