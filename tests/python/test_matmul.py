"""Products of distributed matrices: against numpy's or torch's product of the whole matrices in one process, and every
misuse as one error on all ranks."""

from __future__ import annotations

import datetime
import gc
import itertools
import logging
import os
import random
import weakref
from typing import Any

import numpy
import pytest
import torch
from matmul_cases import (Place, addends, check, check_auxiliary, data_of, gelu, has_dtensors, in_order, inputs_of,
                          local_vector, modelled, multiplied, random_case, random_grid, stored, wide)
from random_campaign import RANKS_AND_WAYS, Digest, run_campaign
from ranks import error_of, group, run_ranks
from test_reshape import check_misuse, dtensor_of, random_distribution, take

import shardwire
import shardwire.distributed as swd
from shardwire.distributed.distribution import Block, BlockCyclic, Box, Boxes, Placements, ProcessGrid, Slab
from shardwire.distributed.linalg.advanced import (InvalidMatmulState, Matmul, MatmulComputeType, MatmulEpilog,
                                                   MatmulOptions, matmul, matrix_qualifiers_dtype)

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20261125"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "60"))


def random_cases(rank: int, ranks: int, seed: int, cases: int) -> str:
    import torch.distributed as dist
    rng, digest, with_dtensors = random.Random(seed), Digest(), has_dtensors()
    home, meshes = rng.sample(range(ranks), ranks), dict[str, Any]()
    few = dist.new_group(list(range(1, ranks)), backend="shardwire") if ranks > 1 else None
    for number in range(cases):
        case = random_case(rng, ranks, home, seed + number)
        if rank not in case.members:
            continue
        case = case if with_dtensors else case._replace(mesh=None)
        said = f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {number}: {case}"
        own, count = case.members.index(rank), len(case.members)
        places = [Place(cut.grouped(case.members), own, count) for cut in case.cuts]
        c = addends(case)[own if case.kind == MatmulEpilog.ALLREDUCE else 0]
        local = [in_order(take(place.side, whole, own, count), turns) for place, whole, turns in zip(
            places, (*case.operands[:2], c), (*case.orders, False))]
        inputs, together = inputs_of(case, places[2]), group() if count == ranks else few
        got, aux = multiplied(case, local, inputs, together, meshes)
        wanted, of_aux = modelled(case)
        assert got.dtype == case.data.dtype and sorted(aux) == sorted(of_aux), said
        check(got, take(places[2].side, wanted, own, count), said)
        for name, whole in of_aux.items():
            check_auxiliary(aux[name], whole, wanted, case, places[2], f"{name}: {said}")
        again, again_aux = multiplied(case, local, inputs, together, meshes)
        assert torch.equal(again, got) and all(torch.equal(again_aux[name], aux[name]) for name in aux), said
        digest.add(got, *aux.values())
    return str(digest)


