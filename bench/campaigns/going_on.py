"""Endless streams for kills beside campaigns/stream.py: calls of symmetric memory, and groups that are made anew again
and again. All results are checked.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import shardwire
from campaigns.stream import Setting, WrongBytes
from shardwire import symm

ELEMENTS = 1 << 16


class Call(NamedTuple):
    """The call under way."""

    number: int
    kind: str
    part: bool = False

    def __str__(self) -> str:
        return f"#{self.number} {self.kind}"


class LeftOut(Exception):
    """A group was made anew without these ranks, numbers of the first group."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(f"ranks {ranks} were left out")
        self.ranks = ranks


class _Calls:
    """The face of a Stream for synchronous calls."""

    def __init__(self, setting: Setting, rank: int, on_call: Callable[[int], None]) -> None:
        self.setting, self.rank, self.on_call = setting, rank, on_call
        self.inflight: deque[Any] = deque()
        self.finished = 0
        self.issuing: Call | None = None
        self.entered = 0.0  # time.monotonic() before the newest call

    def run(self) -> None:
        while True:
            kind = random.Random(f"{self.setting.seed}/{self.finished}").choice(self.kinds)
            self.issuing = Call(self.finished, kind.__name__.strip("_"))
            self.entered = time.monotonic()
            kind(self)
            self.finished += 1
            self.on_call(self.finished)

    kinds: tuple[Callable[[Any], None], ...] = ()

    def scribble(self) -> None:
        """No tensor of a caller is in flight."""


def _check(call: Any, got: torch.Tensor, wanted: float) -> None:
    if not (got == wanted).all():
        raise WrongBytes(f"{call.issuing}: {got.min().item()} to {got.max().item()}, not {wanted}")


class SymmetricCalls(_Calls):
    def __init__(self, setting: Setting, rank: int, on_call: Callable[[int], None]) -> None:
        super().__init__(setting, rank, on_call)
        self.data = symm.zeros(ELEMENTS, dtype=torch.float32)
        self.ready = symm.zeros(setting.size, dtype=torch.int64)
        self.total = symm.zeros(1, dtype=torch.int64)
        self.left, self.right = (rank - 1) % setting.size, (rank + 1) % setting.size
        self.turns = self.added = 0

    def _put_signal(self) -> None:
        self.turns += 1
        symm.put_signal(self.data, torch.full((ELEMENTS,), float(self.turns)), self.ready[self.rank], self.turns,
                        self.right)
        symm.signal_wait(self.ready[self.left], "ge", self.turns, source=self.left)
        _check(self, self.data, self.turns)
        symm.barrier()  # the next bytes come later

    def _get(self) -> None:
        self.data.fill_(self.rank + self.finished)
        symm.barrier()
        got = torch.empty(ELEMENTS)
        symm.get(got, self.data, self.right)
        _check(self, got, self.right + self.finished)
        symm.barrier()

    def _add(self) -> None:
        self.added += 1
        symm.atomic_add(self.total[0], 1, 0)
        symm.barrier()
        if self.rank == 0:
            _check(self, self.total, self.added * self.setting.size)
        symm.barrier()

    def _barrier(self) -> None:
        symm.barrier()

    kinds = (_put_signal, _put_signal, _get, _add, _barrier)


class Remaking(_Calls):
    """shrink() again and again, though nobody died: agreement, meeting, making of the group, agreement. Then one
    reduction."""

    def __init__(self, setting: Setting, rank: int, on_call: Callable[[int], None]) -> None:
        super().__init__(setting, rank, on_call)
        self.handles = shardwire.reconfigure_handles()

    def _shrink(self) -> None:
        shardwire.shrink()
        now = shardwire.reconfigure_handles()
        if len(now) < len(self.handles):
            raise LeftOut([rank for rank, handle in enumerate(self.handles) if handle not in now])
        ones = torch.ones(1000)
        dist.all_reduce(ones)
        _check(self, ones, self.setting.size)

    kinds = (_shrink,)


STREAMS = {"symm": SymmetricCalls, "remake": Remaking}
