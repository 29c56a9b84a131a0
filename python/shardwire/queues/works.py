"""The works that puts return, and transactions."""

from __future__ import annotations

import itertools
import os
import queue as standard
import time
import uuid
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from ..compiler.future import Seconds, as_seconds, print_lost
from ..errors import ClosedError, ShardwireError, TimeoutError
from . import wire
from .answers import over
from .use_link import Call, UseLink
from .wire import Outcome

if TYPE_CHECKING:
    from .queue import Queue

_transactions = itertools.count(uuid.uuid4().int >> 100 << 16)
_open: weakref.WeakValueDictionary[int, Transaction] = weakref.WeakValueDictionary()


class LocalPut:
    """A put into this rank's own part of a queue."""

    def __init__(self, queue: Queue, entries: list[Any], may_wait: bool) -> None:
        self.hub, self.call = queue.hub, _C.QueueLocalCall(queue.hub.holder, queue.held())
        self.call.put(entries, may_wait)

    def when_over(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the put is over, on a thread of the hub."""
        self.call.when_over(self.hub.notice(callback))

    def done(self) -> bool:
        return self.call.is_over()

    def _outcome(self) -> str:
        return wire.result_of(self.call).outcome

    def wait(self, deadline: float | None) -> str | None:
        left = self.hub.silence if deadline is None else deadline - time.monotonic()
        return self._outcome() if self.call.is_over() or self.call.wait(left) else None

    def give_up(self) -> str:
        """Gives up and returns the final outcome; NOTHING when the entry was not put."""
        self.call.give_up()
        return self._outcome()

    def abandon(self) -> None:
        """Gives up after an error, without the outcome."""
        self.call.give_up()


class RemotePut:
    """A put into another rank's part of a queue."""

    def __init__(self, link: UseLink, call: Call) -> None:
        self.link, self.call = link, call
        self.outcome = ""

    def done(self) -> bool:
        return bool(self.outcome) or self.link.broken is not None or self.call.is_completed()

    def wait(self, deadline: float | None) -> str | None:
        if not self.outcome:
            message = self.link.answer(self.call, deadline)
            if message is None:
                return None
            self.outcome = {wire.OK: Outcome.READY, wire.OVER: Outcome.OVER}.get(message.op, Outcome.NOTHING)
        return self.outcome

    def give_up(self) -> str:
        self.link.send_note(wire.CANCEL, self.call.queue, self.call.request)
        self.wait(None)  # the holder's silence limits the wait
        return self.outcome

    def abandon(self) -> None:
        """Gives up after an error, without the outcome: the holder may be silent."""
        self.link.give_up(self.call)


class QueueWork:
    """A put under way: over when every location of the queue has the bytes and shows the entry. The tensors must not
    change before.

    ``wait()`` waits, and raises the error of a failed put; ``await work`` does the same without blocking the event
    loop. Dropping the work waits too, and prints an error that was never raised.
    """

    def __init__(self, queue: Queue, puts: list[Any], keep: Any) -> None:
        self._queue, self._puts, self._keep = queue, puts, keep
        self._pid = queue.hub.pid
        self._over = False
        # Not the error itself, whose traceback would keep the tensors
        self._failure: tuple[type[Exception], tuple[Any, ...]] | None = None

    def done(self) -> bool:
        """Whether the put is over, with or without an error. Never blocks."""
        return self._over or all(put.done() for put in self._puts)

    is_completed = done

    def wait(self, timeout: Seconds = None) -> None:
        """Waits until the put is over. timeout: TimeoutError when the timeout passes first, and the put goes on; None:
        the timeout of the queue's group."""
        limit = as_seconds(timeout)
        seconds = self._queue.hub.silence if limit is None else min(limit, 1e9)
        self._wait_for(time.monotonic() + seconds, seconds)

    def _wait_for(self, deadline: float, seconds: float) -> None:
        if not self._wait_until(deadline):
            raise TimeoutError(f"{self._queue.label}: a put is not over after {seconds:.3g} s: "
                               f"{self._queue.why_full()}; it goes on")

    def exception(self) -> BaseException | None:
        """The error that ``wait()`` would raise; None while the put runs and after success. Never blocks."""
        if not self.done():
            return None
        try:
            self._wait_until(time.monotonic())
        except (ShardwireError, standard.Full) as error:
            return error
        return None

    def __await__(self) -> Generator[Any, None, None]:
        """``await work``: like :meth:`wait`, without blocking the event loop."""
        seconds = self._queue.hub.silence
        deadline = time.monotonic() + seconds
        try:
            yield from over(self.pending(), deadline).__await__()
        except Exception as error:
            self.abandon(error)
            raise
        self._wait_for(deadline, seconds)

    def pending(self) -> list[Any]:
        return list(self._puts)

    def __repr__(self) -> str:
        if not self.done():
            return f"<shardwire.QueueWork: a put into {self._queue.label}, running>"
        error = self.exception()
        return (f"<shardwire.QueueWork: a put into {self._queue.label}, "
                f"{'done' if error is None else f'failed: {error}'}>")

    def _wait_until(self, deadline: float | None) -> bool:
        if not self._over:
            outcomes = []
            try:
                for put in self._puts:
                    outcome = put.wait(deadline)
                    if outcome is None:
                        return False
                    outcomes.append(outcome)
                self._judge(outcomes)
            except (ShardwireError, standard.Full) as error:
                self._end(error)
                raise
            self._end()
        elif self._failure is not None:
            kind, given = self._failure
            raise kind(*given)
        return True

    def _judge(self, outcomes: list[str]) -> None:
        if Outcome.OVER in outcomes and self._queue.hub.revoked:
            raise self._queue.hub.revoked_error()
        if Outcome.OVER in outcomes:
            raise ClosedError(f"{self._queue.label} is closed and takes no further entries")
        if Outcome.NOTHING in outcomes:
            raise self._queue.full_error(0.0)

    def put_or_give_up(self, deadline: float | None, waited: float) -> None:
        """Waits until the deadline, then takes back the parts that were not put: Full."""
        puts = self._puts
        try:
            if self._wait_until(deadline):
                return
            outcomes = [put.give_up() for put in puts]
            self._end()
        except BaseException:
            self.abandon()
            raise
        if Outcome.READY in outcomes and Outcome.NOTHING in outcomes:
            having = [rank for rank, each in zip(self._queue.locations, outcomes) if each == Outcome.READY]
            raise TimeoutError(f"{self._queue.label}: some of its locations had room within {waited:.3g} s and others "
                               f"had not; the entry is in {having} only")
        if Outcome.NOTHING in outcomes:
            raise self._queue.full_error(waited)
        self._judge(outcomes)

    def abandon(self, error: Exception | None = None) -> None:
        """Ends a put that failed with this error: waits for no holder's answer any more."""
        if not self._over:
            puts = self._puts
            self._end(error)
            for put in puts:
                with suppress(Exception):  # the first error is raised
                    put.abandon()

    def _end(self, error: Exception | None = None) -> None:
        self._over, self._keep, self._puts = True, None, []
        self._failure = None if error is None else (type(error), error.args)

    def __del__(self) -> None:
        try:
            if not self._over and self._pid == os.getpid():
                self.wait()
        except AttributeError:
            pass
        except BaseException as error:  # noqa: B902: nothing may leave a destructor
            print_lost("a QueueWork was dropped and its put", error)


class Transaction:
    """Puts that become visible together, in each location of the queue, or not at all: ``with queue.transaction() as
    puts: puts.put(x)``.

    The entries appear when the block ends, one after the other and with nothing in between. An exception in the block,
    or the death of this process before the block's end, drops the entries. The bytes go to the locations at once.
    """

    def __init__(self, queue: Queue, block: bool = True, timeout: Seconds = None) -> None:
        self._queue, self._block, self._timeout = queue, queue.blocks(block, timeout), as_seconds(timeout)
        self._number = next(_transactions)
        self._local: list[Any] = []
        self._works: list[QueueWork] = []
        self._count = 0
        self._open = False

    def __repr__(self) -> str:
        return (f"<shardwire.Transaction of {self._queue.label}: {self._count} puts, "
                f"{'open' if self._open else 'not open'}>")

    @property
    def queue(self) -> Queue:
        """The queue of the puts."""
        return self._queue

    @property
    def id(self) -> int:
        """The number by which ``queue.put_tensor(tensor, transaction=id)`` finds this transaction, in this process."""
        return self._number

    def __enter__(self) -> Transaction:
        self._local, self._works, self._count = [], [], 0  # a second use begins anew
        self._open = True
        _open[self._number] = self
        return self

    def put(self, value: Any, async_op: bool = False) -> QueueWork:
        return self._put(*self._queue.content_of(value), async_op)

    def put_tensor(self, tensor: torch.Tensor, async_op: bool = False) -> QueueWork:
        return self._put(*self._queue.content_of(tensor, "tensor"), async_op)

    def put_object(self, object: Any, async_op: bool = False) -> QueueWork:
        return self._put(*self._queue.content_of(object, "object"), async_op)

    def _put(self, head: bytes, parts: list[torch.Tensor], async_op: bool) -> QueueWork:
        if not self._open:
            raise ValueError(
                "this transaction is over, or was not begun: write `with queue.transaction() as puts:`")
        self._count += 1
        capacity = self._queue.capacity
        if capacity is not None and self._count > capacity:
            raise ValueError(f"{self._queue.label}: a transaction of {self._count} entries cannot appear at once with "
                             f"a capacity of {capacity}")
        puts: list[Any] = []
        for link, number in self._queue.links(None):
            if link is None:
                self._local.append(_C.QueueEntry(head, parts))
            else:
                call = link.ask(wire.PUT, number, flags=wire.IN_TRANSACTION, value=self._number, head=head, parts=parts)
                puts.append(RemotePut(link, call))
        work = QueueWork(self._queue, puts, parts)
        if async_op:
            self._works.append(work)
            return work
        try:
            work.wait()
        except BaseException:
            work.abandon()  # the end of the block drops the entry; the work's destructor would wait once more
            raise
        return work

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self._open = False
        _open.pop(self._number, None)
        if exc_type is not None:
            self._drop()
            return
        try:
            for work in self._works:
                work.wait()
        except BaseException:
            self._drop()
            raise
        if self._count:
            self._queue.commit(self._number, self._local, self._block, self._timeout)

    def _drop(self) -> None:
        for link, number in self._queue.links_made():
            with suppress(ShardwireError):  # the holder died, and the entries are gone too
                link.send_note(wire.ROLLBACK, number, value=self._number)
        for work in self._works:
            for put in work.pending():
                if not put.outcome:
                    put.link.forget(put.call)
            work._end()


def open_transaction(given: Transaction | int, queue: Queue) -> Transaction:
    """The transaction with this number, which must be open and of ``queue``. ValueError else."""
    found = _open.get(given) if isinstance(given, int) else given
    if found is None or found._queue is not queue:
        raise ValueError(f"{queue.label} has no open transaction {given!r}")
    return found