@pytest.mark.parametrize(("ranks", "way"), RANKS_AND_WAYS)
def test_random_cases(ranks: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has_dtensors()  # the import takes seconds, in each rank otherwise
    run_campaign(random_cases, ranks, way, SEED, CASES, monkeypatch, default_group=True)


def known_algorithms(rank: int, ranks: int) -> dict[str, str]:
    """Large enough that bytes count more than the number of messages. Only the plans are made."""
    grid = Block(ProcessGrid(shape=(2, ranks // 2), layout=ProcessGrid.Layout.ROW_MAJOR))
    cyclic = BlockCyclic(ProcessGrid(shape=(2, ranks // 2), layout=ProcessGrid.Layout.COL_MAJOR), [16, 16])
    everywhere = Placements([shardwire.Replicate()])
    found = {}
    for name, cuts, dims in (("gather", [Slab.X, Slab.X, Slab.X], (512, 512, 512)),
                             ("columns", [Slab.Y, Slab.Y, Slab.Y], (512, 512, 512)),
                             ("nothing", [Slab.X, everywhere, Slab.X], (512, 512, 512)),
                             ("scatter", [Slab.Y, Slab.X, Slab.X], (128, 128, 4096)),
                             ("reduce", [Slab.Y, Slab.X, everywhere], (128, 128, 4096)),
                             ("grid", [grid, grid, grid], (512, 512, 512)),
                             ("cyclic", [cyclic, cyclic, cyclic], (512, 512, 512))):
        m, n, k = dims
        a = torch.zeros(cuts[0].shape(rank, (m, k), ranks))
        b = torch.zeros(cuts[1].shape(rank, (k, n), ranks))
        with Matmul(a, b, distributions=cuts, group=group()) as product:
            product.plan()
            found[name] = product.explain().partition("torch.float32: ")[2].partition(" panel")[0]
    return found


def test_the_algorithm_follows_from_the_bytes() -> None:
    for found in run_ranks(4, known_algorithms, 4):
        assert found == {
            "gather": "all-gather + product; 4 x 1 parts of the result, 1 of the addends; 1",
            "columns": "all-gather + product; 1 x 4 parts of the result, 1 of the addends; 1",
            "nothing": "product; 4 x 1 parts of the result, 1 of the addends; 1",
            "scatter": "product + reduce-scatter; 1 x 1 parts of the result, 4 of the addends; 1",
            "reduce": "product + all-reduce; 1 x 1 parts of the result, 4 of the addends; 1",
            "grid": "SUMMA; 2 x 2 parts of the result, 1 of the addends; 1",
            "cyclic": "SUMMA; 2 x 2 parts of the result, 1 of the addends; 1"}


def epilog_cases(rank: int, ranks: int) -> None:
    m, n, k = 7, 9, 11
    a, b = data_of((m, k), torch.float64, 1), data_of((k, n), torch.float64, 2)
    bias = data_of((m,), torch.float64, 3)
    rows = Boxes([Box((0, 0), (4, n))] + [Box((4, 0), (m, n)) if number == 1 else Box((0, 0), (0, 0))
                                          for number in range(1, ranks)]) if ranks > 1 else Slab.X
    for cut, dtype in itertools.product((Slab.X, Slab.Y, rows, BlockCyclic(ProcessGrid(shape=(ranks, 1)), [2, 3])),
                                        (torch.float64, torch.bfloat16)):
        whole = wide(a.to(dtype)) @ wide(b.to(dtype))
        parts = (take(Slab.Y, a.to(dtype), rank, ranks), take(Slab.X, b.to(dtype), rank, ranks))
        share = cut.share(rank, (m, n), ranks)
        ones = torch.ones((1, n), dtype=torch.float64)
        of_rows = take(cut, bias[:, None] * ones, rank, ranks)[:, 0] if share.local_shape[1] else bias[:0]
        if not share.local_shape[1]:
            of_rows = torch.zeros(share.local_shape[0], dtype=torch.float64)
        biased = wide(a.to(dtype)) @ wide(b.to(dtype)) + wide(bias.to(dtype))[:, None]

        def run(kind: MatmulEpilog, **inputs: torch.Tensor) -> Any:
            return matmul(*parts, distributions=[Slab.Y, Slab.X, cut], epilog=kind, epilog_inputs=inputs or None,
                          group=group())
        for kind, model, inputs in (
                (MatmulEpilog.DEFAULT, whole, {}), (MatmulEpilog.RELU, whole.relu(), {}),
                (MatmulEpilog.GELU, gelu(whole), {}), (MatmulEpilog.BIAS, biased, {"bias": of_rows.to(dtype)}),
                (MatmulEpilog.RELU_BIAS, biased.relu(), {"bias": of_rows.to(dtype)[:, None]}),
                (MatmulEpilog.GELU_BIAS, gelu(biased), {"bias": of_rows.to(dtype)})):
            check(run(kind, **inputs), take(cut, model, rank, ranks), f"{kind.name} {cut} {dtype}")
        given = {"bias": of_rows.to(dtype)}
        value, aux = run(MatmulEpilog.RELU_AUX_BIAS, **given)
        check(value, take(cut, biased.relu(), rank, ranks), "RELU_AUX_BIAS")
        assert aux["relu_aux"].dtype == torch.bool
        assert torch.equal(run(MatmulEpilog.RELU_AUX)[1]["relu_aux"], take(cut, whole > 0, rank, ranks))
        check(run(MatmulEpilog.DRELU, relu_aux=aux["relu_aux"]), take(cut, whole * (biased > 0), rank, ranks), "DRELU")
        value, vector = run(MatmulEpilog.DRELU_BGRAD, relu_aux=aux["relu_aux"])
        model = whole * (biased > 0)
        check_rows(vector["drelu_bgrad"], model.sum(1), cut, (m, n), rank, ranks, "DRELU_BGRAD")
        value, aux = run(MatmulEpilog.GELU_AUX_BIAS, **given)
        check(aux["gelu_aux"], take(cut, biased, rank, ranks), "gelu_aux")
        tracked = wide(biased.to(dtype)).requires_grad_()
        gelu(tracked).backward(whole)
        check(run(MatmulEpilog.DGELU, gelu_aux=aux["gelu_aux"]), take(cut, tracked.grad, rank, ranks), "DGELU")
        value, vector = run(MatmulEpilog.DGELU_BGRAD, gelu_aux=aux["gelu_aux"])
        check_rows(vector["dgelu_bgrad"], tracked.grad.sum(1), cut, (m, n), rank, ranks, "DGELU_BGRAD")
        check(run(MatmulEpilog.GELU_AUX)[1]["gelu_aux"], take(cut, whole, rank, ranks), "GELU_AUX")
        value, vector = run(MatmulEpilog.BGRADA)
        check(value, take(cut, whole, rank, ranks), "BGRADA")
        check_rows(vector["bgrada"], wide(a.to(dtype)).sum(1), cut, (m, n), rank, ranks, "BGRADA")
        value, vector = run(MatmulEpilog.BGRADB)
        sums = wide(b.to(dtype)).sum(0)
        check(vector["bgradb"], local_vector(sums, (m, n), 1, Place(cut, rank, ranks)), "BGRADB")
        # every rank gets the sum, with the sum of what each rank adds
        c = torch.full((m, n), 7.0 if rank == 0 else 0.5, dtype=dtype)
        value = matmul(*parts, c, beta=2, distributions=[Slab.Y, Slab.X, cut], epilog=MatmulEpilog.ALLREDUCE,
                       group=group())
        check(value, whole + 2 * (7 + 0.5 * (ranks - 1)), "ALLREDUCE")


def check_rows(got: torch.Tensor, whole: torch.Tensor, cut: Any, dims: Any, rank: int, ranks: int, said: str) -> None:
    """got: an entry for each row of the local part."""
    check(got, local_vector(whole, dims, 0, Place(cut, rank, ranks)), said)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_epilogs(ranks: int) -> None:
    run_ranks(ranks, epilog_cases, ranks)


def gradient_cases(rank: int, ranks: int, seed: int, cases: int) -> int:
    rng = random.Random(seed)
    for case in range(cases):
        m, n, k = (rng.randint(1, 9) for _ in range(3))
        dtype = rng.choice([torch.float64, torch.complex128, torch.bfloat16])
        qualifiers = [{"is_transpose": rng.random() < 0.4, "is_conjugate": dtype.is_complex and rng.random() < 0.4}
                      for _ in range(2)] + [{}]
        a, b, c = (data_of(shape, dtype, seed + case) for shape in ((m, k), (k, n), (m, n)))
        of_a, of_b = stored(a, qualifiers[0]), stored(b, qualifiers[1])
        everywhere = rng.random() < 0.3
        cuts = [random_distribution(rng, tuple(whole.shape), ranks) for whole in (of_a, of_b, c)]
        if everywhere:
            cuts[2] = Boxes([Box((0, 0), (m, n))] * ranks)
        said = f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {m} x {k} x {n} {dtype} {cuts} {qualifiers}"
        whole = [wide(value).clone().requires_grad_() for value in (of_a, of_b, c)]
        mine = [take(cut, value, rank, ranks).requires_grad_() for cut, value in zip(cuts, (of_a, of_b, c))]
        got = matmul(*mine, alpha=0.5, beta=2, distributions=cuts, qualifiers=qualifiers, group=group(),
                     options={"grid": random_grid(rng, ranks), "panels": 2})
        weights = data_of((m, n), torch.complex128 if dtype.is_complex else torch.float64, seed - case)
        (wide(got) * take(cuts[2], weights, rank, ranks)).abs().pow(2).sum().backward()
        factors = [(value.t() if item.get("is_transpose") else value) for value, item in zip(whole, qualifiers)]
        factors = [(value.conj() if item.get("is_conjugate") else value) for value, item in zip(factors, qualifiers)]
        loss = ((factors[0] @ factors[1] * 0.5 + 2 * whole[2]) * weights).abs().pow(2).sum()
        loss.backward()
        times = ranks if everywhere else 1  # each rank's copy of the result counts
        for name, cut, value, local, copies in zip("abc", cuts, whole, mine, (times, times, 1)):
            check(local.grad, take(cut, value.grad, rank, ranks) * copies, f"{name}: {said}")
    return cases


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_gradients_are_torchs(ranks: int) -> None:
    cases = max(1, CASES // 3)
    assert run_ranks(ranks, gradient_cases, ranks, SEED + ranks, cases, timeout=60 + CASES) == [cases] * ranks


def epilog_gradients(rank: int) -> None:
    """A layer: the gradients of its input, weights and bias."""
    x, w, bias = (data_of(shape, torch.float64, 9) for shape in ((6, 5), (5, 4), (6,)))
    whole = [value.clone().requires_grad_() for value in (x, w, bias)]
    gelu(whole[0] @ whole[1] + whole[2][:, None]).pow(2).sum().backward()
    mine = [take(Slab.X, value, rank, 2).requires_grad_() for value in (x, w, bias)]
    for _ in range(2):
        for value in mine:
            value.grad = None
        got = matmul(*mine[:2], distributions=[Slab.X] * 3, epilog=MatmulEpilog.GELU_BIAS,
                     epilog_inputs={"bias": mine[2]}, group=group())
        got.pow(2).sum().backward()
        for value, local in zip(whole, mine):
            check(local.grad, take(Slab.X, value.grad, rank, 2), "a layer")
    with torch.inference_mode(), Matmul(x[3 * rank:3 * rank + 3], mine[1].detach(), distributions=[Slab.X] * 3,
                                        group=group()) as product:
        product.plan()
        first = product.execute()
    check(first, take(Slab.X, x @ w, rank, 2), "in inference mode")


def test_gradients_of_a_layer() -> None:
    run_ranks(2, epilog_gradients)


def gradients_through_epilogs(rank: int) -> None:
    a, b, bias, weights, aux = (data_of(shape, torch.float64, seed) for seed, shape in enumerate(
        ((6, 5), (5, 4), (6,), (6, 4), (6, 4))))
    for kind in MatmulEpilog:
        name = kind.name
        whole = [value.clone().requires_grad_() for value in (a, b, bias)]
        value = whole[0] @ whole[1]
        value = value + whole[2][:, None] if "BIAS" in name else value
        tracked = aux.clone().requires_grad_()
        model = (value.relu() if name.startswith("RELU") else gelu(value) if name.startswith("GELU") else
                 value * (aux > 0) if name.startswith("DRELU") else
                 value * torch.autograd.grad(gelu(tracked).sum(), tracked)[0] if name.startswith("DGELU") else value)
        (model.pow(2) * weights).sum().backward()
        mine = [take(Slab.X, each, rank, 2).requires_grad_() for each in (a, b, bias)]
        own = take(Slab.X, aux, rank, 2)
        inputs = {"bias": mine[2]} if "BIAS" in name else {
            "relu_aux": own > 0} if name.startswith("DRELU") else {"gelu_aux": own} if name.startswith("DGELU") else {}
        got = matmul(*mine[:2], distributions=[Slab.X] * 3, epilog=kind, epilog_inputs=inputs or None, group=group())
        if isinstance(got, tuple):
            assert not any(each.requires_grad for each in got[1].values()), name
            got = got[0]
        is_whole = kind == MatmulEpilog.ALLREDUCE
        # Every rank has the whole result with ALLREDUCE: each rank's loss is of its own rows.
        got = take(Slab.X, got, rank, 2) if is_whole else got
        (got.pow(2) * take(Slab.X, weights, rank, 2)).sum().backward()
        for wanted, local in zip(whole[:2 + ("BIAS" in name)], mine):
            check(local.grad, take(Slab.X, wanted.grad, rank, 2), name)


def test_gradients_through_each_epilog() -> None:
    run_ranks(2, gradients_through_epilogs)


def strided(rank: int) -> None:
    """Operands that are views with gaps, and turned; the result is written between the elements of others."""
    a, b, c = (data_of(shape, torch.float32, 4) for shape in ((6, 8), (8, 5), (6, 5)))
    mine = [take(Slab.X, whole, rank, 2) for whole in (a, b, c)]
    spread = [torch.full((2 * len(part) + 1, 3 * part.shape[1] + 2), torch.nan) for part in mine]
    views = [big[1::2, 2::3] for big in spread]
    for view, part in zip(views, mine):
        view.copy_(part)
    wanted = take(Slab.X, wide(a) @ wide(b) + wide(c), rank, 2)
    got = matmul(*views, beta=1, distributions=[Slab.X] * 3, group=group())
    assert got is views[2] and int(spread[2].isnan().sum()) == spread[2].numel() - got.numel()
    check(got, wanted, "gaps")
    turned = [part.numpy()[::-1, ::-1].copy()[::-1, ::-1] for part in mine[:2]]
    check(torch.from_numpy(matmul(*turned, distributions=[Slab.X] * 3, group=group())) + mine[2], wanted, "turned")


def test_operands_of_any_strides() -> None:
    run_ranks(2, strided)


def stateful(rank: int) -> None:
    a, b = data_of((6, 8), torch.float64, 1), data_of((8, 5), torch.float64, 2)
    mine = [take(Slab.X, a, rank, 3), take(Slab.Y, b, rank, 3)]
    cuts = [Slab.X, Slab.Y, Slab.X]

    def wanted(factor: float) -> torch.Tensor:
        return take(Slab.X, a @ b * factor, rank, 3)
    with Matmul(*mine, distributions=cuts, group=group(), options={"blocking": True}) as product:
        with pytest.raises(InvalidMatmulState, match="after plan"):
            product.execute()
        product.plan()
        first = product.execute()
        check(first, wanted(1), "first")
        mine[0] *= 2  # operands are read at each execute
        check(product.execute(release_workspace=True), wanted(2), "in place")
        check(first, wanted(1), "first")
        product.reset_operands(mine[0] / 2)
        check(product.execute(), wanted(1), "another a")
        product.reset_operands(b=mine[1] * 3, alpha=2)
        check(product.execute(), wanted(6), "another b and alpha")
        product.reset_operands()
        with pytest.raises(InvalidMatmulState, match="needs operands"):
            product.execute()
        product.reset_operands_unchecked(*mine)
        check(product.execute(), wanted(4), "again")
        with pytest.raises(TypeError, match="rank 1: the dtype of b was torch.float64, the new one's is torch.float32"):
            product.reset_operands(b=mine[1].float() if rank == 1 else mine[1])
        with pytest.raises(shardwire.MismatchError, match="alpha differs"):
            product.reset_operands(alpha=rank)
        with pytest.raises(ValueError, match="rank 0: c is given, and this product has no c"):
            product.reset_operands(c=torch.zeros(2, 5))
        check(product.execute(), wanted(4), "as before")
        product.reset_operands(alpha=1)
        bias = torch.ones(2, dtype=torch.float64)
        product.plan(epilog=MatmulEpilog.BIAS, epilog_inputs={"bias": bias})
        check(product.execute(), wanted(2) + 1, "bias")
        product.reset_operands(epilog_inputs={"bias": bias * 2})
        check(product.execute(), wanted(2) + 2, "another bias")
        product.plan()
        check(product.execute(), wanted(2), "no bias any more")
    with pytest.raises(InvalidMatmulState, match="freed"):
        product.execute()
    product.free()
    lines: list[str] = []

    class Logger:
        def info(self, text: str, *values: Any) -> None:
            lines.append(text % values)
    matmul(*mine, distributions=cuts, group=group(), options=MatmulOptions(logger=Logger()))
    assert len(lines) == 1 and "6 x 8 times 8 x 5" in lines[0] and "parts of the result" in lines[0]
    fortran = [in_order(value, True) for value in mine]
    assert matmul(*fortran, distributions=cuts, group=group()).t().is_contiguous()  # as nvmath's results
    nothing = matmul(torch.zeros(2, 0), torch.zeros(0, 5), distributions=[Slab.X, Slab.X, Slab.X], group=group())
    assert torch.equal(nothing, torch.zeros(2, 5))
    half = [value.to(torch.float16) for value in mine]
    summed = matmul(*half, distributions=cuts, group=group(), options={
        "result_type": "float32", "compute_type": MatmulComputeType.COMPUTE_32F})
    assert summed.dtype == torch.float32 and torch.allclose(summed, wanted(2).float(), atol=1e-2)
    for order in (False, True):
        c = in_order(torch.ones_like(mine[0] @ torch.zeros(8, 5, dtype=torch.float64)), order)
        given = [value.numpy() for value in (*mine, c)] if order else [*mine, c]
        for options in ({"inplace": False}, None, {"inplace": True}):
            got = matmul(*given, beta=3, distributions=cuts, group=group(), options=options)
            assert (got is given[2]) == (options != {"inplace": False})
            check(torch.as_tensor(got), matmul(*mine, distributions=cuts, group=group()) + 3, "in place of c")
            c.fill_(1)
    assert matmul(*mine, distributions=cuts, group=group(), options={"inplace": True}).shape == c.shape  # without c


def test_the_class() -> None:
    run_ranks(3, stateful)


def beta_alone(rank: int) -> list[str]:
    """As in nvmath, beta without c is ignored, and each call warns."""
    a, b = (data_of(shape, torch.float64, 1) for shape in ((4, 6), (6, 5)))
    mine = take(Slab.X, a, rank, 2), take(Slab.X, b, rank, 2)
    lines: list[str] = []
    given = {"distributions": [Slab.X] * 3, "group": group()}
    loggers = [logging.getLogger("product"), logging.getLogger("shardwire")]
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(f"{record.name} {record.getMessage()}")  # type: ignore[method-assign]
    for logger in loggers:
        logger.addHandler(handler)
    check(matmul(*mine, beta=2, **given), take(Slab.X, a @ b, rank, 2), "matmul")
    with Matmul(*mine, beta="x" if rank else 3, options={"logger": loggers[0]}, **given) as product:
        product.plan()
        product.reset_operands(beta=4)
        check(product.execute(), take(Slab.X, a @ b, rank, 2), "Matmul")
        product.reset_operands_unchecked(beta=5, alpha=2)
        check(product.execute(), take(Slab.X, 2 * a @ b, rank, 2), "and alpha")
    return lines


def test_beta_without_c_is_ignored() -> None:
    for rank, lines in enumerate(run_ranks(2, beta_alone)):
        first = "shardwire linalg.advanced.matmul: beta is 2"
        assert [line.partition(",")[0] for line in lines if "beta" in line] == [first, *(
            f"product linalg.advanced.Matmul: beta is {beta}" for beta in ("x" if rank else 3, 4, 5))]


def panels(rank: int, ranks: int) -> None:
    """Sums in panels are the same bits in each run, and cover all addends."""
    grid = Block(ProcessGrid(shape=(2, 2), layout=ProcessGrid.Layout.ROW_MAJOR))
    a, b = data_of((33, 47), torch.float32, 1), data_of((47, 29), torch.float32, 2)
    for cuts, way in itertools.product(([grid] * 3, [Slab.X] * 3, [Slab.Y, Slab.Y, Slab.Y], [Slab.Y, Slab.X, Slab.X]),
                                       (None, 1, 3, 7, 1000)):
        with Matmul(take(cuts[0], a, rank, ranks), take(cuts[1], b, rank, ranks), distributions=cuts, group=group(),
                    options={"panels": way}) as product:
            product.plan()
            first = product.execute()
            check(first, take(cuts[2], wide(a) @ wide(b), rank, ranks), f"{cuts} {way}")
            assert all(torch.equal(product.execute(), first) for _ in range(3))


def test_panels() -> None:
    run_ranks(4, panels, 4)


def panel_choices(rank: int, store: str, hosts: int) -> list[str]:
    import torch.distributed as dist

    from shardwire.distributed.linalg import _product
    os.environ["SHARDWIRE_HOST_ID"] = f"host{rank % hosts}"
    together = shardwire.create_process_group(dist.FileStore(store, 2), rank, 2, datetime.timedelta(seconds=60))
    a, b = data_of((64, 64), torch.float32, 1), data_of((64, 64), torch.float32, 2)
    said = []
    rows, addends = [Slab.X] * 3, [Slab.Y, Slab.X, Slab.X]
    for cuts, least, most in ((rows, 1 << 10, 1 << 28), (addends, 1 << 10, 1 << 28), (rows, 1 << 19, 1 << 28),
                              (rows, 1 << 19, 1 << 11)):
        _product.LEAST_BYTES, _product.MOST_BYTES = least, most
        mine = take(cuts[0], a, rank, 2), take(cuts[1], b, rank, 2)
        with Matmul(*mine, distributions=cuts, group=together) as product:
            product.plan()
            check(product.execute(), take(cuts[2], wide(a) @ wide(b), rank, 2), f"{cuts} {least} {most}")
            said.append(product.explain().partition("\n")[0].rpartition("; ")[2])
    return said


@pytest.mark.parametrize("hosts", [1, 2])
def test_panels_between_hosts_and_for_large_factors(hosts: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "tcp")
    by_itself = "4 panels" if hosts == 2 else "1 panel"
    for said in run_ranks(2, panel_choices, str(tmp_path / "store"), hosts, join=False):
        assert said == [by_itself, by_itself, "1 panel", "8 panels"]


def sub_group(rank: int) -> None:
    import torch.distributed as dist
    few = dist.new_group([1, 3], backend="shardwire")
    if rank in (1, 3):
        number = (1, 3).index(rank)
        a, b = data_of((5, 4), torch.float32, 1), data_of((4, 6), torch.float32, 2)
        got = matmul(take(Slab.X, a, number, 2), take(Slab.X, b, number, 2), distributions=[Slab.X, Slab.X, Slab.Y],
                     group=few)
        check(got, take(Slab.Y, wide(a) @ wide(b), number, 2), "two of four")
        gone = weakref.ref(few)
        dist.destroy_process_group(few)
        del few
        gc.collect()
        assert gone() is None, gc.get_referrers(gone())


def test_on_some_of_the_ranks() -> None:
    run_ranks(4, sub_group, default_group=True)


def over_one_dimension(rank: int) -> None:
    """A cut of one dimension cuts the rows, as in nvmath 1.0."""
    a, b = data_of((7, 5), torch.float64, 1), data_of((5, 4), torch.float64, 2)
    cuts = [BlockCyclic(ProcessGrid(shape=(3,)), [2]), Slab(0, 1), Block(ProcessGrid(process_array=[2, 0, 1]))]
    rows = [take(cut, torch.arange(len(whole)), rank, 3) for cut, whole in zip(cuts, (a, b, a))]
    check(matmul(a[rows[0]], b[rows[1]], distributions=cuts, group=group()), (a @ b)[rows[2]], "one dimension")


def test_distributions_of_one_dimension() -> None:
    run_ranks(3, over_one_dimension)


def on_every_rank(rank: int) -> None:
    """ALLREDUCE gives the whole result to ranks outside of the mesh, too, and adds their c."""
    a, b = (data_of(shape, torch.float64, 1) for shape in ((4, 6), (6, 5)))
    c = torch.full((4, 5), rank + 1.0, dtype=torch.float64)
    cuts = [Slab.X, Slab.X, Placements([shardwire.Shard(0)], [0])]
    got = matmul(*(take(Slab.X, whole, rank, 2) for whole in (a, b)), c, beta=1, distributions=cuts, group=group(),
                 epilog=MatmulEpilog.ALLREDUCE)
    assert got is c
    check(got, a @ b + 3, "all ranks")


def test_allreduce_reaches_ranks_outside_of_the_mesh() -> None:
    run_ranks(2, on_every_rank)


def misuse(rank: int) -> list[tuple[str, str]]:
    a, b = torch.zeros(2, 6), torch.zeros(3, 5)
    cuts = [Slab.X, Slab.X, Slab.X]
    g = {"group": group(), "distributions": cuts}
    bad = numpy.zeros((3,), dtype=matrix_qualifiers_dtype)
    bad[2]["is_transpose"] = 1
    turned = [{"is_transpose": True}, {}, {}]

    def call(*operands: Any, **options: Any) -> tuple[str, str]:
        return error_of(lambda: matmul(*operands, **{**g, **options}))
    errors = [
        call(a, "no array" if rank else b), call(a, b.double() if rank else b), call(a, b.double()),
        call(a[0] if rank else a, b), call(a, b.numpy() if rank else b), call(a.numpy(), b.numpy()[:2]),
        call(a, b, qualifiers=turned), call(a, b, qualifiers=bad), call(a, b, qualifiers=turned if rank else None),
        call(a, b, qualifiers=[{"is_conjugate": 1}, {}, {}]), call(a, b, alpha=rank), call(a, b, alpha=1j),
        call(a, b, alpha="x" if rank else 1), call(a, b, torch.zeros(2, 5)),
        call(a, b, torch.zeros(2, 5 + rank), beta=1), call(a, b, torch.zeros(2, 5).double(), beta=1),
        call(a, b, distributions=cuts[:2]), call(a, b, distributions=[Slab.X, Slab.X, Slab.Y if rank else Slab.X]),
        call(a, b, distributions=[Slab.X, Slab.X, None]),
        call(a, b, distributions=[Slab.X, Slab.X, Boxes([Box((0, 0), (2, 5)), Box((3, 0), (4, 5))])]),
        call(a, b, epilog=MatmulEpilog.BIAS),
        call(a, b, epilog=MatmulEpilog.BIAS, epilog_inputs={"bias": torch.zeros(2 + rank)}),
        call(a, b, epilog=MatmulEpilog.RELU if rank else None), call(a, b, epilog=3),
        call(a, b, epilog=MatmulEpilog.DRELU, epilog_inputs={"relu_aux": torch.zeros(2, 5)}),
        call(a.to(torch.complex64), b.to(torch.complex64), epilog=MatmulEpilog.RELU),
        call(a, b, options={"grid": [2, 2, 1]}), call(a, b, options={"panels": 0} if rank else None),
        call(a, b, options={"compute_type": MatmulComputeType.COMPUTE_64F}),
        call(a, b, options={"result_type": "float64"}), call(a.bool(), b.bool()),
        call(a, b, options={"no such": 1}), call(a.clone().requires_grad_() if rank else a, b),
        call(a.int(), b.int(), alpha=0.5), call(a, b, preferences={"epilog": {"aux_type": "int8"}}),
        call(a, b, quantization_scales={"a": 1}), call(a, b, options={"block_scaling": True} if rank else None),
        call(a, b, preferences={"epilog": {"aux_amax": True}}), call(a, b, options={"inplace": 1}),
        call(a, b, torch.zeros(2, 5), beta=1, options={"inplace": bool(rank)}),
        call(a, b, torch.zeros(4, 5, requires_grad=bool(rank)), beta=1, epilog=MatmulEpilog.ALLREDUCE),
        call(a, b, torch.zeros(2, 5), beta=1, options={"inplace": True}, epilog=MatmulEpilog.BIAS,
             epilog_inputs={"bias": torch.zeros(2, requires_grad=bool(rank))}),
        call(a.int(), b.int(), alpha=float("inf") if rank else 1), call(a.int(), b.int(), alpha=float("nan")),
        call(a.int(), b.int(), alpha="3"), call(a, b, alpha="3"), call(a.int(), b.int(), alpha=10 ** 400),
        call(a, b, alpha=torch.ones((), requires_grad=bool(rank))),
        call(a, b, torch.zeros(2, 5), beta=torch.ones(1, requires_grad=True)),
    ]
    with torch.set_grad_enabled(rank == 0):  # rank 0 alone would wait in its backward pass
        errors.append(call(a.clone().requires_grad_(), b))
    assert torch.equal(matmul(a, b, **g), torch.zeros(2, 5))  # the group goes on
    return errors


EXPECTED = [
    ("TypeError", "rank 1: b is 'no array'"), ("TypeError", "rank 1: b has dtype torch.float64, a torch.float32"),
    ("TypeError", "rank 0: b has dtype"), ("ValueError", "rank 1: a has 1 dimensions"),
    ("TypeError", "rank 1: b is of numpy, a of torch"),
    ("ValueError", "the 6 columns of the first and the 4 rows of the second"),
    ("ValueError", "a is 4 x 6 transposed and b is 6 x 5"), ("ValueError", "qualifiers[2] is set"),
    ("MismatchError", "qualifiers differs"), ("ValueError", "the operands are real"),
    ("MismatchError", "alpha differs between ranks: 0.0 on rank 0, 1.0 on rank 1"),
    ("ValueError", "alpha is 1j, and the operands are real"), ("TypeError", "rank 1: alpha is 'x'"),
    ("ValueError", "c is given, and beta is not"),
    ("BindDistributionError", "c has shape [2, 6] on rank 1"),
    ("TypeError", "the result would have dtype torch.float64"),
    ("ValueError", "give three"), ("MismatchError", "the distribution of the result differs"),
    ("ValueError", "distributions[2] is None"), ("GapError", "leaves [2:3, 0:5]"),
    ("ValueError", "BIAS takes ['bias']"), ("ValueError", "epilog_inputs['bias'] has shape [3] on rank 1"),
    ("MismatchError", "epilog differs between ranks: DEFAULT on rank 0, RELU on rank 1"),
    ("ValueError", "3 is not a valid MatmulEpilog"), ("TypeError", "DRELU takes torch.bool"),
    ("ValueError", "RELU is for real numbers"), ("ValueError", "grid is [2, 2, 1], and there are 2 ranks"),
    ("ValueError", "rank 1: panels is 0"), ("ValueError", "compute_type is COMPUTE_64F"),
    ("TypeError", "the result would have dtype torch.float64"), ("TypeError", "the operands have dtype torch.bool"),
    ("ValueError", "options has 'no such'"), ("MismatchError", "requires_grad differs"),
    ("ValueError", "alpha is 0.5, and the operands are integers"), ("ValueError", "aux_type is torch.int8"),
    ("ValueError", "quantization_scales is given, which is for operands of FP8"),
    ("ValueError", "rank 1: block_scaling is set"), ("ValueError", "aux_amax is set"),
    ("TypeError", "inplace is 1; give True or False"), ("MismatchError", "inplace differs"),
    ("ValueError", "rank 1: c requires grad"), ("ValueError", "rank 1: epilog_inputs['bias'] requires grad"),
    ("ValueError", "rank 1: alpha is inf, and the operands are integers; give an integer"),
    ("ValueError", "alpha is nan, and the operands are integers"), ("TypeError", "alpha is '3'; give a number"),
    ("TypeError", "alpha is '3'; give a number"), ("TypeError", "give a number"),
    ("ValueError", "rank 1: alpha requires grad, and no gradient goes to alpha; give alpha.detach()"),
    ("ValueError", "rank 0: beta requires grad"),
    ("MismatchError", "requires_grad differs between ranks: [True, False] on rank 0, [False, False] on rank 1"),
]


def test_each_misuse_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse, EXPECTED)


def gradient_of_nothing(rank: int) -> None:
    """Rank 1 is outside of the mesh of A, and gives the slice of A that comes naturally there."""
    a = torch.ones((4, 6) if rank == 0 else (0, 6), requires_grad=True)
    b = torch.ones(Slab.X.shape(rank, (6, 5), 2), requires_grad=True)
    matmul(a, b, distributions=[Placements([shardwire.Shard(0)], [0]), Slab.X, Slab.X], group=group()).sum().backward()
    assert a.grad is not None and torch.equal(a.grad, torch.full_like(a, 5))
    assert b.grad is not None and torch.equal(b.grad, torch.full_like(b, 4))


def test_gradient_on_a_rank_outside_of_the_mesh() -> None:
    run_ranks(2, gradient_of_nothing)


def without_a_product(rank: int, ranks: int) -> None:
    """As in BLAS, A and B are not read where alpha is 0: what is not finite there does not matter."""
    a, b, c = (data_of(shape, torch.float64, 1) for shape in ((6, 8), (8, 5), (6, 5)))
    a[2, 3], a[5, 0], b[1, 1] = torch.inf, torch.nan, -torch.inf
    for cuts in ([Slab.X] * 3, [Slab.Y, Slab.X, Slab.X], [Slab.Y, Slab.X, Slab.Y]):
        mine = [take(cut, whole, rank, ranks).requires_grad_() for cut, whole in zip(cuts, (a, b, c))]
        g = {"distributions": cuts, "group": group(), "alpha": 0}
        got = matmul(*mine, beta=2, **g)
        assert torch.equal(got, 2 * mine[2])
        got.sum().backward()
        for value, slope in zip(mine, (0, 0, 2)):
            assert torch.equal(value.grad, torch.full_like(value, slope))
        assert torch.equal(matmul(*mine[:2], **g), torch.zeros_like(mine[2]))
        value, aux = matmul(*mine[:2], epilog=MatmulEpilog.RELU_AUX_BIAS, epilog_inputs={
            "bias": torch.ones(got.shape[0], dtype=torch.float64)}, **g)
        assert (value == 1).all() and aux["relu_aux"].all()
        fortran = matmul(*(in_order(value.detach(), True) for value in mine[:2]), **g)
        assert fortran.t().is_contiguous() and not fortran.any()
        with torch.no_grad(), Matmul(*mine[:2], distributions=cuts, group=group()) as product:
            product.plan()
            assert not product.execute().isfinite().all() or not got.numel()
            product.reset_operands(alpha=0)
            assert not product.execute().any()
    half = matmul(*(torch.full((2, 2 * ranks)[::step], torch.inf, dtype=torch.float16) for step in (1, -1)),
                  distributions=[Slab.X, Slab.Y, Slab.X], group=group(), alpha=-0.0)
    assert half.dtype == torch.float16 and not half.any()


@pytest.mark.parametrize("ranks", [1, 2])
def test_alpha_of_0_reads_no_factors(ranks: int) -> None:
    run_ranks(ranks, without_a_product, ranks)


def kept_bytes(problem: Any) -> int:
    """The number of elements that the products of a problem keep between runs."""
    back = problem._backward
    products = [problem.product, problem._of_vector, *([back.of_a, back.of_b] if back else [])]
    return sum(buffer.numel() for made in products if made is not None
               for buffer in (made._buffer, *(each for factor in made._factors if factor for each in factor.buffers))
               if buffer is not None)


def released(rank: int) -> None:
    a, b = (data_of(shape, torch.float64, 1) for shape in ((6, 8), (8, 5)))
    mine = [take(Slab.X, whole, rank, 2).requires_grad_() for whole in (a, b)]
    with Matmul(*mine, distributions=[Slab.X, Slab.X, Slab.Y], group=group()) as product:
        product.plan(epilog=MatmulEpilog.BGRADA)
        for releases in (False, True, False, True):
            value, aux = product.execute(release_workspace=releases)
            assert (kept_bytes(product._problem) == 0) == releases
            value.sum().backward()
            assert (kept_bytes(product._problem) == 0) == releases
            check_rows(aux["bgrada"], a.sum(1), Slab.Y, (6, 5), rank, 2, "after a release")
        check(mine[0].grad, 4 * take(Slab.X, b.sum(1).expand(6, 8), rank, 2), "after releases")


def test_release_workspace_frees_the_memory_of_all_products() -> None:
    run_ranks(2, released)


def by_default(rank: int) -> list[tuple[str, str]]:
    """c is overwritten, as in nvmath 1.0, except where any rank has a gradient to lose."""
    a, b, c = torch.ones(2, 4), torch.ones(2, 3), torch.zeros(2, 3)
    g = {"beta": 1, "distributions": [Slab.X] * 3, "group": group()}
    bias = {"epilog": MatmulEpilog.BIAS, "epilog_inputs": {"bias": torch.ones(2, requires_grad=bool(rank))}}
    for operands, more in (((a, b, torch.zeros(2, 3, requires_grad=bool(rank))), {}),
                           ((a.clone().requires_grad_(), b, c), {}), ((a, b, c), bias)):
        assert matmul(*operands, **more, **g) is not operands[2] and not c.any()
    with Matmul(a, b, c, **g) as product:
        product.plan()
        assert product.execute() is c and torch.equal(c, torch.full((2, 3), 4.0))
        errors = [error_of(product.plan, **bias),
                  error_of(product.reset_operands, c=torch.zeros(2, 3, requires_grad=bool(rank)))]
        assert product.execute() is c and torch.equal(c, torch.full((2, 3), 8.0))
    with torch.no_grad():
        assert matmul(a, b, c, **bias, **g) is c and torch.equal(c, torch.full((2, 3), 13.0))
    return [*errors, error_of(matmul, a, b, torch.zeros(1, 3).expand(2, 3) if rank else c, **g)]


def test_c_is_overwritten_by_default() -> None:
    first, second = run_ranks(2, by_default)
    assert first == second
    for (kind, text), part in zip(first, ("rank 1: epilog_inputs['bias'] requires grad", "rank 1: c required no grad",
                                          "rank 1: c has elements that share memory")):
        assert kind == "ValueError" and part in text, text


def bias_that_learns(rank: int) -> list[tuple[str, str]]:
    """Written into c, the bias would make c part of its graph."""
    a, b, c = torch.ones(2, 4), torch.ones(2, 3), torch.zeros(2, 3)
    bias, learning = torch.ones(2), torch.ones(2, requires_grad=True)
    with Matmul(a, b, c, beta=1, distributions=[Slab.X] * 3, options={"inplace": True}, group=group()) as product:
        kind = {"epilog": MatmulEpilog.BIAS}
        errors = [error_of(product.plan, epilog_inputs={"bias": learning if rank else bias}, **kind)]
        product.plan(epilog_inputs={"bias": bias}, **kind)
        errors.append(error_of(product.reset_operands, epilog_inputs={"bias": learning if rank else bias}))
        assert product.execute() is c and not c.requires_grad
        with torch.no_grad():  # parameters of a layer, where nothing is recorded
            product.reset_operands(epilog_inputs={"bias": learning})
            assert torch.equal(product.execute(), torch.full((2, 3), 10.0)) and not c.requires_grad
        errors.append(error_of(product.execute))  # on all ranks, since all gave such a bias
    assert torch.equal(c, torch.full((2, 3), 10.0))
    return errors


def test_a_bias_that_requires_grad_is_not_added_in_place() -> None:
    first, second = run_ranks(2, bias_that_learns)
    assert first == second
    for (kind, text), part in zip(first, ("rank 1: epilog_inputs['bias'] requires grad, and inplace overwrites c",
                                          "rank 1: epilog_inputs['bias'] requires grad", "epilog_inputs['bias']")):
        assert kind == "ValueError" and part in text, text


def failed_plans(rank: int) -> None:
    a, b = data_of((4, 6), torch.float32, 1), data_of((6, 5), torch.float32, 2)
    mine = take(Slab.X, a, rank, 2), take(Slab.X, b, rank, 2)
    with Matmul(*mine, distributions=[Slab.X] * 3, group=group()) as product:
        product.plan()
        former = product.execute()
        for options in ({"epilog": MatmulEpilog.RELU, "preferences": {"epilog": {"aux_type": torch.float64}}},
                        {"epilog": MatmulEpilog.RELU_BIAS, "epilog_inputs": {"bias": torch.zeros(2 + rank)}},
                        {"epilog": MatmulEpilog.RELU if rank else MatmulEpilog.GELU}):
            assert error_of(lambda: product.plan(**options))[0] in ("ValueError", "MismatchError")
            assert torch.equal(product.execute(), former), options


def test_a_failed_plan_leaves_the_former_one() -> None:
    run_ranks(2, failed_plans)


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    flat, mesh = DeviceMesh("cpu", torch.arange(4)), DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    a, b = data_of((7, 6), torch.float64, 1), data_of((6, 9), torch.float64, 2)
    for where, placements in ((flat, ([dt.Shard(0)], [dt.Shard(1)], [dt.Shard(0)])),
                              (mesh, ([dt.Shard(0), dt.Replicate()], [dt.Replicate(), dt.Shard(1)],
                                      [dt.Shard(0), dt.Shard(1)])),
                              (mesh, ([dt.Shard(0), dt.Shard(1)], [dt.Replicate(), dt.Shard(0)],
                                      [dt.Shard(0), dt.Replicate()]))):
        of_a = dt.distribute_tensor(a, where, placements[0]).requires_grad_()
        of_b = dt.distribute_tensor(b, where, placements[1]).requires_grad_()
        got = matmul(of_a, of_b, distributions=[None, None, placements[2]])
        assert got.placements == tuple(placements[2])
        check(got.detach().full_tensor(), a @ b, f"{placements}")
        got.pow(2).sum().backward()
        whole = [value.clone().requires_grad_() for value in (a, b)]
        (whole[0] @ whole[1]).pow(2).sum().backward()
        check(of_a.grad.full_tensor(), whole[0].grad, f"a {placements}")
        check(of_b.grad.full_tensor(), whole[1].grad, f"b {placements}")
        same = matmul(of_a.detach(), of_b.detach(), got.detach(), beta=1)
        check(same.full_tensor(), 2 * (a @ b), "c's own placements")
        every = matmul(of_a.detach(), of_b.detach(), distributions=[None, None, placements[2]],
                       epilog=MatmulEpilog.ALLREDUCE)
        check(every.to_local(), a @ b, "ALLREDUCE")
    some = DeviceMesh("cpu", [2, 0])  # the other ranks have no part of C, and none of the result
    few = [dt.DTensor.from_local(whole.clone() if rank in (0, 2) else whole[:0, :0], some, [dt.Replicate()],
                                 run_check=False, shape=whole.shape, stride=whole.stride()) for whole in (a, b, a @ b)]
    every = matmul(*few, beta=1, epilog=MatmulEpilog.ALLREDUCE)
    assert rank in (1, 3) or torch.allclose(every.to_local(), 3 * (a @ b))
    for side, part in ((Slab.X, "give placements"), (Placements([dt.Shard(0)], range(4)), "give a DeviceMesh")):
        kind, text = error_of(lambda: matmul(of_a, of_b, distributions=[None, None, side]))
        assert kind == "TypeError" and part in text, text
    of_c = dt.distribute_tensor(torch.zeros_like(a @ b), flat, [dt.Shard(0)])
    inplace = {"distributions": [None, None, Placements([dt.Shard(0)], range(4))], "beta": 1,
               "options": {"inplace": True}}
    of_a, of_b = of_a.detach(), of_b.detach()
    assert matmul(of_a, of_b, of_c, **inplace) is of_c
    check(of_c.full_tensor(), a @ b, "inplace")
    assert "give a DeviceMesh" in error_of(lambda: matmul(of_a, of_b, of_c, epilog=MatmulEpilog.RELU_AUX, **inplace))[1]
    turned = DeviceMesh("cpu", [3, 1, 0, 2])
    of_a, of_b = (dtensor_of(value, turned, [dt.Shard(0)], rank) for value in (a, b))
    got = matmul(of_a, of_b, distributions=[None, None, Placements([dt.Shard(1)])])
    check(got.to_local(), take(Placements([dt.Shard(1)], turned), a @ b, rank, 4), "turned")
    every = matmul(*(dt.distribute_tensor(value, mesh, [dt.Shard(0), dt.Shard(1)]) for value in (a, b)),
                   epilog=MatmulEpilog.ALLREDUCE)
    check(every.to_local(), a @ b, "ALLREDUCE without placements for the result")


def test_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(4, dtensors, default_group=True)


def by_context(rank: int) -> None:
    """As in nvmath's documents: a context, no group, and each rank's own box."""
    swd.initialize(0, group())
    a, b = numpy.arange(12.0).reshape(4, 3), numpy.arange(15.0).reshape(3, 5)
    rows = (2 * rank, 2 * rank + 2)
    got = swd.linalg.advanced.matmul(a[slice(*rows)], b if rank == 0 else b[:0, :0], distributions=[
        Box((rows[0], 0), (rows[1], 3)), [Box((0, 0), (3, 5)), Box((0, 0), (0, 0))], Box((rows[0], 0), (rows[1], 5))])
    assert numpy.allclose(got, (a @ b)[slice(*rows)])
    assert swd.linalg.ComputeType.COMPUTE_32F == 68
    swd.finalize()


def test_by_context() -> None:
    run_ranks(2, by_context)
