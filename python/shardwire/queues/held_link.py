"""A link on the rank that holds queues: takes a user's requests and answers. All functions run in the hub's pump,
except the callbacks of works, which only post the event."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

import torch

from .. import _C
from ..errors import ShardwireError
from . import wire
from .entries import NOTHING, OVER, READY, Entry, Getter, HeldQueue, Putting

if TYPE_CHECKING:
    from .hub import Hub

_ANSWERS = {READY: wire.OK, NOTHING: wire.NOTHING, OVER: wire.OVER}
# Bytes. A longer copy takes several steps. The progress thread takes the next step when the thread next wakes; a
# waiting thread takes all steps at once.
_DRIVEN_FROM = 1 << 20
# bytes: shorter parts travel within a frame, in any memory
_HEAP_FROM = 8192


def buffer(size: int) -> torch.Tensor:
    """Memory for a part that stays in a queue: other ranks read the part in place."""
    return (_C.heap_empty([size], torch.uint8) if size >= _HEAP_FROM
            else torch.empty(size, dtype=torch.uint8, device="cpu"))


class HeldLink:
    def __init__(self, hub: Hub, backend: Any, user: int) -> None:
        self.hub, self.backend, self.user = hub, backend, user
        self.frame = wire.Frame()
        self.getters: dict[int, tuple[HeldQueue, Getter]] = {}  # request -> the waiting getter
        # request -> entry handed out, arrival not confirmed
        self.handed: dict[int, tuple[HeldQueue, Entry]] = {}
        self.puttings: dict[int, tuple[HeldQueue, Putting, wire.Message]] = {}
        self.has_put: set[HeldQueue] = set()
        self.transactions: dict[int, Putting] = {}
        self.over = self.left = False
        self._answers = {wire.OPEN: self._open, wire.PUT: self._put, wire.COMMIT: self._commit,
                         wire.ROLLBACK: self._rollback, wire.GET: self._get, wire.CANCEL: self._cancel,
                         wire.TAKEN: self._taken, wire.SIZE: self._size, wire.WAIT: self._wait, wire.CLOSE: self._close,
                         wire.PING: self._ping, wire.BYE: self._bye}

    def start(self) -> None:
        self.hub.held_links.add(self)
        if self.hub.revoked:
            _C.revoke(self.backend, self.hub.revoked)
        self._listen()

    # ---- requests

    def _receive(self, tensor: torch.Tensor, tag: int, then: Callable[[], None]) -> None:
        """Calls `then` in the pump when the bytes are here; ends the link when the bytes cannot come."""
        def ended(future: Any) -> None:
            try:
                future.wait()
            except Exception as error:
                self.hub.post(partial(self._end, error))
            else:
                self.hub.post(then)
        try:
            work = self.backend.recv([tensor], wire.USER, tag)
            work.get_future().then(ended)
            if tensor.numel() >= _DRIVEN_FROM and not work.is_completed():
                self.hub.drive(work)
        except Exception as error:
            self.hub.post(partial(self._end, error))

    def _listen(self) -> None:
        self._receive(self.frame.tensor, wire.REQUESTS, self._on_frame)

    def _on_frame(self) -> None:
        if self.over:
            return
        try:
            outside = wire.head_outside(self.frame)
            if outside:  # the head follows separately, under the request's tag
                rest = torch.empty(outside, dtype=torch.uint8, device="cpu")
                self._receive(rest, wire.tag_of(wire.request_of(self.frame)), lambda: self._on_message(rest))
                return
        except Exception as error:
            self._end(error)
            return
        self._on_message(None)

    def _on_message(self, rest: torch.Tensor | None) -> None:
        if self.over:
            return
        try:
            message = wire.decode(self.frame, rest)
            self._listen()  # before a getter is served, which would wait for this thread to release Python's lock
            self._answers[message.op](message)
        # Not a message of a user's end: the following bytes cannot be understood
        except Exception as error:
            self._end(error)

    def _queue(self, message: wire.Message) -> HeldQueue:
        return self.hub.held_by_number[message.queue]

    # ---- answers

    def answer(self, message: wire.Message, op: int, value: int = 0, head: bytes = b"",
               parts: list[torch.Tensor] | None = None) -> None:
        if self.over or self.hub.revoked:  # the end of the link says more
            return
        parts = parts or []
        reply = wire.Message(op, 0, message.queue, message.request, value, head, tuple(part.numel() for part in parts))
        try:
            wire.send(self.backend, wire.USER, wire.tag_of(message.request), reply, parts)
        except Exception as error:
            self.hub.post(partial(self._end, error))

    def _open(self, message: wire.Message) -> None:
        key, about = json.loads(message.head)
        held = self.hub.held.get(key)
        if held is None:  # the Queue was not made on this rank yet
            self.hub.openings.setdefault(key, []).append(partial(self._open, message))
        elif list(held.about) != about:
            self.answer(message, wire.MISMATCH, head=json.dumps(held.about).encode())
        else:
            self.answer(message, wire.OK, self.hub.number_of(held))

    def _put(self, message: wire.Message) -> None:
        held = self._queue(message)
        self.has_put.add(held)
        entry = Entry(message.head, [])
        if message.flags & wire.IN_TRANSACTION:
            putting = self.transactions.setdefault(message.value, Putting(self, lambda _: None))
            putting.entries.append(entry)
            self._fetch(held, putting, entry, message, partial(self.answer, message, wire.OK))
            return
        putting = Putting(self, partial(self._put_ended, message))
        putting.entries.append(entry)
        # Until the parts are counted: _fetch_one resets this, _fetch counts
        putting.missing = 1
        putting.fetch = partial(self._fetch_one, held, putting, entry, message)
        self.puttings[message.request] = (held, putting, message)
        held.put(putting, not message.flags & wire.NOT_BLOCKING)

    def _put_ended(self, message: wire.Message, outcome: str) -> None:
        self.puttings.pop(message.request, None)
        if outcome != READY:
            self._drop_bytes(message)
        self.answer(message, _ANSWERS[outcome])

    def _fetch_one(self, held: HeldQueue, putting: Putting, entry: Entry, message: wire.Message) -> None:
        putting.missing = 0
        self._fetch(held, putting, entry, message, None)

    def _fetch(self, held: HeldQueue, putting: Putting, entry: Entry, message: wire.Message,
               then: Callable[[], None] | None) -> None:
        """Brings the bytes of an entry; `then` is called when all are here."""
        if message.parts is not None:  # the bytes came with the request
            entry.parts = message.parts
            if then is not None:
                then()
            held.arrived(self)
            return
        left = [0]

        def one_is_here() -> None:
            left[0] -= 1
            putting.missing -= 1
            if left[0] == 0 and then is not None:
                then()
            held.arrived(self)
        for size in message.part_sizes:
            part = buffer(size)
            entry.parts.append(part)
            if size:
                left[0] += 1
                putting.missing += 1
                self._receive(part, wire.tag_of(message.request), one_is_here)
        if left[0] == 0 and then is not None:
            then()

    def _drop_bytes(self, message: wire.Message) -> None:
        """Receives and drops bytes that were sent in vain: a receive must match every send."""
        for size in message.part_sizes if message.parts is None else ():
            if size:
                waste = torch.empty(size, dtype=torch.uint8, device="cpu")
                self._receive(waste, wire.tag_of(message.request), lambda kept=waste: None)  # type: ignore[misc]

    def _commit(self, message: wire.Message) -> None:
        held = self._queue(message)
        putting = self.transactions.pop(message.value, None) or Putting(self, lambda _: None)

        def ended(outcome: str) -> None:
            self.puttings.pop(message.request, None)
            self.answer(message, _ANSWERS[outcome])
        putting.notify = ended
        self.puttings[message.request] = (held, putting, message)
        held.put(putting, not message.flags & wire.NOT_BLOCKING)

    def _rollback(self, message: wire.Message) -> None:
        self.transactions.pop(message.value, None)

    def _get(self, message: wire.Message) -> None:
        held = self._queue(message)

        def serve(entry: Entry | None, why: str) -> None:
            self.getters.pop(message.request, None)
            if entry is None:
                self._answer_why(message, why)
                return
            self.handed[message.request] = (held, entry)
            self.answer(message, wire.OK, len(held.entries), entry.head, entry.parts)
        getter = Getter(serve, True)
        self.getters[message.request] = (held, getter)
        held.get(getter, not message.flags & wire.NOT_BLOCKING)

    def _wait(self, message: wire.Message) -> None:
        held = self._queue(message)

        def serve(_: Entry | None, why: str) -> None:
            self.getters.pop(message.request, None)
            self._answer_why(message, why)
        getter = Getter(serve, False)
        self.getters[message.request] = (held, getter)
        held.get(getter, not message.flags & wire.NOT_BLOCKING)

    def _answer_why(self, message: wire.Message, why: str) -> None:
        self.answer(message, _ANSWERS.get(why, wire.FAILED), head=b"" if why in _ANSWERS else why.encode())

    def _taken(self, message: wire.Message) -> None:
        self.handed.pop(message.request, None)

    def _cancel(self, message: wire.Message) -> None:
        """A user gave up: ends the user's wait, and returns an entry that was handed out and not taken."""
        waiting = self.getters.pop(message.request, None)
        handed = self.handed.pop(message.request, None)
        putting = self.puttings.pop(message.request, None)
        if waiting is not None:
            waiting[0].forget(waiting[1])
        if handed is not None:
            handed[0].give_back([handed[1]])
        if putting is not None:
            held, what, asked = putting
            if not what.admitted and asked.op == wire.PUT:
                self._drop_bytes(asked)
            held.give_up(what)
        if waiting is not None or putting is not None:
            self.answer(message, wire.NOTHING)  # so that the user's end knows that nothing more comes

    def _size(self, message: wire.Message) -> None:
        self.answer(message, wire.OK, len(self._queue(message).entries))

    def _close(self, message: wire.Message) -> None:
        self._queue(message).close()
        self.answer(message, wire.OK)

    def _ping(self, message: wire.Message) -> None:
        self.answer(message, wire.OK)

    def _bye(self, message: wire.Message) -> None:
        self.left = True

    # ---- the end

    def _end(self, error: BaseException) -> None:
        """The user is gone: ends the user's waits, and drops puts that did not arrive whole."""
        if self.over:
            return
        self.over = True
        self.hub.held_links.discard(self)
        if self.hub.is_stopped():
            return  # the program ends, and all held queues with it
        if notice := notice_of(self.backend):
            self.hub.revoke(notice)
        for held, getter in self.getters.values():
            held.forget(getter)
        puttings, self.puttings = self.puttings, {}
        for held, putting, _ in puttings.values():
            held.give_up(putting)
        handed, self.handed = self.handed, {}
        for held in {held for held, _ in handed.values()}:
            held.give_back([entry for of, entry in handed.values() if of is held])
        self.transactions.clear()
        for held in self.has_put:
            if not self.left and not held.survives:
                held.fail(f"rank {self.user} of group {self.hub.label!r}, which had put into it, {how_it_ended(error)}")
        # In a thread: shutdown may wait for the thread that runs this callback.
        threading.Thread(target=_C.shutdown, args=(self.backend,), name="shardwire-queue-end", daemon=True).start()


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
