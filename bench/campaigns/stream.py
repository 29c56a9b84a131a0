"""An endless stream of random operations, the same on every rank, whose results are checked against the expected
values.

An element of the tensor of a rank for operation i is (position + i) mod 21 + 3 * rank + i mod 5: below 42, so that sums
over six ranks are exact in every dtype, and different for every rank, place and operation. After every operation that
reports success, all bytes of the results are compared.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import shardwire

DTYPES = (torch.float32, torch.float32, torch.int32, torch.int64, torch.float64, torch.float16, torch.uint8)
PERIOD, CYCLE = 21, 5
KINDS = ("all_reduce", "all_reduce", "all_reduce_max", "reduce", "broadcast", "all_gather", "all_to_all",
         "uneven_all_to_all", "reduce_scatter", "scatter", "gather", "send_recv", "barrier", "run", "run", "compile",
         "coalesced", "objects")
# The replacements on gloo of torch 1.13 for missing operations.
FOR_GLOO = {"reduce_scatter": "all_reduce", "run": "all_gather", "compile": "all_gather", "coalesced": "all_reduce",
            "all_reduce_max": "all_reduce"}
SCRIBBLE = 99


_patterns: dict[torch.dtype, torch.Tensor] = {}


def pattern(dtype: torch.dtype, count: int) -> torch.Tensor:
    """0 to 20 again and again. A parent that first asks for the longest shares the memory with its forks."""
    known = _patterns.get(dtype)
    if known is None or known.numel() < count:
        known = _patterns[dtype] = torch.arange(PERIOD).to(dtype).repeat(count // PERIOD + 2)
    return known


def prepare(max_bytes: int) -> None:
    for dtype in DTYPES:
        pattern(dtype, max_bytes // torch.empty(0, dtype=dtype).element_size() + 2 * PERIOD)


@dataclass
class Operation:
    """One call, planned alike on all ranks."""

    number: int
    kind: str
    part: bool  # of the subgroup
    elements: int
    dtype: torch.dtype
    pick: int  # root, distance or compiled op
    heap_seed: int

    def __str__(self) -> str:
        where = "part" if self.part else "world"
        return f"#{self.number} {self.kind}({self.elements} x {str(self.dtype)[6:]}, {where}, pick {self.pick})"


@dataclass
class Setting:
    """The agreement of a trial's ranks."""

    seed: str
    size: int
    backend: str
    part: list[int]  # ranks of the subgroup; empty: none
    depth: int  # operations in flight besides the newest; -1: synchronous calls
    max_bytes: int
    behaviour: dict[int, str] = field(default_factory=dict)  # after the error: stay, leave or destroy
    stream: str = ""  # a name in campaigns/going_on.py; otherwise a Stream

    def operation(self, number: int) -> Operation:
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.choice(KINDS)
        if self.backend == "gloo":
            kind = FOR_GLOO.get(kind, kind)
        if kind in ("compile", "objects") and rng.random() < 0.6:
            kind = "all_reduce"
        dtype = rng.choice(DTYPES)
        size = dtype.itemsize if hasattr(dtype, "itemsize") else torch.empty(0, dtype=dtype).element_size()
        count = int(2 ** rng.uniform(2, (self.max_bytes).bit_length() - 1)) // size
        return Operation(number, kind, bool(self.part) and rng.random() < 0.4, max(1, count), dtype,
                         rng.randrange(1 << 20), rng.randrange(1 << 30))


@dataclass
class Started:
    """An operation in flight on this rank, and the tensors to check after success."""

    operation: Operation
    works: list[Any]
    tensors: list[torch.Tensor]
    expected: Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]


class WrongBytes(Exception):
    """A successful operation left wrong bytes."""


