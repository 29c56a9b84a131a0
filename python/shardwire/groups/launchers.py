"""Finds the launcher of this process, and the place in the job that the launcher's environment variables state: srun,
Open MPI's mpirun, the mpiexec of MPICH and Intel, PMIx. Pure functions of an environment.

This file imports the standard library only: ``launch.py`` can be run as a file, and then finds this file in the folder
``groups``.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

# Below the ports that Linux assigns by itself (32768 and up), so that no program has one of these by chance.
FIRST_PORT, NUM_PORTS = 10000, 20000
_LOOPBACK = "127.0.0.1"
_MAX_HOSTS = 1 << 20

# Prefixes of the variables that mark a process of an MPI job. Several children of one such process are not processes of
# the job.
_MPI_PREFIXES = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "MPI_LOCAL")


@dataclass(frozen=True)
class Place:
    """A process's place in its job, as stated by the launcher."""

    launcher: str                  # the common name
    evidence: str                  # the variables behind this place, with their values
    rank: int
    size: int | None = None        # None, here and below: unknown
    local_rank: int | None = None
    local_size: int | None = None
    host: str | None = None        # the host of rank 0, by a name that the other ranks can look up
    port: int | None = None        # the same on all ranks of the job, and different in other jobs
    cpus: int | None = None        # of this process alone
    is_open_mpi: bool = False

    def describe(self) -> str:
        """For error texts: ``srun says rank 1 of 2 (SLURM_PROCID=1, ...)``."""
        return (f"{self.launcher} says rank {self.rank}{'' if self.size is None else f' of {self.size}'} "
                f"({self.evidence})")


def recognise(environment: Mapping[str, str]) -> Place | None:
    """The place given by the innermost launcher of this process; None where no known launcher started the process.
    Raises ValueError where the launcher's variables make no sense."""
    # With mpirun inside of an srun step or of a Slurm job, the SLURM_ variables describe mpirun's daemon.
    if environment.get("OMPI_COMM_WORLD_RANK"):
        return _open_mpi(environment)
    if environment.get("PMI_RANK") and (environment.get("MPI_LOCALNRANKS") or not _is_srun_task(environment)):
        return _pmi(environment)
    if _is_srun_task(environment):
        return _srun(environment)
    if environment.get("PMIX_RANK"):
        return Place("a PMIx launcher", _evidence(environment, "PMIX_RANK"), _number(environment, "PMIX_RANK"),
                     port=_port_of_name(environment.get("PMIX_NAMESPACE")))
    return None


def why_none(environment: Mapping[str, str]) -> str:
    """A sentence with the reason why :func:`recognise` found nothing."""
    if environment.get("SLURM_JOB_ID"):
        return (f"this is the batch script or the shell of Slurm job {environment['SLURM_JOB_ID']}, not a task that "
                "srun started: put srun before the command")
    return ("srun, mpirun and mpiexec would set SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK or PMIX_RANK: none is "
            "set, so none of them started this process")


def address_of(place: Place) -> tuple[str | None, int | None]:
    """Host and port of rank 0's store, as far as the launcher's variables state them."""
    alone = place.size is not None and place.size == place.local_size
    return (_LOOPBACK if alone else place.host), place.port


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for children that are not processes of the MPI job."""
    return {name: value for name, value in environment.items() if not name.startswith(_MPI_PREFIXES)}


def expand_hostlist(text: str) -> list[str]:
    """The hosts of Slurm's ``rack[1-2,7]node[01-16]-ib,login``, in the list's order. As ``scontrol show hostnames``,
    which needs a configured Slurm."""
    hosts: list[str] = []
    for item in _split_outside_brackets(text):
        if not item:
            continue
        parts = [_alternatives(part, text) if part.startswith("[") else [part]
                 for part in re.split(r"(\[[^\]]*\])", item) if part]
        if any(bracket in part for part in itertools.chain(*parts) for bracket in "[]"):
            raise ValueError(f"the host list {text!r} has unmatched brackets")
        if len(hosts) + math.prod(len(part) for part in parts) > _MAX_HOSTS:
            raise ValueError(f"the host list {text!r} names more than {_MAX_HOSTS} hosts")
        hosts.extend("".join(chosen) for chosen in itertools.product(*parts))
    return hosts


def expand_tasks_per_node(text: str) -> list[int]:
    """The numbers of Slurm's ``4(x2),1``: [4, 4, 1]."""
    numbers: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", item.strip())
        if match is None or int(match[2] or 1) > _MAX_HOSTS:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}, which is not of the kind 4(x2),1")
        numbers.extend([int(match[1])] * int(match[2] or 1))
    return numbers


