"""Systems of linear equations with distributed matrices: against numpy or torch.linalg in one process, and every misuse
as one error on all ranks."""

from __future__ import annotations

import gc
import logging
import os
import random
import weakref
from typing import Any

import numpy
import pytest
import torch
from matmul_cases import ROUNDING, data_of, in_order, wide
from random_campaign import RANKS_AND_WAYS, Digest, extent_of, run_campaign, wide_numpy
from ranks import error_of, group, run_ranks
from test_reshape import check_misuse, random_distribution, take

import shardwire
import shardwire.distributed as swd
from shardwire.distributed.distribution import Block, BlockCyclic, Box, Boxes, Placements, ProcessGrid, Slab
from shardwire.distributed.linalg import (DirectSolver, DirectSolverOptions, InvalidDirectSolverState, _factors,
                                          _system, direct_solver)

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20261125"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "60"))
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def matrix_of(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    """Well conditioned. For LU the large elements are anywhere but on the diagonal, so rows are swapped."""
    n, a = shape[-1], data_of(shape, dtype, seed)
    if kind == "cholesky":
        return (a @ a.transpose(-1, -2).conj() / n + torch.eye(n, dtype=dtype)).clone()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return a / n + torch.eye(n, dtype=dtype)[order]


def check(got: torch.Tensor, wanted: torch.Tensor, said: str) -> None:
    """wanted: the wide result of the naive model."""
    assert got.shape == wanted.shape, said
    limit = 20 * ROUNDING[got.dtype]
    assert torch.allclose(wide(got), wide(wanted), rtol=limit, atol=limit), said


def packed(a: torch.Tensor, kind: str) -> torch.Tensor:
    """The factors as LAPACK packs them."""
    if kind == "cholesky":
        return torch.from_numpy(numpy.linalg.cholesky(wide_numpy(a)))
    whole = wide_numpy(a).copy()
    for matrix in whole.reshape(-1, *a.shape[-2:]):
        for step in range(len(matrix)):
            pivot = step + abs(matrix[step:, step]).argmax()
            matrix[[step, pivot]] = matrix[[pivot, step]]
            matrix[step + 1:, step] /= matrix[step, step]
            matrix[step + 1:, step + 1:] -= numpy.outer(matrix[step + 1:, step], matrix[step, step + 1:])
    return torch.from_numpy(whole)


def random_cases(rank: int, ranks: int, seed: int, cases: int) -> str:
    rng, digest = random.Random(seed), Digest()
    for case in range(cases):
        n, k, batch = extent_of(rng, 14), rng.randint(1, 6), rng.choice([(), (), (rng.randint(1, 5),)])
        columns = rng.choice([(), (k,), (k,)])
        dtype, kind = rng.choice(DTYPES), rng.choice(["lu", "cholesky"])
        a, b = matrix_of((*batch, n, n), dtype, kind, seed + case), data_of((*batch, n, *columns), dtype, case)
        cuts = [random_distribution(rng, tuple(whole.shape), ranks) for whole in (a, b)]
        options = {"inplace_a": rng.random() < 0.4, "inplace_b": rng.random() < 0.4, "factorization": kind,
                   "panel_width": rng.choice([None, 1, 2, 3, 5])}
        # Small groups of panels, so that small matrices have columns behind the next group, too.
        _factors.AT_ONCE, _factors.STEP = rng.choice([1, 2, 4, 6, 256]), rng.choice([1, 2, 64])
        use_numpy = rng.random() < 0.3
        orders = [rng.sample(range(whole.dim()), whole.dim()) for whole in (a, b)]
        said = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {list(a.shape)} {list(b.shape)} {dtype} "
                f"{cuts} {options} orders {orders}, at once {_factors.AT_ONCE}, step {_factors.STEP}")
        parts = [take(cut, whole, rank, ranks) for cut, whole in zip(cuts, (a, b))]
        wanted = take(cuts[1], torch.from_numpy(numpy.linalg.solve(
            wide_numpy(a), wide_numpy(b).reshape(*batch, n, -1)).reshape(b.shape)), rank, ranks)

        def solve() -> tuple[torch.Tensor, torch.Tensor]:
            mine = [part.permute(order).contiguous().permute(numpy.argsort(order).tolist()).clone()
                    for part, order in zip(parts, orders)]
            if use_numpy:
                mine = [part.numpy() for part in mine]
            x = direct_solver(*mine, distributions=cuts, options=options, group=group())
            assert isinstance(x, numpy.ndarray if use_numpy else torch.Tensor), said
            assert (x is mine[1]) == options["inplace_b"], said
            local_a, local_b, x = (torch.as_tensor(each) for each in (*mine, x))
            assert options["inplace_b"] or torch.equal(local_b, parts[1]), said
            assert options["inplace_a"] or torch.equal(local_a, parts[0]), said
            return x, local_a
        x, left = solve()
        check(x, wanted, said)
        if options["inplace_a"]:
            below = take(cuts[0], (torch.ones(n, n).tril() if kind == "cholesky" else torch.ones(n, n)).expand(
                *batch, n, n), rank, ranks)
            check(left * below, take(cuts[0], packed(a, kind), rank, ranks) * below, f"factors: {said}")
            digest.add(left * below)
        assert torch.equal(solve()[0], x), said  # the same bits
        digest.add(x)
    return str(digest)


