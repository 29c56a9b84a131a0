"""One object for the same elements of several ranks' parts: reduced on reading, written everywhere, like PTX's
``multimem`` instructions."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C, errors
from ..plain.tensor_bytes import item_bytes
from .teams import Team

# The names of the instructions, and torch's names.
_OPS = {"add": "sum", "sum": "sum", "mul": "prod", "prod": "prod", "min": "min", "max": "max", "and": "band",
        "band": "band", "or": "bor", "bor": "bor", "xor": "bxor", "bxor": "bxor"}


def get_multicast_tensor(*arguments: Any) -> MulticastTensor:
    """``get_multicast_tensor(t)``: over all ranks of the group that made ``t``; ``get_multicast_tensor(team, t)``: over
    the ranks of ``team``, in the team's order.

    t: a symmetric tensor or a view of one. team: a :class:`Team` whose ranks are all in the tensor's group. Local,
        waits for nothing.

    Raises ValueError for other tensors and teams, UnsupportedError where a rank is on another host.
    """
    if len(arguments) not in (1, 2) or not isinstance(arguments[-1], torch.Tensor):
        raise TypeError("get_multicast_tensor takes a tensor, or a team and a tensor")
    tensor = arguments[-1]
    place = _C.symm_place(tensor)
    if place is None:
        raise ValueError("get_multicast_tensor: the tensor does not lie in symmetric memory: make it by "
                         "shardwire.symm.empty() on all ranks")
    ranks = list(range(place[3]))
    if len(arguments) == 2 and arguments[0] is not None:
        team = arguments[0]
        if not isinstance(team, Team):
            raise TypeError(f"team is a {type(team).__name__}; give a shardwire.symm.Team, or None")
        members = _C.symm_job_ranks(tensor)
        foreign = [rank for rank in team.job_ranks if rank not in members]
        if foreign:
            raise ValueError(
                f"get_multicast_tensor: ranks {foreign} of the team are not in the group that made the tensor")
        ranks = [members.index(rank) for rank in team.job_ranks]
    for rank in ranks:
        _C.symm_peer(tensor, rank)  # raises with the reason where a part cannot be addressed
    return MulticastTensor(tensor, ranks)


class MulticastTensor:
    """The same elements of several ranks' parts. Index the object for a slice: ``mc[4:8].ld_reduce()``. Made by
    :func:`get_multicast_tensor`.

    Each call is complete when the call returns, done by the caller alone: no other rank takes part. The callers order
    their accesses by signals and barriers.
    """

    __slots__ = ("_ranks", "_tensor")

    def __init__(self, tensor: torch.Tensor, ranks: list[int]) -> None:
        self._tensor = tensor
        self._ranks = ranks

    @property
    def shape(self) -> torch.Size:
        return self._tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._tensor.dtype

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    @property
    def ndim(self) -> int:
        return self._tensor.dim()

    def dim(self) -> int:
        return self._tensor.dim()

    def numel(self) -> int:
        return self._tensor.numel()

    def element_size(self) -> int:
        """Bytes of an element."""
        return self._tensor.element_size()

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape, or the extent of one dimension."""
        return self._tensor.shape if dim is None else self._tensor.shape[dim]

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """The strides of all dimensions, or of one, in elements."""
        return self._tensor.stride() if dim is None else self._tensor.stride(dim)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the parts, in the tensor's group."""
        return tuple(self._ranks)

    def __getitem__(self, index: Any) -> MulticastTensor:
        view = self._tensor[index]
        if _C.symm_place(view) is None:
            raise IndexError("a MulticastTensor is indexed by integers, slices and ...: lists and tensors as an index "
                             "make a copy")
        return MulticastTensor(view, self._ranks)

    def __repr__(self) -> str:
        return f"MulticastTensor(shape={tuple(self.shape)}, dtype={self.dtype}, ranks={self._ranks})"

    def ld_reduce(self, op: str = "add", accumulate: torch.dtype | None = None,
                  out: torch.Tensor | None = None) -> torch.Tensor:
        """All parts reduced, element by element, in the order of the ranks: every calling rank gets the same bits.

        op: add, mul, min, max, and, or, xor. Float16, bfloat16 and float8 are always accumulated in float32 and rounded
            once.
        accumulate: the dtype itself, or float32 or float16 for floating types of at most 16 bits; has no effect.
        out: a CPU tensor of the same shape; where its dtype is another floating type, ``out`` gets the accumulator
            rounded once.

        Returns ``out`` or a new tensor. Raises TypeError for an op that the dtype does not have, UnsupportedError for
        another accumulator.
        """
        _check_accumulator(self.dtype, accumulate)
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        _C.symm_ld_reduce(self._tensor, self._ranks, _op_of(op), out)
        return out

    def store(self, values: torch.Tensor | float) -> None:
        """Writes ``values``, a number or a tensor that broadcasts to the shape, to all parts. Wakes the threads that
        wait for an element."""
        _C.symm_store(self._tensor, self._ranks, self._expanded(values))

    def red(self, op: str, values: torch.Tensor | float) -> None:
        """Each element of all parts becomes itself ``op`` the element of ``values``, atomically. Wakes the threads that
        wait for an element.

        The calls of all ranks with one ``op`` take effect in one order in all parts, so equal parts stay equal, floats
        too. On integers and bool this needs no agreement; for other dtypes the callers take turns, also with different
        ops, and the wait for a turn ends as :func:`signal_wait` does. On integers and bool calls with different ops
        ("add" and "mul") may come in another order in each part: put a barrier between these calls. Elements of up to 8
        bytes.
        """
        _C.symm_red(self._tensor, self._ranks, _op_of(op), self._expanded(values))

    def _expanded(self, values: Any) -> torch.Tensor:
        if not isinstance(values, torch.Tensor):
            values = torch.tensor(values, dtype=self.dtype, device="cpu")
        elif _C.symm_place(values) is not None:
            values = values.clone()  # the values may lie in a part that is written, and are read once for each part
        return values.expand(self.shape)


def _op_of(op: str) -> str:
    name = _OPS.get(op)
    if name is None:
        raise ValueError(f"op is {op!r}; give add, mul, min, max, and, or, xor")
    return name


def _check_accumulator(dtype: torch.dtype, accumulate: torch.dtype | None) -> None:
    if accumulate is None or accumulate == dtype:
        return
    if not isinstance(accumulate, torch.dtype):
        raise TypeError(f"accumulate is a {type(accumulate).__name__}; give a torch.dtype or None")
    is_narrow = dtype.is_floating_point and item_bytes(dtype) <= 2
    if not is_narrow or accumulate not in (torch.float32, torch.float16):
        raise errors.UnsupportedError(f"{dtype} is accumulated in {'float32' if is_narrow else dtype}, not in "
                                      f"{accumulate}")

