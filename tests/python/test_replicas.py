"""check_replicas against a naive comparison: random layouts, one element of one rank changed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from ranks import error_of, group, run_ranks
from test_sync import local_of, random_layout, value_of

import shardwire
from shardwire import Layout, Partial, Shard

WORLD = 4


def random_weights(rng: random.Random) -> list[tuple[str, torch.Tensor, dict[int, Any]]]:
    """(name, true value, layout by rank); the layouts of two halves of the ranks may differ."""
    weights = []
    for index in range(rng.randint(1, 4)):
        shape = tuple(rng.randint(1, 7) for _ in range(rng.randint(0, 3)))
        dtype = rng.choice([torch.float32, torch.float16, torch.int64, torch.complex64])
        sides = ([0, 1], [2, 3]) if rng.random() < 0.5 else ([0, 1, 2, 3],)
        layouts = {rank: layout for side in sides
                   for layout in [random_layout(rng, shape, dtype, side)] for rank in side}
        name = f"layer{index}.w"
        weights.append((name, value_of(name, shape, dtype), layouts))
    return weights


def random_checks(rank: int, seeds: range) -> int:
    differing = 0
    for seed in seeds:
        rng = random.Random(seed)
        weights = random_weights(rng)
        # By name: of each rank the elements that it holds, by their number in the whole tensor.
        held = {name: [local_of(layouts[each], torch.arange(whole.numel()).reshape(whole.shape).to(whole.dtype), each)
                       for each in range(WORLD)] for name, whole, layouts in weights}
        places = [(name, each, int(number.real)) for name, numbers in held.items() for each, found in enumerate(numbers)
                  if found is not None for number in found.flatten()]
        name, changed, number = rng.choice(places)
        others = [each for each, found in enumerate(held[name])
                  if each != changed and found is not None and bool((found == number).any())]
        source = {}
        for weight, whole, layouts in weights:
            local = local_of(layouts[rank], whole, rank)
            if local is not None:
                source[weight] = local if isinstance(layouts[rank], list) else (layouts[rank], local)
        shardwire.check_replicas(source or None, group())
        if rank == changed:
            item = source[name]
            local = item[1] if isinstance(item, tuple) else item
            local[held[name][rank] == number] += 1
        if not others:
            shardwire.check_replicas(source or None, group())
            continue
        kind, text = error_of(shardwire.check_replicas, source or None, group())
        assert kind == "MismatchError" and f"{name!r}" in text, f"seed {seed}: {text}"
        assert text.count("differs") == 1, f"seed {seed}: {text}"
        sides = text.split("differs between ")[1].split(". Ranks")[0].split(" and ")
        named = sorted(tuple(int(each) for each in side.split(maxsplit=1)[1].split(", ")) for side in sides)
        assert named == sorted([(changed,), tuple(others)]), f"seed {seed}: {text}"
        differing += 1
    return differing


@pytest.mark.parametrize("first", [0, 40])
def test_random_layouts(first: int) -> None:
    counts = run_ranks(WORLD, random_checks, range(first, first + 40), timeout=120)
    assert len(set(counts)) == 1 and counts[0] > 10, counts


def other_calls(rank: int) -> list[Any]:
    addends = {"w": (Layout([0, 1], [Partial()], (4,), torch.float32), torch.full((4,), float(rank)))}
    shardwire.check_replicas(addends, group())  # addends differ
    rows = {"w": (Layout([0, 1], [Shard(0)], (4,), torch.float32), torch.full((2,), float(rank)))}
    shardwire.check_replicas(rows, group())
    model = torch.nn.BatchNorm1d(3)
    model.running_mean += rank
    return [error_of(shardwire.check_replicas, model, group()),
            error_of(shardwire.check_replicas, {"w": torch.zeros(2 + rank)}, group()),
            error_of(shardwire.check_replicas, 7 if rank else None, group())]


def test_errors_name_the_weight_and_the_ranks() -> None:
    first, second = run_ranks(2, other_calls)
    assert first == second
    assert first[0] == ("MismatchError", "check_replicas: 'running_mean'[0:3] differs between rank 0 and rank 1. Ranks "
                                         "that hold the same elements of one name must have equal values")
    assert first[1][0] == "ValueError" and "'w': shape [2] on rank 0, [3] on rank 1" in first[1][1]
    assert first[2][0] == "TypeError" and "source is 7" in first[2][1]
