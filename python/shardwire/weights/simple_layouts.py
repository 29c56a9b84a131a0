"""Layouts of a tensor on one rank for which there is no Layout: whole tensors, rows, chunks of files; and all layouts
as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..compiler.fused import FusedLayout, Share, shifted
from ..compiler.layout import Layout, Partial, Replicate, Shard, StridedShard

# By name: a description names placements, and no other names of a module.
_PLACEMENTS: dict[str, Any] = {each.__name__: each for each in (Shard, Replicate, Partial, StridedShard)}


@dataclass(frozen=True, slots=True)
class Whole:
    """The rank holds the whole tensor: a plain tensor, or one in a file."""

    shape: tuple[int, ...]
    ranks = None
    pending_reduction = None

    def share(self, rank: int) -> Share | None:
        zero = (0,) * len(self.shape)
        return Share(self.shape, [_C.Box(zero, self.shape, zero)])


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries ``start`` to ``stop`` of dimension 0."""

    shape: tuple[int, ...]
    start: int
    stop: int
    ranks = None
    pending_reduction = None

    def share(self, rank: int) -> Share | None:
        zero = (0,) * len(self.shape)
        local = (self.stop - self.start, *self.shape[1:])
        return Share(local, [_C.Box(shifted(zero, 0, self.start), local, zero)])


@dataclass(frozen=True, slots=True)
class Chunks:
    """Several boxes of the tensor, (offset, shape) each, with a separate local tensor for each box."""

    shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    ranks = None
    pending_reduction = None

    def pieces(self) -> list[Share]:
        return [Share(shape, [_C.Box(offset, shape, (0,) * len(shape))]) for offset, shape in self.boxes]


def encode_layout(layout: Any) -> Any:
    """The layout as JSON; None for a Whole."""
    if isinstance(layout, Layout):
        placements = [[type(item).__name__, *(getattr(item, field) for field in item.__dataclass_fields__)]
                      for item in layout.placements]
        return [list(layout.mesh_shape), list(layout.ranks), placements, list(layout.shape)]
    if isinstance(layout, FusedLayout):
        return {"dim": layout.dim,
                "parts": {name: encode_layout(part) for name, part in zip(layout.names, layout.parts)},
                "held": list(layout.held)}
    return None


def decode_layout(value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    if value is None:
        return Whole(shape)
    if isinstance(value, dict):
        return FusedLayout({name: decode_layout(part, (), dtype) for name, part in value["parts"].items()},
                           value["dim"], value["held"])
    mesh_shape, ranks, placements, dims = value
    mesh = torch.tensor(ranks, dtype=torch.int64, device="cpu").reshape(mesh_shape)
    return Layout(mesh, [_PLACEMENTS[name](*fields) for name, *fields in placements], dims, dtype)
