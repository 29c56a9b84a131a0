"""A subscriber's wishes: layouts, names, dtypes. Described anew for each publisher, allocated once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..compiler.fused import FusedLayout
from ..compiler.layout import Layout, kind_of, is_dtensor
from ..compiler.agree import Meeting
from .descriptions import collect, describe, encode_place, names_in
from .holdings import Holdings
from .matching import Match
from .movement import End
from .name_maps import as_name_map, place_of
from .problems import Problems
from .staging import Stage


class Wanted:
    """``layouts``: the caller's argument; None: everything that the publisher's state dict has, whole."""

    def __init__(self, layouts: Any, cast: torch.dtype | None, mapping: Any, strict: bool, device: Any, staged: bool,
                 meeting: Meeting) -> None:
        if cast is not None and (not isinstance(cast, torch.dtype) or not cast.is_floating_point):
            raise TypeError(f"cast is {cast if isinstance(cast, torch.dtype) else kind_of(cast)}; give a floating "
                            "dtype such as torch.bfloat16")
        self._cast, self._strict, self._device = cast, bool(strict), device
        self._names = as_name_map(mapping)
        self._rank, self._ranks = meeting.global_rank, list(meeting.ranks)
        self._holdings: Holdings | None = None
        self.is_staged = staged
        # Made once the publisher's names are known, where the caller wants one
        self.stage: Stage | None = None
        if layouts is not None:
            self._hold(_with_cast(layouts, cast))

    def result(self) -> Any:
        return None if self._holdings is None else self._holdings.result()

    def read(self, sources: Sequence[bytes]) -> tuple[bytes, bytes, bool, Any]:
        """Used by ``Joint.compile``."""
        if self._holdings is None:
            self._hold(self._as_published(sources))
        holdings = self._holdings
        assert holdings is not None
        names = dict.fromkeys(name for source in sources for name in names_in(source))
        places = {name: encode_place(name, place_of(self._names.source, name, "source")) for name in names}
        return json.dumps(places).encode(), describe(holdings, self._names.target), self._strict, self._allocate

    def _hold(self, value: Any) -> None:
        self._holdings = Holdings(value, "target", self._rank, self._ranks)

    def _as_published(self, sources: Sequence[bytes]) -> dict[str, torch.Tensor]:
        whole = {}
        for name, weight in collect(sources, "source", Problems()).items():
            # State dicts leave these buffers out, and so do the names that load_weights of other packages takes.
            if weight.optional:
                continue
            if not isinstance(weight.dtype, torch.dtype):
                raise TypeError(f"the publisher's {name!r} is {weight.dtype}, which this torch lacks; give layouts= "
                                "with other dtypes, or without it")
            dtype = self._cast if self._cast is not None and weight.dtype.is_floating_point else weight.dtype
            whole[name] = torch.empty(weight.shape, dtype=dtype, device="meta")
        return whole

    def _allocate(self, found: Match) -> End:
        holdings = self._holdings
        assert holdings is not None
        names = frozenset(placed.name for space in found.spaces for placed in space.targets)
        holdings.allocate(names, self._device)
        if self.is_staged:
            self.stage = self.stage or Stage(holdings)
            self.stage.prepare(names)
        end = End.of(holdings)
        return end if self.stage is None else replace(end, tensors=self.stage.tensors)


def _with_cast(layouts: Any, cast: torch.dtype | None) -> Any:
    """The layouts; Layouts and meta tensors of floating dtypes get the dtype ``cast``."""
    if cast is None or not isinstance(layouts, Mapping):
        if cast is not None:
            raise TypeError(f"cast= is for what is allocated here, and layouts is {kind_of(layouts)}, which has its "
                            "own dtypes; leave cast out")
        return layouts
    changed = {}
    for name, item in layouts.items():
        layout, tensor = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if (isinstance(item, torch.Tensor) and not is_dtensor(item) and item.device.type == "meta"
                and item.is_floating_point()):
            changed[name] = item.to(cast)
        elif isinstance(layout, (Layout, FusedLayout)) and tensor is None:
            changed[name] = _layout_of(layout, cast) if layout.dtype.is_floating_point else layout
        else:
            dtype = getattr(item if isinstance(item, torch.Tensor) else tensor, "dtype", cast)
            if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype != cast:
                raise ValueError(f"target {name!r} is a tensor of {dtype}, and cast={cast}; leave cast out, or give "
                                 "its Layout alone")
            changed[name] = item
    return changed


def _layout_of(layout: Any, dtype: torch.dtype) -> Any:
    if isinstance(layout, FusedLayout):
        return FusedLayout({name: _layout_of(part, dtype) for name, part in zip(layout.names, layout.parts)},
                           layout.dim, layout.held)
    mesh = torch.tensor(layout.ranks, dtype=torch.int64, device="cpu").reshape(layout.mesh_shape)
    return Layout(mesh, layout.placements, layout.shape, dtype)
