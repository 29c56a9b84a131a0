"""Brings the package of a request to this rank: compiled here, found, or received.

Without communication: trace, look in the cache, else compile and keep. SPMD: all ranks take every step together, and an
error of any rank is raised on all ranks:

1. the ranks compare their requests, and the versions and CPUs that decide which packages their machines can load;
2. rank 0 traces, and sends the key to all;
3. all ranks vote on whether they have the key's package. Where all have the package, nothing more is sent;
4. the lowest rank with the package sends the bytes to all; where no rank has the package, rank 0 compiles and sends;
5. all ranks load the package, and return together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from .. import _C, errors
from ..groups.lookup import shardwire_behind
from ..compiler.agree import Attempt, Meeting
from . import cache, machine
from .tensor_forms import TensorForm
from .identity import identity
from .ops_inside import check_op, describe_op
from .package import Package, decode
from .pattern import Pattern
from .tracing import Traced, trace

_LONGEST_SHOWN = 200


@dataclass(slots=True)
class Request:
    """The request of one rank. kernel: callable. folder: the folder of this rank's packages."""

    kernel: Any
    args: Sequence[torch.Tensor]
    forms: list[TensorForm]
    name: str
    settings: dict[str, Any]
    use_cached: bool
    folder: str
    identity_of: Any  # the kernel as given by the caller

    def trace(self, pattern: Pattern) -> Traced:
        return trace(self.kernel, self.args, self.forms, self.name, self.settings, pattern.cc, describe_group)

    def find(self, key: str) -> tuple[Package, str] | None:
        return cache.find(self.folder, key) if self.use_cached else None

    def keep(self, package: Package, unless_there: bool = False) -> None:
        cache.remember(package)
        if not (unless_there and cache.has_file(self.folder, package.key)):
            cache.store(self.folder, package)

    def described(self) -> dict[str, str]:
        """Values that must be equal on all ranks of one SPMD call."""
        about = {"the kernel's name": self.name,
                 **{f"the tensor {form.name!r}": f"{form.dtype}{list(form.shape)} on {form.device}, strides "
                                                 f"{list(form.strides)}" for form in self.forms},
                 **identity(self.identity_of), "additional_compiler_args": json.dumps(self.settings, sort_keys=True),
                 "use_cached_if_exists": str(self.use_cached)}
        about.update({f"this rank's {kind} device": ", ".join(machine.accelerator(kind))
                      for kind in {form.device for form in self.forms} - {"cpu"}})
        return {"the number of tensors": str(len(self.forms)), **about,
                **{f"this machine's {what}": value for what, value in machine.loads().items()}}


Load = Callable[[Package], Any]


def compile_here(request: Request, pattern: Pattern, load: Load) -> tuple[Package, str, Any]:
    """The package, its origin, and the result of ``load``. Nothing is sent to any rank."""
    traced = request.trace(pattern)
    found = request.find(traced.package.key)
    if found is not None:
        try:
            loaded = load(found[0])
            request.keep(found[0], unless_there=True)  # a package found in memory may be missing in this folder
            return *found, loaded
        except errors.KernelError:
            pass  # the package is intact, and yet torch cannot load the code: compile anew and replace the file
    package = traced.compile()
    loaded = load(package)
    request.keep(package)
    return package, "compiled", loaded


def compile_together(request: Request | None, pattern: Pattern, seconds: float | None, error: Exception | None,
                     load: Load) -> tuple[Package, str, Any]:
    """As compile_here, by all ranks of the group together. request: None where this rank's arguments were wrong;
    ``error`` is the reason."""
    meeting = Meeting(pattern.backend, "compile_and_load", seconds)
    described = b""
    with Attempt() as attempt:
        if request is not None:
            described = json.dumps(request.described()).encode()
    _compare([json.loads(rows[0]) for rows in meeting.exchange([described, b"", b""], attempt.error or error)])
    assert request is not None  # otherwise exchange has raised
    traced, announced = _trace_on_rank_0(request, pattern, meeting)
    found, votes = _vote(request, announced, meeting)
    package, origin = found or (None, "received")
    shipped = b""
    if not all(votes):
        source = votes.index(True) if any(votes) else 0
        package, origin, shipped = _ship(traced, package, origin, source, meeting)
    loaded = None
    with meeting.together():
        package = package or decode(shipped)
        if package.key != announced["key"]:
            raise errors.KernelError(f"the package that came is {package.key}, and {announced['key']} was announced")
        loaded = load(package)
    assert package is not None  # otherwise together() has raised
    request.keep(package, unless_there=origin in ("memory", "disk") or origin == "received" and request.use_cached)
    return package, origin, loaded


