"""``env://``, torch's default way to meet, for shardwire's groups where RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is
missing: srun and mpirun set other variables with the same meaning.

``shardwire_autoload`` puts this handler before torch's. Torch's handler still serves other backends, and shardwire
where all four variables are set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from . import mpi
from .launchers import Place, address_of, recognise, why_none
from .timeouts import as_timeout

# Names in the URL's query, added by init_process_group(rank=..., world_size=...)
_BY_QUERY = {"RANK": "rank", "WORLD_SIZE": "world_size"}
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HAS_MPI = (Path(__file__).parents[1] / "libshardwire_mpi.so").exists()
_INSTEAD = ("start the ranks by `python -m shardwire.launch -n N SCRIPT`, torchrun, srun or mpirun, or "
            "call init_process_group('shardwire', init_method='tcp://HOST:PORT', rank=..., world_size=...)")


def missing_from(url: str, environment: Mapping[str, str]) -> list[str]:
    """The variables that torch's own ``env://`` would miss."""
    query = parse_qs(urlparse(url).query)
    return [name for name in _NEEDED if not environment.get(name) and _BY_QUERY.get(name) not in query]


def rendezvous(url: str, timeout: timedelta | None = None, **more: Any) -> Iterator[tuple[Any, int, int]]:
    """Called by torch for ``env://`` when :func:`missing_from` names variables: uses the launcher's variables
    instead."""
    missing = missing_from(url, os.environ)
    place = recognise(os.environ)
    if place is None:
        raise ValueError(f"{_head(missing)}; {why_none(os.environ)}. To fix it, {_INSTEAD}")
    rank, size = _rank_and_size(url, place, missing)
    # Across hosts mpirun can map rank 0 to any host, and MPI knows the host; on one host MPI is not used.
    if place.is_open_mpi and place.size != place.local_size and "MASTER_ADDR" in missing and _HAS_MPI:
        yield from mpi.rendezvous(url, timeout, **more)
    host, port = address_of(place)
    host, port = os.environ.get("MASTER_ADDR") or host, _given_port() or port
    if not host or not port:
        unknown = [what for what, known in (("where rank 0 runs", host), ("which port its store can have", port))
                   if not known]
        to_set = [name for name, known in (("MASTER_ADDR", host), ("MASTER_PORT", port)) if not known]
        how = (f" ({' '.join(f'-x {name}=...' for name in to_set)}), or build shardwire with MPI, which needs neither"
               if place.is_open_mpi else "")
        raise ValueError(f"{_head(missing)}. {place.describe()}, but not {' nor '.join(unknown)}: set {_list(to_set)} "
                         f"for all ranks{how}")
    yield _store(host, port, rank, size, as_timeout(timeout), place), rank, size
    raise RuntimeError("env:// cannot replace lost ranks: start the job anew")


def _list(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _head(missing: Sequence[str]) -> str:
    which = ("none of them is set" if len(missing) == len(_NEEDED)
             else f"{_list(missing)} {'is' if len(missing) == 1 else 'are'} not set")
    return f"init_process_group('shardwire') reads {_list(_NEEDED)}, which a launcher sets, and {which}"


def _rank_and_size(url: str, place: Place, missing: Sequence[str]) -> tuple[int, int]:
    query = parse_qs(urlparse(url).query)
    found: list[int] = []
    for name, placed in (("RANK", place.rank), ("WORLD_SIZE", place.size)):
        given = query[_BY_QUERY[name]][0] if _BY_QUERY[name] in query else os.environ.get(name)
        if given and not given.isdecimal():
            raise ValueError(f"{name} is {given!r}, not a number")
        if given and placed is not None and int(given) != placed:
            raise ValueError(f"{_head(missing)}. {name} is given as {given}, but {place.describe()}: leave rank and "
                             f"world size to the launcher, or set {_list(missing)} as well")
        known = int(given) if given else placed
        if known is None:
            raise ValueError(f"{_head(missing)}. {place.describe()}, but not how many ranks there are: set {name} for "
                             "all ranks, or call init_process_group('shardwire', init_method='mpi://')")
        found.append(known)
    return found[0], found[1]


def _given_port() -> int | None:
    text = os.environ.get("MASTER_PORT")
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(f"MASTER_PORT is {text!r}; a port is a number from 1 to 65535")
    return int(text)


def _store(host: str, port: int, rank: int, size: int, timeout: timedelta, place: Place) -> Any:
    try:
        return mpi.tcp_store(host, port, size, rank == 0, timeout)
    except Exception as error:
        raise RuntimeError(f"rank {rank} could not {'open' if rank == 0 else 'reach'} the ranks' store at "
                           f"{host}:{port}: {error}. {place.describe()}; MASTER_ADDR and MASTER_PORT, set for all "
                           "ranks, name another place for it") from error
