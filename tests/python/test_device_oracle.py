"""The two property tests, of compile_op and of the collectives, over the test device: tensors of one call lie on the
CPU and on the device at random, by rank and by slice, and are filled by earlier work of the device's stream.
SHARDWIRE_ORACLE_CASES and SHARDWIRE_ORACLE_SEED mean the same as in the two tests.
"""

from __future__ import annotations

import random
from typing import Any

import accelerator
import collective_model
import pytest
import test_collectives_oracle
import test_oracle
import torch
from ranks import run_ranks

CASES = max(60, test_oracle.CASES // 3)
COLLECTIVE_CASES = max(60, test_collectives_oracle.CASES // 8)
placements = {"device": 0, "host": 0}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = accelerator.load()

    def place(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
        # torch passes complex tensors to a backend as views, which torch cannot make of tensors of the test device.
        if (tensor.is_complex() and not accelerator.IS_CUDA) or rng.random() < 0.4:
            placements["host"] += 1
            return tensor
        placements["device"] += 1
        there = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=accelerator.DEVICE_NAME)
        if rng.random() < 0.1:
            module.delay(1)
        # The stream copies the values later; until then `tensor` must live.
        keep.append(tensor)
        return there.copy_(tensor, non_blocking=True)

    keep: list[torch.Tensor] = []
    monkeypatch.setattr(test_oracle, "PLACE", place)
    monkeypatch.setattr(collective_model, "PLACE", place)
    return module


def run_compiled(rank: int, world: int, first: int, count: int, module: Any) -> list[str]:
    module.use_gates("own")
    outcomes = test_oracle.run_cases(rank, world, first, count)
    assert module.uses_after_free() == 0
    assert placements["device"] > 20 and placements["host"] > 20
    return outcomes


@pytest.mark.parametrize("world", [1, 3])
def test_random_specs_on_the_device(device: Any, world: int) -> None:
    first = test_oracle.SEED + world * 7_000_000
    print(f"oracle: world {world}, seeds {first}..{first + CASES - 1}")
    results = run_ranks(world, run_compiled, world, first, CASES, device, timeout=90 + CASES * 0.5)
    for seed, outcomes in enumerate(zip(*results), first):
        assert len(set(outcomes)) == 1, f"seed {seed}: ranks disagree: {outcomes}"


def run_collectives(rank: int, first: int, count: int, module: Any) -> dict[str, int]:
    module.use_gates("own")
    counted = test_collectives_oracle.run_cases(rank, first, count)
    assert module.uses_after_free() == 0 and (accelerator.IS_CUDA or module.gates_made() > 0)
    assert placements["device"] > 20 and placements["host"] > 20
    return counted


def test_random_calls_on_the_device(device: Any) -> None:
    first = test_collectives_oracle.SEED + 9_000_000
    print(f"oracle: seeds {first}..{first + COLLECTIVE_CASES - 1}")
    run_ranks(test_collectives_oracle.WORLD, run_collectives, first, COLLECTIVE_CASES, device,
              timeout=90 + COLLECTIVE_CASES * 0.2, default_group=True)
