"""MKL's transforms, called in the torch library that contains MKL: plans are kept, and results are written into the
caller's memory.

torch.fft makes memory for each result. Where the next step is an exchange, this memory lies outside of the heap, and
costs page faults and a copy. pip's torch exports MKL's ``Dfti*`` functions; Debian's torch has no MKL, and ``find``
returns None there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import weakref
from typing import Any

import torch

from ._local_call import Call

# mkl_dfti.h: parameters and values of DftiSetValue.
_FORWARD_SCALE, _BACKWARD_SCALE, _NUMBER_OF_TRANSFORMS = 4, 5, 7
_CONJUGATE_EVEN_STORAGE, _PLACEMENT, _INPUT_STRIDES, _OUTPUT_STRIDES, _INPUT_DISTANCE, _OUTPUT_DISTANCE = (
    10, 11, 12, 13, 14, 15)
_COMPLEX, _REAL, _COMPLEX_COMPLEX, _INPLACE, _NOT_INPLACE = 32, 33, 39, 43, 44
# Where no single stride leads through the batches, the transform is called once for each of the outer batches, up to
# this number of calls.
_MOST_CALLS = 256
_SCALES = {_FORWARD_SCALE, _BACKWARD_SCALE}


@functools.lru_cache(maxsize=None)
def find() -> Any | None:
    """The library with the ``Dfti*`` functions, or None."""
    if not torch.backends.mkl.is_available():
        return None
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(path)
        for name in ("DftiCreateDescriptor_s_1d", "DftiCreateDescriptor_s_md", "DftiCreateDescriptor_d_1d",
                     "DftiCreateDescriptor_d_md", "DftiSetValue", "DftiCommitDescriptor", "DftiComputeForward",
                     "DftiComputeBackward", "DftiFreeDescriptor"):
            getattr(library, name).restype = ctypes.c_long
        library.DftiErrorMessage.restype = ctypes.c_char_p
    except (OSError, AttributeError):
        return None
    return library


@functools.lru_cache(maxsize=None)
def _array_of_longs(length: int) -> Any:
    return ctypes.c_long * length  # kept: without a user, ctypes makes a new type each time, in a cycle


def _longs(*values: int) -> Any:
    return _array_of_longs(len(values))(*values)


class Transform:
    """One local transform of arrays of fixed layout. For one thread at a time."""

    def __init__(self, library: Any, call: Call, _careful: bool) -> None:
        self._library, self._in_place = library, call.in_place
        source, target = call.source, call.target
        (count, source_step, target_step), outer = _batches(call)
        single = source.dtype in (torch.float32, torch.complex64)
        self._compute = library.DftiComputeBackward if call.inverse else library.DftiComputeForward
        self._handle = ctypes.c_void_p()
        sizes = [call.lengths[axis] for axis in call.axes]
        create = getattr(library, f"DftiCreateDescriptor_{'s' if single else 'd'}_{'1d' if len(sizes) == 1 else 'md'}")
        domain = ctypes.c_int(_COMPLEX if call.kind == "C2C" else _REAL)
        given = [ctypes.c_long(sizes[0])] if len(sizes) == 1 else [ctypes.c_long(len(sizes)), _longs(*sizes)]
        self._check(create(ctypes.byref(self._handle), domain, *given))
        weakref.finalize(self, library.DftiFreeDescriptor, ctypes.byref(self._handle))
        self._set(_PLACEMENT, _INPLACE if self._in_place else _NOT_INPLACE)
        if call.kind != "C2C":
            self._set(_CONJUGATE_EVEN_STORAGE, _COMPLEX_COMPLEX)
        self._strides(_INPUT_STRIDES, [source.strides[axis] for axis in call.axes])
        self._strides(_OUTPUT_STRIDES, [target.strides[axis] for axis in call.axes])
        self._set(_NUMBER_OF_TRANSFORMS, count)
        self._set(_INPUT_DISTANCE, source_step)
        self._set(_OUTPUT_DISTANCE, target_step)
        self._set(_BACKWARD_SCALE if call.inverse else _FORWARD_SCALE, call.factor)
        self._check(library.DftiCommitDescriptor(self._handle))
        # Of each call: its begin in both arrays, in bytes
        self._begins = [[sum(place * array.strides[dim] for place, dim in zip(where, outer)) * array.item
                         for array in (source, target)]
                        for where in itertools.product(*(range(source.shape[dim]) for dim in outer))]

    def run(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Transforms ``source`` into ``target``, which is the same in place."""
        for here, there in self._begins:
            begin = ctypes.c_void_p(source.data_ptr() + here)
            if self._in_place:
                self._check(self._compute(self._handle, begin))
            else:
                self._check(self._compute(self._handle, begin, ctypes.c_void_p(target.data_ptr() + there)))
        return target

    def _set(self, parameter: int, value: float) -> None:
        # The value is a C vararg: a double for a scale, a long otherwise.
        given = ctypes.c_double(value) if parameter in _SCALES else ctypes.c_long(int(value))
        self._check(self._library.DftiSetValue(self._handle, ctypes.c_int(parameter), given))

    def _strides(self, parameter: int, strides: list[int]) -> None:
        self._check(self._library.DftiSetValue(self._handle, ctypes.c_int(parameter), _longs(0, *strides)))

    def _check(self, status: int) -> None:
        if status != 0:
            text = self._library.DftiErrorMessage(ctypes.c_long(status)) or b""
            raise RuntimeError(f"MKL refused a local transform: {text.decode(errors='replace')} (status {status}); "
                               "SHARDWIRE_FFT_ENGINE=torch does without it")


def can(call: Call) -> bool:
    """Whether Transform takes the call: few enough calls, at most seven axes, and no zero strides."""
    source = call.source
    if len(call.axes) > 7 or any(extent > 1 and stride == 0 for extent, stride in zip(source.shape, source.strides)):
        return False
    _, outer = _batches(call)
    return math.prod(source.shape[dim] for dim in outer) <= _MOST_CALLS


def _batches(call: Call) -> tuple[tuple[int, int, int], list[int]]:
    """The batch inside one call, (count, step in the source, step in the target), and the dimensions outside of the
    call."""
    # Neighbouring dimensions in memory with one common stride in both arrays.
    runs: list[tuple[int, int, int, list[int]]] = []
    for dim in call.batches:
        count, step, target_step = call.source.shape[dim], call.source.strides[dim], call.target.strides[dim]
        if count == 1:
            continue
        if runs and runs[-1][1] == step * count and runs[-1][2] == target_step * count:
            runs[-1] = (runs[-1][0] * count, step, target_step, [*runs[-1][3], dim])
        else:
            runs.append((count, step, target_step, [dim]))
    if not runs:
        return (1, 0, 0), []
    best = max(range(len(runs)), key=lambda index: runs[index][0])
    outer = [dim for index, run in enumerate(runs) if index != best for dim in run[3]]
    return runs[best][:3], outer
