"""The names and arguments of NVSHMEM4Py's ``nvshmem.core`` (0.4), for CPU tensors: a program changes its import and
needs no GPU.

PEs are the ranks of one group: the default process group where this is a shardwire group, or the group made by
:func:`init`. ``stream`` arguments are accepted and not used: a call is complete when the call returns, and a put to
another host is complete after quiet(). Features that NVSHMEM4Py leaves open are implemented: views at an offset and of
any strides and order, every dtype, and an error naming the rank where NVSHMEM would hang. Errors are shardwire's
(docs/errors.md); NvshmemInvalid is raised for checks of this module alone.

Not here, since they need a device: module_init, library_init and their ends, device code (docs/names.md).
"""

from __future__ import annotations

from . import utils
from .all_pes import NvshmemError, NvshmemInvalid
from .amo import (atomic_add, atomic_and, atomic_compare_swap, atomic_fetch, atomic_fetch_add, atomic_fetch_and,
                  atomic_fetch_inc, atomic_fetch_or, atomic_fetch_xor, atomic_inc, atomic_or, atomic_set, atomic_swap,
                  atomic_xor)
from .arrays import (array, array_get_buffer, bytearray, free_array, get_multicast_array,
                     get_peer_array)
from .collective import (alltoall, barrier, barrier_all, broadcast, collective_on_buffer, fcollect, reduce,
                         reducescatter, sync, sync_all)
from .init_finalize import (InitStatus, ThreadSupport, UniqueID, Version, finalize, get_name, get_unique_id,
                            get_version, init, init_status, my_pe, n_pes, query_thread)
from .memory import (BufferTypes, buffer, bytetensor, free, free_tensor, get_multicast_buffer, get_multicast_tensor,
                     get_peer_buffer, get_peer_tensor, register_external_buffer, register_external_tensor, tensor,
                     tensor_get_buffer, type_of, unregister_external_buffer, unregister_external_tensor)
from .rma import (ComparisonType, SignalOp, flush, get, get_nbi, put, put_nbi, put_signal, put_signal_nbi, quiet,
                  signal_fetch, signal_op, signal_wait)
from .team_table import (MutableEnum, TeamConfig, Teams, TeamUniqueId, get_team_unique_id, team_destroy,
                         team_get_config, team_get_uniqueid, team_init, team_my_pe, team_n_pes, team_split_2d,
                         team_split_strided, team_translate_pe)

__all__ = [
    "BufferTypes", "ComparisonType", "InitStatus", "MutableEnum", "NvshmemError", "NvshmemInvalid", "SignalOp",
    "TeamConfig", "TeamUniqueId", "Teams", "ThreadSupport", "UniqueID", "Version", "alltoall", "array",
    "array_get_buffer", "atomic_add", "atomic_and", "atomic_compare_swap", "atomic_fetch", "atomic_fetch_add",
    "atomic_fetch_and", "atomic_fetch_inc", "atomic_fetch_or", "atomic_fetch_xor", "atomic_inc", "atomic_or",
    "atomic_set", "atomic_swap", "atomic_xor", "barrier", "barrier_all", "broadcast", "buffer", "bytearray",
    "bytetensor", "collective_on_buffer", "fcollect", "finalize", "flush", "free", "free_array", "free_tensor", "get",
    "get_multicast_array", "get_multicast_buffer", "get_multicast_tensor", "get_name", "get_nbi", "get_peer_array",
    "get_peer_buffer", "get_peer_tensor", "get_team_unique_id", "get_unique_id", "get_version", "init", "init_status",
    "my_pe", "n_pes", "put", "put_nbi", "put_signal", "put_signal_nbi", "query_thread", "quiet", "reduce",
    "reducescatter", "register_external_buffer", "register_external_tensor", "signal_fetch", "signal_op", "signal_wait",
    "sync", "sync_all", "team_destroy", "team_get_config", "team_get_uniqueid", "team_init", "team_my_pe",
    "team_n_pes", "team_split_2d", "team_split_strided", "team_translate_pe", "tensor", "tensor_get_buffer", "type_of",
    "unregister_external_buffer", "unregister_external_tensor", "utils",
]
