"""Sizes of memory. NVSHMEM4Py's ``nvshmem.core.utils``."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from ...plain.tensor_bytes import item_bytes

# NVSHMEM's names of types. torch has its unsigned integers of more than 8 bits from 2.3 on.
_NAMES = {"half": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16", "float": "float32",
          "double": "float64", "char": "int8", "schar": "int8", "short": "int16", "int": "int32", "uint": "uint32",
          "long": "int64", "ulong": "uint64", "longlong": "int64", "ulonglong": "uint64", "ptrdiff": "int64",
          "size": "uint64", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "int32_t": "int32",
          "int64_t": "int64", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
          "uint32_t": "uint32", "uint64_t": "uint64"}
_NBYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
           "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}


def dtype_of_name(dtype: Any) -> torch.dtype | None:
    """torch's dtype for one of NVSHMEM's names, or for a dtype of torch or numpy, or the name of one. None for
    others."""
    name = str(dtype).removeprefix("torch.")
    found = getattr(torch, _NAMES.get(name, name), None)
    return found if isinstance(found, torch.dtype) else None


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
    if dtype not in _NAMES:
        raise ValueError(f"dtype is {dtype!r}; give one of {', '.join(sorted(_NAMES))}")
    return _NBYTES[_NAMES[dtype]]
