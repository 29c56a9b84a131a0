"""publish: offers a job's weights, version by version, to any subscriber, without disturbing the job.

The trainer's thread only copies (``commit``). Each rank also has a thread that looks for subscribers in the store, and
one thread for each subscription. The latter runs this rank's half of the subscription's fetches, in a separate group
per subscription.
"""

from __future__ import annotations

import json
import operator
import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from typing import Any

import torch.distributed as dist

from .. import _C
from ..groups.timeouts import as_timeout
from ..process.ending import close_at_exit
from ..compiler.future import Seconds, as_seconds
from ..compiler.layout import kind_of
from ..process.log import log
from ..errors import AbortedError, MismatchError, SystemFailure
from ..compiler.agree import Attempt, Meeting
from .descriptions import collect, describe
from .holdings import Holdings
from .finding import MAX_RANKS, closed_key
from .meeting_place import Address, Place, signed, verified
from .problems import Problems
from .serving import Serving
from .versions import MAX_BUFFERS, Versions

# A note without a value for so long is never looked at again
_EMPTY_S = 60.0
_BLOCK_BYTES = 64 << 10
_publications: weakref.WeakSet[Publication] = weakref.WeakSet()


def as_version(version: Any, hint: str) -> int:
    """A version as an int, also of numpy's integer types, since steps often are numpy's. TypeError for other types."""
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise TypeError(f"version is {kind_of(version)}; {hint}")
    return operator.index(version)


def own_group(group: Any, timeout: Seconds) -> Any:
    """The caller's group; without a group and without a default group, a group of this process alone."""
    if group is None and not dist.is_initialized():
        return _C.create_backend(dist.HashStore(), 0, 1, as_timeout(as_seconds(timeout)), "alone")
    return group


def publish(store: Any, name: str, state: Any, group: Any = None, *, buffers: int = 2, changes: bool = False,
            patience: float = 10.0, timeout: Seconds = None) -> Publication:
    """Offers ``state`` to other jobs as ``name``; subscribers get the copies that ``commit`` takes. See
    docs/publish.md.

    Collective: every rank of ``group`` (None: the default group, or this process alone where there is none) calls.

    store: where the jobs meet: "tcp://HOST:PORT" (this job's rank 0 serves the store where HOST is its host and no
        server runs yet), "file:///FOLDER" visible to all hosts, or a store of torch.distributed.
    state: a source as in ``sync``: a module, a state dict, a dict of DTensors or (Layout, local tensor). Names, shapes
        and dtypes must not change.
    buffers: copies of the state that this rank holds in the shared heap, 1 to 4. With one buffer, readers wait while a
        commit copies.
    changes: note the blocks that each commit changes, so that subscribers can fetch only those blocks. A commit then
        also reads the version before.
    patience: seconds that a commit waits for a subscriber that still reads the oldest version; then the subscriber gets
        an error.
    timeout: seconds to wait for ranks that do not call; then TimeoutError.

    **Replicas are not compared.** Ranks that hold one name with different values give the subscribers a mixture of the
    values of all ranks. To publish rank 0's values only, give None as ``state`` on the other ranks.

    An earlier publisher of the same name ends: its commits are errors, and its subscribers get one error and find the
    new publisher.
    """
    meeting = Meeting(own_group(group, timeout), "publish", None)
    blobs = [b"", b"", b""]
    parts: list[Any] = []
    with Attempt() as attempt:
        meeting.seconds = as_seconds(timeout)
        if isinstance(buffers, bool) or not isinstance(buffers, int) or not 1 <= buffers <= MAX_BUFFERS:
            raise ValueError(f"buffers is {kind_of(buffers)}; give 1 to {MAX_BUFFERS}")
        waits = as_seconds(patience, "patience") or 0.0
        address = Address(store, name)
        holdings = Holdings(state, "source", meeting.global_rank, meeting.ranks)
        blobs = [describe(holdings, lambda name: name),
                 json.dumps([address.text, name, buffers, bool(changes)]).encode(),
                 json.dumps([secrets.token_hex(8), f"pid {os.getpid()} on {socket.gethostname()}"]).encode()]
        parts = [address, holdings, waits]
    everyone = meeting.exchange(blobs, attempt.error)
    for rank, given in enumerate(everyone):
        if given[1] != everyone[0][1]:
            raise MismatchError(f"ranks 0 and {rank} publish differently: store, name, buffers, changes are "
                                f"{everyone[0][1].decode()} and {given[1].decode()}")
    problems = Problems()
    if not collect([given[0] for given in everyone], "source", problems):
        raise ValueError("publish: no rank has a state with any weights")
    problems.raise_any("publish")
    publication = None
    try:
        with meeting.together():
            address, holdings, waits = parts
            versions = Versions(holdings, buffers, _BLOCK_BYTES if changes else None)
            publication = Publication(meeting, address, holdings, versions, blobs[0],
                                      [json.loads(given[2]) for given in everyone], waits)
        with meeting.together():
            if meeting.rank == 0 and publication is not None:
                publication._announce()  # now that all ranks look for subscribers
    except BaseException:
        if publication is not None:
            publication.close()
        raise
    assert publication is not None
    return publication


