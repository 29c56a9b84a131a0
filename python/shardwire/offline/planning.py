"""plan: compile_op for any number of ranks, without the ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _C
from ..compiler.all_ranks import ARGUMENTS, check_overlap, lists_of_all
from ..compiler.compile_op import CustomOp, Dims, Items, plan_one_rank
from ..compiler.layout import kind_of
from ..compiler.plot import human_bytes, save_picture
from .topology import Load, Topology, loads_of, read_topology

_MOST_ROWS = 16  # rows of ranks in a text
_MOST_BLOCKS = 32  # blocks of ranks in a picture


def plan(world_size: int, shape: Dims | Mapping[str, Dims] | None = None,
         dtype: torch.dtype | Mapping[str, torch.dtype] | None = None, inputs: Items | None = None,
         outputs: Items | None = None, reduction: str | Mapping[str, str | None] | None = None, *,
         output_dtype: torch.dtype | Mapping[str, torch.dtype] | None = None,
         each_rank: Callable[[int], Mapping[str, Any]] | None = None, allow_gaps: bool = False,
         overlap: str | None = None, topology: Any = None, name: str | None = None) -> OfflinePlan:
    """Makes the plan of ``compile_op`` with these arguments in a group of ``world_size`` ranks. No group, no other
    process, no tensor's memory.

    shape, dtype, inputs, outputs, reduction, output_dtype, allow_gaps, overlap: as for ``compile_op``, the same on
        every rank: with :class:`Layout`, each rank's part follows from the rank's number.
    each_rank: a function from a rank to a dict of these arguments, for ranks that differ; arguments missing in the dict
        are as given here.
    topology: a :class:`Topology`, a dict, or the path of a JSON file: which ranks share a host, and how fast links are
        (docs/offline.md). None: one host.
    name: for texts and pictures.

    Every rank's plan is made, written to bytes and read again, checked, and compared with its peers' plans. Raises the
    errors that ``compile_op`` raises on all ranks: ValueError, TypeError, NotImplementedError, :class:`GapError`,
    naming rank, list and index.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size is {kind_of(world_size)}; give an int")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; give a positive one")
    check_overlap(overlap)
    known = read_topology(topology, world_size)
    given: dict[str, Any] = dict(zip(ARGUMENTS, (shape, dtype, inputs, outputs, reduction, output_dtype)))
    start = time.perf_counter()
    found = _C.survey(lists_of_all(world_size, given, each_rank), bool(allow_gaps), overlap or "last", name or "",
                      list(known.hosts))
    seconds = time.perf_counter() - start

    def op_of(rank: int) -> CustomOp:
        return plan_one_rank(rank, world_size, given, each_rank, bool(allow_gaps), overlap, name, known.hosts)
    return OfflinePlan(name or "", known, found, seconds, op_of)


