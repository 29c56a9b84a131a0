"""The picture as a page: a server on 127.0.0.1 that answers under a random path only, and one HTML text without other
files."""

from __future__ import annotations

import contextlib
import http.server
import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from .page import PAGE

_HEADERS = {"Cache-Control": "no-store",
            "Content-Security-Policy": ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                        "connect-src 'self'; img-src data:"),
            "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class PageServer(http.server.ThreadingHTTPServer):
    """Serves ``look()`` at ``url``. A client gets an answer only with the secret path, and only under this host's own
    name, so that no page of a browser can reach the server under another name."""

    daemon_threads = True
    request_queue_size = 128  # a client that finds the queue full waits a second before the next attempt
    most_connections = 32  # each has a thread; a further one ends the oldest, so silent clients keep no client out

    def __init__(self, port: int, look: Callable[[], dict[str, Any]]) -> None:
        self.look = look
        self.token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= self.most_connections:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # the connection's thread closes the socket
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # an OSError means: the client left, or the connection was ended
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PageServer
    server_version = "shardwire"
    sys_version = ""
    timeout = 5  # seconds without a byte from the client

    def do_GET(self) -> None:
        begin, slash, rest = self.path[1:].partition("/")
        names = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        is_known = (secrets.compare_digest(begin.encode(), self.server.token.encode())
                    and self.headers.get("Host") in names)
        if is_known and slash and rest == "":
            self._answer("text/html; charset=utf-8", PAGE)
        elif is_known and rest == "status.json":
            self._answer("application/json", json.dumps(self.server.look()))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # the path is a secret
        pass


def serve(port: int, look: Callable[[], dict[str, Any]]) -> int:
    """Prints the page's address and serves the page until Ctrl-C. Returns the exit status."""
    try:
        server = PageServer(port, look)
    except OSError as error:
        print(f"port {port} of 127.0.0.1 cannot be served: {error.strerror}; give another, or none for a free one")
        return 1
    with server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
