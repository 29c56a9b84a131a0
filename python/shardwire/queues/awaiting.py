"""Queues for asyncio: a task of the event loop waits for a notification from the callbacks of works, and no thread
waits with the task. Steps that block longer than a message (the first use of a holder, the bytes of long entries,
taking a put back) run in a separate thread each: the threads of a pool could all be waiting for each other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..compiler.future import Seconds, in_thread, wake
from . import wire
from .answers import answered, over, until_came
from .works import LocalGet

if TYPE_CHECKING:
    from .queue import Queue
    from .use_link import Call, UseLink


async def put(queue: Queue, head: bytes, parts: list[torch.Tensor], timeout: Seconds) -> None:
    block = queue.blocks(True, timeout)
    deadline, seconds = queue.deadline(block, timeout)
    if not queue.is_linked():
        await in_thread(partial(queue.links, deadline))
    work = queue.begin_put(head, parts, block, deadline)
    give_up = partial(work.put_or_give_up, time.monotonic(), seconds if block else 0.0)
    try:
        is_over = await over(work.pending(), deadline)
    except asyncio.CancelledError:
        threading.Thread(target=_quietly, args=(give_up,), name="shardwire-await", daemon=True).start()
        raise
    if is_over:
        give_up()  # returns, or raises, at once
    else:
        await in_thread(give_up)


def _quietly(call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception:
        pass  # no caller waits for the result any more


async def get(queue: Queue, timeout: Seconds, out: torch.Tensor | None) -> Any:
    block = queue.blocks(True, timeout)
    deadline, seconds = queue.deadline(block, timeout)
    link, number = (queue.source("get", deadline) if queue.is_linked()
                    else await in_thread(partial(queue.source, "get", deadline)))
    if link is None:
        return await _get_here(queue, block, deadline, seconds, out)
    return await _get_there(queue, link, link.ask(wire.GET, number, flags=0 if block else wire.NOT_BLOCKING), deadline,
                            seconds, out)


async def _get_here(queue: Queue, block: bool, deadline: float, seconds: float, out: torch.Tensor | None) -> Any:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    get = LocalGet(queue.hub, queue.held(), partial(wake, loop, came))
    try:
        get.start(block)
        if not await until_came(came, deadline) and get.forget():
            raise queue.nothing(seconds)
        found, _ = queue.served(get, None, out)
    except BaseException:
        get.give_back()
        raise
    return found.value(get.parts, None, out, queue.allow_pickle)


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
    coming = asyncio.ensure_future(in_thread(receive))
    try:
        came = await asyncio.shield(coming)
    except asyncio.CancelledError:
        # The bytes come all the same; then the entry goes back to its place
        coming.add_done_callback(partial(_give_back, link, call))
        raise
    return queue.taken(link, call, came, out)[0]


def _give_back(link: UseLink, call: Call, coming: asyncio.Future[Any]) -> None:
    if not coming.cancelled() and coming.exception() is None:
        _quietly(partial(link.send_note, wire.CANCEL, call.queue, call.request))
