"""compile_op: any movement of tensor slices between the ranks of a group, compiled once and run as often as you like."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

import torch

from . import _C
from ._future import Future, Seconds, as_seconds
from ._groups import global_ranks, resolve_backend
from ._layout import Layout, _kind, is_dtensor, local_tensor
from ._spec import Side, Spec, TensorRegion, build_spec

_Tensor = torch.Tensor
_ErrorKind = Literal["value", "type", "runtime", "unsupported"]
Dims = Sequence[int]
Item = Union[Mapping[str, Any], TensorRegion, Layout, torch.Tensor]
Items = Union[Sequence[Item], Mapping[str, Union[Item, Sequence[Item]]]]
Tensors = Union[torch.Tensor, Sequence["torch.Tensor | None"], Mapping[str, "torch.Tensor | Sequence[torch.Tensor | None]"]]


def compile_op(group: Any, shape: Dims | Mapping[str, Dims] | None = None, dtype: torch.dtype | Mapping[str, torch.dtype] | None = None,
               inputs: Items | None = None, outputs: Items | None = None, reduction: str | Mapping[str, str | None] | None = None, *,
               allow_gaps: bool = False, timeout: Seconds = None, name: str | None = None) -> CustomOp:
    """Compiles a movement of data: each rank says which boxes of which global tensors it has (``inputs``) and wants (``outputs``).

    Collective: every rank of ``group`` calls it, each with its own lists. Returns a :class:`CustomOp` to be called with local tensors.

    group: a shardwire process group, a torch.distributed group whose backend is shardwire, a group's name, or None for the default group.
    shape: the global shape (int each, up to 16 dimensions); absent: a DTensor's or Layout's, else the smallest box around all ranks' regions.
    dtype: a torch.dtype; absent: a DTensor's or Layout's.
    inputs, outputs: None, or a list whose entries are
        dicts ``{'offset': [...], 'shape': [...]}`` (also ``'device'``, ``'tensor_id'``), :class:`TensorRegion`, :class:`Layout`, or DTensors
        (meta ones too; only their layout is read). Lists of several tensors: dicts of such lists keyed by tensor name, with ``shape`` and
        ``dtype`` keyed likewise where no DTensor says them; or flat lists with ``tensor_id``. DTensors in a flat list are all of one tensor.
        A rank outside of a DTensor's or Layout's mesh holds nothing there.
    reduction: how inputs that overlap combine, in rank order: "sum", "prod", "min", "max", "avg"/"mean", "band", "bor", "bxor"; a dict gives it
        per tensor. None: the last one wins (higher rank, then higher index). The pending reduction of a Partial input becomes its tensor's.
    allow_gaps: leave output elements that no input covers as they are, instead of refusing them.
    timeout: seconds (or a timedelta) to wait for ranks that do not call; None: the group's.
    name: for messages and pictures; rank 0's counts.

    Raises on every rank the same type and text when any rank's specification is wrong or they do not fit together (ValueError, TypeError,
    NotImplementedError), naming rank, list and index; the group stays usable. TimeoutError names the ranks that never called.
    """
    backend = resolve_backend(group)
    seconds: float | None = None
    spec: Spec | None = None
    error: tuple[_ErrorKind, str] | None = None
    try:
        seconds = as_seconds(timeout)
        if not isinstance(allow_gaps, bool):
            raise TypeError(f"allow_gaps is {_kind(allow_gaps)}; give True or False")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {_kind(name)}; give a str or None")
        spec = build_spec(shape, dtype, inputs, outputs, reduction, _C.rank(backend), global_ranks(backend))
    except Exception as failure:  # whatever it was: the other ranks wait for us in the exchange and must hear of it
        error = (_error_kind(failure), str(failure) or type(failure).__name__)
    if spec is None:
        spec = Spec([], Side("inputs"), Side("outputs"))
    native = _C.compile_op(backend, spec.tensors, spec.inputs.native, spec.outputs.native, allow_gaps is True,
                           name if isinstance(name, str) else "", error, seconds)
    return CustomOp(native, spec.inputs, spec.outputs)


def _error_kind(failure: Exception) -> _ErrorKind:
    if isinstance(failure, TypeError):
        return "type"
    if isinstance(failure, ValueError):
        return "value"
    return "unsupported" if isinstance(failure, NotImplementedError) else "runtime"


class CustomOp:
    """A compiled movement of data; call it with this rank's local tensors.

    ``op(input_tensors, output_tensors)`` starts one run and returns a :class:`Future`. Both are lists in the order of the lists given to
    ``compile_op``, or dicts of lists when those were dicts. Tensors have the compiled shape and dtype and any strides (none negative). A single
    tensor may stand for a list of one. A DTensor stands for its local tensor (the same memory). Where this rank holds nothing (it is outside of
    the mesh), leave the tensor out, or give None or an empty one. Inputs may be read and outputs written until the Future is done.

    Every rank of the group calls, in the same order relative to its other operations. A wrong call (count, shape, dtype, device, aliasing) raises
    TypeError or ValueError on the caller before anything moves; the op stays usable.
    """

    __slots__ = ("_op", "_inputs", "_outputs", "__weakref__")

    def __init__(self, native: Any, inputs: Side, outputs: Side) -> None:
        self._op = native
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, input_tensors: Tensors | None = None, output_tensors: Tensors | None = None, *, timeout: Seconds = None) -> Future:
        """Starts one run. timeout: seconds until the run fails when peers do not take part; None: the group's."""
        seconds = None if timeout is None else as_seconds(timeout)
        return Future(self._op.run(_flatten(self._inputs, input_tensors), _flatten(self._outputs, output_tensors), seconds))

    def bind(self, input_tensors: Tensors | None = None, output_tensors: Tensors | None = None, *, timeout: Seconds = None) -> BoundOp:
        """Checks the tensors once and keeps them: the result is called without arguments and returns a :class:`Future`."""
        seconds = None if timeout is None else as_seconds(timeout)
        return BoundOp(self._op.bind(_flatten(self._inputs, input_tensors), _flatten(self._outputs, output_tensors), seconds))

    def explain(self) -> str:
        """A table for people: who sends what to whom, bytes, contiguous runs, data path, and the least bytes any plan must move."""
        return self._op.explain()

    def traffic(self) -> dict[str, Any]:
        """The same for programs: name, rank, world_size, tensors, edges (list of {src, dst, bytes, pieces}, group ranks), lower_bound_bytes."""
        return json.loads(self._op.explain_json())

    def stats(self) -> dict[str, Any]:
        """Counters of this rank: bytes sent, received, local and reduced per run, moves, plan and scratch bytes, runs so far, seconds."""
        return self._op.stats()

    def plot(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Draws who sends what to whom into ``path``: .svg (needs nothing) or .png (needs matplotlib). ValueError for other endings."""
        from ._plot import save_picture
        save_picture(self.traffic(), path, title)

    @property
    def tensors(self) -> Any:
        """The global tensors of the op as all ranks agreed on them."""
        return self._op.tensors

    @property
    def inputs(self) -> Any:
        """What each local input tensor must look like."""
        return self._op.inputs

    @property
    def outputs(self) -> Any:
        """What each local output tensor must look like."""
        return self._op.outputs

    def __repr__(self) -> str:
        return f"<shardwire.CustomOp: {self._inputs.count} inputs and {self._outputs.count} outputs on this rank>"


class BoundOp:
    """A compiled op with its tensors fixed: ``bound()`` starts one run and returns a :class:`Future`. Keeps the tensors alive."""

    __slots__ = ("_bound",)

    def __init__(self, bound: Any) -> None:
        self._bound = bound

    def __call__(self) -> Future:
        return Future(self._bound())


# From the caller's tensors to the native side's list.

def _flatten(side: Side, value: Any) -> list[torch.Tensor]:
    """The tensors of the held positions, in order. The common case, a plain list of plain tensors, is one pass over it."""
    if type(value) is list and len(value) == side.count and side.keys is None:
        for tensor in value:
            if type(tensor) is not _Tensor:
                break
        else:
            return value
    if value is None:
        value = []
    if isinstance(value, Mapping):
        return _flatten_keyed(side, value)
    if isinstance(value, torch.Tensor):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{side.label} is {_kind(value)}; give a list of tensors" + ("" if side.keys is None else " or a dict of lists"))
    return _pick(side.label, side.held, value)


def _flatten_keyed(side: Side, value: Mapping[Any, Any]) -> list[torch.Tensor]:
    if side.keys is None and (side.held or value):
        given = "a flat list" if side.held else f"no {side.label}"
        raise TypeError(f"{side.label} is a dict, but compile_op was given {given}; give a list of tensors")
    keys = side.keys or {}
    for name in value:
        if name not in keys:
            raise ValueError(f"{side.label} has the key {_kind(name)}, which compile_op was not given; it was given {', '.join(map(repr, keys))}")
    flat: list[torch.Tensor] = []
    for name, (first, count) in keys.items():
        tensors = value.get(name)
        if tensors is None:
            tensors = []
        elif isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        elif not isinstance(tensors, (list, tuple)):
            raise TypeError(f"{side.label}[{name!r}] is {_kind(tensors)}; give a list of tensors")
        flat.extend(_pick(f"{side.label}[{name!r}]", side.held[first:first + count], tensors))
    return flat


def _pick(label: str, held: Sequence[bool], given: Sequence[Any]) -> list[torch.Tensor]:
    """``given`` has a tensor per position, or per held position only."""
    expected = sum(held)
    if len(given) == len(held):
        picked = []
        for index, (is_held, tensor) in enumerate(zip(held, given)):
            if is_held:
                picked.append(_local(tensor, label, index))
            elif tensor is not None and not (isinstance(tensor, torch.Tensor) and _local(tensor, label, index).numel() == 0):
                raise ValueError(f"{label}[{index}]: this rank holds nothing there (it is outside of the mesh); leave it out, or give None")
        return picked
    if len(given) != expected:
        places = f"{expected}" if expected == len(held) else f"{expected} (or {len(held)}, with None where this rank holds nothing)"
        raise ValueError(f"{label}: {len(given)} tensors given, {places} expected, one per entry given to compile_op")
    return [_local(tensor, label, index) for index, tensor in enumerate(given)]


def _local(tensor: Any, label: str, index: int) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{label}[{index}] is {_kind(tensor)}; give a torch.Tensor")
    return local_tensor(tensor) if is_dtensor(tensor) else tensor
