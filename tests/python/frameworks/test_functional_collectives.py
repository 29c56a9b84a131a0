"""torch.distributed._functional_collectives: every collective there, the gradients, and tensors that wait on use."""

import pytest
import torch
import torch.distributed as dist

from both_backends import GLOO_AVERAGES, both  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no functional collectives", allow_module_level=True)

import torch.distributed._functional_collectives as functional


def random(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + rank))


def rows(rank, size):
    return random(rank, 2 * size, 3)


def uneven(rank, size, of=functional.all_to_all_single):
    splits = [rank + k for k in range(size)]
    return of(random(rank, sum(splits), 2), splits, splits, dist.group.WORLD)


def coalesced(rank, size):
    group, mine = dist.group.WORLD, [rows(rank, size), random(rank + 5, size), random(rank + 9, 4 * size, 2)]
    return [functional.all_reduce_coalesced(mine, "sum", group),
            functional.all_gather_into_tensor_coalesced(mine, group),
            functional.reduce_scatter_tensor_coalesced(mine, "sum", [0, 0, 0], group)]


CASES = {
    "all_reduce sum": lambda r, n: functional.all_reduce(rows(r, n), "sum", dist.group.WORLD),
    "all_reduce max": lambda r, n: functional.all_reduce(rows(r, n), "max", dist.group.WORLD),
    "all_reduce avg": lambda r, n: functional.all_reduce(rows(r, n), "avg", dist.group.WORLD),
    "all_reduce of int64": lambda r, n: functional.all_reduce(torch.arange(7) * (r + 1), "product", dist.group.WORLD),
    "all_reduce of bf16": lambda r, n: functional.all_reduce(rows(r, n).bfloat16(), "sum", dist.group.WORLD),
    "all_reduce of a strided view": lambda r, n: functional.all_reduce(rows(r, n).t(), "sum", dist.group.WORLD),
    "broadcast": lambda r, n: functional.broadcast(rows(r, n), n - 1, dist.group.WORLD),
    "all_gather 0": lambda r, n: functional.all_gather_tensor(rows(r, n), 0, dist.group.WORLD),
    "all_gather 1": lambda r, n: functional.all_gather_tensor(rows(r, n), 1, dist.group.WORLD),
    "reduce_scatter 0": lambda r, n: functional.reduce_scatter_tensor(rows(r, n), "sum", 0, dist.group.WORLD),
    "reduce_scatter 1": lambda r, n: functional.reduce_scatter_tensor(rows(r, n).t(), "sum", 1, dist.group.WORLD),
    "all_to_all even": lambda r, n: functional.all_to_all_single(rows(r, n), None, None, dist.group.WORLD),
    "all_to_all uneven": uneven,
    "permute": lambda r, n: functional.permute_tensor(rows(r, n).flatten(), [(k + 1) % n for k in range(n)],
                                                      dist.group.WORLD),
    "coalesced": coalesced,
    "large all_reduce": lambda r, n: functional.all_reduce(random(r, 300, 1000), "sum", dist.group.WORLD),
    "large all_gather": lambda r, n: functional.all_gather_tensor(random(r, 300, 1000), 0, dist.group.WORLD),
    "large reduce_scatter": lambda r, n: functional.reduce_scatter_tensor(
        random(r, 300 * n, 500), "sum", 0, dist.group.WORLD),
    "large all_to_all": lambda r, n: functional.all_to_all_single(random(r, 300 * n, 500), None, None,
                                                                  dist.group.WORLD),
}


def plain(result):
    if isinstance(result, (list, tuple)):
        return [plain(item) for item in result]
    return (result.clone() if not isinstance(result, functional.AsyncCollectiveTensor)
            else functional.wait_tensor(result).clone())


def calls(rank, size, name):
    return plain(CASES[name](rank, size))


@pytest.mark.parametrize("name", [name for name in CASES if GLOO_AVERAGES or "avg" not in name])
def test_collective(both, name):
    both(2, calls, name)


@pytest.mark.parametrize("name",
                         ["all_reduce sum", "reduce_scatter 0", "coalesced", "all_to_all uneven", "all_gather 1"])
def test_collective_of_three(both, name):
    both(3, calls, name, atol=1e-6)


def lazily(rank, size):
    """A tensor in flight: views do not wait, arithmetic does."""
    group = dist.group.WORLD
    flying = functional.all_reduce(rows(rank, size), "sum", group)
    assert isinstance(flying, functional.AsyncCollectiveTensor)
    view = flying.view(-1)
    assert isinstance(view, functional.AsyncCollectiveTensor)
    many = [functional.all_reduce(torch.full((1000,), float(rank + k)), "sum", group) for k in range(30)]
    total = sum(one.sum() for one in reversed(many))
    chained = functional.all_gather_tensor(functional.reduce_scatter_tensor(flying * 1.0, "sum", 0, group), 0, group)
    dropped = functional.all_reduce(rows(rank, size), "sum", group)
    del dropped
    assert total.item() == sum(1000.0 * sum(r + k for r in range(size)) for k in range(30))
    return view + 0, total, chained + 0


def test_tensors_in_flight(both):
    both(2, lazily)


def differentiated(rank, size):
    group, results = dist.group.WORLD, []
    for call in (lambda x: functional.all_gather_tensor_autograd(x, 0, group),
                 lambda x: functional.all_gather_tensor_autograd(x, 1, group),
                 lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
                 lambda x: functional.all_to_all_single_autograd(x, [2] * size, [2] * size, group)):
        leaf = rows(rank, size).requires_grad_()
        output = call(leaf)
        (output * (torch.arange(1.0, output.numel() + 1).reshape(output.shape) * (rank + 1))).sum().backward()
        assert leaf.grad.abs().sum() > 0
        results.append((plain(output.detach()), leaf.grad.clone()))
    return results


def test_gradients(both):
    both(2, differentiated)


def in_place(rank, size):
    """torch.ops.c10d_functional's in-place forms, which compiled graphs use."""
    name = dist.group.WORLD.group_name
    one = rows(rank, size)
    torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce_(one, "sum", name))
    two = rows(rank, size)
    torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.broadcast_(two, 1, name))
    out = torch.empty(2 * size * size, 3)
    torch.ops._c10d_functional.wait_tensor(
        torch.ops._c10d_functional.all_gather_into_tensor_out(rows(rank, size), size, name, out=out))
    many = [rows(rank, size), random(rank, 3)]
    for tensor in torch.ops._c10d_functional.all_reduce_coalesced_(many, "sum", name):
        torch.ops._c10d_functional.wait_tensor(tensor)
    return one, two, out, many


def test_in_place_operators(both):
    both(2, in_place)


def managed(rank, size):
    """A block of collectives that starts as one."""
    from torch.distributed.distributed_c10d import _coalescing_manager
    tensors = [rows(rank, size), random(rank, 5)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    gathered = [torch.empty(2 * size, 4) for _ in range(2)]
    with _coalescing_manager():
        for k, output in enumerate(gathered):
            dist.all_gather_into_tensor(output, random(rank + 10 * k, 2, 4))
    scattered = [torch.empty(2, 4) for _ in range(2)]
    with _coalescing_manager():
        for k, output in enumerate(scattered):
            dist.reduce_scatter_tensor(output, random(rank + 10 * k, 2 * size, 4))
    return tensors, gathered, scattered


def test_coalescing_manager(both):
    both(2, managed)
