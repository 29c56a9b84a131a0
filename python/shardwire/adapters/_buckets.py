"""A stream of named tensors through buckets of fixed size, by broadcasts of one group: rank 0 sends, all others
receive.

A bucket is three broadcasts: the sizes, the contents (names, dtypes, shapes), and the bytes. Two buckets take turns:
one is filled or read while the other is sent. A tensor longer than a bucket is sent in several buckets, and the
receiver puts the parts together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import torch

from ..groups import torch_backend
from ..plain.serialize import deserialize, serialize
from ..errors import MismatchError

_ALIGNED = 64  # any dtype may begin at a multiple
_NO_STEP = -1


class Buckets:
    """Two buckets of ``bucket_bytes`` each in the shared heap, for one stream after the other over ``group``."""

    def __init__(self, group: Any, rank: int, bucket_bytes: int) -> None:
        if bucket_bytes < _ALIGNED:
            raise ValueError(f"bucket_size is {bucket_bytes} bytes; give at least {_ALIGNED}")
        self._group, self._rank = group, rank
        size = bucket_bytes // _ALIGNED * _ALIGNED  # an empty tensor of any dtype may begin at the end
        self._buckets = [torch_backend.empty(size, dtype=torch.uint8) for _ in range(2)]

    async def send(self, weights: AsyncIterator[tuple[str, torch.Tensor]], step: int | None,
                   dtype: torch.dtype | None) -> int:
        """Sends all of ``weights``; floating tensors are cast to ``dtype`` unless ``dtype`` is None. Returns the
        bytes."""
        filled, total, travelling = 0, 0, None
        parts: list[list[Any]] = []
        async for name, weight in weights:
            wanted = dtype if dtype is not None and weight.is_floating_point() else weight.dtype
            for begin, piece in _pieces(weight.detach(), wanted, self._buckets[0].numel()):
                count = piece.numel() * wanted.itemsize
                if filled + count > self._buckets[0].numel():
                    await _done(travelling)
                    travelling = self._send(parts, filled, step, False)
                    parts, filled = [], 0
                self._buckets[0][filled:filled + count].view(wanted).copy_(piece)
                parts.append([name, str(wanted), list(weight.shape), begin, count, filled])
                total += count
                filled = -(-(filled + count) // _ALIGNED) * _ALIGNED
        await _done(travelling)
        await _done(self._send(parts, filled, step, True))
        return total

    def _send(self, parts: list[list[Any]], filled: int, step: int | None, last: bool) -> Any:
        """Starts to send a bucket; the other bucket is the next to be filled."""
        head = serialize(parts)
        sizes = torch.tensor([head.numel(), filled, int(last), _NO_STEP if step is None else step], dtype=torch.int64,
                             device="cpu")
        works = [_broadcast(self._group, tensor) for tensor in (sizes, head, self._buckets[0][:filled])
                 if tensor.numel()]
        self._buckets.reverse()
        return works

    async def receive(self, step: int | None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yields the tensors of rank 0. A tensor is a view of a bucket, or a whole copy of a longer tensor, and is
        valid until the next is requested; MismatchError where rank 0 sends another step."""
        whole: tuple[str, torch.Tensor] | None = None
        parts, last = await self._receive(step)
        while True:
            current = self._buckets[0]
            self._buckets.reverse()
            following = None if last else asyncio.ensure_future(self._receive(step))
            try:
                for name, dtype_name, shape, begin, count, at in parts:
                    dtype = getattr(torch, dtype_name.removeprefix("torch."))
                    piece = current[at:at + count].view(dtype)
                    elements = torch.Size(shape).numel()
                    if piece.numel() == elements:
                        yield name, piece.view(shape)
                        continue
                    if begin == 0:
                        whole = name, torch.empty(shape, dtype=dtype, device="cpu")
                    assert whole is not None and whole[0] == name, "rank 0 sends a tensor's pieces one behind the other"
                    whole[1].view(-1)[begin:begin + piece.numel()].copy_(piece)
                    if begin + piece.numel() == elements:
                        yield whole
                        whole = None
            finally:  # also when the reader leaves early: a pending receive writes into our buckets
                if following is not None:
                    parts, last = await following
            if following is None:
                return

    async def _receive(self, step: int | None) -> tuple[list[list[Any]], bool]:
        """Receives the next bucket into the first of the two."""
        bucket = self._buckets[0]
        sizes = torch.empty(4, dtype=torch.int64, device="cpu")
        await _done([_broadcast(self._group, sizes)])
        head_bytes, filled, last, sent_step = sizes.tolist()
        if step is not None and sent_step not in (_NO_STEP, step):
            raise MismatchError(f"rank {self._rank} receives the weights of step {step}, rank 0 sends those of step "
                                f"{sent_step}")
        if filled > bucket.numel():
            raise MismatchError(f"rank 0 sends buckets of {filled} bytes, rank {self._rank} has {bucket.numel()}; give "
                                "all ranks the same bucket_size")
        head = torch.empty(head_bytes, dtype=torch.uint8, device="cpu")
        await _done([_broadcast(self._group, tensor) for tensor in (head, bucket[:filled]) if tensor.numel()])
        return deserialize(head), bool(last)


def _pieces(weight: torch.Tensor, dtype: torch.dtype, bucket_bytes: int) -> list[tuple[int, torch.Tensor]]:
    """(first element, elements) of each piece of ``weight`` that fits a bucket as ``dtype``."""
    flat = weight.reshape(-1)
    step = bucket_bytes // dtype.itemsize
    return [(begin, flat[begin:begin + step]) for begin in range(0, max(1, flat.numel()), step)]


def _broadcast(group: Any, tensor: torch.Tensor) -> Any:
    return group.broadcast(tensor, 0)


async def _done(works: list[Any] | None) -> None:
    """Waits outside of the event loop, which may serve other requests meanwhile."""
    loop = asyncio.get_running_loop()
    for work in works or []:
        await loop.run_in_executor(None, work.wait)
