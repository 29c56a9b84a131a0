"""compile_op: compiles any movement of tensor slices between the ranks of a group once, to be run as often as you
like."""

from __future__ import annotations

import json
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Union

import torch

from .. import _C
from .all_ranks import ARGUMENTS, EachRank, check_overlap, lists_of_all, spec_of_rank
from .future import Future, Seconds, as_seconds
from ..groups.lookup import global_ranks, resolve_backend
from .fused import FusedLayout
from .other_order import other_order
from .layout import Layout, kind_of, is_dtensor, local_tensor
from .who_plans import check_keeping, check_name, check_kinds, check_place, group_of, place_without_group
from .spec import Side, Spec, TensorRegion, build_spec

_Tensor = torch.Tensor
Dims = Sequence[int]
Item = Union[Mapping[str, Any], TensorRegion, Layout, FusedLayout, torch.Tensor]
Items = Union[Sequence[Item], Mapping[str, Union[Item, Sequence[Item]]]]
Tensors = (
    Union[torch.Tensor, Sequence["torch.Tensor | None"], Mapping[str, "torch.Tensor | Sequence[torch.Tensor | None]"]])


@other_order(1, torch.dtype, ("dtype", "inputs", "outputs", "reduce", "cpu_sync"), fixed=1)
def compile_op(group: Any = None, shape: Dims | Mapping[str, Dims] | None = None,
               dtype: torch.dtype | Mapping[str, torch.dtype] | None = None, inputs: Items | None = None,
               outputs: Items | None = None, reduction: str | Mapping[str, str | None] | None = None, *,
               output_dtype: torch.dtype | Mapping[str, torch.dtype] | None = None, allow_gaps: bool = False,
               timeout: Seconds = None, name: str | None = None, overlap: str | None = None,
               is_spmd: bool | None = None, cc_enabled: bool | None = None, rank_id: int | None = None,
               world_size: int | None = None, use_cached_if_exists: bool = True,
               build_dir: str | os.PathLike[str] | None = None, reduce: str | Mapping[str, str | None] | None = None,
               cpu_sync: bool = False) -> CustomOp:
    """Compiles a movement of data: each rank says which boxes of which global tensors it has (``inputs``) and wants
    (``outputs``). Collective: every rank of ``group`` calls, each with its own lists. Returns a :class:`CustomOp` to be
    called with local tensors.

    group: a shardwire process group, a torch.distributed group with the backend shardwire, a group's name, or None for
        the default group.
    shape: the global shape (int each, up to 16 dimensions); absent: a DTensor's or Layout's, else the smallest box
        around all ranks' regions.
    dtype: a torch.dtype, of the inputs; absent: the dtype of the DTensors or Layouts among the inputs, else of the
        outputs.
    inputs, outputs: None, or a list whose entries are
        dicts ``{'offset': [...], 'shape': [...]}`` (also ``'device'``, ``'tensor_id'``), :class:`TensorRegion`,
        :class:`Layout`, or DTensors (meta ones too; only the layout is read); :func:`fused` and :func:`unfused` make
        entries for tensors that are slices of one tensor. Lists of several tensors: dicts of such lists keyed by tensor
        name, with ``shape`` and ``dtype`` keyed likewise where no DTensor gives the values; or flat lists with
        ``tensor_id``. DTensors in a flat list are all of one tensor. A rank outside of a DTensor's or Layout's mesh
        holds nothing there.
    reduction: how overlapping inputs combine, in rank order: "sum", "prod"/"product", "min", "max", "avg"/"mean",
        "band", "bor", "bxor"; a dict gives one reduction per tensor. None: the last input wins (higher rank, then
        higher index). The pending reduction of a Partial input becomes its tensor's.
    output_dtype: a torch.dtype, of the outputs; absent: the dtype of the DTensors or Layouts among the outputs, else of
        the inputs. Where the dtypes differ, every element is cast on its way, once, exactly as by torch's ``.to``, and
        the narrower type travels; a reduction is computed first and rounded once, at its end. Between floating types (8
        to 64 bits) and between complex types; other casts are refused.
    overlap: the meaning of inputs that overlap without a reduction. "last" (or None): the last input wins, as above.
        "any": the caller guarantees equal inputs, and the nearest rank supplies the elements. "error": an overlap is a
        mistake, raised on all ranks with both regions and their ranks. Replicas of a DTensor are equal always. Equal on
        all ranks.
    allow_gaps: leave output elements without an input as they are, instead of refusing the gaps.
    timeout: seconds (or a timedelta) to wait for ranks that do not call; None: the group's.
    name: for messages and pictures; rank 0's name counts.
    is_spmd: True: rank 0 plans for all ranks and sends every rank its plan. False: each rank plans its own part from
        the lists of all ranks. None: as True in groups of more than 16 ranks where rank 0's planning ends sooner
        (docs/compile.md has the rule), else as False. The plans are the same. Equal on all ranks.
    cc_enabled: False: no communication; one rank's plan is made here, as if every rank had given these arguments (a
        :class:`Layout` gives each rank's part). Such an op describes itself, and :meth:`CustomOp.attach` gives the op a
        group to run in. None: as False where there is no group and rank_id and world_size are given.
    rank_id, world_size: the rank of the plan, and the number of ranks; with a group both must be the group's values.
    use_cached_if_exists: False: plans anew, and replaces the kept plan of an equal call, in memory and in build_dir.
    build_dir: a folder where plans outlive the process, in ``spmd``, ``rank_R`` or ``local``; None: equal calls are
        remembered in memory only. A folder that cannot be written is a RuntimeWarning. Ranks may differ in
        use_cached_if_exists and in build_dir.
    reduce, cpu_sync: moodist's, also by position: ``compile_op(group, dtype, inputs, outputs, reduce, cpu_sync)``.
        reduce: "any" is ``overlap="any"``, else ``reduction``. cpu_sync changes nothing: no kernel waits for the CPU.

    Raises on every rank the same type and text when any rank's specification is wrong or the specifications do not fit
    together (ValueError, TypeError, NotImplementedError; :class:`GapError`, a ValueError, where no input covers an
    output), naming rank, list and index; the group stays usable. TimeoutError names the ranks that never called.
    """
    # Most calls leave all these arguments out, and pay nothing for them.
    is_plain = (is_spmd is None and cc_enabled is None and rank_id is None and world_size is None and build_dir is None
                and use_cached_if_exists is True)
    backend = resolve_backend(group) if is_plain else group_of(group, cc_enabled)
    if backend is None:
        reduction, overlap = _with_reduce(reduction, overlap, reduce)
        given = dict(zip(ARGUMENTS, (shape, dtype, inputs, outputs, reduction, output_dtype)))
        _check_flags(allow_gaps, overlap)
        as_seconds(timeout)
        check_kinds(is_spmd, cc_enabled, rank_id, world_size)
        kept_in = check_keeping(use_cached_if_exists, build_dir)
        return plan_one_rank(*place_without_group(group, is_spmd, cc_enabled, rank_id, world_size), given, None,
                             allow_gaps, overlap, check_name(name), (), is_spmd, use_cached_if_exists, kept_in)
    seconds: float | None = None
    spec: Spec | None = None
    error: Exception | None = None
    kept_in = given_name = ""
    try:
        given_name = check_name(name)
        seconds = as_seconds(timeout)
        reduction, overlap = _with_reduce(reduction, overlap, reduce)
        _check_flags(allow_gaps, overlap)
        if not is_plain:
            check_kinds(is_spmd, cc_enabled, rank_id, world_size)
            check_place(rank_id, world_size, backend)
            kept_in = check_keeping(use_cached_if_exists, build_dir)
        spec = build_spec(shape, dtype, inputs, outputs, reduction, output_dtype, _C.rank(backend),
                          global_ranks(backend))
    # Any exception: the other ranks wait for this rank in the exchange and must be notified
    except Exception as failure:
        error = failure
    if spec is None:
        spec = Spec([], Side("inputs"), Side("outputs"))
    if is_plain and error is None:
        native = _C.compile_op(backend, spec.tensors, spec.inputs.native, spec.outputs.native, allow_gaps, given_name,
                               None, seconds, overlap or "last")
    else:
        native = _C.compile_op(backend, spec.tensors, spec.inputs.native, spec.outputs.native, allow_gaps is True,
                               given_name, error, seconds, overlap if error is None and overlap else "last",
                               is_spmd if isinstance(is_spmd, bool) else None, use_cached_if_exists is True, kept_in)
        _warn_of_what_was_not_kept(native, given_name)
    return _numbered(CustomOp(native, spec.inputs, spec.outputs, again=(allow_gaps, given_name, overlap)), backend)


