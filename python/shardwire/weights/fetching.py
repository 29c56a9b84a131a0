"""One subscription: a group of the publisher's ranks followed by the subscriber's, and the steps of a fetch in this
group.

    request   the subscriber's rank 0 -> all           which version, since which, how long
    answer    each publisher's rank   -> all           the held versions; all choose alike, or ask again
    move      the compiled op                          out of the buffers of the chosen version
    done      each publisher's rank   -> subscriber    the version of the moved bytes

Both sides make the same calls in the same order; each rank's decisions follow from data that all ranks have.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import torch

from .. import _C
from ..compiler.compile_op import CustomOp, compile_op, forget_numbers
from ..errors import MismatchError, ShardwireError
from ..compiler.agree import Attempt, Meeting
from .descriptions import collect, moved_to
from .matching import Match, match
from .movement import End, Movement, RowsOf, compile_movement
from .problems import Problems
from .versions import MAX_BUFFERS

# Beyond a fetch's own time: a normal end must come before a forced end.
SLACK_S = 2.0
_FOREVER = timedelta(days=3650)
# Newest version, bytes of the state, whether the time is over; per buffer the version and the changed bytes
_ANSWER = 3 + 2 * MAX_BUFFERS
_KEPT_MATCHES = 16
_matches: dict[bytes, Match] = {}
_matches_lock = threading.Lock()

FETCH, LEAVE = 1, 2


@dataclass(slots=True)
class Request:
    """wanted: a version, or -1 for the newest. since: the subscriber's version, or -1. newer: only a version after
    ``since``. changed: the changes after ``since`` are enough.
    """

    kind: int
    wanted: int = -1
    since: int = -1
    newer: int = 0
    changed: int = 0
    milliseconds: int = 0


@dataclass(slots=True)
class Choice:
    """verdict: "take", "wait", "late" or "gone". whole: the whole state moves, not only the changes; moves: any bytes
        move."""

    verdict: str
    version: int = -1
    whole: bool = True
    moves: bool = True
    held: tuple[int, ...] = ()


def choose(rows: Sequence[Sequence[int]], request: Request) -> Choice:
    """The common choice of all ranks from the answers of all publisher's ranks: the newest version held by every
    publisher's rank."""
    held = [{version: changed for version, changed in zip(row[3::2], row[4::2]) if version >= 0} for row in rows]
    common = tuple(sorted(set.intersection(*(set(one) for one in held))))
    fitting = [version for version in common
               if request.wanted in (-1, version) and (not request.newer or version > request.since)]
    if fitting:
        version = fitting[-1]
        total, changed = sum(row[1] for row in rows), sum(one[version] for one in held)
        whole = not request.changed or request.since < 0 or version < request.since or 2 * changed > total
        return Choice("take", version, whole, whole or changed > 0, common)
    if request.wanted >= 0 and any(row[0] >= request.wanted and request.wanted not in one
                                   for row, one in zip(rows, held)):
        return Choice("gone", held=common)
    return Choice("late" if rows[0][2] else "wait", held=common)


def answer_row(newest: int, total: int, is_late: bool, changed: dict[int, int]) -> list[int]:
    row = [newest, total, int(is_late)]
    for version, num_bytes in sorted(changed.items()):
        row += [version, num_bytes]
    return row + [-1] * (_ANSWER - len(row))


