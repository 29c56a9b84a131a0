"""Ranks as processes, for most Python tests of shardwire.

``run_ranks(n, fn, *args)`` forks n processes (fork_ranks.py); each joins one shardwire group through a file store in a
fresh folder, calls ``fn(rank, *args)`` and returns the result. Inside ``fn``, ``group()`` is this group, also named
"my_group".
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from fork_ranks import ForkedRanks, Rank, RankFailed  # noqa: F401  for the tests

_group: Any = None
# torch's own thread pool does not survive a fork: no parallel region may run in the parent.
torch.set_num_threads(1)


def group() -> Any:
    """The shardwire group of this rank; only inside a function that run_ranks or a Job runs."""
    assert _group is not None, "group() works inside a rank only"
    return _group


def run_ranks(n: int, fn: Callable[..., Any], *args: Any, timeout: float = 60, join: bool = True,
              default_group: bool = False, may_die: Collection[int] = ()) -> list[Any]:
    """Results of ``fn(rank, *args)`` by rank; None for a rank of ``may_die`` that died. A rank that hangs fails the
    test with the rank's stacks, of ``may_die`` or not.

    timeout: seconds for the whole case. join=False: no group is made (the function makes a group). default_group=True:
    the group is torch's default group, made by init_process_group("shardwire"), for code that needs torch.distributed,
    for example DTensors.
    """
    with ForkedRanks(n, _rank_main, fn, args, timeout, join, default_group) as ranks:
        return ranks.answers(timeout, may_die=may_die)


def _rank_main(rank: Rank, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float, join: bool,
               default_group: bool) -> None:
    def joined() -> Any:
        if join:
            join_group(rank, timeout, default_group)
        return fn(rank.number, *args)

    if rank.answer(joined):
        rank.linger()


def join_group(rank: Rank, timeout: float, default_group: bool = False) -> None:
    global _group
    import torch.distributed as dist

    import shardwire
    limit = datetime.timedelta(seconds=timeout)
    if default_group:
        dist.init_process_group("shardwire", init_method=f"file://{rank.store}", rank=rank.number, world_size=rank.size,
                                timeout=limit)
        _group = dist.group.WORLD
    else:
        _group = shardwire.create_process_group(dist.FileStore(rank.store, rank.size), rank.number, rank.size, limit)
    shardwire.name_process_group(_group, "my_group")


def await_file(path: Path) -> None:
    """Waits for a file, without a time limit: ranks wait for each other without the group. The limit of the whole case
    ends the wait.
    """
    while not path.exists():
        time.sleep(0.01)


def killed_in_the_middle(write: Callable[..., Any], *args: Any, after: float) -> None:
    """Forks a process that calls write(*args) again and again; kills the process `after` seconds after the first call,
    in the middle of a later call.
    """
    def again_and_again(rank: Rank) -> None:
        write(*args)
        rank.report("wrote")
        while True:
            write(*args)

    with ForkedRanks(1, again_and_again) as writer:
        writer.poll(60)
        threading.Event().wait(after)
        writer.kill()
    assert (writer.reports[0]
            and os.WIFSIGNALED(writer.ended[0] or 0)), f"the writer ended before it was killed: {writer.ended[0]}"


def raised(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[type[Exception], str]:
    """Kind and text of the error; the call must raise."""
    try:
        call(*args, **options)
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


def error_of(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, str]:
    """Like raised(), with the name of the kind: a rank can send the result to the test."""
    kind, text = raised(call, *args, **options)
    return kind.__name__, text


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, str] | None:
    """Name of the kind, and text, of the error that a call raises; None when the call raises no error."""
    try:
        call(*args, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return None
