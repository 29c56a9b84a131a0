"""FusedLayout: several tensors as slices of one tensor, each cut separately (q, k, v <-> qkv; gate, up <-> gate_up);
fused and unfused make FusedLayouts by names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from .layout import Layout, Partial, kind_of, is_dtensor
from ..errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one rank, as returned by ``Layout.share``."""

    local_shape: tuple[int, ...]
    boxes: list[_C.Box]
    replica_class: int = 1


class FusedLayout:
    """Tensors joined along ``dim``, each with a separate layout; the local tensor is this rank's shares of the parts,
    joined in the same order.

    With tensor parallelism over 2 ranks a fused qkv_proj of a serving engine is no ``Shard(0)`` of the joined tensor:
    rank 0 holds its half of q, then its half of k, then its half of v. ``FusedLayout([q, k, v])`` describes this
    layout, for :func:`sync`, :func:`load`, :func:`save`, :func:`publish`, :func:`subscribe` and :func:`compile_op`.
    Layouts of parts may be over different meshes: k and v with fewer heads than ranks are replicated over part of the
    mesh.

    parts: Layouts or DTensors of equal dtype whose shapes differ in ``dim`` only, in a list, or in a dict by name
        (:func:`fused`); in a list their names are "0", "1"...
    held: the names of the parts in the local tensor, where the local tensor does not hold all parts (:func:`unfused`).
    shape, dtype: of the whole joined tensor. Raises TypeError, ValueError, UnsupportedError (Partial beside parts with
        another layout).
    """

    __slots__ = ("parts", "names", "held", "dim", "shape", "dtype", "ranks", "offsets", "dtensors")

    parts: tuple[Layout, ...]
    names: tuple[str, ...]
    held: tuple[str, ...]
    dim: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    ranks: tuple[int, ...]
    offsets: tuple[tuple[str, int], ...]
    """Every part's name and where it begins along ``dim``."""
    dtensors: dict[str, Any]
    """Those parts of ``held`` that were given as DTensors."""

    def __init__(self, parts: Sequence[Any] | Mapping[str, Any], dim: int = 0, held: Sequence[str] | None = None, *,
                 _what: str = "FusedLayout") -> None:
        layouts, self.dim = _read_parts(parts, dim, _what)
        self.names, self.parts = tuple(layouts), tuple(layouts.values())
        self.held = self.names if held is None else tuple(held)
        unknown = [name for name in self.held if name not in layouts]
        if unknown or not self.held:
            raise ValueError(f"{_what}: held is {list(self.held)!r}; give some of {list(self.names)!r}")
        first = self.parts[0]
        self.dtype = first.dtype
        self.shape = (*first.shape[:self.dim], sum(part.shape[self.dim] for part in self.parts),
                      *first.shape[self.dim + 1:])
        begin, offsets = 0, []
        for name, layout in layouts.items():
            offsets.append((name, begin))
            begin += layout.shape[self.dim]
        self.offsets = tuple(offsets)
        self.ranks = tuple(sorted({rank for name in self.held for rank in layouts[name].ranks}))
        given = dict(parts) if isinstance(parts, Mapping) else dict(zip(self.names, parts))
        self.dtensors = {name: given[name] for name in self.held if is_dtensor(given[name])}
        _check_partial({name: layouts[name] for name in self.held}, _what)

    def layout(self, name: str) -> Layout:
        """The layout of one part."""
        return self.parts[self.names.index(name)]

    @property
    def placements(self) -> tuple[Any, ...]:
        """The placements of all parts in the local tensor."""
        return tuple(placement for name in self.held for placement in self.layout(name).placements)

    @property
    def pending_reduction(self) -> str | None:
        """The pending reduction of the Partial parts, or None."""
        return next((found for name in self.held if (found := self.layout(name).pending_reduction) is not None), None)

    def pieces(self, rank: int) -> list[tuple[str, Any, int, int]]:
        """The part of global rank ``rank``: for each held part the name, share, begin of the part in the joined tensor,
        and begin of the share in the local tensor.

        Empty outside of all meshes. ValueError where the shares do not fit behind each other.
        """
        begins = dict(self.offsets)
        found: list[tuple[str, Any, int, int]] = []
        local_begin = 0
        for name in self.held:
            share = self.layout(name).share(rank)
            if share is None:
                continue
            if found:
                before, have = found[0][:2]
                if _but(have.local_shape, self.dim) != _but(share.local_shape, self.dim):
                    raise ValueError(f"rank {rank} holds {list(have.local_shape)} of {before!r} and "
                                     f"{list(share.local_shape)} of {name!r}, which do not fit behind each other along "
                                     f"dim {self.dim}; lay the parts out alike in the other dimensions")
            found.append((name, share, begins[name], local_begin))
            local_begin += share.local_shape[self.dim]
        return found

    def share(self, rank: int) -> Share | None:
        """The part of global rank ``rank``; None when the rank holds none of the parts."""
        pieces = self.pieces(rank)
        if not pieces:
            return None
        boxes = [_C.Box(shifted(box.offset, self.dim, begin), box.shape,
                        shifted(box.local_offset, self.dim, local_begin))
                 for _, share, begin, local_begin in pieces for box in share.boxes]
        # Parts that wait for a reduction all have the same layout, so the first part says which addends the rank holds.
        addend = 1 if self.pending_reduction is None else pieces[0][1].replica_class
        _, last, _, begin = pieces[-1]
        shape = last.local_shape
        return Share((*shape[:self.dim], begin + shape[self.dim], *shape[self.dim + 1:]), boxes, addend)

    def local_shape(self, rank: int) -> tuple[int, ...] | None:
        """The shape of the local tensor on global rank ``rank``; None outside of all meshes."""
        share = self.share(rank)
        return None if share is None else share.local_shape

    def views(self, tensor: torch.Tensor, rank: int) -> dict[str, torch.Tensor]:
        """The parts of the local ``tensor`` of global rank ``rank``, by name, as views of ``tensor``."""
        shape = self.local_shape(rank)
        if tuple(tensor.shape) != (shape or ()):
            raise ValueError(f"the tensor has shape {list(tensor.shape)}, rank {rank} holds "
                             f"{'nothing' if shape is None else list(shape)}")
        return {name: tensor.narrow(self.dim, begin, share.local_shape[self.dim])
                for name, share, _, begin in self.pieces(rank)}

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, FusedLayout)
                and (self.parts, self.names, self.held, self.dim) == (other.parts, other.names, other.held, other.dim))

    def __hash__(self) -> int:
        return hash((self.parts, self.names, self.held, self.dim))

    def __repr__(self) -> str:
        return (f"FusedLayout({', '.join(self.held)} of {', '.join(self.names)}, shape={list(self.shape)}, "
                f"dtype={self.dtype}, dim={self.dim})")


