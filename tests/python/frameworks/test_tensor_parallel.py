"""torch.distributed.tensor.parallel: plans of column, row and sequence parallel layers train like the plain module."""

import pytest
import torch

from both_backends import batch, both, mlp, train  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no torch.distributed.tensor.parallel", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, PrepareModuleOutput,
                                               RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module)


def parameters(module):
    """Whole parameters of any placement."""
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in module.named_parameters()}


def close(found, wanted):
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=1e-5), name


def columns_and_rows(rank, size, plan):
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(mlp(), mesh, plan)
    losses = train(model, 0)
    plain = mlp()
    train(plain, 0)
    close(parameters(model), parameters(plain))
    return losses, parameters(model)


PLANS = {
    "columns then rows": {"0": ColwiseParallel(), "2": RowwiseParallel()},
    "rows then columns": {"0": RowwiseParallel(input_layouts=Replicate()),
                          "2": ColwiseParallel(output_layouts=Replicate())},
    "through shards": {"0": ColwiseParallel(output_layouts=Shard(0)), "2": ColwiseParallel(input_layouts=Shard(0)),
                       "4": RowwiseParallel()},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_columns_and_rows(both, plan):
    both(2, columns_and_rows, plan)


def test_columns_and_rows_of_four(both):
    both(4, columns_and_rows, PLANS["columns then rows"], atol=1e-5)


class Block(torch.nn.Module):
    """A norm along the sequence, then two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, given):
        return self.down(torch.relu(self.up(self.norm(given))))


def sequences(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    given = batch(0, rows=2 * 6)[0].reshape(2, 6, 8)
    model = parallelize_module(Block(), mesh,
                               {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
                                "down": RowwiseParallel(output_layouts=Shard(1))})
    parallelize_module(model, mesh, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)))
    parallelize_module(model, mesh, PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()))
    plain, results = Block(), []
    for module in (model, plain):
        output = module(given)
        output.square().sum().backward()
        gradients = {n: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad).clone()
                     for n, p in module.named_parameters()}
        results.append(
            {"output": (output.full_tensor() if isinstance(output, DTensor) else output).detach(), **gradients})
    for name, wanted in results[1].items():
        assert torch.allclose(results[0][name], wanted, atol=1e-4), name
    return results[0]


def test_sequence_parallel(both):
    both(2, sequences)


def losses_in_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(4)
    logits, target = torch.randn(6, 8), torch.randint(0, 8, (6,))
    results = []
    for reduction in ("mean", "sum"):
        shards = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
        plain = logits.clone().requires_grad_()
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(shards, target, reduction=reduction)
            loss.backward()
        wanted = torch.nn.functional.cross_entropy(plain, target, reduction=reduction)
        wanted.backward()
        assert torch.allclose(loss.full_tensor(), wanted, atol=1e-5)
        assert torch.allclose(shards.grad.full_tensor(), plain.grad, atol=1e-5)
        results.append((loss.full_tensor().detach(), shards.grad.full_tensor()))
    return results


def test_loss_parallel(both):
    both(2, losses_in_parallel)


def embedded(rank, size):
    """Rows of an embedding on different ranks: sums of masked lookups."""
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(5)
    plain = torch.nn.Embedding(11, 4)
    model = parallelize_module(
        torch.nn.Sequential(torch.nn.Embedding.from_pretrained(plain.weight.detach().clone(), freeze=False)), mesh,
        {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())})
    indices = torch.tensor([[0, 10, 3], [5, 5, 7]])
    output = model(indices)
    assert torch.allclose(output, plain(indices))
    output.square().sum().backward()
    return output.detach(), model[0].weight.grad.full_tensor()


def test_embedding_by_rows(both):
    both(2, embedded)
