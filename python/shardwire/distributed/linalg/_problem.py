"""The problem that all ranks agreed on: the ends of the matrices, the dtypes, and the compiled products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...compiler.compile_op import CustomOp, compile_op
from ...compiler.spec import Pieces
from .. import _runtime
from .._ends import End
from ..distribution import Placements, Share, Dims
from ._epilogs import Epilog, apply, vector
from ._gradient import Backward, Multiply
from ._options import MatmulEpilog
from ._product import Product, Settings, Types
from ._quantization import Rounding
from ._tiling import Indices, indices_of, share_of


class Work(NamedTuple):
    """reads: whether A and B are multiplied: not where alpha is 0, as in BLAS. releases: whether the memory that runs
    keep is freed behind each run, and behind the run of the gradients. order: of the result in memory, "C" or "F".
    Equal on all ranks, but for ``releases``."""

    reads: bool
    releases: bool
    order: str


class Problem:
    """a, b: the ends of the factors as multiplied. types: the dtypes of the factors as they travel, of the sums and of
    the result. adds: whether gradients of several copies of an element are added. No reference to the group is
    kept, since the group keeps problems."""

    def __init__(self, rank: int, a: End, b: End, types: Types, settings: Settings, adds: bool, name: str) -> None:
        self._rank, self._settings, self._adds, self._name = rank, settings, adds, name
        self.a, self.b = a, b
        self.types, self.sums, self.result = types, types.sums, types.result
        self.shape: Dims = (a.global_shape[0], b.global_shape[1])
        self.c: End | None = None
        self.product: Product | None = None
        self.is_wide = False
        self._backward: Backward | None = None
        self._vector: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        self._of_vector: Product | None = None
        self._sum_of_c: CustomOp | None = None

    def compile(self, group: Any, c: End, kind: MatmulEpilog, is_wide: bool, c_dtype: torch.dtype | None) -> None:
        """Compiles the moves. Collective. is_wide: the result is rounded after further operations. c_dtype: where all
        ranks add C, and get the whole result."""
        self.c, self.is_wide, self._backward = c, is_wide, None
        self.product = Product(group, self._rank, self.a, self.b, c, self.types._replace(
            result=self.sums if is_wide else self.result), self._settings, self._name)
        self._compile_vector(group, c, kind)
        self._sum_of_c = None
        if c_dtype is not None and 0 not in self.shape:
            # A rank outside of the mesh of DTensors has no part.
            whole = [Pieces(self.shape, [((0, 0), self.shape, (0, 0))])] if c.shares[self._rank].pieces else []
            self._sum_of_c = compile_op(group, shape=self.shape, dtype=c_dtype, output_dtype=self.sums,
                                        inputs=whole, outputs=whole, reduction="sum",  # type: ignore[arg-type]
                                        name=f"shardwire.distributed.{self._name}, c")

    def _compile_vector(self, group: Any, c: End, kind: MatmulEpilog) -> None:
        """The product for the epilog's vector of sums: with a matrix of ones. A rank gets an entry for each row of the
        local result, or for each column."""
        name = vector(kind)
        self._vector = self._of_vector = None
        if name is None:
            return
        one: Indices = ((0, 1),)
        (m, n), k = self.shape, self.a.global_shape[1]
        extent = {"bgrada": k, "bgradb": k}.get(name, n)
        every: Indices = ((0, extent),) if extent else ()
        of_rows = name != "bgradb"
        ones = _end((extent, 1) if of_rows else (1, extent), [share_of(every, one) if of_rows else share_of(one, every)
                                                              for _ in c.shares])
        sums = _end((m, 1) if of_rows else (1, n), [
            share_of(indices_of(share, 0), one) if of_rows else share_of(one, indices_of(share, 1))
            for share in c.shares])
        matrix = {"bgrada": self.a, "bgradb": self.b}.get(name, c)
        dtype = self.types.a
        types = Types(dtype if name.startswith("bgrad") else self.result, dtype, self.sums, self.result)
        pair = (matrix, ones) if of_rows else (ones, matrix)
        made = self._of_vector = Product(group, self._rank, *pair, sums,
                                         types if of_rows else types._replace(a=types.b, b=types.a),
                                         self._settings._replace(grid=None), f"{self._name}, {name}")
        filled = torch.ones(ones.global_shape, dtype=dtype, device="cpu")

        def run(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            given = a if name == "bgrada" else b if name == "bgradb" else d
            other = filled.to(given.device)
            return made.run(*((given, other) if of_rows else (other, given))).reshape(-1)
        self._vector = run

    def run(self, group: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: Any, beta: Any,
            epilog: Epilog, rounding: Rounding, work: Work) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """This rank's part of F(alpha a @ b + beta c), and the auxiliary outputs. Collective."""
        value = self._multiplied(group, a, b, work) if work.reads else self._zeros(a, b, work)
        if alpha != 1 and work.reads:
            value = value * alpha
        if c is not None and beta != 0:  # as in BLAS, C is not read where beta is 0
            value = value + beta * self._whole(c).to(self.sums)
        value, aux = apply(epilog, value, rounding)
        if self._vector is not None:
            aux[vector(epilog.kind) or ""] = self._vector(a.detach(), b.detach(), value.detach())
        if work.releases:
            self._release()
        return value, aux

    def _multiplied(self, group: Any, a: torch.Tensor, b: torch.Tensor, work: Work) -> torch.Tensor:
        assert self.product is not None
        if not torch.is_grad_enabled() or not (a.requires_grad or b.requires_grad):
            return self.product.run(a.detach(), b.detach(), work.order)
        product = self.product  # plan() may make another one before the backward comes
        return Multiply.apply(a, b, product, lambda: self._made(group, product), work.order, work.releases)

    def _zeros(self, a: torch.Tensor, b: torch.Tensor, work: Work) -> torch.Tensor:
        """The product where alpha is 0, with gradients of 0. Nothing moves, in the backward pass neither."""
        assert self.c is not None
        value = _runtime.empty(self.c.shares[self._rank].local_shape, self.sums, a.device, work.order).zero_()
        for factor in (a, b):
            if factor.requires_grad:
                value = value + factor[:0].sum().to(value.dtype)
        return value

    def _whole(self, c: torch.Tensor) -> torch.Tensor:
        if self._sum_of_c is None:
            return c
        assert self.c is not None
        share = self.c.shares[self._rank]
        result = _runtime.empty(share.local_shape, self.sums, c.device)
        self._sum_of_c([c.detach()] if share.pieces else [], [result] if share.pieces else []).wait()
        return result

    def _made(self, group: Any, product: Product) -> Backward:
        if product is not self.product:
            return Backward(group, self._rank, product, self._adds)
        if self._backward is None:
            self._backward = Backward(group, self._rank, product, self._adds)
        return self._backward

    def _release(self) -> None:
        """Frees the memory that runs keep."""
        for made in (self.product, self._of_vector, self._backward):
            if made is not None:
                made.release()


def _end(dims: Dims, shares: list[Share]) -> End:
    return End(Placements([]), dims, tuple(shares))
