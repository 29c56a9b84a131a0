"""GPT-2 small (124M parameters, f32) without a file: the real names and shapes, values made up fast."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

_LAYERS, _WIDTH, _VOCABULARY, _POSITIONS = 12, 768, 50257, 1024
# Elements of the random block that fills the tensors. A prime number, so that the block never aligns with a row.
_BLOCK = 1_048_573


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape, as in ``GPT2Model.state_dict()``: Conv1D weights are (in, out)."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (_VOCABULARY, _WIDTH), "wpe.weight": (_POSITIONS, _WIDTH)}
    for layer in range(_LAYERS):
        for name, shape in (("ln_1.weight", (_WIDTH,)), ("ln_1.bias", (_WIDTH,)),
                            ("attn.c_attn.weight", (_WIDTH, 3 * _WIDTH)), ("attn.c_attn.bias", (3 * _WIDTH,)),
                            ("attn.c_proj.weight", (_WIDTH, _WIDTH)), ("attn.c_proj.bias", (_WIDTH,)),
                            ("ln_2.weight", (_WIDTH,)), ("ln_2.bias", (_WIDTH,)),
                            ("mlp.c_fc.weight", (_WIDTH, 4 * _WIDTH)), ("mlp.c_fc.bias", (4 * _WIDTH,)),
                            ("mlp.c_proj.weight", (4 * _WIDTH, _WIDTH)), ("mlp.c_proj.bias", (_WIDTH,))):
            shapes[f"h.{layer}.{name}"] = shape
    shapes["ln_f.weight"] = (_WIDTH,)
    shapes["ln_f.bias"] = (_WIDTH,)
    return shapes


def make_gpt2(progress: Callable[[int], None] = lambda count: None) -> dict[str, torch.Tensor]:
    """A state dict with values of about weight size, the same in every run. ``progress`` is called with the number of
    bytes just made.

    The mantissas are one random block repeated, with bits flipped by a mask that differs for every repetition and
    tensor: the speed is the memory's, and a piece at a wrong place still differs.
    """
    random = torch.Generator().manual_seed(2019)
    mantissas = torch.randint(0, 1 << 24, (_BLOCK,), generator=random, dtype=torch.int32)
    # Sign from bit 23, exponent of 2^-6: values in +-[0.0156, 0.0313).
    block = (mantissas & 0x7FFFFF) | ((mantissas & 0x800000) << 8) | (121 << 23)
    tensors: dict[str, torch.Tensor] = {}
    mask = 0
    for name, shape in gpt2_shapes().items():
        bits = torch.empty(math.prod(shape), dtype=torch.int32)
        for start in range(0, len(bits), _BLOCK):
            part = bits[start:start + _BLOCK]
            mask = (mask + 0x51ED27) & 0x7FFFFF
            torch.bitwise_xor(block[:len(part)], mask, out=part)
            progress(part.numel() * 4)
        tensors[name] = bits.view(torch.float32).reshape(shape)
    return tensors
