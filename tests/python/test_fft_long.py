"""Transforms along axes that stay cut (the four-step route, and convolutions for lengths without a useful factor)
against numpy's of the whole array: random cases, ends, gradients, the same bits, and misuse."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
from typing import Any

import pytest
import torch
from ranks import error_of, group, run_ranks
from test_fft import check, data_of, naive
from test_reshape import check_misuse, random_distribution, take

import shardwire
from shardwire.distributed._ends import End
from shardwire.distributed._fft_chirp import axis_of
from shardwire.distributed._fft_long import _end, fold, splits, view_of
from shardwire.distributed._fft_route import Problem
from shardwire.distributed.distribution import BlockCyclic, Box, Boxes, ProcessGrid, Slab
from shardwire.distributed.fft import FFT, fft, ifft, irfft, rfft

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20261126"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "40"))
# Of convolutions: with a prime factor that no engine transforms at full speed.
HARD = [17, 19, 34, 37, 51, 97, 101, 127, 206, 257, 499, 514, 1009]
LENGTHS = [1, 2, 3, 4, 6, 7, 8, 12, 13, 16, 30, 35, 36, 49, 60, 64, 97, 100, 101, 121, 128, 143, 210, 256, 360, 1000]


def favoured(prime: float = 1.0) -> None:
    """From here on this rank's plans take the four-step route also where the array is small: an exchange counts as
    nothing but bytes, and a transform as slow. prime: the cost of a local transform of a length without a useful
    factor; a large number favours convolutions."""
    from shardwire.distributed import _fft_chirp, _fft_long, _fft_route
    _fft_route._LATENCY, _fft_route._TRANSFORM, _fft_long._STEPS, _fft_chirp._PRIME = 0, 4.0, 0, prime


def is_convolved(f: FFT) -> bool:
    return "convolution" in f.traffic()


def is_long(f: FFT) -> bool:
    return not is_convolved(f) and any("folds" in step for step in f.traffic()["steps"])


def random_shape(rng: random.Random, lengths: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """One long axis among up to five short ones, and the axes to transform: the long axis, and perhaps others."""
    ndim = rng.choice([1, 1, 1, 1, 2, 3, 4, 5, 6])
    shape = [rng.choice([1, 1, 1, 2, 3]) for _ in range(ndim)]
    long = rng.randrange(ndim)
    shape[long] = rng.choice(lengths)
    axes = [long] + rng.sample([axis for axis in range(ndim) if axis != long], rng.randint(0, ndim - 1))
    rng.shuffle(axes)
    return tuple(shape), axes


def random_cases(rank: int, ranks: int, seed: int, cases: int, convolved: bool) -> list[int]:
    """How many cases there were, and how many of these took the four-step route, or a convolution."""
    favoured(1e9 if convolved else 1.0)
    rng = random.Random(seed)
    long = 0
    for case in range(cases):
        shape, axes = random_shape(rng, HARD if convolved else LENGTHS)
        kind, parity = rng.choice([("C2C", "even"), ("C2C", "even"), ("R2C", "even"), ("C2R", "even"), ("C2R", "odd")])
        if kind == "C2R" and shape[axes[-1]] == 1:
            parity = "odd"
        norm, inverse = (rng.choice([None, "backward", "ortho", "forward"]),
                         kind == "C2R" or (kind == "C2C" and rng.random() < 0.5))
        dtypes = [torch.float32, torch.float64] if kind == "R2C" else [torch.complex64, torch.complex128]
        whole = data_of(shape, rng.choice(dtypes), seed + case)
        expected = naive(whole, kind, inverse, parity, axes, norm)
        ends: list[Any] = []
        for dims in (shape, tuple(expected.shape)):
            longest = max(range(len(dims)), key=lambda dim: dims[dim])
            ends.append(Slab(longest) if rng.random() < 0.5 else random_distribution(rng, dims, ranks))
        note = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {kind} {parity} of {shape} axes {axes} "
                f"norm {norm} {whole.dtype} {ends[0]} to {ends[1]}")
        local = take(ends[0], whole, rank, ranks)
        if rng.random() < 0.3:  # other strides
            local = local.permute(*range(len(shape) - 1, -1, -1)).contiguous().permute(*range(len(shape) - 1, -1, -1))
        options = {"last_axis_parity": parity, "fft_type": kind, "chunks": rng.choice([None, None, 2, 5])}
        with FFT(local, distribution=ends, axes=axes, norm=norm, options=options, global_shape=shape,
                 group=group()) as f:
            f.plan()
            for _ in range(2):  # the memory between steps is used again
                check(f.execute(direction="inverse" if inverse else "forward"), expected, ends[1], rank, ranks, note)
            long += is_convolved(f) if convolved else is_long(f)
        call = {"C2C": ifft if inverse else fft, "R2C": rfft, "C2R": irfft}[kind]
        options.pop("fft_type")
        check(call(local, distribution=ends, axes=axes, norm=norm, options=options, global_shape=shape, group=group()),
              expected, ends[1], rank, ranks, note)
        assert torch.equal(local, take(ends[0], whole, rank, ranks)), note + ": the operand was written to"
    print(f"{long} of {cases} cases took the {'convolution' if convolved else 'four-step route'}")
    return [cases, long]


@pytest.mark.parametrize(("ranks", "convolved"), [(1, False), (2, False), (3, False), (4, False), (2, True), (3, True),
                                                  (4, True)])
def test_random_cases(ranks: int, convolved: bool) -> None:
    """An eighth of the cases, and more, take the four-step route; primes and short axes do not."""
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    results = run_ranks(ranks, random_cases, ranks, SEED + ranks, CASES, convolved, timeout=60 + CASES)
    assert results == [results[0]] * ranks and results[0][0] == CASES
    assert results[0][1] >= CASES // 8 if ranks > 1 else results[0][1] == 0


def real_cases(rank: int, ranks: int, seed: int, cases: int, engine: str) -> tuple[int, str]:
    """Real transforms along a long axis that is the real one: how many took the four-step route, and a digest of this
    rank's results."""
    favoured()
    os.environ["SHARDWIRE_FFT_ENGINE"] = engine
    rng = random.Random(seed)
    long, digest = 0, hashlib.sha256()
    for case in range(cases):
        full, axes = random_shape(rng, [*LENGTHS, *range(2, 300)])
        real = max(axes, key=lambda axis: full[axis])
        axes = [*(axis for axis in axes if axis != real), real]
        half = tuple(extent // 2 + 1 if dim == real else extent for dim, extent in enumerate(full))
        kind, norm = rng.choice(["R2C", "C2R"]), rng.choice([None, "ortho"])
        parity = "odd" if full[real] % 2 else "even"
        shape, dims = (full, half) if kind == "R2C" else (half, full)
        dtype = rng.choice([torch.float32, torch.float64] if kind == "R2C" else [torch.complex64, torch.complex128])
        ends = [Slab(real) if rng.random() < 0.5 else random_distribution(rng, one, ranks) for one in (shape, dims)]
        note = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {kind} of {full} axes {axes} {dtype} "
                f"{ends[0]} to {ends[1]}, {engine}")
        operands = [data_of(shape, dtype, seed + case + more) for more in (0, 1000)]
        with FFT(take(ends[0], operands[1], rank, ranks), distribution=ends, axes=axes, norm=norm, global_shape=shape,
                 options={"last_axis_parity": parity, "fft_type": kind}, group=group()) as f:
            f.plan()
            results = []
            for whole in (*operands, operands[0]):
                f.reset_operand(take(ends[0], whole, rank, ranks))
                results.append(f.execute())
                expected = naive(whole, kind, kind == "C2R", parity, axes, norm)
                check(results[-1], expected, ends[1], rank, ranks, note)
            assert torch.equal(results[0], results[2]), note
            digest.update(results[0].numpy().tobytes())
            long += is_long(f)
    return long, digest.hexdigest()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_real_cases(ranks: int) -> None:
    """With the same bits in each run."""
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    results = [run_ranks(ranks, real_cases, ranks, SEED + ranks, CASES // 2, engine, timeout=60 + CASES)
               for engine in ("", "torch", "torch")]
    assert results[1] == results[2] and (results[0][0][0] >= CASES // 8 or ranks == 1)


def halves(rank: int, ranks: int) -> None:
    """A real array moves as reals, as half of the complex elements, and as half a spectrum; and back."""
    favoured()
    for length in (3600, 3969):
        half = length // 2 + 1
        for kind, given, dtype in (("R2C", length, torch.float32), ("C2R", half, torch.complex64)):
            whole = data_of((given,), dtype, 1)
            with FFT(take(Slab.X, whole, rank, ranks), distribution=Slab.X, group=group(),
                     options={"fft_type": kind, "last_axis_parity": "odd" if length % 2 else "even"}) as f:
                f.plan()
                moved = [sum(edge["bytes"] for edge in step["move"]["edges"])
                         for step in f.traffic()["steps"] if "move" in step]
                most = [4 * length, 8 * length * 0.52, 8 * half * 1.02]
                assert is_long(f) and all(got <= bound for got, bound in zip(moved[::1 if kind == "R2C" else -1], most)
                                          ), (kind, length, moved)
    # By open ends: half a spectrum ends in slabs, reals where they were computed.
    whole = data_of((4096,), torch.float64, 2)
    with FFT(take(Slab.X, whole, rank, ranks), distribution=Slab.X, options={"redistribute": False},
             group=group()) as f:
        f.plan()
        assert is_long(f) and f.output_distribution == Slab.X
        spectrum = f.execute()
        check(spectrum, torch.fft.rfft(whole), Slab.X, rank, ranks, "to the open end")
    with FFT(spectrum, distribution=Slab.X, options={"redistribute": False, "fft_type": "C2R"}, norm="backward",
             group=group()) as f:
        f.plan()
        assert is_long(f) and isinstance(f.output_distribution, BlockCyclic)
        check(f.execute(), whole, f.output_distribution, rank, ranks, "back to an open end")


@pytest.mark.parametrize("ranks", [2, 4])
def test_real_arrays_move_half(ranks: int) -> None:
    run_ranks(ranks, halves, ranks)


def each_length(rank: int, ranks: int, lengths: list[int]) -> list[int]:
    """One dimension in slabs, each length, there and back; the lengths that took the four-step route."""
    favoured()
    long = []
    for length in lengths:
        whole = data_of((length,), torch.complex128, length)
        with FFT(take(Slab.X, whole, rank, ranks), distribution=Slab.X, norm="backward", group=group()) as f:
            f.plan()
            spectrum = f.execute()
            check(spectrum, torch.fft.fft(whole), Slab.X, rank, ranks, f"{length}")
            f.reset_operand(spectrum)
            check(f.execute(direction="inverse"), whole, Slab.X, rank, ranks, f"{length}, back")
            if is_long(f):
                long.append(length)
        real = data_of((length,), torch.float64, length)
        half = rfft(take(Slab.X, real, rank, ranks), distribution=Slab.X, group=group())
        check(half, torch.fft.rfft(real), Slab.X, rank, ranks, f"rfft of {length}")
        back = irfft(half, distribution=Slab.X, norm="backward", group=group(), global_shape=(length // 2 + 1,),
                     options={"last_axis_parity": "odd" if length % 2 else "even"})
        check(back, real, Slab.X, rank, ranks, f"irfft of {length}")
    return long


@pytest.mark.any_torch
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_length(ranks: int) -> None:
    lengths = [*range(1, 41), *LENGTHS]
    results = run_ranks(ranks, each_length, ranks, lengths, timeout=120)
    assert results == [results[0]] * ranks
    primes = [length for length in lengths if all(length % factor for factor in range(2, length))]
    assert not set(primes) & set(results[0]) and {36, 60, 64, 100, 360, 1000} <= set(results[0])


def block_cyclic(dims: tuple[int, ...], axis: int, width: int, ranks: int) -> BlockCyclic:
    grid = ProcessGrid(shape=[ranks if dim == axis else 1 for dim in range(len(dims))],
                       layout=ProcessGrid.Layout.ROW_MAJOR)
    return BlockCyclic(grid, [width if dim == axis else extent for dim, extent in enumerate(dims)])


def ends(rank: int, ranks: int) -> None:
    """The exchanges of each pair of ends: an open end, and block-cyclic ends, save some."""
    favoured()
    whole = data_of((4096,), torch.complex128, 1)
    cyclic = block_cyclic((4096,), 0, 64 // ranks, ranks)
    everywhere, at_last = Boxes([Box((0,), (4096,))] * ranks), Boxes([Box((0,), (0,))] * (ranks - 1)
                                                                      + [Box((0,), (4096,))])
    small = block_cyclic((4096,), 0, 3, ranks)
    for source, target, most in ((Slab.X, Slab.X, 3), (Slab.X, None, 2), (Slab.X, cyclic, 2), (cyclic, Slab.X, 2),
                                 (cyclic, cyclic, 1), (small, Slab.X, 4), (Slab.X, small, 4), (small, small, 5),
                                 (Slab.X, everywhere, 3), (at_last, cyclic, 3), (cyclic, at_last, 3)):
        options = {"redistribute": target is not None}
        given: Any = source if target is None else [source, target]
        with FFT(take(source, whole, rank, ranks), distribution=given, options=options, group=group()) as f:
            f.plan()
            assert f.output_distribution == (cyclic if target is None else target)
            note = f"{ranks} ranks, {source} to {target}"
            check(f.execute(), torch.fft.fft(whole), f.output_distribution, rank, ranks, note)
            if target not in (at_last, None) and source is not at_last:
                assert is_long(f), note
                moves = [step["move"]["edges"] for step in f.traffic()["steps"] if "move" in step]
                assert sum(any(edge["src"] != edge["dst"] for edge in edges) for edges in moves) <= most, note
            assert "folded into" in f.explain() or not is_long(f)
    # There by one open end and back from it: two exchanges each.
    with FFT(take(Slab.X, whole, rank, ranks), distribution=Slab.X, options={"redistribute": False}, norm="backward",
             group=group()) as f:
        f.plan()
        spectrum = f.execute()
        f.reset_operand(spectrum, distribution=f.output_distribution)
        check(f.execute(direction="inverse"), whole, Slab.X, rank, ranks, "back from the open end")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ends(ranks: int) -> None:
    run_ranks(ranks, ends, ranks)


def gradients(rank: int, ranks: int, convolved: bool) -> int:
    """Against torch's own gradients of the whole transform."""
    favoured(1e9 if convolved else 1.0)
    done = 0
    for (call, kind), norm, (shape, axes), parity in itertools.product(
            [(fft, "C2C"), (ifft, "C2C"), (rfft, "R2C"), (irfft, "C2R")], (None, "ortho", "backward"),
            [((17,), (0,)), ((2, 38), (1,)), ((101, 3), (1, 0)), ((34, 4), (0, 1))] if convolved else
            [((44,), (0,)), ((2, 36), (1,)), ((36, 3), (1, 0)), ((36, 4), (0, 1))], ("even", "odd")):
        if kind == "C2C" and parity == "odd":
            continue
        dims = list(shape)
        dims[axes[-1]] += kind == "R2C" and parity == "odd"  # an odd number of real indices
        whole = data_of(dims, torch.float64 if kind == "R2C" else torch.complex128, 3).requires_grad_()
        named = norm or ("backward" if call in (fft, rfft) else "forward")
        size = [dims[axis] for axis in axes]
        size[-1] = 2 * (size[-1] - 1) + (parity == "odd") if kind == "C2R" else size[-1]
        torch_call = {fft: torch.fft.fftn, ifft: torch.fft.ifftn, rfft: torch.fft.rfftn, irfft: torch.fft.irfftn}[call]
        expected = torch_call(whole, s=size, dim=axes, norm=named)
        weights = data_of(expected.shape, expected.dtype, 4)
        (expected * weights).real.sum().backward() if expected.is_complex() else (expected * weights).sum().backward()
        cut = max(range(len(dims)), key=lambda dim: dims[dim])
        for target in (Slab(cut), Boxes([Box([0] * len(dims), expected.shape)] * ranks)):
            mine = take(Slab(cut), whole.detach(), rank, ranks).requires_grad_()
            result = call(mine, distribution=[Slab(cut), target], norm=norm, axes=axes,
                          options={"last_axis_parity": parity}, group=group())
            loss = result * take(target, weights, rank, ranks)
            (loss.real if loss.is_complex() else loss).sum().backward()
            times = 1 if isinstance(target, Slab) else ranks  # where all have the result, each rank's gradient counts
            check(mine.grad, times * whole.grad, Slab(cut), rank, ranks,
                  f"gradient of {call.__name__} {norm} {dims} {axes} {parity} to {target}")
            done += 1
    return done


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_torchs(ranks: int) -> None:
    assert run_ranks(ranks, gradients, ranks, False)[0] == 144


def test_gradients_of_convolutions_are_torchs() -> None:
    assert run_ranks(3, gradients, 3, True)[0] == 144


def large(rank: int, ranks: int, length: int, is_prime: bool) -> bytes:
    """Without any favour: a large axis takes the route, and no rank needs room for the whole axis. The bytes of the
    result."""
    os.environ["SHARDWIRE_FFT_ENGINE"] = "torch"
    whole = data_of((length,), torch.complex64, 1)
    with FFT(take(Slab.X, whole, rank, ranks), distribution=Slab.X, group=group()) as f:
        f.plan()
        assert is_convolved(f) if is_prime else is_long(f)
        most = max(math.prod(shape) for step in f.traffic()["steps"] for shape in step.get("shapes", ()))
        assert most < (2.6 if is_prime else 1.1) * length / ranks, most
        assert "Bluestein" in f.explain() if is_prime else "folded" in f.explain()
        results = [f.execute(release_workspace=again == 1) for again in range(3)]
        assert all(torch.equal(result, results[0]) for result in results)
        check(results[0], naive(whole, "C2C", False, "even", None, None), Slab.X, rank, ranks, "large")
        with torch.inference_mode():
            assert torch.equal(f.execute(), results[0])
    return torch.view_as_real(results[0]).numpy().tobytes()


def test_a_large_axis_has_the_same_bits_in_each_run() -> None:
    assert run_ranks(2, large, 2, 1 << 18, False) == run_ranks(2, large, 2, 1 << 18, False)


def test_a_large_prime_has_the_same_bits_in_each_run() -> None:
    assert run_ranks(4, large, 4, 100003, True) == run_ranks(4, large, 4, 100003, True)


def many_dimensions(rank: int) -> None:
    """A folded axis is two dimensions, and 16 are the most."""
    favoured(1e9)
    for length, ndim in ((60, 15), (60, 16), (97, 16)):
        whole, cut = data_of((1,) * (ndim - 1) + (length,), torch.complex128, 1), Slab(ndim - 1)
        with FFT(take(cut, whole, rank, 2), distribution=cut, axes=[-1], group=group()) as f:
            f.plan()
            assert is_long(f) == (ndim == 15)
            check(f.execute(), torch.fft.fft(whole), cut, rank, 2, f"{length}, {ndim}")


def test_arrays_of_many_dimensions() -> None:
    run_ranks(2, many_dimensions)


def one_rank_releases(rank: int) -> None:
    for length in (97, 100):  # a convolution, and the four-step route
        favoured(1e9)
        whole = data_of((length,), torch.complex128, 1)
        with FFT(take(Slab.X, whole, rank, 2), distribution=Slab.X, norm="backward", group=group()) as f:
            f.plan()
            assert is_convolved(f) if length == 97 else is_long(f)
            for direction in ("forward", "inverse", "forward"):
                expected = torch.fft.fft(whole) if direction == "forward" else torch.fft.ifft(whole)
                check(f.execute(direction=direction, release_workspace=rank == 0), expected, Slab.X, rank, 2,
                      f"{length}, {direction}")


def test_a_rank_may_release_the_workspace_alone() -> None:
    run_ranks(2, one_rank_releases)


def sub_group(rank: int) -> None:
    import torch.distributed as dist
    favoured()
    ranks = [3, 1, 0]
    part = dist.new_group(ranks, backend="shardwire")
    if rank in ranks:
        place = dist.get_group_rank(part, rank)
        whole = data_of((2, 210), torch.complex128, 1)
        result = fft(take(Slab.Y, whole, place, 3), distribution=Slab.Y, axes=[1], group=part)
        check(result, torch.fft.fft(whole), Slab.Y, place, 3, "a part of the ranks")
    dist.barrier()


def test_on_some_of_the_ranks() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="torch 1.13 has no get_group_rank")
    run_ranks(4, sub_group, default_group=True)


def misuse(rank: int) -> list[tuple[str, str]]:
    favoured()
    mine, g = torch.zeros(30, dtype=torch.complex64), {"group": group()}
    errors = [error_of(lambda: fft(mine[:29 + rank], distribution=Slab.X, **g)),
              error_of(lambda: fft(mine, distribution=Slab.X, axes=[rank], **g)),
              error_of(lambda: fft(mine, distribution=Slab.X, axes=[1], **g)),
              error_of(lambda: fft(mine, distribution=[Slab.X, Box((0,), (30,))], **g)),
              error_of(lambda: fft(mine, distribution=Slab.X, global_shape=(61,), **g)),
              error_of(lambda: rfft(mine if rank else mine.real, distribution=Slab.X, **g)),
              error_of(lambda: fft(mine.to(torch.complex128) if rank else mine, distribution=Slab.X, **g))]
    check(fft(mine + 1, distribution=Slab.X, **g), torch.fft.fft(torch.ones(60)), Slab.X, rank, 2, "after the errors")
    return errors


EXPECTED = [("BindDistributionError", "gives that rank"), ("MismatchError", "axes differs"),
            ("ValueError", "give each axis once"), ("GapError", "leaves [30:60]"),
            ("BindDistributionError", "has shape [30] on rank 0"), ("ValueError", "rank 1: R2C takes a real operand"),
            ("MismatchError", "dtype differs")]


def test_each_misuse_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse, EXPECTED)


def test_splits() -> None:
    primes = [2, 3, 97, 1_000_003, 999_999_000_001]
    for extent, size in itertools.product([1, 4, 12, 360, 1 << 20, 3 * (1 << 21), 6 * 1_000_003, *primes], (2, 4, 7)):
        found = splits(extent, size)
        assert all(rows * width == extent and rows > 1 and width > 1 for rows, width in found)
        assert bool(found) == (extent > 1 and extent not in primes), extent
    assert splits(1 << 20, 2)[0] == (1024, 1024) and splits(36, 4)[0] in ((4, 9), (6, 6), (9, 4))


def test_a_prime_length_is_convolved_where_one_rank_takes_longer() -> None:
    """A real transform of a prime length takes one rank as long as a complex one, and the convolution of reals less
    bytes: the choice begins at shorter lengths (docs/benchmarks.md has the times)."""
    for ranks, kind, (plain, convolved) in itertools.product(
            (2, 4), ("C2C", "R2C", "C2R"), ((4_001, 50_021), (2_003, 100_003))):
        for length, expected in ((plain, None), (convolved, 0)):
            half = length // 2 + 1
            shape, result = (half if kind == "C2R" else length,), (half if kind == "R2C" else length,)
            ends = [_end(Slab(0), each, ranks) for each in (shape, result)]
            assert axis_of(Problem(kind, (0,), shape, result, 8), *ends) == expected, (ranks, kind, length)


def test_folded_views_are_the_folded_array() -> None:
    """Each rank's views, laid into the folded array, give the whole; the model is torch's own reshape."""
    rng = random.Random(SEED)
    for case in range(300):
        axis, ndim, ranks = rng.randrange(3), 3, rng.randint(1, 4)
        width, rows = rng.randint(1, 6), rng.randint(1, 6)
        shape = [rng.randint(1, 3) for _ in range(ndim)]
        shape[axis] = rows * width
        whole = torch.arange(math.prod(shape)).reshape(shape)
        cut = random_distribution(rng, tuple(shape), ranks)
        views = fold(End(cut, tuple(shape), tuple(cut.share(rank, shape, ranks) for rank in range(ranks))), axis, width)
        folded = torch.full((*shape[:axis], rows, width, *shape[axis + 1:]), -1)
        for rank in range(ranks):
            local = take(cut, whole, rank, ranks)
            for view in views[rank]:
                box = tuple(slice(begin, begin + extent) for begin, extent in zip(view.offset, view.shape))
                assert (folded[box] == -1).all(), f"SHARDWIRE_ORACLE_SEED={SEED}, case {case}: an element twice"
                folded[box] = view_of(local, axis, view)
        assert torch.equal(folded, whole.reshape(folded.shape)), f"SHARDWIRE_ORACLE_SEED={SEED}, case {case}: {cut}"
    deal = block_cyclic((64,), 0, 4, 2)
    views = fold(End(deal, (64,), tuple(deal.share(rank, (64,), 2) for rank in (0, 1))), 0, 8)
    assert [len(of_rank) for of_rank in views] == [1, 1]
