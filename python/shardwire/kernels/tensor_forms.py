"""The tensors of a kernel: names, and the required form of each tensor. Local to one rank."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler.layout import kind_of
from ..plain.tensor_bytes import is_within_reach, item_bytes


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """NKIPy's facts of one tensor. size: in bytes. dtype: the name, without "torch."."""

    size: int
    dtype: str
    shape: list[int]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form that a kernel requires of one tensor. device: "cpu", "cuda", ...; the caller chooses among several
    devices of a kind."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    strides: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorForm:
        return cls(name, tuple(tensor.shape), str(tensor.dtype), tensor.device.type, tuple(tensor.stride()))

    @classmethod
    def from_list(cls, fields: Sequence[Any]) -> TensorForm:
        name, shape, dtype, device, strides = fields
        return cls(str(name), tuple(shape), str(dtype), str(device), tuple(strides))

    def as_list(self) -> list[Any]:
        return [self.name, list(self.shape), self.dtype, self.device, list(self.strides)]

    def metadata(self) -> TensorMetadata:
        name = self.dtype.removeprefix("torch.")
        return TensorMetadata(math.prod(self.shape) * item_bytes(getattr(torch, name)), name, list(self.shape))

    def check(self, tensor: Any, where: str, with_strides: bool) -> None:
        """TypeError or ValueError naming the argument, the given form and the required form."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{where} is {kind_of(tensor)}; give a torch.Tensor")
        if tuple(tensor.shape) != self.shape:
            raise ValueError(f"{where} has shape {list(tensor.shape)}, the kernel was compiled for {list(self.shape)}; "
                             "compile another for other shapes")
        if str(tensor.dtype) != self.dtype:
            raise TypeError(
                f"{where} is {tensor.dtype}, the kernel was compiled for {self.dtype}; convert it with .to()")
        if tensor.device.type != self.device:
            raise ValueError(f"{where} lies on {tensor.device}, the kernel was compiled for {self.device}; move it "
                             "with .to()")
        if with_strides and not self._lies_alike(tensor):
            raise ValueError(f"{where} has strides {list(tensor.stride())}, the kernel was compiled for "
                             f"{list(self.strides)}; give .contiguous() tensors to both, or compile with a tensor of "
                             "these strides")
        if with_strides and (tensor.is_conj() or tensor.is_neg()):
            raise ValueError(f"{where} is a lazily conjugated or negated view, and compiled code reads the memory as "
                             "it is; call resolve_conj() and resolve_neg() first")

    def _lies_alike(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() == 0 or all(size == 1 or found == wanted
                                          for size, found, wanted in zip(self.shape, tensor.stride(), self.strides))


def forms_of_arguments(kernel: Any, args: Sequence[Any]) -> list[TensorForm]:
    """The forms of the example tensors ``args``, with the names of the kernel's parameters.

    TypeError where the kernel cannot be called with so many tensors, or where an argument is no dense tensor.
    """
    names = _names(kernel, len(args))
    for name, value in zip(names, args):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"argument {name!r} is {kind_of(value)}; a kernel takes tensors: bind what is constant "
                            "with functools.partial")
        if value.layout is not torch.strided or value.is_quantized:
            raise TypeError(f"argument {name!r} is a {value.layout} "
                            f"tensor{' and quantised' if value.is_quantized else ''}; a kernel takes dense tensors")
    return [TensorForm.of(name, value) for name, value in zip(names, args)]


def in_order(kernel: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Sequence[Any]:
    """The arguments by position, in the order of the kernel's parameters. TypeError for a name that the kernel lacks,
    and for one that can only be given by keyword."""
    if not keywords:
        return args
    function = kernel.forward if isinstance(kernel, torch.nn.Module) else kernel
    try:
        bound = inspect.signature(function).bind(*args, **keywords)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the kernel cannot be called with {', '.join(keywords)}: {error}") from None
    if bound.kwargs:
        raise TypeError(f"the kernel takes {', '.join(bound.kwargs)} by keyword only; a kernel takes tensors by "
                        "position")
    return bound.args


def _names(kernel: Any, count: int) -> list[str]:
    function = kernel.forward if isinstance(kernel, torch.nn.Module) else kernel
    try:
        bound = inspect.signature(function).bind(*range(count))
    except TypeError as error:
        raise TypeError(f"the kernel cannot be called with {count} tensors: {error}") from None
    except ValueError:  # a builtin without a signature
        return [f"input{index}" for index in range(count)]
    names: list[str] = []
    for name, given in bound.arguments.items():
        names += [f"{name}{index}" for index in range(len(given))] if isinstance(given, tuple) else [name]
    return names


def by_name(given: Any, forms: Sequence[TensorForm], label: str) -> list[Any]:
    """The values of the dict ``given`` in the order of ``forms``. Each name must be there, and no other."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{label} is {kind_of(given)}; give a dict of tensors by name: {_list_of(forms)}")
    known = {form.name for form in forms}
    for name in given:
        if name not in known:
            raise ValueError(f"{label} has the name {kind_of(name)}, which the kernel does not; it has "
                             f"{_list_of(forms)}")
    for form in forms:
        if form.name not in given:
            raise ValueError(f"{label} lacks {form.name!r}; the kernel has {_list_of(forms)}")
    return [given[form.name] for form in forms]


def _list_of(forms: Sequence[TensorForm]) -> str:
    return ", ".join(repr(form.name) for form in forms) or "none"


def check_memory_apart(tensors: Sequence[torch.Tensor], forms: Sequence[TensorForm], changed: Sequence[int]) -> None:
    """ValueError where a tensor that the kernel changes shares memory with another argument: compiled code chooses its
    own order of reads and writes."""
    for index in changed:
        for other, tensor in enumerate(tensors):
            if other != index and is_within_reach(tensors[index], tensor):
                raise ValueError(f"the kernel changes {forms[index].name!r}, which shares memory with "
                                 f"{forms[other].name!r}; give it a tensor of its own")
