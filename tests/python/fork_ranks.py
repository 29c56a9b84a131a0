"""Ranks as forked processes: the base of ranks.py, conftest.py, two_jobs.py and frameworks/both_backends.py.

``ForkedRanks(n, main, *args)`` forks n processes. Each process calls ``main(rank, *args)`` with its own ``Rank``, and
ends. Fork, not spawn: torch is imported once, so a case costs tens of milliseconds. A rank that raises, dies or hangs
fails the test with the rank's traceback, signal or stacks of threads.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

_this: Rank | None = None  # in a rank's process
GRACE_S = 10  # once a rank failed, the other ranks get this time to report why they failed too


class RankFailed(AssertionError):
    """A rank raised, died or hung; the text has the rank and the traceback, or the stacks."""


class Rank:
    """A rank's own side: the rank's number, the store of the group, and the pipes from and to the parent."""

    def __init__(self, number: int, size: int, store: str, orders: Connection, parent: Connection) -> None:
        self.number, self.size, self.store, self.orders, self._parent = number, size, store, orders, parent

    def report(self, *words: Any) -> None:
        self._parent.send_bytes(pickle.dumps(words))

    def answer(self, call: Callable[..., Any], *args: Any) -> bool:
        """Reports the result of call(*args), or the traceback of the exception. Whether the call returned."""
        try:
            message, returned = pickle.dumps(("result", call(*args))), True
        except BaseException:
            message, returned = pickle.dumps(("error", traceback.format_exc())), False
        sys.stdout.flush()
        sys.stderr.flush()
        self._parent.send_bytes(message)
        return returned

    def linger(self) -> None:
        """Waits until the parent ends this rank, or has itself ended: ranks still at work take a rank that leaves for
        dead.
        """
        self.orders.poll(None)


def meet(name: str, count: int | None = None) -> None:
    """Inside a rank: waits until ``count`` ranks, by default all ranks, have called with this name; a name serves once.
    A barrier of files, which no death can fail: a rank that dies behind a barrier of a group, or behind any other
    operation, may still fail the operation on the other ranks.
    """
    assert _this is not None, "meet() works inside a rank only"
    folder = Path(_this.store).parent
    (folder / f"{name}.met.{_this.number}").touch()
    deadline = time.monotonic() + 40
    while len(list(folder.glob(f"{name}.met.*"))) < (count or _this.size):
        assert time.monotonic() < deadline, f"nobody came to {name}"
        time.sleep(0.005)


class ForkedRanks:
    """The ranks, for a with statement, or followed by a call of end(), which ends the remaining ranks."""

    # of all pipes: while a rank keeps an end open, the other ranks cannot see the end of the parent
    _parents_ends: set[Connection] = set()

    def __init__(self, size: int, main: Callable[..., Any], *args: Any, title: str = "rank") -> None:
        self.size, self._title = size, title
        self.reports: list[list[Any]] = [[] for _ in range(size)]  # each rank's reports, the last answer at the end
        self.ended: list[int | None] = [None] * size  # wait status
        self.pids: list[int] = []
        self._from: list[Connection] = []
        self._to: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="shardwire-ranks-")
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(size):
            (reader, parent), (orders, writer) = Pipe(duplex=False), Pipe(duplex=False)
            self._parents_ends.update((reader, writer))
            self._from.append(reader)
            self._to.append(writer)
            pid = os.fork()
            if pid == 0:
                self._run(Rank(number, size, os.path.join(self._folder.name, "store"), orders, parent), main, args)
            parent.close()
            orders.close()
            self.pids.append(pid)

    def _run(self, rank: Rank, main: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Runs in the rank and never returns: no atexit of a forked pytest runs, and no teardown, which could hang."""
        global _this
        code, _this = 1, rank
        try:
            # The rank collects no garbage of the parent: a TCPStore's destructor joins a thread of the parent.
            gc.freeze()
            logging.root.handlers.clear()  # pytest's handlers would send lines of log to pytest instead of stderr
            for end in self._parents_ends:
                end.close()
            # torch makes its pool of threads anew in a fork. If autograd's first thread and this thread did so at once,
            # torch would end the rank ("Invalid thread pool!").
            torch.set_num_threads(1)
            faulthandler.register(signal.SIGUSR2, file=self._stacks_of(rank.number).open("w"), all_threads=True)
            main(rank, *args)
            code = 0
        except (EOFError, BrokenPipeError):
            pass  # the parent is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def __enter__(self) -> ForkedRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def running(self) -> list[int]:
        return [rank for rank, ended in enumerate(self.ended) if ended is None]

    def order(self, what: Any) -> None:
        """Sends `what` to each rank, whose next answer counts. answers() reports the ranks that died."""
        pickled = pickle.dumps(what)
        for reports, pipe in zip(self.reports, self._to):
            reports.clear()
            try:
                pipe.send_bytes(pickled)
            except BrokenPipeError:
                pass

    def poll(self, seconds: float = 0.0) -> bool:
        """Reads the reports of the ranks. Whether a report came, or a rank ended."""
        live = {self._from[rank]: rank for rank in self.running()}
        ready = wait(list(live), seconds)
        for pipe in ready:
            self._read(live[pipe])
        return bool(ready)

    def _read(self, rank: int) -> None:
        try:
            while self._from[rank].poll():
                self.reports[rank].append(pickle.loads(self._from[rank].recv_bytes()))
        except (EOFError, OSError):
            if self.ended[rank] is None:
                # the rank's end of the pipe is closed: a rank that still runs could report nothing more
                self.kill(rank)
                self.ended[rank] = os.waitpid(self.pids[rank], 0)[1]

    def answers(self, seconds: float, to_the_end: bool = False, may_die: Collection[int] = (),
                may_stay: bool = False) -> list[Any]:
        """The answers by rank; None for a rank of may_die that ended without an answer, by SIGKILL or os._exit().
        to_the_end: only once all processes have ended. may_stay: ranks that run after this time are no failure; any
        such rank fails the test otherwise, of may_die or not.
        """
        start, failed = time.monotonic(), False
        limit = start + seconds
        while (late := [rank for rank in self.running()
                        if to_the_end or self._last(rank)[0] not in ("result", "error")]) and time.monotonic() < limit:
            self.poll(max(0.0, limit - time.monotonic()))
            if not failed and any(self._failure(rank, may_die) for rank in range(self.size)):
                failed, limit = True, min(limit, time.monotonic() + GRACE_S)
        waited = time.monotonic() - start
        failures = {rank: text for rank in range(self.size) if (text := self._failure(rank, may_die))}
        stacks = self.stacks([] if may_stay and not failures else [rank for rank in late if rank not in failures])
        failures.update({rank: f"was still running after {waited:.1f} s:\n{text}" for rank, text in stacks.items()})
        if failures:
            raise RankFailed("\n".join(f"--- {self._title} {rank}:\n{text}" for rank, text in sorted(failures.items())))
        return [self._last(rank)[1] if self._last(rank)[0] == "result" else None for rank in range(self.size)]

    def _last(self, rank: int) -> Any:
        return self.reports[rank][-1] if self.reports[rank] else ("",)

    def _failure(self, rank: int, may_die: Collection[int]) -> str:
        """The failure of the rank so far, or an empty text. A rank of may_die may exit early or die by SIGKILL; any
        other signal is a failure.
        """
        last, status = self._last(rank), self.ended[rank]
        if last[0] == "error":
            return str(last[1])
        if status is None or (last[0] == "result" and status == 0):
            return ""
        code = os.waitstatus_to_exitcode(status)
        if rank in may_die and (code >= 0 or code == -signal.SIGKILL):
            return ""
        name = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return (f"the process ended with exit code {code}{name} {'after its' if last[0] == 'result' else 'without a'} "
                "result")

    def _stacks_of(self, rank: int) -> Path:
        return Path(self._folder.name, f"stacks{rank}")

    def stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where these ranks are now."""
        if not ranks:
            return {}
        self.kill(*ranks, number=signal.SIGUSR2)
        paths = {rank: self._stacks_of(rank) for rank in ranks}
        limit = time.monotonic() + 5
        while not all(path.exists() and path.stat().st_size for path in paths.values()) and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(0.2)  # no event reports that a rank has written all stacks
        return {rank: path.exists() and path.read_text() or "it wrote no stacks (is it stopped?)"
                for rank, path in paths.items()}

    def kill(self, *ranks: int, number: int = signal.SIGKILL) -> None:
        """Kills the named ranks that have not ended; all ranks when none is named."""
        for rank in ranks or range(self.size):
            if self.ended[rank] is None:
                os.kill(self.pids[rank], number)

    def end(self) -> None:
        self.kill()
        for rank in range(self.size):
            if self.ended[rank] is None:
                self.ended[rank] = os.waitpid(self.pids[rank], 0)[1]
            self._read(rank)
        for pipe in (*self._from, *self._to):
            pipe.close()
        self._parents_ends.difference_update(self._from, self._to)
        self._folder.cleanup()
