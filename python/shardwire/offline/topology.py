"""Hosts and links: which ranks share a host, the bytes over each link, and so the least time of an operation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler.layout import kind_of

_KEYS = ("ranks_per_host", "hosts", "within_host_GB_per_s", "between_hosts_GB_per_s", "links_per_host", "latency_us",
         "copy_GB_per_s", "reduce_GB_per_s")
# Bytes of addends that one rank combines in a second, where a topology has no rate: a sum of two float32 on one core of
# the machine of docs/benchmarks.md (What was learned), `./run bench`, 2 x 33.5 MB in 4.07 ms. This is the memory's
# rate rather than the core's.
REDUCE_RATE = 16.5e9


@dataclass(frozen=True, slots=True)
class Topology:
    """hosts: the host's number of each rank, from 0 without gaps. Rates are in bytes per second and direction:
    ``within`` of one rank to and from all other ranks of its host together, ``link`` of one of ``links_per_host``
    network links, ``copy`` of a rank from its own memory to its own, ``reduce`` of the addends that a rank combines.
    The ranks of a host take the host's links in turn. latency: seconds, once per operation. A rate of None costs no
    time."""

    hosts: tuple[int, ...]
    within: float | None = None
    link: float | None = None
    links_per_host: int = 1
    latency: float = 0.0
    copy: float | None = None
    reduce: float | None = None

    @property
    def num_hosts(self) -> int:
        return max(self.hosts) + 1

    def links(self) -> list[int]:
        """The number of each rank's link; the links of host h begin at h * links_per_host."""
        seen: dict[int, int] = {}
        links = []
        for host in self.hosts:
            turn = seen.get(host, 0)
            seen[host] = turn + 1
            links.append(host * self.links_per_host + turn % self.links_per_host)
        return links


def read_topology(given: Any, world_size: int) -> Topology:
    """A Topology from a Topology, from a dict or a JSON file of ``_KEYS``, or from None: one host, and no known
    rates."""
    if isinstance(given, Topology):
        topology = given
    elif given is None:
        topology = Topology((0,) * world_size)
    elif isinstance(given, Mapping):
        topology = _from_dict(given, world_size, "topology")
    elif isinstance(given, (str, os.PathLike)):
        found = read_object(given, "a topology", _KEYS)
        topology = _from_dict(found, world_size, os.fspath(given))
    else:
        raise TypeError(f"topology is {kind_of(given)}; give a Topology, a dict, the path of a JSON file, or None")
    if len(topology.hosts) != world_size:
        raise ValueError(f"topology has the hosts of {len(topology.hosts)} ranks, there are {world_size}")
    if topology.links_per_host < 1 or set(topology.hosts) != set(range(topology.num_hosts)):
        raise ValueError("topology: hosts are numbered from 0 without gaps, and each has at least one link")
    return topology


def read_object(path: str | os.PathLike[str], what: str, keys: Iterable[str]) -> dict[str, Any]:
    """The object in a JSON file. ``what``, a name for the object, and the allowed keys are for messages. ValueError
    when there is no such object."""
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{os.fspath(path)} holds {kind_of(found)}; {what} is an object with {', '.join(keys)}")
    return found


def _from_dict(given: Mapping[str, Any], world_size: int, where: str) -> Topology:
    for name in given:
        if name not in _KEYS:
            raise ValueError(f"{where} has the unknown key {kind_of(name)}; a topology has {', '.join(_KEYS)}")
    if "hosts" in given and "ranks_per_host" in given:
        raise ValueError(f"{where} has hosts and ranks_per_host; give one")
    hosts = given.get("hosts")
    if hosts is None:
        each = _count(given.get("ranks_per_host", world_size), f"{where}: ranks_per_host")
        hosts = [rank // each for rank in range(world_size)]
    if not isinstance(hosts, Sequence) or not all(isinstance(host, int) and not isinstance(host, bool) and host >= 0
                                                  for host in hosts):
        raise TypeError(f"{where}: hosts must be a list of host numbers, one per rank")
    rates = [_number(given.get(name), f"{where}: {name}", 1e9)
             for name in ("within_host_GB_per_s", "between_hosts_GB_per_s", "copy_GB_per_s")]
    reduce = _number(given.get("reduce_GB_per_s"), f"{where}: reduce_GB_per_s", 1e9)
    if "reduce_GB_per_s" not in given and any(rates):
        reduce = REDUCE_RATE
    latency = _number(given.get("latency_us", 0), f"{where}: latency_us", 1e-6, zero=True)
    return Topology(tuple(hosts), rates[0], rates[1],
                    _count(given.get("links_per_host", 1), f"{where}: links_per_host"), latency or 0.0, rates[2],
                    reduce)


def _count(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} is {kind_of(value)}; give a positive int")
    return value


def _number(value: Any, what: str, unit: float, zero: bool = False) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > 0 or zero and value == 0):
        raise ValueError(f"{what} is {kind_of(value)}; give a positive number")
    return value * unit


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes over each resource of one kind ("rank to its host", "link out", ...), and the rate of one resource in bytes
    per second, None where the rate is not known."""

    what: str
    bytes_of: tuple[int, ...]
    rate: float | None

    @property
    def most(self) -> int:
        return max(self.bytes_of, default=0)

    @property
    def mean(self) -> float:
        """The mean over resources that carry any bytes."""
        used = [count for count in self.bytes_of if count]
        return sum(used) / len(used) if used else 0.0

    @property
    def balance(self) -> float:
        """The most over the mean: 1.0 where all used resources carry the same."""
        return self.most / self.mean if self.mean else 1.0

    @property
    def seconds(self) -> float | None:
        return None if self.rate is None else self.most / self.rate


def loads_of(edges: torch.Tensor, topology: Topology, local: Sequence[int], combined: Sequence[int]) -> list[Load]:
    """The load of each rank and link. edges: rows of source, destination, bytes, pieces. local: bytes that each rank
    copies from its own inputs. combined: bytes of addends that each rank reduces."""
    world = len(topology.hosts)
    source, destination, count = edges[:, 0], edges[:, 1], edges[:, 2]
    hosts, links = torch.tensor(topology.hosts, device="cpu"), torch.tensor(topology.links(), device="cpu")
    apart = source != destination
    same = apart & (hosts[source] == hosts[destination])
    across = apart & ~same

    def summed(where: torch.Tensor, which: torch.Tensor, size: int) -> tuple[int, ...]:
        return tuple(
            torch.zeros(size, dtype=torch.int64, device="cpu").index_add_(0, which[where], count[where]).tolist())
    num_links = topology.num_hosts * topology.links_per_host
    loads = [Load("rank to its own host", summed(same, source, world), topology.within),
             Load("rank from its own host", summed(same, destination, world), topology.within)]
    if topology.num_hosts > 1:
        loads += [Load("link out of a host", summed(across, links[source], num_links), topology.link),
                  Load("link into a host", summed(across, links[destination], num_links), topology.link)]
    loads.append(Load("copy within a rank", tuple(local), topology.copy))
    return [*loads, Load("reduction of a rank", tuple(combined), topology.reduce)] if any(combined) else loads
