"""Queues for asyncio: a task of the event loop waits for a notification from the callbacks of works, and no thread
waits with the task. Steps that block longer than a message (the first use of a holder, the bytes of long entries,
taking a put back) run in a separate thread each: the threads of a pool could all be waiting for each other.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from ..compiler.future import Seconds, in_thread, wake
from . import wire
from .answers import answered, over, until_came

if TYPE_CHECKING:
    from .queue import Queue
    from .use_link import Call, UseLink


async def put(queue: Queue, head: bytes, parts: list[torch.Tensor], timeout: Seconds) -> None:
    block = queue.blocks(True, timeout)
    deadline, seconds = queue.deadline(block, timeout)
    async with _in_turn(queue, "put", partial(queue.links, deadline)):
        work = queue.begin_put(head, parts, block, deadline)
    give_up = partial(work.put_or_give_up, time.monotonic(), seconds if block else 0.0)
    try:
        is_over = await over(work.pending(), deadline)
    except asyncio.CancelledError:
        threading.Thread(target=_quietly, args=(give_up,), name="shardwire-await", daemon=True).start()
        raise
    except Exception as error:
        work.abandon(error)
        raise
    if is_over:
        give_up()  # returns, or raises, at once
    else:
        await in_thread(give_up)


def _quietly(call: Callable[[], Any]) -> None:
    with suppress(Exception):  # no caller waits for the result any more
        call()


async def get(queue: Queue, timeout: Seconds, out: torch.Tensor | None) -> Any:
    block = queue.blocks(True, timeout)
    deadline, seconds = queue.deadline(block, timeout)
    find = partial(queue.source, "get", deadline)
    async with _in_turn(queue, "get", find) as found:
        link, number = found or find()
        call = None if link is None else link.ask(wire.GET, number, flags=0 if block else wire.NOT_BLOCKING)
    if link is None or call is None:
        return await _get_here(queue, block, deadline, seconds, out)
    return await _get_there(queue, link, call, deadline, seconds, out)


@asynccontextmanager
async def _in_turn(queue: Queue, what: str, join: Callable[[], Any]) -> AsyncIterator[Any]:
    """Calls ``join`` in a thread unless the queue's links are there, and gives the block its result. The blocks of one
    event loop, of a queue and ``what``, begin in the order of the calls, although the threads end in any order."""
    loop = asyncio.get_running_loop()
    turns, key = queue.hub.turns, (queue.key, what, loop)
    before = turns.get(key)
    if before is None and queue.is_linked():
        yield None
        return
    mine = turns[key] = loop.create_future()

    def end(_: Any = None) -> None:
        mine.set_result(None)
        if turns.get(key) is mine:
            del turns[key]
    try:
        found = None if queue.is_linked() else await in_thread(join)
        if before is not None:
            await asyncio.wait([before])
        yield found
    finally:
        # A call that gave up before its turn holds the next one back as long as the calls before it are under way
        if before is None or before.done():
            end()
        else:
            before.add_done_callback(end)


async def _get_here(queue: Queue, block: bool, deadline: float, seconds: float, out: torch.Tensor | None) -> Any:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    call = _C.QueueLocalCall(queue.hub.holder, queue.held())
    try:
        call.get(True, block)
        call.when_over(queue.hub.notice(partial(wake, loop, came)))
        if not await until_came(came, deadline) and call.give_up():
            raise queue.nothing(seconds)
        return queue.served(call, None, out)[0]
    except BaseException:
        call.give_back()
        raise


async def _get_there(queue: Queue, link: UseLink, call: Call, deadline: float, seconds: float,
                     out: torch.Tensor | None) -> Any:
    try:
        await answered(link, call, deadline)
        is_short = link.is_short(call)
    except BaseException:
        link.give_up(call)
        raise
    receive = partial(queue.receive, link, call, None, time.monotonic(), seconds, out)
    if is_short:
        return queue.taken(link, call, receive(), out)[0]
    bringing = _Bringing(receive, partial(link.send_note, wire.CANCEL, call.queue, call.request))
    try:
        came = await in_thread(bringing.run)
    except asyncio.CancelledError:
        bringing.end()
        raise
    return queue.taken(link, call, came, out)[0]


class _Bringing:
    """Receives the bytes of an entry in a thread. If the task is cancelled meanwhile, the bytes arrive all the same,
    perhaps after the end of the event loop; then the entry goes back to its place."""

    def __init__(self, receive: Callable[[], Any], give_back: Callable[[], Any]) -> None:
        self._receive, self._give_back = receive, give_back
        self._ends = itertools.count()

    def run(self) -> Any:
        came = self._receive()
        self.end()
        return came

    def end(self) -> None:
        """Called when the bytes are here, and when the task is cancelled: the second call gives the entry back."""
        if next(self._ends) == 1:
            _quietly(self._give_back)
