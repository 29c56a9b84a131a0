"""Ranks as processes: what every Python test of shardwire runs on.

``run_ranks(n, fn, *args)`` forks n processes; each joins one shardwire group through a file store in a fresh folder, calls
``fn(rank, *args)`` and hands its result back. Inside ``fn``, ``group()`` is that group, which also has the name "my_group".
Fork, not spawn: torch is imported once, so a case costs tens of milliseconds. A rank that raises, dies or hangs fails the test.
"""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

_group: Any = None
# torch's own thread pool does not survive a fork: no parallel region may run in the parent.
torch.set_num_threads(1)


class RankFailed(AssertionError):
    """A rank raised, died or hung; the text has the rank and its traceback."""


def group() -> Any:
    """The shardwire group of this rank; only inside a function that run_ranks runs."""
    assert _group is not None, "group() works inside run_ranks only"
    return _group


def run_ranks(n: int, fn: Callable[..., Any], *args: Any, timeout: float = 60, join: bool = True, default_group: bool = False) -> list[Any]:
    """Results of ``fn(rank, *args)`` by rank.

    timeout: seconds for the whole case. join=False: no group is made (the function brings its own). default_group=True: the group is torch's
    default group, made by init_process_group("shardwire"), for code that needs torch.distributed itself, such as DTensors.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="shardwire-ranks-") as folder:
        pipes: dict[Connection, int] = {}
        processes = []
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(n):
            receiver, sender = context.Pipe(duplex=False)
            whole = (sender, os.path.join(folder, "store"), rank, n, timeout, join, default_group, fn, args)
            process = context.Process(target=_rank_main, args=whole, daemon=True)
            process.start()
            sender.close()
            pipes[receiver] = rank
            processes.append(process)
        try:
            return _collect(pipes, processes, n, timeout)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _collect(pipes: dict[Connection, int], processes: list[Any], n: int, timeout: float) -> list[Any]:
    results: list[Any] = [None] * n
    failures: dict[int, str] = {}
    deadline = time.monotonic() + timeout
    grace = None  # once a rank failed the others get a moment to say why they failed too
    while pipes:
        limit = deadline if grace is None else min(deadline, grace)
        ready = wait(list(pipes), max(0.0, limit - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = pipes.pop(pipe)
            try:
                ok, payload = pickle.loads(pipe.recv_bytes())
            except EOFError:
                processes[rank].join(5)
                code = processes[rank].exitcode
                name = f" ({signal.Signals(-code).name})" if code is not None and code < 0 else ""
                ok, payload = False, f"the process ended with exit code {code}{name} without a result"
            if ok:
                results[rank] = payload
            else:
                failures[rank] = payload
                grace = grace or time.monotonic() + 5
    if failures:
        raise RankFailed("\n".join(f"--- rank {rank}:\n{text}" for rank, text in sorted(failures.items())))
    if pipes:
        raise RankFailed(f"ranks {sorted(pipes.values())} hung: no result after {timeout} s")
    return results


def _rank_main(pipe: Connection, store_path: str, rank: int, n: int, timeout: float, join: bool, default_group: bool, fn: Callable[..., Any],
               args: tuple[Any, ...]) -> None:
    code = 1
    try:
        faulthandler.dump_traceback_later(max(1.0, timeout - 2), file=sys.__stderr__)
        if join:
            _join(store_path, rank, n, timeout, default_group)
        payload = pickle.dumps((True, fn(rank, *args)))
        code = 0
    except BaseException:
        payload = pickle.dumps((False, traceback.format_exc()))
    try:
        pipe.send_bytes(payload)
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 0:
            # To ranks still at work one that leaves is one that died. The parent ends us once all have reported.
            time.sleep(timeout)
    finally:
        os._exit(code)  # no atexit of a forked pytest, no teardown that could hang


def _join(store_path: str, rank: int, n: int, timeout: float, default_group: bool) -> None:
    global _group
    import torch.distributed as dist

    import shardwire
    limit = datetime.timedelta(seconds=timeout)
    if default_group:
        dist.init_process_group("shardwire", init_method=f"file://{store_path}", rank=rank, world_size=n, timeout=limit)
        _group = dist.group.WORLD
    else:
        _group = shardwire.create_process_group(dist.FileStore(store_path, n), rank, n, limit)
    shardwire.name_process_group(_group, "my_group")


def await_file(path: Path) -> None:
    """Waits for a file. So ranks wait for each other by no means of the group; the limit of the whole case ends it."""
    while not path.exists():
        time.sleep(0.01)


def killed_in_the_middle(write: Callable[..., Any], *args: Any, after: float) -> None:
    """Forks a process that calls write(*args) again and again, and kills it `after` seconds after the first is done: somewhere in another."""
    ready, started = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write(*args)
            os.write(started, b".")
            while True:
                write(*args)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(started)
    os.read(ready, 1)
    threading.Event().wait(after)
    os.kill(pid, signal.SIGKILL)
    os.close(ready)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status), f"the writer ended before it was killed: {status}"


def raised(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[type[Exception], str]:
    """Kind and text of the error that a call must raise."""
    try:
        call(*args, **options)
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, str] | None:
    """Name of the kind, and text, of the error that a call raises; None when it raises none."""
    try:
        call(*args, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return None