class Publication:
    """The result of :func:`publish`. Use ``commit`` and ``close`` on the trainer's thread; ``with publish(...) as
    publication:`` closes the publication at the end of the block."""

    def __init__(self, meeting: Meeting, address: Address, holdings: Holdings, versions: Versions, description: bytes,
                 who: list[Any], patience: float) -> None:
        self.name = address.name
        self.rank, self.size = meeting.rank, len(meeting.ranks)
        self._layout_rank = meeting.global_rank
        self._address, self._holdings, self._versions, self._description = address, holdings, versions, description
        self._id = who[0][0]
        self._who = [each[1] for each in who]
        self._patience = patience
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._servings: dict[str, Serving] = {}
        self._closing = threading.Event()
        self._over = ""  # why no subscriber is served any more
        self._announced = False  # this publisher's record is there, or was seen: a different record is newer
        self._server = address.serve() if self.rank == 0 else None
        # Of subscribers that are or were served, as long as their notes are there.
        self._nonces: set[str] = set()
        self._ended: deque[tuple[str, str]] = deque()  # nonces and notes of subscribers that left since the last look
        self._place: Place = address.open(10.0) if self.rank == 0 else _opened(address)
        _publications.add(self)
        self._watcher = threading.Thread(target=self._watch, daemon=True, name=f"shardwire-publish-{self.name}")
        self._watcher.start()

    def commit(self, version: int) -> None:
        """Makes the present state ``version``; subscribers may fetch the version once every rank has committed it.

        Each rank copies its part into a buffer and returns; then the state may be written again. Every rank commits the
        same versions in the same order, and each version is greater than the one before. A commit waits for a reader
        only when the reader still reads the oldest version: see ``patience``.
        """
        version = as_version(version, "give an int")
        if not self._versions.newest < version < 1 << 62:
            raise ValueError(f"version is {version}; give one greater than {self._versions.newest} and below 2**62")
        if os.getpid() != self._pid:
            raise AbortedError(f"this process is a child of the publisher of {self.name!r}; it cannot commit")
        if self._over:
            raise AbortedError(f"the publication {self.name!r} is over: {self._over}")
        self._versions.write(version, self._patience)

    @property
    def subscribers(self) -> int:
        """The number of subscriptions served by this rank now."""
        with self._lock:
            return len(self._servings)

    def close(self) -> None:
        """Ends the publication on this rank: subscribers get an error, or find the next publisher of this name. Called
        at the end of the program as well."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        servings = self._stop("the publisher closed")
        self._watcher.join(5.0)
        for serving in servings:
            serving.join(5.0)
        if self.rank == 0:
            try:
                self._sign_off()
            except Exception:
                pass  # the store is gone: no subscriber finds this publisher there
        if self._server is not None:
            self._server.close()

    def _stop(self, reason: str) -> list[Serving]:
        """Ends the service of all subscribers."""
        with self._lock:
            self._over = self._over or reason
            servings = list(self._servings.values())
        for serving in servings:
            serving.send_away(reason)
        return servings

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return (f"<shardwire.Publication {self.name!r}, rank {self.rank} of {self.size}, newest version "
                f"{self._versions.newest}>")

    # ---- the watching thread

    def _announce(self) -> None:
        self._place.put("publisher", signed("publisher", {"id": self._id, "size": self.size, "who": self._who}))
        self._announced = True

    def _sign_off(self) -> None:
        """Writes a separate record. A newer publisher may replace the record of the name at any moment, also between a
        check and a write here, and the write would end the newer publisher."""
        if self._announced:
            self._place.put(closed_key(self._id), signed("closed", {"id": self._id}))

    def _watch(self) -> None:
        place = None
        seen = _SeenNotes(self._id)
        waiting: dict[str, tuple[dict[str, Any], float]] = {}
        trouble = False
        while not self._closing.wait(1.0 if trouble else 0.0):
            try:
                if place is None:
                    if trouble and self.rank == 0:
                        self._return_to_store()
                    place = self._address.open(5.0)
                if self._is_replaced(place):
                    if self.rank == 0:
                        place.put(f"{self._id}.over", b"over")
                    log("warn", f"publish {self.name!r}: another publisher took this name; this one is over")
                    self._stop("another publisher took its name")
                    return
                self._look(place, seen, waiting)
                trouble = False
                place.rest(0.25)
            except Exception as error:
                if not trouble and not self._closing.is_set():
                    log("warn", f"publish {self.name!r}: {error}; new subscribers wait until the error is over, "
                                "present subscribers are served")
                trouble, place = True, None
                seen = _SeenNotes(self._id)

    def _return_to_store(self) -> None:
        """Serves the store again: the store may have ended with another process, and lost this publisher's record."""
        self._server = self._address.serve() or self._server
        self._place = self._address.open(5.0)
        if self._place.peek("publisher") is None:
            self._announce()

    def _is_replaced(self, place: Place) -> bool:
        """Whether another publisher's record is newer: the record was read after this publisher's record was written.
        Only rank 0, the writer, knows this at once: on other ranks a folder over NFS may show an older record for a
        while. Rank 0 notifies a rank that never sees this publisher's record.
        """
        # Read before peek: peek may end before this publisher's record is there
        announced = self._announced
        data = place.peek("publisher")
        if data is None:
            return False
        try:
            is_ours = verified("publisher", data, "the publisher's record")["id"] == self._id
        except (MismatchError, ValueError, KeyError):
            return False  # a foreign job's: this job's subscribers reject the record too
        if is_ours:
            self._announced = True
            return False
        return announced or self.rank > 0 and place.peek(f"{self._id}.over") is not None

    def _look(self, place: Place, seen: _SeenNotes, waiting: dict[str, tuple[dict[str, Any], float]]) -> None:
        while self._ended:
            nonce, note = self._ended.popleft()
            if place.peek(f"{self._id}/{note}") is None:
                self._nonces.discard(nonce)
        for note, data in seen.read_new(place):
            key = f"{self._id}/{note}"
            try:
                ask = verified("subscriber", data, "a subscriber's note")
                size, seconds, nonce = ask["size"], ask["seconds"], ask["nonce"]
                if (ask["id"] != self._id or not isinstance(size, int) or not 0 < size < MAX_RANKS
                        or not 0 <= seconds < 1e12):
                    raise ValueError("a subscriber's note is of another form")
                if nonce in self._nonces:
                    # Served already: the store was away, and all notes are read again
                    continue
            except Exception as error:
                place.put(f"{key}.answer.{self.rank}", json.dumps(["no", str(error)]).encode())
                log("warn" if self.rank == 0 else "info", f"publish {self.name!r}: a subscriber was refused: {error}")
                continue
            waiting[note] = (ask, time.monotonic() + min(seconds + 1.0, 3600.0))
            place.put(f"{key}.answer.{self.rank}", json.dumps(["yes", ""]).encode())
        for note, (ask, until) in list(waiting.items()):
            if place.peek(f"{self._id}/{note}.go") is not None:
                del waiting[note]
                self._nonces.add(ask["nonce"])
                self._serve(note, ask)
            elif time.monotonic() > until:
                del waiting[note]

    def _serve(self, note: str, ask: dict[str, Any]) -> None:
        serving = Serving(self, note, ask)
        with self._lock:
            if self._over:
                return
            self._servings[ask["nonce"]] = serving
        serving.start()

    def _forget(self, nonce: str, note: str) -> None:
        with self._lock:
            self._servings.pop(nonce, None)
        self._ended.append((nonce, note))


