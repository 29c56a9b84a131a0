"""A second copy of a subscription's target. Versions arrive in this copy, and the target stays unchanged until a
version is whole."""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch

from .. import _C
from .holdings import Holdings


class Stage:
    """Memory for the local tensors of a target, in the shared heap. Used by the fetching thread."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._tensors: dict[str, torch.Tensor] = {}

    def prepare(self, names: Set[str]) -> None:
        """Makes room for these names of the target, for the parts of this rank. Existing memory with the right shape
        and dtype stays."""
        now = self._holdings.tensors()
        self._tensors = {name: self._room(name, now[name]) for name in names if name in now}

    def _room(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        before = self._tensors.get(name)
        return (before if before is not None and _alike(before, tensor)
                else _C.heap_empty(list(tensor.shape), tensor.dtype))

    def tensors(self) -> dict[str, torch.Tensor]:
        return self._tensors

    def check(self) -> None:
        """Raises ValueError where the target differs from the target at the time of the subscription."""
        for _ in self._pairs():
            pass

    def copy_to_target(self) -> None:
        """Copies into the target. ValueError as in check(), before any write."""
        for tensor, staged in list(self._pairs()):
            tensor.copy_(staged)

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        now = self._holdings.tensors()  # optimizers and modules replace tensors
        for name, staged in self._tensors.items():
            tensor = now.get(name)
            if tensor is None or not _alike(tensor, staged):
                what = "is not there" if tensor is None else f"has shape {list(tensor.shape)} and dtype {tensor.dtype}"
                raise ValueError(f"the target's {name!r} {what}; when it was subscribed it had {list(staged.shape)} "
                                 f"and {staged.dtype}. Subscribe anew after changing the target's names, shapes or "
                                 "dtypes")
            _C.require_memory(tensor, f"the target's {name!r}")
            yield tensor, staged


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
