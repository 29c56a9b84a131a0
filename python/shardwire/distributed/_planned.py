"""The common part of Reshape, FFT, Matmul and DirectSolver: the group, and the end by free() or a ``with`` block."""

from __future__ import annotations

from typing import Any, TypeVar

from .. import _C
from ..groups.lookup import global_ranks, resolve_backend
from . import _runtime

_Self = TypeVar("_Self", bound="Planned")


class Planned:
    """An object that is planned once and executed any number of times.

    _noun: its name in errors. _state_error: the error for a call out of order.
    """

    _noun: str
    _state_error: type[RuntimeError]

    def _join(self, group: Any) -> None:
        self._group = _runtime.group_of(group)
        backend = resolve_backend(self._group)
        self._ranks, self._rank = global_ranks(backend), _C.rank(backend)
        self._freed = False

    def _log(self, logger: Any, plan: Any) -> None:
        if logger is not None:
            logger.info("shardwire.distributed: %s", plan.explain())

    def free(self) -> None:
        raise NotImplementedError

    def _check_alive(self) -> None:
        if self._freed:
            raise self._state_error(f"this {self._noun} was freed; make another one")

    def __enter__(self: _Self) -> _Self:
        self._check_alive()
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self.free()
