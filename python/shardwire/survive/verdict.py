"""Common decisions after a failure, as ULFM's MPIX_Comm_agree and MPIX_Comm_revoke: ``agree`` gives all living ranks
one verdict, and ``revoke`` brings ranks that noticed no failure out of the group's operations.

``agree`` goes over the stores of the processes (agreement.py); ``revoke`` goes over the links of the group, as the
notices of failures do (backend/exec/group_failure.h). Neither needs the group's store.
"""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any, NamedTuple

from ..groups.lookup import resolve_backend
from .reconfigure import members_of, seconds_of


class Agreement(NamedTuple):
    """The answer of :func:`agree`. flag: the bitwise "and" of the flags of the ranks that answered; a bool when all
    flags are bools. dead: ranks in the group, ascending. handles: of the living ranks, in the order of their ranks."""

    flag: int
    dead: tuple[int, ...]
    handles: list[str]


def agree(flag: int = True, group: Any = None, timeout: timedelta | float | None = None) -> Agreement:
    """The living ranks of ``group`` agree on the dead ranks, and on the bitwise "and" of the flags (bool, or int of any
    size), though the group may have failed or may be revoked. Collective among the living ranks, which all get the
    same answer.

    Needs an earlier :func:`shardwire.reconfigure_handles` of the group (ValueError). ``timeout``: a rank that neither
    answers nor ends within this time counts as dead; None: the group's timeout. PeerFailedError on a rank that the
    others have counted as dead; TypeError for a flag that is no int. One agreement at a time. Also a method of the
    group's backend: ``shardwire.resolve_backend(group).agree(flag)``.
    """
    members = members_of(group)
    given = flag if isinstance(flag, bool) else operator.index(flag)
    verdict = members.agree(given, "", seconds_of(group, timeout))
    return Agreement(verdict.flag, verdict.dead, [each.text for number, each in enumerate(members.handles)
                                                  if number not in verdict.dead])


def revoke(group: Any = None) -> None:
    """Ends ``group`` for all its ranks: every pending and later operation fails with an AbortedError that names this
    rank, also on ranks that noticed no failure. Collectives, messages, compiled ops, waits in symmetric memory, and the
    queues of the group. A rank where the group failed before keeps the first reason.

    Not collective: any rank calls, at any time, and the call returns at once. The other ranks can still :func:`agree`,
    :func:`shardwire.shrink` and :func:`shardwire.reconfigure`. Other groups, sub-groups too, go on. AbortedError when
    the group was shut down here. Any thread; a second call does nothing. Also a method of the group's backend.
    """
    resolve_backend(group).revoke()
