"""Things about which ranks may disagree: in each kind one rank, the odd rank, makes a different call from the others.
Afterwards all ranks call the same next operation.

Most kinds must raise on every rank, in this call or the next, long before the timeout. Some kinds cannot, and give the
reason. The call's meaning may allow the difference ("silent": a rank may see success with bytes of another meaning), or
a waiting rank may still make the call that the others wait for, from another thread or later ("deadlock": the timeout
must end the wait and name the missing ranks).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import shardwire

FEW, MANY = 5, 300_000
F32, F64, I32 = torch.float32, torch.float64, torch.int32
SUM, MAX, MIN = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN


class Call:
    """The calls of one rank of one trial. `later`: calls that are only started, and waited for at the end of the
    step."""

    def __init__(self, rank: int, size: int, odd: int, root: int, later: bool, in_heap: bool) -> None:
        self.rank, self.size, self.odd, self.later, self.in_heap = rank, size, odd, later, in_heap
        self.root, self.other_root = root, (root + 1) % size
        self.peer = (odd + 1) % size  # the peer of the odd rank's send or receive
        self.works: list[Any] = []
        self.held: list[Any] = []
        self.made: dict[str, Any] = {}

    @property
    def is_odd(self) -> bool:
        return self.rank == self.odd

    def tensor(self, count: int = FEW, dtype: torch.dtype = F32, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        shape = shape or (count,)
        tensor = shardwire.empty(shape, dtype=dtype) if self.in_heap else torch.empty(shape, dtype=dtype)
        self.held.append(tensor.fill_(self.rank + 1))
        return tensor

    def tensors(self, count: int = FEW, dtype: torch.dtype = F32) -> list[torch.Tensor]:
        return [self.tensor(count, dtype) for _ in range(self.size)]

    def _keep(self, work: Any) -> None:
        if work is not None:
            self.works.append(work)

    def finish(self) -> None:
        while self.works:
            self.works.pop(0).wait()

    def all_reduce(self, count: int = FEW, dtype: torch.dtype = F32, op: Any = SUM, group: Any = None,
                   shape: tuple[int, ...] | None = None) -> None:
        self._keep(dist.all_reduce(self.tensor(count, dtype, shape), op=op, group=group, async_op=self.later))

    def coalesced(self, *counts: int) -> None:
        self._keep(dist.all_reduce_coalesced([self.tensor(count) for count in counts], async_op=self.later))

    def broadcast(self, count: int = FEW, dtype: torch.dtype = F32, root: int | None = None,
                  shape: tuple[int, ...] | None = None) -> None:
        self._keep(
            dist.broadcast(self.tensor(count, dtype, shape), self.root if root is None else root, async_op=self.later))

    def reduce(self, count: int = FEW, dtype: torch.dtype = F32, root: int | None = None, op: Any = SUM) -> None:
        self._keep(
            dist.reduce(self.tensor(count, dtype), self.root if root is None else root, op=op, async_op=self.later))

    def all_gather(self, count: int = FEW, dtype: torch.dtype = F32, shape: tuple[int, ...] | None = None) -> None:
        outs = [self.tensor(count, dtype, shape) for _ in range(self.size)]
        self._keep(dist.all_gather(outs, self.tensor(count, dtype, shape), async_op=self.later))

    def gather(self, count: int = FEW, root: int | None = None, dtype: torch.dtype = F32) -> None:
        root = self.root if root is None else root
        self._keep(dist.gather(self.tensor(count, dtype), self.tensors(count, dtype) if self.rank == root else None,
                               root, async_op=self.later))

    def scatter(self, count: int = FEW, root: int | None = None, dtype: torch.dtype = F32) -> None:
        root = self.root if root is None else root
        self._keep(dist.scatter(self.tensor(count, dtype), self.tensors(count, dtype) if self.rank == root else None,
                                root, async_op=self.later))

    def reduce_scatter(self, count: int = FEW, dtype: torch.dtype = F32, op: Any = SUM) -> None:
        self._keep(
            dist.reduce_scatter(self.tensor(count, dtype), self.tensors(count, dtype), op=op, async_op=self.later))

    def all_to_all(self, sends: list[int], receives: list[int], dtype: torch.dtype = F32) -> None:
        work = dist.all_to_all_single(self.tensor(sum(receives), dtype), self.tensor(sum(sends), dtype), receives,
                                      sends, async_op=self.later)
        self._keep(work)

    def even_all_to_all(self, count: int = FEW, dtype: torch.dtype = F32) -> None:
        self.all_to_all([count] * self.size, [count] * self.size, dtype)

    def barrier(self) -> None:
        self._keep(dist.barrier(async_op=self.later))

    def send(self, count: int = FEW, dtype: torch.dtype = F32, to: int | None = None) -> None:
        self._keep(dist.isend(self.tensor(count, dtype), self.peer if to is None else to))
        if not self.later:
            self.finish()

    def recv(self, count: int = FEW, dtype: torch.dtype = F32, source: int | None = None) -> None:
        self._keep(dist.irecv(self.tensor(count, dtype), self.odd if source is None else source))
        if not self.later:
            self.finish()

    # Compiled ops are made before the trial begins.

    def compile_rows(self, name: str, rows: int, **spec: Any) -> None:
        """Each rank has `rows` rows and gets all."""
        held = [{"offset": [self.rank * rows, 0], "shape": [rows, 8]}]
        wanted = [{"offset": [0, 0], "shape": [rows * self.size, 8]}]
        self.made[name] = (shardwire.compile_op(None, shape=[rows * self.size, 8], dtype=F32, inputs=held,
                                                outputs=wanted, **spec), rows * 8, rows * 8 * self.size)

    def compile_pair(self, name: str, rows: int) -> None:
        """The odd rank gives its peer rows; the other ranks hold and get nothing."""
        box = [{"offset": [0, 0], "shape": [rows, 8]}]
        op = shardwire.compile_op(None, shape=[rows, 8], dtype=F32, inputs=box if self.is_odd else [],
                                  outputs=box if self.rank == self.peer else [])
        self.made[name] = (op, rows * 8 if self.is_odd else 0, rows * 8 if self.rank == self.peer else 0)

    def run(self, name: str) -> None:
        op, given, wanted = self.made[name]
        inputs, outputs = ([self.tensor(shape=(count // 8, 8))] if count else [] for count in (given, wanted))
        future = op(inputs, outputs)
        self._keep(future)
        if not self.later:
            self.finish()


Step = Callable[[Call], None]


@dataclass
class Kind:
    name: str
    usual: Step
    odd: Step
    prepare: Step | None = None
    least: int = 2  # ranks
    who: str = "all"  # the ranks that must raise: all, odd, others
    expects: str = "error"  # error, silent or deadlock
    reason: str = ""


def nothing(_call: Call) -> None:
    pass


def _roots(name: str, collective: Callable[..., None]) -> list[Kind]:
    kinds = []
    for words, count in (("few bytes", FEW), ("many bytes", MANY)):
        kinds.append(Kind(f"{name}, another root, {words}", lambda c, n=count: collective(c, n, root=c.root),
                          lambda c, n=count: collective(c, n, root=c.other_root)))
    return kinds


def _others(name: str, collective: Callable[..., None], **odd: Any) -> list[Kind]:
    """The odd rank's arguments differ, with few bytes and with many."""
    def changed(c: Call, n: int) -> None:
        given = {key: value for key, value in odd.items() if key != "more"}
        collective(c, n + odd.get("more", 0), **given)

    return [Kind(f"{name}, {words}", lambda c, n=count: collective(c, n), lambda c, n=count: changed(c, n))
            for words, count in (("few bytes", FEW), ("many bytes", MANY))]


