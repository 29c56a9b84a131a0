"""Linear algebra of distributed matrices, with nvmath.distributed.linalg's names."""

from __future__ import annotations

from . import advanced
from ._options import MatmulComputeType as ComputeType

__all__ = ["ComputeType", "advanced"]
