"""The layout of a global tensor over a mesh of ranks: DTensor's rules as plain values for every version of torch.

A :class:`Layout` is a DTensor without its data. ``compile_op`` takes either; a DTensor is read into a Layout first, so
both mean the same. No function here communicates.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from .. import _C
from ..errors import UnsupportedError

# Most dimensions a tensor may have anywhere in shardwire.
MAX_DIMS = 16
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Shard:
    """The tensor is cut along ``dim`` (negative: from the end) over this mesh dimension, as ``torch.chunk`` cuts."""

    dim: int


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank along this mesh dimension holds the same values."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank along this mesh dimension holds an addend; the value is their reduction by ``reduce_op``.

    ``reduce_op``: "sum" (default), "avg" or "mean", "min", "max", "product" or "prod".
    """

    reduce_op: str = "sum"


@dataclass(frozen=True, slots=True)
class StridedShard:
    """torch's ``_StridedShard``: mesh dimensions to the right cut ``dim`` into ``split_factor`` pieces before this mesh
    dimension cuts ``dim``."""

    dim: int
    split_factor: int


Placement = Union[Shard, Replicate, Partial, StridedShard]


def as_dims(value: Any, what: str) -> tuple[int, ...]:
    """``value`` (a tuple, list, torch.Size... of int) as a tuple of int.

    Raises TypeError when ``value`` is not a sequence of int, ValueError for more than 16 dimensions or more than 64
    bits. ``what`` is the name of ``value`` in the error.
    """
    if type(value) is not tuple and type(value) is not list:
        if isinstance(value, (str, bytes, dict, set)) or not isinstance(value, Iterable):
            raise TypeError(f"{what} is {kind_of(value)}; give a tuple or list of int")
    dims = []
    for position, item in enumerate(value):
        if type(item) is not int:
            if isinstance(item, bool) or not hasattr(item, "__index__"):
                raise TypeError(f"{what}[{position}] is {kind_of(item)}; give an int")
            try:
                item = operator.index(item)
            except TypeError:
                raise TypeError(f"{what}[{position}] is {kind_of(item)}; give an int") from None
        if not -_INT64_MAX <= item <= _INT64_MAX:
            raise ValueError(f"{what}[{position}] is {item}, which does not fit in 64 bits")
        dims.append(item)
    if len(dims) > MAX_DIMS:
        raise ValueError(f"{what} has {len(dims)} dimensions; at most {MAX_DIMS} are supported")
    return tuple(dims)


def kind_of(value: Any) -> str:
    """A wrong value for a message: short, and never an address."""
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"a {type(value).__name__}"


