"""Messages between a rank that holds queues and a rank that uses queues, over their link: a group of the two.

A message is a frame of fixed size, then the rest that does not fit into the frame: the head, and the bytes of the
parts. Small parts are in the frame. All bytes of a message after the frame have the tag of the request that the message
belongs to, so requests never wait for each other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..errors import ShardwireError

FRAME_BYTES = 2048
_FIELDS = struct.Struct("<4sBBHIQqII")  # magic, version, op, flags, queue, request, value, head bytes, parts
_MAGIC, _VERSION = b"SWQF", 2
ROOM = FRAME_BYTES - _FIELDS.size
REQUESTS = 0  # the tag of requests' frames
MAX_PARTS = 1 << 24
_TAGS = 1 << 30

HOST, USER = 0, 1  # ranks within a link

# Requests of a user. Flags below.
OPEN, PUT, COMMIT, ROLLBACK, GET, CANCEL, TAKEN, SIZE, WAIT, CLOSE, PING, BYE = range(1, 13)
# Answers of a host.
OK, NOTHING, OVER, MISMATCH, FAILED = range(101, 106)  # NOTHING: empty, or full; OVER: closed; FAILED: with a text
NOT_BLOCKING = 1  # GET, PUT, COMMIT, WAIT: answer at once
# PUT: not visible before COMMIT; `value` is the transaction
IN_TRANSACTION = 2
_PARTS_WITHIN = 128  # all parts are in the frame, behind the head
_ALIGNED = 16  # size of the widest element


class Message(NamedTuple):
    op: int
    flags: int = 0
    queue: int = 0
    request: int = 0
    value: int = 0
    head: bytes = b""
    part_sizes: tuple[int, ...] = ()
    # Parts from within the frame, owned by the reader; None: the parts follow
    parts: list[torch.Tensor] | None = None


def tag_of(request: int) -> int:
    return 1 + request % (_TAGS - 1)


class Frame:
    """Memory for one frame: bytes, which Python reads fast, and a tensor of the same memory, for send and recv."""

    __slots__ = ("memory", "tensor")

    def __init__(self) -> None:
        self.memory = bytearray(FRAME_BYTES)
        self.tensor = torch.frombuffer(self.memory, dtype=torch.uint8)


def _places(begin: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """The places of parts that follow each other from ``begin`` on, and the end of the last part."""
    places = []
    for size in sizes:
        begin += -begin % _ALIGNED
        places.append(begin)
        begin += size
    return places, begin


def encode(message: Message,
           parts: Sequence[torch.Tensor]) -> tuple[Frame, torch.Tensor | None, Sequence[torch.Tensor]]:
    """The frame, the rest of the head when the head does not fit, and the parts that are not in the frame."""
    sizes = message.part_sizes
    head = struct.pack(f"<{len(sizes)}Q", *sizes) + message.head if sizes else message.head
    flags, end = message.flags, _FIELDS.size + len(head)
    frame = Frame()
    memory = frame.memory
    if parts and end + sum(sizes) <= FRAME_BYTES:
        places, last = _places(end, sizes)
        if last <= FRAME_BYTES:
            flags |= _PARTS_WITHIN
            for place, size, part in zip(places, sizes, parts):
                if size:
                    memory[place:place + size] = memoryview(part.numpy())
            parts = ()
    _FIELDS.pack_into(memory, 0, _MAGIC, _VERSION, message.op, flags, message.queue, message.request, message.value,
                      len(head), len(sizes))
    fits = len(head) <= ROOM
    if fits:
        memory[_FIELDS.size:end] = head
    return frame, None if fits else torch.frombuffer(bytearray(head), dtype=torch.uint8), parts


def head_outside(frame: Frame) -> int:
    """Bytes of the head that follow the frame."""
    size = _unpack(frame)[7]
    return size if size > ROOM else 0


def request_of(frame: Frame) -> int:
    return int(_unpack(frame)[5])


def decode(frame: Frame, rest: torch.Tensor | None) -> Message:
    _, _, op, flags, queue, request, value, size, count = _unpack(frame)
    head = bytes(memoryview(frame.memory)[_FIELDS.size:_FIELDS.size + size] if rest is None else rest.numpy())
    if not count and not flags & _PARTS_WITHIN:
        return Message(op, flags, queue, request, value, head)
    if count > MAX_PARTS or 8 * count > len(head):
        raise ShardwireError(f"a message of a queue says {count} parts in a head of {len(head)} bytes")
    sizes = struct.unpack(f"<{count}Q", head[:8 * count])
    parts = _parts_within(frame, _FIELDS.size + size, sizes) if flags & _PARTS_WITHIN else None
    return Message(op, flags & ~_PARTS_WITHIN, queue, request, value, head[8 * count:], sizes, parts)


def _parts_within(frame: Frame, begin: int, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """A copy of the frame's parts, in one piece of memory."""
    places, end = _places(begin, sizes)
    if end > FRAME_BYTES:
        raise ShardwireError(f"a message of a queue says parts of {sum(sizes)} bytes in a frame of {FRAME_BYTES}")
    if not sizes:
        return []
    begin = places[0]
    whole = frame.tensor[begin:end].clone()
    return [whole] if len(sizes) == 1 else [whole.narrow(0, place - begin, size) for place, size in zip(places, sizes)]


def _unpack(frame: Frame) -> tuple[Any, ...]:
    fields = _FIELDS.unpack_from(frame.memory, 0)
    if fields[0] != _MAGIC or fields[1] != _VERSION:
        raise ShardwireError("a message of a queue is of another version of shardwire: use one on all ranks")
    return fields


def send(backend: Any, peer: int, tag: int, message: Message, parts: Sequence[torch.Tensor]) -> list[Any]:
    """Sends a message whose frame has `tag`; returns the works."""
    frame, rest, outside = encode(message, parts)
    works = [backend.send([frame.tensor], peer, tag)]
    body = tag_of(message.request)
    for piece in (*(() if rest is None else (rest,)), *outside):
        if piece.numel():
            works.append(backend.send([piece], peer, body))
    return works
