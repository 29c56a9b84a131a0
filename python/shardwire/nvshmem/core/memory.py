"""Symmetric tensors and buffers. A buffer is a tensor of bytes."""

from __future__ import annotations

import bisect
import numbers
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ... import _C, symm
from ..._integers import as_count
from ...compiler.layout import kind_of
from ...plain.tensor_bytes import untyped
from ...symm.tensors import backend_of, make_tensor
from .all_pes import NvshmemError, NvshmemInvalid, job, world
from .team_table import Teams


class BufferTypes(IntEnum):
    """How a PE got a piece of symmetric memory."""

    NORMAL = 0  # made by tensor(), array() or buffer()
    PEER = 1
    MULTIMEM = 2
    EXTERNAL = 3  # registered


# The registered tensors by the address of their memory, as long as the program holds them.
_external: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


def _memory_of(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage: the same for all views, and for a tensor without elements too."""
    return int(untyped(tensor).data_ptr())


def _is_registered(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and _C.symm_place(tensor) is not None and _memory_of(tensor) in _external


class _Storages:
    """The storages of symmetric memory by address, which stay no longer for being listed here. Memory that comes back
    through DLPack has another storage, over the same bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[int, StorageWeakRef] = {}
        self._begins: list[int] = []

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Lists the tensor's storage, and returns the tensor."""
        with self._lock:
            self._found = {begin: storage for begin, storage in self._found.items() if not storage.expired()}
            self._found[_memory_of(tensor)] = StorageWeakRef(untyped(tensor))
            self._begins = sorted(self._found)
        return tensor

    def over(self, address: int) -> torch.Tensor | None:
        """The bytes of the whole storage with this address."""
        with self._lock:
            place = bisect.bisect_right(self._begins, address) - 1
            begin = self._begins[place] if place >= 0 else 0
            storage = torch.UntypedStorage._new_with_weak_ptr(self._found[begin].cdata) if begin else None
        if storage is None or address >= begin + storage.nbytes():
            return None
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)  # type: ignore[call-overload]


_storages = _Storages()


