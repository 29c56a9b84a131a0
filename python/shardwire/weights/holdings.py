"""The weights of one side on one rank: names, layouts and tensors of a module, a state dict, or a dict of Layouts.

The description is read once, at the call; the tensors are looked up again at each run, since optimizers and wrappers
replace tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler.fused import FusedLayout
from ..compiler.layout import MAX_DIMS, Layout, kind_of, is_dtensor, local_tensor
from ..compiler.spec import check_local
from ..errors import UnsupportedError
from ..plain.tensor_bytes import untyped
from .simple_layouts import Whole

# Prefixes that torch's wrappers put into the names of the parameters below.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(slots=True)
class Holding:
    """One name of one side on this rank.

    layout: a Layout, FusedLayout, or Whole. alias: the same number for names of one storage, -1 without a storage.
    optional: a buffer left out by state dicts. absent: there is no storage yet (a meta tensor, or a Layout alone).
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Any
    alias: int
    optional: bool = False
    absent: bool = False


class Holdings:
    """``value``: the caller's argument ``side`` ("source" or "target"): a module, a mapping or None."""

    def __init__(self, value: Any, side: str, rank: int, group_ranks: Sequence[int]) -> None:
        if value is not None and not isinstance(value, (torch.nn.Module, Mapping)):
            raise TypeError(f"{side} is {kind_of(value)}; give a module, a state dict, a dict of DTensors or (Layout, "
                            "tensor) pairs, or None")
        if isinstance(value, torch.nn.Module):
            _check_wrappers(value)
        self.side = side
        self.value = value
        self.rank = rank
        self.entries: dict[str, Holding] = {}
        self._made: dict[str, Any] = {}  # tensors allocated for a dict's names
        aliases: dict[Any, int] = {}
        members = frozenset(group_ranks)
        for name, item, optional in self._items():
            where = f"{side} {name!r}"
            if name in self.entries:
                raise ValueError(f"{where} is there twice once the wrappers' prefixes are taken off")
            holding, key = self._read(name, item, where)
            holding.optional = optional
            holding.alias = -1 if key is None else aliases.setdefault(key, len(aliases))
            outside = [rank for rank in (holding.layout.ranks or ()) if rank not in members]
            if outside:
                raise ValueError(f"{where}: its mesh holds global rank {outside[0]}, which is not in the group; give a "
                                 "group that holds both meshes")
            self.entries[name] = holding

    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's current local tensors by name. Names without a tensor on this rank (outside of the mesh) are left
        out."""
        found = {}
        for name, item, _ in self._items():
            tensor = _tensor_of(self._made.get(name, item))
            if tensor is not None:
                found[name] = tensor.detach()
        return found

    def refuse_lazy_views(self) -> None:
        """ValueError for a tensor whose memory does not hold the elements' values: a lazily conjugated or negated
        view."""
        for name, tensor in self.tensors().items():
            if tensor.is_conj() or tensor.is_neg():
                raise ValueError(f"{self.side} {name!r} is a lazily conjugated or negated view; call resolve_conj() "
                                 "and resolve_neg() first")

    def result(self) -> Any:
        """The module itself; for a dict a dict with the allocated tensors in place."""
        if not isinstance(self.value, Mapping):
            return self.value
        whole = {}
        for name, item, _ in self._items():
            item = self._made.get(name, item)
            whole[name] = (item[1] if isinstance(item, tuple) else None if isinstance(item, (Layout, FusedLayout))
                           else item)
        return whole

    def allocate(self, names: frozenset[str], device: Any) -> None:
        """Allocates storage for the absent names among ``names``, uninitialised, on ``device`` (None: the CPU). Tied
        names stay tied."""
        device = "cpu" if device is None else device
        wanted = {name for name, holding in self.entries.items() if holding.absent and name in names}
        if not wanted:
            return
        tied = {self.entries[name].alias for name in wanted} - {-1}
        wanted |= {name for name, holding in self.entries.items() if holding.absent and holding.alias in tied}
        self._allocate(wanted, device)
        for name in wanted:
            self.entries[name].absent = False

    def _allocate(self, wanted: set[str], device: Any) -> None:
        if isinstance(self.value, torch.nn.Module):
            _allocate_in_module(self.value, [(item, self.entries[name].alias) for name, item, _ in self._items()
                                             if name in wanted], device)
            return
        made: dict[int, Any] = {}
        for name, item, _ in self._items():
            if name in wanted:
                alias = self.entries[name].alias
                self._made[name] = made[alias] if alias in made else _allocated(item, self.rank, device)
                if alias >= 0:
                    made[alias] = self._made[name]

    def _items(self) -> Iterator[tuple[str, Any, bool]]:
        if isinstance(self.value, torch.nn.Module):
            yield from _module_items(self.value)
        elif self.value is not None:
            for name, item in self.value.items():
                yield name, item, False

    def _read(self, name: Any, item: Any, where: str) -> tuple[Holding, Any]:
        """The holding, and the key shared by tied names: the place in memory, or None without storage."""
        if not isinstance(name, str):
            raise TypeError(f"{self.side} has the key {kind_of(name)}; the keys are names (str)")
        layout, tensor = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if isinstance(layout, (Layout, FusedLayout)):
            return self._read_layout(name, layout, tensor, where)
        if not isinstance(item, torch.Tensor):
            raise TypeError(
                f"{where} is {kind_of(item)}; give a tensor, a DTensor, a Layout, or a pair (Layout, local tensor)")
        _check_ordinary(item, where)
        shape, local = tuple(item.shape), item
        if is_dtensor(item):
            layout, local = Layout.of(item), local_tensor(item)
            check_local(item, layout.share(self.rank), where)
        else:
            layout = Whole(shape)
        if local.device.type == "meta" and self.side == "source":
            raise ValueError(f"{where} is a meta tensor, which has no values to give")
        return (Holding(name, shape, item.dtype, layout, 0, absent=local.device.type == "meta"),
                _place_in_memory(local))

    def _read_layout(self, name: str, layout: Any, tensor: Any, where: str) -> tuple[Holding, Any]:
        share = layout.share(self.rank)
        holding = Holding(name, layout.shape, layout.dtype, layout, 0)
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{where}: the second of the pair is {kind_of(tensor)}; give this rank's local tensor, or "
                            "None where it holds nothing")
        if tensor is None:
            if share is not None and self.side == "source":
                raise ValueError(f"{where}: this rank holds a part of it; give the pair (layout, local tensor)")
            holding.absent = share is not None
            return holding, None
        _check_ordinary(tensor, where)
        local = local_tensor(tensor) if is_dtensor(tensor) else tensor
        if share is None:
            if local.numel():
                raise ValueError(f"{where}: this rank is outside of the mesh, yet its local tensor has shape "
                                 f"{list(local.shape)}; give None")
            return holding, None
        if tuple(local.shape) != tuple(share.local_shape) or local.dtype != layout.dtype:
            raise ValueError(f"{where}: the local tensor has shape {list(local.shape)} and dtype {local.dtype}, its "
                             f"layout says {list(share.local_shape)} and {layout.dtype}")
        if local.device.type == "meta" and self.side == "source":
            raise ValueError(f"{where} is a meta tensor, which has no values to give")
        holding.absent = local.device.type == "meta"
        return holding, _place_in_memory(local)


# Modules.

def _module_items(module: torch.nn.Module) -> Iterator[tuple[str, Any, bool]]:
    """(name, tensor, whether state dicts leave the tensor out) of all parameters and buffers; tied ones under each
    name."""
    module = _unwrapped(module)
    # FSDP2 brings its parameters back into their sharded form in the hooks of state_dict.
    for name, item in module.state_dict(keep_vars=True).items():
        if isinstance(item, torch.Tensor):  # other items are extra state, not weights
            yield _clean(name), item, False
    for prefix, child in module.named_modules(remove_duplicate=False):
        for name in sorted(child._non_persistent_buffers_set):
            item = child._buffers.get(name)
            if item is not None:
                yield _clean(f"{prefix}.{name}" if prefix else name), item, True


def _unwrapped(module: Any) -> torch.nn.Module:
    """The module below torch.compile's wrapper and DistributedDataParallel, which may enclose each other."""
    while True:
        kind = type(module).__name__  # a class of the user may have the name, and lack the attribute
        if kind == "DistributedDataParallel" and hasattr(module, "module"):
            module = module.module
        elif kind == "OptimizedModule" and hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


