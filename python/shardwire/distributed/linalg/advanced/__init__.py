"""advanced: products of distributed matrices, F(alpha A @ B + beta C), with nvmath.distributed.linalg.advanced's
names."""

from __future__ import annotations

from typing import Any

from .._matmul import InvalidMatmulState, Matmul, matmul
from .._options import (MatmulAlgoType, MatmulComputeType, MatmulEpilog, MatmulEpilogPreferences, MatmulOptions,
                        MatmulPlanPreferences)
from .._quantization import MatmulQuantizationScales
from . import helpers

__all__ = ["InvalidMatmulState", "Matmul", "MatmulAlgoType", "MatmulComputeType", "MatmulEpilog",
           "MatmulEpilogPreferences", "MatmulOptions", "MatmulPlanPreferences", "MatmulQuantizationScales", "helpers",
           "matmul", "matrix_qualifiers_dtype"]

matrix_qualifiers_dtype: Any  # made by __getattr__ below


def __getattr__(name: str) -> Any:
    if name == "matrix_qualifiers_dtype":  # numpy is imported only by programs that name the dtype
        from .. import _options
        return _options.matrix_qualifiers_dtype
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
