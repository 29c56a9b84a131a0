"""Teams: groups made from groups by a stride or a grid, with the collectives under plain names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _C
from .._integers import as_count, as_integer
from ..compiler.future import as_seconds
from ..errors import TimeoutError
from ..groups.lookup import IS_WRAPPED, store_by_group, wrap_backend, group_object, store_of
from ..groups.reductions import reduction_of
from .tensors import backend_of, empty, zeros


class Team:
    """Ranks that make symmetric tensors, meet in barriers and call collectives together: a shardwire group. Made by
    :func:`team`, :meth:`split_strided`, :meth:`split_2d`.

    The ranks are numbered from 0. ``group=`` of the other functions takes a team. Collectives are issued in one order
    on all ranks, block until their end, and fail as all operations of groups do (docs/errors.md).
    """

    def __init__(self, group: Any, backend: Any, store: Any, owns_group: bool = False) -> None:
        self._group = group
        self._symm_backend = backend
        self._store = store
        self._owns_group = owns_group
        self.rank: int = _C.rank(backend)
        self.size: int = _C.size(backend)
        self.job_ranks: tuple[int, ...] = tuple(_C.global_ranks(backend))
        """The job's rank of each member."""

    @property
    def group(self) -> Any:
        """The process group, for ``compile_op``, :class:`shardwire.Queue` and similar calls."""
        return self._group

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """:meth:`destroy`, after a :meth:`barrier` where the block raised nothing: so no rank ends a team that other
        ranks still use."""
        try:
            if kind is None and self._owns_group:
                self.barrier()
        finally:
            self.destroy()

    def __repr__(self) -> str:
        return f"Team(rank={self.rank}, size={self.size}, job_ranks={list(self.job_ranks)})"

    # ---- making teams

    def split_strided(self, start: int, stride: int, size: int) -> Team | None:
        """The team of ``size`` ranks, beginning with ``start``, ``stride`` apart. Collective over this team; None on
        ranks outside the new team.

        Raises ValueError on all ranks for ranks outside this team, MismatchError on all ranks where the arguments
        differ.
        """
        return self._split_strided(start, stride, size, None)

    def _split_strided(self, start: int, stride: int, size: int, error_of_member: Exception | None) -> Team | None:
        """error_of_member: why this rank cannot be in the new team; all ranks raise the error if the rank would be."""
        numbers = [number for each in (start, stride, size) if (number := as_integer(each)) is not None]
        error: Exception | None = None
        if len(numbers) < 3:
            error = ValueError(f"start, stride and size are {start!r}, {stride!r} and {size!r}; give integers")
        else:
            start, stride, size = numbers
            if size < 1 or stride == 0 or not all(0 <= rank < self.size
                                                  for rank in (start, start + (size - 1) * stride)):
                error = ValueError(f"start {start}, stride {stride} and size {size} do not fit a team of {self.size} "
                                   "ranks")
            elif self.rank in range(start, start + size * stride, stride):
                error = error_of_member
        _C.exchange(self._symm_backend, "split_strided", f"start {start}, stride {stride}, size {size}", error=error)
        return self._part([start + i * stride for i in range(size)], "")

    def split_2d(self, x_size: int) -> tuple[Team, Team]:
        """The team's ranks as a table with rows of ``x_size``: returns the team of this rank's row, and the team of
        this rank's column. Collective over this team.

        The last row may be shorter, and then the last columns are shorter too. Raises as :meth:`split_strided`.
        """
        return self._split_2d(x_size, None)

    def _split_2d(self, x_size: int, error: Exception | None) -> tuple[Team, Team]:
        length = as_count(x_size, 1)
        if length is None:
            error = ValueError(f"the rows' length is {x_size!r}; give an integer from 1 on")
        x_size = x_size if length is None else length
        _C.exchange(self._symm_backend, "split_2d", f"rows of {x_size}", error=error)
        row = self.rank // x_size * x_size
        across = self._part(list(range(row, min(row + x_size, self.size))), "x")
        down = self._part(list(range(self.rank % x_size, self.size, x_size)), "y")
        assert across is not None and down is not None
        return across, down

    def _part(self, ranks: list[int], name: str) -> Team | None:
        # After the agreement all ranks have issued equally many operations: a number that no other split of this group
        # has. Without the number two teams of the same ranks would meet under one name.
        number = self._symm_backend._get_sequence_number_for_group()
        return self._part_by(dist.PrefixStore(f"symm{number}{name}", self._store), ranks)

    def _meet(self, key: str, size: int, place: int, error: str = "") -> Team:
        """The team of ``size`` ranks that give the same key, which no other ranks use, each with its place. Collective
        over these ranks alone. error: why this rank cannot be in the team; all raise ValueError then."""
        store = dist.PrefixStore(key, self._store)
        if store.add(f"taken{place}", 1) != 1:
            raise ValueError(f"place {place} of the team is another rank's already")
        store.set(f"rank{place}", f"rank {self.rank}: {error}" if error else str(self.rank))
        answers: list[bytes] = []
        for index in range(size):
            try:
                answers.append(store.get(f"rank{index}"))
            except Exception as failure:
                raise TimeoutError(f"nobody came for place {index} of a team of {size}; rank {self.rank} has place "
                                   f"{place}: {failure}") from failure
        for answer in answers:
            if not answer.isdigit():
                raise ValueError(answer.decode())
        ranks = [int(answer) for answer in answers]
        if len(set(ranks)) != size:
            raise ValueError(f"ranks {ranks} came to one team: a rank has one place")
        team = self._part_by(store, ranks)
        assert team is not None
        return team

    def _part_by(self, store: Any, ranks: list[int]) -> Team | None:
        backend = self._symm_backend.split(store, ranks)
        if backend is None:
            return None
        group = wrap_backend(backend, store, ranks.index(self.rank), len(ranks)) if IS_WRAPPED else backend
        store_by_group[group] = store
        return Team(group, backend, store, owns_group=True)

    def translate(self, rank: int, other: Team) -> int | None:
        """The rank in ``other`` of this team's ``rank``; None for a rank outside ``other``."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a team of {self.size} ranks (0..{self.size - 1})")
        job_rank = self.job_ranks[rank]
        return other.job_ranks.index(job_rank) if job_rank in other.job_ranks else None

    def destroy(self) -> None:
        """Ends the team's group on this rank, unless the group was given to :func:`team`."""
        if self._owns_group:
            self._symm_backend.shutdown()

    # ---- memory

    def empty(self, *size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """:func:`shardwire.symm.empty` over this team."""
        return empty(*size, dtype=dtype, group=self)

    def zeros(self, *size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """:func:`shardwire.symm.zeros` over this team."""
        return zeros(*size, dtype=dtype, group=self)

    # ---- collectives

    def barrier(self, timeout: float | timedelta | None = None) -> None:
        """Waits until all ranks have called; earlier writes of each rank to its peers are then seen by all. A timeout
        fails the group and names the missing ranks.

        timeout: seconds; None: the group's. A value that is no time is a TypeError or ValueError on this rank alone:
        this rank has not come to the barrier then, and the other ranks wait for the right call."""
        _C.symm_barrier(self._symm_backend, as_seconds(timeout))

    def sync(self, timeout: float | timedelta | None = None) -> None:
        """As :meth:`barrier`: here a barrier completes the writes without further cost."""
        self.barrier(timeout)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Copies ``tensor`` of ``root`` into ``tensor`` of all ranks."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._symm_backend.broadcast([tensor], options).wait()

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        """In place: the reduction of all ranks' tensors, the same bits on each. op: sum, prod, min, max, mean, band,
        bor, bxor.
        """
        options = dist.AllreduceOptions()
        options.reduceOp = reduction_of(op)
        self._symm_backend.allreduce([tensor], options).wait()

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str = "sum") -> None:
        """This rank's equal part, along the first dimension, of the reduction of all ranks' ``tensor``."""
        options = dist.ReduceScatterOptions()
        options.reduceOp = reduction_of(op)
        self._symm_backend._reduce_scatter_base(out, tensor, options).wait()

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> None:
        """All ranks' ``tensor``, one behind the other, into ``out``. NVSHMEM's fcollect."""
        self._symm_backend._allgather_base(out, tensor).wait()

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor) -> None:
        """Cuts ``tensor`` into equal parts along the first dimension: part r goes to rank r, and ``out`` gets the parts
        of all ranks in rank order."""
        self._symm_backend.alltoall_base(out, tensor, [], []).wait()


def team(group: Any = None) -> Team:
    """The team of all ranks of ``group``: a shardwire group, its name, or None for the default group. Local. A Team is
    returned unchanged."""
    if isinstance(group, Team):
        return group
    backend = backend_of(group)
    found = group_object(group)
    return Team(found, backend, store_of(found))


def split_strided(parent: Any, start: int, stride: int, size: int) -> Team | None:
    """:meth:`Team.split_strided` of a group or team."""
    return team(parent).split_strided(start, stride, size)


def split_2d(parent: Any, x_size: int) -> tuple[Team, Team]:
    """:meth:`Team.split_2d` of a group or team."""
    return team(parent).split_2d(x_size)


def barrier(group: Any = None, timeout: float | timedelta | None = None) -> None:
    """:meth:`Team.barrier` of a group or team."""
    _C.symm_barrier(backend_of(group), as_seconds(timeout))
