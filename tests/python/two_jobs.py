"""Two jobs as separate groups of processes, for tests: each rank is forked, has its job's group by a file of its own, and reports what it did.

``Job(n, body, *args)`` starts n ranks that call ``body(rank, *args)``. A rank reports lines while it works (``tell``), and its result at the end.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

torch.set_num_threads(1)  # torch's own thread pool does not survive a fork

_pipe = -1
_group: Any = None


def tell(*words: Any) -> None:
    """From a rank to its Job, which has it in ``told``."""
    data = pickle.dumps(words)
    os.write(_pipe, len(data).to_bytes(4, "little") + data)


def group() -> Any:
    """The group of this rank's job."""
    return _group


class Job:
    def __init__(self, size: int, body: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None, stderr: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shardwire-job-")
        self.size = size
        self.told: list[list[Any]] = [[] for _ in range(size)]
        self.ended: list[int | None] = [None] * size  # wait status
        self._bytes = [b""] * size
        self.pids: list[int] = []
        self.pipes: list[int] = []
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _run(writer, rank, size, os.path.join(self._folder.name, "store"), body, args, environment or {}, stderr)
            os.close(writer)
            self.pids.append(pid)
            self.pipes.append(reader)

    def poll(self, seconds: float = 0.0) -> bool:
        """Reads what the ranks told. Whether anything came, or a rank ended."""
        live = [pipe for rank, pipe in enumerate(self.pipes) if self.ended[rank] is None]
        came = False
        for pipe in select.select(live, [], [], seconds)[0] if live else []:
            came = True
            rank = self.pipes.index(pipe)
            data = os.read(pipe, 1 << 16)
            if not data:
                self.ended[rank] = os.waitpid(self.pids[rank], 0)[1]
                continue
            self._bytes[rank] += data
            while len(self._bytes[rank]) >= 4:
                size = int.from_bytes(self._bytes[rank][:4], "little")
                if len(self._bytes[rank]) < 4 + size:
                    break
                self.told[rank].append(pickle.loads(self._bytes[rank][4:4 + size]))
                self._bytes[rank] = self._bytes[rank][4 + size:]
        return came

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            self.poll(0.02)
            assert time.monotonic() < limit, f"{what} did not happen within {seconds} s; told: {self.told}"

    def results(self, seconds: float = 60) -> list[Any]:
        """What the bodies returned; fails with the ranks' tracebacks."""
        self.until(lambda: all(ended is not None for ended in self.ended), seconds, f"the end of ranks {self.running()}")
        failures = [f"rank {rank} (wait status {ended}): {self.told[rank][-1] if self.told[rank] else ''}" for rank, ended in enumerate(self.ended) if ended]
        assert not failures, "\n".join(map(str, failures))
        return [told[-1][1] if told and told[-1][0] == "result" else None for told in self.told]

    def running(self) -> list[int]:
        return [rank for rank, ended in enumerate(self.ended) if ended is None]

    def kill(self, *ranks: int, number: int = signal.SIGKILL) -> None:
        for rank in ranks or range(self.size):
            if self.ended[rank] is None:
                os.kill(self.pids[rank], number)

    def end(self) -> None:
        for rank in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGKILL)
        while self.running():
            self.poll(1.0)
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = []
        self._folder.cleanup()


@contextlib.contextmanager
def jobs() -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(*args: Any, **named: Any) -> Job:
        started.append(Job(*args, **named))
        return started[-1]

    try:
        yield start
    finally:
        for job in started:
            job.end()


def _run(pipe: int, rank: int, size: int, store: str, body: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str], stderr: str | None) -> None:
    """Never returns."""
    global _pipe, _group
    _pipe = pipe
    code = 1
    try:
        if stderr is not None:
            opened = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, 2)
            sys.__stderr__ = sys.stderr = os.fdopen(2, "w", closefd=False)
        faulthandler.dump_traceback_later(float(os.environ.get("SHARDWIRE_TEST_DUMP_S", "170")), file=sys.__stderr__)
        os.environ.update(environment)
        import torch.distributed as dist

        import shardwire
        _group = shardwire.create_process_group(dist.FileStore(store, size), rank, size, datetime.timedelta(seconds=60))
        tell("result", body(rank, *args))
        code = 0
        with contextlib.suppress(Exception):  # the others may be dead
            _group.barrier().wait()  # to ranks still at work one that leaves is one that died
    except BaseException:
        tell("error", traceback.format_exc())
    sys.stderr.flush()
    os._exit(code)
