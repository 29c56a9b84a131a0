"""The members of a group made with ``enable_reconfigure`` (torch 2.14 and later), for ``dist._reconfigure``.

Torch gives a handle to each group, so a handle here is the process's handle and a random name of the group in this
process. The C++ part of the group calls a Membership; the group's own thread rules apply.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _C
from ..errors import ShardwireError
from ..groups.create import chosen_timeout
from ..groups.lookup import begin_names_anew, forget_members, store_by_group
from ..process.log import route
from .process_handles import own_store, parse_handle
from .meeting import digest_of, forget_meeting, meet
from .reconfigure import Members, members_by_group


def create_reconfigurable(options: Any, backend_options: Any, for_gloo: bool) -> Any:
    """The backend of a group without members; arguments as of create_from_options."""
    route()
    return _C.create_reconfigurable_backend(Membership(options.process_group), options.group_rank, options.group_size,
                                            chosen_timeout(options, backend_options), options.group_id, for_gloo)


class Membership:
    """Of one group in this process; backend/c10d/membership.h has the contract."""

    def __init__(self, process_group: Any) -> None:
        self._group = weakref.ref(process_group)
        self._name = secrets.token_hex(8)
        self._used: set[int] = set()
        self._next: Members | None = None
        self._met = ""  # the name of a meeting that this rank's store served

    def handle(self) -> str:
        return f"{own_store().handle.text}:{self._name}"

    def check(self, uuid: int, handles: Sequence[str]) -> None:
        split = [text.rpartition(":") for text in handles]
        members = [parse_handle(text) for text, _, _ in split]
        if self.handle() not in handles:
            raise ValueError(f"reconfigure {uuid}: the handle of this group in this process is not in the list of "
                             f"{', '.join(map(str, members)) or 'no process'}; a rank that leaves does not call")
        if len(set(members)) < len(members):
            raise ValueError(f"reconfigure {uuid}: a process stands twice in the list; give each process once")
        if uuid in self._used:
            raise ShardwireError(f"uuid {uuid} was already used for this group; give each reconfiguration its own")
        self._used.add(uuid)
        # The name is that of no other group: another group of the same processes may use the same number.
        self._next = Members(members, f"torch {uuid} {split[0][2]}")

    def meet(self, timeout: timedelta) -> tuple[Any, int, int]:
        assert self._next is not None, "check() comes first"
        if self._met:
            forget_meeting(self._met)
        handles = self._next.handles
        self._met = self._next.uuid if handles[0] == own_store().handle else ""
        self._next.store = meet(self._next.uuid, handles, timeout.total_seconds())
        return self._next.store, handles.index(own_store().handle), len(handles)

    def is_made(self) -> None:
        members, group = self._next, self._group()
        assert members is not None, "meet() comes first"
        members.store.group_is_made()
        if group is not None:
            forget_members(group)
            store_by_group[group] = members.store
            members_by_group[group] = members
            if dist.is_initialized() and group is c10d._get_default_group():
                begin_names_anew(digest_of(members.uuid))
