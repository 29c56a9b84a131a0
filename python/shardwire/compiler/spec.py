"""Converts the arguments of ``compile_op`` to the values of the native side.

All code here is local to one rank and raises ordinary exceptions; ``compile_op`` carries the exceptions to all ranks.
The native side makes the checks on plain numbers (boxes inside their tensor, ranks that agree, gaps), for all ranks at
once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import shardwire_autoload
import torch

from .. import _C
from .fused import FusedLayout
from .layout import Layout, Partial, kind_of, as_dims, is_dtensor, local_tensor
from ..errors import UnsupportedError

_REGION_KEYS = ("offset", "shape", "device", "tensor_id")
_ITEM_KINDS = "a dict {'offset', 'shape'}, a TensorRegion, a Layout, a DTensor or what fused() gives"


@dataclass(slots=True)
class TensorRegion:
    """A box of a global tensor: the same as the dict ``{'offset': ..., 'shape': ...}``.

    offset, shape: one int per dimension of the global tensor, in elements. device: for readers only, as each call takes
    tensors on their own devices. tensor_id: the name of the global tensor, or a number, which stands for its digits;
    None when the op has one tensor, or for the tensor "0" where this rank names it. Checked by ``compile_op``, not
    here: a wrong region raises on every rank.
    """

    offset: Sequence[int]
    shape: Sequence[int]
    device: torch.device | str | None = None
    tensor_id: str | int | None = None


@dataclass(frozen=True, slots=True)
class Pieces:
    """A local tensor with several boxes of the global tensor: for each (offset, shape, local offset). Made by this
    package only."""

    local_shape: tuple[int, ...]
    boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


@dataclass(slots=True)
class Side:
    """One list of the call: the mapping from the caller's tensors to the native side's list.

    label: "inputs" or "outputs". held: per position of the caller's list, whether this rank holds anything there (a
    Layout on a mesh without this rank holds nothing). keys: name -> (first position, count) when the spec was a dict,
    else None. native: one per held position.
    """

    label: str
    held: list[bool] = field(default_factory=list)
    keys: dict[str, tuple[int, int]] | None = None
    native: list[_C.LocalTensor] = field(default_factory=list)
    count: int = 0  # held positions


@dataclass(slots=True)
class Spec:
    """This rank's whole specification, in the native side's types."""

    tensors: list[_C.TensorDecl]
    inputs: Side
    outputs: Side


@dataclass(slots=True)
class _Decl:
    """The known facts of one global tensor so far, and the source of each."""

    name: str
    shape: tuple[int, ...] | None = None
    shape_from: str = ""
    dtype: torch.dtype | None = None  # of the inputs
    dtype_from: str = ""
    output_dtype: torch.dtype | None = None
    output_dtype_from: str = ""
    reduction: str | None = None
    reduction_from: str = ""
    from_layout: str = ""  # the first DTensor or Layout of the tensor
    parts: tuple[tuple[str, int], ...] = ()  # of a fused tensor: names and begins
    parts_from: str = ""


def build_spec(shape: Any, dtype: Any, inputs: Any, outputs: Any, reduction: Any, output_dtype: Any, rank: int,
               group_ranks: Sequence[int]) -> Spec:
    """Reads ``compile_op``'s arguments for group rank ``rank``; ``group_ranks[i]`` is the global rank of group rank i.

    Raises TypeError, ValueError or NotImplementedError; the text names list, index and what to do.
    """
    return _Builder(shape, dtype, reduction, output_dtype, rank, group_ranks).build(inputs, outputs)


class _Builder:
    def __init__(self, shape: Any, dtype: Any, reduction: Any, output_dtype: Any, rank: int,
                 group_ranks: Sequence[int]) -> None:
        self.global_rank = group_ranks[rank]
        self.group_rank_of = {global_rank: index for index, global_rank in enumerate(group_ranks)}
        self.decls: dict[str, _Decl] = {}
        self.index_of: dict[str, int] = {}
        self.mentioned: set[str] = set()
        self.renamed: dict[tuple[int, ...], list[int]] = {}
        self.shapes = _read_argument(shape, "shape", lambda value, what: as_dims(value, what))
        self.dtypes = _read_argument(dtype, "dtype", _read_dtype)
        self.output_dtypes = _read_argument(output_dtype, "output_dtype", _read_dtype)
        self.reductions = _read_argument(reduction, "reduction", _read_reduction)
        self.shape_is_keyed = isinstance(shape, Mapping)
        self.unnamed = ""

    def build(self, inputs: Any, outputs: Any) -> Spec:
        # moodist's default is "0": where a rank uses this name, its regions without a name belong to the same tensor
        self.unnamed = "0" if _has_name_0(inputs) or _has_name_0(outputs) else ""
        for table in (self.shapes, self.dtypes, self.output_dtypes):
            for name in table:
                if name is not None:
                    self.declare(name)
        sides = (self.read_side(inputs, "inputs"), self.read_side(outputs, "outputs"))
        if not self.decls and None in self.shapes:
            self.declare("")
        for name in self.reductions:
            if name is not None and name not in self.decls and name not in self.mentioned:
                raise ValueError(f"reduction names the tensor {name!r}, which nothing else names on this rank; known: "
                                 f"{_names(self.decls)}")
        return Spec([self.finish(decl) for decl in self.decls.values()], *sides)

    # Tensors.

    def declare(self, name: str) -> _Decl:
        """The declaration of ``name``, made from the shape, dtype and reduction arguments at its first mention."""
        decl = self.decls.get(name)
        if decl is not None:
            return decl
        decl = _Decl(name)
        for table, attribute in ((self.shapes, "shape"), (self.dtypes, "dtype"), (self.output_dtypes, "output_dtype"),
                                 (self.reductions, "reduction")):
            key = name if name in table else None
            if key in table:
                setattr(decl, attribute, table[key])
                setattr(decl, attribute + "_from", attribute if key is None else f"{attribute}[{key!r}]")
        self.index_of[name] = len(self.decls)
        self.decls[name] = decl
        return decl

    def finish(self, decl: _Decl) -> _C.TensorDecl:
        source, target = decl.dtype, decl.output_dtype
        if source is None and target is None:
            raise TypeError(f"{_tensor(decl.name)} has no dtype; give compile_op dtype=, for example torch.float32")
        if source is not None and target is not None and source != target and not (
                (source.is_floating_point and target.is_floating_point) or (source.is_complex and target.is_complex)):
            raise UnsupportedError(f"{_tensor(decl.name)} goes from {source} ({decl.dtype_from}) to {target} "
                                   f"({decl.output_dtype_from}); elements are cast between floating types, or between "
                                   "complex ones; for others give both sides the same dtype, and convert the tensors "
                                   "with .to() before or after")
        return _C.TensorDecl(decl.name, decl.shape, source, decl.reduction, target)

    # Lists.

    def read_side(self, value: Any, label: str) -> Side:
        side = Side(label)
        ordinals: dict[str, int] = {}
        if value is None:
            return side
        if isinstance(value, Mapping):
            if (set(value) >= {"offset", "shape"} and not isinstance(value["offset"], Mapping)
                    and set(value) <= set(_REGION_KEYS)):
                raise TypeError(
                    f"{label} is one dict spec; give a list of them: {label}=[{{'offset': ..., 'shape': ...}}]")
            side.keys = {}
            for name, items in value.items():
                if not isinstance(name, str):
                    raise TypeError(f"{label} has the key {kind_of(name)}; the keys are tensor names (str)")
                listed = [items] if _is_item(items) else items
                if listed is None:
                    listed = []
                if not isinstance(listed, (list, tuple)):
                    raise TypeError(f"{label}[{name!r}] is {kind_of(listed)}; give a list of {_ITEM_KINDS}")
                side.keys[name] = (len(side.held), len(listed))
                self.mentioned.add(name)
                for index, item in enumerate(listed):
                    self.read_item(side, item, name, f"{label}[{name!r}][{index}]", ordinals)
            return side
        if _is_item(value):
            raise TypeError(
                f"{label} is {kind_of(value)}; give a list of them, or a dict of lists keyed by tensor name")
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{label} is {kind_of(value)}; give None, a list of {_ITEM_KINDS}, or a dict of such lists "
                            "keyed by tensor name")
        for index, item in enumerate(value):
            self.read_item(side, item, None, f"{label}[{index}]", ordinals)
        return side

    def read_item(self, side: Side, item: Any, key: str | None, where: str, ordinals: dict[str, int]) -> None:
        """One entry of a list; ``key`` is the tensor's name in a dict of lists, None in a flat list."""
        local: _C.LocalTensor | None
        if isinstance(item, TensorRegion):
            local = self.read_region(item.offset, item.shape, item.device, item.tensor_id, key, where)
        elif isinstance(item, Mapping):
            unknown = [name for name in item if name not in _REGION_KEYS]
            if unknown:
                raise ValueError(f"{where} has the unknown key {kind_of(unknown[0])}; a region has "
                                 f"{', '.join(map(repr, _REGION_KEYS))}")
            for name in ("offset", "shape"):
                if name not in item:
                    raise ValueError(f"{where} has no {name!r}; a region needs 'offset' and 'shape'")
            local = self.read_region(item["offset"], item["shape"], item.get("device"), item.get("tensor_id"), key,
                                     where)
        elif isinstance(item, Layout) or is_dtensor(item):
            local = self.read_layout(item, side.label, key, where, ordinals)
        elif isinstance(item, Pieces):
            name = self.name_of(key, None, where)
            self.declare(name)
            local = _C.LocalTensor(self.index_of[name], item.local_shape, [_C.Box(*box) for box in item.boxes])
        elif isinstance(item, FusedLayout):
            local = self.read_fused(item, side.label, key, where, ordinals)
        elif isinstance(item, torch.Tensor):
            raise TypeError(f"{where} is a plain tensor, which does not say where it lies globally; give {_ITEM_KINDS}")
        else:
            raise TypeError(f"{where} is {kind_of(item)}; give {_ITEM_KINDS}")
        side.held.append(local is not None)
        if local is not None:
            side.native.append(local)
            side.count += 1

    def name_of(self, key: str | None, tensor_id: Any, where: str) -> str:
        if isinstance(tensor_id, int) and not isinstance(tensor_id, bool):
            tensor_id = str(tensor_id)
        if tensor_id is not None and not isinstance(tensor_id, str):
            raise TypeError(f"{where}: tensor_id is {kind_of(tensor_id)}; give the tensor's name (str), or a number")
        if key is not None and tensor_id is not None and tensor_id != key:
            raise ValueError(f"{where}: tensor_id {tensor_id!r} contradicts the key {key!r}; leave tensor_id out")
        name = key if key is not None else tensor_id
        if name is None and self.shape_is_keyed:
            raise ValueError(f"{where} names no tensor, but shape is keyed by name; give tensor_id, one of "
                             f"{_names(self.shapes)}")
        return self.unnamed if name is None else name

    def read_region(self, offset: Any, shape: Any, device: Any, tensor_id: Any, key: str | None,
                    where: str) -> _C.LocalTensor:
        name = self.name_of(key, tensor_id, where)
        offset = as_dims(offset, f"{where}: offset")
        extent = as_dims(shape, f"{where}: shape")
        if len(offset) != len(extent):
            raise ValueError(f"{where}: offset has {len(offset)} dimensions and shape {len(extent)}; they need one "
                             "entry per dimension each")
        _check_device(device, where)
        decl = self.declare(name)
        if decl.shape is not None and len(decl.shape) != len(extent):
            raise ValueError(f"{where} has {len(extent)} dimensions, {_tensor(name)} has {len(decl.shape)} "
                             f"({decl.shape_from}={list(decl.shape)})")
        return _C.LocalTensor(self.index_of[name], extent, [_C.Box(offset, extent, (0,) * len(extent))])

    def read_layout(self, item: Any, label: str, key: str | None, where: str,
                    ordinals: dict[str, int]) -> _C.LocalTensor | None:
        try:
            layout = item if isinstance(item, Layout) else Layout.of(item)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise type(error)(f"{where}: {error}") from None
        name = self.name_of(key, None, where)
        self.merge_layout(self.declare(name), layout, label, where)
        ordinal = ordinals.get(name, 0)
        ordinals[name] = ordinal + 1
        ranks = self.group_mesh(layout, where)
        share = layout.share(self.global_rank)
        if is_dtensor(item):
            check_local(item, share, where)
        if share is None:
            return None
        # Equal only for the same entry of the same list on every rank: the class includes the layout and the place in
        # the list.
        replica_class = 0 if label == "outputs" else _replica_class(name, ordinal, layout.mesh_shape, ranks,
                                                                    layout.placements, share.replica_class)
        return _C.LocalTensor(self.index_of[name], share.local_shape, share.boxes, replica_class)

    def read_fused(self, item: FusedLayout, label: str, key: str | None, where: str,
                   ordinals: dict[str, int]) -> _C.LocalTensor | None:
        name = self.name_of(key, None, where)
        decl = self.declare(name)
        if not decl.parts:
            decl.parts, decl.parts_from = item.offsets, where
        elif decl.parts != item.offsets:
            raise ValueError(f"{where} is made of {_parts(item.offsets)}, but {decl.parts_from} of "
                             f"{_parts(decl.parts)}; give the same names and sizes, in the same order")
        self.merge_layout(decl, item, label, where)
        ordinal = ordinals.get(name, 0)
        ordinals[name] = ordinal + 1
        layouts = [item.layout(part) for part in item.held]
        meshes = [self.group_mesh(layout, where) for layout in layouts]
        try:
            pieces = item.pieces(self.global_rank)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        for part, dtensor in item.dtensors.items():
            if item.held == (part,):  # else the DTensor gives only the layout
                check_local(dtensor, pieces[0][1] if pieces else None, where)
        if not pieces:
            return None
        whole = item.share(self.global_rank)
        assert whole is not None
        replica_class = 0
        if label == "inputs":
            addend = 0 if item.pending_reduction is None else whole.replica_class
            ways = [(layout.mesh_shape, ranks, layout.placements) for layout, ranks in zip(layouts, meshes)]
            replica_class = _replica_class(name, ordinal, item.held, ways, addend)
        return _C.LocalTensor(self.index_of[name], whole.local_shape, whole.boxes, replica_class)

    @staticmethod
    def merge_dtype(decl: _Decl, dtype: torch.dtype, label: str, where: str, hint: str) -> None:
        """Inputs and outputs each have a dtype."""
        attribute = "dtype" if label == "inputs" else "output_dtype"
        said = getattr(decl, attribute)
        if said is None:
            setattr(decl, attribute, dtype)
            setattr(decl, attribute + "_from", where)
        elif said != dtype:
            raise ValueError(f"{where} has dtype {dtype}, but {getattr(decl, attribute + '_from')} says {said}{hint}")

    def merge_layout(self, decl: _Decl, layout: Layout | FusedLayout, label: str, where: str) -> None:
        hint = "" if decl.name else "; name the tensors when there are several: inputs={'a': [...], 'b': [...]}"
        if decl.shape is None:
            decl.shape, decl.shape_from = layout.shape, where
        elif decl.shape != layout.shape:
            raise ValueError(f"{where} has the global shape {list(layout.shape)}, but {decl.shape_from} says "
                             f"{list(decl.shape)}{hint}")
        self.merge_dtype(decl, layout.dtype, label, where, hint)
        pending = layout.pending_reduction
        if pending is None:
            return
        if label == "outputs":
            partial = next(item for item in layout.placements if isinstance(item, Partial))
            raise UnsupportedError(f"{where} has the placement {partial}; an output holds values, not addends: use "
                                   "Replicate() or Shard(dim)")
        if decl.reduction is None:
            decl.reduction, decl.reduction_from = pending, where
        elif decl.reduction != pending:
            raise ValueError(f"{where} waits for the reduction {pending!r}, but {decl.reduction_from} says "
                             f"{decl.reduction!r}; leave out reduction= or make them equal")

    def group_mesh(self, layout: Layout, where: str) -> list[int]:
        """The layout's mesh in the group's own rank numbers."""
        known = self.renamed.get(layout.ranks)
        if known is None:
            outside = [rank for rank in layout.ranks if rank not in self.group_rank_of]
            if outside:
                raise ValueError(f"{where}: the mesh holds global rank {outside[0]}, which is not in the group of "
                                 f"ranks {_span(self.group_rank_of)}; compile over a group that holds the whole mesh")
            known = self.renamed[layout.ranks] = [self.group_rank_of[rank] for rank in layout.ranks]
        return known


