"""Jobs on a GPU: what a user of CUDA tensors does with torch.distributed, against the same work in one process. Skipped
where there is no GPU; all ranks share device 0. The order of streams is tested by test_device_streams.py, random calls
by test_device_oracle.py, with SHARDWIRE_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerator import TORCH
from ranks import group, run_ranks

import shardwire


def has_gpu() -> bool:
    """Asks the driver, since a process that called CUDA cannot fork ranks that do."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return os.path.exists("/dev/nvidia0") and hasattr(driver, "cuInit") and torch.version.cuda is not None


pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU, or this torch has no CUDA")


def run(world: int, body: Any, *args: Any) -> list[Any]:
    return run_ranks(world, body, *args, timeout=40, default_group=True)


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64),
                               torch.nn.Linear(64, 8)).cuda()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(12, 64, generator=generator).cuda(), torch.randn(12, 8, generator=generator).cuda())


def losses(net: torch.nn.Module, rows: slice, is_shared: bool, steps: int = 5) -> list[float]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    found = []
    for step in range(steps):
        inputs, targets = batch(step)
        loss = torch.nn.functional.mse_loss(net(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    if is_shared:
        for loss in found:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return [loss.item() for loss in found]


def data_parallel(rank: int, how: str) -> tuple[list[float], list[float]]:
    world = dist.get_world_size()
    rows = slice(rank * 12 // world, (rank + 1) * 12 // world)
    net: Any = model()
    if how == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0], bucket_cap_mb=0.01)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cuda", (world,))
        for layer in net:
            if next(layer.parameters(), None) is not None:
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    return losses(net, rows, True), losses(model(), slice(0, 12), False)


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.skipif(TORCH < (2, 6), reason="this torch has no fully_shard")
def test_training_gives_the_losses_of_one_process(how: str) -> None:
    for shared, alone in run(3, data_parallel, how):
        assert shared == pytest.approx(alone, rel=2e-4), (shared, alone)


def dtensors(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("a", "b"))
    whole = torch.arange(7 * 10, dtype=torch.float32, device="cuda").reshape(7, 10)
    here = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    for there in ([Shard(1), Shard(0)], [Replicate(), Shard(0)], [Replicate(), Replicate()], [Shard(0), Replicate()]):
        assert torch.equal(here.redistribute(mesh, there).full_tensor(), whole), there
        target = torch.distributed.tensor.zeros(whole.shape, device_mesh=mesh, placements=there)
        op = shardwire.compile_op(group(), inputs=[here], outputs=[target])
        op([here.to_local()], [target.to_local()]).wait()
        assert torch.equal(target.full_tensor(), whole), there
    ones = torch.distributed.tensor.DTensor.from_local(torch.ones(3, device="cuda"), mesh, [Partial(), Replicate()])
    assert ones.redistribute(mesh, [Replicate(), Replicate()]).to_local().tolist() == [2, 2, 2]


@pytest.mark.skipif(TORCH < (2, 6), reason="DTensors of this torch are in another module")
def test_dtensors_move_between_placements() -> None:
    run(4, dtensors)


def on_two_streams(rank: int) -> None:
    """Calls of two streams, each with its group, while both compute."""
    groups = [dist.new_group(), dist.new_group()]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    tensors = [torch.full((1 << 20,), float(rank + 1), device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    for turn in range(20):
        for stream, own, tensor in zip(streams, groups, tensors):
            with torch.cuda.stream(stream):
                tensor.add_(1)
                dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=own)
                tensor.mul_(2)
    torch.cuda.synchronize()
    expected = torch.full((1 << 20,), 1.5)
    for turn in range(20):
        expected = (expected + 1) * 2
    for tensor in tensors:
        assert torch.allclose(tensor.cpu(), expected)


def test_groups_on_two_streams() -> None:
    run(2, on_two_streams)


def futures(rank: int) -> None:
    """A future's callback computes on the device, behind the operation."""
    tensor = torch.full((1000,), rank + 1.0, device="cuda")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value() + 1)
    assert doubled.wait().cpu().tolist() == [7.0] * 1000
    ops = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, got := torch.zeros_like(tensor), 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert got.cpu().tolist() == [3.0] * 1000


def test_futures_and_point_to_point() -> None:
    run(2, futures)


def weights(rank: int) -> None:
    net = model()
    if rank == 1:
        for parameter in net.parameters():
            torch.nn.init.zeros_(parameter)
    held = net.state_dict() if rank == 0 else {}
    wanted = net.state_dict() if rank == 1 else {}
    shardwire.sync(held, wanted, group=group()).run()
    for name, value in model().state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name


def test_sync_moves_weights_of_the_device() -> None:
    run(2, weights)


def queued(rank: int) -> None:
    queue = shardwire.Queue(group=group(), location=0)
    if rank == 1:
        queue.put({"step": 3, "grad": torch.arange(5.0, device="cuda")})
    else:
        got = queue.get(timeout=30)
        assert got["step"] == 3 and got["grad"].cpu().tolist() == [0, 1, 2, 3, 4]
    dist.barrier()


def test_a_queue_carries_tensors_of_the_device() -> None:
    run(2, queued)


def lazily(rank: int) -> None:
    """The device has not loaded the next kernels when wait() returns; the load waits for the stream."""
    tensor = torch.ones(1 << 22, device="cuda").reshape(2048, 2048).t()  # the copies to the host need a kernel
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    later = torch.special.erfcx(tensor.double()).sum()
    assert tensor[3, 5].item() == 2 and later.item() > 0
    sorted_ = torch.sort(tensor.flatten()).values
    dist.all_reduce(sorted_)
    assert sorted_.median().item() == 4


def test_kernels_are_loaded_behind_an_operation() -> None:
    run(2, lazily)


def dead_peer(rank: int) -> str:
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 1:
        dist.barrier()
        os._exit(9)
    dist.barrier()
    try:
        for _ in range(1000):
            dist.all_reduce(tensor)
            torch.cuda.synchronize()  # the gate opens although the peer is dead
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_dead_peer_is_named_and_the_stream_goes_on() -> None:
    said = run_ranks(2, dead_peer, timeout=120, default_group=True, may_die=[1])[0]
    assert "rank 1" in said, said


def memory(rank: int) -> tuple[int, int]:
    tensor = torch.ones(1 << 20, device="cuda")
    for _ in range(10):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.current"], torch.cuda.host_memory_stats()["num_host_alloc"]
    for _ in range(200):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        dist.all_gather_into_tensor(torch.empty(2 << 20, device="cuda"), tensor)
    torch.cuda.synchronize()
    dist.barrier()
    after = torch.cuda.memory_stats()["allocation.all.current"], torch.cuda.host_memory_stats()["num_host_alloc"]
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.skipif(TORCH < (2, 6), reason="this torch does not count pinned memory")
def test_memory_of_the_device_and_pinned_memory_do_not_grow() -> None:
    for device_blocks, pinned_blocks in run(2, memory):
        assert device_blocks <= 2 and pinned_blocks <= 8, (device_blocks, pinned_blocks)
