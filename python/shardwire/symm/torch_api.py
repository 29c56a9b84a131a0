"""torch's own symmetric memory API, on the CPU."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from .. import _C
from ..errors import UnsupportedError


def torch_api() -> ModuleType:
    """``torch.distributed._symmetric_memory``: its ``empty(..., device="cpu")``, ``rendezvous`` and ops work with shardwire groups.

    ``import shardwire`` is enough for that where torch is new enough; this function says so where it is not. Any thread; the module's calls say which of
    them are collective. Raises UnsupportedError with torch that is neither 2.6 nor 2.13 or later, and where torch refused what ``import shardwire`` registered
    with it (a warning said so).
    """
    if not _C.has_torch_symmetric_memory:
        raise UnsupportedError(f"torch's symmetric memory API on the CPU needs torch 2.6, or 2.13 or later, and this is {torch.__version__}: shardwire.symm has "
                               "symmetric tensors, signals and multicast with any torch")
    if _C.torch_symmetric_memory_failure:
        raise UnsupportedError(f"torch {torch.__version__} refused to register its symmetric memory API on the CPU when shardwire was imported: shardwire.symm has "
                               f"symmetric tensors, signals and multicast without it. torch says: {_C.torch_symmetric_memory_failure}")
    return importlib.import_module("torch.distributed._symmetric_memory")