@pytest.mark.any_torch
@pytest.mark.parametrize(("ranks", "way"), RANKS_AND_WAYS)
def test_random_cases(ranks: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_campaign(random_cases, ranks, way, SEED, CASES, monkeypatch)


def larger(rank: int, ranks: int) -> None:
    """Panels of the default width, and more right-hand sides than are solved at once."""
    for kind in ("lu", "cholesky"):
        for n, k, width in ((300, 5, None), (40, 2 * _system.AT_ONCE + 3, 7)):
            a, b = matrix_of((n, n), torch.float64, kind, n), data_of((n, k), torch.float64, 1)
            grid = ProcessGrid(shape=(ranks // 2, 2), layout=ProcessGrid.Layout.ROW_MAJOR)
            cuts = [BlockCyclic(grid, [16, 16]), BlockCyclic(grid, [16, 4])]
            x = direct_solver(take(cuts[0], a, rank, ranks), take(cuts[1], b, rank, ranks), distributions=cuts,
                              options={"factorization": kind, "panel_width": width}, group=group())
            check(x, take(cuts[1], torch.linalg.solve(a, b), rank, ranks), f"{kind} {n} {k}")


@pytest.mark.parametrize("ranks", [2, 4])
def test_larger(ranks: int) -> None:
    run_ranks(ranks, larger, ranks)


def wide_panels(rank: int) -> None:
    """A panel has no more columns than the matrix, so that the memory for panels follows from the matrix."""
    a, b = matrix_of((9, 9), torch.float64, "lu", 1), data_of((9, 2), torch.float64, 2)
    for kind in ("lu", "cholesky"):
        whole = a if kind == "lu" else matrix_of((9, 9), torch.float64, kind, 1)
        options = {"panel_width": 1 << 40, "factorization": kind, "inplace_a": False, "inplace_b": False}
        with DirectSolver(take(Slab.X, whole, rank, 2), take(Slab.X, b, rank, 2), distributions=[Slab.X, Slab.X],
                          group=group(), options=options) as solver:
            solver.plan()
            assert "1 panels of 9 columns" in solver.explain()
            solver.factorize()
            check(solver.solve(), take(Slab.X, torch.linalg.solve(whole, b), rank, 2), kind)
    nothing = direct_solver(torch.zeros(0, 0), torch.zeros(0, 1), distributions=[Slab.X, Slab.X], group=group(),
                            options={"panel_width": 3})
    assert nothing.shape == (0, 1)


def test_panels_wider_than_the_matrix() -> None:
    run_ranks(2, wide_panels)


def in_place(rank: int) -> None:
    """The matrix lies as it is factorized: nothing of it moves, and the factors are in the caller's memory."""
    cut = BlockCyclic(ProcessGrid(shape=(1, 3)), [40, 8])
    a, b = matrix_of((40, 40), torch.float64, "lu", 3), data_of((40, 2), torch.float64, 4)
    mine = in_order(take(cut, a, rank, 3), True)
    with DirectSolver(mine, take(Slab.X, b, rank, 3), distributions=[cut, Slab.X], group=group()) as solver:
        solver.plan()
        said = solver.explain()
        assert "5 panels of 8 columns, dealt to 3 ranks" in said and "factors" not in said and ", a:" not in said, said
        solver.factorize()
        check(solver.solve(), take(Slab.X, torch.linalg.solve(a, b), rank, 3), "in place")
        check(mine, take(cut, packed(a, "lu"), rank, 3), "factors")


def test_a_matrix_is_factorized_where_it_lies() -> None:
    run_ranks(3, in_place)


def padded(rank: int) -> None:
    """Columns with memory between them, as nvmath allows, and rows with gaps; what lies between stays."""
    cut = BlockCyclic(ProcessGrid(shape=(1, 2)), [24, 8])
    for kind in ("lu", "cholesky"):
        a, b = matrix_of((24, 24), torch.float64, kind, 3), data_of((24, 3), torch.float64, 4)
        parts = [take(cut, a, rank, 2), take(Slab.X, b, rank, 2)]
        spread = [torch.full((part.shape[1], 2 * part.shape[0] + 3), torch.nan, dtype=torch.float64) for part in parts]
        views = [spread[0][:, 1:25].t(), spread[1][:, 2:2 + 2 * len(parts[1]):2].t()]
        for view, part in zip(views, parts):
            view.copy_(part)
        x = direct_solver(*views, distributions=[cut, Slab.X], options={"factorization": kind}, group=group())
        assert x is views[1]
        check(x, take(Slab.X, torch.linalg.solve(a, b), rank, 2), kind)
        below = take(cut, torch.ones(24, 24).tril() if kind == "cholesky" else torch.ones(24, 24), rank, 2)
        check(views[0] * below, take(cut, packed(a, kind), rank, 2) * below, f"factors, {kind}")
        assert all(int(big.isnan().sum()) == big.numel() - view.numel() for big, view in zip(spread, views))


def test_operands_of_any_strides() -> None:
    run_ranks(2, padded)


def without_solution(rank: int, ranks: int) -> list[tuple[str, str]]:
    n, errors = 11, []

    def call(a: torch.Tensor, kind: str = "lu", width: int = 2) -> tuple[str, str]:
        b = torch.ones(*a.shape[:-1], 2, dtype=a.dtype)
        cut = Slab(a.dim() - 1)
        return error_of(direct_solver, take(cut, a, rank, ranks), take(cut, b, rank, ranks), distributions=[cut, cut],
                        options={"factorization": kind, "panel_width": width}, group=group())
    good, spd = (matrix_of((n, n), torch.float64, kind, 5) for kind in ("lu", "cholesky"))
    singular, negative = good.clone(), spd.clone()
    singular[:, 6] = 0
    negative[7, 7] = -1
    errors += [call(singular), call(torch.zeros(1, 1)), call(negative, "cholesky"),
               call(torch.stack([good] * ranks + [singular, good, singular])),
               call(torch.stack([spd] * ranks + [negative]), "cholesky")]
    undefined = spd.clone()
    undefined[4, 4] = torch.nan
    errors += [call(undefined, "cholesky"), call(torch.stack([undefined] * ranks), "cholesky")]
    if ranks > 2:
        errors.append(call(torch.stack([good, singular])))
    # A NaN makes the solution undefined, and is no error of LU; in b only one column is undefined.
    undefined, b = good.clone(), torch.ones(n, 2, dtype=torch.float64)
    undefined[3, 0] = torch.nan
    x = direct_solver(take(Slab.Y, undefined, rank, ranks), take(Slab.X, b, rank, ranks),
                      distributions=[Slab.Y, Slab.X], options={"panel_width": 2}, group=group())
    assert bool(x.isnan().all())
    b[5, 1] = torch.nan
    for kind, a in (("lu", good), ("cholesky", spd)):
        x = direct_solver(take(Slab.Y, a, rank, ranks), take(Slab.X, b, rank, ranks), distributions=[Slab.Y, Slab.X],
                          options={"panel_width": 2, "factorization": kind}, group=group())
        check(x[:, :1], take(Slab.X, torch.linalg.solve(a, b[:, :1]), rank, ranks), "beside a NaN")
        assert bool(x[:, 1].isnan().all())
    return errors


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_matrices_without_factors_are_an_error_on_all_ranks(ranks: int) -> None:
    call = "linalg.direct_solver: "
    expected = [f"{call}a is singular: U[6, 6] is exactly 0", f"{call}a is singular: U[0, 0] is exactly 0",
                f"{call}a is not positive definite: the leading minor of order 8 is not positive",
                f"{call}matrix {ranks} of the batch is singular: U[6, 6] is exactly 0",
                f"{call}matrix {ranks} of the batch is not positive definite: the leading minor of order 8 is not "
                "positive", f"{call}a is not positive definite: the leading minor of order 5 is not positive",
                f"{call}matrix 0 of the batch is not positive definite: the leading minor of order 5 is not positive"]
    if ranks > 2:
        expected.append(f"{call}matrix 1 of the batch is singular: U[6, 6] is exactly 0")
    wanted = [(torch.linalg.LinAlgError.__name__, text) for text in expected]
    for errors in run_ranks(ranks, without_solution, ranks):
        assert errors == wanted


def overwritten(rank: int) -> None:
    """A failed factorize() has written into a only where a is factorized where it lies."""
    dealt = BlockCyclic(ProcessGrid(shape=(1, 2)), [24, 8])
    a, b = matrix_of((24, 24), torch.float64, "lu", 3), torch.ones(24, 1, dtype=torch.float64)
    a[:, 20] = 0
    for cut, lies in ((dealt, True), (Slab.X, False)):
        mine = in_order(take(cut, a, rank, 2), True)
        kind, text = error_of(direct_solver, mine, take(Slab.X, b, rank, 2), distributions=[cut, Slab.X], group=group())
        assert kind == torch.linalg.LinAlgError.__name__ and "U[20, 20] is exactly 0" in text
        assert torch.equal(mine, take(cut, a, rank, 2)) != lies


def test_a_failed_factorization_in_place() -> None:
    run_ranks(2, overwritten)


def stateful(rank: int) -> None:
    a, b = matrix_of((9, 9), torch.float64, "lu", 1), data_of((9, 2), torch.float64, 2)
    mine = [take(Slab.X, whole, rank, 3) for whole in (a, b)]

    def wanted(factor: float) -> torch.Tensor:
        return take(Slab.X, torch.linalg.solve(a, b) * factor, rank, 3)
    lines: list[str] = []
    logger = logging.getLogger("solver")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    options = DirectSolverOptions(logger, True, False, False, panel_width=2)
    with DirectSolver(*mine, distributions=[Slab.X, Slab.X], group=group(), options=options) as solver:
        for early in (solver.factorize, solver.solve, solver.explain):
            with pytest.raises(InvalidDirectSolverState, match="after plan"):
                early()
        solver.plan()
        assert len(lines) == 1 and "5 panels of 2 columns, dealt to 3 ranks" in lines[0]
        with pytest.raises(InvalidDirectSolverState, match="after factorize"):
            solver.solve()
        solver.factorize(stream=None)
        first = solver.solve(stream=None)
        check(first, wanted(1), "first")
        mine[1] *= 2  # b is read at each solve
        check(solver.solve(), wanted(2), "b in place")
        solver.reset_operands(b=mine[1] / 4)
        check(solver.solve(), wanted(0.5), "another b")
        solver.reset_operands(a=mine[0] * 2)
        with pytest.raises(InvalidDirectSolverState, match="after another a"):
            solver.solve()
        solver.factorize()
        check(solver.solve(), wanted(0.25), "another a")
        solver.reset_operands()
        with pytest.raises(InvalidDirectSolverState, match="needs b"):
            solver.solve()
        with pytest.raises(InvalidDirectSolverState, match="needs a"):
            solver.factorize()
        solver.reset_operands_unchecked(a=mine[0], b=mine[1])
        solver.factorize()
        check(solver.solve(), wanted(2), "again")
        with pytest.raises(TypeError, match="rank 1: the dtype of b was torch.float64, the new one's is torch.float32"):
            solver.reset_operands(b=mine[1].float() if rank == 1 else mine[1])
        with pytest.raises(shardwire.MismatchError, match="operands differs"):
            solver.reset_operands(**({"a": mine[0]} if rank else {"b": mine[1]}))
        with pytest.raises(ValueError, match="rank 2: b requires grad"):
            solver.reset_operands(b=mine[1].clone().requires_grad_(rank == 2))
        check(solver.solve(), wanted(2), "as before")
        check(first, wanted(1), "first")
    solver.free()
    with pytest.raises(InvalidDirectSolverState, match="freed"):
        solver.plan()
    with torch.no_grad():
        x = direct_solver(mine[0].requires_grad_(), mine[1], distributions=[Slab.X, Slab.X], group=group())
    assert x is mine[1]
    check(x, wanted(2), "in place")


def test_the_class() -> None:
    run_ranks(3, stateful)


def nothing(rank: int) -> None:
    """No rows, no right-hand sides, no matrices."""
    for shape_a, shape_b in (((0, 0), (0, 3)), ((4, 4), (4, 0)), ((0, 4, 4), (0, 4, 2)), ((3, 0, 0), (3, 0, 1)),
                             ((0, 0), (0,))):
        a, b = torch.ones(shape_a) + torch.eye(shape_a[-1]), torch.ones(shape_b)
        x = direct_solver(take(Slab.X, a, rank, 2), take(Slab.X, b, rank, 2), distributions=[Slab.X, Slab.X],
                          group=group(), options={"inplace_b": False})
        assert x.shape == Slab.X.shape(rank, shape_b, 2)


def test_without_elements() -> None:
    run_ranks(2, nothing)


def over_one_dimension(rank: int, ranks: int) -> None:
    """A cut of one dimension cuts the rows, as in nvmath 1.0."""
    a, b = matrix_of((13, 13), torch.float64, "lu", 1), data_of((13, 2), torch.float64, 2)
    turned = ProcessGrid(process_array=list(range(ranks))[::-1])
    for cut in (BlockCyclic(ProcessGrid(shape=(ranks,)), [2]), Block(turned, first_process=[ranks - 1]), Slab(0, 1),
                BlockCyclic(turned, [3], first_process=[ranks - 1])):
        rows = take(cut, torch.arange(13), rank, ranks)
        for whole in (b, b[:, 0]):
            x = direct_solver(a[rows], whole[rows], distributions=[cut, cut], group=group())
            check(x, torch.linalg.solve(a, whole)[rows], f"{cut}")


@pytest.mark.parametrize("ranks", [1, 3])
def test_distributions_of_one_dimension(ranks: int) -> None:
    run_ranks(ranks, over_one_dimension, ranks)


def sub_group(rank: int) -> None:
    import torch.distributed as dist
    few = dist.new_group([1, 3], backend="shardwire")
    if rank in (1, 3):
        number = (1, 3).index(rank)
        for kind in ("lu", "cholesky"):
            a, b = matrix_of((9, 9), torch.float64, kind, 1), data_of((9, 2), torch.float64, 2)
            x = direct_solver(take(Slab.X, a, number, 2), take(Slab.Y, b, number, 2), distributions=[Slab.X, Slab.Y],
                              options={"factorization": kind, "panel_width": 2}, group=few)
            check(x, take(Slab.Y, torch.linalg.solve(a, b), number, 2), kind)


def test_on_some_of_the_ranks() -> None:
    run_ranks(4, sub_group, default_group=True)


def misuse(rank: int) -> list[tuple[str, str]]:
    a, b = torch.eye(6)[3 * rank:3 * rank + 3].clone(), torch.ones(3, 5)
    cuts = [Slab.X, Slab.X]
    g = {"group": group(), "distributions": cuts}
    read_only = a.numpy().copy()
    read_only.flags.writeable = False
    turned = torch.ones(3, 6, dtype=torch.complex64).conj()

    def call(*operands: Any, **options: Any) -> tuple[str, str]:
        return error_of(lambda: direct_solver(*operands, **{**g, **options}))
    errors = [
        call(a, "no array" if rank else b), call(a, b.double() if rank else b), call(a, b.numpy() if rank else b),
        call(a.int(), b.int()), call(a.half(), b.half()), call(a[0] if rank else a, b), call(a, b[None, None]),
        call(a[:, :5], b), call(a, b[:2]), call(a, b[:2, 0]),
        call(a[None], torch.ones(2, 3, 5), distributions=[Slab.Y, Slab.Y]),
        call(torch.ones(2, 3, 3), torch.ones(3, 3, 1)),
        call(a, b, distributions=cuts[:1]), call(a, b, distributions=[Slab.X, Slab.Y if rank else Slab.X]),
        call(a, b, distributions=None), call(a, torch.ones(3, 5 + rank)),
        call(a, b, distributions=[Slab.X, Boxes([Box((0, 0), (3, 5)), Box((4, 0), (7, 5))])]),
        call(a, b, options={"no such": 1}), call(a, b, options={"factorization": "qr"}),
        call(a, b, options={"factorization": "cholesky"} if rank else None),
        call(a, b, options={"panel_width": 0} if rank else None), call(a, b, options={"panel_width": 1 + rank}),
        call(a, b, options={"inplace_a": 1}), call(a, b, options={"inplace_b": bool(rank)}),
        call(a, b, options={"blocking": False}),
        call(a, b.clone().requires_grad_() if rank else b), call(read_only if rank else a.numpy(), b.numpy()),
        call(turned, torch.ones(3, 5, dtype=torch.complex64)), call(a, torch.ones(1, 5).expand(3, 5)),
        call(a, a[:, :5]), call(a, torch.zeros(2, 3, dtype=torch.int8).to_sparse() if rank else b),
    ]
    x = direct_solver(a, b, **g)
    assert torch.equal(x, torch.ones(3, 5))  # the group goes on
    return errors


EXPECTED = [
    ("TypeError", "rank 1: b is 'no array'"), ("TypeError", "rank 1: the dtype of b is torch.float64, and of a"),
    ("TypeError", "rank 1: the package of b is numpy, and of a torch"),
    ("TypeError", "rank 0: a has dtype torch.int32"),
    ("TypeError", "rank 0: a has dtype torch.float16"), ("ValueError", "rank 1: a has 1 dimensions; give a matrix"),
    ("ValueError", "rank 0: b has 4 dimensions, and a 2"), ("ValueError", "a is 6 x 5; give a square matrix"),
    ("ValueError", "a has the shape [6, 6] and b [4, 5]; b needs 6 rows"),
    ("ValueError", "a has the shape [6, 6] and b [4]; b needs 6 rows"), ("ValueError", "b needs 1 matrices of 6 rows"),
    ("ValueError", "a has the shape [4, 3, 3] and b [6, 3, 1]; b needs 4 matrices of 3 rows"),
    ("ValueError", "give two: of a, and of b"), ("MismatchError", "the distribution of b differs"),
    ("TypeError", "distributions[0] is None"), ("BindDistributionError", "b has shape [3, 6] on rank 1"),
    ("GapError", "leaves [3:4, 0:5]"), ("ValueError", "options has 'no such'"),
    ("ValueError", "factorization is 'qr'; give 'lu' or 'cholesky'"),
    ("MismatchError", "factorization differs between ranks: lu on rank 0, cholesky on rank 1"),
    ("ValueError", "rank 1: panel_width is 0"), ("MismatchError", "panel_width differs"),
    ("TypeError", "inplace_a is 1; give True or False"), ("MismatchError", "inplace_b differs"),
    ("ValueError", "blocking is False"), ("ValueError", "rank 1: b requires grad"),
    ("ValueError", "rank 1: a is read-only"), ("ValueError", "a is a lazily conjugated"),
    ("ValueError", "b has elements that share memory"), ("ValueError", "a and b share memory"),
    ("UnsupportedError", "rank 1: b has the layout torch.sparse_coo"),
]


def test_each_misuse_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse, EXPECTED)


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    flat, mesh = DeviceMesh("cpu", torch.arange(4)), DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    a, b = matrix_of((9, 9), torch.float64, "lu", 1), data_of((9, 5), torch.float64, 2)
    for where, placements in ((flat, ([dt.Shard(0)], [dt.Shard(1)])),
                              (mesh, ([dt.Shard(0), dt.Replicate()], [dt.Replicate(), dt.Shard(1)])),
                              (mesh, ([dt.Shard(0), dt.Shard(1)], [dt.Replicate(), dt.Replicate()]))):
        of_a, of_b = (dt.distribute_tensor(whole.clone(), where, cut) for whole, cut in zip((a, b), placements))
        for options in ({"inplace_a": False, "inplace_b": False}, {}):
            x = direct_solver(of_a, of_b, options=options)
            assert x.placements == tuple(placements[1]) and (x is of_b) == (not options)
            check(x.full_tensor(), torch.linalg.solve(a, b), f"{placements}")
        check(of_a.full_tensor(), packed(a, "lu"), f"factors {placements}")
    of_a, of_b = (dt.distribute_tensor(whole.clone(), mesh, [dt.Replicate(), dt.Shard(0)]) for whole in (a, b))
    kept = {"inplace_a": False, "inplace_b": False}
    turned = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]))
    x = direct_solver(of_a, of_b, distributions=[None, Placements([dt.Shard(0), dt.Replicate()], turned)], options=kept)
    assert x.device_mesh == turned and x.placements == (dt.Shard(0), dt.Replicate())
    check(x.full_tensor(), torch.linalg.solve(a, b), "on another mesh")
    kind, text = error_of(lambda: direct_solver(of_a, of_b, distributions=[None, Slab.X]))
    assert kind == "TypeError" and "give placements" in text