def as_tensor(value: Any) -> torch.Tensor:
    """The tensor over the memory of a numpy array, which is symmetric if the array is; any other value as it is."""
    if type(value).__module__ != "numpy":
        return value
    plain, owner = torch.from_numpy(value), value
    while type(owner).__module__ == "numpy":
        owner = owner.base
    if not isinstance(owner, torch.Tensor):
        return as_symmetric(plain)
    return _placed(plain, owner.as_strided((untyped(owner).nbytes() // owner.element_size(),), (1,), 0))


def _placed(plain: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``plain`` as a view of ``whole``, which has the memory of ``plain`` and all of its storage."""
    whole, size = whole.view(torch.uint8), plain.element_size()
    if plain.numel() == 0:
        return whole[:0].view(plain.dtype).as_strided(plain.shape, plain.stride())
    begin = plain.data_ptr() - whole.data_ptr()
    if begin % size:
        return plain
    return whole[:whole.numel() // size * size].view(plain.dtype).as_strided(plain.shape, plain.stride(), begin // size)


def as_moved(value: Any) -> torch.Tensor:
    """:func:`as_tensor` for calls that only move elements: unsigned integers that torch does not have (before 2.3)
    become signed integers of the same size."""
    if type(value).__module__ == "numpy" and value.dtype.kind == "u" and not hasattr(torch, str(value.dtype)):
        value = value.view(f"int{8 * value.itemsize}")
    return as_tensor(value)


def as_symmetric(tensor: Any) -> Any:
    """A tensor over symmetric memory that came through DLPack, as a symmetric tensor; any other value as it is."""
    if not isinstance(tensor, torch.Tensor) or _C.symm_place(tensor) is not None:
        return tensor
    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    found = _storages.over(tensor.data_ptr()) if is_plain else None
    return tensor if found is None else _placed(tensor, found)


def type_of(tensor: Any) -> BufferTypes:
    """The type of a piece of symmetric memory. NvshmemInvalid for other memory."""
    if isinstance(tensor, symm.MulticastTensor):
        return BufferTypes.MULTIMEM
    tensor = as_symmetric(as_tensor(tensor))
    place = _C.symm_place(tensor) if isinstance(tensor, torch.Tensor) else None
    if place is None:
        raise NvshmemInvalid("the tensor was not made by nvshmem.core")
    if place[1] != place[2]:
        return BufferTypes.PEER
    return BufferTypes.EXTERNAL if _is_registered(tensor) else BufferTypes.NORMAL


def make_symmetric(size: Sequence[Any], dtype: Any, team: symm.Team, error: str) -> torch.Tensor:
    """A tensor, which is listed. NvshmemInvalid on all PEs for wrong arguments, or an error, of any PE."""
    try:
        return _storages.add(make_tensor(size, dtype, team, None, False, error))
    except ValueError as failure:
        raise NvshmemInvalid(str(failure)) from None


def tensor(shape: Sequence[int], dtype: torch.dtype | None = torch.float32, release: bool = False, morder: str = "C",
           except_on_del: bool = True) -> torch.Tensor:
    """An uninitialised symmetric tensor over all PEs. Collective. morder "F": column-major strides.

    release and except_on_del are accepted and not used: an unused tensor is freed when no PE holds a reference any
    more, which is no error.
    """
    team = world()
    error = "" if morder in ("C", "F") else f"morder is {kind_of(morder)}; give 'C' or 'F'"
    made = make_symmetric((shape,), dtype, team, error)
    if morder == "C" or made.dim() < 2:
        return made
    order = tuple(range(made.dim() - 1, -1, -1))
    return made.view(tuple(reversed(made.shape))).permute(order)


def bytetensor(shape: Sequence[int], dtype: torch.dtype | None = torch.float32, release: bool = False,
               morder: str = "C", except_on_del: bool = True) -> torch.Tensor:
    """:func:`tensor` of uint8."""
    return tensor(shape, torch.uint8, release, morder, except_on_del)


def buffer(size: int, release: bool = False, except_on_del: bool = True) -> torch.Tensor:
    """``size`` bytes: a tensor of uint8. Collective. ``size`` may also be an integer of numpy, or a float without a
    fraction, as in NVSHMEM4Py."""
    if isinstance(size, (float, numbers.Integral)) and not isinstance(size, bool) and size % 1 == 0:
        size = int(size)
    return tensor((size,), torch.uint8)


def tensor_get_buffer(tensor: torch.Tensor) -> tuple[torch.Tensor, int, str]:
    """(the tensor as bytes, the number of bytes, the name of the tensor's dtype). The tensor must be contiguous."""
    type_of(tensor)
    raw = bytes_of(as_symmetric(tensor))
    return raw, raw.numel(), str(tensor.dtype)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as bytes. NvshmemInvalid for a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise NvshmemInvalid(f"the tensor has strides {tensor.stride()} and is not contiguous: give one that is")
    # A contiguous tensor of one element may have any stride, which view() would keep
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def get_peer_tensor(tensor: torch.Tensor, peer_pe: int | None = None) -> torch.Tensor:
    """:func:`shardwire.symm.get_peer_tensor`: views, offsets and strides are kept."""
    return _storages.add(symm.get_peer_tensor(as_symmetric(tensor), _pe(peer_pe)))


def get_peer_buffer(buffer: torch.Tensor, pe: int) -> torch.Tensor:
    """:func:`get_peer_tensor`."""
    return get_peer_tensor(buffer, pe)


def get_multicast_tensor(team: Any, tensor: torch.Tensor | None = None) -> symm.MulticastTensor:
    """``get_multicast_tensor(team, tensor)``, or as the seed document writes ``get_multicast_tensor(tensor)``:
    :func:`shardwire.symm.get_multicast_tensor`."""
    if tensor is None:
        return symm.get_multicast_tensor(as_symmetric(as_tensor(team)))
    return symm.get_multicast_tensor(Teams.team_of(team), as_symmetric(as_tensor(tensor)))


def get_multicast_buffer(team: Any, buffer: torch.Tensor) -> symm.MulticastTensor:
    """:func:`get_multicast_tensor`."""
    return get_multicast_tensor(team, buffer)


def register_external_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A symmetric tensor with the elements of ``tensor``, any contiguous CPU tensor that owns its memory. Collective:
    all PEs give one shape and dtype.

    The elements move: ``tensor`` and the result share the symmetric memory afterwards, and a change of one is a change
    of the other. Views and numpy arrays made over ``tensor`` before the call stay with the former memory, and are a
    reason to refuse: NvshmemInvalid on all PEs for a view, for a tensor with strides, and for memory that is registered
    or symmetric already.
    """
    error = ""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        error = "only a CPU tensor can be registered"
    elif symm.is_symmetric(as_symmetric(tensor)):
        error = "the tensor lies in symmetric memory already"
    elif (tensor._is_view() or not tensor.is_contiguous() or tensor.requires_grad
          or untyped(tensor).nbytes() != tensor.numel() * tensor.element_size()):
        error = "a tensor that is registered is contiguous, owns the whole of its memory and needs no gradient"
    try:
        made = make_tensor((tuple(getattr(tensor, "shape", ())),), getattr(tensor, "dtype", None), world(), None, False,
                           error)
    except ValueError as failure:
        raise NvshmemInvalid(str(failure)) from None
    _storages.add(made).copy_(tensor)
    tensor.set_(made)  # type: ignore[call-overload]
    _external[_memory_of(made)] = made
    world().barrier()  # every part has its elements
    return made


def unregister_external_tensor(tensor: torch.Tensor) -> None:
    """Ends what :func:`register_external_tensor` returned. Collective. The registered tensor keeps its elements, as an
    ordinary tensor. NvshmemError on all PEs where a PE gives another tensor; then nothing has ended."""
    team, tensor = world(), as_symmetric(tensor)
    try:
        if not _is_registered(tensor):
            _fail_free(team, "the tensor was not registered: give what register_external_tensor returned")
        symm.free(tensor, group=team)
    except ValueError as error:  # raised on all PEs
        raise NvshmemError(str(error)) from None
    _external.pop(_memory_of(tensor), None)


def _fail_free(team: symm.Team, text: str) -> NoReturn:
    """Raises ValueError on all PEs, in place of this PE's part in symm.free: the other PEs wait there."""
    _C.exchange(backend_of(team), "symmetric free", error=ValueError(text))
    raise AssertionError("the exchange of an error raises")


def register_external_buffer(buffer: torch.Tensor, preferred_address: Any = None) -> torch.Tensor:
    """:func:`register_external_tensor` of a tensor of bytes. preferred_address is a wish in NVSHMEM too: the addresses
    of the peers' parts differ here."""
    return register_external_tensor(buffer)


def unregister_external_buffer(buffer: torch.Tensor) -> None:
    """:func:`unregister_external_tensor`."""
    unregister_external_tensor(buffer)


def free_tensor(tensor: torch.Tensor | symm.MulticastTensor) -> None:
    """Frees a tensor made by :func:`tensor`. Collective over all PEs: all PEs free the same tensors in the same order.

    A peer's tensor or a multicast tensor owns nothing. The call only drops such a tensor, on this PE alone, as in
    NVSHMEM. A registered tensor ends by :func:`unregister_external_tensor`. Nothing is left to free after
    :func:`finalize`.
    """
    if job.world is None:
        return
    tensor = as_symmetric(tensor)
    # A peer tensor of this PE itself is the PE's own tensor: the document frees a list with all peer tensors, and so
    # the own tensor too.
    try:
        kind = type_of(tensor)
    except NvshmemInvalid:
        kind = BufferTypes.NORMAL  # symm.free raises on all PEs
    if kind in (BufferTypes.PEER, BufferTypes.MULTIMEM):
        return
    team = world()
    try:
        if kind == BufferTypes.EXTERNAL:
            _fail_free(team, "the tensor is registered: end it with unregister_external_tensor")
        symm.free(tensor, group=team)
    except ValueError as error:  # raised on all PEs
        raise NvshmemInvalid(str(error)) from None


def free(buffer: torch.Tensor) -> None:
    """:func:`free_tensor`."""
    free_tensor(buffer)


def _pe(pe: int | None) -> int:
    number = as_count(pe, 0)
    if number is None or number >= world().size:
        raise NvshmemInvalid(f"pe is {pe!r}; give one of 0 to {world().size - 1}")
    return number
