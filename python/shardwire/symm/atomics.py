"""Atomic operations on one element of a peer's part of a symmetric tensor.

``word`` is one element, such as ``t[3]``; ``rank`` is the owner of the part, in the group that made the tensor.
Elements of up to 8 bytes; ``add`` on every dtype of torch with a sum, bitwise operations on integers and bool. 16 and 8
bit floats are added in float32 and rounded once. Integers wrap. The operations of all ranks on one element have one
order (sequential consistency), and threads that wait for the element are woken. Any thread. Raises TypeError for a
dtype without the operation, ValueError for a value that the dtype cannot hold and for tensors that are not symmetric.
Between hosts the owner's process performs the operations, and PeerFailedError and TimeoutError are possible. The owner
uses the same operations, so accesses of its own host and of other hosts agree.
"""

from __future__ import annotations

from typing import Union

import torch

from .. import _C

Number = Union[int, float, bool, complex]


def atomic_fetch(word: torch.Tensor, rank: int) -> Number:
    """The value."""
    return _C.symm_atomic(word, "fetch", rank)


def atomic_set(word: torch.Tensor, value: Number, rank: int) -> None:
    """Stores ``value``."""
    _C.symm_atomic(word, "set", rank, value, fetches=False)


def atomic_swap(word: torch.Tensor, value: Number, rank: int) -> Number:
    """Stores ``value``; returns the former value."""
    return _C.symm_atomic(word, "swap", rank, value)


def atomic_compare_swap(word: torch.Tensor, cond: Number, value: Number, rank: int) -> Number:
    """Stores ``value`` where the element equals ``cond``, bit for bit; returns the former value."""
    return _C.symm_atomic(word, "compare_swap", rank, value, cond)


def atomic_inc(word: torch.Tensor, rank: int) -> None:
    """Adds 1."""
    _C.symm_atomic(word, "add", rank, 1, fetches=False)


def atomic_fetch_inc(word: torch.Tensor, rank: int) -> Number:
    """Adds 1; returns the former value."""
    return _C.symm_atomic(word, "add", rank, 1)


def atomic_add(word: torch.Tensor, value: Number, rank: int) -> None:
    """Adds ``value``."""
    _C.symm_atomic(word, "add", rank, value, fetches=False)


def atomic_fetch_add(word: torch.Tensor, value: Number, rank: int) -> Number:
    """Adds ``value``; returns the former value."""
    return _C.symm_atomic(word, "add", rank, value)


def atomic_and(word: torch.Tensor, value: Number, rank: int) -> None:
    """Bitwise and with ``value``."""
    _C.symm_atomic(word, "and", rank, value, fetches=False)


def atomic_fetch_and(word: torch.Tensor, value: Number, rank: int) -> Number:
    """Bitwise and with ``value``; returns the former value."""
    return _C.symm_atomic(word, "and", rank, value)


def atomic_or(word: torch.Tensor, value: Number, rank: int) -> None:
    """Bitwise or with ``value``."""
    _C.symm_atomic(word, "or", rank, value, fetches=False)


def atomic_fetch_or(word: torch.Tensor, value: Number, rank: int) -> Number:
    """Bitwise or with ``value``; returns the former value."""
    return _C.symm_atomic(word, "or", rank, value)


def atomic_xor(word: torch.Tensor, value: Number, rank: int) -> None:
    """Bitwise exclusive or with ``value``."""
    _C.symm_atomic(word, "xor", rank, value, fetches=False)


def atomic_fetch_xor(word: torch.Tensor, value: Number, rank: int) -> Number:
    """Bitwise exclusive or with ``value``; returns the former value."""
    return _C.symm_atomic(word, "xor", rank, value)
