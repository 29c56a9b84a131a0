"""reshape and redistribute: against numpy's own cutting of the whole array, and every misuse as one error on all
ranks."""

from __future__ import annotations

import json
import logging
import os
import random
from typing import Any

import numpy
import pytest
import torch
from ranks import error_of, group, run_ranks

import shardwire
import shardwire.distributed as swd
from shardwire.distributed import _meeting
from shardwire.distributed.distribution import (Block, BlockCyclic, Box, Boxes, Distribution, Pencil, Placements,
                                                ProcessGrid, Slab)
from shardwire.distributed.reshape import InvalidReshapeState, Reshape, ReshapeOptions, redistribute, reshape

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20260714"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "60"))


def take(distribution: Distribution, whole: Any, rank: int, ranks: int) -> torch.Tensor:
    """The naive model: this rank's part of the whole array."""
    share = distribution.share(rank, tuple(whole.shape), ranks)
    local = torch.empty(share.local_shape, dtype=whole.dtype)
    for piece in share.pieces:
        there = tuple(slice(begin, begin + extent) for begin, extent in zip(piece.local_offset, piece.shape))
        local[there] = whole[tuple(slice(begin, begin + extent) for begin, extent in zip(piece.offset, piece.shape))]
    return local


def whole_of(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = int(numpy.prod(shape, dtype=int))
    if dtype == torch.bool:
        return (torch.arange(count) % 3 == 0).reshape(shape)
    return (torch.arange(count) % 120).to(dtype).reshape(shape)


def random_boxes(rng: random.Random, shape: tuple[int, ...], ranks: int) -> Boxes:
    """A cut of the array into boxes, halved at random; some ranks may get nothing."""
    boxes = [([0] * len(shape), list(shape))]
    while len(boxes) < ranks and rng.random() < 0.95:
        lower, upper = boxes.pop(rng.randrange(len(boxes)))
        dim = rng.randrange(len(shape))
        middle = rng.randint(lower[dim], upper[dim])
        boxes += [(lower, upper[:dim] + [middle] + upper[dim + 1:]), (lower[:dim] + [middle] + lower[dim + 1:], upper)]
    boxes += [([0] * len(shape), [0] * len(shape))] * (ranks - len(boxes))
    rng.shuffle(boxes)
    return Boxes([Box(lower, upper) for lower, upper in boxes[:ranks]])


def random_distribution(rng: random.Random, shape: tuple[int, ...], ranks: int) -> Distribution:
    ndim = len(shape)
    kind = rng.choice(["slab", "pencil", "block", "cyclic", "boxes", "placements"])
    if kind == "slab":
        return Slab(rng.randrange(ndim))
    if kind == "pencil" and ndim > 1:
        return Pencil(rng.sample(range(ndim), 2))
    if kind == "placements":
        return Placements([shardwire.Shard(rng.randrange(ndim))])
    if kind in ("block", "cyclic"):
        factors = [1] * ndim
        left = ranks
        for prime in (2, 3, 5):
            while left % prime == 0:
                factors[rng.randrange(ndim)] *= prime
                left //= prime
        grid = ProcessGrid(shape=factors, layout=rng.choice(list(ProcessGrid.Layout)))
        first = [rng.randrange(extent) for extent in factors]
        return (Block(grid, first_process=first) if kind == "block"
                else BlockCyclic(grid, [rng.randint(1, 4) for _ in shape], first_process=first))
    return random_boxes(rng, shape, ranks)


def random_cases(rank: int, ranks: int, seed: int, cases: int) -> int:
    rng = random.Random(seed)
    dtypes = [torch.bool, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.int64,
              torch.complex64, torch.complex128]
    for case in range(cases):
        ndim = rng.randint(1, 4)
        shape = tuple(rng.randint(1, 9) for _ in range(ndim))
        dtype = rng.choice(dtypes)
        source, target = random_distribution(rng, shape, ranks), random_distribution(rng, shape, ranks)
        use_numpy = rng.random() < 0.3 and dtype != torch.bfloat16
        fortran = rng.random() < 0.3
        whole = whole_of(shape, dtype)
        local = take(source, whole, rank, ranks)
        if fortran:
            local = local.permute(*range(ndim - 1, -1, -1)).contiguous().permute(*range(ndim - 1, -1, -1))
        wanted = take(target, whole, rank, ranks)
        result = redistribute(local.numpy() if use_numpy else local, source, target, group=group(), global_shape=shape)
        got = torch.from_numpy(result) if use_numpy else result
        assert torch.equal(got, wanted), f"seed {seed}, case {case}: {shape} {dtype} {source} to {target}"
        if fortran and got.numel() and not local.is_contiguous():
            assert got.permute(*range(ndim - 1, -1, -1)).is_contiguous()
    return cases


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6])
def test_random_cases(ranks: int) -> None:
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    assert run_ranks(ranks, random_cases, ranks, SEED + ranks, CASES, timeout=60 + CASES // 10) == [CASES] * ranks


def documented(rank: int) -> None:
    """The published 4 x 4 example: by columns, then by rows."""
    swd.initialize(0, group())
    assert swd.get_context().rank == rank and swd.get_context().size == 2
    a = numpy.zeros((4, 2)) if rank == 0 else numpy.ones((4, 2))
    input_box, output_box = ((Box((0, 0), (4, 2)), Box((0, 0), (2, 4))) if rank == 0
                             else (Box((0, 2), (4, 4)), Box((2, 0), (4, 4))))
    for _ in range(2):
        b = swd.reshape.reshape(a, input_box, output_box)
        assert isinstance(b, numpy.ndarray) and numpy.array_equal(b, [[0, 0, 1, 1]] * 2)
    with pytest.raises(RuntimeError, match="initialized before"):
        swd.initialize(0, group())
    swd.finalize()
    assert swd.get_context() is None
    swd.finalize()


def test_as_published() -> None:
    run_ranks(2, documented)


def older_forms(rank: int, communicator: bool) -> None:
    """The calls as in nvmath's documents of 0.5 and 0.6."""
    swd.initialize(0, **{"communicator" if communicator else "process_group_or_comm": group()})
    lines: list[str] = []
    logger = logging.getLogger("nvmath-like")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler := logging.StreamHandler())
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    a = swd.allocate_symmetric_memory((4, 2), numpy, dtype=numpy.complex64)
    t = swd.allocate_symmetric_memory((4, 3 + rank), torch, axis_order="F", make_symmetric=True)
    assert (a.dtype == numpy.complex64 and t.shape == (4, 3 + rank) and t.stride() == (1, 4)
            and shardwire.in_shared_heap(t))
    a[:] = rank
    columns, rows = [(0, 2 * rank), (4, 2 * rank + 2)], [(2 * rank, 0), (2 * rank + 2, 4)]
    b = swd.reshape.reshape(a, columns, rows)
    assert numpy.array_equal(b, numpy.array([[0, 0, 1, 1]] * 2))
    fixed = numpy.asfortranarray(a)
    fixed.flags.writeable = False
    moved = swd.reshape.reshape(fixed, columns, rows)
    assert numpy.array_equal(moved, b) and moved.flags.f_contiguous and not moved.flags.c_contiguous
    whole = swd.reshape.reshape(a, columns, [[(0, 0), (4, 4)], [(0, 0), (4, 4)]])
    assert whole.shape == (4, 4)
    wanted = numpy.fft.fft2(whole)
    assert numpy.allclose(swd.fft.fft(a, distribution=[columns, rows]), wanted[2 * rank:2 * rank + 2])
    assert numpy.allclose(swd.fft.fft(b, Slab.X, options=swd.fft.FFTOptions(logger=logger)),
                          wanted[2 * rank:2 * rank + 2])
    with swd.fft.FFT(a, Slab.Y, options={"logger": logger}) as f:
        f.plan()
        assert numpy.allclose(f.execute(), wanted[:, 2 * rank:2 * rank + 2])
    with Reshape(a, columns, rows, options={"logger": logger}) as r:
        r.plan()
    for call in (lambda options: swd.reshape.reshape(a, columns, rows, options=options),
                 lambda options: swd.fft.fft(a, distribution=[columns, rows], options=options)):
        assert "rank 1: logger is 3; give one of" in error_of(call, {"logger": 3 if rank else logger})[1]
    assert len(lines) == 3 and "C2C of [4, 4]" in lines[0] and "reshape of [4, 4]" in lines[2], lines
    _meeting._forgotten += rank  # finalize() was called more often on rank 1, for another group
    swd.free_symmetric_memory(a, t)
    assert ("rank 1: array 0 does not lie in the heap"
            in error_of(lambda: swd.free_symmetric_memory(a if rank == 0 else numpy.zeros(3)))[1])
    assert "rank 0 frees 2 arrays, rank 1 1" in error_of(lambda: swd.free_symmetric_memory(*[a, t][rank:]))[1]
    assert ("rank 0 asks for 16 bytes, rank 1 for 20"
            in error_of(lambda: swd.allocate_symmetric_memory([4 + rank], torch))[1])
    assert ("rank 0: package is 'json'"
            in error_of(lambda: swd.allocate_symmetric_memory([4], json if rank == 0 else torch))[1])
    assert (error_of(lambda: swd.allocate_symmetric_memory([4], torch, make_symmetric=torch.ones(2 - rank)))
            == error_of(lambda: swd.allocate_symmetric_memory([4], torch, skip_symmetric_check=torch.zeros(2 - rank)))
            == ("ShardwireError", "shardwire.distributed.allocate_symmetric_memory: rank 0: RuntimeError: Boolean "
                "value of Tensor with more than one value is ambiguous"))
    assert error_of(lambda: swd.initialize(0, group(), communicator=group()))[0] == "TypeError"
    swd.finalize()


