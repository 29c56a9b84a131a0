"""The server of records of publish("tcp://..."): the listening addresses, and the effect of callers without the token
on the server and on the server's process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_publish import in_a_child, raised

from shardwire.launch import free_port
from shardwire.records import server as record_server
from shardwire.weights.meeting_place import Address, RecordPlace
from shardwire.records.server import BANNER, NONCE_BYTES, RecordServer, listen_for
from shardwire.records.client import RecordClient


@contextlib.contextmanager
def called_by_another_process(port: int, count: int) -> Iterator[None]:
    """Another process connects as often as the listener's queue permits, up to ``count`` times, sends nothing, and
    stays until the end.
    """
    ready, end = os.pipe(), os.pipe()
    caller = os.fork()
    if caller == 0:
        os.close(end[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        kept = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                kept.append(socket.create_connection(("127.0.0.1", port), 1))
        os.write(ready[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        yield
    finally:
        os.close(end[1])
        os.waitpid(caller, 0)
        for descriptor in (*ready, end[0]):
            os.close(descriptor)


@in_a_child
def test_callers_that_say_nothing_take_neither_descriptors_nor_threads_nor_the_store(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    server = RecordServer("127.0.0.1", 0)
    port = server._listener.getsockname()[1]
    first = RecordClient("127.0.0.1", port, 5)
    first.ask("put", "a", "1")
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with called_by_another_process(port, 100):
        (tmp_path / "its own").write_text("a checkpoint")
        assert first.ask("peek", "a") == "1"
        assert RecordClient("127.0.0.1", port, 60).ask("peek", "a") == "1", (
            "the silent ones go after a while, and this one comes to its turn")
        assert threading.active_count() == threads
        assert len(os.listdir("/proc/self/fd")) < descriptors + 60
    assert RecordClient("127.0.0.1", port, 60).ask("peek", "a") == "1"
    server.close()


def test_callers_with_the_token_have_half_of_the_descriptors_and_the_next_waits(
        monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(record_server, "resource",
                        types.SimpleNamespace(getrlimit=lambda _: (8, 8), RLIMIT_NOFILE=0, RLIM_INFINITY=-1))
    monkeypatch.setattr(record_server, "log", lambda level, text: lines.append(text))
    server = RecordServer("127.0.0.1", 0)
    port = server._listener.getsockname()[1]
    clients = [RecordClient("127.0.0.1", port, 5) for _ in range(4)]
    with socket.create_connection(("127.0.0.1", port), 0.3) as one_more:
        limit = time.monotonic() + 30
        while not lines and time.monotonic() < limit:
            time.sleep(0.01)
        with pytest.raises(TimeoutError):
            one_more.recv(1)
        assert clients[0].ask("peek", "a") is None
        clients[0]._socket.close()
        one_more.settimeout(30)
        assert one_more.recv(len(BANNER), socket.MSG_WAITALL) == BANNER
    assert len(lines) == 1 and "have 4 callers, half of this process's 8 descriptors" in lines[0], lines
    server.close()


@in_a_child
def test_a_server_without_descriptors_goes_on_when_it_has_some_again(tmp_path: Path) -> None:
    server = RecordServer("127.0.0.1", 0)
    port = server._listener.getsockname()[1]
    caller = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    caller.settimeout(0.3)
    caller.connect(("127.0.0.1", port))
    with pytest.raises(TimeoutError):  # the server did not accept the connection
        caller.recv(1)
    for descriptor in taken:
        os.close(descriptor)
    caller.settimeout(30)
    assert caller.recv(len(BANNER), socket.MSG_WAITALL) == BANNER
    server.close()


@in_a_child
def test_nothing_is_answered_before_the_token(tmp_path: Path) -> None:
    os.environ["SHARDWIRE_JOB_TOKEN"] = "ours"
    server = RecordServer("127.0.0.1", 0)
    port = server._listener.getsockname()[1]
    frame = b'["peek", "a"]'
    too_long = b'["prove", "' + b"a" * 2000 + b'"]'
    for said in (frame, too_long, b'["prove"]', b'["prove", "a", "b"]', b"[]", b"{}"):
        with socket.create_connection(("127.0.0.1", port), 30) as foreign:
            foreign.sendall(len(said).to_bytes(4, "big") + said)
            assert len(foreign.recv(len(BANNER) + NONCE_BYTES, socket.MSG_WAITALL)) == len(BANNER) + NONCE_BYTES
            with contextlib.suppress(ConnectionResetError):
                assert foreign.recv(1) == b"", said
    assert RecordClient("127.0.0.1", port, 5).ask("peek", "a") is None
    for token, text in (("theirs", "has another SHARDWIRE_JOB_TOKEN than this process"),
                        ("", "has a SHARDWIRE_JOB_TOKEN, and this process has none")):
        client_token(token, port, text)
    own = RecordClient("127.0.0.1", port, 5)
    assert raised(lambda: own.ask("rest", "0", float("nan")))[0] in (
        "ConnectionError", "ConnectionResetError", "BrokenPipeError")
    assert raised(lambda: RecordClient("127.0.0.1", port, 5).ask("rest"))[0] in (
        "ConnectionError", "ConnectionResetError", "BrokenPipeError")
    assert RecordClient("127.0.0.1", port, 5).ask("peek", "a") is None
    server.close()


def client_token(token: str, port: int, text: str) -> None:
    """The error in a process of another job, while the server's thread answers for our job."""
    from shardwire.records import client as records
    real = records.proof
    records.proof = lambda role, body: real(role, body + token) if token else ""  # type: ignore[assignment]
    differs = records.how_it_differs
    if not token:
        records.how_it_differs = (  # type: ignore[assignment]
            lambda has_one: "has a SHARDWIRE_JOB_TOKEN, and this process has none" if has_one else "?")
    try:
        kind, said = raised(lambda: Address(f"tcp://127.0.0.1:{port}", "p").open(5))
    finally:
        records.proof, records.how_it_differs = real, differs
    assert kind == "MismatchError" and text in said, said