def _with_reduce(reduction: Any, overlap: Any, reduce: Any) -> tuple[Any, Any]:
    """``reduction`` and ``overlap``, of which moodist's ``reduce`` may be one."""
    if reduce is None:
        return reduction, overlap
    if (overlap if reduce == "any" else reduction) is not None:
        raise TypeError("reduce is given, and reduction or overlap too; give one of them")
    return (reduction, "any") if reduce == "any" else (reduce, overlap)


def _warn_of_what_was_not_kept(native: Any, name: str) -> None:
    _, path, why = native.plan_provenance()
    if why:
        warnings.warn(f"shardwire: the plan of compile_op{f' {name!r}' if name else ''} was made but could not be kept "
                      f"in {os.path.dirname(path)}: {why}; the next process plans again. Give a build_dir that can be "
                      "written", RuntimeWarning, stacklevel=4)


def _check_flags(allow_gaps: Any, overlap: Any) -> None:
    if not isinstance(allow_gaps, bool):
        raise TypeError(f"allow_gaps is {kind_of(allow_gaps)}; give True or False")
    check_overlap(overlap)


def plan_one_rank(rank: int, world_size: int, given: Mapping[str, Any], each_rank: EachRank | None, allow_gaps: bool,
                  overlap: str | None, name: str | None, hosts: Sequence[int], is_spmd: bool | None = None,
                  use_cached: bool = True, build_dir: str = "") -> CustomOp:
    """One rank's op without a group. given, each_rank: as for ``lists_of_all``. hosts: for each rank the number of its
    host; empty: all ranks on one host."""
    native = _C.plan_offline(lists_of_all(world_size, given, each_rank), rank, allow_gaps, overlap or "last",
                             name or "", hosts, is_spmd, use_cached, build_dir)
    _warn_of_what_was_not_kept(native, name or "")
    spec = spec_of_rank(rank, world_size, given, each_rank)
    return CustomOp(native, spec.inputs, spec.outputs, has_group=False)


