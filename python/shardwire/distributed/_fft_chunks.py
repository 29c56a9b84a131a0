"""An exchange of an FFT in chunks: each chunk is sent while the local transform of the next chunk is computed.

A chunk is the same part of every rank's own box, along an axis that the step before does not transform. So ranks need
not agree on the place of a chunk in the array, and every chunk has bytes for every peer. Each chunk is a separate
compiled op.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import socket
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .. import _C
from ..compiler.compile_op import CustomOp, compile_op
from ..compiler.future import Future
from ..groups.lookup import resolve_backend, table_by_group
from ..compiler.plot import human_bytes
from ._ends import End, _meet
from ._fft_route import Local, Move
from ._local_call import packed
from .distribution import Piece

# Without the caller's number: the maximum of chunks, and the minimum of bytes of a chunk for each rank. Smaller chunks
# were not measurably faster (docs/benchmarks.md).
MOST, LEAST_BYTES = 4, 1 << 19
# Transports whose bytes, between hosts, are moved by the card and the cable and not by the cores of the transform.
_WIRES = ("tcp", "rdma")


class Chunking(NamedTuple):
    """The inputs of the decision on chunks, equal on all ranks. wanted: the caller's number, or None. over_wires:
    whether wires connect hosts of the group."""

    wanted: int | None
    over_wires: bool


class Cut(NamedTuple):
    """An exchange in ``chunks`` parts along ``axis``; why: for people. 1: whole."""

    axis: int
    chunks: int
    why: str


class Chunk(NamedTuple):
    """One chunk on this rank: a part of the local box, and the op's targets: (shape, strides, place) in the result
    array. ``op``: compiled by all ranks."""

    begin: int
    length: int
    op: CustomOp
    views: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]


_hosts: weakref.WeakKeyDictionary[Any, str] = table_by_group()


def host_with_wires(group: Any) -> str:
    """The name of this rank's host where the rank reaches others of ``group`` over wires, else "". Found at the first
    call and then kept, since every transform asks. Not collective."""
    known = _hosts.get(group)
    if known is None:
        transports = re.findall(r"^rank \d+: (\w+)", _C.describe(resolve_backend(group)), re.MULTILINE)
        known = _hosts[group] = _host_name() if any(name in _WIRES for name in transports) else ""
    return known


def _host_name() -> str:
    """A name for the host: a host is a kernel and a network namespace, as for the transports."""
    name = os.environ.get("SHARDWIRE_HOST_ID") or os.environ.get("NCCL_HOSTID")
    if not name:
        with contextlib.suppress(OSError):
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                name = f"{file.read()} {os.stat('/proc/self/ns/net').st_ino}"
    return hashlib.sha256((name or socket.gethostname()).encode()).hexdigest()[:12]  # short: sent in every call


def are_between_hosts(hosts: Sequence[str]) -> bool:
    """Whether wires lead from one host to another. hosts: the results of host_with_wires() on all ranks."""
    return len({host for host in hosts if host}) > 1


def choose(step: Local, move: Move, item: int, chunking: Chunking) -> Cut:
    """The cut of the exchange after ``step``. Pure: the same on all ranks. item: bytes of an element."""
    free = [axis for axis in range(len(move.source.global_shape)) if axis not in step.axes]
    extents = [max((share.local_shape[axis] for share in move.source.shares if math.prod(share.local_shape)), default=0)
               for axis in range(len(move.source.global_shape))]
    if not any(extents[axis] > 1 for axis in free):
        return Cut(0, 1, "every axis with more than one index is transformed")
    largest = max(math.prod(share.local_shape) for share in move.source.shares) * item
    if chunking.wanted is not None:
        wanted, why = chunking.wanted, "as the options say"
    elif not chunking.over_wires:
        return Cut(0, 1, "no tcp or rdma between hosts: the cores that transform copy, too")
    else:
        least = LEAST_BYTES * len(move.source.shares)
        wanted = min(MOST, largest // least)
        why = (f"between hosts, {human_bytes(least)} each or more" if wanted > 1
               else f"too small: less than {human_bytes(2 * least)} on every rank")
    # Along an axis that the target cuts, a chunk would be for some peers only. Outer axes leave chunks contiguous in
    # memory.
    axis = min(free, key=lambda axis: (extents[axis] < min(wanted, 2), _is_cut(move.target, axis),
                                       extents[axis] < wanted, axis))
    if extents[axis] < wanted:
        why += f", but axis {axis} has {extents[axis]} indices"
    return Cut(axis, max(1, min(wanted, extents[axis])), why)


def _is_cut(end: End, axis: int) -> bool:
    return any(math.prod(share.local_shape) and share.local_shape[axis] != end.global_shape[axis]
               for share in end.shares)


def part_of(extent: int, count: int, number: int) -> tuple[int, int]:
    """The begin of part ``number`` of ``count``, and the part's length: the parts of numpy's array_split."""
    base, more = divmod(extent, count)
    return number * base + min(number, more), base + (number < more)


def compile_chunks(group: Any, rank: int, move: Move, cut: Cut, dtype: torch.dtype, name: str) -> list[Chunk]:
    """The chunks of this rank with their compiled ops. Collective."""
    return [_compile(group, rank, move, cut, number, dtype, f"shardwire.distributed.{name}, chunk {number + 1} of "
                                                            f"{cut.chunks}") for number in range(cut.chunks)]


def _compile(group: Any, rank: int, move: Move, cut: Cut, number: int, dtype: torch.dtype, name: str) -> Chunk:
    boxes = list(_boxes(move.source, cut, number))
    own, target = boxes[rank], move.target.shares[rank]
    # A region and a view for each piece: with the whole array as the output of all chunks, one chunk would wait for the
    # other.
    wanted = [(common,
               tuple(place + common.offset[dim] - piece.offset[dim] for dim, place in enumerate(piece.local_offset)))
              for piece in target.pieces for box in boxes if box is not None for common in [_meet(piece, box)]
              if common is not None]
    strides = packed(target.local_shape, dtype).strides
    op = compile_op(group, shape=move.source.global_shape, dtype=dtype,
                    inputs=[] if own is None else [{"offset": own.offset, "shape": own.shape}],
                    outputs=[{"offset": common.offset, "shape": common.shape} for common, _ in wanted], overlap="any",
                    name=name)
    begin, length = part_of(move.source.shares[rank].local_shape[cut.axis], cut.chunks, number)
    return Chunk(begin, 0 if own is None else length, op, tuple(
        (common.shape, strides, sum(index * stride for index, stride in zip(at, strides))) for common, at in wanted))


def _boxes(source: End, cut: Cut, number: int) -> Iterator[Piece | None]:
    """The chunk of each rank; None for an empty chunk."""
    for share in source.shares:
        begin, length = part_of(share.local_shape[cut.axis], cut.chunks, number)
        if not length or not math.prod(share.local_shape):
            yield None
            continue
        (piece,) = share.pieces  # the operand of a transform is one box
        offset, shape = list(piece.offset), list(piece.shape)
        offset[cut.axis] += begin
        shape[cut.axis] = length
        yield Piece(tuple(offset), tuple(shape), tuple(offset))


def start(chunk: Chunk, part: torch.Tensor | None, result: torch.Tensor) -> Future:
    """Starts one chunk. ``result``: the whole array on this rank, in C order."""
    first = result.storage_offset()
    return chunk.op([] if part is None else [part],
                    [result.as_strided(shape, strides, first + place) for shape, strides, place in chunk.views])


def wait_for_all(futures: Sequence[Future]) -> None:
    """Waits until every future has ended; then returns, or raises the first of the errors. Ctrl-C leaves all futures,
    as a wait for a single one does."""
    failure: Exception | None = None
    try:
        for future in futures:
            try:
                future.wait()
            except Exception as error:
                failure = failure or error
    except BaseException:
        leave_all(futures)
        raise
    if failure is not None:
        raise failure


def leave_all(futures: Sequence[Future]) -> None:
    """Leaves all futures: no caller waits for the operations any more, or gets their errors."""
    for future in futures:
        future.leave()


def merged(traffics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The CustomOp.traffic() of the chunks of one exchange, merged as of one op."""
    edges: dict[tuple[int, int], dict[str, Any]] = {}
    for traffic in traffics:
        for edge in traffic["edges"]:
            known = edges.setdefault((edge["src"], edge["dst"]), {**edge, "bytes": 0, "pieces": 0})
            known["bytes"] += edge["bytes"]
            known["pieces"] += edge["pieces"]
    bounds = [traffic["lower_bound_bytes"] for traffic in traffics]
    return {**traffics[0], "edges": [edges[key] for key in sorted(edges)],
            "lower_bound_bytes": None if None in bounds else sum(bounds),
            "name": traffics[0]["name"].partition(", chunk ")[0]}
