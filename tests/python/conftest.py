"""Ranks as forked processes: `run_ranks(n, body)` runs `body(rank, size)` in n children of this process, each with a default shardwire group.

PYTHONPATH must hold the build's `python` folder. torch is imported once, here; forking is twenty times faster than starting.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import pickle
import re
import select
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shardwire

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from entry_points import write_entry_points  # noqa: E402, F401  for the tests

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts in the background: tests of Ctrl-C, and the ranks that they fork, need Python's
    signal.signal(signal.SIGINT, signal.default_int_handler)

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


class RankFailure(AssertionError):
    """What went wrong in which rank."""


class Ranks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0

    def __call__(self, size, body, *args, timeout=60, group_timeout=20, init=True, may_die=()):
        """The list of what body(rank, size, *args) returned, by rank; None for ranks in may_die that did. Fails with every rank's traceback."""
        self._runs += 1
        store = self._folder / f"store{self._runs}"
        pipes, pids = [], []
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _child(writer, rank, size, body, args, store if init else None, group_timeout)
            os.close(writer)
            pipes.append(reader)
            pids.append(pid)
        return _collect(pids, pipes, timeout, may_die)


def _child(writer, rank, size, body, args, store, group_timeout):
    """Never returns."""
    code = 0
    try:
        if store is not None:
            dist.init_process_group("shardwire", init_method=f"file://{store}", rank=rank, world_size=size,
                                    timeout=timedelta(seconds=group_timeout))
        outcome = (True, body(rank, size, *args))
        if store is not None and dist.is_initialized():
            # A rank that leaves at once would look like a failed one to those still at work.
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        outcome, code = (False, traceback.format_exc()), 1
    with os.fdopen(writer, "wb") as pipe:
        try:
            pipe.write(pickle.dumps(outcome))
        except Exception:
            pipe.write(pickle.dumps((False, traceback.format_exc())))
    sys.stdout.flush()
    os._exit(code)


def _collect(pids, pipes, timeout, may_die):
    deadline = time.monotonic() + timeout
    chunks = {pipe: b"" for pipe in pipes}
    open_pipes = set(pipes)
    try:
        while open_pipes and time.monotonic() < deadline:
            ready, _, _ = select.select(list(open_pipes), [], [], max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                data = os.read(pipe, 1 << 16)
                chunks[pipe] += data
                if not data:
                    open_pipes.discard(pipe)
    finally:
        late = [rank for rank, pipe in enumerate(pipes) if pipe in open_pipes]
        for rank in late:
            os.kill(pids[rank], signal.SIGKILL)
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        for pipe in pipes:
            os.close(pipe)
    failures, results = [], []
    for rank, pipe in enumerate(pipes):
        passed, value = pickle.loads(chunks[pipe]) if chunks[pipe] else (rank in may_die, None)
        results.append(value)
        if rank in late and rank not in may_die:
            failures.append(f"rank {rank} was still running after {timeout} s")
        elif not passed:
            failures.append(f"rank {rank} (wait status {codes[rank]}):\n{value or 'ended without a word'}")
    if failures:
        raise RankFailure("\n".join(failures))
    return results


@pytest.fixture
def run_ranks(tmp_path):
    return Ranks(tmp_path)


def raises(kind, call, *args, contains=""):
    """The exception of `kind` that call(*args) raises; its text must hold `contains`. For bodies, which run outside of pytest's reach."""
    try:
        call(*args)
    except kind as error:
        assert contains in str(error), f"{contains!r} is not in {str(error)!r}"
        return error
    raise AssertionError(f"{kind} was not raised")


@pytest.fixture(scope="session")
def launcher():
    """The launcher's file, to be run without importing torch first."""
    return str(Path(shardwire.__file__).parent / "launch.py")
