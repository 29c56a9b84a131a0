"""Sizes of memory. NVSHMEM4Py's ``nvshmem.core.utils``."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from ...plain.tensor_bytes import item_bytes

# NVSHMEM's names of types.
_NBYTES = {"half": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "float": 4, "double": 8, "char": 1, "schar": 1, "short": 2,
           "int": 4, "long": 8, "longlong": 8, "ulonglong": 8, "ptrdiff": 8, "size": 8, "int8": 1, "int16": 2,
           "int32": 4, "int64": 8, "int32_t": 4, "int64_t": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
           "uint32_t": 4, "uint64_t": 8}


def get_size(shape: int | Sequence[int], dtype: Any) -> int:
    """The bytes of an array of this shape. dtype: torch's, numpy's, or a name: "bfloat16", or one that numpy knows, so
    "float" has 8 bytes."""
    if isinstance(dtype, torch.dtype):
        nbytes = item_bytes(dtype)
    elif isinstance(dtype, str) and dtype == "bfloat16":
        nbytes = 2
    else:
        import numpy
        nbytes = numpy.dtype(dtype).itemsize
    extents = map(operator.index, shape) if isinstance(shape, Sequence) else (operator.index(shape),)
    return math.prod(extents) * nbytes


def dtype_nbytes(dtype: str) -> int:
    """The bytes of one element of a type with one of NVSHMEM's names: "float", "int64", ... ValueError for another
    name."""
    if dtype not in _NBYTES:
        raise ValueError(f"dtype is {dtype!r}; give one of {', '.join(sorted(_NBYTES))}")
    return _NBYTES[dtype]
