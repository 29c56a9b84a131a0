"""publish: a job's weights, version by version, for whoever asks, without the job taking notice.

The trainer's thread only copies (``commit``). Beside it each rank has a thread that looks for subscribers in the store, and one for each
subscription, which runs this rank's half of its fetches in a group of that subscription's own.
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
from typing import Any

import torch.distributed as dist

from .. import _C
from ..groups.create import as_timeout
from ..process.ending import close_at_exit
from ..compiler.future import Seconds, as_seconds
from ..compiler.layout import kind_of
from ..process.log import log
from ..errors import AbortedError, MismatchError, SystemFailure
from ..compiler.agree import Meeting
from .descriptions import collect, describe
from .holdings import Holdings
from .finding import closed_key
from .meeting_place import Address, Place, signed, verified
from .problems import Problems
from .serving import Serving
from .versions import MAX_BUFFERS, Versions

_MAX_RANKS = 1 << 20
_BLOCK_BYTES = 64 << 10
_publications: weakref.WeakSet[Publication] = weakref.WeakSet()


def as_version(version: Any, hint: str) -> int:
    """A version as an int, numpy's numbers too, since steps often are numpy's. TypeError for what is none."""
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise TypeError(f"version is {kind_of(version)}; {hint}")
    return operator.index(version)


def own_group(group: Any, timeout: Seconds) -> Any:
    """The caller's group; without one and without a default group this process alone."""
    if group is None and not dist.is_initialized():
        return _C.create_backend(dist.HashStore(), 0, 1, as_timeout(as_seconds(timeout)), "alone")
    return group


def publish(store: Any, name: str, state: Any, group: Any = None, *, buffers: int = 2, changes: bool = False, patience: float = 10.0,
            timeout: Seconds = None) -> Publication:
    """Offers ``state`` to other jobs as ``name``; they get what ``commit`` takes of it. See docs/publish.md.

    Collective: every rank of ``group`` (None: the default group, or this process alone where there is none) calls it.

    store: where the jobs meet: "tcp://HOST:PORT" (this job's rank 0 serves it where HOST is its host and nobody does yet), "file:///FOLDER" that all
        hosts see, or a store of torch.distributed.
    state: what ``sync`` takes as a source: a module, a state dict, a dict of DTensors or (Layout, local tensor). Its names, shapes and dtypes stay.
    buffers: copies of the state that this rank holds in the shared heap, 1 to 4. With one, readers wait while a commit copies.
    changes: note which blocks each commit changes, so that subscribers can fetch only those. A commit then reads the version before as well.
    patience: seconds that a commit waits for a subscriber that still reads the oldest version; then that subscriber gets an error.
    timeout: seconds until ranks that do not call are an error, here.

    A publisher that has the name already is over then: its commits are errors, and its subscribers get one error and find the new one.
    """
    meeting = Meeting(own_group(group, timeout), "publish", None)
    error: Exception | None = None
    blobs = [b"", b"", b""]
    parts: list[Any] = []
    try:
        meeting.seconds = as_seconds(timeout)
        if isinstance(buffers, bool) or not isinstance(buffers, int) or not 1 <= buffers <= MAX_BUFFERS:
            raise ValueError(f"buffers is {kind_of(buffers)}; give 1 to {MAX_BUFFERS}")
        waits = as_seconds(patience, "patience") or 0.0
        address = Address(store, name)
        holdings = Holdings(state, "source", meeting.global_rank, meeting.ranks)
        blobs = [describe(holdings, lambda name: name), json.dumps([address.text, name, buffers, bool(changes)]).encode(),
                 json.dumps([secrets.token_hex(8), f"pid {os.getpid()} on {socket.gethostname()}"]).encode()]
        parts = [address, holdings, waits]
    except Exception as failure:  # whatever it was: the others wait and must hear of it
        error = failure
    everyone = meeting.exchange(blobs, error)
    for rank, given in enumerate(everyone):
        if given[1] != everyone[0][1]:
            raise MismatchError(f"ranks 0 and {rank} publish differently: store, name, buffers, changes are {everyone[0][1].decode()} and {given[1].decode()}")
    problems = Problems()
    if not collect([given[0] for given in everyone], "source", problems):
        raise ValueError("publish: no rank has a state with any weights")
    problems.raise_any("publish")
    publication = None
    try:
        address, holdings, waits = parts
        versions = Versions(holdings, buffers, _BLOCK_BYTES if changes else None)
        publication = Publication(meeting, address, holdings, versions, blobs[0], [json.loads(given[2]) for given in everyone], waits)
    except Exception as failure:
        error = failure
    try:
        meeting.settle(error)
        try:
            if meeting.rank == 0 and publication is not None:
                publication._announce()  # now that all ranks look for subscribers
        except Exception as failure:
            error = failure
        meeting.settle(error)
    except BaseException:
        if publication is not None:
            publication.close()
        raise
    assert publication is not None
    return publication


