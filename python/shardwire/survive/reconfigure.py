"""Groups that go on after the death of a rank, or with other processes: ``reconfigure`` and ``shrink``.

1. Each process has a handle (process_handles.py), which no death of another process makes worthless.
2. ``reconfigure`` ends the old group here, meets the processes of the given handles (meeting.py), and makes the group
   anew: the ranks follow the order of the handles.
3. ``shrink`` knows the handles of a group since ``reconfigure_handles``: the survivors agree on the dead ranks
   (agreement.py), and ``shrink`` reconfigures without them until the remaining ranks all have the new group.
"""

from __future__ import annotations

import inspect
import operator
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _C
from ..compiler.agree import Attempt, exchange
from ..errors import PeerFailedError, ShardwireError, UnsupportedError
from ..groups.timeouts import as_timeout
from ..groups.lookup import (IS_WRAPPED, begin_names_anew, create_over_fresh_store, end_process_group,
                             group_object, resolve_backend, table_by_group, torch_table)
from .agreement import Verdict, agree_on
from .process_handles import ProcessHandle, own_store, parse_handle
from .meeting import digest_of, forget_meeting, meet

_lock = threading.Lock()
_used: set[str] = set()  # of this process
# By torch's group object, of groups whose ranks have exchanged their handles. Weak: a group is not kept alive.
members_by_group: weakref.WeakKeyDictionary[Any, Members] = table_by_group()


class Members:
    """The processes of one group. uuid: the same on all ranks, and of no other group. round: agreements until now.
    dead: by the last one. store: of the group; torch keeps only the C++ half of it."""

    def __init__(self, handles: Sequence[ProcessHandle], uuid: str) -> None:
        self.handles = tuple(handles)
        self.uuid = uuid
        self.name = f"agree/{digest_of(uuid)}"
        self.round = 0
        self.dead: tuple[int, ...] = ()
        self.store: Any = None

    def agree(self, flag: int, why: str, seconds: float, on_death: Callable[[str], None] = lambda _: None) -> Verdict:
        if own_store().handle not in self.handles:
            raise UnsupportedError("this process is none of the group's ranks: it was forked from one, and has a "
                                   "handle of its own; call in the rank itself")
        self.round += 1
        # Each process that lives has the verdict before the last one.
        self._forget(self.round - 2)
        verdict = agree_on(self.handles, self.dead, f"{self.name}/{self.round}", flag, why, seconds, on_death)
        self.dead = verdict.dead
        return verdict

    def forget(self) -> None:
        """To be called when all living processes have the last verdict, and make no other agreement here."""
        self._forget(self.round - 1)
        self._forget(self.round)

    def _forget(self, number: int) -> None:
        if number > 0:
            own_store().ask("remove", f"{self.name}/{number}")


class _Kind(NamedTuple):
    """The properties of the old group that the new one keeps. timeout: of operations; None: torch's default."""

    is_default: bool
    backend: str
    timeout: timedelta | None
    name: str | None
    is_standalone: bool


def reconfigure_handle() -> str:
    """This process's handle for :func:`reconfigure`: an opaque string, the same until the process ends. Needs no group.

    The first call opens a port on which this process serves a store of small records, to callers that prove the job's
    token (SHARDWIRE_JOB_TOKEN). Any thread. OSError where no port can be had.
    """
    return own_store().handle.text


def reconfigure_handles(group: Any = None) -> list[str]:
    """The handles of the group's ranks, by rank. Collective at the first call for a group; a group that
    :func:`reconfigure` or :func:`shrink` made knows them already.

    Call it while all ranks live: :func:`agree` and :func:`shrink` need the handles after a death.
    """
    group = group_object(group)
    members = members_by_group.get(group)
    if members is None:
        words: list[str] = []
        with Attempt() as attempt:  # no port, no descriptor
            words = [own_store().handle.text, secrets.token_hex(8)]
        answers = [blob.decode().split(" ")
                   for blob in exchange(resolve_backend(group), "reconfigure_handles", "", " ".join(words).encode(),
                                        attempt.error)]
        members = members_by_group[group] = Members([parse_handle(text) for text, _ in answers], answers[0][1])
    return [each.text for each in members.handles]


