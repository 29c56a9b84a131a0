"""Handles of processes: strings by which processes find each other without the store of any group.

A process serves a small store of records from its first handle until the end of the process. The handle holds the
addresses. A connection closed by the end of the process, or refused, shows the end. So the death of a process is seen
without a group, also when the process was rank 0 and served the group's own store.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import MismatchError
from ..process.log import log
from ..process.wires import chosen_interfaces
from ..records.client import RecordClient, RenewedClient, SilentServerError
from ..records.server import RecordServer

_PREFIX = "shardwire-process:"
# In each store: the name of the serving process. After the end of a process another process may get the port.
_PROCESS_KEY = "shardwire/process"
_CONNECT_S = 2.0
# After this time without an answer the process is asked again later: no silent process delays the others.
_ANSWER_S = 0.25
_lock = threading.Lock()
# With the pid: a fork makes another store.
_own: tuple[int, OwnStore] | None = None


class ProcessHandle(NamedTuple):
    """A handle's content. process: a random name of the process. host: the host and its network namespace."""

    process: str
    host: str
    name: str
    pid: int
    addresses: tuple[str, ...]
    port: int

    def __str__(self) -> str:
        return f"pid {self.pid} on host {self.name}"

    @property
    def text(self) -> str:
        """The handle as users see the handle: a string."""
        return _PREFIX + base64.urlsafe_b64encode(json.dumps(self).encode()).decode()


def parse_handle(text: Any) -> ProcessHandle:
    """The content of a handle. Raises TypeError for another type than str, ValueError for another string."""
    if not isinstance(text, str):
        raise TypeError(f"a handle is a str of shardwire.reconfigure_handle(), and no {type(text).__name__}")
    try:
        process, host, name, pid, addresses, port = json.loads(base64.urlsafe_b64decode(text.removeprefix(_PREFIX)))
        fits = (text.startswith(_PREFIX) and all(isinstance(each, str) for each in (process, host, name, *addresses))
                and isinstance(pid, int) and isinstance(port, int) and 0 < port < 1 << 16)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise ValueError(f"{text[:40]!r} is no handle; give the strings of shardwire.reconfigure_handle()")
    return ProcessHandle(process, host, name, pid, tuple(addresses), port)


class OwnStore:
    """This process's store: the server, and a connection to it. Any thread."""

    def __init__(self) -> None:
        self.server = RecordServer("0.0.0.0", 0)
        port = int(self.server.address.rpartition(":")[2])
        addresses = [socket.gethostname()]
        addresses += [address for each in chosen_interfaces() for address in each.addresses
                      if not address.startswith(("127.", "::1", "fe80:"))]
        self.handle = ProcessHandle(secrets.token_hex(8), _host(), socket.gethostname(), os.getpid(), tuple(addresses),
                                    port)
        client = RenewedClient(partial(RecordClient, "localhost", port, _CONNECT_S))
        self.ask = client.ask
        self.rest = client.rest
        self.ask("put", _PROCESS_KEY, self.handle.process)


def own_store() -> OwnStore:
    """This process's store, made at the first call. Any thread. OSError where no port can be had."""
    global _own
    with _lock:
        if _own is None or _own[0] != os.getpid():
            _own = os.getpid(), OwnStore()
        return _own[1]


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


class OtherProcess:
    """A connection to the store of one process. One thread.

    is_gone: the process has ended, or no address of the handle can be reached. A stopped process, or a process too busy
        for an answer, is not gone.
    is_silent: the last request got no answer.
    """

    def __init__(self, handle: ProcessHandle) -> None:
        self.handle = handle
        self.is_gone = self.is_silent = False
        self._client: RecordClient | None = None

    def ask(self, *request: Any) -> Any:
        """The answer; None where the process is gone, or does not answer at present."""
        return self._try(lambda client: client.ask(*request))

    def answers(self) -> bool:
        """False where the process is gone, or does not answer at present."""
        return self.ask("peek", _PROCESS_KEY) is not None

    def rest(self, seconds: float) -> None:
        """Waits for a change of the store, or for the end of the process, at most ``seconds``."""
        self._try(lambda client: client.rest(seconds))

    def connect(self, *answer_s: float) -> RecordClient | None:
        """A further connection; None as in ask(). answer_s: the time limit of an answer."""
        at = self.handle
        addresses = ("localhost",) if at.host == _host() else at.addresses
        is_silent = False
        # A silent process costs one time limit, whatever the number of its addresses
        connect_s = _CONNECT_S / len(addresses)
        for address in addresses:
            try:
                client = RecordClient(address, at.port, connect_s, *answer_s)
                if client.ask("peek", _PROCESS_KEY) == at.process:
                    return client
            except (SilentServerError, TimeoutError):  # another address may be the right one
                is_silent = True
            except MismatchError as error:  # the port is another job's by now
                log("warn", f"{at} is not at {address}:{at.port}: {error}")
            except OSError:
                continue
        self.is_gone = not is_silent
        return None

    def _try(self, use: Callable[[RecordClient], Any]) -> Any:
        if self._client is None and not self.is_gone:
            self._client = self.connect(_ANSWER_S)
        self.is_silent = self._client is None
        if self._client is None:
            return None
        try:
            return use(self._client)
        except TimeoutError:  # the next call connects anew
            self.is_silent = True
            self._client = None
        except OSError:
            self.is_gone = True
            self._client = None
        return None
