"""Fully sharded data parallel: fully_shard (FSDP2) and FullyShardedDataParallel (FSDP1) train like the plain module on
the whole batch."""

import pytest
import torch

from both_backends import batch, both, mlp, state, train  # noqa: F401
from conftest import TORCH

if TORCH < (2, 0):
    try:
        import torch.distributed.fsdp
    except ValueError as error:
        pytest.skip(f"torch.distributed.fsdp of this torch cannot be imported by this Python: {error}",
                    allow_module_level=True)
if TORCH < (2, 7):
    pytest.skip("FSDP on CPU tensors wants torch 2.7: torch.cpu.Stream lacks record_event before",
                allow_module_level=True)

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_state_dict,
                                                     set_model_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, StateDictType,
                                    fully_shard)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def sharded(model, **options):
    """fully_shard of every layer and of the root, each as a separate group."""
    # without a mesh fully_shard would take an accelerator registered by another test
    options.setdefault("mesh", init_device_mesh("cpu", (dist.get_world_size(),)))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def whole(model):
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in model.state_dict().items()}


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def alone(ranks, width=16):
    """The plain module, trained on the batches of all ranks."""
    model = mlp(width)
    optimizer = adam(model)
    for step in range(3):
        optimizer.zero_grad()
        parts = [batch(r, step) for r in ranks]
        torch.nn.functional.mse_loss(model(torch.cat([p[0] for p in parts])),
                                     torch.cat([p[1] for p in parts])).backward()
        optimizer.step()
    return state(model)


def close(found, wanted, atol=1e-5):
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=atol), name


OPTIONS = {
    "plain": {},
    "not resharded after forward": {"reshard_after_forward": False},
    "resharded to two": {"reshard_after_forward": 2},
    "sums and parameters in bf16": {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)},
    "sums in fp32": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
}


def fsdp2(rank, size, options, width=16):
    model = sharded(mlp(width), **options)
    losses = train(model, rank, optimizer=adam(model))
    close(whole(model), alone(range(size), width), 1e-5 if "mp_policy" not in options else 0.05)
    return losses, whole(model)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "resharded to two"])
def test_fully_shard(both, name):
    both(2, fsdp2, OPTIONS[name])


def test_fully_shard_of_a_megabyte(both):
    both(2, fsdp2, {}, 512)


@pytest.mark.parametrize("options", [{}, OPTIONS["resharded to two"]], ids=["plain", "resharded to two"])
def test_fully_shard_of_four(both, options):
    both(4, fsdp2, options, atol=1e-5)


def test_fully_shard_with_uneven_rows(both):
    both(3, fsdp2, {}, atol=1e-5)


def accumulated(rank, size):
    """Gradients stay unsharded until the last step; then the gradients are clipped by a norm over all ranks."""
    model = sharded(mlp())
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        given, target = batch(rank, step)
        torch.nn.functional.mse_loss(model(given), target).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return norm.full_tensor(), [p.grad.full_tensor() for p in model.parameters()]


def test_accumulates_and_clips(both):
    both(2, accumulated)


def saved(rank, size):
    model = sharded(mlp())
    optimizer = adam(model)
    train(model, rank, optimizer=optimizer)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    parts, optimizer_parts = get_state_dict(model, optimizer)
    other = sharded(mlp(seed=9))
    set_model_state_dict(other, dict(full), options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    close(whole(other), whole(model), 0.0)
    moments = [entry["exp_avg"].full_tensor() for entry in optimizer_parts["state"].values()]
    return full, whole(other), {name: p.to_local() for name, p in parts.items()}, moments


def test_state_dict(both):
    both(2, saved)


def two_dimensions(rank, size, kind):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = mlp()
    if kind == "hybrid":
        model, data_rank = sharded(model, mesh=mesh), rank
        assert model[0].weight.placements == (Replicate(), Shard(0))
        everyone = range(4)
    else:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        model, data_rank, everyone = sharded(model, mesh=mesh["dp"]), rank // 2, range(2)
    losses = train(model, data_rank, optimizer=adam(model))
    close(whole(model), alone(everyone))
    return losses, whole(model)


@pytest.mark.parametrize("kind", ["hybrid", "over tensor parallel"])
def test_fully_shard_on_a_mesh_of_two_dimensions(both, kind):
    both(4, two_dimensions, kind, atol=1e-5)


def fsdp1(rank, size, strategy):
    layers = ModuleWrapPolicy({torch.nn.Linear})
    model = FullyShardedDataParallel(mlp(), sharding_strategy=strategy, auto_wrap_policy=layers,
                                     device_id=torch.device("cpu"), use_orig_params=True)
    losses = train(model, rank, optimizer=adam(model))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    close(full, alone(range(size)))
    return losses, full


@pytest.mark.parametrize("strategy",
                         [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD])
def test_fsdp1(both, strategy):
    both(2, fsdp1, strategy)
