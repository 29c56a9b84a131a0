"""The numbers of requests, answers and outcomes, as in backend/queues, and what Python reads of an answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

HOST, USER = 0, 1  # ranks within a link

# Requests of a user. Flags below.
OPEN, PUT, COMMIT, ROLLBACK, GET, CANCEL, TAKEN, SIZE, WAIT, CLOSE, PING, BYE = range(1, 13)
# Answers of a host.
OK, NOTHING, OVER, MISMATCH, FAILED = range(101, 106)  # NOTHING: empty, or full; OVER: closed; FAILED: with a text
NOT_BLOCKING = 1  # GET, PUT, COMMIT, WAIT: answer at once
# PUT: not visible before COMMIT; `value` is the transaction
IN_TRANSACTION = 2


class Outcome:
    """How a put, a get or a wait ended. Another text is a failure."""

    READY, NOTHING, OVER = "ready", "nothing", "over"


# By number; a failure has a separate text
_OUTCOMES = ("", Outcome.READY, Outcome.NOTHING, Outcome.OVER, "")
_OF_ANSWERS = {OK: Outcome.READY, NOTHING: Outcome.NOTHING, OVER: Outcome.OVER}


class Message(NamedTuple):
    """An answer."""

    op: int
    value: int
    head: bytes
    part_sizes: list[int]
    # Parts from within the frame; None: the parts follow
    parts: list[torch.Tensor] | None

    def outcome(self) -> str:
        return _OF_ANSWERS.get(self.op) or self.head.decode()


class Result(NamedTuple):
    """The end of a call on the rank that holds the queue."""

    outcome: str
    head: bytes | None
    parts: list[torch.Tensor]
    left: int


def result_of(call: Any) -> Result:
    number, failure, head, parts, left = call.result()
    return Result(_OUTCOMES[number] or failure, head, parts, left)
