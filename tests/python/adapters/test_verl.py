"""shardwire.adapters.verl with the real verl: the registry, and updates driven like verl's CheckpointEngineManager
does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed: ./run frameworks makes an environment that has it")

from ranks import run_ranks  # noqa: E402
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry  # noqa: E402

import shardwire.adapters.verl  # noqa: E402,F401  registers

ACTORS, ROLLOUTS = 2, 2
WORLD = ACTORS + ROLLOUTS


def weight(name: str, shape: Any, dtype: torch.dtype, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)) * 31 + step)
    return (torch.randn(tuple(shape), generator=generator) * 50).to(dtype)


def random_weights(rng: random.Random) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Random weights: some longer than a bucket, some empty, some without dimensions, with dtypes that must be aligned
    anew.
    """
    dtypes = [torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.float64]
    shapes = [(), (0, 3),
              *[tuple(rng.randint(1, 40) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(3, 12))],
              (rng.randint(900, 4000),)]
    rng.shuffle(shapes)
    return [(f"model.layers.{index}.weight", shape, rng.choice(dtypes)) for index, shape in enumerate(shapes)]


class Workers:
    """The manager's steps, among forked ranks: metadata to all ranks through the group, then separate arguments to each
    rank.
    """

    def __init__(self, rank: int, **options: Any) -> None:
        from ranks import group
        self.rank, self.group = rank, group()
        named = {"is_master": True} if rank == 0 else {}
        self.engine: CheckpointEngine = CheckpointEngineRegistry.new("shardwire", **options, **named)

    def build(self) -> None:
        prepared = self.engine.prepare()
        metadata = all_gather(self.group, prepared)
        actors, rollouts = type(self.engine).build_topology(ACTORS, ROLLOUTS, metadata)
        mine, index = (actors, self.rank) if self.rank < ACTORS else (rollouts, self.rank - ACTORS)
        assert all(len(values) == (ACTORS if mine is actors else ROLLOUTS) for values in mine.values())
        self.engine.init_process_group(**{key: values[index] for key, values in mine.items()})

    def update(self, weights: Any, step: int | None, receive_step: int | None) -> list[tuple[str, torch.Tensor]]:
        self.build()
        if self.rank < ACTORS:
            asyncio.run(self.engine.send_weights(weights, global_steps=step))
            got = []
        else:
            got = asyncio.run(self._received(receive_step))
        self.engine.finalize()
        return got

    async def _received(self, step: int | None) -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor.clone()) async for name, tensor in self.engine.receive_weights(global_steps=step)]


def all_gather(group: Any, value: Any) -> list[Any]:
    data = shardwire.serialize(value)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(WORLD)]
    group.allgather([sizes], [torch.tensor([data.numel()])]).wait()
    longest = max(int(size) for size in sizes)
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[:data.numel()] = data
    everyone = [torch.zeros(longest, dtype=torch.uint8) for _ in range(WORLD)]
    group.allgather([everyone], [mine]).wait()
    return [shardwire.deserialize(each[:int(size)]) for each, size in zip(everyone, sizes)]


def updates(rank: int, seeds: range, rebuild: bool, dtype: str | None) -> int:
    workers = Workers(rank, bucket_size=4096, rebuild_group=rebuild, rollout_dtype=dtype)
    cast = None if dtype is None else getattr(torch, dtype)
    compared = 0
    groups = set()
    for seed in seeds:
        described = random_weights(random.Random(seed))
        stream = ((name, weight(name, shape, kind, seed)) for name, shape, kind in described)
        got = workers.update(stream, seed, seed)
        groups.add(id(workers.engine._group))
        assert rank >= ACTORS or next(stream, None) is None, "every actor walks its generator to the end"
        if rank < ACTORS:
            continue
        assert [name for name, _ in got] == [name for name, *_ in described], seed
        for (name, tensor), (_, shape, kind) in zip(got, described):
            wanted = weight(name, shape, kind, seed)
            wanted = wanted.to(cast) if cast is not None and kind.is_floating_point else wanted
            assert tensor.dtype == wanted.dtype and torch.equal(tensor, wanted), f"seed {seed}, {name}"
            compared += 1
    assert len(groups) == 1, "kept from update to update, or None after each"
    return compared


@pytest.mark.parametrize("rebuild, dtype", [(False, None), (True, None), (False, "bfloat16")])
def test_random_weights_arrive(rebuild: bool, dtype: str | None) -> None:
    assert sum(run_ranks(WORLD, updates, range(6), rebuild, dtype, timeout=90)) > 50


def raised(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def another_step(rank: int) -> str:
    workers = Workers(rank, bucket_size=4096)
    first = raised(lambda: workers.update(iter([("w", torch.arange(5000.0))]), 7, 8))
    got = workers.update(iter([("w", torch.arange(5000.0))]), 9, 9)  # a new group, and all is well
    assert rank < ACTORS or torch.equal(got[0][1], torch.arange(5000.0))
    return first


def test_weights_of_another_step_are_an_error_and_the_next_update_works() -> None:
    said = run_ranks(WORLD, another_step)
    assert "MismatchError" in said[2] and "step 8" in said[2] and "step 7" in said[2], said
    assert said[1] == "", "an actor that sends nothing is not in the group"


def failing(rank: int) -> str:
    def broken() -> Any:
        yield "w", torch.arange(5000.0)
        raise ValueError("the model's export broke")

    workers = Workers(rank, bucket_size=4096)
    said = raised(lambda: workers.update(broken(), 1, 1))
    got = workers.update(iter([("w", torch.ones(3))]), 2, 2)
    assert rank < ACTORS or torch.equal(got[0][1], torch.ones(3))
    return said


def test_a_generator_that_fails_ends_the_stream_for_all() -> None:
    said = run_ranks(WORLD, failing)
    assert said[0].startswith("ValueError: the model's export broke"), said
    assert all("rank 0" in each for each in said[2:]), said


def test_what_is_no_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="rollout_dtype"):
        CheckpointEngineRegistry.new("shardwire", bucket_size=4096, rollout_dtype="float12")
    with pytest.raises(ValueError, match="is_master"):
        engine = CheckpointEngineRegistry.new("shardwire", bucket_size=4096)
        type(engine).build_topology(1, 1, [engine.prepare(), engine.prepare()])


def test_verls_own_manager_moves_weights(tmp_path: Path) -> None:
    """verl's CheckpointEngineManager, CheckpointEngineWorker and RayWorkerGroup, with shardwire named in the
    configuration alone.
    """
    script = Path(__file__).with_name("verl_job.py")
    # Ray keeps a token there
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=400, check=False,
                          env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.split("results ", 1)[1]) == [[True, True]] * 3