def _splits(name: str, extra: int | None) -> list[Kind]:
    """The odd rank sends its peer something unexpected; None: nothing."""
    def step(c: Call, n: int) -> None:
        sends = [n] * c.size
        sends[c.peer] += (-n if extra is None else extra) if c.is_odd else 0
        c.all_to_all(sends, [n] * c.size)

    return [Kind(f"all_to_all, {name}, {words}", lambda c, n=count: step(c, n), lambda c, n=count: step(c, n))
            for words, count in (("few bytes", FEW), ("many bytes", MANY))]


def _uneven(name: str) -> list[Kind]:
    """Rank r has n + r elements; the odd rank expects two more from its peer."""
    def step(c: Call, n: int) -> None:
        counts = [n + rank for rank in range(c.size)]
        counts[c.peer] += 2 if c.is_odd else 0
        c._keep(dist.all_gather([c.tensor(count) for count in counts], c.tensor(n + c.rank), async_op=c.later))

    return [Kind(f"{name}, {words}", lambda c, n=count: step(c, n), lambda c, n=count: step(c, n))
            for words, count in (("few bytes", FEW), ("many bytes", MANY))]


def _leave(c: Call) -> None:
    dist.destroy_process_group()


def _exit(c: Call) -> None:
    os._exit(0)


