"""The names and arguments of NVSHMEM4Py's ``nvshmem.core`` (0.4), for CPU tensors: a program changes its import and
needs no GPU.

PEs are the ranks of one group: the default process group where this is a shardwire group, or the group made by
:func:`init`. ``stream`` arguments are accepted and not used: a call is complete when the call returns, and a put to
another host is complete after quiet(). Features that NVSHMEM4Py leaves open are implemented: views at an offset and of
any strides and order, every dtype, and an error naming the rank where NVSHMEM would hang. Errors are shardwire's
(docs/errors.md); NvshmemInvalid is raised for checks of this module alone.

Not here, since they are about CUDA: module_init, library_init and their ends, device code, external buffers.
"""

from __future__ import annotations

from .amo import (atomic_add, atomic_and, atomic_compare_swap, atomic_fetch, atomic_fetch_add, atomic_fetch_and,
                  atomic_fetch_inc, atomic_fetch_or, atomic_fetch_xor, atomic_inc, atomic_or, atomic_set, atomic_swap,
                  atomic_xor)
from .collective import alltoall, barrier, barrier_all, broadcast, fcollect, reduce, reducescatter, sync, sync_all
from .all_pes import NvshmemError, NvshmemInvalid
from .init_finalize import (InitStatus, UniqueID, Version, finalize, get_unique_id, get_version, init, init_status,
                            my_pe, n_pes)
from .memory import (buffer, bytetensor, free, free_tensor, get_multicast_buffer, get_multicast_tensor, get_peer_buffer,
                     get_peer_tensor, tensor, tensor_get_buffer)
from .rma import ComparisonType, SignalOp, get, put, put_signal, quiet, signal_op, signal_wait
from .team_table import (TeamConfig, Teams, team_destroy, team_get_uniqueid, team_init, team_my_pe, team_n_pes,
                         team_split_2d, team_split_strided, team_translate_pe)

__all__ = [
    "ComparisonType", "InitStatus", "NvshmemError", "NvshmemInvalid", "SignalOp", "TeamConfig", "Teams", "UniqueID",
    "Version", "alltoall", "atomic_add", "atomic_and", "atomic_compare_swap", "atomic_fetch", "atomic_fetch_add",
    "atomic_fetch_and", "atomic_fetch_inc", "atomic_fetch_or", "atomic_fetch_xor", "atomic_inc", "atomic_or",
    "atomic_set", "atomic_swap", "atomic_xor", "barrier", "barrier_all", "broadcast", "buffer", "bytetensor",
    "fcollect", "finalize", "free", "free_tensor", "get", "get_multicast_buffer", "get_multicast_tensor",
    "get_peer_buffer", "get_peer_tensor", "get_unique_id", "get_version", "init", "init_status", "my_pe", "n_pes",
    "put", "put_signal", "quiet", "reduce", "reducescatter", "signal_op", "signal_wait", "sync", "sync_all",
    "team_destroy", "team_get_uniqueid", "team_init", "team_my_pe", "team_n_pes", "team_split_2d", "team_split_strided",
    "team_translate_pe", "tensor", "tensor_get_buffer",
]
