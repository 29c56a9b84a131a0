"""torch.distributed.checkpoint: what one layout saved, another loads; also by fewer ranks, and in the background."""

import os

import pytest
import torch
import torch.distributed as dist

from both_backends import both, mlp, train  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no torch.distributed.checkpoint", allow_module_level=True)

import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SHAPE = (9, 6)


def tensor(seed=1):
    return torch.randn(*SHAPE, generator=torch.Generator().manual_seed(seed))


def save(rank, size, folder):
    mesh = init_device_mesh("cpu", (2, 2) if size == 4 else (size,))
    placements = [Shard(0), Shard(1)][:mesh.ndim]
    contents = {"weight": distribute_tensor(tensor(), mesh, placements),
                "replicated": distribute_tensor(tensor(2), mesh, [Replicate()] * mesh.ndim), "plain": tensor(3),
                "step": 17, "nested": {"text": "words", "many": [torch.ones(2), 4]}}
    where = os.path.join(folder, dist.get_backend())
    checkpoint.save(contents, checkpoint_id=where)
    return sorted(name for name in os.listdir(where) if name.startswith(".metadata"))


def load(rank, size, folder, placements):
    mesh = init_device_mesh("cpu", (2, 2) if size == 4 else (size,))
    contents = {"weight": zeros(*SHAPE, device_mesh=mesh, placements=placements), "plain": torch.zeros(SHAPE),
                "step": 0,
                "replicated": zeros(*SHAPE, device_mesh=mesh, placements=[Shard(0)] + [Replicate()] * (mesh.ndim - 1)),
                "nested": {"text": "", "many": [torch.zeros(2), 0]}}
    checkpoint.load(contents, checkpoint_id=os.path.join(folder, dist.get_backend()))
    assert (torch.equal(contents["weight"].full_tensor(), tensor())
            and torch.equal(contents["replicated"].full_tensor(), tensor(2)))
    assert (torch.equal(contents["plain"], tensor(3)) and contents["step"] == 17
            and contents["nested"]["text"] == "words")
    return contents["weight"].to_local(), contents["nested"]


@pytest.mark.parametrize("placements", [[Shard(1)], [Shard(0)], [Replicate()]], ids=str)
def test_four_ranks_save_and_two_load(both, tmp_path, placements):
    assert both(4, save, str(tmp_path))[0] == [".metadata"]
    both(2, load, str(tmp_path), placements)


def test_two_ranks_save_and_four_load(both, tmp_path):
    both(2, save, str(tmp_path))
    both(4, load, str(tmp_path), [Shard(1), Shard(0)])


def saved_in_the_background(rank, size, folder):
    """Collectives of the background use a separate group, while this thread uses the default group."""
    group = dist.new_group()
    where = os.path.join(folder, dist.get_backend())
    mesh = init_device_mesh("cpu", (size,))
    contents = {"weight": distribute_tensor(tensor(), mesh, [Shard(0)]), "plain": tensor(3), "step": 17,
                "replicated": distribute_tensor(tensor(2), mesh, [Replicate()]),
                "nested": {"text": "words", "many": [torch.ones(2), 4]}}
    future = checkpoint.async_save(contents, checkpoint_id=where, process_group=group)
    value = torch.ones(10)
    for _ in range(50):
        dist.all_reduce(value)
        value /= size
    contents["weight"].to_local().zero_()  # the save has copied the weight
    future.result()
    return value


def test_async_save(both, tmp_path):
    if TORCH < (2, 7):
        pytest.skip("async_save of this torch wants a group of the gloo backend by name")
    both(2, saved_in_the_background, str(tmp_path))
    both(2, load, str(tmp_path), [Shard(1)])


def trained_and_saved(rank, size, folder):
    """A tensor parallel model and its optimizer: saved, loaded into a fresh pair, and trained on to the same end
    values.
    """
    where = os.path.join(folder, dist.get_backend())
    mesh = init_device_mesh("cpu", (size,))
    ends = []
    for fresh in (False, True):
        model = parallelize_module(mlp(seed=1 + fresh), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if fresh:
            weights, moments = get_state_dict(model, optimizer)
            checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=where)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        else:
            train(model, 0, optimizer=optimizer)
            weights, moments = get_state_dict(model, optimizer)
            checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=where)
        train(model, 0, optimizer=optimizer, steps=2)
        ends.append(
            [p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))
    return ends[1]


def test_tensor_parallel_model(both, tmp_path):
    both(2, trained_and_saved, str(tmp_path))