class Joint:
    """The group of one subscription on this rank, and the small ops of the group. ``layout_rank``: this rank's number
    in the layouts of its own job."""

    def __init__(self, store: Any, name: str, rank: int, publishers: int, subscribers: int, layout_rank: int,
                 seconds: float) -> None:
        self.publishers, self.subscribers = publishers, subscribers
        self._name = name
        self._store = store  # kept: the group uses the store, and some stores are Python objects
        with errors_by_side(publishers, subscribers):
            self.backend = _C.create_backend(store, rank, publishers + subscribers, timedelta(seconds=seconds), name,
                                             between_jobs=True)
            self.meeting = Meeting(self.backend, "fetch", seconds, layout_rank)
            self.is_publisher = rank < publishers
            answers, fields = [publishers, _ANSWER], len(astuple(Request(FETCH)))
            mine = [{"offset": [rank, 0], "shape": [1, _ANSWER]}] if self.is_publisher else None
            self._request = self._small([fields], [{"offset": [0], "shape": [fields]}] if rank == publishers else None,
                                        [fields])
            self._answer = self._small(answers, mine, answers)
            self._done = self._small([publishers, 1], [{"offset": [rank, 0], "shape": [1, 1]}] if self.is_publisher
                                                      else None, None if self.is_publisher else [publishers, 1])
        self.full: Movement | None = None
        self._parts: tuple[Match, End, End] | None = None  # the matched names, source, target

    def _small(self, shape: list[int], mine: Any, wanted: list[int] | None) -> CustomOp:
        outputs = None if wanted is None else [{"offset": [0] * len(wanted), "shape": wanted}]
        return compile_op(self.backend, shape, torch.int64, mine, outputs, timeout=self.meeting.seconds, name="fetch")

    def compile(self, source: bytes, ours: End | None,
                targets: Callable[[Sequence[bytes]], tuple[bytes, bytes, bool, Callable[[Match], End]]]
                         | None) -> Match:
        """Compiles the movement between the two jobs. source: the publisher's description of its part.

        targets: the subscriber's function: from the publisher's descriptions to the places of the publisher's names,
            the subscriber's description, whether the subscriber is strict, and the allocator. Raises the same error on
            every rank.
        """
        given = [blobs[0] for blobs in self.meeting.exchange([source, b"", b""])[:self.publishers]]
        blobs, allocate = [b"", b"", b""], None
        with Attempt() as attempt:
            if targets is not None:
                places, described, strict, allocate = targets(given)
                blobs = [places, described, b"strict" if strict else b""]
        theirs = self.meeting.exchange(blobs, attempt.error)[self.publishers:]
        found = _matched(given, theirs)
        nothing = End({}, dict, dict)
        source_end, target = ours or nothing, nothing
        with Attempt() as attempt:
            if allocate is not None:
                target = allocate(found)
        self.full = compile_movement(self.meeting, found, source_end, target, "fetch", attempt.error)
        # Data, and no closure over self: a cycle would keep each ended subscription until Python's collector runs.
        self._parts = found, source_end, target
        return found

    def compile_changed(self, rows: RowsOf, seconds: float) -> Movement:
        assert self._parts is not None
        self.meeting.seconds = seconds
        return compile_movement(self.meeting, *self._parts, "fetch of what changed", rows=rows)

    def request(self, given: Request | None, seconds: float | None) -> Request:
        mine = [] if given is None else [torch.tensor(astuple(given), dtype=torch.int64, device="cpu")]
        got = torch.empty(len(astuple(Request(FETCH))), dtype=torch.int64, device="cpu")
        self._request(mine, [got], timeout=_FOREVER if seconds is None else seconds).wait()
        return Request(*got.tolist())

    def answer(self, row: list[int] | None, seconds: float) -> list[list[int]]:
        everyone = torch.empty(self.publishers, _ANSWER, dtype=torch.int64, device="cpu")
        self._answer([] if row is None else [torch.tensor([row], dtype=torch.int64, device="cpu")], [everyone],
                     timeout=seconds).wait()
        return everyone.tolist()

    def done(self, version: int | None, seconds: float) -> list[int]:
        got = torch.empty(self.publishers, 1, dtype=torch.int64, device="cpu")
        mine = ([torch.tensor([[-1 if version is None else version]], dtype=torch.int64, device="cpu")]
                if self.is_publisher else [])
        self._done(mine, [] if self.is_publisher else [got], timeout=seconds).wait()
        return [] if self.is_publisher else got.reshape(-1).tolist()

    def abort(self) -> None:
        """Ends the waits of the thread that uses this object. Called from another thread."""
        self.backend.abort()

    def leave(self) -> None:
        """Leaves the group when no call is under way on this rank. Other ranks may still be about to end the last
        common call. A failed group that was left does not affect the process's other groups.
        """
        forget_numbers(self._name)  # no other group has this name
        self.backend.shutdown()

    def errors_by_side(self) -> Any:
        return errors_by_side(self.publishers, self.subscribers)


@contextmanager
def errors_by_side(publishers: int, subscribers: int) -> Iterator[None]:
    """Errors name ranks of the joint group; this context replaces the numbers by the publisher's and the subscriber's
    ranks."""
    try:
        yield
    except (ShardwireError, ValueError, TypeError) as error:
        raise type(error)(rename_ranks(str(error), publishers, subscribers)) from error


def _matched(sources: Sequence[bytes], subscribers: Sequence[Sequence[bytes]]) -> Match:
    """Matches the publisher's names with the subscriber's. Results are cached by the descriptions of both sides:
    subscribers often return with the same layouts."""
    places, _, strict = subscribers[0]
    for rank, blobs in enumerate(subscribers):
        if (blobs[0], blobs[2]) != (places, strict):
            raise MismatchError(f"the subscriber's ranks 0 and {rank} give different mapping= or strict=; give every "
                                "rank the same")
    parts = [*sources, *(blobs[1] for blobs in subscribers), places, strict, str(len(sources)).encode()]
    key = b"".join(blake2b(part, digest_size=16).digest() for part in parts)
    found = _matches.get(key)
    if found is None:
        problems = Problems()
        table = json.loads(places)
        source = collect([moved_to(part, table) for part in sources], "source", problems)
        found = match(source, collect([blobs[1] for blobs in subscribers], "target", problems), problems, bool(strict))
        problems.raise_any("subscribe")
        with _matches_lock:
            while len(_matches) >= _KEPT_MATCHES:
                _matches.pop(next(iter(_matches)))
            _matches[key] = found
    return found


_ELSEWHERE = "another group of its process"
_RANKS = re.compile(r"(?<!global )(?<!publisher's )(?<!subscriber's )\b[Rr]anks? (\d+(?:(?:, | and | to )\d+)*)")


def rename_ranks(text: str, publishers: int, subscribers: int) -> str:
    def name(rank: int) -> str:
        if rank < publishers:
            return f"the publisher's rank {rank}"
        return f"the subscriber's rank {rank - publishers}" if rank < publishers + subscribers else f"rank {rank}"

    own, other, rest = text.partition(_ELSEWHERE)  # the rest names ranks of another group
    return _RANKS.sub(lambda found: re.sub(r"\d+", lambda number: name(int(number[0])), found[1]), own) + other + rest
