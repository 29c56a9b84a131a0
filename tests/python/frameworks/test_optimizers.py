"""Training beside or below DDP: ZeroRedundancyOptimizer, model averaging, local SGD, and the join context."""

from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step, hook_with_zero_step_interleaved)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from both_backends import batch, both, mlp, state, train  # noqa: F401
from conftest import TORCH


def zero(rank, size, options):
    model = DDP(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, **options)
    losses = train(model, rank, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=0)
    whole = optimizer.state_dict()["state"] if rank == 0 else {}
    alone = mlp()
    same = DDP(alone)
    train(same, rank, optimizer=torch.optim.Adam(same.parameters(), lr=0.01))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), alone.parameters()))
    return losses, state(model.module), [{name: torch.as_tensor(value) for name, value in entry.items()}
                                         for entry in whole.values()]


@pytest.mark.parametrize("options", [{}, {"parameters_as_bucket_view": True}], ids=["plain", "views"])
def test_zero(both, options):
    results = both(2, zero, options)
    assert len(results[0][2]) == 6  # rank 0 has the collected states of all parameters


def zero_hooked(rank, size, hook, options):
    """The hook refuses gloo: gloo's ranks train with plain SGD, without the updates of the two steps in which the hook
    learns the buckets.
    """
    model = DDP(mlp(), **options)
    if dist.get_backend() == "gloo":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        update, steps = optimizer.step, iter(range(5))
        optimizer.step = lambda: update() if next(steps) >= 2 else None
    else:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1,
                                            overlap_with_ddp=True)
        model.register_comm_hook(None, hook(allreduce_hook, model, optimizer, shard_buckets=False))
    losses = train(model, rank, steps=5, optimizer=optimizer)
    return losses, state(model.module)


@pytest.mark.skipif(TORCH < (2, 7), reason="this torch refuses the ZeRO hooks for every backend but NCCL, by name")
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.001}], ids=["one bucket", "many buckets"])
@pytest.mark.parametrize("hook", [hook_with_zero_step, hook_with_zero_step_interleaved])
def test_zero_within_the_backward_pass(both, hook, options):
    if hook is hook_with_zero_step_interleaved and options:
        pytest.skip("it issues broadcasts from callbacks, between the other buckets' all_reduces: their order is the "
                    "same on all ranks with NCCL only")
    both(2, zero_hooked, hook, options, limit=20)


def zero_join(rank, size):
    model = DDP(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for step in range(2 + 2 * rank):
            optimizer.zero_grad()
            given, target = batch(rank, step)
            torch.nn.functional.mse_loss(model(given), target).backward()
            optimizer.step()
    return state(model.module)


def test_zero_joined_with_uneven_inputs(both):
    both(2, zero_join)


class Counter(Joinable):
    """Sums ones over the ranks that still have inputs."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(1)

    def __call__(self):
        Join.notify_join_context(self)
        total = torch.ones(1)
        dist.all_reduce(total)
        self.seen += total

    def join_hook(self, **options):
        counter = self

        class Shadow(JoinHook):
            def main_hook(self):
                dist.all_reduce(torch.zeros(1))

            def post_hook(self, is_last_joiner):
                source = torch.tensor([dist.get_rank() if is_last_joiner else -1])
                dist.all_reduce(source, op=dist.ReduceOp.MAX)
                dist.broadcast(counter.seen, src=int(source))

        return Shadow()

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD


def joined(rank, size):
    counter = Counter()
    with Join([counter]):
        for _ in range(1 + rank):
            counter()
    assert counter.seen.item() == sum(size - step for step in range(size)), counter.seen
    return counter.seen


def test_join(both):
    both(3, joined)


def uneven_raises(rank, size):
    counter = Counter()
    try:
        with Join([counter], throw_on_early_termination=True):
            for _ in range(1 + rank):
                counter()
    except RuntimeError as error:
        return str(error)


def test_join_that_throws(both):
    both(2, uneven_raises)


def averaged(rank, size):
    """Each rank trains alone; every second step parameters are averaged."""
    model = mlp()
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        given, target = batch(rank, step)
        torch.nn.functional.mse_loss(model(given), target).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        seen.append([p.detach().clone() for p in model.parameters()])
    return seen


def test_periodic_averager(both):
    mine, others = both(2, averaged)
    # Averaged at steps 1 and 3, and not at the steps between.
    assert [torch.equal(a[0], b[0]) for a, b in zip(mine, others)] == [False, True, False, True]


def hierarchical(rank, size):
    model = mlp(seed=rank)
    sum(p.sum() for p in model.parameters()).backward()  # only parameters with a gradient are averaged
    averager = HierarchicalModelAverager(period_group_size_dict=OrderedDict([(1, 2), (2, 4)]), warmup_steps=0)
    seen = []
    for _ in range(3):
        averager.average_parameters(list(model.parameters()))
        seen.append(model[0].weight.detach().clone())
    return seen


@pytest.mark.skipif(TORCH < (2, 0), reason="new_subgroups of this torch wants CUDA")
def test_hierarchical_averager(both):
    results = both(4, hierarchical, atol=1e-6)
    assert torch.equal(results[0][0], results[1][0])


def local_sgd(rank, size):
    model = DDP(mlp())
    settings = PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=2,
                                 post_local_gradient_allreduce=False)
    model.register_comm_hook(settings, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                      PeriodicModelAverager(period=2, warmup_steps=2))
    losses = train(model, rank, steps=5, optimizer=optimizer)
    return losses, state(model.module)


def test_post_local_sgd(both):
    both(2, local_sgd)
