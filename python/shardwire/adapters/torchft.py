"""shardwire as a process group of torchft: the groups of torchft's manager, whose members come and go. See
docs/adapters.md.

    from shardwire.adapters.torchft import ProcessGroupShardwire
    manager = torchft.Manager(pg=ProcessGroupShardwire(timeout=timedelta(seconds=30)), ...)

Takes the place of ``torchft.ProcessGroupGloo``. Written for torchft's public interface (``ProcessGroupWrapper``).
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from ..groups.lookup import create_over_fresh_store


class ProcessGroupShardwire(ProcessGroupWrapper):
    """A torchft process group with a shardwire group inside. torchft makes the inner group anew at each change of its
    members, and aborts the group before: pending operations of this rank then fail with ``AbortedError``, and peers
    that wait for this rank raise ``PeerFailedError``, which names the rank.

    timeout: of torchft's store, and of every operation of the inner group (default: 60 s).
    """

    def _create_pg(self, store: Any, rank: int, world_size: int) -> dist.ProcessGroup:
        # torchft's store has a fresh prefix for each membership.
        name = f"torchft_{self._uuid}"
        group: dist.ProcessGroup = create_over_fresh_store(store, rank, world_size, self._timeout, name,
                                                           standalone=True)
        return group

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return "torchft-shardwire"