def _numbered(op: CustomOp, backend: Any) -> CustomOp:
    group = _C.group_name(backend)
    number = _numbers[group] = _numbers.get(group, 0) + 1
    _by_name[f"{group}/{number}"] = weakref.ref(op)
    if len(_by_name) >= _look_at[0]:
        _forget_the_dead()
    return op


def forget_numbers(group: str) -> None:
    """At the end of a group with a name that no other group has: nothing is kept for each group that ever was."""
    _numbers.pop(group, None)


def _forget_the_dead() -> None:
    for name, known in list(_by_name.items()):
        if known() is None:
            _by_name.pop(name, None)
    _look_at[0] = 2 * len(_by_name) + 1000


# Ops by group and number. Numbers are the same on all ranks of a group, since every rank compiles the same ops: for
# kernels.
_numbers: dict[str, int] = {}
# Plain references: a WeakValueDictionary takes twice as long, in every compile_op.
_by_name: dict[str, weakref.ref[CustomOp]] = {}
# At this many entries the entries of dead ops are removed
_look_at = [1000]


def op_named(name: str) -> CustomOp | None:
    """The op with this name, while a reference to the op exists."""
    known = _by_name.get(name)
    return None if known is None else known()


def name_of_op(op: CustomOp) -> str:
    """The name of the op on all ranks. ValueError for an op not made by ``compile_op``."""
    for name, known in list(_by_name.items()):
        if known() is op:
            return name
    raise ValueError("this op was not made by compile_op")


