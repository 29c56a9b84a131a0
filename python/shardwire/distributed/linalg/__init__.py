"""Linear algebra of distributed matrices, with nvmath.distributed.linalg's names."""

from __future__ import annotations

from . import advanced
from ._options import MatmulComputeType as ComputeType
from ._solver import DirectSolver, DirectSolverOptions, InvalidDirectSolverState, direct_solver

__all__ = ["ComputeType", "DirectSolver", "DirectSolverOptions", "InvalidDirectSolverState", "advanced",
           "direct_solver"]
