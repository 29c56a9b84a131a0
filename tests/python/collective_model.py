"""Random tensors of every dtype in random memory, and reductions by their definition: for tests of collectives against
plain torch."""

from __future__ import annotations

import random
from typing import Any, Callable

import torch

import shardwire

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def existing(*names: str) -> list[torch.dtype]:
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


INTEGERS = existing("uint8", "int8", "int16", "int32", "int64")
UNSIGNED = existing("uint16", "uint32", "uint64")  # torch hardly computes with these
FLOATS = existing("float16", "bfloat16", "float32", "float64")
NARROW = existing("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz") if TORCH >= (2, 3) else []
COMPLEX = [torch.complex64, torch.complex128]
BYTES = [torch.bool, *INTEGERS, *FLOATS]  # weighs the usual dtypes more
DTYPES = [*BYTES, *BYTES, *UNSIGNED, *NARROW, *COMPLEX]
# dtypes that are moved and never computed with
RAW = existing("bits8", "bits16", "float4_e2m1fn_x2", "float8_e8m0fnu") if TORCH >= (2, 3) else []


# Puts some tensors elsewhere, with the same strides; set by test_device_oracle.py.
PLACE: Callable[[random.Random, torch.Tensor], torch.Tensor] | None = None


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    # torch cannot copy dtypes that torch only stores; these tensors are contiguous here.
    plain = tensor if tensor.dtype in RAW else tensor.clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8)


def random_values(seed: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.Random(seed).getrandbits(60))
    if dtype in RAW:
        count = torch.Size(shape).numel()
        size = torch.empty(0, dtype=dtype).element_size()
        return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_complex:
        return torch.complex(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype)
    whole = torch.randint(-(2**62), 2**62, shape, generator=generator, dtype=torch.int64) * 2 + torch.randint(
        0, 2, shape, generator=generator)
    return whole.view(dtype) if dtype in UNSIGNED[2:] else whole.to(dtype)


def in_memory(rng: random.Random, values: torch.Tensor) -> torch.Tensor:
    """The same values with other strides, in the shared heap or outside."""
    heap = rng.random() < 0.4
    if values.dtype in RAW:  # torch cannot copy some of these
        return values

    def empty(shape: Any) -> torch.Tensor:
        return (shardwire.empty(tuple(shape), dtype=values.dtype) if heap
                else torch.empty(tuple(shape), dtype=values.dtype))

    kind = rng.randrange(5)
    if kind == 0 and values.dim() >= 2:
        tensor = empty(values.shape[::-1]).permute(*reversed(range(values.dim())))
    elif kind == 1 and values.dim() >= 1:
        tensor = empty((*values.shape[:-1], values.shape[-1] * 2 + 1))[..., 1::2]
    else:
        tensor = empty(values.shape)
    return placed(rng, tensor.copy_(values))


def placed(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    return PLACE(rng, tensor) if PLACE is not None and tensor.dtype not in RAW else tensor


def lower(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.isnan(a) | (a < b)


def higher(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.isnan(a) | (a > b)


COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add, "AVG": torch.add, "PREMUL_SUM": torch.add, "PRODUCT": torch.mul,
    "MIN": lambda a, b: torch.where(lower(a, b), a, b), "MAX": lambda a, b: torch.where(higher(a, b), a, b),
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def reduced(op: str, values: list[torch.Tensor], factor: float) -> torch.Tensor:
    """In rank order, by the definitions in docs/plans.md."""
    dtype = values[0].dtype
    if op == "PREMUL_SUM":
        values = [value * factor for value in values]
    if len(values) == 1:
        return values[0]
    if dtype == torch.bool:
        op = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND", "AVG": "BAND"}.get(op, op)
    # order of unsigned numbers in signed numbers
    flip = -(2**63) if dtype in UNSIGNED[2:] and op in ("MIN", "MAX") else 0
    wide = (torch.float32 if dtype.is_floating_point and values[0].element_size() < 4 else dtype
            if dtype not in UNSIGNED else torch.int64)
    same = [value.view(torch.int64) ^ flip if dtype in UNSIGNED[2:] else value.to(wide) for value in values]
    result = same[0]
    for value in same[1:]:
        result = COMBINE[op](result, value)
    result = result ^ flip if flip else result
    if op == "AVG":
        if dtype.is_complex:
            result = torch.view_as_complex(torch.view_as_real(result) / len(values))
        elif dtype.is_floating_point:
            result = result / len(values)
        else:
            result = torch.div(result, len(values), rounding_mode="trunc")
    if str(dtype) == "torch.float8_e4m3fn":
        result = result.clamp(-448, 448)  # torch's own conversion does so since 2.13; shardwire with every torch
    return result.view(dtype) if dtype in UNSIGNED[2:] else result.to(dtype)
