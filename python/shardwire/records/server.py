"""The server of a small store of records: for jobs that meet by ``tcp://``, where rank 0 of the publisher runs the
server, and for processes that survive others (survive/process_handles.py). All others are clients (``client.py``).

A connection begins with the server's banner, which contains a fresh number. The caller's first frame proves the job's
token with this number; before the proof the server answers nothing. Then frames go both ways: 4 bytes of length, and
JSON; bytes are written as latin-1. The server keeps only the records of callers.

One thread serves all callers. A caller without a proof costs one descriptor for a while, and does not affect other
callers: only a few callers may be silent at a time, and all callers together have a share of the process's descriptors,
so the job can always open its own files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import secrets
import selectors
import socket
import threading
import time
import weakref
from typing import Any

from ..process.log import log
from .job_token import TOKEN, is_proof

BANNER = b"shardwire.records 2\n"
NONCE_BYTES = 32  # in the banner, as hexadecimal digits
MAX_FRAME = 1 << 20
_MAX_FIRST_FRAME = 1 << 10  # of a caller without a proof
# Limits against endless callers
_MAX_RECORDS, _MAX_BYTES = 1 << 20, 256 << 20
_LONGEST_REST_S = 0.25
# The same values as in the links' listener (backend/fabric/link_listener.h and .cc).
_MAX_SILENT, _LEAST_STAY_S, _PROVE_WITHIN_S = 128, 0.5, 10.0
# The pause after the system had no descriptor for a caller
_LOOK_AGAIN_S = 0.1
_servers: weakref.WeakSet[RecordServer] = weakref.WeakSet()


class _Caller:
    """One connection. resting: the last count seen by the caller, and the end of the wait for another count."""

    __slots__ = ("socket", "since", "nonce", "is_proved", "inbox", "outbox", "resting")

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.since, self.nonce, self.is_proved = (connection, time.monotonic(),
                                                               secrets.token_hex(NONCE_BYTES // 2), False)
        self.inbox, self.outbox = bytearray(), bytearray(BANNER + self.nonce.encode())
        self.resting: tuple[int, float] | None = None

    def pending(self) -> Any:
        """The next complete request; None where there is none. ValueError for a malformed request."""
        if self.resting is not None or len(self.inbox) < 4:
            return None
        size = int.from_bytes(self.inbox[:4], "big")
        if size > (MAX_FRAME if self.is_proved else _MAX_FIRST_FRAME):
            raise ValueError(f"a frame of {size} bytes")
        if len(self.inbox) < 4 + size:
            return None
        request = json.loads(self.inbox[4:4 + size])
        del self.inbox[:4 + size]
        if (not isinstance(request, list) or not request
                or not all(isinstance(word, (str, int, float)) for word in request)):
            raise ValueError("no request of ours")
        return request

    def answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.outbox += len(data).to_bytes(4, "big") + data


class RecordServer:
    """Serves on a separate thread until ``close`` or the end of the process. OSError for an unavailable address."""

    def __init__(self, host: str, port: int) -> None:
        self._listener = listen_for(host, port)
        self._listener.setblocking(False)
        self._records: dict[str, str] = {}
        self._count, self._bytes = 0, 0
        self._callers: dict[int, _Caller] = {}  # by descriptor
        self._closing = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_full = False  # warned once
        self._listens_from: float | None = None  # set while no caller is accepted
        self._wakes, self._is_woken = socket.socketpair()
        self._selector.register(self._is_woken, selectors.EVENT_READ)
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, daemon=True, name="shardwire-records")
        self._thread.start()

    @property
    def address(self) -> str:
        """The address of the listener, for messages."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._wakes.send(b"x")
        self._thread.join(5.0)

    def close_sockets(self) -> None:
        """Closes all sockets: a forked child must not keep the address after the parent's death."""
        for each in [self._listener, self._wakes, self._is_woken,
                     *(caller.socket for caller in list(self._callers.values()))]:
            each.close()
        self._selector.close()

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, events in self._selector.select(self._seconds_to_wait()):
                    if key.fileobj is self._listener:
                        self._let_in()
                    elif key.data is not None:
                        self._step(key.data, self._read if events & selectors.EVENT_READ else lambda caller: None)
                self._look_at_clock()
        finally:
            self.close_sockets()

    def _seconds_to_wait(self) -> float | None:
        times = [caller.resting[1] for caller in self._callers.values() if caller.resting is not None]
        times += [caller.since + _PROVE_WITHIN_S for caller in self._callers.values() if not caller.is_proved]
        if self._listens_from is not None:
            times.append(self._listens_from)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for caller in list(self._callers.values()):
            if caller.resting is not None and (self._count != caller.resting[0] or now >= caller.resting[1]):
                caller.resting = None
                self._step(caller, lambda caller: caller.answer(self._count))
            elif not caller.is_proved and now >= caller.since + _PROVE_WITHIN_S:
                self._drop(caller)
        if self._listens_from is not None and now >= self._listens_from:
            self._let_in()

    def _let_in(self) -> None:
        """Accepts callers, as far as there is room. Without room for another silent caller, drops silent callers after
        a time in which a rank would have proved the token."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        allowed = 1 << 20 if allowed == resource.RLIM_INFINITY else allowed
        most_silent, most = min(_MAX_SILENT, max(1, allowed // 8)), max(2, allowed // 2)
        silent = [caller for caller in self._callers.values() if not caller.is_proved]
        now = time.monotonic()
        if len(silent) >= most_silent or len(self._callers) >= most:
            for caller in [caller for caller in silent if now >= caller.since + _LEAST_STAY_S]:
                silent.remove(caller)
                self._drop(caller)
        if len(self._callers) - len(silent) >= most and not self._is_full:
            self._is_full = True
            log("warn", f"the records at {self.address} have {most} callers, half of this process's {allowed} "
                        "descriptors; others wait until some leave: raise ulimit -n")
        while len(silent) < most_silent and len(self._callers) < most:
            try:
                silent.append(self._begin(self._listener.accept()[0]))
            except BlockingIOError:
                self._listen(None)
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC):
                    self._listen(now + _LOOK_AGAIN_S)
                    return
                # Otherwise this caller is gone.
        self._listen(min((caller.since + _LEAST_STAY_S for caller in silent), default=now + _LEAST_STAY_S))

    def _listen(self, again: float | None) -> None:
        """again: the time to accept the next caller; None: when a caller connects."""
        if (again is None) != (self._listens_from is None):
            if again is None:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)
        self._listens_from = again

    def _begin(self, connection: socket.socket) -> _Caller:
        caller = _Caller(connection)
        connection.setblocking(False)
        try:
            self._selector.register(connection, selectors.EVENT_READ, caller)
        except BaseException:
            connection.close()
            raise
        self._callers[connection.fileno()] = caller
        self._step(caller, lambda caller: caller.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
        return caller

    def _drop(self, caller: _Caller) -> None:
        if self._callers.pop(caller.socket.fileno(), None) is not None:
            self._selector.unregister(caller.socket)
            caller.socket.close()

    def _step(self, caller: _Caller, step: Any) -> None:
        """Runs a step for a caller, then takes the caller's complete requests, and sends as many answers as the socket
        accepts."""
        if caller.socket.fileno() not in self._callers:
            return
        try:
            step(caller)
            while (request := caller.pending()) is not None:
                self._take(caller, request)
            with contextlib.suppress(BlockingIOError):
                while caller.outbox:
                    del caller.outbox[:caller.socket.send(caller.outbox)]
            if len(caller.outbox) > 4 * MAX_FRAME:
                raise ValueError("it asks, and does not read the answers")
            self._selector.modify(caller.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.outbox else 0),
                                  caller)
        # The caller is gone, or no client of shardwire
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            self._drop(caller)

    def _read(self, caller: _Caller) -> None:
        with contextlib.suppress(BlockingIOError):
            part = caller.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the other end hung up")
            caller.inbox += part
        if len(caller.inbox) > 4 + MAX_FRAME + (1 << 16):
            raise ValueError("more requests than are answered")

    def _take(self, caller: _Caller, request: list[Any]) -> None:
        if not caller.is_proved:
            if len(request) != 2 or request[0] != "prove":
                raise ValueError("no proof")
            caller.is_proved = is_proof(str(request[1]), "caller", caller.nonce)
            caller.answer("welcome" if caller.is_proved else "token" if os.environ.get(TOKEN) else "no token")
        # arguments: the last count seen by the client, seconds
        elif request[0] == "rest":
            seconds = float(request[2])
            if not 0 <= seconds:
                raise ValueError("no time")
            caller.resting = int(request[1]), time.monotonic() + min(seconds, _LONGEST_REST_S)
        else:
            caller.answer(self._answer(*request))

    def _answer(self, kind: str, key: str = "", value: Any = "") -> Any:
        if kind == "peek" or kind == "first" and key in self._records:  # "first" keeps an earlier value
            return self._records.get(key)
        if kind == "add":
            value = str(int(self._records.get(key, "0")) + int(value))
        if kind in ("add", "put", "first"):
            self._bytes += len(key) + len(str(value)) - (len(key) + len(self._records[key]) if key in self._records
                                                         else 0)
            self._records[key] = str(value)
            if len(self._records) > _MAX_RECORDS or self._bytes > _MAX_BYTES:
                self._bytes -= len(key) + len(self._records.pop(key))
                raise ValueError("the store is full")
        # The key, and longer keys that begin with the key and a "." or "/"
        elif kind == "remove":
            for each in [each for each in self._records if each == key or each.startswith((f"{key}.", f"{key}/"))]:
                self._bytes -= len(each) + len(self._records.pop(each))
        else:
            raise ValueError(f"no request of ours: {kind!r}")
        self._count += 1
        return value


def listen_for(host: str, port: int) -> socket.socket:
    """A listening socket for callers of ``host``, if ``host`` is this host. Like torch's TCPStore, the socket listens
    on all addresses, since a host's own name is a loopback address in many an /etc/hosts; on loopback alone where
    ``host`` is a loopback address. OSError for another host's address, and for a used address.
    """
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if host == "localhost" or host == place[0] and (host.startswith("127.") or host == "::1"):
        return socket.create_server((host, port), family=family, backlog=1024)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # OSError for an address of another host
        probe.bind((place[0], 0, *place[2:]))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)


def _close_in_child() -> None:
    for server in list(_servers):
        server.close_sockets()


os.register_at_fork(after_in_child=_close_in_child)
