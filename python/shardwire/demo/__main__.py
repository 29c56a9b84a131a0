"""``python -m shardwire.demo``: arguments, the ranks as processes, and the end of all processes.

Exit status: 0 when every byte arrived, 1 when a byte did not or a rank failed, 2 for arguments or files that cannot be
used.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from shardwire.plain.tensor_bytes import item_bytes

from . import report as reports_module
from . import today
from .checkpoint import CheckpointError, load_checkpoint
from .gpt2 import make_gpt2
from .job import RankReport, Settings, Source, layouts_of, run_rank
from .progress_bar import Progress

_PR_SET_PDEATHSIG = 1
_CASTS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


class RankFailed(RuntimeError):
    """A rank raised or died; the text has the rank and the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    arguments = _parse(argv)
    if arguments.jobs == 2:
        from . import two_jobs
        try:
            if arguments.checkpoint:
                load_checkpoint(arguments.checkpoint)  # each rank loads for itself; this load reports errors early
        except CheckpointError as error:
            return _fail(str(error), 2)
        return two_jobs.start(arguments.ranks, arguments.runs, arguments.checkpoint, arguments.timeout)
    torch.set_num_threads(1)  # the ranks are forked, so torch's thread pool must not exist yet
    try:
        source, what = _source(arguments.checkpoint)
        what += f", cast to {arguments.cast}" if arguments.cast else ""
        _check_writable(arguments.json, "--json")
        _check_writable(arguments.picture, "--picture")
    except CheckpointError as error:
        return _fail(str(error), 2)
    with _nameless_file("group") as meeting, _nameless_file("gloo") as gloo_meeting:
        settings = Settings(arguments.ranks, arguments.runs, arguments.ordinary, not arguments.skip_today,
                            timedelta(seconds=arguments.timeout), meeting, gloo_meeting, _CASTS.get(arguments.cast))
        try:
            reports = _run(settings, source)
        except RankFailed as error:
            return _fail(str(error), 1)
    _, _, rules = layouts_of(source, settings)
    result = reports_module.summarise(reports, len(source))
    print(reports_module.table(result, reports, settings, what, rules))
    traffic = reports[0].traffic
    if traffic is not None:
        text = reports_module.matrix_text(traffic)
        print(f"\n{text}" if text else "")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(result.to_json())
    if arguments.picture and traffic is not None:
        from shardwire.compiler.plot import save_picture
        save_picture(traffic, arguments.picture, f"Training mesh to inference mesh:\n{what}")
        print(f"picture: {arguments.picture}")
    return 1 if result.mismatched_bytes else 0


@contextlib.contextmanager
def _nameless_file(name: str) -> Iterator[str]:
    """A path to an empty file in memory, valid as long as the context and this process last: nothing is left behind,
    whichever process is killed."""
    descriptor = os.memfd_create(f"shardwire-demo-{name}")
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardwire.demo",
                                     description="Moves a model's weights from a training mesh (the first half of the "
                                                 "ranks, every parameter cut along dimension 0) to an inference mesh "
                                                 "(the rest, tensor parallel) by one compiled op, checks every byte, "
                                                 "and measures.")
    parser.add_argument("--checkpoint", metavar="PATH",
                        help="a .safetensors file, a torch file (.pt, .pth, .bin, .ckpt, .pth.tar), a folder of shards "
                             "such as Hugging Face's, or one of torch.distributed.checkpoint; default: GPT-2 small's "
                             "names and shapes (124M parameters) with made-up values")
    parser.add_argument("--ranks", type=int, default=4, help="processes, at least 2 (default: 4)")
    parser.add_argument("--runs", type=int, default=7, help="timed runs; the median counts (default: 7)")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1,
                        help="2: a training job and a serving job, started apart, that meet by a URL: publish and "
                             "subscribe instead of one compiled op (default: 1)")
    parser.add_argument("--cast", choices=sorted(_CASTS),
                        help="the inference mesh has its floating tensors in this type: cast on the way, rounded once")
    parser.add_argument("--ordinary", action="store_true", help="tensors in ordinary memory instead of the shared heap")
    parser.add_argument("--skip-today", action="store_true", help="do not measure today's way (gloo)")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS",
                        help="give up when ranks do not meet for so long (default: 300)")
    parser.add_argument("--json", metavar="OUT", help="write the numbers here")
    parser.add_argument("--picture", metavar="OUT",
                        help="draw who sends what to whom here: .svg, or .png with matplotlib")
    arguments = parser.parse_args(argv)
    if arguments.ranks < 2:
        parser.error(f"--ranks {arguments.ranks}: a training and an inference mesh take at least 2")
    if arguments.ranks > 256:
        parser.error(f"--ranks {arguments.ranks}: more than 256 processes on one machine are not sensible")
    if arguments.runs < 1:
        parser.error(f"--runs {arguments.runs}: at least 1")
    if not arguments.timeout > 0:
        parser.error(f"--timeout {arguments.timeout}: give seconds above 0")
    if arguments.jobs == 2 and (arguments.json or arguments.picture or arguments.ordinary or arguments.cast):
        parser.error("--jobs 2 goes with --checkpoint, --ranks, --runs and --timeout only")
    if arguments.picture and os.path.splitext(arguments.picture)[1].lower() not in (".svg", ".png"):
        parser.error(f"--picture {arguments.picture}: give a name that ends in .svg or .png")
    return arguments


