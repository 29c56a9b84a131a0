"""Planning without ranks: what an operation of any number of ranks would move, on one machine. See docs/offline.md.

``planning`` makes the plans of all ranks and counts them, ``topology`` says how long they take, ``description`` reads JSON, ``ready`` has descriptions to begin with.
"""

from .planning import OfflinePlan, plan
from .topology import Topology

__all__ = ["OfflinePlan", "Topology", "plan"]
