"""Products of FP8: against a model in float64 whose numbers are all exact, scales of matrices and of blocks, and every
misuse as one error on all ranks."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from matmul_cases import in_order, stored
from ranks import group, run_ranks
from test_matmul import CASES, SEED
from test_reshape import check_misuse, random_distribution, take

from shardwire.distributed.distribution import Slab
from shardwire.distributed.linalg.advanced import (Matmul, MatmulEpilog, MatmulQuantizationScales, helpers, matmul)

pytestmark = pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this torch has no 8-bit floats")

E4M3, E5M2 = (getattr(torch, name, torch.float32) for name in ("float8_e4m3fn", "float8_e5m2"))
WIDE = [torch.float16, torch.bfloat16, torch.float32]
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)]


def data_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small multiples of 1/4, which each dtype here holds; sums of a few products are exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-6, 7, shape, generator=generator) / 4).to(dtype)


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype in WIDE:
        return value.to(torch.float32).to(dtype)
    limit = torch.finfo(dtype).max
    return value.to(torch.float32).clamp(-limit, limit).to(dtype)


def equal(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return got.dtype == wanted.dtype and torch.equal(got.to(torch.float64), wanted.to(torch.float64))


def random_cases(rank: int, ranks: int, seed: int, cases: int) -> int:
    rng = random.Random(seed)
    for case in range(cases):
        m, n, k = (rng.randint(1, 14) for _ in range(3))
        dtypes = rng.choice(PAIRS)
        has_c = rng.random() < 0.4
        c_dtype = rng.choice([*WIDE, E4M3]) if has_c else None
        result = rng.choice([None, E4M3, E5M2, *WIDE])
        wanted_dtype = result or c_dtype or dtypes[0]
        qualifiers = [{"is_transpose": rng.random() < 0.4, "is_conjugate": False} for _ in range(2)]
        a, b = data_of((m, k), dtypes[0], seed + case), data_of((k, n), dtypes[1], seed - case)
        c = data_of((m, n), c_dtype or torch.float32, case)
        of_a, of_b = stored(a, qualifiers[0]), stored(b, qualifiers[1])
        cuts = [random_distribution(rng, tuple(whole.shape), ranks) for whole in (of_a, of_b, c)]
        names = ["a", "b"] + ["c"] * (c_dtype == E4M3) + ["d"] * (wanted_dtype in (E4M3, E5M2))
        values = {name: rng.choice([1, 2, 0.5, 0.25]) for name in names}
        scales: Any = {name: value if rng.random() < 0.5 else torch.full(rng.choice([(), (1,)]), float(value))
                       for name, value in values.items()}
        if rng.random() < 0.3:
            scales = MatmulQuantizationScales(**scales)
        alpha = rng.choice([None, 2])
        epilog = rng.choice([MatmulEpilog.DEFAULT, MatmulEpilog.RELU, MatmulEpilog.ALLREDUCE])
        wants_amax = rng.random() < 0.4
        said = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {m} x {k} x {n} {dtypes} c {c_dtype} to "
                f"{result} {cuts} {qualifiers} {values} alpha {alpha} {epilog.name}")
        local_a, local_b = (in_order(take(cut, whole, rank, ranks), rng.random() < 0.4)
                            for cut, whole in zip(cuts, (of_a, of_b)))
        local_c = take(cuts[2], c, rank, ranks).clone()
        if epilog == MatmulEpilog.ALLREDUCE and has_c:  # each rank adds its own C
            local_c = c.clone() if rank == 0 else torch.zeros_like(c)
        got = matmul(local_a, local_b, local_c if has_c else None, distributions=cuts, group=group(), alpha=alpha,
                     beta=3 if has_c else None, qualifiers=[*qualifiers, {}], epilog=epilog, quantization_scales=scales,
                     options={"result_type": result, "result_amax": wants_amax})
        value = a.double() @ b.double() * values["a"] * values["b"] * (alpha or 1)
        value = value + 3 * values.get("c", 1) * c.double() if has_c else value
        value = value if epilog == MatmulEpilog.ALLREDUCE else take(cuts[2], value, rank, ranks)
        value = value.relu() if epilog == MatmulEpilog.RELU else value
        if wants_amax:
            got, aux = got
            assert aux["result_amax"].item() == (value.abs().max().item() if value.numel() else 0), said
        assert equal(got, rounded(value * values.get("d", 1), wanted_dtype)), said
    return cases


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_cases(ranks: int) -> None:
    assert run_ranks(ranks, random_cases, ranks, SEED + ranks, CASES, timeout=60 + CASES) == [CASES] * ranks


def limits(rank: int) -> None:
    """Values beyond the range become the largest number, NaN stays, and scales in tensors may change in place."""
    a, b = torch.full((2, 4), 100.0).to(E4M3), torch.full((4, 4), -100.0).to(E4M3)
    if rank == 0:
        a[0, 0] = float("nan")
    scale = torch.ones(1)
    with Matmul(a, take(Slab.X, b, rank, 2), distributions=[Slab.X, Slab.X, Slab.X], group=group(),
                quantization_scales={"a": 1, "b": 0.5, "d": scale}) as product:
        product.plan()
        got = product.execute().to(torch.float32)
        assert got[1].tolist() == [-448.0] * 4 and (got[0].isnan().all() if rank == 0 else got[0, 0] == -448)
        one = float(a[1, 0].float() * b[0, 0].float() * 4)
        scale.fill_(2.0 ** -9)
        assert product.execute()[1].float().tolist() == rounded(torch.full((4,), one / 2 ** 10), E4M3).float().tolist()
        product.reset_operands(quantization_scales={"b": 0.25})
        assert product.execute()[1].float().tolist() == rounded(torch.full((4,), one / 2 ** 11), E4M3).float().tolist()


def test_limits_and_scales_that_change() -> None:
    run_ranks(2, limits)


def auxiliary(rank: int) -> None:
    a, b = data_of((4, 6), E4M3, 1), data_of((6, 5), E4M3, 2)
    mine = a[2 * rank:2 * rank + 2], b[3 * rank:3 * rank + 3]
    whole = (a.double() @ b.double())[2 * rank:2 * rank + 2]
    bias = torch.tensor([0.5, -0.5])

    def call(result: torch.dtype, scale: float | None, **preferences: Any) -> Any:
        inputs = {"bias": bias} if scale is None else {"bias": bias, "aux_quantization_scale": scale}
        return matmul(*mine, distributions=[Slab.X] * 3, group=group(), epilog=MatmulEpilog.GELU_AUX_BIAS,
                      epilog_inputs=inputs, preferences={"epilog": preferences}, options={"result_type": result},
                      quantization_scales={"a": 1, "b": 1, **({"d": 1} if result == E4M3 else {})})
    before = whole + bias.double()[:, None]
    got, aux = call(torch.float32, 0.5, aux_type="CUDA_R_8F_E4M3", aux_amax=True)
    assert torch.allclose(got.double(), torch.nn.functional.gelu(before, approximate="tanh"), atol=1e-5)
    assert sorted(aux) == ["gelu_aux", "gelu_aux_amax"] and aux["gelu_aux_amax"].item() == before.abs().max()
    assert equal(aux["gelu_aux"], rounded(before / 2, E4M3))
    got, aux = call(E4M3, None)
    assert got.dtype == E4M3 and sorted(aux) == ["gelu_aux"]
    assert equal(aux["gelu_aux"], before.to(torch.float32))


def test_auxiliary_outputs() -> None:
    run_ranks(2, auxiliary)


def blocks(rank: int, fortran: bool) -> None:
    """Of the result, too, where it is of FP8."""
    m, n, k, ranks = 256, 128, 256, 2
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randint(-8, 9, shape, generator=generator).to(dtype)
            for shape, dtype in (((m, k), E4M3), ((k, n), E5M2)))
    local_a, local_b = in_order(take(Slab.X, a, rank, ranks), fortran), in_order(take(Slab.X, b, rank, ranks), fortran)
    scales = {name: torch.randint(124, 130, (local.numel() // 32,), generator=generator, dtype=torch.uint8)
              for name, local in (("a", local_a), ("b", local_b))}
    parts = [helpers.matmul.apply_mxfp8_scale(local, scales[name], torch.float32)
             for name, local in (("a", local_a), ("b", local_b))]
    gathered = []
    for part in parts:
        out = [torch.empty(part.shape) for _ in range(ranks)]
        torch.distributed.all_gather(out, part.contiguous())
        gathered.append(torch.cat(out))
    whole = take(Slab.X, gathered[0].double() @ gathered[1].double(), rank, ranks)

    def call(result: torch.dtype) -> Any:
        return matmul(local_a, local_b, distributions=[Slab.X] * 3, group=group(), quantization_scales=scales,
                      options={"block_scaling": True, "result_type": result})
    assert torch.allclose(call(torch.float32).double(), whole, rtol=1e-5, atol=1e-4)
    got, aux = call(E4M3)
    assert sorted(aux) == ["d_out_scale"] and aux["d_out_scale"].shape == (whole.numel() // 32,)
    assert got.stride() == ((1, 128) if fortran else (128, 1))
    back = helpers.matmul.apply_mxfp8_scale(got, aux["d_out_scale"]).double()

    def in_blocks(matrix: torch.Tensor) -> torch.Tensor:
        return (matrix.t() if fortran else matrix).reshape(-1, 32)
    largest = in_blocks(whole).abs().amax(1, keepdim=True)
    narrow = in_blocks(got.float()).abs().amax(1, keepdim=True)
    assert bool(((narrow >= 448 / 2) & (narrow <= 448) | (largest == 0)).all())  # the whole range is used
    step = (in_blocks(whole).abs() / 16).maximum(largest / 448 * 2 ** -9)  # half of a unit in the last place
    assert bool(((in_blocks(back) - in_blocks(whole)).abs() <= 1.01 * step + 1e-4).all())


@pytest.mark.parametrize("fortran", [False, True])
def test_scales_of_blocks(fortran: bool) -> None:
    run_ranks(2, blocks, fortran, default_group=True)


FP4 = getattr(torch, "float4_e2m1fn_x2", None)
needs_fp4 = pytest.mark.skipif(FP4 is None, reason="this torch has no FP4")


def packed_part(shape: tuple[int, int], axis: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers of FP4, packed along ``axis``, their scales, and the values that both stand for."""
    call, generator = helpers.matmul, torch.Generator().manual_seed(seed)
    packed = call.quantize_to_fp4(torch.randint(-14, 15, shape, generator=generator) / 2, axis)
    scale = torch.randint(1, 90, (math.prod(shape) // 16,), generator=generator, dtype=torch.uint8).view(E4M3)
    each = call.expand_block_scale(scale, packed, "NVFP4", output_dtype=torch.float64)
    return packed, scale, call.unpack_fp4(packed, axis).double() * each


def four_bits(rank: int) -> None:
    """As nvmath takes them, K / 2 x M and K / 2 x N in Fortran order; then in other layouts, with cut addends."""
    turned, plain = {"is_transpose": True}, dict[str, bool]()
    for shapes, axes, cuts, turns in ((((128, 256), (128, 256)), (-2, -2), (Slab.Y, Slab.Y), (turned, plain)),
                                      (((256, 64), (64, 128)), (-1, -2), (Slab.Y, Slab.X), (plain, plain)),
                                      (((128, 192), (128, 192)), (-1, -1), (Slab.X, Slab.X), (plain, turned))):
        parts = [[packed_part(shape, axis, 10 * index + number) for number in range(2)]
                 for index, (shape, axis) in enumerate(zip(shapes, axes))]
        a, b = (torch.cat([part[2] for part in of_ranks], cut.partition_dim) for of_ranks, cut in zip(parts, cuts))
        whole = (a.t() if turns[0] else a) @ (b.t() if turns[1] else b)
        mine = [of_ranks[rank] for of_ranks in parts]
        given: dict[str, Any] = {"distributions": [*cuts, Slab.X], "qualifiers": [*turns, {}], "group": group(),
                                 "quantization_scales": {"a": mine[0][1], "b": mine[1][1]}}
        wanted = take(Slab.X, whole, rank, 2)
        limit = float(a.abs().max() * b.abs().max()) * 1e-4
        got = matmul(mine[0][0], mine[1][0], options={"block_scaling": True, "result_type": torch.float32}, **given)
        assert got.dtype == torch.float32 and torch.allclose(got.double(), wanted, rtol=1e-5, atol=limit)
        c = torch.ones(wanted.shape, dtype=torch.bfloat16)
        with Matmul(mine[0][0], mine[1][0], c, beta=2, options={"block_scaling": True}, **given) as product:
            product.plan(epilog=MatmulEpilog.RELU)
            for factor in (1, 2):
                assert product.execute() is c
                assert torch.allclose(c.double(), (factor * wanted + 2).relu(), rtol=1e-2, atol=limit + 0.02)
                c.fill_(1)
                doubled = (mine[1][1].float() * 2).to(E4M3)
                product.reset_operands(quantization_scales={"b": doubled})


@needs_fp4
def test_numbers_of_4_bits_are_multiplied() -> None:
    run_ranks(2, four_bits)


def misuse_of_4_bits(rank: int) -> list[tuple[str, str]]:
    from ranks import error_of
    (a, of_a, _), (b, of_b, _) = packed_part((128, 256), -1, 1), packed_part((128, 128), -2, 2)
    wanted = {"block_scaling": True, "result_type": "float32"}

    def call(*operands: Any, **options: Any) -> tuple[str, str]:
        return error_of(matmul, *operands, **{"group": group(), "distributions": [Slab.X] * 3, "options": wanted,
                                              "quantization_scales": {"a": of_a, "b": of_b}, **options})
    return [call(a, b, options={"result_type": "float32"}), call(a, b, options={"block_scaling": True}),
            call(a, b.view(torch.uint8).view(E4M3)), call(a.t(), b), call(a[:, :48], b),
            call(a, b, quantization_scales={"a": of_a, "b": of_b.view(torch.uint8) if rank else of_b}),
            call(a, b, quantization_scales={"a": of_a, "b": of_b[1:]}),
            call(a, b, qualifiers=[{"is_transpose": True}, {}, {}])]


@needs_fp4
def test_each_misuse_of_4_bits_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse_of_4_bits, [
        ("ValueError", "which needs the option block_scaling"), ("TypeError", "result would have dtype torch.float4"),
        ("TypeError", "b has dtype torch.float8_e4m3fn, a torch.float4"), ("ValueError", "a is contiguous along"),
        ("ValueError", "a is 128 x 48 on this rank"), ("ValueError", "rank 1: quantization_scales['b'] is torch.uint8"),
        ("ValueError", "give a float8_e4m3fn tensor of 1024 scales"), ("ValueError", "a is contiguous along")])


def test_places_of_scales() -> None:
    x = torch.zeros(256, 384, dtype=torch.uint8)
    rows, columns = torch.meshgrid(torch.arange(256), torch.arange(384), indexing="ij")
    for matrix, index in ((x, (rows, columns)), (x.t(), (columns.t(), rows.t()))):
        places = helpers.matmul.get_mxfp8_scale_offset(matrix, index)
        of_blocks = (places if matrix is x else places.t()).reshape(256, 12, 32)
        assert bool((of_blocks == of_blocks[..., :1]).all())
        assert sorted(of_blocks[..., 0].reshape(-1).tolist()) == list(range(256 * 12))
    # By hand from cuBLAS's documentation: tile (1, 2) is the sixth, and row 37 lies in the second of four columns.
    assert helpers.matmul.get_mxfp8_scale_offset(x, (128 + 37, 2 * 128 + 70)) == 5 * 512 + 5 * 16 + 1 * 4 + 2
    batch = torch.zeros(3, 256, 384, dtype=torch.uint8)
    assert helpers.matmul.get_mxfp8_scale_offset(batch, (2, 0, 0)) == 2 * 256 * 384 // 32
    scale = helpers.matmul.create_mxfp8_scale(x, -3)
    assert scale.shape == (256 * 12,) and scale.unique().tolist() == [124]
    assert helpers.matmul.invert_mxfp8_scale(scale).unique().tolist() == [130]
    assert helpers.matmul.invert_mxfp8_scale(torch.tensor([255, 0], dtype=torch.uint8)).tolist() == [0, 254]
    for wrong in (lambda: helpers.matmul.create_mxfp8_scale(x, 129), lambda: helpers.matmul.create_mxfp8_scale(5, 0),
                  lambda: helpers.matmul.apply_mxfp8_scale(x, scale[:5]),
                  lambda: helpers.matmul.invert_mxfp8_scale(torch.zeros(4)),
                  lambda: helpers.matmul.get_mxfp8_scale_offset(x, (1,))):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("kind", ["MXFP8", "NVFP4"])
def test_scales_in_the_shape_of_blocks(kind: str) -> None:
    call, length = helpers.matmul, 32 if kind == "MXFP8" else 16
    for axis, shape in ((-1, (2, 128, 256)), (-2, (256, 384)), (1, (128, 128))):
        along = axis - len(shape) if axis > 0 else axis
        of_blocks = [extent // length if dim - len(shape) == along else extent for dim, extent in enumerate(shape)]
        scales = torch.arange(120, 120 + math.prod(of_blocks)).remainder(9).add(120).to(torch.uint8).reshape(of_blocks)
        flat = call.to_block_scale(scales, shape, call.BlockScalingFormat(kind), axis=axis)
        for index in ([0] * len(shape), [extent - 1 for extent in of_blocks], [extent // 3 for extent in of_blocks]):
            assert flat[call.get_block_scale_offset(index, shape, kind, axis=axis)] == scales[tuple(index)]
        each = call.expand_block_scale(flat, shape, kind, axis=axis)
        assert torch.equal(each.view(torch.uint8), scales.repeat_interleave(length, along))
        if kind == "MXFP8":
            assert torch.equal(call.expand_block_scale(flat, shape, kind, axis=axis, output_dtype=torch.float16),
                               2.0 ** (scales.repeat_interleave(length, along).half() - 127))
        out = torch.empty_like(flat)
        assert call.to_block_scale(scales, shape, kind, axis=axis, out=out) is out and torch.equal(out, flat)
    # By hand from cuBLAS's documentation: row 5 of the first 128, in the first and in the second column of tiles.
    rows, groups = torch.tensor([5, 5]), torch.tensor([2, 5])
    assert call.get_block_scale_offset((rows, groups), (128, 256), kind, axis=-1).tolist() == [82, 512 + 81]
    for wrong in (lambda: call.get_block_scale_offset((0, 0), (128, 256), kind), lambda: call.expand_block_scale(
            flat[1:], shape, kind, axis=axis), lambda: call.to_block_scale(flat, shape, kind, axis=axis),
            lambda: call.get_block_scale_offset((0, 0), (128, 65), kind, axis=-1),
            lambda: call.get_block_scale_offset((0, 0), (64, 256), kind, axis=-1),
            lambda: call.get_block_scale_offset((0, 0), torch.zeros(128, 128), kind, axis=-2),
            lambda: call.get_block_scale_offset((0, 0), (128, 128), "FP8", axis=-1)):
        with pytest.raises(ValueError):
            wrong()


def test_dtypes_of_scaled_values() -> None:
    x = torch.ones(128, 128).to(E4M3)
    for exponent, dtype in ((0, torch.float16), (20, torch.float32), (-126, torch.float32), (-127, torch.float64)):
        scale = helpers.matmul.create_mxfp8_scale(x, exponent)
        got = helpers.matmul.apply_mxfp8_scale(x, scale)
        assert got.dtype == dtype and bool((got.double() == 2.0 ** exponent).all())
    with pytest.raises(ValueError, match="give torch.float64"):
        helpers.matmul.apply_mxfp8_scale(x, scale, torch.float32)


def test_numbers_of_4_bits() -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no FP4")
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = torch.cat([numbers, -numbers]).repeat(4).reshape(4, 16)
    given = torch.linspace(-7, 7, 4 * 16).reshape(4, 16)
    for axis in (-1, -2):
        packed = helpers.matmul.quantize_to_fp4(x, axis)
        assert packed.shape == ((4, 8) if axis == -1 else (2, 16)) and packed.stride(axis) == 1
        assert torch.equal(helpers.matmul.unpack_fp4(packed, axis), x)
        near = helpers.matmul.unpack_fp4(helpers.matmul.quantize_to_fp4(given, axis), axis)
        assert bool(((near - given).abs() <= (x.reshape(-1) - given[..., None]).abs().amin(-1) + 1e-6).all())
    assert helpers.matmul.quantize_to_fp4(torch.tensor([0.5, -6.0]), -1).view(torch.uint8).tolist() == [0xF1]
    with pytest.raises(ValueError, match="even extent"):
        helpers.matmul.quantize_to_fp4(torch.zeros(3), -1)
    with pytest.raises(ValueError, match="give -1 or -2"):
        helpers.matmul.unpack_fp4(packed[0], -2)


def misuse(rank: int) -> list[tuple[str, str]]:
    from ranks import error_of
    a, b = torch.zeros(2, 6).to(E4M3), torch.zeros(3, 5).to(E4M3)
    whole = {"a": 1, "b": 1, "d": 1}

    def call(*operands: Any, **options: Any) -> tuple[str, str]:
        return error_of(lambda: matmul(*operands, **{
            "group": group(), "distributions": [Slab.X] * 3, "quantization_scales": whole, **options}))
    errors = [
        call(a, b, quantization_scales=None), call(a, b, quantization_scales={"a": 1, "b": 1} if rank else whole),
        call(a, b, quantization_scales={**whole, "c": 1}), call(a, b, quantization_scales={**whole, "a": rank}),
        call(a, b, quantization_scales=[1]), call(a, b, quantization_scales={**whole, "a": "x" if rank else 1}),
        call(a, b, quantization_scales={**whole, "a": torch.ones(2)}), call(a, b.float()),
        call(a, b, options={"result_type": "float64"}), call(a, b, options={"block_scaling": True}),
        call(a, b, epilog=MatmulEpilog.BGRADA),
        call(a, b, epilog=MatmulEpilog.GELU_AUX, preferences={"epilog": {"aux_type": E4M3}}),
        call(a, b, epilog=MatmulEpilog.GELU_AUX, epilog_inputs={"aux_quantization_scale": 1}),
        call(a, b, epilog=MatmulEpilog.RELU, epilog_inputs={"aux_quantization_scale": 1},
             preferences={"epilog": {"aux_type": E4M3}}),
        call(a, b, preferences={"epilog": {"aux_amax": True}}),
        call(a, b, options={"result_amax": bool(rank)}),
        call(a, b, torch.zeros(2, 5, dtype=torch.float64), beta=1, options={"result_type": E4M3}),
    ]
    wide = torch.zeros(128, 256).to(E4M3), torch.zeros(128, 128).to(E4M3)
    of_blocks = {name: helpers.matmul.create_mxfp8_scale(x, 0) for name, x in zip("ab", wide)}
    block = {"options": {"block_scaling": True}}
    errors += [
        call(*wide, quantization_scales={**of_blocks, "d": 1}, **block), call(*wide, quantization_scales={
            "a": 1, "b": 1}, **block),
        call(*wide, quantization_scales={**of_blocks, "b": of_blocks["a"]}, **block),
        call(*wide, quantization_scales=of_blocks, distributions=[Slab.X, Slab.X, Slab.Y], **block),
    ]
    assert equal(matmul(a, b, distributions=[Slab.X] * 3, group=group(), quantization_scales=whole),
                 torch.zeros(2, 5).to(E4M3))  # the group goes on
    return errors


EXPECTED = [
    ("ValueError", "quantization_scales has []; these dtypes and options take ['a', 'b', 'd']"),
    ("ValueError", "rank 1: quantization_scales has ['a', 'b']"),
    ("ValueError", "quantization_scales has ['a', 'b', 'c'"),
    ("MismatchError", "quantization_scales differs"), ("TypeError", "give a MatmulQuantizationScales or a dict"),
    ("TypeError", "rank 1: quantization_scales['a'] is 'x'"),
    ("ValueError", "quantization_scales['a'] is torch.float32[2]"), ("TypeError", "b has dtype torch.float32"),
    ("TypeError", "the result would have dtype torch.float64"), ("ValueError", "a is 2 x 6 on this rank"),
    ("ValueError", "BGRADA is not for operands of FP8"), ("ValueError", "epilog_inputs has no aux_quantization_scale"),
    ("ValueError", "epilog_inputs has aux_quantization_scale"), ("ValueError", "RELU has no auxiliary output of FP8"),
    ("ValueError", "aux_amax is set"), ("MismatchError", "result_amax differs"),
    ("TypeError", "c has dtype torch.float64"),
    ("ValueError", "quantization_scales has ['a', 'b', 'd']; these dtypes and options take ['a', 'b']"),
    ("ValueError", "with block_scaling give a uint8 tensor of 1024 scales"),
    ("ValueError", "quantization_scales['b'] is torch.uint8[1024]"),
    ("ValueError", "the result has local shape (256, 64) on rank 0"),
]


def test_each_misuse_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse, EXPECTED)
