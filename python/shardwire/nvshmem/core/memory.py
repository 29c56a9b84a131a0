"""Symmetric tensors and buffers. A buffer is a tensor of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import _C, symm
from ...symm.tensors import make_tensor
from .all_pes import NvshmemInvalid, world
from .team_table import Teams


def tensor(shape: Sequence[int], dtype: torch.dtype | None = torch.float32, release: bool = False, morder: str = "C",
           except_on_del: bool = True) -> torch.Tensor:
    """An uninitialised symmetric tensor over all PEs. Collective. morder "F": column-major strides.

    release and except_on_del are accepted and not used: an unused tensor is freed when no PE holds a reference any
    more, which is no error.
    """
    team = world()
    error = "" if morder in ("C", "F") else f"morder is {morder!r}; give 'C' or 'F'"
    made = make_tensor((shape,), dtype, team, None, False, error)  # the other PEs receive the error, too
    if morder == "C" or made.dim() < 2:
        return made
    order = tuple(range(made.dim() - 1, -1, -1))
    return made.view(tuple(reversed(made.shape))).permute(order)


def bytetensor(shape: Sequence[int], dtype: torch.dtype | None = torch.float32, release: bool = False,
               morder: str = "C", except_on_del: bool = True) -> torch.Tensor:
    """:func:`tensor` of uint8."""
    return tensor(shape, torch.uint8, release, morder, except_on_del)


def buffer(size: int, release: bool = False, except_on_del: bool = True) -> torch.Tensor:
    """``size`` bytes: a tensor of uint8. Collective."""
    return tensor((size,), torch.uint8)


def tensor_get_buffer(tensor: torch.Tensor) -> tuple[torch.Tensor, int, str]:
    """(the tensor as bytes, the number of bytes, the name of the tensor's dtype). The tensor must be contiguous."""
    if _C.symm_place(tensor) is None:
        raise NvshmemInvalid("the tensor was not made by nvshmem.core")
    return tensor.view(-1).view(torch.uint8), tensor.numel() * tensor.element_size(), str(tensor.dtype)


def get_peer_tensor(tensor: torch.Tensor, peer_pe: int | None = None) -> torch.Tensor:
    """:func:`shardwire.symm.get_peer_tensor`: views, offsets and strides are kept."""
    return symm.get_peer_tensor(tensor, _pe(peer_pe))


def get_peer_buffer(buffer: torch.Tensor, pe: int) -> torch.Tensor:
    """:func:`get_peer_tensor`."""
    return symm.get_peer_tensor(buffer, _pe(pe))


def get_multicast_tensor(*arguments: Any) -> symm.MulticastTensor:
    """``get_multicast_tensor(team, tensor)``, or as the seed document writes ``get_multicast_tensor(tensor)``:
    :func:`shardwire.symm.get_multicast_tensor`."""
    if len(arguments) == 2:
        return symm.get_multicast_tensor(Teams.team_of(arguments[0]), arguments[1])
    return symm.get_multicast_tensor(*arguments)


def get_multicast_buffer(team: Any, buffer: torch.Tensor) -> symm.MulticastTensor:
    """:func:`get_multicast_tensor`."""
    return get_multicast_tensor(team, buffer)


def free_tensor(tensor: torch.Tensor | symm.MulticastTensor) -> None:
    """Frees a tensor made by :func:`tensor`. Collective over all PEs: all PEs free the same tensors in the same order.

    A peer's tensor or a multicast tensor owns nothing. The call only drops such a tensor, on this PE alone, as in
    NVSHMEM.
    """
    if isinstance(tensor, symm.MulticastTensor):
        return
    place = _C.symm_place(tensor) if isinstance(tensor, torch.Tensor) else None
    # A peer tensor of this PE itself is the PE's own tensor: the document frees a list with all peer tensors, and so
    # the own tensor too.
    if place is None or place[1] == place[2]:
        try:
            symm.free(tensor, group=world())
        except ValueError as error:  # raised on all PEs
            raise NvshmemInvalid(str(error)) from None


def free(buffer: torch.Tensor) -> None:
    """:func:`free_tensor`."""
    free_tensor(buffer)


def _pe(pe: int | None) -> int:
    if pe is None or isinstance(pe, bool) or not isinstance(pe, int) or not 0 <= pe < world().size:
        raise NvshmemInvalid(f"pe is {pe!r}; give one of 0 to {world().size - 1}")
    return pe
