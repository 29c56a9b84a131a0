"""Torch's ``dist.shrink_group`` (2.9 and later): the backend of the remaining ranks, which torch puts into a group."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _C
from ..groups.lookup import group_around, store_of, table_by_group
from .meeting import meet
from .reconfigure import Members, members_by_group

_SHRINK_ABORT = 1  # of torch
# By group: the number of calls with these ranks. Each call is a meeting of its own: a call after a failed one must find
# nothing that the failed one left in the stores.
_calls: weakref.WeakKeyDictionary[Any, collections.Counter[tuple[int, ...]]] = table_by_group()


def shrink(backend: Any, ranks: Sequence[int], flags: int, options: Any) -> Any:
    """The backend of the ranks of ``backend`` without ``ranks``, in the same order. Collective among the remaining
    ranks; the others, dead or not, do not call.

    The ranks meet by their handles where :func:`shardwire.reconfigure_handles` has exchanged the handles, else at the
    group's store, which must still be served. flags: 1 ends the pending operations of ``backend`` first. options: of
    the new backend; None: the timeout of ``backend``. ValueError for wrong ranks; errors of the meeting, which name the
    missing rank; call again on all remaining ranks.
    """
    size, out = _C.size(backend), set(ranks)
    if not out or not out < set(range(size)) or len(out) < len(ranks) or _C.rank(backend) in out:
        raise ValueError(f"shrink: ranks {list(ranks)} must be different ranks of the group's {size}, and rank "
                         f"{_C.rank(backend)}, which calls, must not be among them")
    if flags & _SHRINK_ABORT:
        backend.abort()
    timeout = getattr(options, "_timeout", None) or backend.options._timeout
    rest = [each for each in range(size) if each not in out]
    rank, name = rest.index(_C.rank(backend)), f"{_C.group_name(backend)} without {sorted(out)}"
    group = group_around(backend)
    calls = _calls.setdefault(group, collections.Counter())
    calls[tuple(sorted(out))] += 1
    meeting = f"without {sorted(out)}, call {calls[tuple(sorted(out))]}"
    members = members_by_group.get(group)
    if members is None:
        store = dist.PrefixStore(f"shrink {meeting}", store_of(group))
    else:
        members = Members([members.handles[each] for each in rest], f"{members.uuid} {meeting}")
        store = members.store = meet(members.uuid, members.handles, timeout.total_seconds())
    # The default group's numbers are the job's.
    is_default = dist.is_initialized() and group is c10d._get_default_group()
    ranks_of_job = list(range(len(rest))) if is_default else [_C.global_ranks(backend)[each] for each in rest]
    made = _C.create_backend(store, rank, len(rest), timeout, name, ranks_of_job)
    if members is not None:
        members.store.group_is_made()
    return made