# Arguments.

def _read_argument(value: Any, what: str, read: Any) -> dict[str | None, Any]:
    """Reads an argument: one value for all tensors (key None in the result) or a dict keyed by tensor name. Absent
    values are left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return {None: read(value, what)}
    table: dict[str | None, Any] = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} has the key {kind_of(name)}; the keys are tensor names (str)")
        if item is not None:
            table[name] = read(item, f"{what}[{name!r}]")
    return table


def _read_dtype(value: Any, what: str) -> torch.dtype:
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{what} is {kind_of(value)}; give a torch.dtype such as torch.float32")
    if str(value).startswith(("torch.quint", "torch.qint")):
        raise UnsupportedError(f"{what} is {value}; quantized tensors are not supported: move their int_repr()")
    return value


def _read_reduction(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {kind_of(value)}; give one of {', '.join(map(repr, _C.reductions))} or None")
    if value not in _C.reductions:
        raise ValueError(f"{what} is {value!r}; give one of {', '.join(map(repr, _C.reductions))} or None")
    return _C.reductions[value]


def _check_device(device: Any, where: str) -> None:
    if device is None:
        return
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"{where}: device is {kind_of(device)}; give a torch.device, its name or None")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(
            f"{where}: device {kind_of(device)} is unknown to torch; give 'cpu', 'cuda' or None") from None
    if kind != "privateuseone" and kind not in shardwire_autoload.devices():
        raise UnsupportedError(f"{where}: device {str(device)!r} is no device whose tensors this torch can move; "
                               f"give {' or '.join(map(repr, shardwire_autoload.devices()))}")


def check_local(dtensor: Any, share: Any, where: str) -> None:
    """Checks the DTensor's local tensor against the layout; a DTensor made by from_local may contradict its layout."""
    local = local_tensor(dtensor)
    have = tuple(local.shape)
    if share is None:
        if local.numel() != 0:
            raise ValueError(f"{where}: this rank is outside of the DTensor's mesh, yet its local tensor has shape "
                             f"{list(have)}")
        return
    if have != share.local_shape:
        raise ValueError(f"{where}: the DTensor's local tensor has shape {list(have)}, its placements say "
                         f"{list(share.local_shape)}; give from_local the global shape, or lay it out with "
                         "distribute_tensor")


