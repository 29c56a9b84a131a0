"""The meeting of the processes that make a group: at the store of the first process, which becomes rank 0.

Each process says that it is there, and with which list of handles. Rank 0 waits for all, looks for processes that end
meanwhile, and answers: all get the store of the new group, or all raise the same error.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from functools import partial

from ..errors import MismatchError, PeerFailedError, TimeoutError
from ..records.client import RecordClient, RecordStore, RenewedClient
from .agreement import LOOK_S
from .process_handles import OtherProcess, ProcessHandle, own_store


# The address of a rank, in the store of a group (backend/bootstrap/roster.h).
_ADDRESS_KEY = re.compile(r"shardwire/(\d+)(?:/|$)")


def digest_of(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def meet(uuid: str, members: Sequence[ProcessHandle], seconds: float) -> GroupStore:
    """The store of the new group, which the first process serves. The error names ``uuid``, and the process that has
    ended (PeerFailedError), did not come in time (TimeoutError), or has another list (MismatchError)."""
    store, place = own_store(), _place(uuid)
    rank = members.index(store.handle)
    digest = digest_of(*(each.text for each in members))
    end = time.monotonic() + seconds
    others = [OtherProcess(each) for each in members]
    first = others[0]
    if rank == 0:
        answer = _await_all(others, place, digest, end)
        store.ask("put", f"{place}/answer", answer)
    else:
        answer = _answer_of(first, place, digest, end)
    if answer != "all":
        name, _, text = answer.partition(" ")
        raise {each.__name__: each for each in (MismatchError, PeerFailedError, TimeoutError)}[name](
            f"reconfigure {uuid!r}: {text}")
    client = RenewedClient(partial(_connected, uuid, OtherProcess(members[0]), seconds))
    return GroupStore(client, f"{place}/group/", others)


def _connected(uuid: str, first: OtherProcess, seconds: float) -> RecordClient:
    """A connection to the store of rank 0, which has ``seconds`` for this and for each answer."""
    end = time.monotonic() + seconds
    while (client := first.connect(seconds)) is None:
        if first.is_gone:
            raise PeerFailedError(f"reconfigure {uuid!r}: rank 0 ({first.handle}) has ended")
        if time.monotonic() > end:
            raise TimeoutError(f"reconfigure {uuid!r}: rank 0 ({first.handle}) does not answer")
    return client


def forget_meeting(uuid: str) -> None:
    """Rank 0's part of the end of a group: removes the group's store."""
    own_store().ask("remove", _place(uuid))


def _place(uuid: str) -> str:
    # A digest: what is removed with one place begins no other place.
    return f"meet/{digest_of(uuid)}"


class GroupStore(RecordStore):
    """The store of a group. While the group is made, PeerFailedError instead of the timeout when a rank has ended that
    is waited for: for its address, or in the barrier by which torch 1.13 ends init_process_group, which asks again and
    again for the number of ranks."""

    def __init__(self, client: RenewedClient, prefix: str, others: Sequence[OtherProcess]) -> None:
        super().__init__(client, prefix)
        self._others = others
        self._ended = ""  # the first rank noticed; others end in consequence

    def add(self, key: str, amount: int) -> int:
        if amount == 0 and (ended := self.who_ended()):
            raise PeerFailedError(ended)
        return super().add(key, amount)

    def check(self, keys: list[str]) -> bool:
        if super().check(keys):
            return True
        for key in keys:
            owner = _ADDRESS_KEY.search(key)
            if owner is not None and (ended := self.who_ended(int(owner[1]))):
                raise PeerFailedError(ended)
        return False

    def who_ended(self, *ranks: int) -> str:
        """"rank 2 (pid 7 on host a) has ended": the first of ``ranks``, of all when none is given; "" for none."""
        for rank, other in enumerate(self._others if not self._ended else ()):
            if not ranks or rank in ranks:
                other.ask("peek", "")
                if other.is_gone:
                    self._ended = f"rank {rank} ({other.handle}) has ended"
                    break
        return self._ended

    def group_is_made(self) -> None:
        """Closes the connections to the other processes."""
        self._others = ()


def _answer_of(first: OtherProcess, place: str, digest: str, end: float) -> str:
    """The answer of rank 0: "all", or the name of an error's class and a text, which all ranks raise."""
    is_here = False
    while time.monotonic() < end:
        is_here = is_here or first.ask("put", f"{place}/{own_store().handle.process}", digest) is not None
        answer = first.ask("peek", f"{place}/answer")
        if answer is not None:
            return str(answer)
        if first.is_gone:
            return f"PeerFailedError rank 0 ({first.handle}) has ended, or cannot be reached"
        first.rest(0.2)
    return f"TimeoutError rank 0 ({first.handle}) did not come in time"


def _await_all(others: Sequence[OtherProcess], place: str, digest: str, end: float) -> str:
    """Rank 0's part of _answer_of."""
    store = own_store()
    missing = list(range(1, len(others)))
    while missing:
        for rank in list(missing):
            here = store.ask("peek", f"{place}/{others[rank].handle.process}")
            if here is not None and here != digest:
                return (f"MismatchError rank 0 and {others[rank].handle} gave different handles, or in another order")
            if here is not None:
                missing.remove(rank)
                continue
            others[rank].ask("peek", "")
            if others[rank].is_gone:
                return f"PeerFailedError rank {rank} ({others[rank].handle}) has ended, or cannot be reached"
        if missing and time.monotonic() > end:
            names = ", ".join(f"rank {rank} ({others[rank].handle})" for rank in missing)
            return f"TimeoutError {names} did not come in time"
        if missing:
            store.rest(LOOK_S)
    return "all"
