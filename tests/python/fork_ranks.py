"""Ranks as forked processes: what ranks.py, conftest.py, two_jobs.py and frameworks/both_backends.py stand on.

``ForkedRanks(n, main, *args)`` forks n processes, each of which calls ``main(rank, *args)`` with a ``Rank`` of its own and ends. Fork, not spawn: torch is imported
once, so a case costs tens of milliseconds. A rank that raises, dies or hangs fails the test with its traceback, its signal or its threads' stacks.
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

GRACE_S = 10  # once a rank failed the others get a moment to say why they failed too


class RankFailed(AssertionError):
    """A rank raised, died or hung; the text has the rank and its traceback, or its stacks."""


class Rank:
    """A rank's own side: its number, where its group meets, and its pipes from and to the parent."""

    def __init__(self, number: int, size: int, store: str, orders: Connection, parent: Connection) -> None:
        self.number, self.size, self.store, self.orders, self._parent = number, size, store, orders, parent

    def tell(self, *words: Any) -> None:
        self._parent.send_bytes(pickle.dumps(words))

    def answer(self, call: Callable[..., Any], *args: Any) -> bool:
        """Tells what call(*args) returned, or the traceback of what it raised. Whether it returned."""
        try:
            told, returned = pickle.dumps(("result", call(*args))), True
        except BaseException:
            told, returned = pickle.dumps(("error", traceback.format_exc())), False
        sys.stdout.flush()
        sys.stderr.flush()
        self._parent.send_bytes(told)
        return returned

    def linger(self) -> None:
        """Until the parent ends this rank, or has ended itself: to ranks still at work one that leaves is one that died."""
        self.orders.poll(None)


class ForkedRanks:
    """In a with statement, or with a call of end(), which ends whatever is left of them."""

    _parents_ends: set[Connection] = set()  # of all pipes: a rank that kept one would keep another from seeing that the parent has ended

    def __init__(self, size: int, main: Callable[..., Any], *args: Any, title: str = "rank") -> None:
        self.size, self._title = size, title
        self.told: list[list[Any]] = [[] for _ in range(size)]  # each rank's words, with its last answer at the end
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
        """In the rank; never returns: no atexit of a forked pytest, no teardown that could hang."""
        code = 1
        try:
            # The rank collects no garbage of its parent: a TCPStore's destructor joins a thread that only the parent has.
            gc.freeze()
            logging.root.handlers.clear()  # pytest's: with them, lines of log would go to pytest instead of stderr
            for end in self._parents_ends:
                end.close()
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
        """Sends it to each rank, whose next answer counts. Of ranks that died answers() tells."""
        pickled = pickle.dumps(what)
        for told, pipe in zip(self.told, self._to):
            told.clear()
            try:
                pipe.send_bytes(pickled)
            except BrokenPipeError:
                pass

    def poll(self, seconds: float = 0.0) -> bool:
        """Reads what the ranks told. Whether anything came, or a rank ended."""
        live = {self._from[rank]: rank for rank in self.running()}
        ready = wait(list(live), seconds)
        for pipe in ready:
            self._read(live[pipe])
        return bool(ready)

    def _read(self, rank: int) -> None:
        try:
            while self._from[rank].poll():
                self.told[rank].append(pickle.loads(self._from[rank].recv_bytes()))
        except (EOFError, OSError):
            if self.ended[rank] is None:
                self.kill(rank)  # its end is closed: if it has not ended nobody would hear of it again
                self.ended[rank] = os.waitpid(self.pids[rank], 0)[1]

    def answers(self, seconds: float, to_the_end: bool = False, may_die: Collection[int] = ()) -> list[Any]:
        """What each rank answered, by rank; None of a rank in may_die that did not. to_the_end: only once all processes have ended."""
        start, failed = time.monotonic(), False
        limit = start + seconds
        while (late := [rank for rank in self.running() if to_the_end or self._last(rank)[0] not in ("result", "error")]) and time.monotonic() < limit:
            self.poll(max(0.0, limit - time.monotonic()))
            if not failed and any(self._failure(rank, may_die) for rank in range(self.size)):
                failed, limit = True, min(limit, time.monotonic() + GRACE_S)
        waited = time.monotonic() - start
        failures = {rank: text for rank in range(self.size) if (text := self._failure(rank, may_die))}
        stacks = self.stacks([rank for rank in late if rank not in may_die and rank not in failures])
        failures.update({rank: f"was still running after {waited:.1f} s:\n{text}" for rank, text in stacks.items()})
        if failures:
            raise RankFailed("\n".join(f"--- {self._title} {rank}:\n{text}" for rank, text in sorted(failures.items())))
        return [self._last(rank)[1] if self._last(rank)[0] == "result" else None for rank in range(self.size)]

    def _last(self, rank: int) -> Any:
        return self.told[rank][-1] if self.told[rank] else ("",)

    def _failure(self, rank: int, may_die: Collection[int]) -> str:
        """What went wrong with the rank so far, or nothing."""
        last, status = self._last(rank), self.ended[rank]
        if last[0] == "error":
            return str(last[1])
        if status is None or rank in may_die or (last[0] == "result" and status == 0):
            return ""
        code = os.waitstatus_to_exitcode(status)
        name = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return f"the process ended with exit code {code}{name} {'after its' if last[0] == 'result' else 'without a'} result"

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
        time.sleep(0.2)  # nothing says when a rank has written all of them
        return {rank: path.exists() and path.read_text() or "it wrote no stacks (is it stopped?)" for rank, path in paths.items()}

    def kill(self, *ranks: int, number: int = signal.SIGKILL) -> None:
        """Those that have not ended; all when none is named."""
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
