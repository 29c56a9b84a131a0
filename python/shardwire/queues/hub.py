"""The hub of one group on this rank: the queues that this rank holds, and the links to ranks that use these queues or
hold queues that this rank uses.

A link is a group of two ranks, made when a user first needs the link. So the traffic of queues is separate from the
user's group and its order, a dead rank breaks only its own links, and a rank without queues takes part in nothing. A
user sends a *connection request*: the user writes a key for the holder into the group's store, and both make the link.
A holder looks for the next request often at first, then five times per second, as the rest of shardwire waits for keys.

Changes of the queues on this rank run in `_pump`, in one thread at a time and never on the main thread, where Ctrl-C
could interrupt a change halfway. The thread is the one that brings a message (the progress thread's callbacks) or the
thread of a local caller; for the main thread, a thread of the hub.
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
import time
import traceback
import uuid
import weakref
from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any, Callable

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _C
from ..process.ending import close_at_exit
from ..groups.lookup import resolve_backend, store_of, table_by_group
from ..groups.mpi import tcp_store
from ..errors import AbortedError, ShardwireError, TimeoutError
from . import wire
from .entries import HeldQueue
from .held_link import HeldLink
from .use_link import UseLink

# Timeout of a link's operations: a getter may wait for days. Calls have their own timeouts.
_FOREVER = timedelta(days=3650)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.2
_DRIVE_LIMIT = timedelta(milliseconds=200)
_LOST_S = 1.0  # between two checks of the number of connection requests
_MEET_S = 60.0  # the longest attempt of a holder to meet a requesting user

_hubs: weakref.WeakKeyDictionary[Any, Hub] = table_by_group()
_hubs_lock = threading.Lock()


def hub_of(group: Any) -> tuple[Any, Hub]:
    """The group itself and its hub, made at the first call. `group`: as in compile_op, but not a name."""
    backend = resolve_backend(group)
    group = c10d._get_default_group() if group is None else group
    with _hubs_lock:
        hub = _hubs.get(group)
        if hub is None or hub.pid != os.getpid():
            hub = _hubs[group] = Hub(group, backend)
            weakref.finalize(group, hub.stop).atexit = False  # at exit stop_all runs earlier
        return group, hub


class Hub:
    def __init__(self, group: Any, backend: Any) -> None:
        self.pid = os.getpid()
        self._group = weakref.ref(group)
        self.revoked = ""  # the notice of the rank that revoked the group
        self.rank, self.size = _C.rank(backend), _C.size(backend)
        self.label = _C.group_name(backend)
        # The longest silence of a holder before the holder counts as stopped
        self.silence = backend.options._timeout.total_seconds()
        self.store = _own_store(group, self.silence)
        self.held: dict[str, HeldQueue] = {}
        self.held_by_number: list[HeldQueue] = []
        self.unnamed = itertools.count()
        # key -> the arguments of the first Queue with that key
        self.about: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self._users: dict[int, UseLink] = {}
        self._meeting: dict[int, threading.Lock] = {}
        self.held_links: set[HeldLink] = set()
        # Open requests that came before the queue was made on this rank
        self.openings: dict[str, list[Callable[[], None]]] = {}
        self._events: deque[Callable[[], Any]] = deque()
        self._pumping = threading.Lock()
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._to_drive: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._requested_at = 0.0
        # Of calls of asyncio that wait for a link: the last one of each event loop, queue, and kind of call
        self.turns: dict[tuple[str, str, Any], Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    # ---- one event at a time

    def post(self, event: Callable[[], Any]) -> None:
        """Runs `event` soon, perhaps within this call. From any thread."""
        self._events.append(event)
        if threading.get_ident() == threading.main_thread().ident:
            self._start(self._pump_for_main)
            self._woken.put(None)
        else:
            self._pump()

    def _pump(self) -> None:
        # The event of a thread that finds the pump busy is not lost: the pumping thread looks again after the release.
        while self._events and self._pumping.acquire(blocking=False):
            try:
                while self._events:
                    event = self._events.popleft()
                    try:
                        event()
                    except Exception:  # a bug of shardwire; the other events go on
                        sys.stderr.write(f"shardwire: a queue of group {self.label!r} "
                                         f"failed:\n{traceback.format_exc()}")
            finally:
                self._pumping.release()

    def _pump_for_main(self) -> None:
        while not self._stopped.is_set():
            self._woken.get()
            self._pump()

    def drive(self, work: Any) -> None:
        """Lets a thread of the hub wait for a long transfer: the wait drives the transfer."""
        self._start(self._drive)
        self._to_drive.put(work)

    def _drive(self) -> None:
        while not self._stopped.is_set():
            work = self._to_drive.get()
            try:
                if work is not None:
                    work.wait(_DRIVE_LIMIT)
            except Exception:
                # The work's callback gets the error; or the work waits for the peer, whose frames wake the progress
                # thread
                pass

    def _start(self, body: Callable[[], None]) -> None:
        name = body.__name__
        if name in self._threads:
            return
        with self._lock:
            if name in self._threads:
                return
            thread = self._threads[name] = threading.Thread(target=body, name=f"shardwire-queue{name}", daemon=True)
        thread.start()

    def check_process(self) -> None:
        if self.pid != os.getpid():
            raise ShardwireError(f"this process was forked from rank {self.rank} of group {self.label!r}, whose queues "
                                 "work there only; make a group and a Queue in this process")
        if self._stopped.is_set():
            raise ShardwireError(f"the queues of group {self.label!r} were ended on rank {self.rank}")
        if self.revoked:
            raise self.revoked_error()

    # ---- the group was revoked

    def revoked_error(self) -> AbortedError:
        return AbortedError(f"the queues of group {self.label!r} were ended on rank {self.rank}: {self.revoked}")

    def _watch_group(self) -> None:
        """Looks for a revocation of the group: nothing of a queue goes over the group's own links."""
        while not self._stopped.wait(_LONGEST_PAUSE) and not self.revoked:
            group = self._group()
            if group is None:
                return
            try:
                notice = _C.revocation(resolve_backend(group))
            except ShardwireError:  # the group was shut down
                return
            if notice:
                self.post(partial(self.revoke, notice))
            del group

    def revoke(self, notice: str) -> None:
        """Ends all waits in the queues of this rank; other ranks learn the notice by the links of the queues, too."""
        if self.revoked:
            return
        self.revoked = notice
        for held in self.held_by_number:
            held.revoke(notice)
        for link in self._users.values():
            link.revoke()
        for held_link in list(self.held_links):
            _C.revoke(held_link.backend, notice)

    # ---- holding

    def hold(self, key: str, about: list[Any], capacity: int | None, survives: bool) -> HeldQueue:
        """This rank's part of a queue."""
        with self._lock:
            held = self.held.get(key)
            if held is None:
                held = self.held[key] = HeldQueue(key, about, capacity, survives)
                self.held_by_number.append(held)
        self._requested_at = time.monotonic()
        self._start(self._watch_group)
        if self.size > 1:
            self._start(self._listen)

        def answer_openings() -> None:
            for answer in self.openings.pop(key, []):
                answer()
        self.post(answer_openings)
        return held

    def call(self, action: Callable[[], Any]) -> Any:
        """Returns the result of `action`, run as by post()."""
        done, result = threading.Event(), []

        def run() -> None:
            try:
                result.append(action())
            finally:
                done.set()
        self.post(run)
        done.wait()
        return result[0]

    def number_of(self, held: HeldQueue) -> int:
        return self.held_by_number.index(held)

    def _listen(self) -> None:
        """Waits for connection requests, in the order of their numbers. A user that is killed or interrupted after
        taking a number never writes the request. The number is passed over, and checked again for as long as a slow
        user may still wait for this rank."""
        request, doubtful, look_at = 1, 0, 0.0
        passed: dict[int, float] = {}  # number -> end of the checks for it
        while not self._stopped.is_set():
            try:
                if self._take_request(request):
                    request += 1
                    continue
                now = time.monotonic()
                if now >= look_at:
                    look_at = now + _LOST_S
                    passed = {number: until for number, until in passed.items()
                              if now < until and not self._take_request(number)}
                    is_taken = (_C.store_has(self.store, f"{self.rank}/requests")
                                and int(self.store.get(f"{self.rank}/requests")) >= request)
                    if is_taken and doubtful == request:  # unchanged since the previous check
                        passed[request] = now + self.silence
                        request += 1
                        continue
                    doubtful = request if is_taken else 0
            except Exception:
                # The store is gone, perhaps with rank 0: existing links go on
                return
            pause = (time.monotonic() - self._requested_at) / 10
            self._stopped.wait(min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE))

    def _take_request(self, request: int) -> bool:
        """Whether the request is there; then a thread meets the user."""
        if not _C.store_has(self.store, f"{self.rank}/request/{request}"):
            return False
        user = int(self.store.get(f"{self.rank}/request/{request}"))
        threading.Thread(target=self._meet_user, args=(request, user), name="shardwire-queue-meet", daemon=True).start()
        self._requested_at = time.monotonic()
        return True

    def _meet_user(self, request: int, user: int) -> None:
        try:
            self.store.set(f"{self.rank}/accepted/{request}", "1")
            backend = self._make_link(self.rank, request, user, wire.HOST, min(_MEET_S, self.silence))
        except Exception:
            return  # the user gave up or died; a live user requests again
        link = HeldLink(self, backend, user)
        self.post(link.start)

    def _make_link(self, holder: int, request: int, user: int, end: int, limit: float) -> Any:
        store = dist.PrefixStore(f"{holder}/link/{request}/", self.store)
        backend = _C.create_backend(store, end, 2, timedelta(seconds=limit),
                                    f"{self.label}: queues of rank {holder}, used by rank {user}")
        backend.set_timeout(_FOREVER)
        return backend

    # ---- using

    def link_to(self, holder: int, deadline: float | None) -> UseLink:
        """The link to the rank that holds a queue; made when there is none, or the last link broke."""
        self.check_process()
        self._start(self._watch_group)
        link = self._users.get(holder)
        if link is not None and link.broken is None:
            return link
        if link is not None and link.peer_gone and link.broken is not None:
            raise link.broken
        with self._lock:
            meeting = self._meeting.setdefault(holder, threading.Lock())
        limit = self.silence if deadline is None else max(min(self.silence, deadline - time.monotonic()), 0.001)
        if not meeting.acquire(timeout=limit):
            raise TimeoutError(self._unmet(holder, limit))
        try:
            link = self._users.get(holder)
            if link is None or link.broken is not None:
                link = self._users[holder] = UseLink(self, self._request_link(holder, limit), holder)
            self.check_process()
            return link
        finally:
            meeting.release()

    def link_if_made(self, holder: int) -> UseLink | None:
        link = self._users.get(holder)
        return link if link is not None and link.broken is None else None

    def _request_link(self, holder: int, limit: float) -> Any:
        begin = time.monotonic()
        request = int(self.store.add(f"{holder}/requests", 1))
        self.store.set(f"{holder}/request/{request}", str(self.rank))
        # Until the holder answers, this rank waits here, where a revocation ends the wait, and not for a link.
        while not _C.store_has(self.store, f"{holder}/accepted/{request}"):
            self.check_process()
            waited = time.monotonic() - begin
            if waited >= limit:
                raise TimeoutError(self._unmet(holder, limit))
            time.sleep(min(max(waited / 10, _SHORTEST_PAUSE), _LONGEST_PAUSE, limit - waited))
        try:
            return self._make_link(holder, request, self.rank, wire.USER, max(begin + limit - time.monotonic(), 0.001))
        except TimeoutError as error:
            raise TimeoutError(self._unmet(holder, limit)) from error

    def _unmet(self, holder: int, limit: float) -> str:
        return (f"rank {holder} of group {self.label!r}, which holds the queue, did not answer rank {self.rank} within "
                f"{limit:.3g} s: it has not made its Queue yet, or is stopped or gone")

    # ---- the end

    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Ends all links of this rank. Idempotent."""
        if self._stopped.is_set() or self.pid != os.getpid():
            return
        self._stopped.set()
        self._woken.put(None)
        self._to_drive.put(None)
        for user in self._users.values():
            user.leave()
        for backend in (
                [link.backend for link in self._users.values()] + [link.backend for link in list(self.held_links)]):
            try:
                _C.shutdown(backend)
            except Exception:
                # The backend failed before, and has ended all the same
                pass


def _own_store(group: Any, limit: float) -> Any:
    """The group's store under a separate name. A TCP store gets a separate connection: a connection serves one caller
    at a time, and the user's program may be waiting in the connection for a rank that waits for a queue."""
    shared = dist.PrefixStore("shardwire.queue", store_of(group))
    root = shared
    while isinstance(root, dist.PrefixStore):
        root = root.underlying_store
    if not isinstance(root, dist.TCPStore):
        return shared
    # The first rank's name, set in one step: no rank can die between two steps
    name = shared.compare_set("name", "", uuid.uuid4().hex).decode()
    own = tcp_store(root.host, root.port, None, False, timedelta(seconds=limit))
    return dist.PrefixStore(f"shardwire.queue.{name}", own)


def stop_all() -> None:
    """Runs at the end of the interpreter, before the interpreter stops its threads."""
    for hub in list(_hubs.values()):
        hub.stop()


close_at_exit(stop_all)
