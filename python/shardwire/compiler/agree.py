"""Agreement of the ranks of one call: the ranks exchange bytes, and an error of any rank is raised on all ranks.

A rank that never calls is named by the timeout of the others, and the group stays usable.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from .. import _C, errors
from ..groups.lookup import global_ranks, resolve_backend

# Blobs of a rank in one exchange: the rank's holdings, its wants, and the rest. Separate, since ranks often have equal
# blobs.
BLOBS = 3
# Bytes of the length and of the digest of a blob
_LENGTH = 8
_KEY = _LENGTH + 16


def exchange(backend: Any, call: str, text: str = "", blob: bytes = b"", error: Exception | None = None,
             seconds: float | None = None) -> list[bytes]:
    """The blobs of all ranks, by rank. Raises on all ranks alike where a rank gives an error, or where ``call`` or
    ``text`` differ; the own error is the cause of the raised error."""
    try:
        return _C.exchange(backend, call, text, blob, error, seconds)
    except Exception as failure:
        raise failure from error


class Attempt:
    """``with Attempt() as attempt:`` keeps an exception of the block in ``attempt.error``, instead of raising the
    exception: the other ranks wait for this rank, and get the error by the next exchange."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: Any, value: BaseException | None, traceback: TracebackType | None) -> bool:
        if isinstance(value, Exception):
            self.error = value
        return self.error is not None  # Ctrl-C goes on


class Meeting:
    """One call of ``sync``, ``load``, ``save`` or the like, made by all ranks of the group. Every rank makes the
    Meeting at the same place of its program.

    layout_rank: this rank's number in the meshes of its layouts, where the number differs from the global rank, as in a
        group of two jobs.
    """

    def __init__(self, group: Any, call: str, seconds: float | None, layout_rank: int | None = None) -> None:
        self.backend = resolve_backend(group)
        self.call = call
        self.seconds = seconds
        self.ranks = global_ranks(self.backend)
        self.rank = _C.rank(self.backend)
        self.global_rank = self.ranks[self.rank] if layout_rank is None else layout_rank
        self._steps = 0

    def exchange(self, blobs: Sequence[bytes], error: Exception | None = None) -> list[list[bytes]]:
        """The blobs of every rank, by rank. Equal blobs travel once: the lowest rank gives the bytes. Raises on all
        ranks alike when any rank gives an error."""
        self._steps += 1
        rows = self._exchange(f"step {self._steps}", b"".join(map(_key_of, blobs)), error)
        keys = [[row[at:at + _KEY] for at in range(0, len(row), _KEY)] for row in rows]
        givers: dict[bytes, int] = {}
        for rank, row in enumerate(keys):
            for key in row:
                givers.setdefault(key, rank)
        if not any(map(_length, givers)):
            return [[b""] * len(row) for row in keys]
        own = dict(zip(keys[self.rank], blobs))
        joined = self._exchange("the bytes", b"".join(own[key] for key, rank in givers.items() if rank == self.rank))
        ends = [0] * len(rows)
        found = {}
        for key, rank in givers.items():
            begin, ends[rank] = ends[rank], ends[rank] + _length(key)
            found[key] = joined[rank][begin:ends[rank]]
        return [[found[key] for key in row] for row in keys]

    def settle(self, error: Exception | None) -> None:
        """Returns when no rank has an error; else all ranks raise the lowest rank's error."""
        self.exchange([b""] * BLOBS, error)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """``with meeting.together():`` is a block of each rank; afterwards all ranks know whether all succeeded."""
        with Attempt() as attempt:
            yield
        self.settle(attempt.error)

    def _exchange(self, text: str, blob: bytes, error: Exception | None = None) -> list[bytes]:
        return exchange(self.backend, f"shardwire.{self.call}", text, blob, error, self.seconds)


def _key_of(blob: bytes) -> bytes:
    return len(blob).to_bytes(_LENGTH, "little") + hashlib.blake2b(blob, digest_size=_KEY - _LENGTH).digest()


def _length(key: bytes) -> int:
    return int.from_bytes(key[:_LENGTH], "little")


def check_strict(call: str, given: Sequence[bool]) -> None:
    """MismatchError, on all ranks, for different values: one rank would go on where another rank finds missing
    names."""
    for rank, strict in enumerate(given):
        if strict != given[0]:
            raise errors.MismatchError(f"{call}: strict is {given[0]} on rank 0 and {strict} on rank {rank}; give the "
                                       "same on all ranks")
