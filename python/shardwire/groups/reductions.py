"""The names of reductions as torch's values."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .. import _C

_REDUCTIONS = {reduction: getattr(dist.ReduceOp, name.upper()) for name, reduction in _C.reductions.items()
               if hasattr(dist.ReduceOp, name.upper())}


def reduction_of(op: str) -> Any:
    """torch's ReduceOp of a name such as "sum"; ValueError that lists the names."""
    if op not in _C.reductions:
        raise ValueError(f"op is {op!r}; give {', '.join(_C.reductions)}")
    return _REDUCTIONS[_C.reductions[op]]
