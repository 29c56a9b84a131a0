"""A small store of records, for jobs that meet by ``tcp://``: rank 0 of the publisher serves it, the others ask.

Not torch's TCPStore: on torch 1.13 that one ends a client's process when its server dies in the middle of an exchange, and on all it waits for ever for
a server that is stopped. Here every answer has its time, and each error is an exception.

A connection begins with the server's banner. Then frames go both ways: 4 bytes of length, and JSON; bytes are written as latin-1. Nothing is kept
but what clients put. Records prove the job's token by themselves (``meeting_place``).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import weakref
from typing import Any

import torch.distributed as dist

_BANNER = b"shardwire.records 1\n"
_MAX_FRAME = 1 << 20
_MAX_RECORDS, _MAX_BYTES = 1 << 20, 256 << 20  # against strangers
_ANSWER_S = 5.0
_LONGEST_REST_S = 0.25
_servers: weakref.WeakSet[RecordServer] = weakref.WeakSet()


class RecordServer:
    """Serves on threads of its own until ``close`` or the end of the process. OSError where the address is not to be had."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self._records: dict[str, str] = {}
        self._changed = threading.Condition()
        self._count, self._bytes = 0, 0
        self._open: set[socket.socket] = set()
        _servers.add(self)
        threading.Thread(target=self._accept, daemon=True, name="shardwire-records").start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.close_sockets()

    def close_sockets(self) -> None:
        """All that a forked child needs to do, lest it keep the address when its parent has died."""
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="shardwire-records").start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_BANNER)
            while True:
                request = _receive(connection)
                if not isinstance(request, list) or not request or not all(isinstance(word, (str, int, float)) for word in request):
                    return
                _send(connection, self._answer(*request))
        except (OSError, ValueError, TypeError):
            pass  # gone, or no client of ours
        finally:
            self._open.discard(connection)
            connection.close()

    def _answer(self, kind: str, key: str = "", value: Any = "") -> Any:
        with self._changed:
            if kind == "peek":
                return self._records.get(key)
            if kind == "rest":  # key: what the client saw last, value: seconds
                self._changed.wait_for(lambda: self._count != int(key), min(float(value), _LONGEST_REST_S))
                return self._count
            if kind == "add":
                value = str(int(self._records.get(key, "0")) + int(value))
            if kind in ("add", "put"):
                self._bytes += len(key) + len(str(value)) - (len(key) + len(self._records[key]) if key in self._records else 0)
                self._records[key] = str(value)
                if len(self._records) > _MAX_RECORDS or self._bytes > _MAX_BYTES:
                    self._bytes -= len(key) + len(self._records.pop(key))
                    raise ValueError("the store is full")
            elif kind == "remove":  # and what has its name and more
                for each in [each for each in self._records if each == key or each.startswith((f"{key}.", f"{key}/"))]:
                    self._bytes -= len(each) + len(self._records.pop(each))
            else:
                raise ValueError(f"no request of ours: {kind!r}")
            self._count += 1
            self._changed.notify_all()
            return value


class RecordClient:
    """One connection. OSError for whatever goes wrong with it; then it is of no use any more. Any thread, one at a time."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self._lock = threading.Lock()
        self._seen = 0
        self._socket = socket.create_connection((host, port), timeout=min(max(seconds, 0.2), _ANSWER_S))
        try:
            # Where nobody listens, on a port that the kernel also gives to those who connect, a socket can reach itself, and keeps the server from its port.
            if self._socket.getsockname() == self._socket.getpeername():
                raise ConnectionRefusedError("nobody listens there")
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _exactly(self._socket, len(_BANNER)) != _BANNER:
                raise ConnectionError("what listens there is no store of shardwire.publish")
        except TimeoutError:
            self._socket.close()
            raise ConnectionError("what listens there is stopped, or is no store of shardwire.publish (a TCPStore is given as an object)") from None
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(_ANSWER_S)

    def ask(self, *request: Any) -> Any:
        with self._lock:
            try:
                _send(self._socket, list(request))
                return _receive(self._socket)
            except BaseException:  # half of an answer may still be under way
                self._socket.close()
                raise

    def rest(self, seconds: float) -> None:
        """Until anything changed in the store, at most so long."""
        self._seen = self.ask("rest", str(self._seen), seconds)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._socket.close()


class RecordStore(dist.Store):  # type: ignore[misc]
    """What a group of ours needs of a c10d store. Keep the object as long as the group."""

    def __init__(self, client: RecordClient, prefix: str) -> None:
        super().__init__()
        self._client, self._prefix = client, prefix

    def set(self, key: str, value: Any) -> None:
        self._client.ask("put", self._prefix + key, value if isinstance(value, str) else bytes(value).decode("latin-1"))

    def get(self, key: str) -> bytes:
        limit = time.monotonic() + 300.0
        while (value := self._client.ask("peek", self._prefix + key)) is None:
            if time.monotonic() > limit:
                raise TimeoutError(f"key {key!r} did not appear")
            self._client.rest(1.0)
        return str(value).encode("latin-1")

    def check(self, keys: list[str]) -> bool:
        return all(self._client.ask("peek", self._prefix + key) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        return int(self._client.ask("add", self._prefix + key, amount))

    def wait(self, keys: list[str], _timeout: Any = None) -> None:
        for key in keys:
            self.get(key)


def _send(connection: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)


def _receive(connection: socket.socket) -> Any:
    size = int.from_bytes(_exactly(connection, 4), "big")
    if size > _MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes")
    return json.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other end hung up")
        data += part
    return data


def _close_in_child() -> None:
    for server in list(_servers):
        server.close_sockets()


os.register_at_fork(after_in_child=_close_in_child)
