"""Beginning and end: the group of the PEs."""

from __future__ import annotations

import socket
from enum import IntEnum
from typing import Any

import torch.distributed as dist

from ... import symm
from ...groups import lookup, mpi
from ...groups.timeouts import as_timeout
from .team_table import Teams
from .all_pes import NvshmemError, NvshmemInvalid, job, world

_ID_BYTES = 128


class InitStatus(IntEnum):
    STATUS_NOT_INITIALIZED = 0
    STATUS_IS_BOOTSTRAPPED = 1
    STATUS_IS_INITIALIZED = 2
    STATUS_LIMITED_MPG = 3  # this and the next: more PEs than GPUs, never the case here
    STATUS_FULL_MPG = 4
    STATUS_INVALID = 32767


class ThreadSupport(IntEnum):
    THREAD_SINGLE = 0
    THREAD_FUNNELED = 1
    THREAD_SERIALIZED = 2
    THREAD_MULTIPLE = 3
    THREAD_TYPE_SENTINEL = 32767


class Version:
    """The versions behind the names."""

    def __init__(self, openshmem_spec_version: str = "", nvshmem4py_version: str = "",
                 libnvshmem_version: str = "") -> None:
        self.openshmem_spec_version = openshmem_spec_version
        self.nvshmem4py_version = nvshmem4py_version
        self.libnvshmem_version = libnvshmem_version

    def __repr__(self) -> str:
        return (f"Version(OpenSHMEM {self.openshmem_spec_version}, names of nvshmem4py {self.nvshmem4py_version}, "
                f"{self.libnvshmem_version})")


class UniqueID:
    """The meeting point of the PEs of a job: made by one PE, given to all PEs by any means of the program (``_data`` is
    a numpy array of bytes; a UniqueID can be pickled)."""

    version: int

    def __init__(self) -> None:
        import numpy
        self._data = numpy.zeros(_ID_BYTES, dtype=numpy.int8)
        self.version = 1
        self._store: Any = None  # only on the rank that made the UniqueID and serves the others

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UniqueID) and bool((self._data == other._data).all())

    __hash__ = None  # type: ignore[assignment]  # the bytes may change

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": self._data, "version": self.version, "_store": None}


def get_version() -> Version:
    """As NVSHMEM4Py's; ``libnvshmem_version`` names shardwire, which does the work."""
    from ... import __version__
    return Version("1.5", "0.4", f"shardwire {__version__}")


def get_name() -> str:
    """The name of the library that does the work."""
    return "shardwire"


def query_thread() -> ThreadSupport:
    """THREAD_MULTIPLE: any thread may call at any time."""
    return ThreadSupport.THREAD_MULTIPLE


def get_unique_id(empty: bool = False) -> UniqueID:
    """A meeting point for ``init(uid=...)``: ``empty=True`` makes a UniqueID to be overwritten by another PE's. The
    meeting point serves as long as the object, or the job, lives."""
    uid = UniqueID()
    if not empty:
        import numpy
        host = socket.gethostname()
        uid._store = mpi.tcp_store("localhost", 0, None, True, as_timeout(None))
        text = f"{host} {uid._store.port}".encode()
        if len(text) >= _ID_BYTES:
            raise NvshmemError(f"the name of this host is too long for a unique id: {host}")
        uid._data[:len(text)] = numpy.frombuffer(text, dtype=numpy.int8)
    return uid


def _meet(uid: UniqueID) -> Any:
    """The store served by the uid's maker."""
    if uid._store is not None:
        return uid._store
    text = bytes(uid._data.view("uint8")).rstrip(b"\0").decode(errors="replace").split()
    if len(text) != 2 or not text[1].isdigit():
        raise NvshmemInvalid(
            "the uid is empty: hand out the one of the PE that made it by get_unique_id() before init()")
    return mpi.tcp_store("localhost" if text[0] == socket.gethostname() else text[0], int(text[1]), None, False,
                         as_timeout(None))


def init(device: Any = None, uid: UniqueID | None = None, rank: int | None = None, nranks: int | None = None,
         mpi_comm: Any = None, initializer_method: str = "") -> None:
    """Begins. Collective, blocking. A call after another call of init() only counts, as in NVSHMEM: the PEs, the memory
    and the teams stay, and the last of equally many calls of :func:`finalize` ends.

    initializer_method: "uid": ``rank`` and ``nranks`` meet by ``uid``, which one of the ranks made; "mpi" and
        "emulated_mpi": the ranks of the MPI job of this process, or of ``mpi_comm``, a communicator of mpi4py; "": the
        default process group, which must be shardwire's. device is not used.

    Raises NvshmemInvalid for arguments that contradict each other, shardwire's errors when the ranks do not meet.
    """
    if initializer_method not in ("", "uid", "mpi", "emulated_mpi"):
        raise NvshmemInvalid(f"initializer_method is {initializer_method!r}; give 'uid', 'mpi', 'emulated_mpi', or "
                             "none with a default process group of shardwire")
    is_by_uid = initializer_method == "uid"
    if is_by_uid and (uid is None or rank is None or nranks is None or mpi_comm is not None):
        raise NvshmemInvalid("initializer_method 'uid' takes uid, rank and nranks, and no mpi_comm")
    if job.world is not None:
        if is_by_uid and (rank, nranks) != (job.world.rank, job.world.size):
            raise NvshmemInvalid(f"this is PE {job.world.rank} of {job.world.size} already, and not {rank} of {nranks}")
        job.num_inits += 1
        return
    if is_by_uid:
        assert uid is not None and rank is not None and nranks is not None
        job.own_group = _own_group(_meet(uid), rank, nranks)
    elif initializer_method and mpi_comm is not None:
        job.own_group = mpi.create_process_group_from_mpi(mpi_comm)
    elif initializer_method:
        job.own_group = _own_group(*next(mpi.rendezvous("mpi://")))
    elif not dist.is_initialized():
        raise NvshmemInvalid("give initializer_method 'uid' or 'mpi', or make the default process group first: "
                             "init_process_group('shardwire')")
    try:
        job.world = symm.team(job.own_group)
        Teams.begin(job.world)
        job.num_inits = 1
    except BaseException:  # a PE died meanwhile: init() can begin anew
        _end()
        raise


def _own_group(store: Any, rank: int, size: int) -> Any:
    # A separate name: the ranks need not have made equally many groups before.
    return lookup.create_under_prefix(store, rank, size, as_timeout(None), f"nvshmem:{id(store)}", "nvshmem", True)


def finalize() -> None:
    """Ends. Collective, blocking: returns after all PEs have called. A group made by :func:`init` ends too; tensors
    stay readable until the program drops them. After several calls of :func:`init` all calls but the last only count.
    """
    team = world()
    if job.num_inits > 1:
        job.num_inits -= 1
        return
    try:
        team.barrier()
    finally:  # after the death of a PE, too: init() can begin anew
        _end()


def _end() -> None:
    Teams.end()
    job.world, job.num_inits = None, 0
    if job.own_group is not None:
        lookup.end_process_group(job.own_group)
        job.own_group = None


def init_status() -> InitStatus:
    return InitStatus.STATUS_NOT_INITIALIZED if job.world is None else InitStatus.STATUS_IS_INITIALIZED


def my_pe() -> int:
    """This rank."""
    return world().rank


def n_pes() -> int:
    """The number of ranks."""
    return world().size
