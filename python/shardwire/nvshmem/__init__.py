"""Where ``import nvshmem`` stood: ``import shardwire.nvshmem as nvshmem``. See :mod:`shardwire.nvshmem.core` and docs/symmetric.md."""

from __future__ import annotations

from . import core

__all__ = ["core"]