class _SeenNotes:
    """The notes of a box that need no further look: of numbered notes the numbers up to ``_before``, otherwise as many
    names as are still there."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._before = 0
        self._names: set[str] = set()
        self._empty: dict[str, float] = {}  # note -> since when it has no value

    def read_new(self, place: Place) -> list[tuple[str, bytes]]:
        """The notes with a value that no call has returned before."""
        listed = place.notes(self._box, self._before)
        self._names.intersection_update(listed)
        self._empty = {note: since for note, since in self._empty.items() if note in listed}
        new = []
        for note in listed:
            data = None if note in self._names else place.peek(f"{self._box}/{note}")
            if data is not None:
                new.append((note, data))
            # The note was removed, or the writer was killed between two writes; or the writer still writes.
            elif time.monotonic() - self._empty.setdefault(note, time.monotonic()) < _EMPTY_S:
                continue
            self._names.add(note)
        while str(self._before + 1) in self._names:
            self._before += 1
            self._names.remove(str(self._before))
        return new


def _opened(address: Address) -> Place:
    """Opens the place on a rank other than the store's server, which may start a moment later."""
    until = time.monotonic() + 10.0
    while True:
        try:
            return address.open(5.0)
        except SystemFailure:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _close_all() -> None:
    for publication in list(_publications):
        publication.close()


close_at_exit(_close_all)
