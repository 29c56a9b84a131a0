"""The hub of one group on this rank: the queues that this rank holds, and the links to ranks that use these queues or
hold queues that this rank uses.

A link is a group of two ranks, made when a user first needs the link. So the traffic of queues is separate from the
user's group and its order, a dead rank breaks only its own links, and a rank without queues takes part in nothing. A
user sends a *connection request*: the user writes a key for the holder into the group's store, and both make the link.
A holder looks for the next request often at first, then five times per second, as the rest of shardwire waits for keys.

The entries lie in C++ (backend/queues): requests of users are served there, without Python's lock. The thread of
`_run_notices` calls Python when a call or a link is over in C++.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import traceback
import uuid
import weakref
from contextlib import suppress
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
from .use_link import UseLink

# Timeout of a link's operations: a getter may wait for days. Calls have their own timeouts.
_FOREVER = timedelta(days=3650)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.2
_JOIN_S = 5.0
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
        self._revoked = ""  # the notice of the rank that revoked the group, when all links were notified
        self.rank, self.size = _C.rank(backend), _C.size(backend)
        self._job_ranks = _C.global_ranks(backend)
        self.label = _C.group_name(backend)
        # The longest silence of a holder before the holder counts as stopped
        self.silence = backend.options._timeout.total_seconds()
        self.store = _own_store(group, self.silence)
        self.holder = _C.QueueHolder(self.label)
        self.held: dict[str, Any] = {}
        self.unnamed = itertools.count()
        # key -> the arguments of the first Queue with that key
        self.about: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self._users: dict[int, UseLink] = {}
        self._meeting: dict[int, threading.Lock] = {}
        self._held_links: dict[int, Any] = {}  # number of the link's notice -> backend
        self._numbers = itertools.count(1)
        self._notices: dict[int, Callable[[], Any]] = {}
        self._stopped = threading.Event()
        self._requested_at = 0.0
        # Of calls of asyncio that wait for a link: the last one of each event loop, queue, and kind of call
        self.turns: dict[tuple[str, str, Any], Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    # ---- notices of C++

    def notice(self, action: Callable[[], Any]) -> int:
        """A number for the holder's notices: when the number comes, a thread of the hub calls `action`, once."""
        number = next(self._numbers)
        self._notices[number] = action
        self._start(self._run_notices)
        return number

    def later(self, action: Callable[[], Any]) -> None:
        """Calls `action` on a thread of the hub, where Ctrl-C cannot interrupt it."""
        self.holder.notify(self.notice(action))

    def _run_notices(self) -> None:
        while (number := self.holder.next_notice()) is not None:
            try:
                self._notices.pop(number)()
            except Exception:  # a bug of shardwire; the other notices go on
                sys.stderr.write(f"shardwire: a queue of group {self.label!r} failed:\n{traceback.format_exc()}")

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
        if self._revoked:
            raise self.revoked_error()

    # ---- the group was revoked

    @property
    def revoked(self) -> str:
        """The notice of the rank that revoked the group."""
        return self._revoked or self.holder.notice()

    def revoked_error(self) -> AbortedError:
        return AbortedError(f"the queues of group {self.label!r} were ended on rank {self.rank}: {self.revoked}")

    def _watch_group(self) -> None:
        """Looks for a revocation of the group: nothing of a queue goes over the group's own links."""
        while not self._stopped.wait(_LONGEST_PAUSE) and not self._revoked:
            group = self._group()
            if group is None:
                return
            try:
                notice = self.holder.notice() or _C.revocation(resolve_backend(group))
            except ShardwireError:  # the group was shut down
                return
            if notice:
                self.later(partial(self.revoke, notice))
            del group

    def revoke(self, notice: str) -> None:
        """Ends all waits in the queues of this rank; other ranks learn the notice by the links of the queues, too."""
        if self._revoked:
            return
        self.holder.revoke(notice)
        self._revoked = notice
        for link in list(self._users.values()):  # another thread may add a link meanwhile
            link.revoke()

    # ---- holding

    def hold(self, key: str, about: list[Any], capacity: int | None, survives: bool) -> Any:
        """This rank's part of a queue."""
        self._requested_at = time.monotonic()
        held = self.holder.hold(key.encode("utf-8", "surrogatepass"), json.dumps(about), capacity or 0, survives)
        self.held[key] = held
        self._start(self._watch_group)
        if self.size > 1:
            self._start(self._listen)
        return held

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
        number = self.notice(lambda: self._end_link(number))
        self._held_links[number] = backend
        self.holder.add_link(backend, user, number)

    def _end_link(self, number: int) -> None:
        # In a thread: shutdown may wait for other ranks
        threading.Thread(target=self._held_links.pop(number).shutdown, name="shardwire-queue-end", daemon=True).start()

    def _make_link(self, holder: int, request: int, user: int, end: int, limit: float) -> Any:
        store = dist.PrefixStore(f"{holder}/link/{request}/", self.store)
        backend = _C.create_backend(store, end, 2, timedelta(seconds=limit),
                                    f"{self.label}: queues of rank {holder}, used by rank {user}",
                                    [self._job_ranks[holder], self._job_ranks[user]], outlives_others=True)
        backend.set_timeout(_FOREVER)
        return backend

    # ---- using

    def link_to(self, holder: int, deadline: float | None) -> UseLink:
        """The link to the rank that holds a queue; made when there is none, or the last link broke."""
        link = self._users.get(holder)
        if link is not None and link.broken is None:
            return link
        self.check_process()
        self._start(self._watch_group)
        if link is not None and link.peer_gone and link.broken is not None:
            raise link.why_broken()
        with self._lock:
            meeting = self._meeting.setdefault(holder, threading.Lock())
        limit = self.silence if deadline is None else max(min(self.silence, deadline - time.monotonic()), 0.001)
        if not meeting.acquire(timeout=limit):
            raise TimeoutError(self._unmet(holder, limit))
        try:
            link = self._users.get(holder)
            if link is None or link.broken is not None:
                link = self._users[holder] = UseLink(self, self._request_link(holder, limit), holder)
            try:
                self.check_process()
            except ShardwireError:
                self._end_late(link)
                raise
            return link
        finally:
            meeting.release()

    def _end_late(self, link: UseLink) -> None:
        """Ends a link that may have been stored after stop() or revoke() had read the links."""
        if not self._stopped.is_set():
            link.revoke()
            return
        link.leave()
        with suppress(Exception):  # the backend has ended already
            link.backend.shutdown()

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

    def stop(self) -> None:
        """Ends all links of this rank. Idempotent."""
        if self._stopped.is_set() or self.pid != os.getpid():
            return
        self._stopped.set()
        self.holder.stop()
        for user in list(self._users.values()):  # another thread may add a link meanwhile
            user.leave()
        for backend in [link.backend for link in list(self._users.values())] + list(self._held_links.values()):
            with suppress(Exception):  # the backend failed before, and has ended all the same
                backend.shutdown()
        # A thread that comes back from C++ when the interpreter has ended would end the process
        notices = self._threads.get(self._run_notices.__name__)
        if notices is not None and notices is not threading.current_thread():
            notices.join(_JOIN_S)


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