def reconfigure(group: Any, uuid: str, handles: Sequence[str], timeout: timedelta | float | None = None,
                backend: str | None = None) -> Any:
    """Makes ``group`` anew of the processes with these handles; their order gives the ranks. Returns the new group.

    Collective: each process of ``handles`` calls, with the same ``uuid`` and ``handles``. Members of the old group that
    are not in ``handles`` do not call; processes without a group call with None. So a group loses ranks, gets new ones,
    is split, or is joined with another one.

    group: None: the default group; ``dist.get_rank()`` and ``dist.get_world_size()`` then return new values. The old
        group ends on this rank, failed or not: its pending operations fail with AbortedError. Of the default group all
        other groups of torch end too, as in ``dist.destroy_process_group()``: make sub-groups, DeviceMeshes, compiled
        ops, queues and symmetric memory anew.
    uuid: a name of this call; a name that this process used before is refused ("already used").
    timeout: for the meeting, and again for the making of the group; None: the old group's timeout, else 30 minutes. The
        new group keeps the old one's timeout.
    backend: as in ``init_process_group``, for a default group that did not exist here; None: "shardwire".

    ValueError, with the old group untouched, for handles without this process's, or with one twice. Afterwards the old
    group has ended in any case: PeerFailedError when a process of ``handles`` ended, TimeoutError when one did not
    come, MismatchError when lists differ. Call again with a new ``uuid``.
    """
    kind = _kind_of(group, backend)
    members = [parse_handle(text) for text in handles]
    own = own_store().handle
    if not isinstance(uuid, str) or not uuid:
        raise TypeError("uuid must be a str of at least one character")
    if own not in members:
        raise ValueError(f"the handles are of {', '.join(map(str, members)) or 'no process'}, and this is {own}: a "
                         "process that leaves the group does not call reconfigure")
    if len(set(members)) < len(members):
        twice = next(each for each in members if members.count(each) > 1)
        raise ValueError(f"the handle of {twice} stands twice in the list; give each process once")
    with _lock:
        if uuid in _used:
            raise ValueError(f"uuid {uuid!r} was already used in this process; give each reconfiguration another uuid")
        _used.add(uuid)
    seconds = as_timeout(kind.timeout if timeout is None else timeout).total_seconds()
    _end(group)
    return _remake(kind, Members(members, uuid), seconds)


def shrink(group: Any = None, ranks: Iterable[int] = (), timeout: timedelta | float | None = None) -> Any:
    """The living ranks of ``group`` go on without the dead ranks and without ``ranks``. Returns the new group, in which
    the ranks keep their order; None on a rank of ``ranks``, where the group has ended.

    Collective among the living ranks, ``ranks`` too. Needs an earlier :func:`reconfigure_handles` of the group
    (ValueError). Ranks that die meanwhile are left out as well. After a death the old group is revoked: ranks that
    still wait in the old group get an AbortedError, and call too. ``timeout``: how long a rank that neither answers nor
    ends is waited for; None: the group's timeout. :func:`reconfigure` says which objects end with the old group.
    """
    members = members_of(group)
    seconds = seconds_of(group, timeout)
    given = list(ranks)
    if not all(hasattr(rank, "__index__") for rank in given):
        raise TypeError(f"ranks is {given}; give ranks of the group, as ints")
    leaving = {operator.index(rank) for rank in given}
    if not leaving <= set(range(len(members.handles))):
        raise ValueError(f"ranks {sorted(leaving)} are not all in a group of {len(members.handles)} ranks")
    kind = _kind_of(group, None)
    own = own_store().handle
    # Another rank may wait in the group for a rank that has come here because of an error of another group.
    backend = resolve_backend(group)
    verdict = members.agree(True, "", seconds, lambda dead: _C.revoke(backend, f"{dead} has ended"))
    made, former = group, [members]
    while True:
        dead = leaving | set(verdict.dead)
        rest = [each for number, each in enumerate(members.handles) if number not in dead]
        _end(made)
        if own not in rest:
            return None
        why, leaving = "", set()
        # With the list: ranks with different lists, after a broken network for one, must not meet
        texts = [each.text for each in rest]
        members = Members(rest, f"shrink {digest_of(members.uuid, str(members.round), *texts)}")
        try:
            made = _remake(kind, members, seconds)
        except (RuntimeError, OSError) as error:  # ShardwireError, and what stores raise
            made, why = _NONE, f"{own}: {error}"
        # Which of the ranks have the new group is agreed on too: a rank may have died in between. A rank may come from
        # the meeting, and then from making the group, at its timeout.
        verdict = members.agree(made is not _NONE, why, 3 * seconds)
        if verdict.flag and not verdict.dead and made is not _NONE:
            for each in former:
                each.forget()
            return made
        if verdict.flag and not verdict.dead:
            raise PeerFailedError(f"the other ranks made the group anew, and this rank could not join them: {why}")
        if not verdict.dead:
            _end(made)
            raise ShardwireError(f"the living ranks could not make the group anew: {verdict.why}")
        former.append(members)