def _has_name_0(side: Any) -> bool:
    """Whether a key, or the tensor_id of a region, is "0"."""
    if isinstance(side, Mapping):
        return "0" in side or any(_has_name_0(listed) for listed in side.values())
    ids = [each.get("tensor_id") if isinstance(each, Mapping) else getattr(each, "tensor_id", None)
           for each in (side if isinstance(side, (list, tuple)) else ())]
    return any(isinstance(each, (str, int)) and not isinstance(each, bool) and str(each) == "0" for each in ids)


def _is_item(value: Any) -> bool:
    """Whether ``value`` is one entry of a list rather than the list."""
    if isinstance(value, (TensorRegion, Layout, FusedLayout, torch.Tensor)):
        return True
    return isinstance(value, Mapping) and "offset" in value and "shape" in value


def _replica_class(*what: Any) -> int:
    """Not 0, and equal on ranks with equal ``what``."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little") >> 1 | 1


def _parts(parts: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name!r} from {begin}" for name, begin in parts)


def _tensor(name: str) -> str:
    return f"tensor {name!r}" if name else "the tensor"


def _names(table: Any) -> str:
    names = [name for name in table if name]
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "") if names else "none"


def _span(ranks: Any) -> str:
    ranks = list(ranks)
    return f"0..{len(ranks) - 1}" if ranks == list(range(len(ranks))) and len(ranks) > 1 else str(ranks)
