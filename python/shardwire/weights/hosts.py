"""The ranks of each host: ranks of one host share a page cache."""

from __future__ import annotations

import os
from collections.abc import Sequence


def host_name() -> str:
    """A text that is equal on all ranks of one host, by the rule of the transports: SHARDWIRE_HOST_ID, NCCL_HOSTID,
    else the kernel's boot id."""
    for variable in ("SHARDWIRE_HOST_ID", "NCCL_HOSTID"):
        if os.environ.get(variable):
            return f"{variable}={os.environ[variable]}"
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def ranks_by_host(names: Sequence[str], ranks: Sequence[int]) -> list[list[int]]:
    """``ranks`` grouped by host, hosts in the order of their lowest rank. ``names``: each rank's host."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(names[rank], []).append(rank)
    return list(groups.values())