_NONE = object()  # no group at all, where None is the default group


def _end(group: Any) -> None:
    if group is _NONE or group is None and not dist.is_initialized():
        return
    members = members_by_group.get(group_object(group))
    end_process_group(group)
    if members is not None and members.store is not None and members.handles[0] == own_store().handle:
        forget_meeting(members.uuid)


def _remake(kind: _Kind, members: Members, seconds: float) -> Any:
    handles = members.handles
    store = meet(members.uuid, handles, seconds)
    rank, size = handles.index(own_store().handle), len(handles)
    try:
        if kind.is_default:
            begin_names_anew(digest_of(members.uuid))
            _remove_torch_excepthook()
            dist.init_process_group(kind.backend, store=store, rank=rank, world_size=size, timeout=as_timeout(seconds))
            made = c10d._get_default_group()
        else:
            made = create_over_fresh_store(store, rank, size, seconds, kind.name, kind.is_standalone)
    except Exception as error:
        if kind.is_default:
            _end(None)  # torch may have entered the group already
        # The error of a store, or of a lost connection to the store, is only a consequence of a death.
        if not isinstance(error, PeerFailedError) and (ended := store.who_ended()):
            raise PeerFailedError(f"reconfigure {members.uuid!r}: {ended}") from error
        raise
    _set_timeout(made, as_timeout(kind.timeout))
    store.group_is_made()
    members.store, members_by_group[made] = store, members
    return made


def _remove_torch_excepthook() -> None:
    """torch's init_process_group wraps sys.excepthook, to begin each line with "[rank0]: ", and nothing removes the
    wrapper: after many groups each line of an error would begin with as many ranks."""
    hook = sys.excepthook
    if getattr(hook, "__qualname__", "").startswith("init_process_group.<locals>.") and inspect.isfunction(hook):
        sys.excepthook = inspect.getclosurevars(hook).nonlocals.get("old_hook", hook)


def _set_timeout(made: Any, timeout: timedelta) -> None:
    for each in [made._get_backend(device) for device in made._device_types] if IS_WRAPPED else [made]:
        if hasattr(each, "_set_default_timeout"):
            each._set_default_timeout(timeout)


def members_of(group: Any) -> Members:
    """ValueError where the ranks have not exchanged their handles."""
    members = members_by_group.get(group_object(group))
    if members is None:
        raise ValueError("the group's ranks do not know each other's handles; call "
                         "shardwire.reconfigure_handles(group) on all ranks when the group is made")
    return members


def seconds_of(group: Any, timeout: timedelta | float | None) -> float:
    """None: the group's timeout."""
    return (as_timeout(timeout) if timeout is not None else resolve_backend(group).options._timeout).total_seconds()


def _configured(group: Any) -> str:
    """The backend for init_process_group: a name alone where the name means the same, since torch gives such a group a
    default backend, whose name the group has."""
    name = str(dist.get_backend(group))
    if not hasattr(dist, "get_backend_config"):  # 1.13
        return name
    configured = str(dist.get_backend_config(group))
    return name if configured == str(c10d.BackendConfig(c10d.Backend(name))) else configured


def _kind_of(group: Any, backend: str | None) -> _Kind:
    if group is None and not dist.is_initialized():
        return _Kind(True, backend or "shardwire", None, None, False)
    native = resolve_backend(group)
    found = group_object(group)
    timeout = native.options._timeout
    if dist.is_initialized() and found is c10d._get_default_group():
        return _Kind(True, backend or _configured(found), timeout, None, False)
    return _Kind(False, "shardwire", timeout, _C.group_name(native), found not in torch_table("pg_map"))
