"""The uses of bench/soak.py: each kind is one use of shardwire, with other shapes each time, whose result is checked.

A kind is a function of (me, number): the rank, and the number of the round. The numbers of a round are equal on all
ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shardwire
import shardwire.distributed as swd
from shardwire import symm
from shardwire.distributed.distribution import Slab

SHAPES = 40  # as many different shapes as a kind draws from: caches by shape have all of them after the first rounds


class Soaked:
    """A rank, and what it keeps from round to round."""

    def __init__(self, rank: int, size: int, folder: Path, seconds: float = 60) -> None:
        self.rank, self.size, self.folder, self.seconds = rank, size, folder, seconds
        self.everybody = list(range(size))
        self.queue = shardwire.Queue(None, location=0, name="soak", capacity=64)
        half = size // 2
        self.publishes = rank < half or size == 1
        jobs = ([dist.new_group(self.everybody[:half]), dist.new_group(self.everybody[half:])] if size > 1
                else [None, None])
        self.job = jobs[0 if self.publishes else 1]
        self.state = {"w": torch.zeros(64, 48), "b": torch.zeros(48)}
        self.publication: Any = None


def _draw(number: int, kind: int) -> random.Random:
    return random.Random(kind * 1_000_003 + number % SHAPES)


def collectives(me: Soaked, number: int) -> None:
    draw = _draw(number, 1)
    elements = draw.choice([1, 7, 1000, 30_000, 250_000])
    works, tensors = [], []
    for _ in range(3):
        tensors.append(torch.full((elements, 2), float(me.rank))[:, 0])  # not contiguous: goes through a copy
        works.append(dist.all_reduce(tensors[-1], async_op=True))
    inputs = torch.full((me.size, draw.choice([3, 5000])), float(me.rank))
    outputs = torch.empty_like(inputs)
    dist.all_to_all_single(outputs, inputs)
    gathered = [torch.empty(draw.choice([11, 9000])) for _ in range(me.size)]
    gathered = [torch.empty_like(gathered[0]) for _ in gathered]
    dist.all_gather(gathered, torch.full_like(gathered[0], float(me.rank)))
    for work, tensor in zip(works, tensors):
        work.wait()
        assert tensor[0].item() == sum(me.everybody), tensor[0]
    assert [row[0].item() for row in outputs] == [row[0].item() for row in gathered] == me.everybody


def compiled(me: Soaked, number: int) -> None:
    draw = _draw(number, 2)
    rows, columns = me.size * draw.randrange(1, 60), me.size * draw.randrange(1, 60)
    mesh, shape = me.everybody, (rows, columns)
    op = shardwire.compile_op(None, shape, torch.float32,
                              inputs=[shardwire.Layout(mesh, [shardwire.Shard(0)], shape, torch.float32)],
                              outputs=[shardwire.Layout(mesh, [shardwire.Shard(1)], shape, torch.float32)])
    output = torch.empty(rows, columns // me.size)
    for _ in range(2):
        op(torch.full((rows // me.size, columns), float(me.rank)), output).wait()
    assert output[:, 0].sum().item() == rows // me.size * sum(me.everybody)


def queues(me: Soaked, number: int) -> None:
    elements = _draw(number, 3).choice([1, 300, 70_000])
    me.queue.put({"from": me.rank, "tensor": torch.full((elements,), float(me.rank))})
    me.queue.put(torch.full((elements,), float(me.rank)))
    taken = [me.queue.get(timeout=me.seconds) for _ in range(2)]
    for entry in taken:
        tensor = entry["tensor"] if isinstance(entry, dict) else entry
        source = entry["from"] if isinstance(entry, dict) else tensor[0].item()
        assert tensor.numel() > 0 and source in me.everybody and (tensor == source).all(), (source, tensor)


def symmetric(me: Soaked, number: int) -> None:
    elements = _draw(number, 4).randrange(1, 40_000)
    data, ready = symm.zeros(elements, dtype=torch.float32), symm.zeros(me.size, dtype=torch.int64)
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    symm.put_signal(data, torch.full((elements,), float(me.rank)), ready[me.rank], 1, right)
    symm.signal_wait(ready[left], "ge", 1, timeout=me.seconds, source=left)
    assert data[-1].item() == left
    symm.barrier()
    symm.free(ready)


def teams(me: Soaked, number: int) -> None:
    stride = _draw(number, 5).randrange(1, 3)
    members = len(range(0, me.size, stride))
    team = symm.team().split_strided(0, stride, members)
    if team is not None:
        tensor = torch.full((100,), float(team.rank))
        team.all_reduce(tensor)
        assert tensor[0].item() == sum(range(members))


def publications(me: Soaked, number: int) -> None:
    url = f"file://{me.folder}"
    if me.publishes:
        if me.publication is None:
            state = {name: (shardwire.Layout(me.everybody[: max(1, me.size // 2)], [shardwire.Replicate()],
                                             tuple(tensor.shape), tensor.dtype), tensor)
                     for name, tensor in me.state.items()}
            me.publication = shardwire.publish(url, "soak", state, me.job, timeout=me.seconds)
        me.state["w"].fill_(float(number))
        me.publication.commit(number)
    if me.size == 1 or not me.publishes:
        subscription = shardwire.subscribe(url, "soak", None, me.job, timeout=me.seconds)
        assert subscription.fetch(version=number, timeout=me.seconds) == number
        assert subscription.target["w"][0, 0].item() == number
        subscription.close()
    dist.barrier()


def checkpoints(me: Soaked, number: int) -> None:
    columns = _draw(number, 6).randrange(1, 400)
    layout = shardwire.Layout(me.everybody, [shardwire.Shard(0)], (me.size * 8, columns), torch.float32)
    folder = me.folder / "checkpoint"
    shardwire.save({"a": (layout, torch.full((8, columns), float(me.rank)))}, folder)
    loaded = shardwire.load(folder,
                            {"a": shardwire.Layout(me.everybody, [shardwire.Replicate()], layout.shape, layout.dtype)})
    assert loaded["a"][::8, 0].tolist() == me.everybody


def transforms(me: Soaked, number: int) -> None:
    draw = _draw(number, 7)
    shape = (me.size * draw.randrange(1, 5), me.size * draw.randrange(1, 5), draw.randrange(1, 9))
    given = torch.ones(Slab.X.shape(me.rank, shape), dtype=torch.complex64)
    back = swd.fft.ifft(swd.fft.fft(given, distribution=Slab.X), distribution=Slab.X, norm="backward")
    assert torch.allclose(back, given, atol=1e-4)


def groups(me: Soaked, number: int) -> None:
    path = me.folder / f"group-{number}"
    group = shardwire.create_process_group(dist.FileStore(str(path), me.size), me.rank, me.size, timeout=me.seconds)
    try:
        tensor = torch.full((_draw(number, 8).randrange(1, 5000),), float(me.rank))
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == sum(me.everybody)
    finally:
        shardwire.end_process_group(group)
    if me.rank == 0:
        (me.folder / f"group-{number - 2}").unlink(missing_ok=True)


KINDS: dict[str, Callable[[Soaked, int], None]] = {kind.__name__: kind for kind in (
    collectives, compiled, queues, symmetric, teams, publications, checkpoints, transforms, groups)}