def _check_wrappers(module: torch.nn.Module) -> None:
    for name, child in module.named_modules():
        if type(child).__name__ == "FullyShardedDataParallel":
            raise UnsupportedError(f"the module {name or 'itself'!r} is wrapped by FullyShardedDataParallel (FSDP1), "
                                   "whose flat parameters have no names; use fully_shard (FSDP2), or give a state dict "
                                   "of DTensors")


def _clean(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _allocate_in_module(module: torch.nn.Module, wanted: list[tuple[torch.Tensor, int]], device: Any) -> None:
    """Through ``_apply``, as in ``to_empty``, so that FSDP2 is notified; but only for the wanted tensors, and tied
    tensors stay tied. wanted: pairs of a tensor and its alias: two Parameters of one storage get one storage again."""
    made: dict[int, torch.Tensor] = {}
    by_alias: dict[int, torch.Tensor] = {}
    for item, alias in wanted:
        fresh = by_alias[alias] if alias in by_alias else torch.empty_like(item, device=_device_for(item, device))
        made[id(item)] = fresh
        if alias >= 0:
            by_alias[alias] = fresh
    owners: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, item in table.items():
                if item is not None and id(item) in made:
                    owners.setdefault(id(item), []).append((table, name))
    keep = list(wanted)  # keeps the tensors alive, so that ids stay unique
    module._apply(lambda tensor: made.get(id(tensor), tensor))
    del keep
    for places in owners.values():
        first = places[0][0][places[0][1]]
        for table, name in places[1:]:
            table[name] = first


def _device_for(item: Any, device: Any) -> Any:
    return item.device_mesh.device_type if is_dtensor(item) else device


def _allocated(item: Any, rank: int, device: Any) -> Any:
    """The replacement for one entry of a dict: a meta tensor, a Layout, or a pair with either."""
    layout, tensor = item if isinstance(item, tuple) else (item, None)
    if isinstance(layout, (Layout, FusedLayout)):
        if tensor is not None:
            return layout, torch.empty_like(tensor, device=_device_for(tensor, device))
        share = layout.share(rank)
        assert share is not None
        return layout, torch.empty(share.local_shape, dtype=layout.dtype, device=device)
    return torch.empty_like(item, device=_device_for(item, device))


# Tensors.

def _tensor_of(item: Any) -> torch.Tensor | None:
    if isinstance(item, tuple):
        item = item[1]
    if not isinstance(item, torch.Tensor):
        return None
    return local_tensor(item) if is_dtensor(item) else item


def _check_ordinary(tensor: Any, where: str) -> None:
    """Checks that plain memory backs the tensor, and that the tensor has no more dimensions than an op takes."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"{where} is a lazy parameter, which has no shape yet; run the module once, or give it one")
    if tensor.dim() > MAX_DIMS:
        raise UnsupportedError(f"{where} has {tensor.dim()} dimensions; at most {MAX_DIMS} are supported")
    dispatches = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if tensor.is_quantized:
        raise UnsupportedError(f"{where} is quantized ({tensor.dtype}); only dense tensors and DTensors can be moved: "
                               "move its int_repr(), scale and zero point")
    if tensor.layout != torch.strided or (dispatches and not is_dtensor(tensor)):
        raise UnsupportedError(f"{where} is {kind_of(tensor)} of layout {tensor.layout}; only dense tensors and "
                               "DTensors can be moved")


def _place_in_memory(tensor: torch.Tensor) -> Any:
    """Equal for two tensors with the same elements in memory; None for an empty tensor. Based on the storage object,
    since meta tensors have no address."""
    if tensor.numel() == 0:
        return None
    return untyped(tensor)._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
