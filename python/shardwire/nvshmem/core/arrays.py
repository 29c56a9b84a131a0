"""Symmetric numpy arrays, by the names that NVSHMEM4Py has for CuPy's. The functions of this package that take tensors
take these arrays too."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import symm
from ..._integers import as_integer
from ...compiler.layout import kind_of
from .all_pes import NvshmemInvalid, world
from .memory import (as_moved, as_tensor, free_tensor, get_multicast_tensor, get_peer_tensor, make_symmetric,
                     tensor_get_buffer)

if TYPE_CHECKING:
    import numpy


def array(shape: int | Sequence[int], dtype: Any = "float32", release: bool = False, morder: str = "C",
          except_on_del: bool = True) -> numpy.ndarray[Any, Any]:
    """An uninitialised symmetric array over all PEs. Collective; as :func:`tensor`. dtype: numpy's, or torch's."""
    import numpy
    team = world()
    error = "" if morder in ("C", "F") else f"morder is {kind_of(morder)}; give 'C' or 'F'"
    kind: numpy.dtype[Any] = numpy.dtype("uint8")
    sizes: tuple[int, ...] = ()
    try:
        kind = numpy.dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
        extent = as_integer(shape)
        sizes = tuple(map(operator.index, shape)) if extent is None else (extent,)  # type: ignore[arg-type]
        if any(extent < 0 for extent in sizes):
            raise ValueError(f"shape {sizes} has a negative extent")
    except (TypeError, ValueError) as failure:  # the other PEs wait for this PE
        error = error or str(failure)
    made = make_symmetric(((math.prod(sizes) * kind.itemsize,),), torch.uint8, team, error)
    return made.numpy().view(kind).reshape(sizes, order=morder)  # type: ignore[call-overload]


def bytearray(shape: int | Sequence[int], dtype: Any = "float32", release: bool = False, device_id: int | None = None,
              morder: str = "C", except_on_del: bool = True) -> numpy.ndarray[Any, Any]:
    """:func:`array` of uint8. device_id is not used."""
    return array(shape, "uint8", release, morder, except_on_del)


def array_get_buffer(array: numpy.ndarray[Any, Any]) -> tuple[torch.Tensor, int, str]:
    """(the array as bytes, the number of bytes, the name of the array's dtype). The array must be contiguous, in C or
    Fortran order."""
    flat = array.reshape(-1, order="A")
    if flat.base is None or flat.size and flat.__array_interface__["data"] != array.__array_interface__["data"]:
        raise NvshmemInvalid("the array is not contiguous")
    raw, size, _ = tensor_get_buffer(as_tensor(flat.view("uint8")))
    return raw, size, str(array.dtype)


def get_peer_array(array: numpy.ndarray[Any, Any], peer_pe: int | None = None) -> numpy.ndarray[Any, Any]:
    """:func:`get_peer_tensor` of an array: views, offsets and strides are kept."""
    return get_peer_tensor(as_moved(array), peer_pe).numpy().view(array.dtype)


def get_multicast_array(team: Any, array: numpy.ndarray[Any, Any]) -> symm.MulticastTensor:
    """:func:`get_multicast_tensor` of an array."""
    return get_multicast_tensor(team, as_tensor(array))


def free_array(array: numpy.ndarray[Any, Any]) -> None:
    """:func:`free_tensor` of an array."""
    free_tensor(as_moved(array))
