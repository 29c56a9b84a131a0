"""shardwire.sync between models of torch's own parallelisms: fully_shard, tensor parallel plans, both, pipeline stages,
and plain modules."""

from __future__ import annotations

import copy

import pytest
import torch

from both_backends import mlp  # noqa: F401
from conftest import TORCH

if TORCH < (2, 7):
    pytest.skip("FSDP on CPU tensors wants torch 2.7: torch.cpu.Stream lacks record_event before",
                allow_module_level=True)

from ranks import group, run_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire


class Net(torch.nn.Module):
    """With tied weights, a persistent buffer and uneven sizes."""

    def __init__(self, width=7):
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(13, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width + 1), torch.nn.Linear(2 * width + 1, width)
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, 13, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(3))

    def forward(self, tokens):
        return self.head(self.norm(self.down(torch.relu(self.up(self.embed(tokens))))))


def whole(model):
    """Whole values by name; only on ranks of the model's mesh."""
    return {name: (item.full_tensor() if isinstance(item, DTensor) else item).detach().clone()
            for name, item in model.state_dict().items()}


def sharded(model, mesh, **options):
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def steps(model, optimizer, count=2):
    for step in range(count):
        optimizer.zero_grad()
        model(torch.arange(6).reshape(2, 3) + step).square().mean().backward()
        optimizer.step()


def same(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def trainer_to_servers(rank, reshard):
    """fully_shard on ranks 0 and 1 trains; ranks 2 and 3 serve, tensor parallel and made without memory. The trainer
    steps between the runs."""
    training, serving = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])
    source = target = optimizer = None
    if rank < 2:
        source = sharded(Net(), training, reshard_after_forward=reshard)
        optimizer = torch.optim.Adam(source.parameters(), lr=0.1)
    else:
        with torch.device("meta"):
            target = Net()
        target.up.weight = torch.nn.Parameter(DTensor.from_local(torch.empty(8 if rank == 2 else 7, 7, device="meta"),
                                                                 serving, [Shard(0)], run_check=False,
                                                                 shape=torch.Size([15, 7]), stride=(7, 1)))
        assert target.head.weight is target.embed.weight
    op = shardwire.sync(source, target)
    for _ in range(3):
        if source is not None:
            steps(source, optimizer)
        op.run().wait()
        wanted = [whole(source) if source is not None else None]
        torch.distributed.broadcast_object_list(wanted, src=0)
        if target is not None:
            assert target.head.weight is target.embed.weight and not target.embed.weight.is_meta
            same(whole(target), wanted[0])
    assert len(op.pairs) == len(Net().state_dict()) - 1


@pytest.mark.parametrize("reshard", [True, False])
def test_from_fully_shard_to_tensor_parallel(reshard):
    run_ranks(4, trainer_to_servers, reshard, default_group=True, timeout=120)


def into_fully_shard(rank):
    """A plain model of rank 0 into a meta fully_shard model over all ranks, uneven, which then trains like the plain
    model.
    """
    plain = Net()
    with torch.device("meta"):
        target = Net()
    target = sharded(target, init_device_mesh("cpu", (3,)))
    op = shardwire.sync(plain if rank == 0 else None, target)
    op.run().wait()
    same(whole(target), whole(plain))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, target)]
    for model, optimizer in zip((plain, target), optimizers):
        steps(model, optimizer)
    for name, tensor in whole(plain).items():
        assert torch.allclose(whole(target)[name], tensor, atol=1e-5), name
    op.run().wait()  # back to the values of rank 0
    same(whole(target), whole(plain))


def test_into_a_meta_model_of_fully_shard():
    run_ranks(3, into_fully_shard, default_group=True, timeout=120)


def two_dimensions(rank):
    """fully_shard over tensor parallel on a mesh of two dimensions, into DDP-like replicas and a tensor parallel model
    on another mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = mlp()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    wanted = whole(model)
    plain = copy.deepcopy(mlp(seed=5))
    shardwire.sync(model, torch.nn.parallel.DistributedDataParallel(plain)).run().wait()
    same(whole(plain), wanted)
    other = parallelize_module(mlp(seed=6), init_device_mesh("cpu", (4,)),
                               {"0": RowwiseParallel(input_layouts=Replicate()), "2": ColwiseParallel()})
    shardwire.sync(model.state_dict(), other, group()).run().wait()
    same(whole(other), wanted)
    # And back, into the mesh of two dimensions.
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    shardwire.sync(other, model).run().wait()
    same(whole(model), {name: tensor * 2 for name, tensor in wanted.items()})


def test_a_mesh_of_two_dimensions():
    run_ranks(4, two_dimensions, default_group=True, timeout=120)


def dtensors(rank):
    """Dicts of DTensors on two meshes of the job; ranks outside of a mesh give their empty DTensors or None."""
    first, second = DeviceMesh("cpu", [[0, 1], [2, 3]]), DeviceMesh("cpu", [3, 1, 0])
    torch.manual_seed(0)
    values = {"a": torch.randn(9, 5), "b": torch.randn(4), "c": torch.randn(3, 2, 4)}
    source = {name: distribute_tensor(value, first, [Shard(0), Shard(value.dim() - 1)])
              for name, value in values.items()}
    target = {name: distribute_tensor(torch.zeros_like(value), second, [Shard(value.dim() - 1)])
              for name, value in values.items()}
    shardwire.sync(source, target if rank != 2 else None).run().wait()
    for name, value in values.items():
        # Not against distribute_tensor, which scatters in the order of the group's ranks: the mesh has another order.
        expected = shardwire.Layout(second, [Shard(value.dim() - 1)], value.shape, value.dtype).take(value, rank)
        assert torch.equal(target[name].to_local(), value.new_empty(0) if expected is None else expected), name


    meta = {name: distribute_tensor(value, second, [Shard(value.dim() - 1)]).to("meta")
            for name, value in values.items()}
    op = shardwire.sync(source, meta)
    op.run().wait()
    for name, value in values.items():
        made = op.target[name]
        assert isinstance(made, DTensor) and made.placements == meta[name].placements and not made.is_meta
        assert torch.equal(made.to_local(), target[name].to_local()) or rank == 2, name


def test_dicts_of_dtensors():
    run_ranks(4, dtensors, default_group=True, timeout=120)


def stages(rank):
    """Pipeline stages, each with fully_shard over two ranks, into a plain model on rank 0."""
    meshes = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]
    torch.manual_seed(2)
    layers = torch.nn.ModuleDict({f"layer{i}": torch.nn.Linear(6, 6) for i in range(4)})
    wanted = whole(layers)
    mine = torch.nn.ModuleDict({name: layer for name, layer in layers.items() if int(name[-1]) // 2 == rank // 2})
    for layer in mine.values():
        fully_shard(layer, mesh=meshes[rank // 2])
    target = torch.nn.ModuleDict({f"layer{i}": torch.nn.Linear(6, 6) for i in range(4)}) if rank == 0 else None
    shardwire.sync(mine, target).run().wait()
    if target is not None:
        same(whole(target), wanted)


def test_pipeline_stages_of_fully_shard():
    run_ranks(4, stages, default_group=True, timeout=120)


def fsdp1(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
    try:
        shardwire.sync(model, mlp())
    except NotImplementedError as error:
        return str(error)


def test_fsdp1_is_refused_by_name():
    texts = run_ranks(2, fsdp1, default_group=True, timeout=120)
    assert texts[0] == texts[1] and "FullyShardedDataParallel (FSDP1)" in texts[0] and "fully_shard" in texts[0]
