"""FFTW, where the machine has the library: loaded by name when ranks transform, never linked, never required.

FFTW's guru interface takes any strides and batches in one plan. The guesses of its planner (FFTW_ESTIMATE) were up to
20 times slower here than the results of its measurements, and measuring the whole takes seconds. So a careful transform
is cut into parts of equal layout that fit a cache, and the planner measures one part, for a bounded time. Such a part
is also faster: an axis is transformed for some columns at a time.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import threading
import weakref
from typing import Any, NamedTuple

import torch

from ._local_call import ALIGNMENT, Array, Call

# fftw3.h
_MEASURE, _ESTIMATE, _PRESERVE_INPUT, _NO_LIMIT = 0, 1 << 6, 1 << 4, -1.0
_FORWARD, _BACKWARD = -1, 1
_PLANNERS = ("plan_guru64_dft", "plan_guru64_dft_r2c", "plan_guru64_dft_c2r")
_RUNNERS = ("execute_dft", "execute_dft_r2c", "execute_dft_c2r")
_ENDINGS = {"C2C": "", "R2C": "_r2c", "C2R": "_c2r"}
# Elements of a part. The planner measures 32,768 in 0.05 to 0.1 s here; a single transform of more elements than
# _SINGLE goes one axis after the other.
_PART, _SINGLE = 1 << 15, 1 << 16
# Seconds for the planner; then the planner guesses, and the comparison with the other engines includes the guess.
_PLANNING = 0.5
# In FFTW only the execution of plans is thread-safe, and the planner has one time limit. Reentrant: the garbage
# collector may end a transform on the thread that holds the lock.
_planner = threading.RLock()


class _Dim(ctypes.Structure):
    """fftw_iodim64: extent, and strides in elements of the input and of the output."""

    _fields_ = [("n", ctypes.c_ssize_t), ("source", ctypes.c_ssize_t), ("target", ctypes.c_ssize_t)]


@functools.lru_cache(maxsize=None)
def _array_of_dims(length: int) -> Any:
    return _Dim * length  # kept: without a user, ctypes makes a new type each time, in a cycle


class Library:
    """FFTW's functions of one precision."""

    def __init__(self, single: bool) -> None:
        loaded = ctypes.CDLL("libfftw3f.so.3" if single else "libfftw3.so.3")
        prefix = f"fftw{'f' if single else ''}_"
        self.functions = {name: getattr(loaded, prefix + name)
                          for name in (*_PLANNERS, *_RUNNERS, "destroy_plan", "set_timelimit", "alignment_of")}
        for name in _PLANNERS:
            self.functions[name].restype = ctypes.c_void_p
        for name in _RUNNERS:
            self.functions[name].restype, self.functions[name].argtypes = None, [ctypes.c_void_p] * 3
        self.functions["destroy_plan"].restype, self.functions["destroy_plan"].argtypes = None, [ctypes.c_void_p]
        self.functions["set_timelimit"].restype, self.functions["set_timelimit"].argtypes = None, [ctypes.c_double]
        self.functions["alignment_of"].restype, self.functions["alignment_of"].argtypes = (
            ctypes.c_int, [ctypes.c_void_p])


@functools.lru_cache(maxsize=None)
def find() -> dict[bool, Library] | None:
    """FFTW, with the key True for single precision, or None where a precision is missing."""
    try:
        return {single: Library(single) for single in (True, False)}
    except (OSError, AttributeError):
        return None


class _Part(NamedTuple):
    """One execution: its begin in both arrays, in bytes, and the number of indices along the cut dimension."""

    source: int
    target: int
    width: int


