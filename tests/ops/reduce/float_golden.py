"""Prints the table of float_golden_test.cc: torch's own conversions of the small floating types. Needs torch >= 2.7
(float8_e8m0fnu).
"""

import numpy as np
import torch


def fnv1a(array):
    digest = 0xCBF29CE484222325
    for byte in array.tobytes():
        digest = ((digest ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return digest


values = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
values = torch.from_numpy(values[~np.isnan(values)].copy())
for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
             "float8_e8m0fnu"):
    dtype = getattr(torch, name)
    is_small = dtype.itemsize == 1
    codes = values.to(dtype).view(torch.uint8 if is_small else torch.int16).numpy()
    every_code = np.arange(256, dtype=np.uint8) if is_small else np.arange(65536, dtype=np.uint16).view(np.int16)
    decoded = torch.from_numpy(every_code).view(dtype).to(torch.float32).numpy().copy()
    bits = decoded.view(np.uint32)
    bits[np.isnan(decoded)] = 0x7FC00000
    print(f"{name}: encode 0x{fnv1a(codes):016x}, decode 0x{fnv1a(bits):016x}")
