"""The seed document's algorithms over symmetric memory (symm_algorithms.py), several rounds each, against torch's
result."""

from __future__ import annotations

import pytest
import torch
from ranks import group, run_ranks
from symm_algorithms import AllGatherMatmul, LamportAllReduce, MatmulReduceScatter, OneShotAllReduce, TwoShotAllReduce

from shardwire import symm

RANKS = 3
ROUNDS = 12


def of(rank, round, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * round + rank))


def all_of(round, *shape):
    return [of(rank, round, *shape) for rank in range(RANKS)]


def in_order(parts):
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def one_shot_body(rank):
    reduce = OneShotAllReduce(symm.team(group()), (17, 5), torch.float32)
    results = []
    for round in range(ROUNDS):
        got = reduce(of(rank, round, 17, 5))
        assert torch.equal(got, in_order(all_of(round, 17, 5)))
        results.append(got)
    return torch.stack(results)


def lamport_body(rank):
    team = symm.team(group())
    reduce = LamportAllReduce(team, 100)
    results = []
    for round in range(ROUNDS * 3):
        x = of(rank, round, 100)
        x[::7] = -0.0 if rank % 2 else 0.0
        got = reduce(x)
        parts = all_of(round, 100)
        for each in parts:
            each[::7] = 0
        assert torch.allclose(got, in_order(parts), atol=1e-6)
        results.append(got)
    team.barrier()
    return torch.stack(results)


def two_shot_body(rank):
    team = symm.team(group())
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        reduce = TwoShotAllReduce(team, (16, 9), dtype)
        for round in range(ROUNDS):
            got = reduce(of(rank, round, 16, 9).to(dtype))
            wanted = in_order([each.to(dtype).float() for each in all_of(round, 16, 9)]).to(dtype)
            assert torch.equal(got, wanted)
            results.append(got.float())
        team.barrier()
    return torch.stack(results)


def gather_body(rank):
    team = symm.team(group())
    multiply = AllGatherMatmul(team, 8, 6, 4)
    w = of(9, 0, 6, 5)
    for round in range(ROUNDS):
        got = multiply(of(rank, round, 8, 6), w)
        assert torch.allclose(got, torch.cat(all_of(round, 8, 6)) @ w, atol=1e-5)
    return torch.zeros(1)


def scatter_body(rank):
    team = symm.team(group())
    multiply = MatmulReduceScatter(team, 8, 5, 2)
    for round in range(ROUNDS):
        xs, ws = all_of(round, RANKS * 8, 6), all_of(round + 500, 6, 5)
        got = multiply(xs[rank], ws[rank])
        whole = in_order([x @ w for x, w in zip(xs, ws)])
        assert torch.allclose(got, whole[rank * 8:(rank + 1) * 8], atol=1e-4)
    return torch.zeros(1)


@pytest.mark.parametrize("body", [one_shot_body, lamport_body, two_shot_body, gather_body, scatter_body])
def test_algorithm_gives_torchs_result_and_the_same_bits_on_every_rank(body):
    results = run_ranks(RANKS, body)
    assert all(torch.equal(result, results[0]) for result in results)
