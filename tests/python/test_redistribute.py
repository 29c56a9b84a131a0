"""redistribute against DTensor.redistribute and against the true values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from ranks import error_of, run_ranks

import shardwire


def has_dtensor() -> bool:
    try:
        import torch.distributed.tensor  # noqa: F401
    except ImportError:
        return False
    return True


needs_dtensor = pytest.mark.skipif(not has_dtensor(), reason="this torch has no DTensor")


def local_of(layout: shardwire.Layout, whole: torch.Tensor, rank: int) -> torch.Tensor:
    taken = layout.take(whole, rank)
    return whole.new_empty(0) if taken is None else taken.contiguous()


def every_pair(rank: int) -> int:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    whole = torch.arange(35.0).reshape(7, 5)
    singles = [dt.Replicate(), dt.Shard(0), dt.Shard(1)]
    pairs = 0
    for before in itertools.product(singles + [dt.Partial()], repeat=2):
        addends = 2 ** sum(item.is_partial() for item in before)
        layout = shardwire.Layout(mesh, before, (7, 5), whole.dtype)
        tensor = dt.DTensor.from_local(local_of(layout, whole, rank), mesh, before, run_check=False, shape=whole.shape,
                                       stride=whole.stride())
        for after in itertools.product(singles, repeat=2):
            result = shardwire.redistribute(tensor, placements=after)
            target = shardwire.Layout(mesh, after, (7, 5), whole.dtype)
            assert tuple(result.placements) == tuple(after) and result.shape == whole.shape
            assert torch.equal(result.to_local(), local_of(target, whole * addends, rank)), (before, after)
            pairs += 1
    return pairs


@needs_dtensor
def test_every_pair_of_placements() -> None:
    assert run_ranks(4, every_pair, default_group=True, timeout=120) == [144] * 4


def between_meshes(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    first, second = DeviceMesh("cpu", torch.tensor([0, 1])), DeviceMesh("cpu", torch.tensor([2, 3]))
    whole = torch.arange(30.0).reshape(5, 6)
    source, target = (shardwire.Layout(mesh, [dt.Shard(dim)], (5, 6), whole.dtype)
                      for mesh, dim in ((first, 0), (second, 1)))
    tensor = dt.DTensor.from_local(local_of(source, whole, rank), first, [dt.Shard(0)], run_check=False,
                                   shape=whole.shape, stride=whole.stride())
    result = shardwire.redistribute(tensor, second, [dt.Shard(1)])
    assert result.device_mesh == second
    assert torch.equal(result.to_local(), local_of(target, whole, rank))
    back = shardwire.redistribute(result, first, [shardwire.Replicate()])
    assert torch.equal(back.to_local(), whole if rank < 2 else whole.new_empty(0))


@needs_dtensor
def test_between_two_meshes_of_one_group() -> None:
    run_ranks(4, between_meshes, default_group=True)


def the_rest(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh

    from shardwire.compiler import redistribute
    mesh = DeviceMesh("cpu", torch.arange(2))
    tensor = dt.DTensor.from_local(torch.ones(2, 4), mesh, [dt.Shard(0)], run_check=False)
    assert shardwire.redistribute(tensor, placements=[dt.Shard(0)]) is tensor
    first = shardwire.redistribute(tensor, placements=[dt.Shard(1)])
    ops, = redistribute._caches.values()
    kept = next(iter(ops.values()))
    shardwire.redistribute(first, placements=[dt.Shard(0)])
    shardwire.redistribute(tensor, placements=[dt.Shard(1)])
    assert len(ops) == 2 and list(ops.values())[-1] is kept, "the second call compiles nothing"
    with pytest.raises(NotImplementedError, match="Partial"):
        shardwire.redistribute(tensor, placements=[dt.Partial()])
    with pytest.raises(TypeError, match="redistribute takes a DTensor"):
        shardwire.redistribute(torch.ones(2), placements=[dt.Shard(0)])
    with pytest.raises(TypeError, match="give a DeviceMesh"):
        shardwire.redistribute(tensor, [0, 1], [dt.Shard(1)])
    for size in range(1, redistribute.CACHED_OPS_PER_GROUP + 5):
        piece = dt.DTensor.from_local(torch.full((1, size), float(rank)), mesh, [dt.Shard(0)], run_check=False)
        assert shardwire.redistribute(piece, placements=[dt.Replicate()]).to_local()[:, 0].tolist() == [0.0, 1.0]
    assert len(ops) == redistribute.CACHED_OPS_PER_GROUP
    shardwire.clear_redistribute_cache()
    assert not redistribute._caches


@needs_dtensor
def test_cache_and_refusals() -> None:
    run_ranks(2, the_rest, default_group=True)


def contradicting(rank: int) -> tuple[str, str]:
    """The local tensor of rank 1 has a row too many."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    tensor = dt.DTensor.from_local(torch.ones(2 + rank, 3), DeviceMesh("cpu", [0, 1]), [dt.Shard(0)], run_check=False,
                                   shape=torch.Size([4, 3]), stride=(3, 1))
    return error_of(shardwire.redistribute, tensor, placements=[dt.Replicate()])


@needs_dtensor
def test_a_local_tensor_that_contradicts_its_layout_is_an_error_on_all_ranks() -> None:
    first, second = run_ranks(2, contradicting, default_group=True, timeout=20)
    assert first == second and first[0] == "ValueError"
    assert "rank 1: inputs[0]: the DTensor's local tensor has shape [3, 3]" in first[1]


def gradients(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(2))
    weights = torch.arange(16.0).reshape(4, 4)

    def grad_of(redistribute: Any, before: Any, after: Any) -> torch.Tensor:
        shape = (2, 4) if before.is_shard() else (4, 4)
        leaf = torch.ones(shape, requires_grad=True)
        tensor = dt.DTensor.from_local(leaf, mesh, [before], run_check=False)
        moved = redistribute(tensor, after)
        layout = shardwire.Layout(mesh, [after], (4, 4), torch.float32)
        (moved.to_local() * local_of(layout, weights, rank)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    for before, after in ((dt.Shard(0), dt.Shard(1)), (dt.Replicate(), dt.Shard(1)), (dt.Partial(), dt.Shard(0))):
        ours = grad_of(lambda tensor, placement: shardwire.redistribute(tensor, placements=[placement]), before, after)
        theirs = grad_of(lambda tensor, placement: tensor.redistribute(placements=[placement]), before, after)
        assert torch.equal(ours, theirs), (before, after)
    leaf = torch.ones((2, 4), requires_grad=True)
    moved = shardwire.redistribute(dt.DTensor.from_local(leaf, mesh, [dt.Shard(0)], run_check=False),
                                   placements=[dt.Shard(1)])
    slope, = torch.autograd.grad(moved.to_local().pow(2).sum(), leaf, create_graph=True)
    assert torch.equal(slope.detach(), torch.full((2, 4), 2.0))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (slope.pow(2).sum() + leaf.sum()).backward()


@needs_dtensor
def test_gradients_equal_torchs() -> None:
    run_ranks(2, gradients, default_group=True)


@pytest.mark.skipif(has_dtensor(), reason="this torch has DTensors")
def test_without_dtensors_the_error_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"has no torch\.distributed\.tensor\.DTensor.*shardwire\.Layout"):
        shardwire.redistribute(torch.ones(2), placements=[shardwire.Shard(0)])
