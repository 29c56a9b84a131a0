"""The differentiable form of a product. The gradients are two more products: of the result's gradient with the other
factor, each where its factor lies.

Where several ranks hold an element of the result, their gradients are added; a DTensor's replicas have equal gradients
by contract. Every copy of an element of a factor gets the whole gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from ...compiler.compile_op import CustomOp
from .. import _runtime
from .._ends import End, is_exact
from ..distribution import Dims, Piece, Share
from ..reshape import move
from ._product import Product, Types, exact_end


def transposed(end: End) -> End:
    """The same memory as the transposed matrix."""
    shares = tuple(Share(share.local_shape[::-1], tuple(Piece(*(field[::-1] for field in piece))
                                                        for piece in share.pieces)) for share in end.shares)
    return End(end.distribution, end.global_shape[::-1], shares)


def unpacked(end: End, axis: int) -> End:
    """The end of a matrix of FP4 by its numbers: twice the bytes along ``axis``."""
    def twice(dims: Dims) -> Dims:
        return tuple(extent * (1 + (dim == axis)) for dim, extent in enumerate(dims))
    shares = tuple(Share(twice(share.local_shape), tuple(Piece(*map(twice, piece)) for piece in share.pieces))
                   for share in end.shares)
    return End(end.distribution, twice(end.global_shape), shares)


class Backward:
    """The two products of the gradients of ``product``, and the sum of replicated gradients before. Made at the first
    gradient. Collective."""

    def __init__(self, group: Any, rank: int, product: Product, adds: bool) -> None:
        grad, types, settings = product.c, product.types, product.settings._replace(grid=None)
        self._sum: CustomOp | None = None
        if adds and not is_exact(grad):
            grad = exact_end(grad)
            self._sum = move(group, rank, product.c, grad, types.result, f"{product.name}.backward", "sum")
        self._rank, self._grad, self._whole, self._dtype = rank, grad, product.c, types.result
        self.of_a = Product(group, rank, grad, transposed(product.b), product.a,
                            Types(types.result, types.b, types.sums, types.a), settings, f"{product.name}.backward, a")
        self.of_b = Product(group, rank, transposed(product.a), grad, product.b,
                            Types(types.a, types.result, types.sums, types.b), settings, f"{product.name}.backward, b")

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of the result, each element once."""
        grad = grad.resolve_conj().resolve_neg()
        if self._sum is None:
            return grad
        share = self._grad.shares[self._rank]
        result = _runtime.empty(share.local_shape, self._dtype, grad.device)
        self._sum([grad] if self._whole.shares[self._rank].pieces else [], [result] if share.pieces else []).wait()
        return result


    def release(self) -> None:
        """Frees the buffers of both products."""
        self.of_a.release()
        self.of_b.release()


class Multiply(torch.autograd.Function):
    """a @ b of local parts; ``made``: returns the Backward, the same object in every call. releases: whether the
    backward pass frees its buffers at the end."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, product: Product, made: Any, order: str,
                releases: bool) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.made, ctx.releases = made, releases
        return product.run(a.detach(), b.detach(), order)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        back = ctx.made()
        grad = back.gradient(grad)
        of_a = back.of_a.run(grad, b.t().conj()) if ctx.needs_input_grad[0] else None
        of_b = back.of_b.run(a.t().conj(), grad) if ctx.needs_input_grad[1] else None
        # A rank that holds nothing may give any shape without elements, and autograd wants this shape.
        of_a, of_b = (of if of is None or of.numel() else of.reshape(given.shape)
                      for of, given in ((of_a, a), (of_b, b)))
        if ctx.releases:
            back.release()
        return of_a, of_b, None, None, None, None