@pytest.mark.parametrize("communicator", [True, False])
def test_as_published_earlier(communicator: bool) -> None:
    run_ranks(2, older_forms, communicator)


def stateful(rank: int) -> None:
    whole = torch.arange(6 * 8, dtype=torch.float64).reshape(6, 8)
    mine, wanted = take(Slab.X, whole, rank, 3), take(Slab.Y, whole, rank, 3)
    out = torch.empty_like(wanted)
    with Reshape(mine, Slab.X, Slab.Y, group=group(), options={"blocking": True}) as r:
        with pytest.raises(InvalidReshapeState, match="after plan"):
            r.execute()
        r.plan()
        first = r.execute()
        assert torch.equal(first, wanted) and shardwire.in_shared_heap(first)
        mine += 1  # the operand's memory is read at each execute
        assert torch.equal(r.execute(), wanted + 1) and torch.equal(first, wanted)
        r.reset_operand(mine * 2)
        assert torch.equal(r.execute(), (wanted + 1) * 2)
        r.reset_operand(None)
        with pytest.raises(InvalidReshapeState, match="needs an operand"):
            r.execute()
        r.reset_operand_unchecked(mine)
        assert torch.equal(r.execute(), wanted + 1)
        assert "redistribute" not in r.explain() and "Slab(0) to Slab(1)" in r.explain()
        wrong = mine.float() if rank == 1 else mine
        with pytest.raises(TypeError,
                           match="rank 1: the operand's dtype was torch.float64, the new one's is torch.float32"):
            r.reset_operand(wrong)
        assert torch.equal(r.execute(), wanted + 1)  # the former operand stays
    with pytest.raises(InvalidReshapeState, match="freed"):
        r.execute()
    assert reshape(mine, Slab.X, Slab.Y, group=group(), out=out) is out and torch.equal(out, wanted + 1)
    nothing = numpy.empty((2, 0))  # its address and strides are not torch's
    reshape(nothing, Slab.X, Slab.X, group=group(), out=nothing.copy())
    # torch has no negative strides; each execute still reads the present values of the array
    backwards = mine.numpy()[::-1]
    with Reshape(backwards, Slab.X, Slab.X, group=group()) as r:
        r.plan()
        assert numpy.array_equal(r.execute(), backwards)
        mine += 3
        assert numpy.array_equal(r.execute(), backwards)
        mine -= 3
    everything = reshape(mine, Slab.X, [Box((0, 0), (6, 8))] * 3, group=group())
    assert torch.equal(everything, whole + 1)