def _compare(described: list[dict[str, str]]) -> None:
    first = described[0]
    for rank, other in enumerate(described):
        for what in [*first, *(name for name in other if name not in first)]:
            if first.get(what) != other.get(what):
                values = [_shown(about.get(what)) for about in (first, other)]
                raise errors.MismatchError(f"compile_and_load: ranks 0 and {rank} disagree about {what}: {values[0]} "
                                           f"and {values[1]}. With is_spmd=True rank 0 compiles for all, so all ask "
                                           "for the same; give is_spmd=False where ranks differ")


def _shown(value: str | None) -> str:
    return "none" if value is None else value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."


def _trace_on_rank_0(request: Request, pattern: Pattern, meeting: Meeting) -> tuple[Traced | None, dict[str, Any]]:
    traced, said = None, b""
    with Attempt() as attempt:
        if meeting.rank == 0:
            traced = request.trace(pattern)
            groups = [describe_group(name) for name in traced.package.groups]
            said = json.dumps({"key": traced.package.key, "groups": groups,
                               "ops": [describe_op(name) for name in traced.package.ops]}).encode()
    return traced, json.loads(meeting.exchange([said, b"", b""], attempt.error)[0][0])


def _vote(request: Request, announced: dict[str, Any],
          meeting: Meeting) -> tuple[tuple[Package, str] | None, list[bool]]:
    found = None
    with Attempt() as attempt:
        for group in announced["groups"]:
            _check_group(group)
        for op in announced["ops"]:
            check_op(op)
        found = request.find(announced["key"])
    votes = meeting.exchange([b"1" if found else b"0", b"", b""], attempt.error)
    return found, [rows[0] == b"1" for rows in votes]


def _ship(traced: Traced | None, package: Package | None, origin: str, source: int,
          meeting: Meeting) -> tuple[Package | None, str, bytes]:
    """``source`` gives its package to all ranks, and first compiles where there is none. Returns the package that this
    rank has now, the origin, and the received bytes."""
    data = b""
    with Attempt() as attempt:
        if meeting.rank == source:
            if package is None:
                assert traced is not None  # only rank 0 is the source of a package that no rank has
                package, origin = traced.compile(), "compiled"
            data = package.encode()
    return package, origin, meeting.exchange([data, b"", b""], attempt.error)[source][0]


def describe_group(name: str) -> list[Any]:
    """torch's name of a group, and the group's members. ValueError where this process has no such group, or the group
    is not shardwire's."""
    try:
        group = c10d._resolve_process_group(name)
    except (RuntimeError, KeyError, AttributeError):
        raise ValueError(f"the kernel communicates in the group {name!r}, which this process is not in; give "
                         "is_spmd=False where ranks communicate in groups of their own") from None
    backend = shardwire_behind(group)
    if backend is None:
        raise ValueError(f"the kernel communicates in the group {name!r}, whose backend for CPU tensors is not "
                         "shardwire")
    return [name, list(_C.global_ranks(backend))]


def _check_group(announced: list[Any]) -> None:
    own = describe_group(announced[0])
    if own != announced:
        raise errors.MismatchError(f"the kernel communicates in the group {announced[0]!r}, which is of ranks "
                                   f"{announced[1]} on rank 0 and of ranks {own[1]} here; give is_spmd=False where "
                                   "ranks communicate in groups of their own")
