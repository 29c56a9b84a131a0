"""Agreement of the ranks of one call: the ranks exchange bytes, and an error of any rank is raised on all ranks.

All data goes through compiled ops: a rank that never calls is named by the timeout of the others, and the group stays
usable.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from .. import errors
from .._C import rank
from .compile_op import CustomOp, compile_op
from ..groups.lookup import global_ranks, resolve_backend

DOORS = ("sync", "load", "save", "publish", "subscribe", "fetch", "compile_and_load")
# Blobs of a rank in one exchange: the rank's holdings, its wants, and the rest. Separate, since ranks often have equal
# blobs.
BLOBS = 3
# call, step, whether the rank has an error; per blob the length and 16 bytes of digest
_ROW = 3 + 3 * BLOBS
_KINDS: tuple[type[Exception], ...] = (
    ValueError, TypeError, errors.UnsupportedError, errors.CheckpointError, errors.KernelError, errors.SystemFailure, errors.MismatchError, errors.TimeoutError,
    errors.PeerFailedError, errors.AbortedError)


class Meeting:
    """One call of ``sync``, ``load``, ``save`` or another of ``DOORS``, made by all ranks of the group. Every rank
    makes the Meeting at the same place of its program.

    layout_rank: this rank's number in the meshes of its layouts, where the number differs from the global rank, as in a
        group of two jobs.
    """

    def __init__(self, group: Any, door: str, seconds: float | None, layout_rank: int | None = None) -> None:
        self.backend = resolve_backend(group)
        self.door = door
        self.seconds = seconds
        self.ranks = global_ranks(self.backend)
        self.rank = rank(self.backend)
        self.global_rank = self.ranks[self.rank] if layout_rank is None else layout_rank
        self._steps = 0
        self._rows: CustomOp | None = None

    def exchange(self, blobs: Sequence[bytes], error: Exception | None = None) -> list[list[bytes]]:
        """The blobs of every rank, by rank. Equal blobs travel once. Raises on all ranks alike when any rank gives an
        error."""
        given = list(blobs) if error is None else [_encode(error), b"", b""]
        rows = self._exchange_rows(given, error is not None)
        self._compare(rows)
        wanted = [rank for rank, row in enumerate(rows) if row[2]] or list(range(len(rows)))
        blobs_of = self._exchange_bytes(rows, wanted, given)
        if rows[wanted[0]][2]:
            self._raise(wanted, [blobs_of[rank][0] for rank in wanted], error)
        return [blobs_of[rank] for rank in wanted]

    def settle(self, error: Exception | None) -> None:
        """Returns when no rank has an error; else all ranks raise the lowest rank's error."""
        self.exchange([b""] * BLOBS, error)

    def _exchange_rows(self, blobs: list[bytes], failed: bool) -> list[list[int]]:
        count = len(self.ranks)
        if self._rows is None:
            self._rows = compile_op(self.backend, shape=[count, _ROW], dtype=torch.int64, inputs=[{"offset": [self.rank, 0], "shape": [1, _ROW]}],
                                    outputs=[{"offset": [0, 0], "shape": [count, _ROW]}], timeout=self.seconds, name=f"shardwire.{self.door}")
        row = [DOORS.index(self.door), self._steps, int(failed)]
        for blob in blobs:
            row += [len(blob), *_digest(blob)]
        self._steps += 1
        everyone = torch.empty(count, _ROW, dtype=torch.int64, device="cpu")
        self._rows([torch.tensor([row], dtype=torch.int64, device="cpu")], [everyone], timeout=self.seconds).wait()
        return everyone.tolist()

    def _compare(self, rows: list[list[int]]) -> None:
        for rank, row in enumerate(rows):
            if row[:2] != rows[0][:2]:
                calls = " and ".join(f"rank {which} is in step {step} of shardwire.{DOORS[door]}" for which, (door, step) in
                                     ((0, rows[0][:2]), (rank, row[:2])))
                raise errors.MismatchError(f"ranks are doing different things: {calls}; every rank of the group makes the same calls in the same order")

    def _exchange_bytes(self, rows: list[list[int]], wanted: list[int], own: list[bytes]) -> dict[int, list[bytes]]:
        """The blobs of the wanted ranks. Of equal blobs the lowest rank gives the bytes."""
        # length and digest -> place in the joined bytes
        places: dict[tuple[int, ...], tuple[int, int]] = {}
        inputs, tensors, total = [], [], 0
        for rank in wanted:
            for which in range(BLOBS):
                key = tuple(rows[rank][3 + 3 * which:6 + 3 * which])
                if key[0] == 0 or key in places:
                    continue
                places[key] = (total, total + key[0])
                if rank == self.rank:
                    inputs.append({"offset": [total], "shape": [key[0]]})
                    tensors.append(torch.frombuffer(bytearray(own[which]), dtype=torch.uint8))
                total += key[0]
        joined = torch.empty(total, dtype=torch.uint8, device="cpu")
        if total:
            op = compile_op(self.backend, shape=[total], dtype=torch.uint8, inputs=inputs, outputs=[{"offset": [0], "shape": [total]}],
                            timeout=self.seconds, name=f"shardwire.{self.door}")
            op(tensors, [joined], timeout=self.seconds).wait()
        data = bytes(joined.numpy())
        result = {}
        for rank in wanted:
            keys = [tuple(rows[rank][3 + 3 * which:6 + 3 * which]) for which in range(BLOBS)]
            result[rank] = [data[slice(*places[key])] if key[0] else b"" for key in keys]
        return result

    def _raise(self, ranks: list[int], blobs: list[bytes], own: Exception | None) -> None:
        kind, text = json.loads(blobs[0])
        more = f" ({len(ranks) - 1} more of {len(self.ranks)} ranks have errors too)" if len(ranks) > 1 else ""
        raised = next((known for known in _KINDS if known.__name__ == kind), errors.ShardwireError)
        raise raised(f"rank {ranks[0]}: {text}{more}") from own


def check_strict(door: str, told: Sequence[bool]) -> None:
    """MismatchError, on all ranks, for different values: one rank would go on where another rank finds missing names."""
    for rank, strict in enumerate(told):
        if strict != told[0]:
            raise errors.MismatchError(f"{door}: strict is {told[0]} on rank 0 and {strict} on rank {rank}; give the same on all ranks")


def _encode(error: Exception) -> bytes:
    kind = _kind_of(error)
    text = str(error) or type(error).__name__
    if kind is errors.ShardwireError and not isinstance(error, errors.ShardwireError):
        text = f"{type(error).__name__}: {text}"
    return json.dumps([kind.__name__, text]).encode()


def _kind_of(error: Exception) -> type[Exception]:
    """The class raised on all ranks: the error's own class for shardwire's and plain errors, SystemFailure for errors
    of the operating system."""
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return kind
    if isinstance(error, builtins.OSError):
        return errors.SystemFailure
    return errors.UnsupportedError if isinstance(error, NotImplementedError) else errors.ShardwireError


def _digest(blob: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(blob, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:], "little", signed=True)