def test_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(4, dtensors, default_group=True)


def by_context(rank: int) -> None:
    """As in nvmath's documents: a context, and block-cyclic matrices in Fortran order; then a group of its own, which
    no plan keeps alive."""
    import torch.distributed as dist
    swd.initialize(0, group())
    grid = ProcessGrid(shape=(2, 1), layout=ProcessGrid.Layout.COL_MAJOR)
    cuts = [BlockCyclic(grid, (2, 2)), BlockCyclic(grid, (2, 1))]
    a, b = matrix_of((8, 8), torch.float64, "lu", 1), data_of((8, 1), torch.float64, 2)
    mine = [in_order(take(cut, whole, rank, 2), True).numpy() for cut, whole in zip(cuts, (a, b))]
    x = swd.linalg.direct_solver(*mine, distributions=cuts, options=swd.linalg.DirectSolverOptions(handle=1))
    assert x is mine[1]
    check(torch.from_numpy(x), take(cuts[1], torch.linalg.solve(a, b), rank, 2), "by context")
    swd.finalize()
    few = dist.new_group([0, 1], backend="shardwire")
    direct_solver(torch.eye(2)[rank:rank + 1], torch.ones(1), distributions=[Slab.X, Slab.X], group=few)
    gone = weakref.ref(few)
    dist.destroy_process_group(few)
    del few
    gc.collect()
    assert gone() is None, gc.get_referrers(gone())


def test_by_context() -> None:
    run_ranks(2, by_context, default_group=True)
