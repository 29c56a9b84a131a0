"""The groups of nvmath.distributed: small interfaces over mpi4py or torch.distributed, for :func:`initialize`.

A group's collectives serve for a meeting and for small objects; arrays travel over shardwire's transports.
"""

from __future__ import annotations

import functools
import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .._integers import as_count, as_integer
from ..compiler.layout import kind_of
from ..groups.timeouts import as_timeout
from ..groups.lookup import create_over_fresh_store, shardwire_behind
from ..groups.mpi import create_process_group_from_mpi, meet

if TYPE_CHECKING:
    from numpy import ndarray

__all__ = ["MPIProcessGroup", "ProcessGroup", "ReductionOp", "TorchProcessGroup"]
_T = TypeVar("_T")
_LONGEST = 1024  # bytes of the text by which ranks meet


class ReductionOp(IntEnum):
    SUM = 0
    MIN = 1
    MAX = 2


class ProcessGroup(ABC):
    """Ranks with three collectives. A class of the caller's own serves for :func:`initialize` too."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's number."""

    @property
    @abstractmethod
    def nranks(self) -> int:
        """The number of processes."""

    @abstractmethod
    def broadcast_buffer(self, array: ndarray[Any, Any], *, root: int = 0) -> None:
        """Copies the array of ``root`` into the arrays of all ranks."""

    @abstractmethod
    def allreduce_buffer(self, array: ndarray[Any, Any], *, op: ReductionOp) -> None:
        """Reduces the arrays of all ranks, in place."""

    @abstractmethod
    def allreduce_object(self, obj: _T, *, op: Callable[[_T, _T], _T]) -> _T:
        """Reduces the objects of all ranks; ``op`` makes one of two. Each rank returns the result."""


class MPIProcessGroup(ProcessGroup):
    """The ranks of an mpi4py communicator."""

    def __init__(self, mpi_comm: Any) -> None:
        self._comm = mpi_comm

    @property
    def rank(self) -> int:
        return self._comm.Get_rank()

    @property
    def nranks(self) -> int:
        return self._comm.Get_size()

    def broadcast_buffer(self, array: ndarray[Any, Any], *, root: int = 0) -> None:
        self._comm.Bcast(array, root=root)

    def allreduce_buffer(self, array: ndarray[Any, Any], *, op: ReductionOp) -> None:
        from mpi4py import MPI
        self._comm.Allreduce(MPI.IN_PLACE, array, {ReductionOp.SUM: MPI.SUM, ReductionOp.MIN: MPI.MIN,
                                                   ReductionOp.MAX: MPI.MAX}[op])

    def allreduce_object(self, obj: _T, *, op: Callable[[_T, _T], _T]) -> _T:
        return self._comm.allreduce(obj, op=op)


class TorchProcessGroup(ProcessGroup):
    """The ranks of a torch.distributed group of any backend.

    device_id: "cpu", or the number of the CUDA device with the tensors of a group of nccl. torch_process_group: None:
        the default group. logger: of Python's logging; None: the root's; gets the sizes of reduced objects at level
        DEBUG.
    """

    MIN_ALL_REDUCE_OBJ_BUFFER_SIZE = 128

    def __init__(self, *, device_id: Any, torch_process_group: Any = None, logger: Any = None) -> None:
        if device_id != "cpu" and as_integer(device_id) is None:
            raise ValueError(f"device_id is {kind_of(device_id)}; give a number or 'cpu'")
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialized: call init_process_group first")
        self._device_id, self.logger = device_id, logging.getLogger() if logger is None else logger
        self._group = c10d._get_default_group() if torch_process_group is None else torch_process_group
        is_nccl = dist.get_backend(torch_process_group) == "nccl"
        if is_nccl and device_id == "cpu":
            raise ValueError("a group of nccl takes no tensors of the CPU; give the number of the device")
        self._device = torch.device("cuda", device_id) if is_nccl else torch.device("cpu")
        self.allreduce_obj_buffer_size = 2048

    @property
    def device_id(self) -> Any:
        """The given number, or "cpu"."""
        return self._device_id

    @property
    def rank(self) -> int:
        return self._group.rank()

    @property
    def nranks(self) -> int:
        return self._group.size()

    @property
    def allreduce_obj_buffer_size(self) -> int:
        """The bytes that each rank offers for an object; a longer object makes the call send the longest size."""
        return self._buffer_bytes

    @allreduce_obj_buffer_size.setter
    def allreduce_obj_buffer_size(self, value: int) -> None:
        size = as_count(value, self.MIN_ALL_REDUCE_OBJ_BUFFER_SIZE)
        if size is None:
            raise ValueError(f"the size is {kind_of(value)}; give at least {self.MIN_ALL_REDUCE_OBJ_BUFFER_SIZE}")
        self._buffer_bytes = size

    def broadcast_buffer(self, array: ndarray[Any, Any], *, root: int = 0) -> None:
        tensor = torch.from_numpy(array).to(self._device)
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([tensor], options).wait()
        array[...] = tensor.cpu().numpy()

    def allreduce_buffer(self, array: ndarray[Any, Any], *, op: ReductionOp) -> None:
        tensor = torch.from_numpy(array).to(self._device)
        options = dist.AllreduceOptions()
        options.reduceOp = {ReductionOp.SUM: dist.ReduceOp.SUM, ReductionOp.MIN: dist.ReduceOp.MIN,
                            ReductionOp.MAX: dist.ReduceOp.MAX}[op]
        self._group.allreduce([tensor], options).wait()
        array[...] = tensor.cpu().numpy()

    def allreduce_object(self, obj: _T, *, op: Callable[[_T, _T], _T]) -> _T:
        """As :class:`ProcessGroup` says, in the order of the ranks, on each rank."""
        import numpy
        written = pickle.dumps(obj)
        longest = numpy.array([len(written)])
        self.allreduce_buffer(longest, op=ReductionOp.MAX)
        size = int(longest[0])
        if size > self._buffer_bytes:  # the same on all ranks
            self._buffer_bytes = size
        self.logger.debug("allreduce_object: %d bytes of this rank, %d of the longest", len(written), size)
        mine = torch.zeros(size, dtype=torch.uint8, device="cpu")
        mine[:len(written)] = torch.frombuffer(bytearray(written), dtype=torch.uint8)
        all_of_them = [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(self.nranks)]
        self._group.allgather([all_of_them], [mine.to(self._device)]).wait()
        return functools.reduce(op, [pickle.loads(each.cpu().numpy().tobytes()) for each in all_of_them])


def group_behind(given: ProcessGroup) -> tuple[Any, str]:
    """The shardwire group of a ProcessGroup's ranks, and whether it is this call's "own". Collective."""
    if isinstance(given, MPIProcessGroup):
        return create_process_group_from_mpi(given._comm), "own"
    if isinstance(given, TorchProcessGroup) and shardwire_behind(given._group) is not None:
        return given._group, ""
    import numpy

    def broadcast(sent: bytes) -> bytes:
        text = numpy.zeros(_LONGEST, dtype=numpy.uint8)
        cut = sent[:_LONGEST]
        text[:len(cut)] = numpy.frombuffer(cut, dtype=numpy.uint8)
        given.broadcast_buffer(text, root=0)
        return text.tobytes().rstrip(b"\0")

    rank, size = given.rank, given.nranks
    store = meet(broadcast, rank, size, as_timeout(None))
    return create_over_fresh_store(store, rank, size, None, None), "own"