class Layout:
    """A global tensor of ``shape`` and ``dtype`` laid out over ``mesh`` by ``placements``.

    mesh: a DeviceMesh, or nested lists, a tensor or an ndarray of GLOBAL ranks (ranks of the default group), one
        nesting level per mesh dimension. Ranks outside of the mesh hold nothing.
    placements: one per mesh dimension: ``Shard(dim)``, ``Replicate()``, ``Partial(reduce_op)``, ``StridedShard(dim,
        split_factor)``, or torch's own.
    shape: the global shape. dtype: a torch.dtype.

    Raises TypeError or ValueError for arguments that cannot be a layout, UnsupportedError (a NotImplementedError) for
    unknown placements. Immutable, hashable, comparable.
    """

    __slots__ = ("mesh_shape", "ranks", "placements", "shape", "dtype", "_native")

    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    _native: _C.Layout

    def __init__(self, mesh: Any, placements: Sequence[Any], shape: Sequence[int], dtype: torch.dtype) -> None:
        mesh_shape, ranks = read_mesh(mesh)
        dims = as_dims(shape, "shape")
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {kind_of(dtype)}; give a torch.dtype such as torch.float32")
        if isinstance(placements, (str, bytes, dict)) or not isinstance(placements, Iterable):
            raise TypeError(f"placements is {kind_of(placements)}; give a list with one placement per mesh dimension")
        read = tuple(_read_placement(item, index, len(dims)) for index, item in enumerate(placements))
        native = _C.Layout(mesh_shape, ranks, [_native_placement(item) for item in read], dims)
        for name, value in zip(self.__slots__, (mesh_shape, ranks, read, dims, dtype, native)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, dtensor: Any) -> Layout:
        """The layout of a DTensor (the data are not read; a meta DTensor will do)."""
        if not is_dtensor(dtensor):
            raise TypeError(f"Layout.of takes a DTensor, not {kind_of(dtensor)}")
        return cls(dtensor.device_mesh, dtensor.placements, tuple(dtensor.shape), dtensor.dtype)

    @property
    def pending_reduction(self) -> str | None:
        """The pending reduction of the Partial placements ("sum", "mean", "min", "max", "prod"), or None."""
        return self._native.pending_reduction

    def share(self, rank: int) -> _C.LocalShare | None:
        """The part of global rank ``rank``: ``local_shape``, and ``boxes`` with ``offset``, ``shape`` and
        ``local_offset``; None outside of the mesh."""
        return self._native.share_of(rank)

    def local_shape(self, rank: int) -> tuple[int, ...] | None:
        """The shape of the local tensor on global rank ``rank``; None outside of the mesh."""
        share = self.share(rank)
        return None if share is None else share.local_shape

    def take(self, tensor: torch.Tensor, rank: int) -> torch.Tensor | None:
        """The part of the global ``tensor`` on global rank ``rank``: a view where the part is one box, else a copy.
        None outside."""
        if tuple(tensor.shape) != self.shape:
            raise ValueError(f"the tensor has shape {list(tensor.shape)}, the layout {list(self.shape)}")
        share = self.share(rank)
        if share is None:
            return None
        if len(share.boxes) == 1:
            box = share.boxes[0]
            if box.shape == share.local_shape:
                return box_of(tensor, box.offset, box.shape)
        local = torch.empty(share.local_shape, dtype=tensor.dtype, device=tensor.device)
        for box in share.boxes:
            box_of(local, box.local_offset, box.shape).copy_(box_of(tensor, box.offset, box.shape))
        return local

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Layout does not change; make another with the {name} you want")

    def _key(self) -> tuple[Any, ...]:
        return (self.mesh_shape, self.ranks, self.placements, self.shape, self.dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, self._key())

    def __repr__(self) -> str:
        mesh = (list(self.ranks) if len(self.mesh_shape) == 1
                else f"{'x'.join(map(str, self.mesh_shape))} of {list(self.ranks)}")
        return f"Layout(mesh={mesh}, placements={list(self.placements)}, shape={list(self.shape)}, dtype={self.dtype})"


