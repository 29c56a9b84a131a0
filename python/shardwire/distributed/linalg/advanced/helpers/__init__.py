"""Helpers for programs that multiply matrices of FP8, with nvmath's names."""

from __future__ import annotations

from . import matmul

__all__ = ["matmul"]
