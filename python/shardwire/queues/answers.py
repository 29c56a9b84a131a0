"""How a task of an event loop waits for answers and for puts: callbacks wake the loop, and no thread waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..compiler.future import wake

if TYPE_CHECKING:
    from .use_link import Call, UseLink


async def until_came(came: asyncio.Future[None], until: float) -> bool:
    await asyncio.wait({came}, timeout=max(0.0, until - time.monotonic()))
    return came.done()


async def answered(link: UseLink, call: Call, deadline: float | None) -> bool:
    """Whether the answer came before the deadline, successful or not."""
    if call.is_completed():
        return True
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    call.then(partial(wake, loop, came))
    steps = link.waits(deadline)
    until = next(steps)
    while True:
        is_here = await until_came(came, until)
        try:
            until = steps.send(is_here)
        except StopIteration as end:
            return bool(end.value)


async def over(puts: Sequence[Any], deadline: float) -> bool:
    """Whether all of a work's puts are over before the deadline."""
    loop = asyncio.get_running_loop()
    for put in puts:
        if put.done():
            continue
        if hasattr(put, "link"):
            if not await answered(put.link, put.call, deadline):
                return False
            continue
        came: asyncio.Future[None] = loop.create_future()
        put.when_over(partial(wake, loop, came))
        if not await until_came(came, deadline):
            return False
    return True
