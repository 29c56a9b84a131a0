"""torch's own symmetric memory API, on the CPU."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from .. import _C
from ..errors import UnsupportedError


def torch_api() -> ModuleType:
    """``torch.distributed._symmetric_memory``: its ``empty(..., device="cpu")``, ``rendezvous`` and ops work with
    shardwire groups.

    ``import shardwire`` is enough where torch is new enough; otherwise this function raises. Any thread; the
    documentation of the module's calls says which calls are collective. Raises UnsupportedError with a torch other than
    2.6, or 2.13 or later, and where torch refused the registration by ``import shardwire`` (after a warning).
    """
    if not _C.has_torch_symmetric_memory:
        raise UnsupportedError("torch's symmetric memory API on the CPU needs torch 2.6, or 2.13 or later, and this is "
                               f"{torch.__version__}: shardwire.symm has symmetric tensors, signals and multicast with "
                               "any torch")
    if _C.torch_symmetric_memory_failure:
        raise UnsupportedError(f"torch {torch.__version__} refused to register its symmetric memory API on the CPU "
                               "when shardwire was imported: shardwire.symm has symmetric tensors, signals and "
                               f"multicast without it. torch says: {_C.torch_symmetric_memory_failure}")
    return importlib.import_module("torch.distributed._symmetric_memory")
