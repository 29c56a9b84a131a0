"""Stores that stop answering: a store in Python with a check() that never returns, and torch's TCPStore behind a proxy
that drops all bytes from a moment on.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist
from tcp_store import NO_LIBUV


class _Blocked(dist.Store):
    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def set(self, key, value):
        pass

    def check(self, keys):
        self.released.wait()
        return False


def _forward(source: socket.socket, target: socket.socket, swallows: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if not swallows.is_set():
                target.sendall(data)


@contextlib.contextmanager
def silent_store(kind: str) -> Iterator[dist.Store]:
    if kind == "python":
        blocked = _Blocked()
        yield blocked
        blocked.released.set()  # ends the abandoned thread
        return
    swallows, ends = threading.Event(), []
    host = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False, **NO_LIBUV)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    ends.extend([listener.accept()[0], socket.create_connection(("127.0.0.1", host.port))])
                    for one, other in (ends[-2:], ends[:-3:-1]):
                        threading.Thread(target=_forward, args=(one, other, swallows), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        store = dist.TCPStore("127.0.0.1", listener.getsockname()[1], None, False, timedelta(seconds=60),
                              wait_for_workers=False, **NO_LIBUV)
        store.set("before", "the end")
        assert store.get("before") == b"the end"
        swallows.set()
        yield store
        for end in ends:  # ends the abandoned thread
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