def _is_srun_task(environment: Mapping[str, str]) -> bool:
    # A batch script has SLURM_PROCID=0 too, but no step.
    return bool(environment.get("SLURM_PROCID")
                and (environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID")))


def _srun(environment: Mapping[str, str]) -> Place:
    sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    size = next((_number(environment, name) for name in sizes if environment.get(name)), None)
    local_size = None
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    node = _optional(environment, "SLURM_NODEID")
    if per_node and node is not None:
        counts = expand_tasks_per_node(per_node)
        local_size = counts[node] if node < len(counts) else None
    host = None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    # --distribution=arbitrary puts rank 0 anywhere.
    if nodes and not environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        host = next(iter(expand_hostlist(nodes)), None)
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or ""
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID") or ""
    # Jobs that run at the same time have similar ids, and so do steps: no two of these jobs and steps get one port.
    port = FIRST_PORT + (int(job) + 997 * int(step)) % NUM_PORTS if job.isdecimal() and step.isdecimal() else None
    return Place("srun", _evidence(environment, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", *sizes[:1]),
                 _number(environment, "SLURM_PROCID"), size, _optional(environment, "SLURM_LOCALID"), local_size, host,
                 port, _optional(environment, "SLURM_CPUS_PER_TASK"))


def _open_mpi(environment: Mapping[str, str]) -> Place:
    name = environment.get("OMPI_MCA_orte_precondition_transports") or environment.get("PMIX_NAMESPACE")
    # Inside of a Slurm job mpirun fills the hosts in the order of the list.
    nodes = environment.get("SLURM_JOB_NODELIST")
    return Place("Open MPI's mpirun", _evidence(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                 _number(environment, "OMPI_COMM_WORLD_RANK"), _optional(environment, "OMPI_COMM_WORLD_SIZE"),
                 _optional(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
                 _optional(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"),
                 next(iter(expand_hostlist(nodes)), None) if nodes else None, _port_of_name(name), is_open_mpi=True)


def _pmi(environment: Mapping[str, str]) -> Place:
    return Place("mpiexec (PMI)", _evidence(environment, "PMI_RANK", "PMI_SIZE"), _number(environment, "PMI_RANK"),
                 _optional(environment, "PMI_SIZE"), _optional(environment, "MPI_LOCALRANKID"),
                 _optional(environment, "MPI_LOCALNRANKS"), port=_port_of_name(environment.get("PMI_JOBID")))


def _port_of_name(name: str | None) -> int | None:
    return FIRST_PORT + zlib.crc32(name.encode()) % NUM_PORTS if name else None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{name} is {text!r}, not a number: who set it?")
    return int(text)


def _optional(environment: Mapping[str, str], name: str) -> int | None:
    return _number(environment, name) if environment.get(name) else None


def _evidence(environment: Mapping[str, str], *names: str) -> str:
    return ", ".join(f"{name}={environment[name]}" for name in names if environment.get(name))


def _split_outside_brackets(text: str) -> list[str]:
    return re.split(r",(?![^\[\]]*\])", text)


def _alternatives(group: str, text: str) -> list[str]:
    """The texts that ``[08-11,20]`` stands for; the first number of a range gives the width of all."""
    numbers: list[str] = []
    for part in group[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            raise ValueError(f"the host list {text!r} has {part!r} where a number or a range such as 08-11 is expected")
        if last - first >= _MAX_HOSTS:
            raise ValueError(f"the host list {text!r} names more than {_MAX_HOSTS} hosts")
        numbers.extend(f"{number:0{len(match[1])}d}" for number in range(first, last + 1))
    return numbers