def test_the_class() -> None:
    run_ranks(3, stateful)


def gradients(rank: int) -> None:
    whole = torch.arange(6 * 8, dtype=torch.float64).reshape(6, 8)
    mine = take(Slab.X, whole, rank, 2).requires_grad_()
    moved = reshape(mine, Slab.X, Slab.Y, group=group())
    weights = take(Slab.Y, whole, rank, 2)
    (moved * weights).sum().backward()
    assert torch.equal(mine.grad, take(Slab.X, whole, rank, 2))
    mine.grad = None
    # each element on both ranks: both gradients are added
    everywhere = reshape(mine, Slab.X, [Box((0, 0), (6, 8))] * 2, group=group())
    (everywhere * whole * (rank + 1)).sum().backward()
    assert torch.equal(mine.grad, 3 * take(Slab.X, whole, rank, 2))
    slope, = torch.autograd.grad(reshape(mine, Slab.X, Slab.Y, group=group()).pow(2).sum(), mine, create_graph=True)
    assert torch.equal(slope.detach(), 2 * mine.detach())
    out = torch.empty_like(take(Slab.Y, whole, rank, 2))
    with pytest.raises(ValueError, match="rank 0: the operand requires grad, and no gradient goes through out="):
        reshape(mine, Slab.X, Slab.Y, out=out, group=group())
    with Reshape(mine.detach(), Slab.X, Slab.Y, out=out, group=group()) as r:
        with pytest.raises(ValueError, match="rank 0: the operand requires grad"):
            r.reset_operand(mine)
    with torch.no_grad():
        assert torch.equal(reshape(mine, Slab.X, Slab.Y, out=out, group=group()), take(Slab.Y, whole, rank, 2))
    some = Placements([shardwire.Shard(0)], [0])  # rank 1 holds nothing, and gives a shape without elements
    for move in (lambda local: reshape(local, some, Slab.X, group=group(), global_shape=(6, 8)),
                 lambda local: swd.fft.rfft(local, [some, Slab.X], group=group(), global_shape=(6, 8)).abs()):
        local = torch.ones((0, 8) if rank else (6, 8), requires_grad=True)
        move(local).sum().backward()
        assert local.grad.shape == local.shape
    # an error, instead of a gradient that lacks a part of the sum
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (slope.pow(2).sum() + mine.sum()).backward()


