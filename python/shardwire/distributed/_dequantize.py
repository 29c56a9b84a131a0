"""8-bit floats with scales as wider floats.

On the CPU torch casts 8-bit floats one by one: 7 ns for an element (torch 2.13, a Zen 1). A lookup in the table of all
256 values takes 2 ns.
"""

from __future__ import annotations

import functools

import torch

from .. import _C
from ..plain.tensor_bytes import item_bytes

_AT_ONCE = 1 << 18  # elements, whose indices fit into a cache


@functools.lru_cache(maxsize=None)
def _table(narrow: torch.dtype, wide: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8, device="cpu").view(narrow).to(wide)


def dequantized(rows: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The rows in ``dtype``, times their scales: new memory. scales: [rows, any divisor of a row's elements], for equal
    parts of each row. Products are rounded once. Gradients go to ``rows``."""
    count, hidden = rows.shape
    width = 1 if scales is None else scales.shape[1]
    if hidden % width:
        raise ValueError(f"a row has {width} scales for {hidden} elements: give a scale_width that divides hidden")
    factors = None if scales is None else scales.unsqueeze(2)
    if item_bytes(rows.dtype) > 1 or rows.requires_grad or rows.device.type != "cpu":
        wide = rows.to(torch.float32 if factors is not None else dtype)
        if factors is not None:
            wide = (wide.view(count, width, hidden // width) * factors).view(count, hidden)
        return wide.to(dtype)
    out = _C.heap_empty([count, hidden], dtype)
    bytes_of, table, step = rows.view(torch.uint8), _table(rows.dtype, dtype), max(1, _AT_ONCE // hidden)
    for begin in range(0, count, step):
        part = out[begin:begin + step]
        torch.index_select(table, 0, bytes_of[begin:begin + step].reshape(-1).int(), out=part.view(-1))
        if factors is not None:
            part.view(len(part), width, hidden // width).mul_(factors[begin:begin + step])
    return out
