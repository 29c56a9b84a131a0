"""One compiled op for matched weights, and the op's runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..compiler.compile_op import CustomOp
from ..compiler.future import Future, Seconds
from ..compiler.spec import Side
from ..errors import ShardwireError
from ..compiler.agree import Meeting
from .simple_layouts import Chunks, Share
from .holdings import Holdings
from .matching import Match, Placed, Space

Tensors = Callable[[], Mapping[str, "torch.Tensor | list[torch.Tensor]"]]  # a list where the layout is Chunks
Piece = tuple[Placed, int]  # the number of one of the name's local tensors
_PLACE = re.compile(r"\b(input|output)s\[(\d+)\]")
RowsOf = Callable[[str], Sequence[tuple[int, int]]]


@dataclass(slots=True)
class End:
    """One side of the movement on this rank: the layouts of its names, and the function that finds the tensors at the
    start of a run.

    given: finds the caller's own tensors, where runs use others instead. None: runs use tensors made anew by this
        package, so a check is not needed.
    """

    layouts: Mapping[str, Any]
    tensors: Tensors
    given: Tensors | None

    @classmethod
    def of(cls, holdings: Holdings) -> End:
        return cls({name: holding.layout for name, holding in holdings.entries.items()}, holdings.tensors,
                   holdings.tensors)


class Movement:
    """One compiled op over all matched weights of this rank, with the names of its tensors."""

    def __init__(self, op: CustomOp, source: End, inputs: list[Piece], target: End, outputs: list[Piece]) -> None:
        self.op = op
        self._source, self._inputs = source, inputs
        self._target, self._outputs = target, outputs

    def run(self, timeout: Seconds = None) -> Future:
        with self._names_for_places():
            return self.op(_present(self._source.tensors, self._inputs, "source"),
                           _present(self._target.tensors, self._outputs, "target"), timeout=timeout)

    def num_bytes(self) -> int:
        """The bytes written by a run on this rank."""
        return sum(tensor.numel() * tensor.element_size()
                   for tensor in _present(self._target.tensors, self._outputs, "target"))

    def check(self) -> None:
        """Raises the local errors of a run with the caller's tensors: a lazily conjugated view, a target with stride 0,
        overlapping tensors."""
        if self._source.given is not None and self._target.given is not None:
            with self._names_for_places():
                self.op.bind(_present(self._source.given, self._inputs, "source"),
                             _present(self._target.given, self._outputs, "target"))

    @contextmanager
    def _names_for_places(self) -> Iterator[None]:
        """Errors of the op count tensors; this context replaces each number by the caller's name."""
        def name(found: re.Match[str]) -> str:
            which, places = ("source", self._inputs) if found[1] == "input" else ("target", self._outputs)
            return f"{which} {places[int(found[2])][0].name!r}"

        try:
            yield
        except (ShardwireError, ValueError, TypeError) as error:
            raise type(error)(_PLACE.sub(name, str(error))) from error


def compile_movement(meeting: Meeting, found: Match, source: End, target: End, name: str,
                     error: Exception | None = None, rows: RowsOf | None = None) -> Movement:
    """Collective. ``error``: this rank's error since the last common step; then all ranks raise the error. Tensors that
    a run would refuse are refused here, on all ranks. ``rows``: given on all ranks or on none: for each source name on
    this rank the ranges of moved rows of the local tensor; the rest of the target stays unchanged.
    """
    meeting.settle(error)
    tensors: list[_C.TensorDecl] = []
    sides = []
    places: list[list[Piece]] = [[], []]
    native: list[list[_C.LocalTensor]] = [[], []]
    for space in found.spaces:
        for which, (end, placed_list) in enumerate(((source, space.sources), (target, space.targets))):
            for placed in placed_list:
                layout = end.layouts.get(placed.name)
                for piece, share in enumerate(_shares(layout, meeting.global_rank)):
                    if rows is not None and which == 0 and space.reduction is None:
                        share = _only_rows(share, rows(placed.name))
                        if not share.boxes:
                            continue
                    if not tensors or tensors[-1].name != space.name:
                        tensors.append(
                            _C.TensorDecl(space.name, space.shape, space.dtype, space.reduction, space.output_dtype))
                    replicas = _replica_class(space, placed, layout, share) if which == 0 else 0
                    native[which].append(_local(len(tensors) - 1, placed, share, replicas))
                    places[which].append((placed, piece))
    for label, locals_ in zip(("inputs", "outputs"), native):
        sides.append(Side(label, [True] * len(locals_), None, locals_, len(locals_)))
    op = _C.compile_op(meeting.backend, tensors, native[0], native[1], rows is not None, name, None, meeting.seconds)
    movement = Movement(CustomOp(op, *sides), source, places[0], target, places[1])
    if rows is None:
        with meeting.together():
            movement.check()
    return movement


def _shares(layout: Any, rank: int) -> list[Any]:
    """One share for each local tensor of the rank for a name."""
    if isinstance(layout, Chunks):
        return layout.pieces()
    share = None if layout is None else layout.share(rank)
    return [] if share is None else [share]


def _only_rows(share: Any, rows: Sequence[tuple[int, int]]) -> Share:
    """The parts of the share's boxes in the given ranges of rows of the local tensor. A scalar is one row."""
    boxes = []
    for box in share.boxes:
        first = box.local_offset[0] if box.local_offset else 0
        count = box.shape[0] if box.shape else 1
        for begin, end in rows:
            begin, end = max(begin, first), min(end, first + count)
            if begin < end and not box.shape:
                boxes.append(box)
            elif begin < end:
                boxes.append(_C.Box((box.offset[0] + begin - first, *box.offset[1:]), (end - begin, *box.shape[1:]),
                                    (begin, *box.local_offset[1:])))
    return Share(tuple(share.local_shape), boxes, share.replica_class)


def _local(tensor: int, placed: Placed, share: Any, replicas: int) -> _C.LocalTensor:
    turn = slice(None, None, -1) if placed.transposed else slice(None)
    boxes = [_C.Box([at + base for at, base in zip(box.offset[turn], placed.offset)], box.shape[turn],
                    box.local_offset[turn]) for box in share.boxes]
    return _C.LocalTensor(tensor, share.local_shape[turn], boxes, replicas)


def _replica_class(space: Space, placed: Placed, layout: Any, share: Any) -> int:
    """All holders of a name are replicas of one another, for any layouts; only addends of a Partial get different
    classes."""
    addend = share.replica_class if layout.pending_reduction is not None else 0
    text = repr((space.name, placed.name, addend))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1 | 1


def _present(find: Tensors, places: Sequence[Piece], side: str) -> list[torch.Tensor]:
    tensors = find()
    present = []
    for placed, piece in places:
        found = tensors.get(placed.name)
        if found is None:
            raise ValueError(f"the {side} has no {placed.name!r} any more; make another sync after changing it")
        tensor = found[piece] if isinstance(found, list) else found
        present.append(_turned(tensor) if placed.transposed else tensor)
    return present


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(*range(tensor.dim() - 1, -1, -1))
