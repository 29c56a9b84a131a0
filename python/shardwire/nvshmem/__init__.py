"""In place of ``import nvshmem``: ``import shardwire.nvshmem as nvshmem``. See :mod:`shardwire.nvshmem.core` and
docs/symmetric.md."""

from __future__ import annotations

from . import core

__all__ = ["core"]