class CustomOp:
    """A compiled movement of data; call the op with this rank's local tensors.

    ``op(input_tensors, output_tensors)`` starts one run and returns a :class:`Future`. Both are lists in the order of
    the lists given to ``compile_op``, or dicts of lists when ``compile_op`` was given dicts. Tensors have the compiled
    shape, the dtype of their side, and any strides (none negative). A single tensor may stand for a list of one tensor.
    A DTensor stands for its local tensor (the same memory). Where this rank holds nothing (outside of the mesh), leave
    the tensor out, or give None or an empty tensor. Inputs may be read and outputs written until the Future is done.

    Every rank of the group calls, in the same order relative to the other operations. A wrong call (count, shape,
    dtype, device, aliasing) raises TypeError or ValueError on the caller before anything moves; the op stays usable.
    """

    __slots__ = ("_op", "_inputs", "_outputs", "_has_group", "_again", "__weakref__")

    def __init__(self, native: Any, inputs: Side, outputs: Side, *, has_group: bool = True,
                 again: tuple[bool, str, str | None] | None = None) -> None:
        """again: allow_gaps, name and overlap, for :meth:`for_group`."""
        self._op = native
        self._inputs = inputs
        self._outputs = outputs
        self._has_group = has_group
        self._again = again

    def __call__(self, input_tensors: Tensors | None = None, output_tensors: Tensors | None = None, *,
                 timeout: Seconds = None) -> Future:
        """Starts one run. timeout: seconds until the run fails when peers do not take part; None: the group's."""
        seconds = None if timeout is None else as_seconds(timeout)
        return Future(self._op.run(self._flat(self._inputs, input_tensors), self._flat(self._outputs, output_tensors),
                                   seconds))

    def bind(self, input_tensors: Tensors | None = None, output_tensors: Tensors | None = None, *,
             timeout: Seconds = None) -> BoundOp:
        """Checks the tensors once and keeps them: the result is called without arguments and returns a
        :class:`Future`."""
        seconds = None if timeout is None else as_seconds(timeout)
        bound = self._op.bind(self._flat(self._inputs, input_tensors), self._flat(self._outputs, output_tensors),
                              seconds)
        return BoundOp(bound, self._summary())

    def _flat(self, side: Side, tensors: Tensors | None) -> list[torch.Tensor]:
        """:func:`flat_tensors`, whose errors name the op and this rank."""
        try:
            return flat_tensors(side, tensors)
        except (TypeError, ValueError) as error:
            facts = self.traffic()
            name = f" '{facts['name']}'" if facts["name"] else ""
            raise type(error)(f"compile_op{name}: rank {facts['rank']}: {error}") from None

    @property
    def has_group(self) -> bool:
        """False for an op planned without a group: the op describes itself, and calls raise
        :class:`UnsupportedError`."""
        return self._has_group

    def attach(self, group: Any = None, *, timeout: Seconds = None) -> CustomOp:
        """Gives an op planned without a group a group to run in: the result is as compiled there, and this op stays
        unchanged.

        Collective: every rank of ``group`` gives the plan of its own rank, all of one operation, planned for the same
        hosts. ValueError or :class:`MismatchError` on all ranks alike where the plans do not match; TimeoutError names
        the missing ranks. group, timeout: as for ``compile_op``. Nothing is planned, and no specs are sent.
        """
        backend = resolve_backend(group)
        try:
            seconds = as_seconds(timeout)
        except (TypeError, ValueError) as failure:
            # In place of the attach: the other ranks wait there, and raise the same error
            _C.exchange(backend, "attach", error=failure)
            raise
        return _numbered(CustomOp(_C.attach(backend, self._op, seconds), self._inputs, self._outputs), backend)

    def for_group(self, group: Any = None, *, timeout: Seconds = None) -> CustomOp:
        """Compiles this op anew for another group, for example after :func:`shrink`: each rank holds and wants the same
        boxes as before. This op stays unchanged.

        Collective like ``compile_op``: the other ranks of ``group`` call ``for_group`` of their op, or ``compile_op``
        with the same global tensors. Elements that only a missing rank held are a :class:`GapError` on all ranks,
        unless the op allows gaps. A reduction is over the inputs of the group's ranks. group, timeout: as for
        ``compile_op``. TypeError on all ranks for an op planned without a group, for a fixed number of ranks.
        """
        backend = resolve_backend(group)
        seconds: float | None = None
        error: Exception | None = None
        try:
            seconds = as_seconds(timeout)
            if self._again is None:
                raise TypeError("for_group: this op was planned without a group, for a fixed number of ranks; call "
                                "compile_op in the group")
        except (TypeError, ValueError) as failure:
            error = failure
        allow_gaps, name, overlap = self._again or (False, "", None)
        native = _C.compile_op(backend, self._op.tensors, self._op.inputs, self._op.outputs, allow_gaps, name, error,
                               seconds, overlap or "last")
        return _numbered(CustomOp(native, self._inputs, self._outputs, again=self._again), backend)

    @property
    def origin(self) -> str:
        """The origin of this rank's plan: "planned" here, "received" from rank 0, or made before and found in "memory"
        or on "disk"."""
        return self._op.plan_provenance()[0]

    @property
    def plan_path(self) -> str | None:
        """The path of this rank's plan on disk; None where no ``build_dir`` was given."""
        return self._op.plan_provenance()[1] or None

    def plan_bytes(self) -> bytes:
        """This rank's plan as bytes, for :meth:`from_plan_bytes`: the same on any planning rank, for equal arguments of
        all ranks and the same hosts."""
        return self._op.plan_bytes()

    @staticmethod
    def from_plan_bytes(data: bytes) -> CustomOp:
        """The op of a plan from :meth:`plan_bytes`, without a group (:meth:`attach`). The op takes flat lists of
        tensors, and knows only this rank's traffic. ValueError for bytes that are no whole plan of this version."""
        if not isinstance(data, (bytes, bytearray)):
            raise TypeError(f"data is {kind_of(data)}; give what plan_bytes() gave")
        native = _C.read_plan(bytes(data))
        sides = [Side(label, held=[True] * len(lists), native=lists, count=len(lists))
                 for label, lists in (("inputs", native.inputs), ("outputs", native.outputs))]
        return CustomOp(native, *sides, has_group=False)

    def explain(self) -> str:
        """A table for people: senders, receivers, bytes, contiguous runs, data path, and the least bytes any plan must
        move."""
        return self._op.explain()

    def traffic(self) -> dict[str, Any]:
        """The content of :meth:`explain` for programs: name, rank, world_size, tensors, edges (list of {src, dst,
        bytes, pieces}, group ranks), lower_bound_bytes. Where another rank planned (``is_spmd=True``) edges are this
        rank's own, and lower_bound_bytes is None."""
        return json.loads(self._op.explain_json())

    def stats(self) -> dict[str, Any]:
        """Counters of this rank: bytes sent, received, local and reduced per run, moves, plan and scratch bytes, runs
        so far, seconds."""
        return self._op.stats()

    def plot(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Draws the traffic between ranks into ``path``: .svg (needs nothing) or .png (needs matplotlib). ValueError
        for other endings."""
        from .plot import save_picture
        save_picture(self.traffic(), path, title)

    @property
    def tensors(self) -> Any:
        """The global tensors of the op, as agreed by all ranks."""
        return self._op.tensors

    @property
    def inputs(self) -> Any:
        """The required shape and dtype of each local input tensor."""
        return self._op.inputs

    @property
    def outputs(self) -> Any:
        """The required shape and dtype of each local output tensor."""
        return self._op.outputs

    def __repr__(self) -> str:
        return f"<shardwire.CustomOp: {self._summary()}>"

    def _summary(self) -> str:
        return f"{self._inputs.count} inputs and {self._outputs.count} outputs on this rank"


class BoundOp:
    """A compiled op with fixed tensors: ``bound()`` starts one run and returns a :class:`Future`. Keeps the tensors
    alive."""

    __slots__ = ("_bound", "_summary")

    def __init__(self, bound: Any, summary: str) -> None:
        self._bound, self._summary = bound, summary

    def __call__(self) -> Future:
        return Future(self._bound())

    def __repr__(self) -> str:
        return f"<shardwire.BoundOp: {self._summary}>"


# From the caller's tensors to the native side's list.

def flat_tensors(side: Side, value: Any) -> list[torch.Tensor]:
    """The tensors of the held positions, in order. The common case, a plain list of plain tensors, takes one pass over
    the list."""
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
        raise TypeError(f"{side.label} is {kind_of(value)}; give a list of tensors"
                        + ("" if side.keys is None else " or a dict of lists"))
    return _pick(side.label, side.held, value)


def _flatten_keyed(side: Side, value: Mapping[Any, Any]) -> list[torch.Tensor]:
    if side.keys is None and (side.held or value):
        given = "a flat list" if side.held else f"no {side.label}"
        raise TypeError(f"{side.label} is a dict, but compile_op was given {given}; give a list of tensors")
    keys = side.keys or {}
    for name in value:
        if name not in keys:
            raise ValueError(f"{side.label} has the key {kind_of(name)}, which compile_op was not given; it was given "
                             f"{', '.join(map(repr, keys))}")
    flat: list[torch.Tensor] = []
    for name, (first, count) in keys.items():
        tensors = value.get(name)
        if tensors is None:
            tensors = []
        elif isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        elif not isinstance(tensors, (list, tuple)):
            raise TypeError(f"{side.label}[{name!r}] is {kind_of(tensors)}; give a list of tensors")
        flat.extend(_pick(f"{side.label}[{name!r}]", side.held[first:first + count], tensors))
    return flat


def _pick(label: str, held: Sequence[bool], given: Sequence[Any]) -> list[torch.Tensor]:
    """Picks the held tensors out of ``given``, which has a tensor per position, or per held position only."""
    expected = sum(held)
    if len(given) == len(held):
        picked = []
        for index, (is_held, tensor) in enumerate(zip(held, given)):
            if is_held:
                picked.append(_local(tensor, label, index))
            elif tensor is not None and not (isinstance(tensor, torch.Tensor)
                                             and _local(tensor, label, index).numel() == 0):
                raise ValueError(f"{label}[{index}]: this rank holds nothing there (it is outside of the mesh); leave "
                                 "it out, or give None")
        return picked
    if len(given) != expected:
        places = (f"{expected}" if expected == len(held)
                  else f"{expected} (or {len(held)}, with None where this rank holds nothing)")
        raise ValueError(f"{label}: {len(given)} tensors given, {places} expected, one per entry given to compile_op")
    return [_local(tensor, label, index) for index, tensor in enumerate(given)]


def _local(tensor: Any, label: str, index: int) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{label}[{index}] is {kind_of(tensor)}; give a torch.Tensor")
    return local_tensor(tensor) if is_dtensor(tensor) else tensor