def _other_size(c: Call) -> None:
    store = dist.distributed_c10d._get_default_store()
    size = c.size + (1 if c.is_odd else 0)
    shardwire.create_process_group(dist.PrefixStore("other size", store), c.rank, size, timedelta(seconds=20))


def _two_groups(c: Call) -> None:
    c.made["a"], c.made["b"] = dist.new_group(list(range(c.size))), dist.new_group(list(range(c.size)))


def _sub(c: Call) -> None:
    c.made["sub"] = dist.new_group(sorted({c.odd, c.peer}))


def _in_order(*names: str) -> Step:
    def step(c: Call) -> None:
        for name in names:
            c.all_reduce(group=c.made[name])
    return step


def _ops(c: Call) -> None:
    c.compile_rows("a", 64)
    c.compile_rows("b", 96)


def _one_moves_nothing(c: Call) -> None:
    c.compile_pair("a", 64)
    c.compile_rows("b", 64)


def _runs(*names: str) -> Step:
    def step(c: Call) -> None:
        for name in names:
            c.run(name)
    return step


def _wrong_call(c: Call) -> None:
    """Refused on the caller before anything moves; the caller then goes on."""
    try:
        c.all_reduce(shape=(2, 2)) if not c.is_odd else dist.all_reduce(torch.empty(0).to_sparse().to_sparse_csr())
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        pass


def _batch(c: Call) -> None:
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, c.tensor(), (c.rank + 1) % c.size),
                                    dist.P2POp(dist.irecv, c.tensor(), (c.rank - 1) % c.size)])
    for work in works:
        work.wait()


def _objects(c: Call) -> None:
    dist.all_gather_object([None] * c.size, "text " * 40 if c.is_odd else "t")


