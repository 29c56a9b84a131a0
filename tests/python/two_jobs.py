"""Two jobs as separate groups of forked processes (fork_ranks.py), for tests: each rank has the group of the job, and
sends reports.

``Job(n, body, *args)`` starts n ranks that call ``body(rank, *args)``. A rank reports lines during the work
(``report``), and the result at the end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from fork_ranks import ForkedRanks, Rank
from ranks import group, join_group  # noqa: F401  group: for the tests

_rank: Rank


def report(*words: Any) -> None:
    """Sends a report from a rank to the Job, which keeps reports in ``reports``."""
    _rank.report(*words)


class Job(ForkedRanks):
    def __init__(self, size: int, body: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None,
                 stderr: str | None = None) -> None:
        super().__init__(size, _rank_main, body, args, environment or {}, stderr)

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            self.poll(0.02)
            assert time.monotonic() < limit, (f"{what} did not happen within {seconds} s; reports: {self.reports}; "
                                              f"stacks: {self.stacks(self.running())}")

    def results(self, seconds: float = 60) -> list[Any]:
        """The results of the bodies; fails with the ranks' tracebacks."""
        return self.answers(seconds, to_the_end=True)


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


def _rank_main(rank: Rank, body: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str],
               stderr: str | None) -> None:
    def joined() -> Any:
        global _rank
        _rank = rank
        os.environ.update(environment)
        join_group(rank, 60)
        return body(rank.number, *args)

    if stderr is not None:
        opened = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, 2)
        sys.__stderr__ = sys.stderr = os.fdopen(2, "w", closefd=False)
    if rank.answer(joined):
        with contextlib.suppress(Exception):  # other ranks may be dead
            group().barrier().wait()  # ranks still at work would take a rank that leaves for dead