def fused(parts: Mapping[str, Any], dim: int = 0) -> FusedLayout:
    """A :class:`FusedLayout` by names: a local tensor with this rank's shares of all ``parts``, one behind the other
    along ``dim``.

    parts: name -> DTensor or Layout, in the order within the tensor. An entry of compile_op's lists::

        op = shardwire.compile_op(None, inputs={"qkv": shardwire.unfused({"q": q, "k": k, "v": v})},
                                  outputs={"qkv": shardwire.fused({"q": q_tp, "k": k_tp, "v": v_tp})})
        op({"qkv": [q, k, v]}, {"qkv": qkv_local}).wait()

    The global tensor has the parts one behind the other as well, so a fused tensor that is not cut part by part is an
    ordinary Layout of the global tensor. Raises TypeError, ValueError or UnsupportedError for parts that cannot lie in
    one tensor.
    """
    return FusedLayout(_named(parts, "fused"), dim, _what="fused")


def unfused(parts: Mapping[str, Any], dim: int = 0) -> list[FusedLayout]:
    """For each of ``parts``, which are slices of one global tensor, a separate local tensor. See :func:`fused`."""
    return [FusedLayout(parts, dim, (name,), _what="unfused") for name in _named(parts, "unfused")]


def _named(parts: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(parts, Mapping) or not parts:
        raise TypeError(f"{what} takes a dict of DTensors or Layouts keyed by name, in their order, not "
                        f"{kind_of(parts)}")
    return parts


def _check_partial(layouts: dict[str, Layout], what: str) -> None:
    partial = [name for name, layout in layouts.items() if layout.pending_reduction is not None]
    if partial and len({(layout.mesh_shape, layout.ranks, layout.placements) for layout in layouts.values()}) > 1:
        placement = next(item for item in layouts[partial[0]].placements if isinstance(item, Partial))
        raise UnsupportedError(f"{what}: {partial[0]!r} has the placement {placement} and other parts are laid out "
                               "otherwise; give all parts one mesh and the same placements, or give them apart with "
                               "unfused()")


def _read_parts(parts: Any, dim: Any, what: str) -> tuple[dict[str, Layout], int]:
    """The layouts by name, and dim counted from the front."""
    if not isinstance(parts, Mapping):
        if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
            raise TypeError(f"{what} takes a list of Layouts or DTensors, or a dict of them by name, at least one, not "
                            f"{kind_of(parts)}")
        parts = {str(index): item for index, item in enumerate(parts)}
    layouts: dict[str, Layout] = {}
    for name, item in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} has the key {kind_of(name)}; the keys are names of parts (str)")
        if not isinstance(item, Layout) and not is_dtensor(item):
            raise TypeError(f"{what}: {name!r} is {kind_of(item)}; give a DTensor or a Layout")
        layouts[name] = item if isinstance(item, Layout) else Layout.of(item)
    first_name, first = next(iter(layouts.items()))
    num_dims = len(first.shape)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"{what}: dim is {kind_of(dim)}; give an int")
    if not -num_dims <= dim < num_dims:
        raise ValueError(f"{what}: dim {dim} does not exist in {first_name!r} of {num_dims} dimensions")
    dim %= num_dims
    for name, layout in layouts.items():
        if len(layout.shape) != num_dims or _but(layout.shape, dim) != _but(first.shape, dim):
            raise ValueError(f"{what}: {name!r} has the shape {list(layout.shape)}, {first_name!r} has "
                             f"{list(first.shape)}; they must be equal but for dim {dim}")
        if layout.dtype != first.dtype:
            raise ValueError(f"{what}: {name!r} has dtype {layout.dtype}, {first_name!r} has {first.dtype}; parts of "
                             "one tensor have one dtype")
    return layouts, dim


def _but(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1:]


def shifted(offset: Sequence[int], dim: int, by: int) -> tuple[int, ...]:
    """``offset`` moved along ``dim``."""
    return (*offset[:dim], offset[dim] + by, *offset[dim + 1:])
