"""Agreement of the surviving processes: each gives a flag, and all get one verdict with the "and" of the flags and the
same dead processes.

The lowest living process coordinates. The coordinator collects the flags at the own store, waits for each process until
the process answers or ends, and puts the verdict into the store. Each process keeps the verdict in the own store before
returning. After the end of a coordinator the next process coordinates, and looks for a verdict at each process before
waiting for the process: a verdict known to any living process stays the verdict.

A coordinator that only is late may come back at any time. So one record at the coordinator's store decides: the first
writer of the record wins, either the coordinator with the verdict, or a process that gives up the coordinator and marks
the record as closed. A coordinator that finds the mark gives no verdict of its own.

The group of the processes may have failed: nothing here goes through the group, nor through the group's store.
"""

from __future__ import annotations

import collections
import functools
import json
import operator
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import PeerFailedError
from .process_handles import OtherProcess, OwnStore, ProcessHandle, own_store

# Between two looks of a waiting process for the end of the others; answers end the wait at once.
LOOK_S = 0.005
# Processes that a waiting process looks at in a turn
_LOOKED_AT = 4
# In the place of a coordinator's verdict: the others go on without this coordinator.
_CLOSED = "closed"


class Verdict(NamedTuple):
    """flag: the bitwise "and" of all flags that came, bools or other numbers. dead: numbers of the ended processes, and
    of processes without an answer in time. why: the first text given with a flag that is 0."""

    flag: int
    dead: tuple[int, ...]
    why: str


def agree_on(members: Sequence[ProcessHandle], dead_before: Sequence[int], key: str, flag: int, why: str,
             seconds: float, on_death: Callable[[str], None] = lambda _: None) -> Verdict:
    """The verdict of ``members`` under ``key``, a name of this agreement alone. ``on_death`` gets each process
    that is found dead, as a text.

    Collective among the living processes, except ``dead_before``: the dead of an earlier verdict. A process without an
    answer within ``seconds`` counts as dead. PeerFailedError when the others have counted this process as dead.
    """
    store = own_store()
    me = members.index(store.handle)
    others = [OtherProcess(each) for each in members]
    given = Verdict(flag, (), why)
    dead = set(dead_before)
    verdict = None if me not in dead else Verdict(False, tuple(sorted(dead)), "")
    while verdict is None:
        coordinator = min(set(range(len(members))) - dead)
        if coordinator == me:
            verdict = _collect(store, others, me, key, given, dead, dead_before, seconds, on_death)
            if verdict is None:
                raise _left_behind(store.handle, seconds)
        else:
            verdict = _ask(others, coordinator, me, key, given, 2 * seconds + len(members), on_death)
            if verdict is None:
                dead.add(coordinator)
                on_death(f"rank {coordinator} ({members[coordinator]})")
    store.ask("put", f"{key}/verdict", _written(verdict))
    if me in verdict.dead:
        raise _left_behind(store.handle, seconds)
    return verdict


def _left_behind(own: ProcessHandle, seconds: float) -> PeerFailedError:
    return PeerFailedError(f"the other processes of the group go on without this one ({own}), which did not answer "
                           f"within {seconds:g} s")


def _written(verdict: Verdict) -> str:
    # Hexadecimal: Python limits the decimal digits of an int
    flag, *rest = verdict
    return json.dumps([flag if isinstance(flag, bool) else hex(flag), *rest])


def _read(text: str | None) -> Verdict | None:
    if text is None or text == _CLOSED:
        return None
    flag, dead, why = json.loads(text)
    return Verdict(int(flag, 16) if isinstance(flag, str) else flag, tuple(dead), why)


def _ask(others: Sequence[OtherProcess], number: int, me: int, key: str, given: Verdict, seconds: float,
         on_death: Callable[[str], None]) -> Verdict | None:
    """The verdict of coordinator ``number``; None when the coordinator has ended or was given up, and after
    ``seconds``."""
    coordinator, end = others[number], time.monotonic() + seconds
    is_given = False
    # The coordinator may wait elsewhere for this process or for a dead one. A waiting process looks at some processes
    # at a time, from the next process on: all waiting processes together soon look at all.
    turns = collections.deque(each for each in [*range(me + 1, len(others)), *range(me)] if each != number)
    while not coordinator.is_gone and time.monotonic() < end:
        is_given = is_given or coordinator.ask("put", f"{key}/{me}", _written(given)) is not None
        kept = coordinator.ask("peek", f"{key}/verdict")
        if kept is not None:
            return _read(kept)
        coordinator.rest(0.2)
        for _ in range(min(_LOOKED_AT, len(turns))):
            each = turns.popleft()
            if others[each].answers():
                turns.append(each)
                continue
            # A silent process is left to the coordinator: an answer that does not come takes a while.
            if others[each].is_gone:
                on_death(f"rank {each} ({others[each].handle})")
            break
    return _close(coordinator, key)


def _verdict_at(other: OtherProcess, key: str) -> Verdict | None:
    return _read(other.ask("peek", f"{key}/verdict"))


def _close(other: OtherProcess, key: str) -> Verdict | None:
    """Keeps a process from giving a verdict. The verdict, where the process was faster."""
    return None if other.is_gone else _read(other.ask("first", f"{key}/verdict", _CLOSED))


def _collect(store: OwnStore, others: Sequence[OtherProcess], me: int, key: str, given: Verdict, dead: set[int],
             dead_before: Sequence[int], seconds: float, on_death: Callable[[str], None]) -> Verdict | None:
    """The coordinator's part. None when the others have given up this process."""
    end = time.monotonic() + seconds
    flags = {me: given}
    missing = [number for number in range(len(others)) if number != me and number not in dead]
    while missing:
        for number in list(missing):
            answer = _read(store.ask("peek", f"{key}/{number}"))
            # Also of a process with an answer: it may have answered this late process long ago
            is_over = time.monotonic() >= end
            earlier = None if is_over and others[number].is_silent else _verdict_at(others[number], key)
            if earlier is not None:
                return earlier
            if answer is not None:
                flags[number] = answer
            elif others[number].is_gone or is_over:
                dead.add(number)
                on_death(f"rank {number} ({others[number].handle})")
            else:
                continue
            missing.remove(number)
        if missing:
            store.rest(LOOK_S)
    for number in sorted(dead.difference(dead_before)):
        earlier = None if others[number].is_silent else _close(others[number], key)
        if earlier is not None:
            return earlier
    verdict = _written(_verdict_of(flags, others, me, dead))
    decided = _read(store.ask("first", f"{key}/verdict", verdict))
    # A process that was stopped just now could not be marked as closed, and the others may have decided meanwhile
    for number in flags if decided is not None else ():
        earlier = None if number == me else _verdict_at(others[number], key)
        if earlier is not None:
            return earlier
    return decided


def _verdict_of(flags: dict[int, Verdict], others: Sequence[OtherProcess], me: int, dead: set[int]) -> Verdict:
    refused = [flags[number] for number in sorted(flags) if not flags[number].flag]
    # A missing bit often follows from a death, perhaps of a process that had answered before.
    both = functools.reduce(operator.and_, (each.flag for each in flags.values()))
    for number in flags if refused or any(each.flag != both for each in flags.values()) else ():
        if number != me:
            others[number].ask("peek", "")
            if others[number].is_gone:
                dead.add(number)
    return Verdict(both, tuple(sorted(dead)), refused[0].why if refused else "")