def test_gradients_go_back() -> None:
    run_ranks(2, gradients)


def misuse(rank: int) -> list[tuple[str, str]]:
    mine = torch.zeros(4, 2)
    flat = mine.to(torch.complex64)
    rows = Box((0, 0), (2, 4)) if rank == 0 else Box((2, 0), (4, 4))
    columns = Box((0, 0), (4, 2)) if rank == 0 else Box((0, 2), (4, 4))
    g = {"group": group()}
    joined, out = torch.zeros(16), torch.empty(2, 4)
    shifted = torch.from_numpy(joined.numpy()[1:9])  # another storage for torch
    into = Reshape(mine, columns, rows, out=out, **g)
    errors = [
        error_of(lambda: reshape("no array" if rank else mine, columns, rows, **g)),
        error_of(lambda: reshape(mine if rank else torch.zeros(4, 3), columns, rows, **g)),  # a wrong local operand
        error_of(lambda: reshape(mine if rank else torch.zeros(4), columns, rows, **g)),
        error_of(lambda: reshape(mine if rank else mine.double(), columns, rows, **g)),
        error_of(lambda: reshape(mine if rank else mine.numpy(), columns, rows, **g)),
        error_of(lambda: reshape(mine, columns if rank else Slab.Y, rows, **g)),
        error_of(lambda: reshape(mine, Slab.X if rank else Slab.Y, rows, **g)),
        error_of(lambda: reshape(mine, columns if rank else None, rows, **g)),
        # An overlap that cancels a gap: 16 elements in boxes, 16 in the array.
        error_of(lambda: reshape(mine.view(2, 4) if rank else mine,
                                 Box((0, 0), (2, 4)) if rank else Box((0, 0), (4, 2)), rows, **g)),
        error_of(lambda: reshape(mine, Box((0, 0), (4, 2)) if rank == 0 else Box((0, 3), (4, 5)), Slab.X, **g)),
        error_of(lambda: reshape(mine, columns, Box((0, 0), (2, 4)) if rank == 0 else Box((3, 0), (4, 4)), **g)),
        error_of(lambda: reshape(mine, columns, Box((0, 0), (2, 4)) if rank == 0 else Box((2, 0), (5, 4)), **g)),
        error_of(lambda: reshape(mine, columns, Box((0,), (2,)), **g)),
        error_of(lambda: reshape(mine, columns, rows, options={"no such": 1} if rank else None, **g)),
        error_of(lambda: reshape(mine, columns, rows, options=ReshapeOptions(blocking=False) if rank else None, **g)),
        error_of(lambda: swd.fft.fft(flat, [columns, rows], options=swd.fft.FFTOptions(chunks=0) if rank else None,
                                     **g)),
        error_of(lambda: reshape(mine, columns, rows, out=torch.empty(2, 4) if rank else None, **g)),
        error_of(lambda: reshape(mine, columns, rows, out=torch.empty(2, 4 + rank), **g)),
        error_of(lambda: reshape(mine, columns, rows, out=mine.view(2, 4) if rank else torch.empty(2, 4), **g)),
        error_of(lambda: reshape(joined[:8].view(4, 2), columns, rows,
                                 out=shifted.view(2, 4) if rank else torch.empty(2, 4), **g)),
        error_of(lambda: reshape(mine, columns, rows,
                                 out=torch.empty(5).as_strided((2, 4), (1, 1)) if rank else torch.empty(2, 4), **g)),
        error_of(lambda: into.reset_operand(out.view(4, 2) if rank else mine)),
        error_of(lambda: reshape(mine, columns, rows,
                                 out=torch.empty(2, 4, dtype=torch.float64 if rank else torch.float32), **g)),
        error_of(lambda: reshape(flat, columns, rows, out=torch.empty(2, 4, dtype=flat.dtype).conj() if rank
                                                          else torch.empty(2, 4, dtype=flat.dtype), **g)),
        error_of(lambda: reshape(mine if rank else mine.clone().requires_grad_(), columns, rows, **g)),
        error_of(lambda: reshape(mine, columns, rows, **g) if rank else redistribute(mine, columns, rows, **g)),
        error_of(lambda: reshape(mine, Block(ProcessGrid(shape=(3, 1))), rows, **g)),
        error_of(lambda: reshape(mine, Placements([shardwire.Partial()]), rows, **g)),
    ]
    with torch.set_grad_enabled(rank == 0):  # rank 0 alone would wait in its backward pass
        learning = mine.clone().requires_grad_()
        errors += [error_of(lambda: reshape(learning, columns, rows, **g)),
                   error_of(lambda: swd.fft.rfft(learning, [columns, rows], **g))]
    assert torch.equal(reshape(mine, columns, rows, **g), torch.zeros(2, 4))  # the group goes on
    reshape(joined[:8].fill_(1).view(4, 2), columns, rows, out=joined[8:].view(2, 4), **g)  # apart in one storage
    assert joined.sum() == 16
    assert torch.equal(reshape(mine, columns, rows, global_shape=numpy.array([4, 4]) if rank else [4, 4], **g),
                       torch.zeros(2, 4))
    return errors