class OfflinePlan:
    """The movement of an operation; made by :func:`plan`. All bytes are of one run.

    world_size; topology; tensors: (name, global shape, bytes) each; edges: an int64 tensor with rows of source rank,
    destination rank, bytes and pieces, own copies included; ranks: for each rank a dict of bytes_sent, bytes_received,
    bytes_local, bytes_combined (addends read by the rank's reductions), least_received, num_moves, num_sends,
    num_receives, plan_bytes (in memory) and encoded_bytes (of the rank's plan on a wire).

    planning_seconds: the time that the plans of all ranks took here.
    """

    def __init__(self, name: str, topology: Topology, found: Mapping[str, Any], seconds: float,
                 op_of: Callable[[int], CustomOp]) -> None:
        self.name, self.topology, self.planning_seconds = name, topology, seconds
        self.world_size = len(topology.hosts)
        self.tensors: list[tuple[str, tuple[int, ...], int]] = found["tensors"]
        self.edges: torch.Tensor = found["edges"]
        self.ranks: list[dict[str, int]] = [dict(zip(found["columns"], row)) for row in found["ranks"].tolist()]
        self._least_into_host: list[int] = found["least_into_host"]
        self.loads: list[Load] = loads_of(self.edges, topology, self._column("bytes_local"),
                                          self._column("bytes_combined"))
        self._op_of = op_of

    def op(self, rank: int) -> CustomOp:
        """One rank's op, without a group: the op describes itself, gives its plan as bytes, and runs in a group after
        :meth:`CustomOp.attach`. The op is planned anew from the arguments in their present state. ValueError for a
        number that is no rank."""
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise TypeError(f"rank is {kind_of(rank)}; give an int")
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank is {rank}, which is no rank of 0..{self.world_size - 1}")
        return self._op_of(rank)

    def _column(self, name: str) -> list[int]:
        return [rank[name] for rank in self.ranks]

    @property
    def bytes_between(self) -> int:
        """The sum of bytes that ranks send to other ranks."""
        return sum(self._column("bytes_received"))

    @property
    def least_between(self) -> int:
        """Bytes that any plan must bring to the ranks: elements that a rank wants and does not hold."""
        return sum(self._column("least_received"))

    @property
    def over_least(self) -> float:
        """bytes_between over least_between: 1.0 is the best. Larger where inputs are reduced, since every addend must
        be sent."""
        return self.bytes_between / self.least_between if self.least_between else 1.0

    @property
    def hosts(self) -> list[dict[str, int]]:
        """Per host: ranks, bytes_out, bytes_in, and least_in: elements, counted once, that ranks of the host want and
        none of these ranks holds. Where replicas share a host, bytes_in may be a multiple of least_in."""
        numbers = torch.tensor(self.topology.hosts, device="cpu")
        source, destination, count = numbers[self.edges[:, 0]], numbers[self.edges[:, 1]], self.edges[:, 2]
        across = source != destination
        sums = [torch.zeros(self.topology.num_hosts, dtype=torch.int64, device="cpu").index_add_(
            0, which[across], count[across]).tolist() for which in (source, destination)]
        return [{"ranks": self.topology.hosts.count(host), "bytes_out": sums[0][host], "bytes_in": sums[1][host],
                 "least_in": self._least_into_host[host]} for host in range(self.topology.num_hosts)]

    @property
    def seconds(self) -> float | None:
        """An estimate of one run: the time of the busiest rank or link at its full rate, and one latency. None where
        the topology has no rates. Addends are combined on arrival, so the time of a reduction is beside the time of
        links, not after. The estimate leaves out contention inside of switches."""
        known = [load.seconds for load in self.loads if load.seconds is not None]
        return max(known) + self.topology.latency if known else None

    @property
    def busiest(self) -> Load | None:
        """The resource that determines the estimate."""
        known = [(load.seconds, -index) for index, load in enumerate(self.loads) if load.seconds is not None]
        return self.loads[-max(known)[1]] if known else None

    def explain(self) -> str:
        """A text for people."""
        total = sum(count for _, _, count in self.tensors)
        lines = [(f"{self.name or 'plan'}: {self.world_size} ranks on {self.topology.num_hosts} hosts, "
                  f"{len(self.tensors)} tensors of {human_bytes(total)}"),
                 (f"between ranks {human_bytes(self.bytes_between)}, the least possible "
                  f"{human_bytes(self.least_between)} ({self.over_least:.2f}); within ranks "
                  f"{human_bytes(sum(self._column('bytes_local')))}"),
                 (f"planned and checked in {self.planning_seconds:.2f} s; the largest plan takes "
                  f"{human_bytes(max(self._column('plan_bytes')))} of memory, "
                  f"{human_bytes(max(self._column('encoded_bytes')))} on a wire")]
        lines += [f"{load.what}: at most {human_bytes(load.most)}, mean {human_bytes(load.mean)}, balance "
                  f"{load.balance:.2f}" + (f", {_time(load.seconds)}" if load.seconds is not None else "")
                  for load in self.loads if load.most]
        if self.seconds is not None and self.busiest is not None:
            lines.append(f"one run takes at least {_time(self.seconds)}; the busiest: {self.busiest.what}")
        return "\n".join([*lines, "", *self._rank_table(), *self._host_table()])

    def _rank_table(self) -> list[str]:
        rows = [f"{'rank':>6} {'sends':>10} {'receives':>10} {'least':>10} {'to':>6} {'from':>6}"]
        for number, rank in enumerate(self.ranks[:_MOST_ROWS]):
            sizes = [human_bytes(rank[column]) for column in ("bytes_sent", "bytes_received", "least_received")]
            rows.append(f"{number:>6} {sizes[0]:>10} {sizes[1]:>10} {sizes[2]:>10} {rank['num_sends']:>6} "
                        f"{rank['num_receives']:>6}")
        return rows + ([f"   ... and {self.world_size - _MOST_ROWS} more ranks"] if self.world_size > _MOST_ROWS
                       else [])

    def _host_table(self) -> list[str]:
        if self.topology.num_hosts == 1:
            return []
        rows = ["", f"{'host':>6} {'out':>10} {'in':>10} {'least in':>10}"]
        for number, host in enumerate(self.hosts[:_MOST_ROWS]):
            rows.append(f"{number:>6} {human_bytes(host['bytes_out']):>10} {human_bytes(host['bytes_in']):>10} "
                        f"{human_bytes(host['least_in']):>10}")
        return rows + ([f"   ... and {self.topology.num_hosts - _MOST_ROWS} more hosts"]
                       if self.topology.num_hosts > _MOST_ROWS else [])

    def traffic(self) -> dict[str, Any]:
        """As ``CustomOp.traffic()``: name, world_size, edges (dicts of src, dst, bytes, pieces), lower_bound_bytes."""
        edges = [dict(zip(("src", "dst", "bytes", "pieces"), row)) for row in self.edges.tolist()]
        return {"name": self.name, "world_size": self.world_size, "edges": edges,
                "lower_bound_bytes": self.least_between}

    def as_dict(self) -> dict[str, Any]:
        """All values for programs; ``save`` writes the dict as JSON."""
        return {"name": self.name, "world_size": self.world_size, "hosts": self.hosts,
                "host_of_rank": list(self.topology.hosts), "bytes_between": self.bytes_between,
                "least_between": self.least_between, "over_least": self.over_least,
                "planning_seconds": self.planning_seconds, "seconds": self.seconds,
                "busiest": None if self.busiest is None else self.busiest.what,
                "loads": [{"what": load.what, "most": load.most, "mean": load.mean, "balance": load.balance,
                           "seconds": load.seconds, "bytes": list(load.bytes_of)} for load in self.loads],
                "tensors": [{"name": name, "shape": list(shape), "bytes": count}
                            for name, shape, count in self.tensors], "ranks": self.ranks, "edges": self.edges.tolist()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`as_dict` as JSON. edges are lists of source, destination, bytes, pieces."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.as_dict(), file)

    def plot(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Draws the movement between ranks into ``path``: .svg, or .png (needs matplotlib). More than 32 ranks are
        drawn as hosts, and more than 32 hosts as blocks of ranks."""
        save_picture(self._drawn(), path, title)

    def _drawn(self) -> dict[str, Any]:
        if self.world_size <= _MOST_BLOCKS:
            return self.traffic()
        each = -(-self.world_size // _MOST_BLOCKS)
        if 1 < self.topology.num_hosts <= _MOST_BLOCKS:
            unit, block, name = "host", torch.tensor(self.topology.hosts, device="cpu"), self.name
        else:
            unit, block, name = ("block", torch.arange(self.world_size, device="cpu") // each,
                                 f"{self.name} (blocks of {each} ranks)".lstrip())
        size = int(block.max()) + 1
        between = torch.zeros(size * size, dtype=torch.int64, device="cpu").index_add_(
            0, block[self.edges[:, 0]] * size + block[self.edges[:, 1]], self.edges[:, 2]).tolist()
        edges = [{"src": place // size, "dst": place % size, "bytes": count, "pieces": 0}
                 for place, count in enumerate(between) if count]
        return {"name": name, "world_size": size, "edges": edges, "lower_bound_bytes": self.least_between, "unit": unit}

    def __repr__(self) -> str:
        return (f"<shardwire.OfflinePlan {self.name!r}: {self.world_size} ranks, {human_bytes(self.bytes_between)} "
                "between them>")


def _time(seconds: float | None) -> str:
    assert seconds is not None
    return (f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms" if seconds < 1
            else f"{seconds:.2f} s")
