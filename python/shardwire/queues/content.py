"""The description of an entry: a tensor's dtype and shape, or an object's head, in the bytes before the parts."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from .. import _C
from ..compiler.layout import kind_of
from ..plain import serialize
from ..plain.tensor_bytes import Broken, bytes_of, dtype_named, item_bytes, name_of, typed

_TENSOR, _OBJECT = 0, 1
_START = struct.Struct("<BB")
_SHAPE = struct.Struct("<B")
_MOST_DIMS, _MOST_ELEMENTS = 64, 1 << 58  # of a tensor of torch, without the extents of 0


def of_tensor(tensor: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Head and parts of a tensor; the tensor's own memory when contiguous and on the CPU."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a {type(tensor).__name__} is no tensor; put_object takes objects, and put takes both")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError("a queue takes dense tensors; take sparse, quantized and meta tensors apart first")
    _C.require_memory(tensor, "the tensor")
    dense = tensor.detach()
    if dense.device.type != "cpu" or dense.is_conj() or dense.is_neg():
        dense = dense.cpu().resolve_conj().resolve_neg()
    name = name_of(dense.dtype).encode()
    head = _START.pack(_TENSOR, len(name)) + name + _SHAPE.pack(dense.dim()) + struct.pack(
        f"<{dense.dim()}q", *dense.shape)
    return head, [bytes_of(dense)]


def of_object(value: Any, allow_pickle: bool) -> tuple[bytes, list[torch.Tensor]]:
    kind, head, parts = serialize.to_parts(value, allow_pickle)
    return _START.pack(_OBJECT, kind) + head, parts


def _check_out(out: Any) -> None:
    """Raises for an ``out`` into which no entry can be written: an entry that was taken would be lost."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out is {kind_of(out)}; give a torch.Tensor. The next entry is in the queue still")
    if out.layout != torch.strided or out.device.type == "meta":
        raise TypeError("out is sparse or on meta; give a dense tensor with memory. The next entry is in the queue "
                        "still")
    if _C.overlaps_itself(out):
        raise ValueError("out has elements that share memory, as in an expanded tensor; give a tensor of its "
                         "own. The next entry is in the queue still")
    _C.require_memory(out, "out")


class Content:
    """An entry as described by its head. ValueError for a head, or parts, that no putter wrote."""

    def __init__(self, head: bytes) -> None:
        self._is_object_wanted = False
        try:
            what, second = _START.unpack_from(head)
            self.is_tensor = what == _TENSOR
            if not self.is_tensor:
                self.kind, self.rest = second, head[_START.size:]
                return
            at = _START.size + second
            self.dtype = dtype_named(head[_START.size:at].decode())
            (dims,) = _SHAPE.unpack_from(head, at)
            self.shape = struct.unpack_from(f"<{dims}q", head, at + 1)
        except struct.error:
            raise Broken(f"the description of an entry ends after {len(head)} bytes") from None
        if (dims > _MOST_DIMS or min(self.shape, default=0) < 0
                or math.prod(max(1, extent) for extent in self.shape) > _MOST_ELEMENTS):
            raise Broken(f"an entry of the shape {list(self.shape)}")

    def _check_sizes(self, sizes: list[int]) -> None:
        if sizes != [math.prod(self.shape) * item_bytes(self.dtype)]:
            raise Broken(f"an entry {self.summary()} in {sum(sizes)} bytes")

    def check(self, wanted: str | None, out: torch.Tensor | None) -> None:
        """Raises when the getter cannot take the entry."""
        if wanted == "object" and self.is_tensor:
            if self.dtype != torch.uint8 or len(self.shape) != 1:
                raise self._is_no_object()
            self._is_object_wanted = True  # value() reads the bytes, if serialize wrote them
        if not self.is_tensor and (wanted == "tensor" or out is not None):
            raise TypeError("the next entry is an object; call get_object or get, without out=. The entry is in the "
                            "queue still")
        if out is None:
            return
        _check_out(out)
        if out.dtype != self.dtype or tuple(out.shape) != self.shape:
            raise ValueError(f"out is {name_of(out.dtype)}{list(out.shape)}, but the next entry is {self.summary()}; "
                             "it is in the queue still")

    def _is_no_object(self) -> TypeError:
        return TypeError(f"the next entry is a tensor ({self.summary()}); call get_tensor or get. The entry is in the "
                         "queue still")

    def summary(self) -> str:
        return f"{name_of(self.dtype)}{list(self.shape)}"

    def memory(self, sizes: list[int],
               out: torch.Tensor | None) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """The memory for the parts, and the tensor that the parts will make."""
        if not self.is_tensor:
            return [torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes], None
        self._check_sizes(sizes)
        direct = (out is not None and out.device.type == "cpu" and out.is_contiguous() and not out.is_conj()
                  and not out.is_neg())
        tensor = out.detach() if direct and out is not None else torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return [bytes_of(tensor)], tensor

    def value(self, parts: list[torch.Tensor], tensor: torch.Tensor | None, out: torch.Tensor | None,
              allow_pickle: bool) -> Any:
        """The getter's tensor or object. TypeError for a wanted object where the bytes of the tensor are none.
        `tensor`: of memory(), or None where `parts` are the queue's own, which the getter may keep."""
        if not self.is_tensor:
            return serialize.from_parts(self.kind, self.rest, parts, allow_pickle)
        if tensor is None:
            self._check_sizes([part.numel() for part in parts])
            tensor = typed(parts[0], self.dtype).reshape(self.shape)
        if self._is_object_wanted:
            try:
                return serialize.deserialize(tensor, allow_pickle=allow_pickle)
            except Broken:
                raise self._is_no_object() from None
        if out is None:
            return tensor
        if out.data_ptr() != tensor.data_ptr() or out.device != tensor.device:
            out.detach().copy_(tensor)
        return out
