"""A picture, convolved with a wide kernel over all ranks: two transforms forward, a product, one back.

    ./run python -m shardwire.launch -n 4 docs/examples/distributed/convolution.py

No rank ever holds the whole picture; rank 0 gathers it at the end only to compare with one process.
"""

import torch

import shardwire.distributed as swd
from shardwire.distributed.distribution import Box, Slab

SHAPE = (96, 80)
swd.initialize()
context = swd.get_context()


def mine(whole: torch.Tensor) -> torch.Tensor:
    """This rank's slab of rows."""
    return torch.tensor_split(whole, context.size, 0)[context.rank].contiguous()


# Every rank makes the same picture and kernel here; a real program would read only its own rows.
generator = torch.Generator().manual_seed(7)
picture = torch.rand(SHAPE, dtype=torch.float64, generator=generator)
rows, columns = torch.meshgrid(torch.arange(SHAPE[0]), torch.arange(SHAPE[1]), indexing="ij")
distance = torch.minimum(rows, SHAPE[0] - rows) ** 2 + torch.minimum(columns, SHAPE[1] - columns) ** 2
kernel = torch.exp(-distance.double() / 50.0)
kernel /= kernel.sum()

# The spectra stay in slabs of columns: rows and back would cost two moves for nothing.
to_spectrum = {"distribution": [Slab.X, Slab.Y]}
spectrum = swd.fft.rfft(mine(picture), **to_spectrum) * swd.fft.rfft(mine(kernel), **to_spectrum)
blurred = swd.fft.irfft(spectrum, distribution=[Slab.Y, Slab.X], norm="backward")

everything = Box((0, 0), SHAPE) if context.rank == 0 else Box((0, 0), (0, 0))
slab = Slab.X.boxes(SHAPE, context.size)[context.rank][0]
whole = swd.reshape.reshape(blurred, slab, everything)
if context.rank == 0:
    expected = torch.fft.irfft2(torch.fft.rfft2(picture) * torch.fft.rfft2(kernel), s=SHAPE)
    error = (whole - expected).abs().max().item()
    assert error < 1e-12, error
    print(f"convolved {SHAPE[0]} x {SHAPE[1]} over {context.size} ranks; one process differs by {error:.1e}")
swd.finalize()