class _Pass:
    """All batches along some axes, in parts: ``inner`` dimensions are whole in a part, ``cut`` is cut, and the other
    dimensions have one index."""

    def __init__(self, call: Call, limit: int) -> None:
        self.call = call
        size, lengths = math.prod(call.lengths[axis] for axis in call.axes), call.lengths
        self.inner: list[int] = []
        waiting = call.batches
        while waiting and size * lengths[waiting[-1]] <= limit:
            size *= lengths[waiting[-1]]
            self.inner.append(waiting.pop())
        self.cut = waiting.pop() if waiting else None
        width = 1 if self.cut is None else max(1, limit // size)
        extent = 1 if self.cut is None else lengths[self.cut]
        self.parts = [_Part(_begin(call.source, outer, at, self.cut, first),
                            _begin(call.target, outer, at, self.cut, first), min(width, extent - first))
                      for outer in [waiting] for at in itertools.product(*(range(lengths[dim]) for dim in outer))
                      for first in range(0, extent, width)]

    def shape(self, width: int) -> tuple[int, ...]:
        """The shape of a part, without the axes: 1 for a dimension with one index."""
        return tuple(self.call.lengths[dim] if dim in self.inner else width if dim == self.cut else 1
                     for dim in range(len(self.call.lengths)))


def _begin(array: Array, outer: list[int], at: tuple[int, ...], cut: int | None, first: int) -> int:
    places = sum(place * array.strides[dim] for dim, place in zip(outer, at)) + (
        0 if cut is None else first * array.strides[cut])
    return places * array.item


class Transform:
    """One local transform of arrays of fixed layout. For one thread at a time."""

    def __init__(self, library: dict[bool, Library], call: Call, careful: bool) -> None:
        self._functions = library[call.source.dtype in (torch.float32, torch.complex64)].functions
        self._factor, self._careful = call.factor, careful
        limit = _PART if careful else max(call.elements, 1)
        self._passes = [_Pass(each, limit) for each in (
            _one_by_one(call) if careful and math.prod(call.lengths[axis] for axis in call.axes) > _SINGLE else [call])]
        self._plans: dict[Any, int] = {}
        self._ready: dict[tuple[int, int], list[tuple[bool, Any, list[tuple[int, int, int]]]]] = {}
        weakref.finalize(self, _destroy, self._functions["destroy_plan"], self._plans)
        self._runs(call.source.begin, call.target.begin)

    def run(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Transforms ``source`` into ``target``, which may be the same in place."""
        begin, end = source.data_ptr(), target.data_ptr()
        for in_place, execute, parts in self._runs(begin % ALIGNMENT, end % ALIGNMENT):
            first = end if in_place else begin
            for plan, here, there in parts:
                execute(plan, first + here, end + there)
        return target.mul_(self._factor) if self._factor != 1.0 else target

    def _runs(self, begin: int, end: int) -> list[tuple[bool, Any, list[tuple[int, int, int]]]]:
        """The executions of each pass. A plan is valid only for arrays with the alignment of the arrays at planning."""
        ready = self._ready.get((begin, end))
        if ready is None:
            ready = []
            for number, each in enumerate(self._passes):
                first = end if each.call.in_place else begin
                execute = self._functions["execute_dft" + _ENDINGS[each.call.kind]]
                ready.append((each.call.in_place, execute, [
                    (self._plan(number, each, part, first, end), part.source, part.target) for part in each.parts]))
            self._ready[begin, end] = ready
        return ready

    def _plan(self, number: int, each: _Pass, part: _Part, begin: int, end: int) -> int:
        aligned = self._functions["alignment_of"]
        key = (number, part.width, aligned(begin + part.source), aligned(end + part.target))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(each, part.width, *key[2:])
        return plan

    def _make(self, each: _Pass, width: int, begin: int, end: int) -> int:
        call, batches = each.call, each.shape(width)
        shapes = [tuple(extent if dim in call.axes else batches[dim] for dim, extent in enumerate(array.shape))
                  for array in (call.source, call.target)]
        source = call.source.resized(shapes[0])._replace(begin=begin).scratch()
        target = source if call.in_place else call.target.resized(shapes[1])._replace(begin=end).scratch()
        dims, rest = (_array_of_dims(max(len(which), 1))(
            *(_Dim(extent(dim), call.source.strides[dim], call.target.strides[dim]) for dim in which))
                      for which, extent in ((call.axes, call.lengths.__getitem__), (
                          [dim for dim, count in enumerate(batches) if count > 1 and dim not in call.axes],
                          batches.__getitem__)))
        count = sum(extent > 1 for dim, extent in enumerate(batches) if dim not in call.axes)
        sign = [ctypes.c_int(_BACKWARD if call.inverse else _FORWARD)] if call.kind == "C2C" else []
        with _planner:
            self._functions["set_timelimit"](_PLANNING)
            plan = self._functions["plan_guru64_dft" + _ENDINGS[call.kind]](
                ctypes.c_int(len(call.axes)), dims, ctypes.c_int(count), rest, ctypes.c_void_p(source.data_ptr()),
                ctypes.c_void_p(target.data_ptr()), *sign,
                ctypes.c_uint((_MEASURE if self._careful else _ESTIMATE) | _PRESERVE_INPUT))
            self._functions["set_timelimit"](_NO_LIMIT)
        if not plan:
            raise RuntimeError(f"FFTW has no plan for shape {list(call.lengths)} along axes {list(call.axes)}; "
                               "SHARDWIRE_FFT_ENGINE=torch does without it")
        return int(plan)


def _one_by_one(call: Call) -> list[Call]:
    """The same transform, one axis after the other: the real axis first, and the others in place."""
    first, *others = reversed(call.axes)
    rest = Call("C2C", (), call.target, call.target, True, call.inverse)
    return [call._replace(axes=(first,)), *(rest._replace(axes=(axis,)) for axis in others)]


def _destroy(destroy: Any, plans: dict[Any, int]) -> None:
    with _planner:
        for plan in plans.values():
            destroy(plan)


def can(call: Call) -> bool:
    """Whether Transform takes the call. FFTW keeps the input of a C2R along one axis only; a C2R call has only one
    axis."""
    return call.source.elements > 0
