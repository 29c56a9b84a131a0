"""TcpStore: a store whose keys lie with all ranks. Also ``init_method="shardwire://HOST:PORT?rank=R&world_size=N"``.

Each rank serves the keys with a hash equal to the rank's number, by torch's TCPStore on a free port. The ranks meet
once at rank 0's port, to exchange the addresses; a rank connects to another rank at the first use of a key there. So
no rank serves all keys, and the end of a rank takes only the rank's own keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from .. import _C
from .timeouts import as_timeout
from .mpi import tcp_store

_lock = threading.Lock()
# torch's TCPStore takes keys of at most 8 KiB. The hash of a longer key stands for the key.
_LONGEST_KEY = 4096
# The servers of this process, where ranks meet, by port. Several stores may meet at one server.
_meetings: dict[int, Any] = {}
# torch keeps only the C++ half of a store, and the C++ half calls the Python half: stores stay until the process ends.
_stores: list[TcpStore] = []


class TcpStore(dist.Store):
    """A store without a server of its own: every rank makes one, and each serves a share of the keys. Collective.

    hostname, port: where the other ranks reach rank 0. key: ranks with the same key and world_size meet; several stores
        may use one port. timeout: for the meeting, and for each waiting call.

    Every method of torch's stores is there, ``add``, ``compare_set`` and ``delete_key`` too. The keys at a dead rank
    are lost, and calls for these keys fail. Any thread; a waiting thread does not delay other threads.
    """

    def __init__(self, hostname: str, port: int, key: str, world_size: int, rank: int,
                 timeout: timedelta | float) -> None:
        super().__init__()
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in a store of {world_size} ranks (0..{world_size - 1})")
        self._limit = as_timeout(timeout)
        self._own = tcp_store("localhost", 0, None, True, self._limit)
        meeting = _meeting(hostname, port, rank, self._limit)
        # A further store of the same key has another number.
        number = meeting.add(f"{key}/{world_size}/made by {rank}", 1)
        room = dist.PrefixStore(f"{key}/{world_size}/{number}", meeting)
        host = hostname if rank == 0 else _own_name(hostname, port)
        room.set(str(rank), f"{host} {self._own.port}")
        self._addresses = [room.get(str(peer)).decode().split(" ") for peer in range(world_size)]
        self._addresses[rank][0] = "localhost"
        # One connection for each thread and rank: a waiting call of TCPStore holds the connection.
        self._connections: dict[tuple[int, int], Any] = {}
        if room.add("read", 1) == world_size:
            room.set("all read", "")
        _stores.append(self)
        if rank == 0:  # the process that serves the meeting stays until all ranks have read
            room.wait(["all read"], self._limit)

    def _served_by(self, rank: int) -> Any:
        place = (threading.get_ident(), rank)
        if place not in self._connections:
            host, port = self._addresses[rank]
            self._connections[place] = tcp_store(host, int(port), None, False, self._limit)
        return self._connections[place]

    def _of(self, key: str) -> tuple[Any, str]:
        """The store with this key, and the key there."""
        text = key.encode()
        there = key if len(text) <= _LONGEST_KEY else f"sha256 {hashlib.sha256(text).hexdigest()}"
        return self._served_by(zlib.crc32(text) % len(self._addresses)), there

    def set_timeout(self, timeout: timedelta) -> None:
        self._limit = as_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return self._limit

    def set(self, key: str, value: Any) -> None:
        store, there = self._of(key)
        store.set(there, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        store, there = self._of(key)
        return store.get(there)

    def add(self, key: str, value: int) -> int:
        store, there = self._of(key)
        return store.add(there, value)

    def check(self, keys: list[str]) -> bool:
        return all(_C.store_has(*self._of(key)) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are there. An error of torch's stores after the timeout."""
        end = time.monotonic() + (self._limit if timeout is None else timeout).total_seconds()
        for key in keys:
            store, there = self._of(key)
            store.wait([there], timedelta(seconds=max(0.001, end - time.monotonic())))

    def compare_set(self, key: str, expected: Any, desired: Any) -> Any:
        store, there = self._of(key)
        return store.compare_set(there, expected, desired)

    def delete_key(self, key: str) -> bool:
        store, there = self._of(key)
        return store.delete_key(there)

    def num_keys(self) -> int:
        """The number of keys at all ranks. torch's TCPStore may count a key of its own at each rank."""
        return sum(self._served_by(rank).num_keys() for rank in range(len(self._addresses)))

    def clone(self) -> TcpStore:
        """This store: each thread has connections of its own."""
        return self

    # The names by which C++ calls these methods.
    compareSet, deleteKey, getNumKeys = compare_set, delete_key, num_keys  # noqa: N815


def _meeting(hostname: str, port: int, rank: int, timeout: timedelta) -> Any:
    """The store for the exchange of addresses; rank 0 serves the store, unless another process of the host has the
    port."""
    if rank == 0:
        with _lock, contextlib.suppress(RuntimeError):
            if port not in _meetings:
                _meetings[port] = tcp_store("localhost", port, None, True, timeout)
            return _meetings[port]
    return tcp_store(hostname, port, None, False, timeout)


def _own_name(hostname: str, port: int) -> str:
    """A name of this host for the other ranks. On the host of rank 0 the name ``hostname`` may have a loopback address
    (Debian's /etc/hosts has such a line), which means another host elsewhere."""
    towards = _address_towards(hostname, port)
    return hostname if ipaddress.ip_address(towards).is_loopback else towards


def _address_towards(hostname: str, port: int) -> str:
    """This host's address on the way to ``hostname``; nothing is sent."""
    family, kind, _, _, there = socket.getaddrinfo(hostname, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)
        return str(probe.getsockname()[0])


def rendezvous(url: str, timeout: timedelta | None = None, **_more: Any) -> Iterator[tuple[Any, int, int]]:
    """Called by torch for ``init_method="shardwire://HOST:PORT?rank=R&world_size=N"``."""
    place = urlparse(url)
    query = parse_qs(place.query)
    missing = [what for what, there in (("a host", place.hostname), ("a port", place.port), ("rank", "rank" in query),
                                        ("world_size", "world_size" in query)) if not there]
    if missing or place.hostname is None or place.port is None:
        raise ValueError(f"{url} lacks {', '.join(missing)}; give shardwire://HOST:PORT?rank=R&world_size=N, or rank= "
                         "and world_size= to init_process_group")
    rank, size = int(query["rank"][0]), int(query["world_size"][0])
    yield TcpStore(place.hostname, place.port, "init_process_group", size, rank, as_timeout(timeout)), rank, size
    raise RuntimeError("shardwire:// cannot replace lost ranks: start the job anew")
