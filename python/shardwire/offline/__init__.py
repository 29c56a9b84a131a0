"""Planning without ranks: the movement of an operation of any number of ranks, computed on one machine. See
docs/offline.md.

``planning`` makes the plans of all ranks and counts bytes, ``topology`` computes the time, ``description`` reads JSON,
``ready`` has descriptions to begin with.
"""

from .planning import OfflinePlan, plan
from .topology import Topology

__all__ = ["OfflinePlan", "Topology", "plan"]
