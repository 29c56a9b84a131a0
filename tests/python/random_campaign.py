"""Random products, systems and dispatches against numpy: on how many ranks, over which ways, how many cases, and a
digest of all results, by which two runs are compared.

    SHARDWIRE_ORACLE_CASES=1250 SHARDWIRE_ORACLE_SEED=7 python3 -m pytest -rP tests/python/test_matmul.py \
        -k random_cases | grep sha256

runs 1,250 cases for each of the eight rows below. Without SHARDWIRE_ORACLE_CASES a test has few cases for more than
four ranks and over tcp.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from ranks import run_ranks

# Numbers of ranks and ways of the bytes; "": the way that shardwire chooses.
RANKS_AND_WAYS = [*((ranks, "") for ranks in range(1, 7)), (3, "tcp"), (6, "tcp")]


class Digest:
    """A sha256 of tensors: of their dtypes, shapes and elements."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self._hash.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            if tensor.numel():
                self._hash.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())

    def __str__(self) -> str:
        return self._hash.hexdigest()


def extent_of(rng: random.Random, most: int) -> int:
    """An extent from 1 to ``most``; one of 30 is larger, up to 200."""
    return rng.randint(1, most if rng.random() > 1 / 30 else 200)


def wide_numpy(tensor: torch.Tensor) -> Any:
    """The elements as complex128, float64 or int64."""
    wide = (torch.complex128 if tensor.dtype.is_complex else
            torch.float64 if tensor.dtype.is_floating_point else torch.int64)
    return numpy.ascontiguousarray(tensor.resolve_conj().to(wide).numpy())


def run_campaign(cases_of_rank: Callable[..., str], ranks: int, way: str, seed: int, cases: int,
                 monkeypatch: pytest.MonkeyPatch, default_group: bool = False) -> None:
    """Runs ``cases_of_rank(rank, ranks, seed, cases)`` on each rank, and prints the digest of what they return.
    default_group: as for run_ranks."""
    if way:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
        seed += 10
    if "SHARDWIRE_ORACLE_CASES" not in os.environ and (way or ranks > 4):
        cases = max(1, cases // 6)
    found = run_ranks(ranks, cases_of_rank, ranks, seed + ranks, cases, timeout=60 + (1 + bool(way)) * ranks * cases,
                      default_group=default_group)
    print(f"{cases_of_rank.__module__}, seed {seed}, {ranks} ranks, {way or 'any way'}: {cases} cases, 0 wrong, "
          f"sha256 {hashlib.sha256(' '.join(found).encode()).hexdigest()}")
