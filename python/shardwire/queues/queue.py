"""shardwire.Queue: entries between ranks (docs/queue.md)."""

from __future__ import annotations

import queue as standard
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, overload

import torch

from .. import _C
from ..compiler.future import Seconds, as_seconds
from ..compiler.other_order import other_order
from ..groups.lookup import group_named, name_of_group
from ..plain.handles import Handle, register_handle
from ..errors import ClosedError, PeerFailedError, ShardwireError
from . import awaiting, content, wire
from .hub import Hub, hub_of
from .use_link import Call, UseLink
from .watching import wait_any
from .wire import Outcome
from .works import LocalPut, QueueWork, RemotePut, Transaction, open_transaction


class _Received(NamedTuple):
    """An entry of another rank, with its bytes on this rank."""

    found: content.Content
    parts: list[torch.Tensor]
    tensor: torch.Tensor | None
    size: int


class Queue:
    """A first-in first-out queue of tensors and objects, held by one rank or by several ranks.

    Every rank of the group can put. With one location every rank can get, and each entry goes to one getter. With
    several locations each location gets every entry, out of its own part. No call is a collective, and no call affects
    the order of the group's collectives.

    group: as in :func:`compile_op`: a shardwire group, a name, None for the default group; ``Queue(location=0)`` uses
        the default group.
    location: the rank that holds the queue, or several, as ranks of the group.
    name: ranks make a named queue at any time, and the queue can be pickled or sent through another queue. Unnamed
        queues are matched by the order in which a rank makes them: all ranks that use unnamed queues make the same
        queues in the same order.
    capacity: the number of entries for which each location has room; putters wait for room. None, or 0 as in
        ``queue.Queue``: no limit.
    survive: the behaviour of getters when a rank dies that had put into the queue. False: a getter that finds the queue
        empty gets PeerFailedError with the rank's name. True: getters go on waiting for other putters.
    allow_pickle: objects that are not plain (see :func:`serialize`) travel by pickle. Reading a pickle runs any code
        that the writer put into the pickle.
    process_group, streaming: moodist's arguments, also by position: ``Queue(process_group, location, streaming,
        name)``. process_group is ``group``; streaming changes nothing, since every entry travels while the putter goes
        on.

    location and streaming are attributes, as given; locations is the tuple of ranks.

    capacity, survive and location must be equal on all ranks; ValueError shows both values where ranks differ. Usable
    from any thread. ``with Queue(...) as queue:`` closes the queue at the end of the block, for all ranks. A queue that
    was read out of another queue, or by :func:`deserialize`, is made on this rank at its first use.
    """

    hub: Hub

    @other_order(3, bool, ("group", "location", "streaming", "name"), fixed=1)
    def __init__(self, group: Any = None, location: int | Iterable[int] | None = None, name: str | None = None, *,
                 capacity: int | None = None, survive: bool = False, allow_pickle: bool = False,
                 process_group: Any = None, streaming: bool = False) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name is {name!r}; give a text, or None")
        if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 0):
            raise ValueError(f"capacity is {capacity!r}; give the number of entries, or 0 or None for no limit")
        if process_group is not None and group is not None:
            raise TypeError("group and process_group are the same; give one of them")
        group = process_group if group is None else group
        self.locations = _ranks_of(location)
        self.location = location if isinstance(location, (int, list, tuple)) else self.locations
        self.streaming = bool(streaming)
        self.name, self.capacity, self.survive, self.allow_pickle = (
            name, capacity or None, bool(survive), bool(allow_pickle))
        self._group = group
        self._join()

    def _join(self) -> Hub:
        """Enters the queue into this rank's hub. For a queue that was read this is the first use: reading alone makes
        nothing."""
        group = self._group
        group, hub = hub_of(group_named(group) if isinstance(group, str) else group)
        hub.check_process()
        if max(self.locations) >= hub.size:
            raise ValueError(f"location is {list(self.locations)}; give different ranks of 0 to {hub.size - 1}, at "
                             "least one")
        name, about = self.name, [list(self.locations), self.capacity, self.survive]
        key = f"unnamed {next(hub.unnamed)}" if name is None else f"name {name}"
        label = f"Queue {name!r}" if name is not None else f"Queue #{key.split()[1]} of group {hub.label!r}"
        before = hub.about.setdefault(key, about)
        if before != about:
            raise ValueError(f"{label} was made with (location, capacity, survive) = {before} on this rank, and now "
                             f"with {about}; take another name, or the same values")
        self._about, self.key, self.label = about, key, label
        self._held = hub.hold(key, about, self.capacity, self.survive) if hub.rank in self.locations else None
        # last: other threads may use the queue after this line
        self._group, self.hub = group, hub
        return hub

    def __getattr__(self, name: str) -> Any:
        """The hub of a queue that was read, at the queue's first use. From then on ``hub`` is an attribute, which each
        call reads several times."""
        if name != "hub":
            raise AttributeError(f"a Queue has no attribute {name!r}")
        return self._join()

    @property
    def group(self) -> Any:
        """The process group; the group's name for a queue that was read and not used yet."""
        return self._group

    @property
    def process_group_name(self) -> str:
        """The name of the process group. ValueError for a group without a name."""
        return self._group if isinstance(self._group, str) else name_of_group(self._group)

    @property
    def impl(self) -> Any:
        """moodist's inner queue, of which ``impl.name()``, ``impl.qsize()`` and ``impl.wait(timeout)`` are here."""
        return SimpleNamespace(name=lambda: self.name or self.key, qsize=self.qsize, wait=self.wait)

    # ---- locations and links

    def links(self, deadline: float | None) -> list[tuple[UseLink | None, int]]:
        """For each location: the link and the queue's number there; None for this rank."""
        self.hub.check_process()
        return [(None, 0) if rank == self.hub.rank else self._link(rank, deadline) for rank in self.locations]

    def _link(self, rank: int, deadline: float | None) -> tuple[UseLink, int]:
        link = self.hub.link_to(rank, deadline)
        number = link.numbers.get(self.key)
        return link, link.open(self.key, self._about, self.label, deadline) if number is None else number

    def links_made(self) -> list[tuple[UseLink, int]]:
        """The existing, unbroken links."""
        made = [(rank, self.hub.link_if_made(rank)) for rank in self.locations if rank != self.hub.rank]
        return [(link, link.numbers[self.key]) for _, link in made if link is not None and self.key in link.numbers]

    def is_linked(self) -> bool:
        """Whether the queue can be used without a request to a location first: then links() and source() do not
        wait."""
        return len(self.links_made()) == len([rank for rank in self.locations if rank != self.hub.rank])

    def source(self, what: str, deadline: float | None) -> tuple[UseLink | None, int]:
        """The link from which this rank gets, and the queue's number there; None: this rank's own part."""
        self.hub.check_process()
        if self._held is not None:
            return None, 0
        if len(self.locations) > 1:
            raise ValueError(f"{self.label}: {what} on rank {self.hub.rank}, which is none of its locations "
                             f"{list(self.locations)}; in a queue with several locations each rank has its own entries")
        return self._link(self.locations[0], deadline)

    def held(self) -> Any:
        """This rank's part. Call this only where source() returned None for the link."""
        assert self._held is not None
        return self._held

    @staticmethod
    def blocks(block: bool, timeout: Seconds) -> bool:
        """Whether a call waits. A timeout of 0 means now: an entry or room counts only at this moment, however far away
        the holder is."""
        return block and (timeout is None or as_seconds(timeout) != 0)

    def deadline(self, block: bool, timeout: Seconds) -> tuple[float, float]:
        """The deadline, and the seconds until then. A call that does not block still waits for the holder's answer."""
        limit = as_seconds(timeout)
        seconds = self.hub.silence if limit is None or not block else min(limit, 1e9)
        return time.monotonic() + seconds, seconds

    # ---- putting

    def put(self, value: Any, block: bool = True, timeout: Seconds = None, *, async_op: bool = False) -> QueueWork:
        """Puts a tensor or an object. Returns when getters can get the entry, and the tensors may change again;
        async_op: returns at once, and the work reports the end of the put.

        block, timeout: of a queue with a capacity, how long to wait for room: ``queue.Full`` after that; None: as long
            as the group's timeout; 0: as block=False.

        Raises ClosedError for a closed queue, PeerFailedError with the name of a location that died.
        """
        return self._put(*self.content_of(value), block, timeout, async_op)

    def put_tensor(self, tensor: torch.Tensor, block: bool = True, timeout: Seconds = None, *,
                   async_op: bool = False, transaction: Transaction | int = 0) -> QueueWork:
        """As :meth:`put`, of a tensor. transaction: an open :class:`Transaction` of this queue or its ``id``: the same
        as ``transaction.put_tensor(tensor)``; 0: none."""
        if transaction:
            return open_transaction(transaction, self).put_tensor(tensor, async_op)
        return self._put(*self.content_of(tensor, "tensor"), block, timeout, async_op)

    def put_object(self, object: Any, block: bool = True, timeout: Seconds = None, *,
                   async_op: bool = False, transaction: Transaction | int = 0) -> QueueWork:
        """As :meth:`put_tensor`, of an object; the object may also be a tensor."""
        if transaction:
            return open_transaction(transaction, self).put_object(object, async_op)
        return self._put(*self.content_of(object, "object"), block, timeout, async_op)

    def content_of(self, value: Any, kind: str | None = None) -> tuple[bytes, list[torch.Tensor]]:
        if kind == "tensor" or kind is None and type(value) in (torch.Tensor, torch.nn.Parameter):
            return content.of_tensor(value)
        return content.of_object(value, self.allow_pickle)

    def put_nowait(self, value: Any) -> None:
        """As ``put(value, block=False)``."""
        self.put(value, block=False)

    async def put_async(self, value: Any, timeout: Seconds = None) -> None:
        """As :meth:`put`, for asyncio: the event loop goes on while the put waits. Cancelling takes a put back that
        still waits for room."""
        await awaiting.put(self, *self.content_of(value), timeout)

    def _put(self, head: bytes, parts: list[torch.Tensor], block: bool, timeout: Seconds, async_op: bool) -> QueueWork:
        if async_op and timeout is not None:
            raise ValueError("async_op returns at once: give the timeout to the work's wait")
        block = self.blocks(block, timeout)
        deadline, seconds = self.deadline(block, timeout)
        work = self.begin_put(head, parts, block, deadline)
        if not async_op:
            work.put_or_give_up(deadline, seconds if block else 0.0)
        return work

    def begin_put(self, head: bytes, parts: list[torch.Tensor], block: bool, deadline: float) -> QueueWork:
        puts: list[Any] = []
        for link, number in self.links(deadline):
            if link is None:
                puts.append(LocalPut(self, [_C.QueueEntry(head, parts)], block))
            else:
                puts.append(RemotePut(
                    link, link.ask(wire.PUT, number, flags=0 if block else wire.NOT_BLOCKING, head=head, parts=parts)))
        return QueueWork(self, puts, parts)

    def transaction(self, block: bool = True, timeout: Seconds = None) -> Transaction:
        """Puts that appear together or not at all; see :class:`Transaction`. block, timeout: for room at the end of the
        transaction, as in :meth:`put`."""
        return Transaction(self, block, timeout)

    def commit(self, number: int, local: list[Any], block: bool, timeout: float | None) -> None:
        """Ends a transaction. Called by Transaction."""
        deadline, seconds = self.deadline(block, timeout)
        puts: list[Any] = []
        for link, there in self.links(deadline):
            if link is None:
                puts.append(LocalPut(self, local, block))
            else:
                puts.append(RemotePut(
                    link, link.ask(wire.COMMIT, there, flags=0 if block else wire.NOT_BLOCKING, value=number)))
        QueueWork(self, puts, None).put_or_give_up(deadline, seconds if block else 0.0)

    def full_error(self, waited: float) -> standard.Full:
        return standard.Full(f"{self.label} had no room within {waited:.3g} s: {self.why_full()}")

    def why_full(self) -> str:
        return (f"its capacity is {self.capacity}" if self.capacity is not None
                else f"its location {list(self.locations)} has not taken it")

    # ---- getting

    @overload
    def get(self, block: bool = True, timeout: Seconds = None, *, out: torch.Tensor,
            return_size: Literal[False] = False) -> torch.Tensor: ...
    @overload
    def get(self, block: bool = True, timeout: Seconds = None, *, out: torch.Tensor | None = None,
            return_size: Literal[True]) -> tuple[Any, int]: ...
    @overload
    def get(self, block: bool = True, timeout: Seconds = None, *, out: torch.Tensor | None = None,
            return_size: bool = False) -> Any: ...

    def get(self, block: bool = True, timeout: Seconds = None, *, out: torch.Tensor | None = None,
            return_size: bool = False) -> Any:
        """The next entry, a tensor or an object, as it was put. Getters are served in the order of arrival, on all
        ranks.

        block: False: ``queue.Empty`` when there is no entry. timeout: Empty after that; None: as long as the group's
            timeout; 0: as block=False.
        out: a tensor that is written and returned, for entries of its dtype and shape; a contiguous CPU tensor receives
            the bytes directly.
        return_size: return a pair: the entry, and the number of entries left.

        Raises ClosedError when the queue is closed and drained; PeerFailedError with the rank's name when the rank that
        holds the queue died, or (unless ``survive``) the queue is empty and a rank that had put into the queue died;
        TimeoutError when the holder answers nothing at all.
        """
        return self._get(None, block, timeout, out, return_size)

    @overload
    def get_tensor(self, block: bool = True, timeout: Seconds = None, return_size: Literal[False] = False, *,
                   out: torch.Tensor | None = None) -> torch.Tensor: ...
    @overload
    def get_tensor(self, block: bool, timeout: Seconds, return_size: Literal[True], *,
                   out: torch.Tensor | None = None) -> tuple[torch.Tensor, int]: ...
    @overload
    def get_tensor(self, block: bool = True, timeout: Seconds = None, *, return_size: Literal[True],
                   out: torch.Tensor | None = None) -> tuple[torch.Tensor, int]: ...

    def get_tensor(self, block: bool = True, timeout: Seconds = None, return_size: bool = False, *,
                   out: torch.Tensor | None = None) -> Any:
        """As :meth:`get`, of a tensor; TypeError when the next entry is an object, which stays in the queue."""
        return self._get("tensor", block, timeout, out, return_size)

    def get_object(self, block: bool = True, timeout: Seconds = None, return_size: bool = False) -> Any:
        """As :meth:`get`, of an object, put as an object or as ``put_tensor(serialize(x))``; TypeError when the next
        entry is another tensor, which stays in the queue."""
        return self._get("object", block, timeout, None, return_size)

    def get_nowait(self) -> Any:
        """As ``get(block=False)``."""
        return self.get(block=False)

    async def get_async(self, timeout: Seconds = None, *, out: torch.Tensor | None = None) -> Any:
        """As :meth:`get`, for asyncio: the event loop goes on while the getter waits. A cancelled getter has taken
        nothing. ``async for value in queue`` goes on until the queue is closed and drained.
        """
        return await awaiting.get(self, timeout, out)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            try:
                value = await self.get_async()
            except ClosedError:
                return
            yield value

    def _get(self, wanted: str | None, block: bool, timeout: Seconds, out: torch.Tensor | None,
             return_size: bool) -> Any:
        block = self.blocks(block, timeout)
        deadline, seconds = self.deadline(block, timeout)
        link, number = self.source("get", deadline)
        if link is None:
            value, size = self._get_here(wanted, block, deadline, seconds, out)
        else:
            call = link.ask(wire.GET, number, flags=0 if block else wire.NOT_BLOCKING)
            value, size = self._take(link, call, wanted, deadline, seconds, out)
        return (value, size) if return_size else value

    def _take(self, link: UseLink, call: Call, wanted: str | None, deadline: float, seconds: float,
              out: torch.Tensor | None) -> tuple[Any, int]:
        """The entry that a GET requested from another rank."""
        return self.taken(link, call, self.receive(link, call, wanted, deadline, seconds, out), out)

    def receive(self, link: UseLink, call: Call, wanted: str | None, deadline: float, seconds: float,
                out: torch.Tensor | None) -> _Received:
        """The entry's bytes. The holder keeps the entry until this rank confirms it with TAKEN."""
        message = None
        try:
            message = link.answer(call, deadline)
            if message is None:
                raise self.nothing(seconds)
            if message.op != wire.OK:
                raise self.error_of(message.outcome())
            found = content.Content(message.head)
            if wanted is not None or out is not None:
                found.check(wanted, out)
            if message.parts is not None:
                return _Received(found, message.parts, None, message.value)
            parts, tensor = found.memory(message.part_sizes, out)
        except BaseException:
            link.give_up(call, message)
            raise
        link.receive(call, parts)
        return _Received(found, parts, tensor, message.value)

    def taken(self, link: UseLink, call: Call, came: _Received, out: torch.Tensor | None) -> tuple[Any, int]:
        """The value and the queue's size. An entry that this rank cannot read goes back: another getter may read it."""
        try:
            value = came.found.value(came.parts, came.tensor, out, self.allow_pickle)
            link.send_note(wire.TAKEN, call.queue, call.request)
        except BaseException:
            link.send_note(wire.CANCEL, call.queue, call.request)
            raise
        return value, came.size

    def error_of(self, why: str) -> Exception:
        """The error of a getter that was served without an entry."""
        if self.hub.revoked:
            return self.hub.revoked_error()
        if why == Outcome.NOTHING:
            return self.nothing(0.0)
        if why == Outcome.OVER:
            return ClosedError(f"{self.label} is closed, and everything was taken from it")
        return PeerFailedError(f"{self.label} is empty, and {why}")

    def nothing(self, seconds: float) -> standard.Empty:
        return standard.Empty(f"{self.label}: no entry came within {seconds:.3g} s" if seconds
                              else f"{self.label} is empty")

    def _get_here(self, wanted: str | None, block: bool, deadline: float, seconds: float,
                  out: torch.Tensor | None) -> tuple[Any, int]:
        call = _C.QueueLocalCall(self.hub.holder, self.held())
        try:
            call.get(True, block)
            if not call.wait(deadline - time.monotonic()) and call.give_up():
                raise self.nothing(seconds)
            return self.served(call, wanted, out)
        except BaseException:
            call.give_back()
            raise

    def served(self, call: Any, wanted: str | None, out: torch.Tensor | None) -> tuple[Any, int]:
        """The value that a getter of this rank's part was served with, and the queue's size. Raises when the getter
        cannot take the entry."""
        result = wire.result_of(call)
        if result.head is None:
            raise self.error_of(result.outcome)
        found = content.Content(result.head)
        if wanted is not None or out is not None:
            found.check(wanted, out)
        value = found.value(result.parts, None, out, self.allow_pickle)
        call.taken()
        return value, result.left

    def stream(self, ahead: int = 2) -> Iterator[Any]:
        """The entries, one after the other, until the queue is closed and drained. The stream requests `ahead` more
        entries before the loop needs them, so that these entries travel while the loop works. Entries that the loop did
        not reach go back to the queue when the loop ends. Each wait is as in :meth:`get`.
        """
        if self.hub.rank in self.locations or ahead < 1:
            yield from self
            return
        asked: list[tuple[UseLink, Call]] = []
        try:
            while True:
                deadline, seconds = self.deadline(True, None)
                link, number = self.source("stream", deadline)
                assert link is not None
                while len(asked) <= ahead:
                    asked.append((link, link.ask(wire.GET, number)))
                first, call = asked.pop(0)
                try:
                    value, _ = self._take(first, call, None, deadline, seconds, None)
                except ClosedError:
                    return
                yield value
        finally:
            for link, call in asked:
                link.give_up(call)

    def __iter__(self) -> Iterator[Any]:
        """The entries, until the queue is closed and drained."""
        while True:
            try:
                value = self.get()
            except ClosedError:
                return
            yield value

    # ---- looking

    def qsize(self) -> int:
        """The number of entries now: of this rank's part, or of the one location."""
        link, number = self.source("qsize", self.deadline(True, None)[0])
        if link is None:
            return self.hub.holder.counts(self.held())[0]
        answer = link.answer(link.ask(wire.SIZE, number), None)
        assert answer is not None
        return answer.value

    def __len__(self) -> int:
        return self.qsize()

    def __bool__(self) -> bool:
        """True, as for any object, whatever the queue holds: ``if queue:`` must not send a request to another rank."""
        return True

    @property
    def maxsize(self) -> int:
        """The capacity as in ``queue.Queue``: 0 is no limit."""
        return self.capacity or 0

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return self.capacity is not None and self.qsize() >= self.capacity

    def wait(self, timeout: Seconds = None) -> bool:
        """Waits for an entry without taking the entry; True when there is one, False when `timeout` passed (None: the
        group's). Errors as in :meth:`get`."""
        return bool(self.wait_any([self], timeout))

    @staticmethod
    def wait_any(queues: Sequence[Queue], timeout: Seconds = None) -> list[Queue]:
        """Waits until one of the queues has an entry or is closed; returns all such queues, in order. An empty list
        when `timeout` passed (None: the timeout of the first queue's group).

        Another getter may be faster: take with ``block=False``. Raises as :meth:`get` does when one of the queues
        failed.
        """
        if not queues:
            raise ValueError("wait_any of no queue would never end")
        limit = as_seconds(timeout)
        return wait_any(queues, queues[0].hub.silence if limit is None else min(limit, 1e9))

    def close(self) -> None:
        """Closes the queue for all ranks: puts fail, entries in the queue can still be taken, and then getters get
        ClosedError. Idempotent. The error of a location that died or does not answer is raised when the other locations
        are closed."""
        self.hub.check_process()
        failure: ShardwireError | None = None
        for rank in self.locations:
            try:
                if rank == self.hub.rank:
                    self.hub.holder.close(self.held())
                else:
                    link, number = self._link(rank, self.deadline(True, None)[0])
                    link.answer(link.ask(wire.CLOSE, number), None)
            except ShardwireError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Closes the queue, for all ranks. When the block raised an error, that error counts, and no error of the
        closing is raised."""
        with suppress(*(() if kind is None else (ShardwireError,))):
            self.close()

    # ---- by name

    def address(self) -> tuple[Any, ...]:
        """The values from which another rank of the group makes the queue. allow_pickle is left out: each reader
        decides which writers to trust."""
        if self.name is None:
            raise TypeError(f"{self.label} has no name, by which another rank could know the queue: give a name to "
                            "send or pickle the queue")
        return (self.process_group_name, ",".join(map(str, self.locations)), self.name, self.capacity,
                self.survive | 2 * self.streaming)

    @classmethod
    def from_address(cls, group: Any, location: Any, name: Any, capacity: Any, flags: Any,
                     allow_pickle: bool = False) -> Queue:
        """The queue of an address. The address may come from an untrusted source: the queue is only a value until its
        first use."""
        if (type(group) is not str or type(location) is not str or _RANKS.fullmatch(location) is None
            or type(name) is not str or not name or not (capacity is None or type(capacity) is int and capacity > 0)
            or type(flags) is not int):
            raise ValueError("an unreadable Queue")
        queue = cls.__new__(cls)
        queue.locations = _ranks_of([int(rank) for rank in location.split(",")])
        queue.location = queue.locations if len(queue.locations) > 1 else queue.locations[0]
        queue.streaming = bool(flags & 2)
        queue.name, queue.capacity, queue.survive, queue.allow_pickle = name, capacity, bool(flags & 1), allow_pickle
        queue.label, queue._group = f"Queue {name!r}", group
        return queue

    def __reduce__(self) -> Any:
        return Queue.from_address, (*self.address(), self.allow_pickle)

    def __repr__(self) -> str:
        if "hub" not in self.__dict__:
            return f"<shardwire.{self.label} at {list(self.locations)} of group {self._group!r}, not used here yet>"
        return f"<shardwire.{self.label} at {list(self.locations)}, rank {self.hub.rank} of group {self.hub.label!r}>"


_RANKS = re.compile(r"\d{1,9}(,\d{1,9})*", re.ASCII)


def _ranks_of(location: Any) -> tuple[int, ...]:
    """The ranks in `location`, in the given order."""
    ranks = [location] if isinstance(location, int) else list(location) if isinstance(location, Iterable) else None
    if ranks is None or any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
        raise TypeError(f"location is {location!r}; give a rank of the group, or several")
    if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0:
        raise ValueError(f"location is {ranks}; give different ranks of the group, from 0 on, at least one")
    return tuple(ranks)


register_handle(Queue, Handle(b"Q", 5, Queue.address,
                              lambda values, allow_pickle: Queue.from_address(*[*values, allow_pickle])))