def test_it_listens_on_all_addresses_where_the_hosts_name_is_a_loopback_address(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts maps the host's name to a loopback address."""
    real = socket.getaddrinfo
    known = {"trainer0": "127.0.1.1", "another": "192.0.2.7"}

    def resolve(host: Any, *args: Any, **more: Any) -> Any:
        return real(known.get(host, host), *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with (listen_for("trainer0", 0) as everywhere, listen_for("127.0.0.1", 0) as here,
          listen_for("localhost", 0) as there):
        assert everywhere.getsockname()[0] in ("::", "0.0.0.0")
        socket.create_connection(("127.0.0.1", everywhere.getsockname()[1]), 5).close()
        assert here.getsockname()[0] == "127.0.0.1" and there.getsockname()[0] in ("127.0.0.1", "::1")
    with pytest.raises(OSError):
        listen_for("another", 0)


def test_a_folders_url_may_have_quoted_letters(tmp_path: Path) -> None:
    place = Address(f"file://{tmp_path}/a%20b%23", "p").open(5)
    place.put("k", b"v")
    assert (tmp_path / "a b#").is_dir() and place.peek("k") == b"v"
    os.mkfifo(tmp_path / "a b#" / "shardwire.publish" / "p" / "pipe")
    kind, text = raised(lambda: place.peek("pipe"))
    assert kind == "SystemFailure" and "is a named pipe" in text, text


@in_a_child
def test_the_store_of_records() -> None:
    server = RecordServer("127.0.0.1", port := free_port())
    assert raised(lambda: RecordServer("127.0.0.1", port))[0] == "OSError"
    one, other = RecordClient("127.0.0.1", port, 5), RecordClient("127.0.0.1", port, 5)
    for junk in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\3{}x",
                 b'\0\0\0\x08["none"]', b'\0\0\0\x0f["rest","x", 1]', os.urandom(300)):
        with socket.create_connection(("127.0.0.1", port)) as foreign:
            foreign.sendall(junk)
    places = [RecordPlace(client, "p") for client in (one, other)]
    assert places[0].peek("k") is None
    places[0].put("k", b"\x00\xff?")
    assert places[1].peek("k") == b"\x00\xff?"
    assert (places[0].notes("box") == []
            and [places[0].post("box", b"1"), places[1].post("box", b"2")] == ["1", "2"] == places[0].notes("box"))
    places[0].put("box/1.go", b"")
    places[0].put("box/12", b"another")
    places[0].remove("box/1")
    assert places[1].peek("box/1.go") is None is places[1].peek("box/1") and places[1].peek("box/12") == b"another"
    for _ in range(3):
        other.rest(0.0)
    threading.Timer(0.05, lambda: places[0].put("k", b"new")).start()
    limit = time.monotonic() + 10
    while places[1].peek("k") != b"new":
        places[1].rest(0.25)
        assert time.monotonic() < limit
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    server.close()  # like the end of the server's process; a child keeps neither the port nor the connections
    try:
        assert raised(lambda: [one.ask("peek", "k") for _ in range(3)])[0] in (
            "ConnectionError", "ConnectionResetError", "BrokenPipeError", "OSError")
        again = RecordServer("127.0.0.1", port)
        assert RecordPlace(RecordClient("127.0.0.1", port, 5), "p").peek("k") is None
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kind, text = raised(lambda: Address(f"tcp://127.0.0.1:{silent.getsockname()[1]}", "p").open(0.3))
        assert kind == "SystemFailure" and "no store of shardwire.publish" in text, text
