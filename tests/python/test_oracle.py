"""Random specs in real processes against a naive model. The seed of a failing case is in the message.

SHARDWIRE_ORACLE_CASES: the number of cases (default 300). SHARDWIRE_ORACLE_SEED: the first seed (default 1).
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from ranks import group, run_ranks

import shardwire

CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "300"))
SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))

# Puts some tensors elsewhere, with the same strides; set by test_device_oracle.py.
PLACE: Any = None
Box = tuple[tuple[int, ...], tuple[int, ...]]
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int8, torch.uint8, torch.bool, torch.complex64)
ORDINARY_REDUCTIONS = (None, None, None, "sum", "prod", "min", "max", "mean")


@dataclass
class Tensor:
    """A global tensor of a case: boxes by rank."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    reduction: str | None
    output_dtype: torch.dtype
    inputs: list[list[Box]] = field(default_factory=list)
    outputs: list[list[Box]] = field(default_factory=list)


def random_box(rng: random.Random, shape: tuple[int, ...]) -> Box:
    extents = tuple(rng.choice((rng.randint(0, extent), extent, max(1, extent // 2) if extent else 0))
                    for extent in shape)
    return tuple(rng.randint(0, whole - extent) for whole, extent in zip(shape, extents)), extents


def tiles(rng: random.Random, shape: tuple[int, ...], pieces: int) -> list[Box]:
    """Boxes that cover the shape and do not overlap, by cutting the largest again and again."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    while len(boxes) < pieces and shape:
        offset, extent = boxes.pop(rng.randrange(len(boxes)))
        dim = rng.randrange(len(shape))
        cut = rng.randint(0, extent[dim])
        boxes.append((offset, extent[:dim] + (cut,) + extent[dim + 1:]))
        boxes.append((offset[:dim] + (offset[dim] + cut,) + offset[dim + 1:],
                      extent[:dim] + (extent[dim] - cut,) + extent[dim + 1:]))
    return boxes


def random_case(seed: int, world: int) -> tuple[list[Tensor], bool]:
    rng = random.Random(seed)
    cast_rng = random.Random(~seed)
    tensors = []
    for index in range(rng.choice((1, 1, 1, 2, 3))):
        shape = tuple(rng.randint(1, 12) for _ in range(rng.choice((0, 1, 2, 2, 3, 4))))
        dtype = rng.choice(DTYPES)
        reduction = rng.choice(ORDINARY_REDUCTIONS)
        if dtype == torch.bool:
            reduction = rng.choice((None, "band", "bor", "bxor"))
        elif dtype == torch.complex64:
            reduction = rng.choice((None, "sum"))
        elif not dtype.is_floating_point:
            reduction = rng.choice((None, "sum", "min", "max", "band", "bor", "bxor"))
        floating = [other for other in DTYPES if other.is_floating_point] if dtype.is_floating_point else [dtype]
        output_dtype = cast_rng.choice(floating) if cast_rng.random() < 0.5 else dtype
        tensor = Tensor(f"t{index}", shape, dtype, reduction, output_dtype, [[] for _ in range(world)],
                        [[] for _ in range(world)])
        if rng.random() < 0.7:
            for box in tiles(rng, shape, rng.randint(1, 2 * world)):
                tensor.inputs[rng.randrange(world)].append(box)
        for _ in range(rng.randint(0, 2 * world)):
            tensor.inputs[rng.randrange(world)].append(random_box(rng, shape))
        for _ in range(rng.randint(1, 2 * world)):
            tensor.outputs[rng.randrange(world)].append(random_box(rng, shape))
        tensors.append(tensor)
    return tensors, rng.random() < 0.5


def random_values(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small integers: every sum, product and mean of a few values is exact, in any order, in every dtype but for the
    last rounding.
    """
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype == torch.uint8 else -3
    values = torch.randint(low, 4, shape, generator=generator)
    return torch.complex(values.float(), -values.float()) if dtype == torch.complex64 else values.to(dtype)


def in_memory(rng: random.Random, values: torch.Tensor, heap: bool) -> torch.Tensor:
    """The same values with other strides, in the heap or outside."""
    def empty(shape: Any) -> torch.Tensor:
        return (shardwire.empty(tuple(shape), dtype=values.dtype) if heap
                else torch.empty(tuple(shape), dtype=values.dtype))

    kind = rng.randrange(4)
    if kind == 0 and values.dim() >= 2:
        tensor = empty(values.shape[::-1]).permute(*reversed(range(values.dim())))
    elif kind == 1 and values.dim() >= 1:
        tensor = empty((*values.shape[:-1], values.shape[-1] * 2 + 1))[..., 1::2]
    else:
        tensor = empty(values.shape)
    tensor.copy_(values)
    return PLACE(rng, tensor) if PLACE is not None else tensor


def view(tensor: torch.Tensor, box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, start + extent) for start, extent in zip(*box))


def combine(reduction: str | None, so_far: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if reduction is None:
        return value
    if reduction in ("sum", "mean"):
        return so_far + value
    return {"prod": torch.mul, "min": torch.minimum, "max": torch.maximum, "band": torch.bitwise_and,
            "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[reduction](so_far, value)


def model(tensor: Tensor, values: list[list[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole tensor by applying every input of every rank in order, and how many inputs cover each element."""
    wide = tensor.dtype
    if tensor.reduction is not None and tensor.dtype in (torch.float16, torch.bfloat16):
        wide = torch.float32
    whole = torch.zeros(tensor.shape, dtype=wide)
    covered = torch.zeros(tensor.shape, dtype=torch.int64)
    for boxes, held in zip(tensor.inputs, values):
        for box, value in zip(boxes, held):
            at = view(whole, box)
            first = covered[at] == 0
            whole[at] = torch.where(first, value.to(wide), combine(tensor.reduction, whole[at], value.to(wide)))
            covered[at] += 1
    if tensor.reduction == "mean":
        whole = whole / covered.clamp(min=1).to(wide)
    return whole.to(tensor.output_dtype), covered


def run_case(rank: int, world: int, seed: int) -> str:
    tensors, allow_gaps = random_case(seed, world)
    rng = random.Random(f"{seed}/{rank}")
    generator = torch.Generator().manual_seed(seed)
    values = [[[random_values(generator, box[1], tensor.dtype) for box in boxes] for boxes in tensor.inputs]
              for tensor in tensors]
    wholes = [model(tensor, held) for tensor, held in zip(tensors, values)]
    has_gap = any(bool((covered[view(covered, box)] == 0).any())
                  for tensor, (_, covered) in zip(tensors, wholes) for boxes in tensor.outputs for box in boxes)

    def regions(side: list[list[list[Box]]]) -> dict[str, Any]:
        return {tensor.name: [{"offset": offset, "shape": shape} for offset, shape in boxes[rank]]
                for tensor, boxes in zip(tensors, side)}

    arguments = {"shape": {tensor.name: tensor.shape for tensor in tensors},
                 "dtype": {tensor.name: tensor.dtype for tensor in tensors},
                 "output_dtype": {tensor.name: tensor.output_dtype for tensor in tensors
                                  if tensor.output_dtype != tensor.dtype or rank % 2},
                 "reduction": {tensor.name: tensor.reduction for tensor in tensors},
                 "inputs": regions([tensor.inputs for tensor in tensors]),
                 "outputs": regions([tensor.outputs for tensor in tensors]), "allow_gaps": allow_gaps}
    if has_gap and not allow_gaps:
        try:
            shardwire.compile_op(group(), **arguments)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"seed {seed}: a gap was not refused")
    op = shardwire.compile_op(group(), **arguments)
    for _ in range(2):
        inputs = {tensor.name: [in_memory(rng, value, rng.random() < 0.5) for value in held[rank]]
                  for tensor, held in zip(tensors, values)}
        # Elements that no input covers must stay ones.
        outputs = {tensor.name: [in_memory(rng, torch.ones(box[1], dtype=tensor.output_dtype), rng.random() < 0.5)
                                 for box in tensor.outputs[rank]] for tensor in tensors}
        op(inputs, outputs).wait()
        for tensor, (whole, covered) in zip(tensors, wholes):
            for index, (box, out) in enumerate(zip(tensor.outputs[rank], outputs[tensor.name])):
                at = view(whole, box)
                expected = torch.where(covered[at] > 0, whole[at], torch.ones((), dtype=tensor.output_dtype))
                assert torch.equal(out.cpu(), expected), (f"seed {seed}, rank {rank}, {tensor}: output {index} "
                                                          f"is\n{out}\nexpected\n{expected}")
    return "moved"


def run_cases(rank: int, world: int, first: int, count: int) -> list[str]:
    outcomes = []
    for seed in range(first, first + count):
        try:
            outcomes.append(run_case(rank, world, seed))
        except Exception as error:
            raise AssertionError(f"oracle: world {world}, seed {seed}: {error}") from error
    return outcomes


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_random_specs_against_the_model(world: int) -> None:
    count = max(1, CASES // 4)
    first = SEED + world * 1_000_000
    print(f"oracle: world {world}, seeds {first}..{first + count - 1}")
    results = run_ranks(world, run_cases, world, first, count, timeout=60 + count * 0.5)
    for seed, outcomes in enumerate(zip(*results), first):
        assert len(set(outcomes)) == 1, f"seed {seed}: ranks disagree: {outcomes}"
    if count >= 50:
        moved = sum(outcome == "moved" for outcome in results[0])
        assert 10 < moved < count, "both movements and gaps must occur"