EXPECTED = [
    ("TypeError", "rank 1: operand is 'no array'"), ("BindDistributionError", "rank 0"),
    ("ValueError", "the operand 1 on rank 0"),
    ("MismatchError", "dtype differs"), ("MismatchError", "package differs"), ("MismatchError", "input_box differs"),
    ("MismatchError", "input_box differs"), ("TypeError", "rank 0: input_box is None"),
    ("ValueError", "ranks 0 and 1 both have [0:2, 0:2]"), ("GapError", "leaves [0:4, 2:3]"),
    ("GapError", "leaves [2:3, 0:4]"), ("ValueError", "reach to [5, 4]"), ("ValueError", "output_box has 1 dimensions"),
    ("ValueError", "rank 1: options has 'no such'"), ("ValueError", "rank 1: blocking is False"),
    ("ValueError", "rank 1: chunks is 0"), ("MismatchError", "out is given on rank 1"),
    ("BindDistributionError", "out has shape [2, 5] on rank 1"), ("ValueError", "rank 1: out shares"),
    ("ValueError", "rank 1: out shares"), ("ValueError", "rank 1: out has elements that share memory"),
    ("ValueError", "rank 1: out shares"), ("ValueError", "out has dtype torch.float64 on rank 1"),
    ("ValueError", "rank 1: out is a lazily conjugated"),
    ("MismatchError", "requires_grad differs"), ("MismatchError", "rank 0 called shardwire.distributed.redistribute"),
    ("ValueError", "3 ranks"), ("UnsupportedError", "Partial"),
    ("MismatchError", "requires_grad differs between ranks: True on rank 0, False on rank 1"),
    ("MismatchError", "requires_grad differs between ranks: True on rank 0, False on rank 1"),
]


def check_misuse(misuse: Any, expected: list[tuple[str, str]]) -> None:
    """Checks the errors of both ranks."""
    first, second = run_ranks(2, misuse)
    assert len(first) == len(expected)
    for index, (here, there, (kind, text)) in enumerate(zip(first, second, expected)):
        assert here == there, index
        assert here[0] == kind and text in here[1], (index, here)


