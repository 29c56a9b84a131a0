"""DTensor: distribution, redistribution between all placements, and operations with propagated sharding. Each result
also equals the plain tensor.
"""

import itertools

import pytest
import torch

from both_backends import GLOO_AVERAGES, both  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no DTensor", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, ones,
                                      zeros)

PLACEMENTS = {1: [(p,) for p in (Shard(0), Shard(1), Replicate())],
              2: list(itertools.product((Shard(0), Shard(1), Replicate()), repeat=2))}


def mesh_of(size):
    return init_device_mesh("cpu", (2, 2) if size == 4 else (size,))


def whole(*shape, seed=5):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def redistributed(rank, size, shape):
    """Between every two placements; from sums on one or both dimensions too."""
    mesh, tensor = mesh_of(size), whole(*shape)
    locals_ = []
    for before, after in itertools.product(PLACEMENTS[mesh.ndim], repeat=2):
        there = distribute_tensor(tensor, mesh, before).redistribute(mesh, after)
        locals_.append(there.to_local().clone())
        assert torch.equal(there.full_tensor(), tensor), (before, after)
    for after in PLACEMENTS[mesh.ndim]:
        for before in itertools.product(*[(Partial(), Replicate())] * mesh.ndim):
            parts = DTensor.from_local(tensor * (1.0 if before[0].is_replicate() and before[-1].is_replicate()
                                                 else 0.5), mesh, before, run_check=False)
            locals_.append(parts.redistribute(mesh, after).to_local().clone())
    return locals_


@pytest.mark.parametrize("shape", [(8, 4), (5, 3), (1, 6)], ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_redistribute(both, size, shape):
    both(size, redistributed, shape, atol=0.0 if size == 2 else 1e-6)


def reduced(rank, size):
    mesh, results = mesh_of(size), []
    mine = whole(6, 4, seed=rank)
    # gloo before 2.7 always sums in reduce_scatter
    for kind in ("sum", "max", "min", "avg") if GLOO_AVERAGES else ("sum",):
        for after in (Shard(0), Shard(1), Replicate()):
            results.append(DTensor.from_local(mine, mesh, [Partial(kind)], run_check=False).redistribute(
                mesh, [after]).to_local().clone())
    assert not GLOO_AVERAGES or torch.equal(
        results[3], torch.stack([whole(6, 4, seed=r) for r in range(size)]).amax(0).chunk(size)[rank])
    return results


@pytest.mark.parametrize("size", [2, 3])
def test_partial_sums_and_maxima(both, size):
    both(size, reduced, atol=0.0 if size == 2 else 1e-6)


OPERATIONS = {
    "add": lambda a, b: a + b,
    "relu of a product": lambda a, b: torch.relu(a * b),
    "matmul": lambda a, b: a @ b.t(),
    "matmul transposed": lambda a, b: a.t() @ b,
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
    "sum": lambda a, b: a.sum(),
    "sum of rows": lambda a, b: a.sum(1),
    "mean of columns": lambda a, b: b.mean(0),
    "max": lambda a, b: a.max(),
    "norm": lambda a, b: torch.linalg.vector_norm(a),
    "softmax": lambda a, b: torch.softmax(a, 1),
    "layer norm": lambda a, b: torch.nn.functional.layer_norm(a, (6,)),
    "concatenation": lambda a, b: torch.cat([a, b], 1),
    "view": lambda a, b: a.view(-1),
    "transposition": lambda a, b: a.transpose(0, 1).contiguous(),
    "slice": lambda a, b: a[1:5],
    "variance": lambda a, b: a.var(0),
}


def operated(rank, size, name):
    mesh, a, b = mesh_of(size), whole(8, 6), whole(8, 6, seed=6)
    results = []
    for left, right in itertools.product(
            PLACEMENTS[mesh.ndim][:3] if mesh.ndim == 1 else [(Shard(0), Shard(1)), (Replicate(), Shard(0))], repeat=2):
        ours = OPERATIONS[name](distribute_tensor(a, mesh, left), distribute_tensor(b, mesh, right)).full_tensor()
        assert torch.allclose(ours, OPERATIONS[name](a, b), atol=1e-5), (left, right)
        results.append(ours)
    return results


@pytest.mark.parametrize("name", [name for name in OPERATIONS if GLOO_AVERAGES or "mean" not in name])
def test_operation(both, name):
    both(2, operated, name)


@pytest.mark.parametrize("name", ["matmul", "softmax", "layer norm"])
def test_operation_on_a_mesh_of_two_dimensions(both, name):
    both(4, operated, name, atol=1e-5)


def differentiated(rank, size):
    mesh = mesh_of(size)
    a = distribute_tensor(whole(8, 6), mesh, [Shard(0)]).requires_grad_()
    b = distribute_tensor(whole(4, 6, seed=6), mesh, [Shard(1)]).requires_grad_()
    loss = torch.nn.functional.gelu(a @ b.t()).redistribute(mesh, [Replicate()]).square().sum()
    loss.backward()
    plain = [whole(8, 6).requires_grad_(), whole(4, 6, seed=6).requires_grad_()]
    torch.nn.functional.gelu(plain[0] @ plain[1].t()).square().sum().backward()
    for ours, wanted in zip((a, b), plain):
        assert torch.allclose(ours.grad.full_tensor(), wanted.grad, atol=1e-4)
    return [loss.full_tensor().detach(), a.grad.full_tensor(), b.grad.full_tensor()]


def test_gradients(both):
    both(2, differentiated)


def made(rank, size):
    """Factories, modules, and the checks of from_local. (DTensor's random numbers want a device of another kind than
    the CPU.)"""
    mesh = mesh_of(size)
    results = [ones(5, 3, device_mesh=mesh, placements=[Shard(0)]).full_tensor(),
               zeros(4, device_mesh=mesh, placements=[Replicate()]).to_local()]
    torch.manual_seed(3)
    module = distribute_module(torch.nn.Linear(6, 4), mesh, lambda _, part, grid: [
        part.register_parameter(name, torch.nn.Parameter(distribute_tensor(p.data, grid, [Shard(0)])))
        for name, p in list(part.named_parameters())])
    results.append(module(distribute_tensor(whole(3, 6), mesh, [Replicate()])).full_tensor().detach())
    # takes rank 0's values
    checked = DTensor.from_local(torch.full((2, 2), float(rank)), mesh, [Replicate()], run_check=True)
    results.append(checked.to_local())
    assert not results[-1].any()
    uneven = DTensor.from_local(torch.ones(1 + rank, 2), mesh, [Shard(0)],
                                shape=torch.Size((size * (size + 1) // 2, 2)), stride=(2, 1))
    results.append(uneven.to_local())
    return results


def test_factories_and_modules(both):
    both(2, made)