class Stream:
    """One rank's side of a setting. Made after the default group."""

    def __init__(self, setting: Setting, rank: int, on_call: Callable[[int], None]) -> None:
        self.setting, self.rank, self.on_call = setting, rank, on_call
        self.groups: dict[bool, tuple[Any, list[int]]] = {False: (dist.group.WORLD, list(range(setting.size)))}
        if setting.part:
            self.groups[True] = (dist.new_group(setting.part), setting.part)
        self._compiled: dict[bool, list[tuple[Any, int, int]]] = {}
        self.inflight: deque[Started] = deque()
        self.finished = 0
        self.issuing: Operation | None = None
        self._made: list[torch.Tensor] = []  # the tensors of the operation being issued
        self.entered = 0.0  # time.monotonic() before the newest call or wait, behind the making of its tensors

    # ---- the model

    def base(self, number: int, count: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        start = (number + offset) % PERIOD
        return pattern(dtype, count + PERIOD)[start : start + count]

    def value(self, number: int, rank: int, count: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        return self.base(number, count, dtype, offset) + (3 * rank + number % CYCLE)

    def summed(self, number: int, ranks: list[int], count: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        return self.base(number, count, dtype, offset) * len(ranks) + (3 * sum(ranks) + len(ranks) * (number % CYCLE))

    # ---- tensors

    def new(self, count: int, op: Operation, salt: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype = dtype or op.dtype
        in_heap = (self.setting.backend == "shardwire"
                   and random.Random(op.heap_seed * 131 + self.rank * 17 + salt).random() < 0.5)
        tensor = shardwire.empty(count, dtype=dtype) if in_heap else torch.empty(count, dtype=dtype)
        self._made.append(tensor)
        return tensor

    def given(self, op: Operation, count: int, salt: int = 0, offset: int = 0,
              dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = self.new(count, op, salt, dtype)
        torch.add(self.base(op.number, count, tensor.dtype, offset), 3 * self.rank + op.number % CYCLE, out=tensor)
        self.entered = time.monotonic()
        return tensor

    def blank(self, op: Operation, count: int, salt: int = 1, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = self.new(count, op, salt, dtype).fill_(77)
        self.entered = time.monotonic()
        return tensor

    # ---- the loop

    def run(self) -> None:
        """Until an operation raises."""
        number = 0
        while True:
            op = self.setting.operation(number)
            if self.rank in self.groups.get(op.part, self.groups[False])[1]:
                self.issuing = op
                self._made = []
                self.inflight.append(self.issue(op))
                self.issuing = None
                while len(self.inflight) > max(0, self.setting.depth):
                    self.finish(self.inflight[0])
                    self.inflight.popleft()
            number += 1
            self.on_call(number)

    def finish(self, started: Started) -> None:
        self.entered = time.monotonic()
        for work in started.works:
            work.wait()
        self.finished += 1
        for got, expected in started.expected():
            if not torch.equal(got, expected):
                differ = (got != expected).nonzero().flatten()
                at = int(differ[0])
                raise WrongBytes(f"{started.operation}: {len(differ)} of {got.numel()} elements are wrong, from {at} "
                                 f"to {int(differ[-1])}; element {at} is {got[at]}, not {expected[at]}")

    def scribble(self) -> None:
        """The next step of a program with the tensors of failed operations: uses their memory again."""
        for tensor in [*self._made, *(tensor for started in self.inflight for tensor in started.tensors)]:
            tensor.fill_(SCRIBBLE)

    # ---- operations

    def issue(self, op: Operation) -> Started:
        group, ranks = self.groups[op.part]
        wants_async = self.setting.depth >= 0
        works, tensors, expected = getattr(self, "_" + op.kind)(op, group, ranks, wants_async)
        return Started(op, [work for work in works if work is not None], tensors, expected)

    def _all_reduce(self, op, group, ranks, later, kind=dist.ReduceOp.SUM):
        tensor = self.given(op, op.elements)
        work = dist.all_reduce(tensor, op=kind, group=group, async_op=later)

        def expected():
            if kind == dist.ReduceOp.SUM:
                return [(tensor, self.summed(op.number, ranks, op.elements, op.dtype))]
            return [(tensor, self.value(op.number, max(ranks), op.elements, op.dtype))]

        return [work], [tensor], expected

    def _all_reduce_max(self, op, group, ranks, later):
        return self._all_reduce(op, group, ranks, later, dist.ReduceOp.MAX)

    def _coalesced(self, op, group, ranks, later):
        count = max(1, op.elements // 3)
        tensors = [self.given(op, count, salt, offset=salt) for salt in range(3)]
        work = dist.all_reduce_coalesced(tensors, group=group, async_op=later)
        return [work], tensors, lambda: [(tensor, self.summed(op.number, ranks, count, op.dtype, i))
                                         for i, tensor in enumerate(tensors)]

    def _reduce(self, op, group, ranks, later):
        root, tensor = ranks[op.pick % len(ranks)], self.given(op, op.elements)
        work = dist.reduce(tensor, root, group=group, async_op=later)
        return ([work], [tensor],
                lambda: [(tensor, self.summed(op.number, ranks, op.elements, op.dtype))] if self.rank == root else [])

    def _broadcast(self, op, group, ranks, later):
        root = ranks[op.pick % len(ranks)]
        tensor = self.given(op, op.elements) if self.rank == root else self.blank(op, op.elements)
        work = dist.broadcast(tensor, root, group=group, async_op=later)
        return [work], [tensor], lambda: [(tensor, self.value(op.number, root, op.elements, op.dtype))]

    def _all_gather(self, op, group, ranks, later):
        count = max(1, op.elements // len(ranks))
        mine, outs = self.given(op, count), [self.blank(op, count, salt) for salt in range(1, 1 + len(ranks))]
        work = dist.all_gather(outs, mine, group=group, async_op=later)
        return ([work], [mine, *outs],
                lambda: [(out, self.value(op.number, rank, count, op.dtype)) for out, rank in zip(outs, ranks)])

    def _gather(self, op, group, ranks, later):
        root, count = ranks[op.pick % len(ranks)], max(1, op.elements // len(ranks))
        outs = [self.blank(op, count, salt) for salt in range(1, 1 + len(ranks))] if self.rank == root else []
        mine = self.given(op, count)
        work = dist.gather(mine, outs or None, root, group=group, async_op=later)
        return ([work], [mine, *outs],
                lambda: [(out, self.value(op.number, rank, count, op.dtype)) for out, rank in zip(outs, ranks)])

    def _scatter(self, op, group, ranks, later):
        root, count, place = ranks[op.pick % len(ranks)], max(1, op.elements // len(ranks)), ranks.index(self.rank)
        parts = [self.given(op, count, salt, offset=salt) for salt in range(len(ranks))] if self.rank == root else []
        out = self.blank(op, count)
        work = dist.scatter(out, parts or None, root, group=group, async_op=later)
        return [work], [out, *parts], lambda: [(out, self.value(op.number, root, count, op.dtype, place))]

    def _reduce_scatter(self, op, group, ranks, later):
        count, place = max(1, op.elements // len(ranks)), ranks.index(self.rank)
        parts, out = [self.given(op, count, salt, offset=salt) for salt in range(len(ranks))], self.blank(op, count)
        work = dist.reduce_scatter(out, parts, group=group, async_op=later)
        return [work], [out, *parts], lambda: [(out, self.summed(op.number, ranks, count, op.dtype, place))]

    def _all_to_all(self, op, group, ranks, later):
        return self._exchange(op, group, ranks, later, [[1] * len(ranks) for _ in ranks])

    def _uneven_all_to_all(self, op, group, ranks, later):
        n = len(ranks)
        return self._exchange(op, group, ranks, later,
                              [[(source + 2 * to + op.pick) % 3 for to in range(n)] for source in range(n)])

    def _exchange(self, op, group, ranks, later, shares):
        unit, place = max(1, op.elements // (2 * len(ranks))), ranks.index(self.rank)
        sent, received = [unit * share for share in shares[place]], [unit * row[place] for row in shares]
        mine, out = self.given(op, sum(sent)), self.blank(op, sum(received))
        work = dist.all_to_all_single(out, mine, received, sent, group=group, async_op=later)

        def expected():
            parts = []
            for row, rank in zip(shares, ranks):
                start = unit * sum(row[:place])
                parts.append(self.value(op.number, rank, unit * row[place], op.dtype, start))
            return [(out, torch.cat(parts))]

        return [work], [mine, out], expected

    def _send_recv(self, op, group, ranks, later):
        place, n = ranks.index(self.rank), len(ranks)
        step = 1 + op.pick % max(1, n - 1)
        to, source = ranks[(place + step) % n], ranks[(place - step) % n]
        mine, out = self.given(op, op.elements), self.blank(op, op.elements)
        works = [dist.isend(mine, to, group=group), dist.irecv(out, source, group=group)]
        if not later:
            for work in works:
                work.wait()
        return (works if later else [], [mine, out],
                lambda: [(out, self.value(op.number, source, op.elements, op.dtype))])

    def _barrier(self, op, group, ranks, later):
        return [dist.barrier(group=group, async_op=later)], [], list

    def _objects(self, op, group, ranks, later):
        values: list[Any] = [None] * len(ranks)
        dist.all_gather_object(values, (self.rank, op.number), group=group)
        if values != [(rank, op.number) for rank in ranks]:
            raise WrongBytes(f"{op}: {values}")
        return [], [], list

    def _compile(self, op, group, ranks, later):
        self._compile_more(op.part, self._rows(op.part, 1 + op.pick % 8))
        return [], [], list

    def _rows(self, part: bool, halvings: int) -> int:
        return max(1, self.setting.max_bytes // (64 * len(self.groups[part][1])) >> halvings)

    def _compile_more(self, part: bool, rows: int) -> None:
        """An op from bands of rows to bands of columns, `rows` by 16 columns of each rank."""
        group, ranks = self.groups[part]
        n, place = len(ranks), ranks.index(self.rank)
        held = {"offset": [place * rows, 0], "shape": [rows, 16 * n]}
        wanted = {"offset": [0, 16 * place], "shape": [rows * n, 16]}
        made = shardwire.compile_op(group, shape=[rows * n, 16 * n], dtype=torch.float32, inputs=[held],
                                    outputs=[wanted])
        self._compiled.setdefault(part, []).append((made, rows, n))

    def _run(self, op, group, ranks, later):
        if op.part not in self._compiled:
            for halvings in (0, 12):
                self._compile_more(op.part, self._rows(op.part, halvings))
        compiled, rows, n = self._compiled[op.part][op.pick % len(self._compiled[op.part])]
        place = ranks.index(self.rank)
        mine = self.given(op, rows * 16 * n, dtype=torch.float32)
        out = self.blank(op, rows * n * 16, dtype=torch.float32)
        future = compiled([mine.view(rows, 16 * n)], [out.view(rows * n, 16)])
        if not later:
            future.wait()

        def expected():
            bands = [self.value(op.number, rank, rows * 16 * n, torch.float32).view(rows, 16 * n)[
                :, 16 * place: 16 * place + 16] for rank in ranks]
            return [(out, torch.cat(bands).reshape(-1))]

        return [future] if later else [], [mine, out], expected