def test_each_misuse_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse, EXPECTED)


class Communicator:
    """The methods of a communicator of mpi4py that initialize calls."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.said = rank, size, 0

    def Get_rank(self) -> int:  # noqa: N802: MPI's names
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def bcast(self, value: Any, root: int) -> Any:
        """A communicator over the test's own group."""
        import torch.distributed as dist
        box = [value]
        dist.broadcast_object_list(box, src=root, group=group())
        return box[0]


def by_communicator(rank: int) -> None:
    comm = Communicator(rank, 2)
    swd.initialize(0, comm, backends=["nvshmem"])
    context = swd.get_context()
    assert context.communicator is comm and (context.rank, context.size, context.device_id) == (rank, 2, 0)
    whole = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(redistribute(take(Slab.X, whole, rank, 2), Slab.X, Slab.Y), take(Slab.Y, whole, rank, 2))
    made = context.group
    swd.finalize()
    with pytest.raises(shardwire.AbortedError):
        redistribute(take(Slab.X, whole, rank, 2), Slab.X, Slab.Y, group=made)
    for wrong in ({"device_id": "cuda"}, {"process_group_or_comm": 3}, {"backends": "mpi"}):
        with pytest.raises(TypeError):
            swd.initialize(**wrong)
    assert swd.get_context() is None and shardwire.distributed is swd


def test_initialize_by_a_communicator() -> None:
    run_ranks(2, by_communicator, default_group=True)


def needs_initialize(rank: int) -> None:
    with pytest.raises(RuntimeError, match="call shardwire.distributed.initialize"):
        reshape(torch.zeros(2), Slab.X, Slab.X)


def test_without_initialize() -> None:
    run_ranks(1, needs_initialize)


def dtensor_of(whole: torch.Tensor, mesh: Any, placements: Any, rank: int) -> Any:
    """As distribute_tensor, which takes only meshes with ascending ranks."""
    import torch.distributed.tensor as dt
    return dt.DTensor.from_local(take(Placements(placements, mesh), whole, rank, mesh.size()), mesh, placements,
                                 run_check=False, shape=whole.shape, stride=whole.stride())


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(2))
    whole = torch.arange(5.0 * 6).reshape(5, 6)
    tensor = dt.distribute_tensor(whole, mesh, [dt.Shard(0)])
    result = reshape(tensor, None, [dt.Shard(1)])
    assert result.placements == (dt.Shard(1),) and torch.equal(result.full_tensor(), whole)
    assert torch.equal(redistribute(tensor, None, [dt.Replicate()]).to_local(), whole)
    for side, part in ((Slab.X, "give placements"), (Placements([dt.Shard(1)], [0, 1]), "give a DeviceMesh")):
        kind, text = error_of(lambda: reshape(tensor, None, side))
        assert kind == "TypeError" and part in text, text
    out = dt.distribute_tensor(torch.zeros(5, 6), mesh, [dt.Shard(1)])
    assert reshape(tensor, None, Placements([dt.Shard(1)], [0, 1]), out=out) is out
    assert torch.equal(out.full_tensor(), whole)
    assert "give placements" in error_of(lambda: reshape(tensor, None, Slab.Y, out=out))[1]
    turned = DeviceMesh("cpu", [1, 0])
    tensor = dtensor_of(whole, turned, [dt.Shard(0)], rank)
    for columns in (Placements([dt.Shard(1)]), [dt.Shard(1)]):
        result = reshape(tensor, Placements([dt.Shard(0)]), columns)
        assert torch.equal(result.to_local(), take(Placements([dt.Shard(1)], turned), whole, rank, 2))


def test_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(2, dtensors, default_group=True)


def differently_placed(whole: Any) -> Any:
    """(rows, everywhere): placements on a mesh of 2 by 2; and `whole` by rows, by rows of the mesh's other dimension
    with the same local shapes, and as addends.
    """
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    rows, others, everywhere = ([dt.Shard(0), dt.Replicate()], [dt.Replicate(), dt.Shard(0)],
                                [dt.Replicate(), dt.Replicate()])
    addends = dt.DTensor.from_local(whole, mesh, [dt.Partial(), dt.Replicate()], run_check=False)
    return ((rows, everywhere), dt.distribute_tensor(whole, mesh, rows), dt.distribute_tensor(whole, mesh, others),
            addends)


