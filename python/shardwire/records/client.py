"""The client of a small store of records: one process runs the server (``server.py``), such as rank 0 of a publisher
whose other jobs meet by ``tcp://``, and all others are clients.

Torch's TCPStore does not fit: on torch 1.13 a client's process ends when the server dies in the middle of an exchange,
and on all versions a client waits for ever for a stopped server. Here every answer has a time limit, and each error is
an exception. Records also contain a proof of the job's token (weights/meeting_place.py).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ..errors import MismatchError
from .job_token import how_it_differs, proof
from .server import BANNER, MAX_FRAME, NONCE_BYTES

_ANSWER_S = 5.0


class SilentServerError(ConnectionError):
    """The server gives no answer, and has not closed the connection: its process is stopped or very busy, or what
    listens there is no server of records."""


class RecordClient:
    """One connection. OSError for any failure, after which the connection is unusable. MismatchError for another token
    of the server's job. Any thread, one at a time. seconds: for the connection; answer_s: for each answer.
    """

    def __init__(self, host: str, port: int, seconds: float, answer_s: float = _ANSWER_S) -> None:
        self._lock = threading.Lock()
        self._seen = 0
        self._socket = socket.create_connection((host, port), timeout=min(max(seconds, 0.2), _ANSWER_S))
        try:
            # Without a listener, on a port in the kernel's range for outgoing connections, a socket can connect to
            # itself, and would keep the server from the port.
            if self._socket.getsockname() == self._socket.getpeername():
                raise ConnectionRefusedError("nobody listens there")
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _exactly(self._socket, len(BANNER)) != BANNER:
                raise ConnectionError("what listens there is no store of shardwire.publish of this version")
            nonce = _exactly(self._socket, NONCE_BYTES).decode("latin-1")
            _send(self._socket, ["prove", proof("caller", nonce)])
            said = _receive(self._socket)
            if said != "welcome":
                raise MismatchError(f"the store at {host}:{port} {how_it_differs(said == 'token')}")
        except TimeoutError:
            self._socket.close()
            raise SilentServerError("what listens there is stopped, or is no store of shardwire.publish (a TCPStore is "
                                  "given as an object)") from None
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(answer_s)

    def ask(self, *request: Any) -> Any:
        with self._lock:
            try:
                _send(self._socket, list(request))
                return _receive(self._socket)
            except BaseException:  # half of an answer may still be under way
                self._socket.close()
                raise

    def rest(self, seconds: float) -> None:
        """Waits for a change in the store, at most `seconds`."""
        self._seen = self.ask("rest", str(self._seen), seconds)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._socket.close()


class RenewedClient:
    """As RecordClient, and a request that failed, or that Ctrl-C interrupted, costs only itself: the next request goes
    over another connection. ``connect`` makes the connections. Any thread, one at a time."""

    def __init__(self, connect: Callable[[], RecordClient]) -> None:
        self._lock = threading.Lock()
        self._connect = connect
        self._client: RecordClient | None = connect()

    def ask(self, *request: Any) -> Any:
        return self._with_client(lambda client: client.ask(*request))

    def rest(self, seconds: float) -> None:
        self._with_client(lambda client: client.rest(seconds))

    def _with_client(self, use: Callable[[RecordClient], Any]) -> Any:
        with self._lock:
            client, self._client = self._client or self._connect(), None
            answer = use(client)
            self._client = client
            return answer


class RecordStore(dist.Store):  # type: ignore[misc]
    """The part of a c10d store that a group of shardwire needs. Keep the object as long as the group."""

    def __init__(self, client: RecordClient | RenewedClient, prefix: str) -> None:
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
        return record_of(value)

    def check(self, keys: list[str]) -> bool:
        return all(self._client.ask("peek", self._prefix + key) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        return count_of(self._client.ask("add", self._prefix + key, amount))

    def wait(self, keys: list[str], _timeout: Any = None) -> None:
        for key in keys:
            self.get(key)


def record_of(answer: Any) -> bytes:
    """The record in the answer of a server."""
    try:
        return str(answer).encode("latin-1")
    except UnicodeEncodeError:
        raise ConnectionError("the other end sent a record that no client wrote") from None


def count_of(answer: Any) -> int:
    """The number in the answer of a server, or in a record."""
    try:
        return int(answer)
    except (ValueError, TypeError, OverflowError):
        raise ConnectionError(f"the other end sent {str(answer)[:40]!r} in place of a number") from None


def _send(connection: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)


def _receive(connection: socket.socket) -> Any:
    size = int.from_bytes(_exactly(connection, 4), "big")
    if size > MAX_FRAME:
        raise ConnectionError(f"the other end sent a frame of {size} bytes")
    data = _exactly(connection, size)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"the other end sent a frame that cannot be read: {str(error)[:80]}") from None


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other end hung up")
        data += part
    return data
