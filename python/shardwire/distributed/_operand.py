"""Operands and results of the caller: torch tensors, numpy arrays and DTensors, with a plain local torch tensor behind
each."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .. import _C
from ..compiler.layout import kind_of, is_dtensor, local_tensor
from ..compiler.redistribute import dtensor_around
from ..errors import UnsupportedError
from ..plain.tensor_bytes import is_within_reach
from .distribution import Distribution, Placements


class Operand(NamedTuple):
    """``tensor``: the local data. ``package``: "torch", "numpy" or "DTensor". ``given``: the caller's object."""

    tensor: torch.Tensor
    package: str
    given: Any

    def facts(self) -> dict[str, Any]:
        """The description of the operand for the other ranks. pieces: the parts that a DTensor holds by its own
        placements; equal local shapes do not imply equal pieces. UnsupportedError for a Partial placement."""
        pieces = None
        if self.package == "DTensor":
            pieces = Placements(self.given.placements, self.given.device_mesh).share(
                dist.get_rank(), tuple(self.given.shape)).plain
        return {"shape": list(self.tensor.shape), "dtype": str(self.tensor.dtype), "package": self.package,
                "device": self.tensor.device.type, "pieces": pieces}

    def check_like(self, name: str, former: dict[str, Any]) -> None:
        """TypeError or ValueError where the operand does not have the facts of the former operand ``name``."""
        for key, found in self.facts().items():
            if found != former[key]:
                raise (TypeError if key in ("package", "dtype") else ValueError)(
                    f"the {key} of {name} was {former[key]}, the new one's is {found}")

    @property
    def requires_grad(self) -> bool:
        return bool(self.tensor.requires_grad or getattr(self.given, "requires_grad", False))

    @property
    def tracked(self) -> torch.Tensor:
        """The local tensor, which keeps the history of a DTensor's gradient."""
        local: torch.Tensor = (self.given.to_local() if self.package == "DTensor" and self.given.requires_grad
                               else self.tensor)
        return local


def wrap(value: Any, what: str = "operand") -> Operand:
    """``value`` as an Operand; the memory is shared. TypeError for a value that is no array, UnsupportedError for
    layouts that cannot be moved."""
    if is_dtensor(value):
        local = local_tensor(value)
        if value.device_mesh.get_coordinate() is None:  # torch's local tensor has one dimension there
            local = local.new_empty((0,) * value.dim())
        _C.require_memory(local, what)
        return Operand(local, "DTensor", value)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise UnsupportedError(f"{what} has the layout {value.layout}; give a dense tensor")
        _C.require_memory(value, what)
        return Operand(value.resolve_conj().resolve_neg(), "torch", value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        plain = value if value.flags.writeable and all(stride >= 0 for stride in value.strides) else value.copy("K")
        try:
            return Operand(torch.from_numpy(plain), "numpy", value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{what} is an ndarray that torch cannot read: {error}") from None
    raise TypeError(f"{what} is {kind_of(value)}; give the local part of the array, as a torch.Tensor, a numpy.ndarray "
                    "or a DTensor")


def unwrap(tensor: torch.Tensor, package: str, device_mesh: Any = None, target: Distribution | None = None,
           global_shape: Sequence[int] = (), num_ranks: int | None = None) -> Any:
    """A result in the package of its operand; a DTensor where ``target``, of ``num_ranks`` ranks, has placements for
    one."""
    if package == "numpy":
        return tensor.numpy()
    if package == "DTensor":
        assert isinstance(target, Placements)
        return dtensor_around(tensor, device_mesh, target.layout(global_shape, num_ranks))
    return tensor


def order_of(tensor: torch.Tensor) -> str:
    """Returns "F" for a tensor in Fortran order but not in C order, else "C"."""
    return ("F" if not tensor.is_contiguous() and tensor.permute(*range(tensor.dim() - 1, -1, -1)).is_contiguous()
            else "C")


def read_out(out: Any, operand: Operand) -> Operand:
    """The tensor for a result. TypeError or ValueError where a result cannot be written to the tensor."""
    target = wrap(out, "out")
    if target.package != operand.package:
        raise TypeError(f"out is of {target.package}, the operand of {operand.package}; give both of one package")
    tensor = target.tensor
    if tensor.requires_grad:
        raise ValueError("out requires grad; a result with a gradient cannot be written into a given tensor")
    check_writable(target, "out")
    check_apart(target, operand)
    return target


def check_apart(out: Operand, operand: Operand) -> None:
    """ValueError where a result in ``out`` would overwrite the operand: the move itself refuses on one rank alone."""
    if is_within_reach(out.tensor, operand.tensor):
        raise ValueError("out shares the operand's memory; give another tensor")


def check_writable(operand: Operand, what: str, instead: str = "") -> None:
    """ValueError where a result cannot be written to the caller's own memory. instead: another remedy, as text."""
    tensor, given = operand.tensor, operand.given
    if not tensor.numel():  # the address and the strides of an empty array say nothing
        return
    if operand.package == "numpy" and tensor.data_ptr() != given.ctypes.data:
        raise ValueError(f"{what} is read-only, or has negative strides; give a writable array{instead}")
    given = local_tensor(given) if operand.package == "DTensor" else given
    if isinstance(given, torch.Tensor) and (given.is_conj() or given.is_neg()):
        raise ValueError(f"{what} is a lazily conjugated or negated view, into which nothing can be written; "
                         f"give the tensor under the view, or a new tensor{instead}")
    if _C.overlaps_itself(tensor):
        raise ValueError(f"{what} has elements that share memory, as in an expanded tensor; give a tensor of "
                         f"its own{instead}")