def check_other_placements(body: Any) -> list[tuple[str, str]]:
    """The errors that body(rank) gives, the same on all ranks: by turns of placements with other parts of the array,
    and of addends.
    """
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    errors, *others = run_ranks(4, body, default_group=True)
    assert all(each == errors for each in others)
    assert [kind for kind, _ in errors] == ["ValueError", "UnsupportedError"] * 3, errors
    return errors


def other_placements(rank: int) -> list[tuple[str, str]]:
    import torch.distributed.tensor as dt
    whole = torch.arange(16.0).reshape(4, 4)
    (rows, everywhere), first, second, addends = differently_placed(whole)
    mesh = first.device_mesh
    spread = dt.DTensor.from_local(torch.zeros(4, 4), mesh, [dt.Partial(), dt.Replicate()], run_check=False)
    errors = []
    with Reshape(first, None, everywhere) as r:
        r.plan()
        errors += [error_of(lambda: r.reset_operand(second)), error_of(lambda: r.reset_operand(addends))]
        r.reset_operand(first + 1)
        assert torch.equal(r.execute().to_local(), whole + 1)
    assert torch.equal(reshape(first, Placements(rows, mesh), everywhere).to_local(), whole)
    errors += [error_of(lambda: reshape(second, Placements(rows, mesh), everywhere)),
               error_of(lambda: reshape(addends, Placements(everywhere, mesh), rows))]
    columns = dt.distribute_tensor(torch.zeros(4, 4), mesh, [dt.Shard(1), dt.Replicate()])
    assert (reshape(first, None, columns.placements, out=columns) is columns
            and torch.equal(columns.full_tensor(), whole))
    errors += [error_of(lambda: reshape(first, None, [dt.Replicate(), dt.Shard(1)], out=columns)),
               error_of(lambda: reshape(first, None, everywhere, out=spread))]
    return errors


def test_a_dtensors_own_placements_count() -> None:
    errors = check_other_placements(other_placements)
    assert ("rank 1: the operand is a DTensor that gave this rank [0:2, 0:4], the placements of the new one give it "
            "[2:4, 0:4]" in errors[0][1])
    assert "the operand is a DTensor, whose own placements give rank 1 [2:4, 0:4]" in errors[2][1]
    assert "out is a DTensor, whose own placements give rank 1 [0:4, 0:2]" in errors[4][1]


def on_a_part(rank: int) -> None:
    """A mesh of some of the ranks; all of the group call."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    few, all_ranks = DeviceMesh("cpu", torch.tensor([2, 0])), DeviceMesh("cpu", torch.arange(3))
    whole = torch.arange(5.0 * 6).reshape(5, 6)
    rows = Placements([dt.Shard(0)], few)
    tensor = dt.DTensor.from_local(take(rows, whole, rank, 3), few, [dt.Shard(0)], run_check=False, shape=whole.shape,
                                   stride=whole.stride())
    columns = Placements([dt.Shard(1)], all_ranks)
    assert torch.equal(reshape(tensor, None, columns).to_local(), take(columns, whole, rank, 3))
    back = reshape(reshape(tensor, None, columns), None, rows)
    assert back.device_mesh == few and torch.equal(back.to_local().reshape(-1), take(rows, whole, rank, 3).reshape(-1))
    with Reshape(tensor, None, columns) as r:
        r.plan()
        r.reset_operand(back)
        assert torch.equal(r.execute().to_local(), take(columns, whole, rank, 3))
    tensor.requires_grad_()
    # torch's to_local has no gradient outside of a mesh
    assert torch.equal(reshape(tensor, None, columns).to_local(), take(columns, whole, rank, 3))


def test_dtensors_on_a_part_of_the_ranks() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(3, on_a_part, default_group=True)


def over_another_default_group(rank: int) -> None:
    """torch's default group is not shardwire's: no code may ask for the size of the default group."""
    import torch.distributed as dist
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    own = dist.new_group([0], backend="shardwire")
    tensor = dt.DTensor.from_local(torch.ones(2, 3), DeviceMesh("cpu", [0]), [dt.Shard(0)], run_check=False)
    assert torch.equal(reshape(tensor, None, Placements([dt.Shard(1)]), group=own).to_local(), torch.ones(2, 3))


def test_dtensors_over_another_default_group() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(1, over_another_default_group, join=False)
