"""Calls that need every rank, one for each part of shardwire: what bench/faults.py makes while a rank is missing.

Each class prepares what the call needs, and `call` makes the call once and checks its result. The rank `missing` takes
part in the first call, and may be missing in the second.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import shardwire
from shardwire import symm
from shardwire.distributed import fft
from shardwire.distributed.distribution import Slab

MANY = 1 << 20  # elements: more than any transport sends without the receiver's leave


class Call:
    """The three ranks of a trial, and the number of the call."""

    may_succeed = ""  # why a call may succeed although a rank is missing; empty: it may not

    def __init__(self, rank: int, size: int, missing: int, folder: Path, timeout: float) -> None:
        self.rank, self.size, self.missing, self.folder, self.timeout = rank, size, missing, folder, timeout
        self.everybody = list(range(size))
        self.is_missing, self.turn = rank == missing, 0
        self.prepare()

    def prepare(self) -> None:
        """Collective."""

    def __call__(self) -> None:
        self.turn += 1
        self.call()

    def call(self) -> None:
        raise NotImplementedError

    def expect(self, tensor: torch.Tensor, value: float) -> None:
        if not (tensor == value).all():
            raise AssertionError(f"wrong bytes: {tensor.flatten()[:4].tolist()}, not {value}")


class ShortAllReduce(Call):
    """`all_reduce` of 16 bytes"""

    count = 4

    def call(self) -> None:
        tensor = torch.full((self.count,), float(self.turn))
        dist.all_reduce(tensor)
        self.expect(tensor, self.turn * self.size)


class LongAllReduce(ShortAllReduce):
    """`all_reduce` of 4 MiB"""

    count = MANY


class Broadcast(Call):
    """`broadcast` from the missing rank"""

    def call(self) -> None:
        tensor = torch.full((MANY,), float(self.turn if self.is_missing else -1))
        dist.broadcast(tensor, self.missing)
        self.expect(tensor, self.turn)


class Recv(Call):
    """`recv` from the missing rank"""

    def call(self) -> None:
        if not self.is_missing:
            tensor = torch.zeros(4)
            dist.recv(tensor, self.missing)
            self.expect(tensor, self.turn)
            return
        for other in self.everybody:
            if other != self.missing:
                dist.send(torch.full((4,), float(self.turn)), other)


class Send(Call):
    """`send` of 4 MiB to the missing rank"""

    def call(self) -> None:
        if not self.is_missing:
            dist.send(torch.full((MANY,), float(self.turn)), self.missing)
            return
        for other in self.everybody:
            if other != self.missing:
                tensor = torch.zeros(MANY)
                dist.recv(tensor, other)
                self.expect(tensor, self.turn)


class Barrier(Call):
    """`barrier`"""

    def call(self) -> None:
        dist.barrier()


class AllGatherObject(Call):
    """`all_gather_object`"""

    def call(self) -> None:
        found = [None] * self.size
        dist.all_gather_object(found, (self.turn, self.rank))
        if found != [(self.turn, rank) for rank in self.everybody]:
            raise AssertionError(f"wrong objects: {found}")


class NewGroup(Call):
    """`new_group`, and a barrier in the group"""

    def call(self) -> None:
        dist.barrier(dist.new_group(timeout=timedelta(seconds=self.timeout)))  # torch's default: half an hour


class Compile(Call):
    """`compile_op`"""

    rows = 8

    def compiled(self) -> shardwire.TensorOp:
        shape = (self.rows * self.size, 8 + self.turn)
        return shardwire.compile_op(
            None, shape, torch.float32,
            inputs=[shardwire.Layout(self.everybody, [shardwire.Shard(0)], shape, torch.float32)],
            outputs=[shardwire.Layout(self.everybody, [shardwire.Replicate()], shape, torch.float32)])

    def call(self) -> None:
        self.compiled()


class Run(Compile):
    """a run of a compiled op"""

    rows = 1 << 15

    def prepare(self) -> None:
        self.op = self.compiled()

    def call(self) -> None:
        output = torch.empty(self.rows * self.size, 8)
        self.op(torch.full((self.rows, 8), float(self.turn)), output).wait()
        self.expect(output, self.turn)


class SymmetricBarrier(Call):
    """`symm.barrier`"""

    def call(self) -> None:
        symm.barrier()


class SignalWait(Call):
    """`symm.signal_wait` for the missing rank"""

    def prepare(self) -> None:
        self.signal = symm.zeros(1, dtype=torch.int64)
        self.data = symm.zeros(64)

    def call(self) -> None:
        if not self.is_missing:
            symm.signal_wait(self.signal[0], "ge", self.turn, source=self.missing)
            self.expect(self.data, self.turn)
            return
        for other in self.everybody:
            if other != self.missing:
                symm.put_signal(self.data, torch.full((64,), float(self.turn)), self.signal[0], self.turn, other)


class Get(Call):
    """`symm.get` from the missing rank"""

    may_succeed = "on one host the memory is mapped here, and the rank takes no part in the call"

    def prepare(self) -> None:
        self.data = symm.zeros(64)
        self.data.fill_(7.0)
        symm.barrier()

    def call(self) -> None:
        if not self.is_missing:
            found = torch.zeros(64)
            symm.get(found, self.data, self.missing)
            self.expect(found, 7.0)


class QueueGet(Call):
    """`Queue.get`, where the missing rank holds the queue and puts"""

    def prepare(self) -> None:
        self.queue = shardwire.Queue(None, location=self.missing, name="faults")

    def call(self) -> None:
        if not self.is_missing:
            self.expect(self.queue.get(), self.turn)
            return
        for _ in range(self.size - 1):
            self.queue.put(torch.full((4,), float(self.turn)))


class QueuePut(QueueGet):
    """`Queue.put`, where the missing rank holds the queue"""

    def call(self) -> None:
        if not self.is_missing:
            self.queue.put(torch.full((4,), float(self.turn)))
            return
        for _ in range(self.size - 1):
            self.expect(self.queue.get(), self.turn)


class Save(Call):
    """`save`"""

    def layout(self, placement: object) -> shardwire.Layout:
        return shardwire.Layout(self.everybody, [placement], (self.size * 8, 16), torch.float32)

    def call(self) -> None:
        shardwire.save({"a": (self.layout(shardwire.Shard(0)), torch.full((8, 16), float(self.turn)))},
                       self.folder / f"checkpoint-{self.turn}")


class Load(Save):
    """`load`"""

    def prepare(self) -> None:
        self.turn = 1
        super().call()
        self.turn = 0

    def call(self) -> None:
        found = shardwire.load(self.folder / "checkpoint-1", {"a": self.layout(shardwire.Replicate())})
        self.expect(found["a"], 1.0)


class Transform(Call):
    """`distributed.fft.fft`"""

    def call(self) -> None:
        shape = (6, 6, 4)
        found = fft.fft(torch.ones(Slab.X.shape(self.rank, shape), dtype=torch.complex64), distribution=Slab.X)
        if self.rank == 0 and abs(found.flatten()[0].item() - 144) > 1e-3:
            raise AssertionError(f"wrong bytes: {found.flatten()[0]}")


CALLS: dict[str, type[Call]] = {kind.__name__: kind for kind in (
    ShortAllReduce, LongAllReduce, Broadcast, Recv, Send, Barrier, AllGatherObject, NewGroup, Compile, Run,
    SymmetricBarrier, SignalWait, Get, QueueGet, QueuePut, Save, Load, Transform)}
