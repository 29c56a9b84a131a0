"""A link on a rank using another rank's queues. Calls from any thread. A thread waiting for an answer drives the link,
and so notices the holder's death, the holder's silence, or Ctrl-C."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import re
import struct
import threading
import time
from collections.abc import Generator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from .._C import QueueCall as Call
from ..errors import AbortedError, PeerFailedError, ShardwireError, TimeoutError
from . import wire

if TYPE_CHECKING:
    from .hub import Hub

_GOODBYE_S = 0.5  # a living holder answers within milliseconds
_SHORTEST_WAIT = timedelta(milliseconds=1)  # torch takes 0 for no limit


class UseLink:
    def __init__(self, hub: Hub, backend: Any, holder: int) -> None:
        self.hub, self.backend, self.holder = hub, backend, holder
        self.broken: ShardwireError | None = None
        self.peer_gone = False
        self.numbers: dict[str, int] = {}  # key of a queue -> the queue's number at the holder
        self._user = _C.QueueUser(backend)
        self._abandoned: list[tuple[Call, wire.Message | None]] = []  # with the answer, where it was read
        self._sweeping = threading.Lock()

    # ---- asking

    def ask(self, op: int, queue: int = 0, *, flags: int = 0, value: int = 0, head: bytes = b"",
            parts: list[torch.Tensor] | None = None) -> Call:
        """Sends a request; the caller can wait for the answer."""
        if self.broken is not None:
            raise self.why_broken()
        if self._abandoned:
            self._sweep()
        try:
            return self._user.ask(op, queue, flags, value, head, parts or [])
        except ShardwireError as error:
            raise self._break(error) from error

    def send_note(self, op: int, queue: int, request: int = 0, value: int = 0) -> None:
        """Sends a message without an answer."""
        if self.broken is None:
            try:
                self._user.note(op, queue, request, value)
            except ShardwireError as error:
                raise self._break(error) from error

    def answer(self, call: Call, deadline: float | None) -> wire.Message | None:
        """The answer; None when `deadline` passes first. TimeoutError when the holder sends no answer to anything for
        as long as its group's timeout."""
        if call.is_completed():
            return self._message(call)
        steps = self.waits(deadline)
        until = next(steps)
        while True:
            came = self.came(call, until)
            try:
                until = steps.send(came)
            except StopIteration as end:
                return self._message(call) if end.value else None

    def is_short(self, call: Call) -> bool:
        """Whether the answer is here, and nothing follows its frame."""
        if not call.is_completed():
            return False
        try:
            if call.head_outside():
                return False
        except ShardwireError as error:
            raise self._break(error) from error
        message = self._message(call)
        return message.parts is not None or not any(message.part_sizes)

    def waits(self, deadline: float | None) -> Generator[float, bool, bool]:
        """The steps of waiting for an answer: yields the time until which to wait, takes whether the answer came by
        then, and returns whether the answer came before the deadline. TimeoutError where the holder has not answered
        the last ping either: at the deadline, or after half the group's timeout."""
        half = self.hub.silence / 2
        ping: Call | None = None
        answered = asked = time.monotonic()
        look = asked + half
        while not (yield look if deadline is None else min(look, deadline)):
            now = time.monotonic()
            is_over = deadline is not None and now >= deadline
            if now < look and not is_over:
                continue
            if ping is not None and not ping.is_completed() and now - asked >= half / 2:
                self.forget(ping)
                raise TimeoutError(f"rank {self.holder} of group {self.hub.label!r}, which holds the queue, has "
                                   f"answered nothing for {now - answered:.3g} s: it is stopped, or something holds "
                                   "its Python")
            if is_over:
                if ping is not None:
                    self.forget(ping)
                return False
            look = now + half
            if ping is None:
                ping, asked = self.ask(wire.PING), now
            else:
                ping, answered = None, now
        if ping is not None:
            self.forget(ping)
        return True

    def came(self, call: Call, until: float) -> bool:
        """Whether the answer's frame is here by then."""
        try:
            return call.wait(max(until - time.monotonic(), 0.0))
        except ShardwireError as error:
            raise self._break(error) from error

    def _message(self, call: Call) -> wire.Message:
        """The answer, whose frame is here or cannot come."""
        try:
            found = call.message()
        except ShardwireError as error:
            raise self._break(error) from error
        if found is None:
            rest = torch.empty(call.head_outside(), dtype=torch.uint8, device="cpu")
            self.receive(call, [rest])
            found = call.message(rest)
            assert found is not None
        return wire.Message(*found)

    def receive(self, call: Call, parts: list[torch.Tensor]) -> None:
        """Receives the bytes that follow an answer's frame. A transfer that is late or interrupted ends the link, after
        which `parts` belong to the caller again."""
        try:
            works = [self.backend.recv([part], wire.HOST, call.tag) for part in parts if part.numel()]
            deadline = time.monotonic() + self.hub.silence
            for work in works:
                while not self.arrives(work, deadline):
                    if time.monotonic() >= deadline:
                        raise TimeoutError(f"rank {self.holder} of group {self.hub.label!r} began to send an entry of "
                                           f"a queue, and did not finish within {self.hub.silence:.3g} s")
        except BaseException as error:
            if self.broken is None:
                self._say_goodbye()
                if self.broken is None:  # the holder lives
                    self.broken = AbortedError(f"the link to rank {self.holder} of group {self.hub.label!r} was ended "
                                               f"while an entry came: {error}")
                self.backend.abort()
            raise

    def arrives(self, work: Any, until: float) -> bool:
        left = until - time.monotonic()
        try:
            work.wait(timedelta(milliseconds=math.ceil(left * 1000)) if left > 0.001 else _SHORTEST_WAIT)
            return True
        except TimeoutError:
            return False
        except ShardwireError as error:
            raise self._break(error) from error

    def _break(self, error: ShardwireError) -> ShardwireError:
        """Marks the link as broken; returns an error with the holder's rank in the user's group."""
        if self.broken is None and (notice := self.hub.revoked or notice_of(self.backend)):
            self.hub.later(partial(self.hub.revoke, notice))
            self.broken = AbortedError(f"the queues of group {self.hub.label!r} were ended: {notice}")
        if self.broken is None:
            self.peer_gone = True
            self.broken = PeerFailedError(f"rank {self.holder} of group {self.hub.label!r}, which holds the queue, "
                                          f"{how_it_ended(error)}")
        return self.why_broken()

    def why_broken(self) -> ShardwireError:
        """The reason, of a broken link. A new object for each raise: its traceback keeps the tensors of the caller."""
        assert self.broken is not None
        return copy.copy(self.broken)

    def _say_goodbye(self) -> None:
        """Ends the link normally before an abort. The notice of the abort could overtake the last frame, but not the
        holder's answer to the frame."""
        with contextlib.suppress(BaseException):  # the caller raises an error already
            self.leave()
            self.came(self._user.ask(wire.PING, 0, 0, 0, b"", []), time.monotonic() + _GOODBYE_S)

    def revoke(self) -> None:
        """The group was revoked."""
        if self.broken is None:
            self.broken = self.hub.revoked_error()
            _C.revoke(self.backend, self.hub.revoked)

    # ---- giving up

    def give_up(self, call: Call, message: wire.Message | None = None) -> None:
        """Ends the wait for an answer. The holder takes back an entry handed out for the request. message: the answer,
        where it was read and the bytes of its parts were not received."""
        if self.broken is None:
            self._abandoned.append((call, message))
            self.send_note(wire.CANCEL, call.queue, call.request)

    def forget(self, call: Call) -> None:
        """Nobody waits for the answer any more, which comes in any case: the next request receives the answer."""
        self._abandoned.append((call, None))

    def _sweep(self) -> None:
        """Receives late answers of given-up requests: unreceived bytes would be kept for ever."""
        with self._sweeping:
            waiting, self._abandoned = self._abandoned, []
        for call, message in waiting:
            if not call.is_completed():
                self._abandoned.append((call, message))
                continue
            try:
                message = self._message(call) if message is None else message
                sizes = message.part_sizes if call.op == wire.GET and message.parts is None else ()
                for part in [torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes if size]:
                    self.backend.recv([part], wire.HOST, call.tag)
            except ShardwireError:
                pass  # the link is over: the next request says so
            except RuntimeError:  # no memory at present; torch has no error of its own for this
                self._abandoned.append((call, message))

    # ---- queues

    def open(self, key: str, about: list[Any], label: str, deadline: float | None) -> int:
        """The queue's number at the holder, which must have made the queue."""
        latest = time.monotonic() + self.hub.silence
        name = key.encode("utf-8", "surrogatepass")
        call = self.ask(wire.OPEN, head=struct.pack("<I", len(name)) + name + json.dumps(about).encode())
        try:
            message = self.answer(call, latest if deadline is None else min(deadline, latest))
        except BaseException:
            self.forget(call)
            raise
        if message is None:
            self.forget(call)
            raise TimeoutError(f"{label}: rank {self.holder} of group {self.hub.label!r} has not said in time that it "
                               "made this Queue: the rank has not made the Queue yet, which each rank in `location` "
                               "has to, or is late")
        if message.op == wire.MISMATCH:
            there = json.loads(message.head)
            raise ValueError(f"{label}: rank {self.hub.rank} made it with (location, capacity, survive) = {about}, "
                             f"rank {self.holder} with {there}: make it alike on all ranks, and unnamed queues in the "
                             "same order")
        self.numbers[key] = message.value
        return message.value

    def leave(self) -> None:
        """Ends the link normally: the holder must not take this rank for a dead rank."""
        with contextlib.suppress(ShardwireError):
            self.send_note(wire.BYE, 0)


def notice_of(backend: Any) -> str:
    """The notice by which a rank revoked the group; empty without a notice."""
    try:
        return _C.revocation(backend)
    except ShardwireError:  # the group was shut down here
        return ""


def how_it_ended(error: BaseException) -> str:
    """ "died (pid 12 on host a)" out of a link's error; ranks in the error are not ranks of the user's group."""
    found = re.search(r"rank \d+ (\(pid \d+ on host [^)]*\)) ([^;:]*)", str(error))
    return f"{found.group(2).strip()} {found.group(1)}" if found else f"broke the link: {error}"
