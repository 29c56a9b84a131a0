"""One rank's half of one subscription, on a separate thread: the thread waits for requests and answers with the
committed versions."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from .. import _C
from ..process.log import log
from ..errors import AbortedError, PeerFailedError
from .fetching import LEAVE, SLACK_S, Joint, Request, answer_row, choose
from .meeting_place import tidy
from .movement import End
from .versions import Buffer

if TYPE_CHECKING:
    from .publishing import Publication

_JOIN_S = 60.0  # for making a subscription's group, and its op


class _LeavableStore(dist.Store):  # type: ignore[misc]
    """The store of a subscription's group. ``ended``: why the group is not wanted any more; then the wait for a
    subscriber's address, which may never come, ends."""

    def __init__(self, store: Any, ended: Callable[[], str]) -> None:
        super().__init__()
        self._store, self._ended = store, ended

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        if reason := self._ended():
            raise AbortedError(reason)
        return all(_C.store_has(self._store, key) for key in keys)


class Serving(threading.Thread):
    """This rank's half of one subscription."""

    def __init__(self, publication: Publication, note: str, ask: dict[str, Any]) -> None:
        super().__init__(daemon=True, name=f"shardwire-serve-{publication.name}-{note}")
        self._publication, self._note, self._nonce, self._subscribers = publication, note, ask["nonce"], ask["size"]
        self._versions = publication._versions
        self._label = (f"publish {publication.name!r}: subscriber {note} ({self._subscribers} "
                       f"rank{'s' if self._subscribers > 1 else ''}, {ask.get('who', '')})")
        self._lock = threading.Lock()
        self._joint: Joint | None = None
        self._sent_away = ""
        self._buffer: Buffer | None = None

    def send_away(self, reason: str) -> None:
        """Ends the subscription, from any thread: the subscriber gets an error, and the buffer may be overwritten after
        the reader's release."""
        with self._lock:
            self._sent_away = self._sent_away or reason
            if self._joint is not None:
                self._joint.abort()

    def run(self) -> None:
        try:
            self._join_group()
            while self._serve_one():
                pass
            log("info", f"{self._label} left")
        except Exception as error:
            if self._sent_away:
                log("info" if self._publication._closing.is_set() else "warn",
                    f"{self._label} was sent away: {self._sent_away}")
            else:
                # One line for the job: every rank gets the error.
                what = "is gone" if isinstance(error, (PeerFailedError, AbortedError)) else "failed"
                log("warn" if self._publication.rank == 0 else "info", f"{self._label} {what}: {error}")
        finally:
            with self._lock:
                joint, self._joint = self._joint, None
            if joint is not None:
                joint.leave()
            self._versions.release(self)
            self._publication._forget(self._nonce, self._note)

    def _join_group(self) -> None:
        own = self._publication
        key = f"{own._id}/{self._note}"
        place = own._address.open(_JOIN_S)
        name = f"{own.name}, subscriber {self._note}"
        store = _LeavableStore(place.group_store(f"{key}.group"), lambda: self._sent_away)
        joint = Joint(store, name, own.rank, own.size, self._subscribers, own._layout_rank, _JOIN_S)
        with self._lock:
            self._joint = joint
            if self._sent_away:
                raise AbortedError(self._sent_away)
        layouts = {name: holding.layout for name, holding in own._holdings.entries.items()}
        with joint.errors_by_side():
            joint.compile(own._description, End(layouts, self._tensors, None), None)
        if own.rank == 0:
            tidy(place, key)  # all ranks have used the note

    def _tensors(self) -> Any:
        assert self._buffer is not None
        return self._buffer.tensors

    def _serve_one(self) -> bool:
        joint = self._joint
        assert joint is not None
        with joint.errors_by_side():
            request = joint.request(None, None)
            if request.kind == LEAVE:
                return False
            self._answer(joint, request)
        return True

    def _answer(self, joint: Joint, request: Request) -> None:
        deadline = time.monotonic() + request.milliseconds / 1000

        def left() -> float:
            return max(0.0, deadline - time.monotonic()) + 2 * SLACK_S

        while True:
            # Read first: a version committed between the two lines is not reported as gone
            newest = self._versions.newest
            held = self._versions.pin_all(self)
            changed = {version: self._versions.changed_bytes(buffer, request.since) for version, buffer in held.items()}
            row = answer_row(newest, self._versions.total_bytes, time.monotonic() >= deadline, changed)
            choice = choose(joint.answer(row, left()), request)
            self._buffer = held.get(choice.version)
            self._versions.release(self, keep=self._buffer)
            if choice.verdict in ("late", "gone"):
                return
            if choice.verdict == "take":
                break
            self._versions.wait_for_commit(min(0.05, max(0.002, deadline - time.monotonic())))
        buffer = self._buffer
        assert buffer is not None
        if choice.whole:
            assert joint.full is not None
            joint.full.run(left()).wait()
        elif choice.moves:
            joint.compile_changed(functools.partial(self._changed_rows, buffer, request.since), left()).run(
                left()).wait()
        joint.done(buffer.content, left())
        self._buffer = None
        self._versions.release(self)

    def _changed_rows(self, buffer: Buffer, since: int, name: str) -> list[tuple[int, int]]:
        return self._versions.changed_rows(buffer, name, since)