KINDS = [
    # Another operation.
    Kind("all_reduce against broadcast", lambda c: c.all_reduce(), lambda c: c.broadcast()),
    Kind("all_reduce against broadcast, many bytes", lambda c: c.all_reduce(MANY), lambda c: c.broadcast(MANY)),
    Kind("all_reduce against reduce", lambda c: c.all_reduce(), lambda c: c.reduce()),
    Kind("all_gather against all_to_all", lambda c: c.all_gather(), lambda c: c.even_all_to_all()),
    Kind("all_gather against gather", lambda c: c.all_gather(), lambda c: c.gather()),
    Kind("reduce_scatter against all_reduce, many bytes", lambda c: c.reduce_scatter(MANY),
         lambda c: c.all_reduce(MANY)),
    Kind("scatter against broadcast", lambda c: c.scatter(), lambda c: c.broadcast()),
    Kind("barrier against all_reduce", lambda c: c.barrier(), lambda c: c.all_reduce()),
    Kind("barrier against broadcast, many bytes", lambda c: c.barrier(), lambda c: c.broadcast(MANY)),
    # Other arguments.
    *_others("all_reduce, another op", Call.all_reduce, op=MAX),
    *_others("all_reduce, another dtype", Call.all_reduce, dtype=I32),
    *_others("all_reduce, another count", Call.all_reduce, more=1),
    *_others("broadcast, another count", Call.broadcast, more=3),
    *_others("broadcast, another dtype", Call.broadcast, dtype=F64),
    *_others("broadcast, another dtype of equal bytes", Call.broadcast, dtype=I32),
    *_others("reduce, another op", Call.reduce, op=MIN),
    *_others("all_gather, another count", Call.all_gather, more=1),
    *_others("gather, another count", Call.gather, more=1),
    *_others("scatter, another count", Call.scatter, more=1),
    *_others("reduce_scatter, another op", Call.reduce_scatter, op=MAX),
    *_others("reduce_scatter, another dtype", Call.reduce_scatter, dtype=F64),
    *_others("all_to_all, another count", Call.even_all_to_all, more=2),
    *_roots("broadcast", Call.broadcast), *_roots("reduce", Call.reduce), *_roots("scatter", Call.scatter),
    *_roots("gather", Call.gather), *_splits("a split longer than its receiver's", 2),
    *_splits("a split shorter than its receiver's", -2), *_splits("nothing where something is expected", None),
    *_splits("a split much shorter than its receiver's", -9 * MANY // 10)[1:],
    *_uneven("all_gather of uneven tensors, another size"),
    Kind("coalesced, a list more", lambda c: c.coalesced(3, 4), lambda c: c.coalesced(3, 4, 5)),
    Kind("coalesced, another order", lambda c: c.coalesced(3, 4), lambda c: c.coalesced(4, 3)),
    # One more, one fewer, another order.
    Kind("an extra call", lambda c: c.all_reduce(7), lambda c: (c.all_reduce(7), c.all_gather())),
    Kind("an extra call of the same kind", lambda c: c.all_reduce(7), lambda c: (c.all_reduce(7), c.all_reduce(7))),
    Kind("an extra broadcast of few bytes", lambda c: c.all_reduce(7),
         lambda c: (c.all_reduce(7), c.broadcast(root=c.odd))),
    Kind("a missing call", lambda c: c.all_reduce(7), nothing),
    Kind("a missing barrier", lambda c: c.barrier(), nothing),
    Kind("a missing broadcast of few bytes", lambda c: c.broadcast(), nothing),
    Kind("a missing reduce_scatter, many bytes", lambda c: c.reduce_scatter(MANY), nothing),
    Kind("two calls in another order", lambda c: (c.all_reduce(), c.all_gather()),
         lambda c: (c.all_gather(), c.all_reduce())),
    Kind("a call refused here, the others go on", _wrong_call, _wrong_call),
    # Compiled ops.
    Kind("runs of two compiled ops in another order", _runs("a", "b"), _runs("b", "a"), _ops),
    Kind("runs in another order, one moves nothing on some ranks", _runs("a", "b"), _runs("b", "a"),
         _one_moves_nothing), Kind("a run of another compiled op", _runs("a"), _runs("b"), _ops),
    Kind("a run against all_gather", _runs("a"), lambda c: c.all_gather(512), _ops),
    Kind("a missing run", _runs("a"), nothing, _ops),
    Kind("compile_op against all_reduce", lambda c: c.compile_rows("c", 8), lambda c: c.all_reduce()),
    Kind("compile_op, another dtype or shape", lambda c: c.compile_rows("c", 8), lambda c: c.compile_rows("c", 9)),
    # Messages.
    Kind("a send longer than its recv", lambda c: c.recv(FEW) if c.rank == c.peer else None, lambda c: c.send(FEW + 5)),
    Kind("a send shorter than its recv", lambda c: c.recv(FEW + 5) if c.rank == c.peer else None,
         lambda c: c.send(FEW)),
    Kind("a send longer than its recv, many bytes", lambda c: c.recv(MANY) if c.rank == c.peer else None,
         lambda c: c.send(MANY + 5)), Kind("a send against a collective", lambda c: c.all_reduce(), lambda c: c.send()),
    Kind("all_gather_object against broadcast_object_list", _objects,
         lambda c: dist.broadcast_object_list(["text"], c.odd)),
    Kind("broadcast_object_list, another root", lambda c: dist.broadcast_object_list(["t" * 30], c.root),
         lambda c: dist.broadcast_object_list(["t" * 30], c.other_root)),
    Kind("batch_isend_irecv against all_reduce", lambda c: c.all_reduce(), lambda c: c.send(to=c.peer)),
    # Leaving.
    Kind("destroy_process_group instead", lambda c: c.all_reduce(), _leave, who="others"),
    Kind("destroy_process_group instead of a run", _runs("a"), _leave, _ops, who="others"),
    Kind("the end of the process instead", lambda c: c.all_reduce(MANY), _exit, who="others"),
    Kind("a group of another world size", _other_size, _other_size),
    # Differences without detection at once.
    Kind("send and recv of other dtypes, equal bytes", lambda c: c.recv(dtype=I32) if c.rank == c.peer else None,
         lambda c: c.send(), expects="silent",
         reason="a message is bytes, as in MPI's packed sends; only their number is compared"),
    Kind("all_gather of (2, k) against (k, 2)", lambda c: c.all_gather(shape=(2, 6)),
         lambda c: c.all_gather(shape=(6, 2)), expects="silent",
         reason="collectives move flat tensors: the count of elements and the dtype are compared, not the shape"),
    Kind("all_reduce of (3, 4) against (2, 6)", lambda c: c.all_reduce(shape=(3, 4)),
         lambda c: c.all_reduce(shape=(2, 6)), expects="silent",
         reason="collectives move flat tensors: the count of elements and the dtype are compared, not the shape"),
    Kind("a recv against a collective", lambda c: c.all_reduce(), lambda c: c.recv(source=c.peer), expects="deadlock",
         reason="another thread of the odd rank could still call the collective"),
    Kind("a subgroup against the world", lambda c: c.all_reduce(), lambda c: c.all_reduce(group=c.made["sub"]), _sub,
         least=3, expects="deadlock",
         reason="groups know nothing of each other's operations, and another thread could still call either"),
    Kind("two groups in another order", _in_order("a", "b"), _in_order("b", "a"), _two_groups, expects="deadlock",
         reason="operations of different groups have no order among each other"),
]
