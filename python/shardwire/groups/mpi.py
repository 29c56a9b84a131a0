"""Groups that meet by MPI: ``init_method="mpi://"``, and groups over an mpi4py communicator. No address is needed.

``shardwire_autoload`` registers the URL with torch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from .. import _C
from .launchers import recognise, why_none
from .timeouts import as_timeout
from .lookup import create_over_fresh_store, set_next_number
from ..errors import UnsupportedError


def create_process_group_from_mpi(comm: Any, timeout: timedelta | float | None = None, name: str | None = None) -> Any:
    """Makes a group of the processes of ``comm``, an intracommunicator of mpi4py, with the ranks of ``comm``.

    Collective: every process of ``comm`` calls. The rest is as in :func:`create_process_group`.
    """
    missing = [method for method in ("Get_rank", "Get_size", "bcast") if not callable(getattr(comm, method, None))]
    if missing:
        raise TypeError(f"comm is a {type(comm).__name__}; give a communicator of mpi4py")
    if getattr(comm, "is_inter", False):
        raise ValueError("comm is an intercommunicator; give comm.Merge(), or a communicator of one group")
    rank, size = comm.Get_rank(), comm.Get_size()
    store = meet(lambda sent: comm.bcast(sent, root=0), rank, size, as_timeout(timeout))
    return create_over_fresh_store(store, rank, size, timeout, name)


def rendezvous(url: str, timeout: timedelta | None = None, **_more: Any) -> Iterator[tuple[Any, int, int]]:
    """Called by torch for ``init_method="mpi://"``: rank and world size are the MPI job's."""
    try:
        found = _meet_in_mpi(url, as_timeout(timeout))
    except BaseException:
        # Newer torches number the group before they ask for its store, and a failed call keeps the number: the next
        # call's group would have another name than on the ranks without a failure.
        if not dist.is_initialized():
            set_next_number(0)
        raise
    yield found
    raise RuntimeError("mpi:// cannot replace lost ranks: start the MPI job anew")


def _meet_in_mpi(url: str, timeout: timedelta) -> tuple[Any, int, int]:
    seconds = timeout.total_seconds()
    try:
        rank, size = _C.mpi_world(seconds)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}. {_instead_of_mpi()}") from None
    for what, here in (("rank", rank), ("world_size", size)):
        for given in parse_qs(urlparse(url).query).get(what, []):
            if int(given) != here:
                raise ValueError(f"{what}={given} was given, but MPI says {here}; leave rank and world_size out with "
                                 "init_method='mpi://'")
    return meet(lambda sent: _C.mpi_broadcast(sent, seconds), rank, size, timeout), rank, size


def _instead_of_mpi() -> str:
    """The launcher of this process, and the call to make instead when the launcher has no usable MPI."""
    place = recognise(os.environ)
    if place is None:
        return f"init_method='mpi://' is for ranks that one of the two started; {why_none(os.environ)}"
    return f"{place.describe()}: init_process_group('shardwire') without init_method goes by that and needs no MPI"


def meet(broadcast: Callable[[bytes], bytes], rank: int, size: int, timeout: timedelta) -> Any:
    """A TCPStore on a free port of rank 0, known to the others by ``broadcast``; a failure on rank 0 is raised on all
    ranks."""
    host = socket.gethostname()
    store, failure = None, ""
    if rank == 0:
        try:
            store = tcp_store("localhost", 0, size, True, timeout)
        except Exception as error:  # the other ranks wait for rank 0's broadcast
            failure = str(error)
    sent = broadcast(f"{host}\n{0 if store is None else store.port}\n{failure}".encode()).decode()
    there, port, failure = sent.split("\n", 2)
    if failure:
        raise RuntimeError(f"rank 0 on host {there} could not open a store for the others: {failure}")
    return store if store is not None else tcp_store("localhost" if there == host else there, int(port), size, False,
                                                     timeout)


def tcp_store(host: str, port: int, size: int | None, is_master: bool, timeout: timedelta) -> Any:
    """A TCPStore, also for a torch built without libuv, the default of torch's TCPStore."""
    try:
        return dist.TCPStore(host, port, size, is_master, timeout, wait_for_workers=False)
    except Exception as error:
        if "libuv" not in str(error):
            raise
    return dist.TCPStore(host, port, size, is_master, timeout, wait_for_workers=False,  # type: ignore[call-arg]
                         use_libuv=False)
