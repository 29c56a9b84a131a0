"""Calls of torch.distributed over tensors that share memory: legal calls give the results of the same calls one after
the other; other calls are refused.
"""

from __future__ import annotations

import os
import random
import warnings

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import TORCH, raises

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))
CASES = int(os.environ.get("SHARDWIRE_OVERLAP_CASES", "60"))
INTO = hasattr(dist, "all_gather_into_tensor")


def into_tensor(output, tensor, **more):
    return (dist.all_gather_into_tensor if INTO else dist._all_gather_base)(output, tensor, **more)


def alone(group=None):
    """The backend of the group, for methods that torch's Python lacks."""
    return shardwire.resolve_backend(group)


# ---- all_reduce_coalesced


def run_repeated(rank, size, count, rounds):
    total = sum(range(1, size + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in (lambda: torch.full((count,), rank + 1.0), lambda: torch.full((count, 2), rank + 1.0)[:, 0],
                     lambda: shardwire.empty((count,)).fill_(rank + 1.0)):
            for _ in range(rounds):
                tensor, other = make(), torch.full((7,), rank + 1.0)
                dist.all_reduce_coalesced([tensor, other, tensor, tensor.view(tensor.shape)])
                assert torch.equal(
                    tensor, torch.full_like(tensor, total)), "a tensor that is listed twice is reduced once, as by gloo"
                assert torch.equal(other, torch.full_like(other, total))


@pytest.mark.parametrize("count", [1, 3000, 400_000])
def test_a_tensor_listed_twice_is_reduced_once(run_ranks, count):
    run_ranks(4, run_repeated, count, 10)


def run_repeated_on_some_ranks(rank, size):
    """The ranks need not repeat alike: each distinct tensor is reduced once, and no rank is left waiting."""
    mine = [torch.full((5,), rank + 1.0) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced([mine[0], mine[0], mine[2]] if rank == 0 else mine)
    assert all(torch.equal(mine[i], torch.full((5,), 6.0)) for i in ((0, 2) if rank == 0 else (0, 1, 2)))
    if hasattr(dist, "_make_nccl_premul_sum"):
        scaled = torch.full((5,), rank + 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_reduce_coalesced([scaled, scaled], op=dist._make_nccl_premul_sum(2.0))
        assert torch.equal(scaled, torch.full((5,), 12.0)), "scaled once"


def test_ranks_may_repeat_tensors_differently(run_ranks):
    run_ranks(3, run_repeated_on_some_ranks)


# ---- refusals


def run_refusals(rank, size):
    """The error comes before any transfer and names both tensors; the group stays usable."""
    base = torch.arange(12.0)
    apart = torch.ones(4)
    pieces = list(base.chunk(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raises(ValueError, lambda: dist.all_reduce_coalesced([apart, base[:4], base[3:6]]),
               contains="tensors[1] and tensors[2] share part")
        # torch's Python refuses several dtypes; shardwire refuses a direct call of the group.
        raises((TypeError, ValueError, RuntimeError), lambda: dist.all_reduce_coalesced([apart, apart.long()]))
        raises(TypeError, lambda: alone().allreduce_coalesced([apart, apart.long()]), contains="tensors[1] is int64")
        lists = [[torch.zeros(4), torch.zeros(4)] for _ in range(size)]
        lists[2][1] = lists[0][0]
        raises(ValueError, lambda: dist.all_gather_coalesced(lists, [apart, apart]),
               contains="output[0][0] and output[2][1] share memory")
        lists[2][1] = torch.zeros(4)
        raises(ValueError, lambda: dist.all_gather_coalesced(lists, [apart, lists[1][0]]),
               contains="input[1] and output[1][0] share memory")
        lists = [[torch.zeros(4), torch.zeros(4, dtype=torch.int64)] for _ in range(size)]
        raises(TypeError, lambda: alone().allgather_coalesced(lists, [apart, apart.long()]),
               contains="input[1] is int64")
    raises(ValueError, lambda: dist.all_gather([apart] * size, torch.ones(4)), contains="outputs[0] and outputs[1]")
    raises(ValueError, lambda: dist.all_gather([base[:4], base[4:8], base[7:11]], apart),
           contains="outputs[1] and outputs[2]")
    raises(ValueError, lambda: dist.all_gather(pieces, pieces[(rank + 1) % size]),
           contains=f"the input and outputs[{(rank + 1) % size}]")
    uneven = [base[:1], base[1:3], base[2:5]]
    raises(ValueError, lambda: dist.all_gather(uneven, torch.ones(rank + 1)),
           contains="output[1] and output[2] share memory")
    raises(ValueError, lambda: dist.all_gather([torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3)],
                                               torch.ones(2, 3)), contains="output[1] [3, 2]")
    raises(ValueError, lambda: into_tensor(base, base[2:6]), contains="share memory")
    raises(ValueError, lambda: dist.all_to_all_single(base, base), contains="all_to_all: inputs[")
    if hasattr(alone(), "allgather_into_tensor_coalesced") and TORCH >= (2, 1):
        both = [torch.zeros(12), torch.zeros(12)]
        raises(ValueError, lambda: alone().allgather_into_tensor_coalesced([both[0], both[0]], [apart, apart]),
               contains="output[0] and output[1] share memory")
        raises(ValueError, lambda: alone().allgather_into_tensor_coalesced(both, [both[1][:4], apart]),
               contains="input[0] and output[1] share memory")
        raises(ValueError, lambda: alone().reduce_scatter_tensor_coalesced([both[1][:4], torch.zeros(4)], both),
               contains="input[1] and output[0] share memory")
    if rank == 0:
        raises(ValueError, lambda: dist.gather(apart, [base[:4], base[2:6], base[6:10]]),
               contains="outputs[0] and outputs[1]")
        raises(ValueError, lambda: dist.scatter(base[6:10], pieces), contains="inputs[1] and the output")
    raises(ValueError, lambda: dist.reduce_scatter(base[2:6], pieces), contains="inputs[0] and the output")
    # Legal calls: in place, interleaving columns, one input for all.
    mine = torch.zeros(3, 4)
    mine[rank] = rank + 1
    dist.all_gather(list(mine), mine[rank])
    assert mine[:, 0].tolist() == [1.0, 2.0, 3.0]
    table = torch.zeros(5, 3)
    dist.all_gather([table[:, r] for r in range(3)], torch.full((5,), rank + 1.0))
    assert table.tolist() == [[1.0, 2.0, 3.0]] * 5
    dist.all_reduce(base)
    assert base.tolist() == [3.0 * i for i in range(12)]


def test_lists_that_share_memory_are_refused_by_name(run_ranks):
    run_ranks(3, run_refusals)


def run_refused_before_the_first(rank, size):
    """Of a list whose last tensor is refused no operation is issued, so the peer's call meets the right call."""
    expanded = torch.ones(1).expand(4)
    mine, other, zeros = torch.full((4,), rank + 1.0), torch.full((4,), 10.0 * (rank + 1)), lambda: torch.zeros(4)
    lists = [[zeros(), zeros()] for _ in range(size)]
    lists[1 - rank][1] = other
    refused = [(lambda: alone().allreduce_coalesced([mine, expanded]), "all_reduce_coalesced: tensors[1]: a tensor of"),
               (lambda: dist.all_gather([torch.zeros(5), expanded], torch.ones(5 - rank)), "all_gather: output[1]: a"),
               (lambda: dist.all_gather_coalesced(lists, [mine, other]),
                f"all_gather_coalesced: the input and outputs[{1 - rank}]")]
    if hasattr(alone(), "allgather_into_tensor_coalesced") and TORCH >= (2, 1):
        whole = torch.ones(8)
        refused += [(lambda: alone().allgather_into_tensor_coalesced([torch.zeros(8), whole], [mine, whole[2:6]]),
                     "all_gather_into_tensor_coalesced: the input and outputs[0]"),
                    (lambda: alone().reduce_scatter_tensor_coalesced([zeros(), whole[2:6]], [torch.ones(8), whole]),
                     "reduce_scatter_tensor_coalesced: inputs[0]")]
    if rank == 1:  # the output of reduce_scatter that this rank reduces in place, as the second operation
        pieces = [torch.ones(5), torch.ones(4)]
        refused += [(lambda: dist.reduce_scatter(expanded, pieces), "reduce_scatter: output: a tensor of")]
    before = alone()._get_sequence_number_for_group()
    for call, text in refused:
        raises(ValueError, call, contains=text)
    assert alone()._get_sequence_number_for_group() == before
    alone().allreduce_coalesced([mine, other]).wait()
    assert mine.tolist() == [3.0] * 4 and other.tolist() == [30.0] * 4


@pytest.mark.filterwarnings("ignore:torch.distributed.*will be deprecated")
def test_a_refused_list_issues_no_operation(run_ranks):
    run_ranks(2, run_refused_before_the_first)


# ---- operations in flight over the same memory


def run_order(rank, size):
    for count in (1, 2000, 300_000):
        tensor = torch.full((count,), 1, dtype=torch.int64)
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(6)]
        for work in works:
            work.wait()
        assert torch.equal(tensor, torch.full_like(tensor, size**6))
        # Each operation reads the output of the operation before.
        gathered, first = torch.zeros(size * count), torch.full((count,), float(rank))
        works = [dist.broadcast(first, 1, async_op=True), into_tensor(gathered, first, async_op=True),
                 dist.all_reduce(gathered, async_op=True)]
        for work in reversed(works):
            work.wait()
        assert torch.equal(gathered, torch.full_like(gathered, size))


def test_operations_on_one_tensor_run_in_order(run_ranks):
    run_ranks(4, run_order)


def run_random(rank, size):
    for seed in range(SEED, SEED + CASES):
        rng = random.Random(seed)  # drawn from alike on all ranks
        length = 60 if rng.random() < 0.7 else 100_000
        values = torch.Generator().manual_seed(seed)
        model = [torch.randint(-(2**40), 2**40, (length,), generator=values) for _ in range(size)]
        buffer = (model[rank].clone() if rng.random() < 0.5
                  else shardwire.empty((length,), dtype=torch.int64).copy_(model[rank]))
        works, calls, outputs = [], [], []
        for _ in range(rng.randint(2, 10)):
            kind = rng.choice(("all_reduce", "broadcast", "into", "list"))
            count = rng.randint(1, length // 8)
            step = rng.choice((1, 1, 2))
            first = ([rng.randint(0, length - count * step)] * size if rng.random() < 0.5
                     else [rng.randint(0, length - count * step) for _ in range(size)])
            view = lambda whole, r: whole[first[r]:first[r] + count * step:step]
            calls.append((kind, count, step, first))
            if kind == "all_reduce":
                works.append(dist.all_reduce(view(buffer, rank), dist.ReduceOp.MAX, async_op=True))
                result = torch.stack([view(model[r], r) for r in range(size)]).amax(0)
                for r in range(size):
                    view(model[r], r).copy_(result)
            elif kind == "broadcast":
                root = rng.randrange(size)
                works.append(dist.broadcast(view(buffer, rank), root, async_op=True))
                result = view(model[root], root).clone()
                for r in range(size):
                    view(model[r], r).copy_(result)
            elif kind == "into":
                output = torch.zeros(size * count, dtype=torch.int64)
                works.append(into_tensor(output, view(buffer, rank), async_op=True))
                outputs.append((output, torch.cat([view(model[r], r) for r in range(size)])))
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    one = view(buffer, rank)
                    works.append(dist.all_reduce_coalesced([one, one], dist.ReduceOp.SUM, async_op=True))
                result = torch.stack([view(model[r], r) for r in range(size)]).sum(0)
                for r in range(size):
                    view(model[r], r).copy_(result)
        rng.shuffle(works)
        for work in works:
            work.wait()
        assert torch.equal(buffer, model[rank]), f"seed {seed}: {calls}"
        assert all(torch.equal(is_, expected) for is_, expected in outputs), f"seed {seed}: {calls}"


def test_random_overlaps_are_as_if_in_order(run_ranks):
    run_ranks(3, run_random, timeout=120)


@pytest.mark.skipif(TORCH < (2, 1), reason="this torch has no coalescing manager with results")
def test_coalescing_manager_over_one_tensor(run_ranks):
    """torch makes one all_reduce_coalesced of the calls, which reduces a tensor once; other operations run in order."""

    def body(rank, size):
        for count in (3, 300_000):
            tensor = torch.full((count,), rank + 1.0)
            with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
                dist.all_reduce(tensor)
                dist.all_reduce(tensor)
            manager.wait()
            assert torch.equal(tensor, torch.full_like(tensor, 3.0))

    run_ranks(2, body)


# ---- SHARDWIRE_CHECK=full


def run_checked(rank, size):
    outputs = [torch.zeros(3, 2) if rank == 1 else torch.zeros(2, 3) for _ in range(size)]
    error = raises(shardwire.MismatchError,
                   lambda: dist.all_gather(outputs, torch.ones(3, 2) if rank == 1 else torch.ones(2, 3)))
    assert ("rank 0 called all_gather(float32[2, 3])" in str(error)
            and "rank 1 called all_gather(float32[3, 2])" in str(error)), error


def test_checked_mode_compares_shapes(run_ranks, monkeypatch):
    monkeypatch.setenv("SHARDWIRE_CHECK", "full")

    def body(rank, size):
        run_checked(rank, size)
        dist.destroy_process_group()

    run_ranks(3, body)


def test_checked_mode_compares_messages(run_ranks, monkeypatch):
    monkeypatch.setenv("SHARDWIRE_CHECK", "full")

    def body(rank, size):
        text = "rank 0 sent float32[4] with tag 0, but rank 1 receives int32[4]"
        if rank == 1:
            raises(shardwire.MismatchError, lambda: dist.recv(torch.zeros(4, dtype=torch.int32), 0), contains=text)
        else:
            dist.send(torch.ones(4), 1)
            raises(shardwire.MismatchError, dist.barrier, contains=text)
        dist.destroy_process_group()

    run_ranks(2, body)


def test_checked_mode_lets_right_programs_pass(run_ranks, monkeypatch):
    monkeypatch.setenv("SHARDWIRE_CHECK", "full")

    def body(rank, size):
        run_order(rank, size)
        dist.all_gather([torch.zeros(r, 3) for r in range(size)], torch.ones(rank, 3))
        dist.reduce_scatter(torch.zeros(rank + 1), [torch.ones(r + 1) for r in range(size)])
        gathered = [None] * size
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered[2] == {"rank": 2}
        # Rank s sends r + 1 rows to rank r.
        dist.all_to_all_single(torch.zeros(size * (rank + 1), 2), torch.zeros(sum(range(1, size + 1)), 2),
                               [rank + 1] * size, [r + 1 for r in range(size)])
        dist.barrier()

    run_ranks(3, body)