class Publication:
    """What :func:`publish` returns. Of the trainer's thread: ``commit`` and ``close``; ``with publish(...) as publication:`` closes it at the end of the block."""

    def __init__(self, meeting: Meeting, address: Address, holdings: Holdings, versions: Versions, description: bytes, who: list[Any],
                 patience: float) -> None:
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
        self._over = ""          # why nobody is served any more
        self._announced = False  # our record is there, or was seen: another one is newer
        self._server = address.serve() if self.rank == 0 else None
        self._nonces: set[str] = set()
        self._place: Place = address.open(10.0) if self.rank == 0 else _opened(address)
        _publications.add(self)
        self._watcher = threading.Thread(target=self._watch, daemon=True, name=f"shardwire-publish-{self.name}")
        self._watcher.start()

    def commit(self, version: int) -> None:
        """Makes the state as it is now ``version``, which subscribers may fetch once every rank has committed it.

        Each rank copies its part into a buffer and returns; the state may be written again then. Every rank commits the same versions in the same order,
        and each is greater than the one before. Waits for no reader, unless one still reads the oldest version: see ``patience``.
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
        """How many subscriptions this rank serves now."""
        with self._lock:
            return len(self._servings)

    def close(self) -> None:
        """Ends the publication on this rank: subscribers get an error, or find the next publisher of this name. Happens at the end of the program as well."""
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
                pass  # the store is gone: nobody finds us there
        if self._server is not None:
            self._server.close()

    def _stop(self, reason: str) -> list[Serving]:
        """No subscriber is served any more."""
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
        return f"<shardwire.Publication {self.name!r}, rank {self.rank} of {self.size}, newest version {self._versions.newest}>"

    # ---- the watching thread

    def _announce(self) -> None:
        self._place.put("publisher", signed("publisher", {"id": self._id, "size": self.size, "who": self._who}))
        self._announced = True

    def _sign_off(self) -> None:
        """In a record of its own. The name's may become a newer one's at any moment, also between a look and a write, which would end that one."""
        if self._announced:
            self._place.put(closed_key(self._id), signed("closed", {"id": self._id}))

    def _watch(self) -> None:
        place = None
        seen: set[str] = set()
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
                    log("warn", f"publish {self.name!r}: {error}; new subscribers are not heard until it is back, those that are there are served")
                trouble, place = True, None
                seen.clear()

    def _return_to_store(self) -> None:
        """The store may have ended with another process, and our record with it."""
        self._server = self._address.serve() or self._server
        self._place = self._address.open(5.0)
        if self._place.peek("publisher") is None:
            self._announce()

    def _is_replaced(self, place: Place) -> bool:
        """Another one's record is newer than ours where it was read after ours was there. Only rank 0, which wrote ours, knows that at once: elsewhere a folder
        over NFS may show an older one for a while yet. A rank that never sees ours hears from rank 0.
        """
        announced = self._announced  # before the look, which may be over before ours is there
        data = place.peek("publisher")
        if data is None:
            return False
        try:
            is_ours = verified("publisher", data, "the publisher's record")["id"] == self._id
        except (MismatchError, ValueError, KeyError):
            return False  # a stranger's: our subscribers do not take it either
        if is_ours:
            self._announced = True
            return False
        return announced or self.rank > 0 and place.peek(f"{self._id}.over") is not None

    def _look(self, place: Place, seen: set[str], waiting: dict[str, tuple[dict[str, Any], float]]) -> None:
        for note in place.notes(self._id):
            key = f"{self._id}/{note}"
            if note in seen:
                continue
            data = place.peek(key)
            if data is None:
                continue  # killed between its two writes, or still writing
            seen.add(note)
            try:
                ask = verified("subscriber", data, "a subscriber's note")
                size, seconds, nonce = ask["size"], ask["seconds"], ask["nonce"]
                if ask["id"] != self._id or not isinstance(size, int) or not 0 < size < _MAX_RANKS or not 0 <= seconds < 1e12:
                    raise ValueError("a subscriber's note is of another form")
                if nonce in self._nonces:
                    continue  # served already: the store was away, and we read all its notes again
            except Exception as error:
                place.put(f"{key}.heard.{self.rank}", json.dumps(["no", str(error)]).encode())
                log("warn" if self.rank == 0 else "info", f"publish {self.name!r}: a subscriber was refused: {error}")
                continue
            waiting[note] = (ask, time.monotonic() + min(seconds + 1.0, 3600.0))
            place.put(f"{key}.heard.{self.rank}", json.dumps(["yes", ""]).encode())
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

    def _forget(self, nonce: str) -> None:
        with self._lock:
            self._servings.pop(nonce, None)


def _opened(address: Address) -> Place:
    """On another rank than the one that serves the store, which may come a moment later."""
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
