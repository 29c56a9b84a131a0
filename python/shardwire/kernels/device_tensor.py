"""DeviceTensor: a tensor with a name for a kernel's inputs and outputs, by NKIPy's names. The device is the CPU."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor  # in the class `torch` and `numpy` are methods

from .._integers import as_integer
from ..plain.tensor_bytes import item_bytes

if TYPE_CHECKING:
    from numpy import ndarray


class DeviceTensor:
    """A tensor in memory of its own: :meth:`from_torch`, :meth:`from_numpy`, :meth:`torch`, :meth:`numpy` and the
    writes copy.

    tensor_ref: the bytes, a contiguous CPU tensor of the same number of bytes or more; shared, not copied. dtype:
        numpy's, or torch's, which stays where numpy has none (bfloat16 without ml_dtypes).
    """

    def __init__(self, tensor_ref: Tensor, shape: int | Sequence[int], dtype: Any,
                 name: str | None = None) -> None:
        kind = _torch_dtype(dtype)
        self.tensor_ref = tensor_ref
        extents: Any = shape if as_integer(shape) is None else (shape,)
        self.shape: tuple[int, ...] = tuple(map(operator.index, extents))
        self.dtype = _numpy_dtype(kind)
        self.name = name
        size = math.prod(self.shape) * item_bytes(kind)
        flat = tensor_ref.detach().view(-1).view(torch.uint8)
        if flat.numel() < size:
            raise ValueError(f"tensor_ref has {flat.numel()} bytes; shape {list(self.shape)} of {kind} takes {size}")
        self._view = flat[:size].view(kind).view(self.shape)

    @classmethod
    def from_torch(cls, tensor: Tensor, name: str | None = None, core_id: int = 0) -> DeviceTensor:
        """A copy of a tensor of any device and strides. core_id is not used: all kernels run on the host's cores."""
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())
        return cls(made, tuple(made.shape), made.dtype, name)

    @classmethod
    def from_numpy(cls, array: ndarray[Any, Any], name: str | None = None, core_id: int = 0) -> DeviceTensor:
        """A copy of an array. core_id is not used."""
        return cls.from_torch(_of_array(array), name)

    def torch(self) -> Tensor:
        """A copy, as a tensor."""
        return self._view.clone()

    def numpy(self) -> ndarray[Any, Any]:
        """A copy, as an array. TypeError for a dtype that numpy lacks."""
        if isinstance(self.dtype, torch.dtype):
            raise TypeError(f"numpy has no dtype for {self.dtype}; install ml_dtypes, or call torch()")
        flat = self._view.clone().view(-1).view(torch.uint8).numpy()
        return flat.view(self.dtype).reshape(self.shape)

    def write_from_torch(self, tensor: Tensor) -> None:
        """Copies the tensor's bytes here. ValueError where the numbers of bytes differ."""
        given = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        own = self._view.view(-1).view(torch.uint8)
        if given.numel() != own.numel():
            raise ValueError(f"the source has {given.numel()} bytes, this tensor {own.numel()}")
        own.copy_(given)

    def write_from_numpy(self, array: ndarray[Any, Any]) -> None:
        """:meth:`write_from_torch` of an array."""
        self.write_from_torch(_of_array(array))

    def __repr__(self) -> str:
        return f"DeviceTensor(shape={self.shape}, dtype={self.dtype}, name={self.name})"


def as_torch(value: Any) -> Any:
    """The tensor over the memory of a DeviceTensor or a numpy array; any other value as it is."""
    if isinstance(value, DeviceTensor):
        return value._view
    return _of_array(value) if type(value).__module__ == "numpy" and hasattr(value, "shape") else value


def check_written(value: Any, name: str) -> None:
    """ValueError for a numpy array that a kernel cannot write: for other arrays than these, as_torch() makes a copy."""
    flags = getattr(value, "flags", None)
    if flags is not None and not (flags.c_contiguous and flags.writeable):
        raise ValueError(f"{name} is an array that is {'not in C order' if flags.writeable else 'read-only'}, and the "
                         "kernel writes it; give an array in C order that may be written")


def all_as_torch(values: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return ({name: as_torch(value) for name, value in values.items()} if isinstance(values, Mapping) else values)


def _of_array(array: Any) -> torch.Tensor:
    import numpy
    if not isinstance(array, numpy.ndarray):
        array = numpy.asarray(array)
    if not array.dtype.isnative:
        raise TypeError(f"torch has no dtype for {array.dtype.newbyteorder('=')} in another byte order; give "
                        "array.astype(array.dtype.newbyteorder('='))")
    array = numpy.ascontiguousarray(array).reshape(array.shape)
    named = getattr(torch, array.dtype.name, None)
    if isinstance(named, torch.dtype):  # ml_dtypes' types too
        return torch.from_numpy(array.reshape(-1).view("uint8")).view(named).view(array.shape)
    raise TypeError(f"torch has no dtype for {array.dtype}")


def _torch_dtype(dtype: Any) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    import numpy
    found = getattr(torch, numpy.dtype(dtype).name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype for {dtype!r}")
    return found


def _numpy_dtype(dtype: torch.dtype) -> Any:
    import numpy
    name = str(dtype).removeprefix("torch.")
    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError, TypeError):
            return dtype