def _rebuild(mesh_shape: tuple[int, ...], ranks: tuple[int, ...], placements: tuple[Placement, ...],
             shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
    return Layout(torch.tensor(ranks, dtype=torch.int64, device="cpu").reshape(mesh_shape), placements, shape, dtype)


def box_of(tensor: torch.Tensor, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """The view of ``tensor`` that starts at ``offset`` and has ``shape``."""
    for dim, (start, extent) in enumerate(zip(offset, shape)):
        tensor = tensor.narrow(dim, start, extent)
    return tensor


def is_dtensor(value: Any) -> bool:
    """Whether ``value`` is torch's DTensor; never imports torch.distributed.tensor."""
    return isinstance(value, torch.Tensor) and any(base.__name__ == "DTensor" and base.__module__.startswith("torch.")
                                                   for base in type(value).__mro__)


def local_tensor(dtensor: Any) -> torch.Tensor:
    """The local tensor of a DTensor: the same memory, without a node in autograd's graph."""
    local = dtensor._local_tensor
    return local.wait() if type(local).__name__ == "AsyncCollectiveTensor" else local


def is_device_mesh(value: Any) -> bool:
    return any(base.__name__ == "DeviceMesh" for base in type(value).__mro__)


def read_mesh(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and row-major global ranks."""
    if is_device_mesh(mesh):
        mesh = mesh.mesh
    if isinstance(mesh, torch.Tensor) or type(mesh).__module__.partition(".")[0] == "numpy":
        mesh = mesh.tolist()
    if isinstance(mesh, range):
        mesh = list(mesh)
    if not isinstance(mesh, (list, tuple)):
        raise TypeError(f"mesh is {kind_of(mesh)}; give a DeviceMesh, or nested lists, a tensor or an ndarray of "
                        "global ranks")
    shape: list[int] = []
    ranks: list[int] = []
    _walk_mesh(mesh, 0, shape, ranks)
    if not ranks:
        raise ValueError("mesh has no ranks")
    return tuple(shape), tuple(ranks)


def _walk_mesh(level: Any, depth: int, shape: list[int], ranks: list[int]) -> None:
    """Appends the ranks under ``level``; ``shape[depth]`` is the required extent of every list at this depth."""
    if depth == len(shape):
        shape.append(len(level))
    if len(level) != shape[depth]:
        raise ValueError(f"mesh is ragged: lists of {shape[depth]} and of {len(level)} entries at depth {depth}")
    nested = [isinstance(item, (list, tuple)) for item in level]
    if any(nested):
        if not all(nested):
            raise ValueError(f"mesh mixes ranks and lists at depth {depth}")
        for item in level:
            _walk_mesh(item, depth + 1, shape, ranks)
        return
    if level and depth + 1 != len(shape):
        raise ValueError(f"mesh is ragged: ranks at depth {depth}, lists elsewhere")
    for item in level:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(f"mesh holds {kind_of(item)}; give global ranks (int)")
        rank = operator.index(item)
        if not 0 <= rank < 2**31:
            raise ValueError(f"mesh holds {rank}, which is not a rank")
        ranks.append(rank)


def _read_placement(item: Any, index: int, num_dims: int) -> Placement:
    """Converts torch's or shardwire's placement to shardwire's. By exact class name: a subclass may mean something
    else, and torch's classes moved between versions."""
    name = type(item).__name__
    if name in ("_StridedShard", "StridedShard"):
        dim = _placement_dim(item.dim, index, num_dims)
        factor = item.split_factor
        if isinstance(factor, bool) or not isinstance(factor, int):
            raise TypeError(f"placements[{index}]: split_factor is {kind_of(factor)}; give an int")
        return StridedShard(dim, factor)
    if name == "Shard":
        return Shard(_placement_dim(item.dim, index, num_dims))
    if name == "Replicate":
        return Replicate()
    if name in ("Partial", "_Partial"):
        if not isinstance(item.reduce_op, str):
            raise UnsupportedError(f"placements[{index}]: Partial with reduce_op {kind_of(item.reduce_op)}; give one "
                                   f"of {sorted(_C.reductions)}")
        if item.reduce_op not in _C.reductions:
            raise UnsupportedError(f"placements[{index}]: Partial({item.reduce_op!r}) is not supported; use one of "
                                   f"{sorted(_C.reductions)}")
        return Partial(item.reduce_op)
    if isinstance(item, (str, int, float)) or item is None:
        raise TypeError(f"placements[{index}] is {kind_of(item)}; give Shard(dim), Replicate(), Partial() or "
                        "StridedShard(dim, split_factor)")
    raise UnsupportedError(f"placements[{index}]: {name} is not supported; use Shard, Replicate, Partial or "
                           "StridedShard")


def _placement_dim(dim: Any, index: int, num_dims: int) -> int:
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"placements[{index}]: dim is {kind_of(dim)}; give an int")
    dim = operator.index(dim)
    if not -num_dims <= dim < num_dims:
        raise ValueError(f"placements[{index}]: dim {dim} does not exist in a tensor of {num_dims} dimensions")
    return dim + num_dims if dim < 0 else dim


def _native_placement(item: Placement) -> _C.Placement:
    if isinstance(item, Shard):
        return _C.Placement.shard(item.dim)
    if isinstance(item, StridedShard):
        return _C.Placement.strided_shard(item.dim, item.split_factor)
    if isinstance(item, Partial):
        return _C.Placement.partial(_C.reductions[item.reduce_op])
    return _C.Placement.replicate()
