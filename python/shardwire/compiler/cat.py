"""cat: joins tensors of several ranks, on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _C
from .compile_op import compile_op
from .future import Future, Seconds, as_seconds
from ..groups.lookup import resolve_backend
from .layout import MAX_DIMS, as_dims, is_dtensor
from ..plain.tensor_bytes import dtype_named, name_of


class CatFuture(Future):
    """The handle of one :func:`cat`; :meth:`result` gives the joined tensor."""

    __slots__ = ("_joined",)

    def __init__(self, work: Any, joined: torch.Tensor) -> None:
        super().__init__(work)
        self._joined = joined

    def result(self, timeout: Seconds = None) -> torch.Tensor:  # type: ignore[override]
        self.wait(timeout)
        return self._joined


def cat(locals: Sequence[tuple[int, torch.Tensor]], group: Any = None, timeout: Seconds = None) -> CatFuture:
    """Joins tensors along dimension 0, in the order of their numbers; every rank gets the whole.

    Collective. locals: pairs of a number and a tensor, given by this rank: none, one or several. Over all ranks each
    number is given once; gaps between numbers are allowed. Tensors have one dtype, at least one dimension, and equal
    sizes except in dimension 0.

    Returns at once, as a compiled op does: ``cat(pairs).result()`` waits and gives the tensor. ValueError or TypeError
    on all ranks alike, naming rank and number, for tensors that do not fit together; TimeoutError names the missing
    ranks.
    """
    backend = resolve_backend(group)
    seconds: float | None = None
    error: Exception | None = None
    mine: list[tuple[int, torch.Tensor]] = []
    try:
        seconds = as_seconds(timeout)
        mine = _read(locals)
    # The other ranks wait for this rank and must be notified
    except Exception as failure:  # of a generator: any
        error = failure
    pieces = _all_pieces(backend, mine, error, seconds)
    shape, dtype = _judge(pieces)
    inputs, outputs, row = [], [{"offset": [0] * len(shape), "shape": shape}], 0
    rank = _C.rank(backend)
    by_number = dict(mine)
    tensors = []
    for number, owner, dims, _ in sorted(pieces):
        if owner == rank:
            inputs.append({"offset": [row] + [0] * (len(shape) - 1), "shape": list(dims)})
            tensors.append(by_number[number])
        row += dims[0]
    op = compile_op(backend, shape=shape, dtype=dtype, inputs=inputs, outputs=outputs, timeout=seconds,
                    name="shardwire.cat")
    joined = torch.empty(shape, dtype=dtype, device=mine[0][1].device if mine else "cpu")
    return CatFuture(op._op.run(tensors, [joined], seconds), joined)


def _read(locals: Any) -> list[tuple[int, torch.Tensor]]:
    pairs = []
    for index, pair in enumerate(locals):
        if (not isinstance(pair, (tuple, list)) or len(pair) != 2 or isinstance(pair[0], bool)
                or not isinstance(pair[0], int)):
            raise TypeError(f"locals[{index}] is no pair of a number and a tensor")
        number, tensor = pair
        if not isinstance(tensor, torch.Tensor) or not 1 <= tensor.dim() <= MAX_DIMS:
            said = f"of {tensor.dim()} dimensions" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"tensor {number} is {said}; give tensors of 1 to {MAX_DIMS} dimensions")
        if is_dtensor(tensor):
            raise TypeError(f"tensor {number} is a DTensor; give its to_local(), or call redistribute")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_conj() or tensor.is_neg():
            raise ValueError(f"tensor {number} is sparse, meta, or a view that torch computes when it is read (conj, "
                             "imag); give tensor.to_dense(), or tensor.resolve_conj().resolve_neg()")
        _C.require_memory(tensor, f"tensor {number}")
        pairs.append((as_dims([number], "number")[0], tensor.detach()))
    return pairs


def _all_pieces(backend: Any, mine: list[tuple[int, torch.Tensor]], error: Exception | None,
                seconds: float | None) -> list[tuple[int, int, tuple[int, ...], str]]:
    """Number, rank, shape and dtype of every rank's tensors; the first rank's error on all."""
    lines = [f"{number};{name_of(tensor.dtype)};{','.join(map(str, tensor.shape))}" for number, tensor in mine]
    pieces = []
    answers = _C.exchange(backend, "cat", blob="\n".join(lines).encode(), error=error, timeout=seconds)
    for rank, said in enumerate(answers):
        for line in said.decode().splitlines():
            number, dtype, dims = line.split(";")
            pieces.append((int(number), rank, tuple(int(size) for size in dims.split(",")), dtype))
    return pieces


def _judge(pieces: list[tuple[int, int, tuple[int, ...], str]]) -> tuple[list[int], torch.dtype]:
    """Shape and dtype of the whole. The same error on every rank."""
    if not pieces:
        raise ValueError("cat: no rank gave a tensor")
    ordered = sorted(pieces)
    first = ordered[0]
    for before, piece in zip([first] + ordered, ordered):
        if piece[0] == before[0] and piece is not before:
            raise ValueError(
                f"cat: ranks {before[1]} and {piece[1]} both give tensor {piece[0]}; give each number once")
        if piece[2][1:] != first[2][1:] or len(piece[2]) != len(first[2]) or piece[3] != first[3]:
            raise ValueError(f"cat: tensor {first[0]} of rank {first[1]} is {first[3]}{list(first[2])}, tensor "
                             f"{piece[0]} of rank {piece[1]} {piece[3]}{list(piece[2])}; they must be alike but for "
                             "the first dimension")
    return [sum(piece[2][0] for piece in ordered), *first[2][1:]], dtype_named(first[3])
