"""The processes of this user on this host that report their status: finds the sockets, asks each process, and looks at
silent processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ANSWER_WITHIN = 2.0  # seconds; a running process answers in milliseconds
VERSION = 1
_MOST_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Process:
    """One process that has, or had, a socket.

    state: "answers", "stopped" (SIGSTOP, or a debugger), "silent" (running without an answer), "dead". status: the
    report of the process, where the process answers.
    """
    pid: int
    state: str
    status: dict[str, Any] | None = None


def folders() -> list[Path]:
    """The folders where sockets may lie: the job may have been started with another XDG_RUNTIME_DIR than this
    program."""
    uid = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [*([Path(runtime) / "shardwire"] if runtime else []), Path(f"/run/user/{uid}/shardwire"),
              Path(f"/tmp/shardwire-{uid}")]
    return [place for place in dict.fromkeys(places) if _is_ours(place, uid)]


def _is_ours(place: Path, uid: int) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    return found.st_uid == uid and found.st_mode & 0o077 == 0  # otherwise another user could add sockets


def sockets(pids: Iterable[int] = ()) -> dict[int, Path]:
    """Paths by pid; of ``pids`` only, if there are any."""
    wanted = set(pids)
    found = {int(path.stem): path for folder in folders() for path in folder.glob("*.sock") if path.stem.isdigit()}
    return {pid: path for pid, path in sorted(found.items()) if not wanted or pid in wanted}


def look(pids: Iterable[int] = (), within: float = ANSWER_WITHIN) -> list[Process]:
    """All processes with a socket, asked at the same time. Sockets of dead processes are removed."""
    paths = sockets(pids)
    if not paths:
        return []
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(64, len(paths))) as pool:
        return list(pool.map(lambda item: ask(item[0], item[1], within), paths.items()))


def ask(pid: int, path: Path, within: float = ANSWER_WITHIN, again: bool = False) -> Process:
    """The state of one process. Never raises for any behaviour of the process. again: the process looked dead at the
    first attempt."""
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            return Process(pid, "answers", _receive(connection, path, time.monotonic() + within))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return Process(pid, "dead")
    except (OSError, ValueError):
        state = state_of(pid)
        # The process died during the request: now no process listens. Where one still listens, the pid belongs to a
        # process of another container, and the socket stays.
        return ask(pid, path, within, again=True) if state == "dead" and not again else Process(pid, state)


def _receive(connection: socket.socket, path: Path, deadline: float) -> dict[str, Any]:
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    connection.connect(str(path))
    text = bytearray()
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            break
        text += part
        if len(text) > _MOST_BYTES:
            raise ValueError(f"{path} sends more than {_MOST_BYTES} bytes")
    try:
        status = json.loads(text)
    except RecursionError:
        raise ValueError(f"{path} sends JSON of too many levels") from None
    if not isinstance(status, dict) or status.get("version") != VERSION:
        raise ValueError(f"{path} is of another version of shardwire")
    return status


def state_of(pid: int) -> str:
    """The kernel's state of a process of this host: "stopped", "silent" (running) or "dead"."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "dead"
    return {"T": "stopped", "t": "stopped", "Z": "dead", "X": "dead"}.get(fields[0], "silent")