def _source(path: str | None) -> tuple[Source, str]:
    if path is not None:
        source = load_checkpoint(path)
        return source, f"{path} ({_count(source)})"
    total = 4 * 124_439_808
    with Progress(total) as bar:
        source = make_gpt2(lambda count: bar.advance(count, "making weights"))
    return source, f"GPT-2 small, made-up values ({_count(source)})"


def _count(source: Source) -> str:
    numel = sum(tensor.numel() for tensor in source.values())
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in source.values()})
    return f"{numel / 1e6:.1f}M elements, {', '.join(dtypes)}"


def _check_writable(path: str | None, option: str) -> None:
    """Checks before the work that the file can be written later."""
    if path is None:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if (not os.path.isdir(folder) or os.path.isdir(path)
            or not os.access(path if os.path.exists(path) else folder, os.W_OK)):
        raise CheckpointError(f"{option} {path}: cannot be written")


def _fail(text: str, status: int) -> int:
    print(f"shardwire demo: {text}", file=sys.stderr)
    return status


# The ranks.

def _run(settings: Settings, source: Source) -> list[RankReport]:
    """Forks the ranks, which share the source's memory this way; returns the reports by rank. Raises RankFailed."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(settings.num_ranks)
    pipes: dict[Connection, int] = {}
    processes: list[Any] = []
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(settings.num_ranks):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_rank_main, args=(rank, settings, source, barrier, sender, os.getpid()),
                                      daemon=True)
            process.start()
            sender.close()
            pipes[receiver] = rank
            processes.append(process)
        with Progress(_work(settings, source)) as bar:
            return _collect(settings, pipes, processes, bar)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def _collect(settings: Settings, pipes: dict[Connection, int], processes: list[Any], bar: Progress) -> list[RankReport]:
    done: dict[int, RankReport] = {}
    while pipes:
        ready = wait(list(pipes), 2 * settings.timeout.total_seconds())
        if not ready:
            raise RankFailed(f"ranks {sorted(pipes.values())} said nothing for "
                             f"{2 * settings.timeout.total_seconds():.0f} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes[pipe]
            try:
                kind, payload = pipe.recv()
            except EOFError:
                processes[rank].join(5)
                raise RankFailed(f"rank {rank} died (exit code {processes[rank].exitcode})") from None
            if kind == "progress":
                bar.advance(*payload)
            elif kind == "failed":
                raise RankFailed(f"rank {rank} failed:\n{payload}")
            else:
                done[rank] = payload
                del pipes[pipe]
    return [done[rank] for rank in range(settings.num_ranks)]


def _work(settings: Settings, source: Source) -> int:
    """The bytes of work that the ranks will report: laid out once, moved and copied per run, checked once, and today's
    way."""
    training, inference, _ = layouts_of(source, settings)

    def local_bytes(layouts: dict[str, Any], ranks: list[int]) -> int:
        return sum(math.prod(layout.local_shape(rank)) * item_bytes(layout.dtype) for layout in layouts.values()
                   for rank in ranks)

    received = local_bytes(inference, settings.inference)
    full = sum(today.layout_bytes(layout) for layout in training.values())
    return (local_bytes(training, settings.training)
            + received * (2 * settings.runs + 1 + (today.num_runs(full) if settings.compare else 0)))


def _rank_main(rank: int, settings: Settings, source: Source, barrier: Any, pipe: Connection, parent: int) -> None:
    """The main function of a forked rank."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives the program
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the rank
    pending, reported_at = [0], [time.monotonic()]

    def notify(count: int, what: str) -> None:
        pending[0] += count
        if time.monotonic() - reported_at[0] > 0.05:  # a message per parameter would cost more than the parameter
            reported_at[0] = time.monotonic()
            pipe.send(("progress", (pending[0], what)))
            pending[0] = 0

    def meet() -> None:
        barrier.wait(settings.timeout.total_seconds())

    code = 1
    try:
        outcome = run_rank(rank, settings, source, meet, notify)
        meet()  # no rank leaves while another still reads its memory
        pipe.send(("done", outcome))
        code = 0
    except BaseException:
        barrier.abort()
        pipe.send(("failed", traceback.format_exc().rstrip()))
    finally:
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted", 130))
