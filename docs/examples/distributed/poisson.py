"""Which charge makes this potential? A Poisson solver over all ranks, and gradients through it.

    ./run python -m shardwire.launch -n 4 docs/examples/distributed/poisson.py

-laplace(u) = f on a periodic cube, solved by transforms. Then f is found again from u alone by gradient descent: each
step goes forward and backward through the transforms, whose gradients are transforms of the other direction.
"""

import math

import torch

import shardwire.distributed as swd
from shardwire.distributed.distribution import Pencil

N = 24
swd.initialize()
context = swd.get_context()
CUT = Pencil((0, 1))  # each rank has a bundle of lines along the last axis


def mine(whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of an array cut by CUT."""
    (box,) = CUT.boxes(tuple(whole.shape), context.size)[context.rank]
    return whole[tuple(slice(begin, end) for begin, end in zip(*box))].contiguous()


frequency = torch.fft.fftfreq(N, 1.0 / N, dtype=torch.float64)
half = torch.arange(N // 2 + 1, dtype=torch.float64)
square = frequency[:, None, None] ** 2 + frequency[None, :, None] ** 2 + half[None, None, :] ** 2
inverse_laplacian = torch.where(square > 0, 1.0 / square.clamp(min=1.0), torch.zeros(()).double())
factor = mine(inverse_laplacian)


def solve(f: torch.Tensor) -> torch.Tensor:
    """The potential of the charge ``f``, both cut by CUT."""
    return swd.fft.irfft(swd.fft.rfft(f, distribution=CUT) * factor, distribution=CUT, norm="backward")


x = torch.arange(N, dtype=torch.float64) * (2 * math.pi / N)
charge = torch.sin(x)[:, None, None] * torch.cos(x)[None, :, None] + torch.cos(x)[None, None, :]
u = solve(mine(charge))
# sin(x) cos(y) is twice its potential, cos(z) once.
exact = torch.sin(x)[:, None, None] * torch.cos(x)[None, :, None] / 2 + torch.cos(x)[None, None, :]
assert (u - mine(exact)).abs().max() < 1e-12

guess = torch.zeros_like(u).requires_grad_()
for _ in range(40):
    misfit = ((solve(guess) - u) ** 2).sum() / 2  # this rank's addend: gradients of all ranks' sum come back
    (gradient,) = torch.autograd.grad(misfit, guess)
    guess = (guess - gradient).detach().requires_grad_()
error = (guess - mine(charge)).abs().max().item()
assert error < 1e-3, error

# The gradient itself, against one process.
plain = torch.zeros(N, N, N, dtype=torch.float64, requires_grad=True)
((torch.fft.irfftn(torch.fft.rfftn(plain) * inverse_laplacian, s=(N, N, N)) - exact) ** 2).sum().div(2).backward()
guess = torch.zeros_like(u).requires_grad_()
(((solve(guess) - u) ** 2).sum() / 2).backward()
assert (guess.grad - mine(plain.grad)).abs().max() < 1e-12
if context.rank == 0:
    print(f"found the charge on {N}^3 over {context.size} ranks to {error:.1e} in 40 steps; the gradient is one "
          "process's")
swd.finalize()
