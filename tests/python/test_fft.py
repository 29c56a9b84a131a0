"""Transforms over ranks against numpy's of the whole array: the published outline, random cases, gradients, and
misuse."""

from __future__ import annotations

import datetime
import gc
import itertools
import os
import random
import signal
import weakref
from typing import Any

import numpy
import pytest
import torch
import torch.distributed
from fork_ranks import meet
from ranks import error_of, group, run_ranks
from test_reshape import (check_misuse, check_other_placements, differently_placed, dtensor_of, random_distribution,
                          take)

import shardwire
import shardwire.distributed as swd
from shardwire.distributed._local_call import array_of
from shardwire.distributed.distribution import Block, BlockCyclic, Box, Boxes, Pencil, Placements, ProcessGrid, Slab
from shardwire.distributed.fft import (FFT, FFTDirection, FFTOptions, InvalidFFTState, allocate_operand, fft, ifft,
                                       irfft, rfft)
from shardwire.distributed.reshape import reshape

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20260714"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "40"))
SHAPES = [(8, 9), (9, 11, 8), (31, 31, 31), (128, 32, 64)]


def data_of(shape: Any, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The same on all ranks."""
    rng = numpy.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape)
    return torch.from_numpy(numpy.asarray(values)).to(dtype)


def naive(whole: torch.Tensor, kind: str, inverse: bool, parity: str, axes: Any, norm: str | None) -> torch.Tensor:
    """numpy's transform of the whole array, in double precision."""
    values = whole.to(torch.complex128 if whole.is_complex() else torch.float64).numpy()
    named = norm or ("forward" if inverse or kind == "C2R" else "backward")
    axes = list(range(values.ndim)) if axes is None else list(axes)
    if kind == "R2C":
        return torch.from_numpy(numpy.fft.rfftn(values, axes=axes, norm=named))
    if kind == "C2R":
        last = 2 * (values.shape[axes[-1]] - 1) + (parity == "odd")
        return torch.from_numpy(
            numpy.fft.irfftn(values, s=[values.shape[axis] for axis in axes[:-1]] + [last], axes=axes, norm=named))
    return torch.from_numpy((numpy.fft.ifftn if inverse else numpy.fft.fftn)(values, axes=axes, norm=named))


def check(result: Any, whole: torch.Tensor, distribution: Any, rank: int, ranks: int, note: str) -> None:
    """Equal to this rank's part of ``whole``, to 1e-12 of the largest value in double precision and 1e-5 in single."""
    got = torch.from_numpy(result) if isinstance(result, numpy.ndarray) else result
    wanted = take(distribution, whole, rank, ranks)
    assert got.shape == wanted.shape and got.is_complex() == wanted.is_complex(), (
        f"{note}: {got.shape} {got.dtype}, not {wanted.shape} {wanted.dtype}")
    bound = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-5, torch.complex64: 1e-5}.get(
        got.dtype, 2e-3)
    largest = max(float(whole.abs().max()), 1.0)
    wide = got.to(torch.complex128 if got.is_complex() else torch.float64)
    error = float((wide - wanted).abs().max()) if wanted.numel() else 0.0
    assert error <= bound * largest, f"{note}: off by {error / largest:.2g} of the largest value"


def outline(rank: int, ranks: int, shapes: Any) -> int:
    """nvmath's published test: kinds, reshape or not or by boxes, direction, and resets that go on with the result."""
    swd.initialize(None, group())
    done = 0
    kinds = [("C2C", "even"), ("R2C", "even"), ("C2R", "even"), ("C2R", "odd")]
    for shape, (kind, parity), reshape, inverse, single in itertools.product(
            shapes, kinds, (True, False, "use_box"), (False, True), (False, True)):
        if (kind == "R2C" and inverse) or (kind == "C2R" and not inverse) or (single and shape in SHAPES[2:]):
            continue
        real, cplx = (torch.float32, torch.complex64) if single else (torch.float64, torch.complex128)
        whole = data_of(shape, real if kind == "R2C" else cplx, 5)
        expected = naive(whole, kind, inverse, parity, None, None)
        source, other = (Slab.Y, Slab.X) if inverse else (Slab.X, Slab.Y)
        target = source if reshape is True else other
        distribution: Any = source
        if reshape == "use_box":
            distribution = [source.boxes(shape, ranks)[rank][0], other.boxes(expected.shape, ranks)[rank][0]]
        operand = take(source, whole, rank, ranks)
        use_numpy = single
        note = f"{shape} {kind} {parity} reshape={reshape} inverse={inverse} {real}"
        options = {"fft_type": kind, "last_axis_parity": parity, "reshape": reshape is True, "blocking": True,
                   "chunks": (None, 2, 1, 5)[done % 4]}
        direction = FFTDirection.INVERSE if inverse else FFTDirection.FORWARD
        with FFT(operand.numpy() if use_numpy else operand, distribution=distribution, options=options) as f:
            assert f.global_extents == shape
            f.plan()
            result = f.execute(direction=direction, release_workspace=True)
            check(result, expected, target, rank, ranks, note)
            if reshape is not True:
                assert f.output_distribution.boxes(expected.shape, ranks) == other.boxes(expected.shape, ranks)
            if kind == "C2C":  # back to the source, and once more
                f.reset_operand(result, distribution=distribution[1] if reshape == "use_box" else target)
                back = f.execute(direction=FFTDirection(-direction))
                check(back, whole * whole.numel(), source, rank, ranks, note + " back")
                f.reset_operand(back, distribution=distribution[0] if reshape == "use_box" else source)
                check(f.execute(direction=direction), expected * whole.numel(), target, rank, ranks, note + " again")
            else:
                operand *= 2  # execute() transforms the operand's values at the time of the call
                check(f.execute(), expected * 2, target, rank, ranks, note + " in place")
                f.reset_operand((operand / 4).numpy() if use_numpy else operand / 4)
                check(f.execute(), expected / 2, target, rank, ranks, note + " reset")
        done += 1
    swd.finalize()
    return done


@pytest.mark.any_torch
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6])
def test_the_published_outline(ranks: int) -> None:
    shapes = SHAPES if ranks == 2 else SHAPES[:3] if ranks < 5 else SHAPES[:2]
    assert run_ranks(ranks, outline, ranks, shapes, timeout=120)[0] >= 35


def random_cases(rank: int, ranks: int, seed: int, cases: int, cuts: bool = False) -> int:
    """cuts: each case runs in a random number of chunks, also more chunks than indices, and once more whole."""
    rng, cutting = random.Random(seed), random.Random(f"chunks {seed}")
    done = cut = 0
    for case in range(cases):
        ndim = rng.randint(1, 4)
        shape = tuple(rng.randint(1, 9) for _ in range(ndim))
        axes = (None if rng.random() < 0.4
                else [axis - rng.choice((0, ndim)) for axis in rng.sample(range(ndim), rng.randint(1, ndim))])
        kind, parity = rng.choice([("C2C", "even"), ("R2C", "even"), ("C2R", "even"), ("C2R", "odd")])
        last = (ndim if axes is None else axes[-1] % ndim + 1) - 1
        if kind == "C2R" and shape[last] == 1:
            parity = "odd"
        norm, inverse = (rng.choice([None, "backward", "ortho", "forward"]),
                         kind == "C2R" or (kind == "C2C" and rng.random() < 0.5))
        dtypes = [torch.float32, torch.float64] if kind == "R2C" else [torch.complex64, torch.complex128]
        whole = data_of(shape, rng.choice(dtypes), seed + case)
        expected = naive(whole, kind, inverse, parity, axes, norm)
        source, target = random_distribution(rng, shape, ranks), random_distribution(rng, tuple(expected.shape), ranks)
        note = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {kind} {parity} of {shape} axes {axes} "
                f"norm {norm} {source} to {target}")
        call = {"C2C": ifft if inverse else fft, "R2C": rfft, "C2R": irfft}[kind]
        local = take(source, whole, rank, ranks)
        chunks = cutting.choice((2, 3, 4, 7, 12, 100)) if cuts else None
        options: dict[str, Any] = {"last_axis_parity": parity, "chunks": chunks}
        result = call(local, distribution=[source, target], axes=axes, norm=norm, options=options, global_shape=shape,
                      group=group())
        check(result, expected, target, rank, ranks, f"{note}, {chunks} chunks")
        assert torch.equal(local, take(source, whole, rank, ranks)), note + ": the operand was written to"
        if cuts:
            with FFT(local, distribution=[source, target], axes=axes, norm=norm, options={**options, "fft_type": kind},
                     global_shape=shape, group=group()) as f:
                f.plan()
                direction = FFTDirection.INVERSE if inverse else FFTDirection.FORWARD
                for _ in range(2):  # the memory between steps is used again
                    check(f.execute(direction=direction), expected, target, rank, ranks,
                          f"{note}, {chunks} chunks, planned")
                cut += any(step.get("chunks", 1) > 1 for step in f.traffic()["steps"])
        done += 1
    return cut if cuts else done


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6])
def test_random_cases(ranks: int) -> None:
    """SHARDWIRE_ORACLE_CASES=1667 gives 10,002 cases."""
    assert run_ranks(ranks, random_cases, ranks, SEED + ranks, CASES, timeout=60 + CASES) == [CASES] * ranks


@pytest.mark.any_torch
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_random_cases_in_chunks(ranks: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    cut = run_ranks(ranks, random_cases, ranks, SEED + 10 * ranks, CASES, True, timeout=60 + 2 * CASES)
    assert cut == [cut[0]] * ranks and cut[0] > CASES // 4


def with_engine(rank: int, ranks: int, name: str, cases: int) -> str:
    os.environ["SHARDWIRE_FFT_ENGINE"] = name
    random_cases(rank, ranks, SEED, cases)
    random_cases(rank, ranks, SEED, cases, True)
    with FFT(torch.zeros(2, 4, dtype=torch.complex64), distribution=Slab.X, group=group()) as f:
        f.plan()
        return f.explain()


@pytest.mark.parametrize("name", ["torch", "fftw", "mkl"])
def test_each_engine(name: str) -> None:
    from shardwire.distributed import _dfti, _fftw
    if name == "fftw" and _fftw.find() is None:
        pytest.skip("no FFTW here (Debian: libfftw3-single3, libfftw3-double3)")
    if name == "mkl" and _dfti.find() is None:
        assert (not torch.backends.mkl.is_available()
                or not torch.__version__.endswith("+cpu")), "pip's torch exports MKL's functions"
        pytest.skip("this torch exports no MKL")
    said = {"torch": "by torch.fft", "fftw": "by FFTW", "mkl": "by MKL's Dfti"}[name]
    assert said in run_ranks(2, with_engine, 2, name, CASES, timeout=60 + CASES)[0]


def in_parts(rank: int, ranks: int, name: str, cases: int) -> int:
    """Parts and limits so small that small transforms are measured, cut with remainders, and run one axis after the
    other.
    """
    from shardwire.distributed import _engines, _fftw
    os.environ["SHARDWIRE_FFT_ENGINE"] = name
    _engines._LEAST, _engines._SAMPLE, _engines._ENOUGH, _fftw._PLANNING = 0, 200, 1e-4, 1e-3
    for part, single in ((1, 1), (24, 40), (7, 5), (60, 1 << 16)):
        _fftw._PART, _fftw._SINGLE = part, single
        _engines._choices.clear()
        random_cases(rank, ranks, SEED + part, max(cases // 4, 1))
        random_cases(rank, ranks, SEED + part, max(cases // 8, 1), True)
    return len(_engines._choices)


@pytest.mark.parametrize("name", ["", "fftw"])
def test_engines_that_are_measured_and_parts(name: str) -> None:
    from shardwire.distributed import _dfti, _fftw
    if _fftw.find() is None and (name or _dfti.find() is None):
        pytest.skip("no engine beside torch.fft here (Debian: libfftw3-single3, libfftw3-double3)")
    measured = run_ranks(2, in_parts, 2, name, CASES, timeout=60 + CASES)
    assert all(count == 0 for count in measured) if name else all(measured)


class CountingEngine:
    """A stand-in for an engine: as slow as ``turns`` requests, and counted."""

    def __init__(self, turns: int) -> None:
        self.turns, self.made = turns, 0

    def make(self, _library: Any, call: Any, careful: bool) -> Any:
        assert careful and call.elements <= 1 << 20
        self.made += 1
        return self

    def run(self, source: torch.Tensor, _target: Any) -> torch.Tensor:
        sum(range(self.turns))
        return source


def test_the_fastest_engine_is_chosen_and_kept() -> None:
    from shardwire.distributed import _engines
    from shardwire.distributed._local_call import Call, packed
    slow, fast = CountingEngine(200_000), CountingEngine(10)
    engines = [_engines.Engine(name, name.upper(), None, lambda call: True, each.make)
               for name, each in (("slow", slow), ("fast", fast))]
    large = packed((7, 5000, 64), torch.complex64)
    call = Call("C2C", (1,), large, large, True, False)
    for _ in range(2):
        choice = _engines.choose(engines, call, True)
        assert (choice.engine.short == "fast" and choice.elements == 3 * 5000 * 64
                and list(choice.measured) == ["slow", "fast"])
        assert "FAST (measured on 960000 elements: fast " in choice.summary()
    assert (slow.made, fast.made) == (1, 1)
    def broken(*_given: Any) -> Any:
        raise RuntimeError("no plan")
    choice = _engines.choose([_engines.Engine("broken", "BROKEN", None, lambda call: True, broken), *engines], call,
                             True)
    assert choice.engine.short == "fast" and choice.summary().endswith("; no plan)")
    assert _engines.choose(engines, call, False).summary() == "SLOW (not measured)"
    small = packed((2, 3), torch.complex64)
    assert (_engines.choose(engines, Call("C2C", (1,), small, small, True, False), True).summary() == "SLOW (too small "
                                                                                                      "to be measured)")
    assert _engines.choose(engines[:1], call, True).summary() == "SLOW (no other can)"
    whole = packed((1 << 13, 1 << 12), torch.complex64)
    assert "too large" in _engines.choose(engines, Call("C2C", (0, 1), whole, whole, True, False), True).summary()


def measures_differ(rank: int) -> tuple[str, str]:
    """One rank measures and the other does not: only the speed depends on this."""
    whole = data_of((32, 24, 20), torch.complex64, 1)
    local = take(Slab.X, whole, rank, 2)
    with FFT(local, distribution=Slab.X, options={"measure": rank == 0}, group=group()) as f:
        f.plan()
        check(f.execute(), naive(whole, "C2C", False, "even", None, None), Slab.X, rank, 2, "measured on rank 0 only")
        steps = [step["engines"] for step in f.traffic()["steps"] if "transform" in step]
        return f.explain(), str([len(each["measured_us"]) for step in steps for each in step])


def test_ranks_need_not_agree_on_engines() -> None:
    from shardwire.distributed import _engines
    (first, counts), (second, none) = run_ranks(2, measures_differ)
    assert "not measured" in second and none == "[0, 0]" or len(_engines.find()) == 1
    if len(_engines.find()) > 1:
        assert "(measured on 7680 elements: " in first and counts == str([len(_engines.find())] * 2)


def test_an_engine_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwire.distributed import _engines
    monkeypatch.setenv("SHARDWIRE_FFT_ENGINE", "fast")
    with pytest.raises(ValueError, match="known: mkl, fftw, torch"):
        _engines.find()
    monkeypatch.setenv("SHARDWIRE_FFT_ENGINE", "mkl")
    if not torch.backends.mkl.is_available():
        with pytest.raises(ValueError, match="exports no Dfti"):
            _engines.find()


def test_a_transform_may_end_while_its_thread_plans() -> None:
    """The garbage collector, which runs wherever Python allocates, may end a transform."""
    import threading

    from shardwire.distributed import _fftw
    ended: list[int] = []

    def plans() -> None:
        with _fftw._planner:
            _fftw._destroy(ended.append, {"key": 7})

    planning = threading.Thread(target=plans, daemon=True)
    planning.start()
    planning.join(20)
    assert ended == [7]


def without_its_engine(rank: int) -> tuple[str, str]:
    """The variable names an engine that rank 1's host lacks, and then an engine that refuses to plan on rank 1."""
    from shardwire.distributed import _engines, _fftw
    whole = data_of((6, 4), torch.complex128, 1)
    mine, expected = take(Slab.X, whole, rank, 2), torch.fft.fftn(whole)
    os.environ["SHARDWIRE_FFT_ENGINE"] = "fftw"
    found, _fftw.find = _fftw.find, (lambda: {}) if rank == 0 else (lambda: None)
    said = error_of(lambda: fft(mine, distribution=Slab.X, group=group()))

    def refuses(*_given: Any) -> Any:
        raise RuntimeError("no plan today")

    _fftw.find = found
    del os.environ["SHARDWIRE_FFT_ENGINE"]
    if rank:
        _engines.find = lambda: [_engines.Engine("moody", "MOODY", None, lambda call: True, refuses),
                                 _engines.torch_engine()]
    with FFT(mine, distribution=Slab.X, options={"measure": False}, group=group()) as f:
        f.plan()
        check(f.execute(), expected, Slab.X, rank, 2, "torch.fft instead")
        assert rank == 0 or "torch.fft" in f.explain() and "(moody refused: no plan today)" in f.explain()
    return said


def test_an_engine_that_one_rank_lacks() -> None:
    first, second = run_ranks(2, without_its_engine)
    assert first == second and first[0] == "ValueError" and "rank 1: SHARDWIRE_FFT_ENGINE is 'fftw', but" in first[1]


def gradients(rank: int, ranks: int, chunks: Any) -> None:
    """Against torch's own gradients of the whole transform."""
    shape = (6, 5, 8)
    cases = [(fft, "C2C"), (ifft, "C2C"), (rfft, "R2C"), (irfft, "C2R")]
    for (call, kind), norm, parity, axes in itertools.product(cases, (None, "ortho", "forward", "backward"),
                                                              ("even", "odd"), (None, (2, 0))):
        if parity == "odd" and kind != "C2R":
            continue
        source, target = Pencil((0, 1)), Slab.Y
        whole = data_of(shape, torch.float64 if kind == "R2C" else torch.complex128, 3).requires_grad_()
        dims = (0, 1, 2) if axes is None else axes
        named = norm or ("backward" if call in (fft, rfft) else "forward")
        size = None
        if kind == "C2R":
            size = [shape[axis] for axis in dims]
            size[-1] = 2 * (shape[dims[-1]] - 1) + (parity == "odd")
        torch_call = {fft: torch.fft.fftn, ifft: torch.fft.ifftn, rfft: torch.fft.rfftn, irfft: torch.fft.irfftn}[call]
        expected = torch_call(whole, dim=dims, norm=named, **({"s": size} if size else {}))
        weights = data_of(expected.shape, expected.dtype, 4)
        (expected * weights).real.sum().backward() if expected.is_complex() else (expected * weights).sum().backward()
        mine = take(source, whole.detach(), rank, ranks).requires_grad_()
        result = call(mine, distribution=[source, target], norm=norm, axes=axes,
                      options={"last_axis_parity": parity, "chunks": chunks}, group=group())
        loss = result * take(target, weights, rank, ranks)
        (loss.real if loss.is_complex() else loss).sum().backward()
        check(mine.grad, whole.grad, source, rank, ranks, f"gradient of {call.__name__} {norm} {parity} {axes}")
    # Lazy conjugates and negations, forward and backward: the memory does not hold the values.
    whole, given = data_of((4, 6), torch.complex128, 3).requires_grad_(), data_of((4, 6), torch.complex128, 4)
    torch.fft.fftn(whole.conj()).backward(given.conj())
    for also_moved in (False, True):
        mine, after = take(Slab.X, whole.detach(), rank, ranks).requires_grad_(), Slab.Y if also_moved else Slab.X
        spectrum = fft(mine.conj(), distribution=Slab.X, options={"chunks": chunks}, group=group())
        spectrum = reshape(spectrum, Slab.X, Slab.Y, group=group()) if also_moved else spectrum
        gradient = take(after, given, rank, ranks).conj()
        assert gradient.is_conj()
        spectrum.backward(gradient)
        check(mine.grad.resolve_conj(), whole.grad.resolve_conj(), Slab.X, rank, ranks,
              f"gradient of conjugates, also moved: {also_moved}")
    # The whole result on every rank: each rank's gradient counts.
    whole = data_of((4, 6), torch.complex128, 3).requires_grad_()
    weights = data_of((4, 6), torch.complex128, 4)
    (torch.fft.fftn(whole) * weights).real.sum().backward()
    mine = take(Slab.X, whole.detach(), rank, ranks).requires_grad_()
    (fft(mine, distribution=[Slab.X, Boxes([Box((0, 0), (4, 6))] * ranks)], options={"chunks": chunks}, group=group())
     * weights).real.sum().backward()
    check(mine.grad, whole.grad * ranks, Slab.X, rank, ranks, "gradient of a result that all have")


@pytest.mark.parametrize("chunks", [None, 2])
def test_gradients_are_torchs(chunks: Any) -> None:
    run_ranks(4, gradients, 4, chunks)


def chunk_choices(rank: int, ranks: int, store: str, hosts: int) -> list[tuple[int, str]]:
    """The number of chunks of the first exchange in some transforms, and the reason."""
    import torch.distributed as dist

    from shardwire.distributed import _fft_chunks
    os.environ["SHARDWIRE_HOST_ID"] = f"host{rank % hosts}"
    together = shardwire.create_process_group(dist.FileStore(store, ranks), rank, ranks, datetime.timedelta(seconds=60))
    _fft_chunks.LEAST_BYTES = 1 << 9
    said = []
    for shape, axes, chunks in (((16, 16, 16), None, None), ((16, 16, 16), None, 1), ((16, 16, 16), None, 3),
                                ((16, 16, 16), None, 100), ((4, 4, 4), None, None), ((16, 16), (0, 1), None),
                                ((2, 16, 16), (1, 2), 4), ((1, 8, 8), None, 4), ((16, 16, 16), (2, 0), 4)):
        whole = data_of(shape, torch.complex64, 1)
        with FFT(take(Slab.X, whole, rank, ranks), distribution=[Slab.X, Slab.Y], axes=axes, options={"chunks": chunks},
                 group=together) as f:
            f.plan()
            expected = naive(whole, "C2C", False, "even", axes, None)
            check(f.execute(), expected, Slab.Y, rank, ranks, f"{shape} {axes} {chunks}")
            check(f.execute(direction="inverse"), naive(whole, "C2C", True, "even", axes, None), Slab.Y, rank, ranks,
                  f"inverse {shape} {axes} {chunks}")
            step = next(step for step in f.traffic()["steps"] if "move" in step)
            assert step["why"] in f.explain() and ("chunks along axis" in f.explain()) == (step["chunks"] > 1)
            edges = {(edge["src"], edge["dst"]): edge["bytes"] for edge in step["move"]["edges"]}
            assert sum(edges.values()) == 8 * whole.numel() and len(edges) == len(step["move"]["edges"])
            said.append((step["chunks"], step["why"]))
    return said


@pytest.mark.parametrize(("way", "hosts"), [("shm", 1), ("tcp", 1), ("tcp", 2)])
def test_exchanges_are_cut_between_hosts(way: str, hosts: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    said = run_ranks(2, chunk_choices, 2, str(tmp_path / "store"), hosts, join=False)
    assert said[0] == said[1]
    counts, whys = zip(*said[0])
    by_itself = hosts == 2
    assert counts[:4] == (4 if by_itself else 1, 1, 3, 8)
    assert ("each or more" if by_itself else "no tcp or rdma between hosts") in whys[0]
    assert counts[4] == 1 and ("too small" in whys[4]) == by_itself  # 256 bytes on a rank
    assert whys[2] == "as the options say" and whys[3].endswith("axis 0 has 8 indices")
    # one index on each rank; one rank has all, and transforms every axis longer than one
    assert counts[6] == 1 and counts[7] == 1
    assert counts[8] == 4


def one_has_nothing(rank: int, ranks: int) -> None:
    """More ranks than planes, boxes that are empty on some ranks, and whole arrays on one rank."""
    shape = (2, 6, 5)
    whole = data_of(shape, torch.complex128, 1)
    expected = naive(whole, "C2C", False, "even", None, None)
    empty, everything = Box((0, 0, 0), (0, 0, 0)), Box((0, 0, 0), shape)
    one_box = [[Box((0, 0, 0), (2, 6, 2)), empty, Box((0, 0, 2), (2, 6, 5))], [empty, Box((0, 0, 0), shape), empty]]
    for source, target in [(Slab.X, Slab.Y), (Slab.Y, Slab.X), (Boxes(one_box[0]), Slab.X), (Slab.X, Boxes(one_box[1])),
                           (Boxes(one_box[0]), Boxes([everything] * ranks))]:
        for chunks in (2, 5, 50):
            note = f"{source} to {target}, {chunks} chunks"
            result = fft(take(source, whole, rank, ranks), distribution=[source, target], options={"chunks": chunks},
                         global_shape=shape, group=group())
            check(result, expected, target, rank, ranks, note)


def test_chunks_where_a_rank_has_nothing() -> None:
    run_ranks(3, one_has_nothing, 3)


def failing_chunks(rank: int, size: int, chunks: int, when: int, how: str) -> tuple[str, str]:
    """Rank 1 dies, stays away, or cannot transform, before chunk ``when`` of the second execute: the errors of the
    ranks.
    """
    from shardwire.distributed import _fft_plan
    whole = data_of((12, 8, 6), torch.complex64, 1)
    with FFT(take(Slab.X, whole, rank, size), distribution=[Slab.X, Slab.Y], options={"chunks": chunks}) as f:
        f.plan()
        check(f.execute(), naive(whole, "C2C", False, "even", None, None), Slab.Y, rank, size, "before")
        start, transform, started, called = _fft_plan._fft_chunks.start, _fft_plan.Plan._transform, [], []

        def counted(*given: Any) -> Any:
            started.append(start(*given))
            return started[-1]

        def failing(*given: Any) -> Any:
            called.append(given)
            if rank == 1 and len(called) > when and how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1 and len(called) > when and how == "fails":
                raise RuntimeError("no transform")
            return transform(*given)

        _fft_plan._fft_chunks.start, _fft_plan.Plan._transform = counted, failing
        meet("made")
        shardwire.resolve_backend(None).set_timeout(datetime.timedelta(seconds=1))
        said = ("none", "") if rank == 1 and how == "is away" else error_of(f.execute)
        assert all(future.done() for future in started)  # nothing is under way any more
        assert rank == 0 or how == "is away" or len(started) == when
        if how != "dies":  # rank 1 stays until rank 0 has its error
            meet("over")
    torch.distributed.destroy_process_group()
    return said


@pytest.mark.any_torch
@pytest.mark.parametrize("way", ["shm", "tcp"])
@pytest.mark.parametrize(("how", "kind", "text"), [
    ("dies", "PeerFailedError", "rank 1"), ("is away", "TimeoutError", "rank 1"), ("fails", "TimeoutError", "rank 1")])
def test_failures_amid_chunks_are_those_without(run_ranks: Any, how: str, kind: str, text: str, way: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", way)
    for chunks, when in ((1, 0), (4, 2)):
        first, second = run_ranks(2, failing_chunks, chunks, when, how, may_die=(1,))
        assert first[0] == kind and text in first[1], (chunks, first)
        if how == "fails":
            assert second == ("RuntimeError", "no transform")


def narrow(rank: int) -> None:
    for dtype, wide in ((torch.float16, torch.complex32), (torch.bfloat16, torch.complex64)):
        whole = data_of((6, 8), dtype, 2)
        for chunks in (None, 2):
            result = rfft(take(Slab.X, whole, rank, 2), distribution=Slab.X, options={"chunks": chunks}, group=group())
            assert result.dtype == wide
            error = (result.to(torch.complex64)
                     - take(Slab.X, naive(whole, "R2C", False, "even", None, None), rank, 2)).abs().max()
            assert float(error) < 0.05


def test_narrow_types_are_computed_in_float32() -> None:
    run_ranks(2, narrow)


def options_and_views(rank: int) -> None:
    g = group()
    whole = data_of((4, 8, 6), torch.complex64, 1)
    local = take(Slab.X, whole, rank, 2)
    with FFT(local, distribution=Slab.X, options=FFTOptions(redistribute=False), group=g) as f:
        with pytest.raises(InvalidFFTState, match="after plan"):
            f.execute()
        f.plan()
        assert f.output_distribution == Slab.Y
        first = f.execute()
        assert torch.equal(f.execute(), first)  # the operand is unchanged
        text = f.explain()
        assert "exchange" in text and "rank 0 to rank 1: " in text and f"by {f.traffic()['engine']}" in text
        assert sum("move" in step for step in f.traffic()["steps"]) == 1  # transposed: one exchange
        for wrong in (2, True, "sideways", [1], 0.5):
            with pytest.raises(ValueError, match="give FFTDirection"):
                f.execute(direction=wrong)
        for direction in ("FORWARD", "Forward", -1, -1.0, numpy.int64(-1)):
            assert torch.equal(f.execute(direction=direction), first)
        f.reset_operand(None)
        with pytest.raises(InvalidFFTState, match="needs an operand"):
            f.execute()
        f.reset_operand_unchecked(local)
        assert torch.equal(f.execute(), first)
    with pytest.raises(InvalidFFTState, match="freed"):
        f.execute()
    with FFT(local, distribution=Slab.X, options={"redistribute": False}, axes=(1, 2), group=g) as f:
        f.plan()
        assert not any("move" in step for step in f.traffic()["steps"]) or f.output_distribution == Slab.Y
    grid = ProcessGrid(shape=(2, 1, 1))
    with FFT(take(BlockCyclic(grid, (1, 3, 2)), whole, rank, 2), distribution=BlockCyclic(grid, (1, 3, 2)),
             options={"redistribute": False}, group=g) as f:
        f.plan()
        check(f.execute(), naive(whole, "C2C", False, "even", None, None), f.output_distribution, rank, 2,
              "where it ends")
        cyclic, free = BlockCyclic(grid, (1, 3, 2)), f.output_distribution
        spectrum = f.execute()
        f.reset_operand(spectrum, distribution=free)
        assert f.output_distribution == cyclic
        check(f.execute(direction="inverse"), whole.to(torch.complex128) * whole.numel(), cyclic, rank, 2,
              "back from where it ends")
    rows, columns = Block(grid), Block(ProcessGrid(shape=(1, 2, 1)))
    with FFT(local, distribution=rows, options={"redistribute": False}, group=g) as f:  # as of Slab.X
        f.plan()
        spectrum = f.execute()
        assert f.output_distribution == Slab.Y
        check(spectrum, naive(whole, "C2C", False, "even", None, None), Slab.Y, rank, 2, "a Block that is a slab")
        for given, taken in ((columns, spectrum), (Slab.X, local), (Slab.Y, spectrum), (rows, local)):
            f.reset_operand(taken, distribution=given)
            assert f.output_distribution == (rows if taken is spectrum else Slab.Y)
        with pytest.raises(ValueError, match="it can be the operand's"):
            f.reset_operand(local, distribution=Block(ProcessGrid(shape=(1, 1, 2))))
        with pytest.raises(ValueError, match="it can be the operand's"):
            f.reset_operand(local, distribution=Block(ProcessGrid(shape=(2, 1))))
    made = allocate_operand(local.shape, torch, input_dtype=torch.complex64, distribution=Slab.X, memory_space="cpu",
                            group=g)
    assert shardwire.in_shared_heap(made) and made.shape == local.shape
    assert (allocate_operand(local.shape, numpy, input_dtype=numpy.float32, distribution=Slab.X, group=g).dtype
            == numpy.float32)
    strided = local.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not strided.is_contiguous()
    check(fft(strided, distribution=Slab.X, group=g), naive(whole, "C2C", False, "even", None, None), Slab.X, rank, 2,
          "strided")
    check(ifft(fft(local, distribution=Slab.X, group=g), distribution=Slab.X, norm="backward", group=g),
          whole.to(torch.complex128), Slab.X, rank, 2, "there and back")


def test_options_states_and_strides() -> None:
    run_ranks(2, options_and_views)


def first_in_inference_mode(rank: int) -> None:
    """A group's state of the first call serves later calls in every mode."""
    whole = data_of((4, 6, 8), torch.complex128, 1)
    expected = torch.fft.ifftn(whole)
    for inference in (True, False, True):
        for local in (take(Slab.X, whole, rank, 2), take(Slab.X, whole, rank, 2).requires_grad_()):
            with torch.inference_mode(inference):
                result = ifft(local, distribution=Slab.X, norm="backward", group=group())
            check(result.detach(), expected, Slab.X, rank, 2, f"inference_mode({inference})")
            moved = reshape(local, Slab.X, Slab.Y, group=group())
            assert torch.equal(moved.detach(), take(Slab.Y, whole, rank, 2))
        result = ifft(local, distribution=Slab.X, norm="backward", group=group())
        result.abs().sum().backward()
        assert local.grad is not None
    with torch.inference_mode(), FFT(take(Slab.X, whole, rank, 2), distribution=Slab.X, group=group()) as f:
        f.plan()
        f.execute()
        rooms = f._plans[False]._between.values()
        assert rooms and not any(room.is_inference() for room in rooms)  # FFTW scales values in these rooms in place


def test_a_first_call_in_inference_mode() -> None:
    run_ranks(2, first_in_inference_mode)


def other_default_device(rank: int) -> None:
    """Short and long messages between ranks, and measurements where there are engines: all tensors stay on the CPU."""
    whole = data_of((16, 20, 32), torch.complex128, 1)
    mine, expected = take(Slab.X, whole, rank, 2), torch.fft.fftn(whole)
    with torch.device("meta"):
        result = fft(mine, distribution=Slab.X, group=group())
        moved = reshape(mine, Slab.X, Slab.Y, group=group())
        kind, text = error_of(lambda: reshape(mine, Slab.X, Slab.Y, group=group(), options={"x" * 2000: 1}))
        assert (kind, "x" * 2000 in text) == ("ValueError", True)
        made = allocate_operand(mine.shape, torch, input_dtype=torch.complex64, distribution=Slab.X, group=group())
        packed_again = array_of(mine).scratch()
    assert made.device.type == packed_again.device.type == "cpu"
    check(result, expected, Slab.X, rank, 2, "the default device is another one")
    assert torch.equal(moved, take(Slab.Y, whole, rank, 2))


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_the_default_device_does_not_matter() -> None:
    run_ranks(2, other_default_device)


def amid_an_element(rank: int) -> None:
    """A field of a packed record begins at any byte, and numpy gives a view of the field. Here on one rank only."""
    whole = data_of((64, 32, 16), torch.complex64, 1)
    expected = torch.fft.fftn(whole)
    for offset in (4, 1):
        mine = take(Slab.X, whole, rank, 2).numpy()
        if rank == 0:
            raw = numpy.zeros(mine.nbytes + 24, dtype=numpy.uint8)
            begin = -raw.ctypes.data % 16 + offset
            view = raw[begin:begin + mine.nbytes].view(numpy.complex64).reshape(mine.shape)
            view[:] = mine
            mine = view
        for chunks in (1, 2):
            check(fft(mine, distribution=Slab.X, options={"chunks": chunks}, group=group()), expected, Slab.X, rank, 2,
                  f"{offset} bytes into an element")
        moved = reshape(mine, Slab.X, Slab.Y, group=group())
        assert torch.equal(torch.from_numpy(moved), take(Slab.Y, whole, rank, 2))


def test_an_operand_that_begins_amid_an_element() -> None:
    run_ranks(2, amid_an_element)


def same_box_on_one_rank(rank: int) -> list[tuple[str, str]]:
    """Rank 0 has the same box of the operand and of the result, the other ranks do not."""
    whole = data_of((8, 8), torch.complex128, 1)
    before = Boxes([Box((0, 0), (4, 4)), Box((0, 4), (4, 8)), Box((4, 0), (8, 8))])
    after = Boxes([Box((0, 0), (4, 4)), Box((4, 0), (8, 4)), Box((0, 4), (8, 8))])
    mine, back = before._boxes[rank], after._boxes[rank]
    with FFT(take(before, whole, rank, 3), distribution=[mine, back], group=group()) as f:
        f.plan()
        first = f.execute()
        check(first, torch.fft.fftn(whole), after, rank, 3, "there")
        f.reset_operand(first, distribution=back)
        check(f.execute(direction="inverse"), whole * whole.numel(), before, rank, 3, "back")
        f.reset_operand(take(before, whole, rank, 3), distribution=mine)
        check(f.execute(), torch.fft.fftn(whole), after, rank, 3, "there again")
        return [error_of(lambda: f.reset_operand(take(before if rank < 2 else after, whole, rank, 3),
                                                 distribution=mine if rank < 2 else back))]


def test_a_box_that_is_one_ranks_before_and_after() -> None:
    everyone = run_ranks(3, same_box_on_one_rank)
    assert everyone == [[("MismatchError",
                          ("fft.FFT.reset_operand: ranks say different distributions: the operand's and the result's "
                           "on rank 0, the operand's on rank 1, the result's on rank 2"))]] * 3


def sub_group(rank: int) -> None:
    import torch.distributed as dist
    ranks = [0, 2, 3]
    part = dist.new_group(ranks, backend="shardwire")
    if rank in ranks:
        whole = data_of((5, 7, 4), torch.float64, 1)
        place = ranks.index(rank)
        for chunks in (None, 2):
            result = rfft(take(Slab.X, whole, place, 3), distribution=[Slab.X, Slab.Z], options={"chunks": chunks},
                          group=part)
            check(result, naive(whole, "R2C", False, "even", None, None), Slab.Z, place, 3,
                  f"a part of the ranks, {chunks} chunks")
    dist.barrier()


def test_on_some_of_the_ranks() -> None:
    run_ranks(4, sub_group, default_group=True)


def kept_for_how_long(rank: int) -> None:
    import torch.distributed as dist

    from shardwire.distributed import _meeting
    pair = dist.new_group([0, 1], backend="shardwire")
    whole = data_of((6, 4), torch.complex128, 1)

    def transform() -> None:
        local = take(Slab.X, whole, rank, 3).requires_grad_()
        result = fft(local, distribution=Slab.X, group=dist.group.WORLD)
        check(result.detach(), torch.fft.fftn(whole), Slab.X, rank, 3, "kept")
        result.abs().sum().backward()

    transform()
    assert len(_meeting._plans) == 1
    if rank < 2:
        swd.initialize(None, pair)
        fft(take(Slab.X, whole, rank, 2), distribution=Slab.X)
        assert len(_meeting._plans) == 2
        swd.finalize()
        assert not _meeting._plans
    for _ in range(2):
        transform()  # rank 2 has kept a plan that the other ranks dropped
    if rank < 2:
        fft(take(Slab.X, whole, rank, 2), distribution=Slab.X, group=pair)
        gone = weakref.ref(pair)
        dist.destroy_process_group(pair)
        del pair
        gc.collect()
        assert gone() is None, gc.get_referrers(gone())


def test_kept_plans_end_with_their_group_and_by_finalize() -> None:
    run_ranks(3, kept_for_how_long, default_group=True)


def misuse(rank: int) -> list[tuple[str, str]]:
    mine, g = torch.zeros(4, 8, dtype=torch.complex64), {"group": group()}
    box = Box((4 * rank, 0), (4 * rank + 4, 8))
    errors = [
        error_of(lambda: fft("nothing" if rank else mine, distribution=Slab.X, **g)),
        error_of(lambda: fft(mine.real if rank else mine, distribution=Slab.X, **g)),
        error_of(lambda: fft(mine.to(torch.complex128) if rank else mine, distribution=Slab.X, **g)),
        error_of(lambda: fft(mine[:, :6 + 2 * rank], distribution=Slab.X, **g)),
        error_of(lambda: fft(mine[:3 + rank], distribution=Slab.X, **g)),  # the longer part comes first
        error_of(lambda: fft(mine, distribution=Slab.X if rank else Slab.Y, **g)),
        error_of(lambda: fft(mine, distribution=[Slab.X, Slab.Y] if rank else Slab.X, **g)),
        error_of(lambda: fft(mine, distribution=box, **g)),
        error_of(lambda: fft(mine, distribution=[box, Box((0, 0), (4, 8))], **g)),
        error_of(lambda: fft(mine, distribution=[Box((0, 0), (4, 8)), box], **g)),
        error_of(lambda: fft(mine, distribution=[Slab.X] * 3, **g)),
        error_of(lambda: fft(mine, distribution=None, **g)),
        error_of(lambda: fft(mine, distribution=Slab.Z, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, axes=[0, 0] if rank else None, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, axes=[0, -2], **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, norm="none" if rank else None, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, options={"last_axis_parity": "prime"} if rank else None, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, options={"fft_type": "C2R"}, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, options={"measure": 1 + rank}, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, options={"measure": numpy.bool_(True)} if rank else None, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, options={"chunks": rank}, **g)),
        error_of(lambda: fft(mine, distribution=Slab.X, options={"chunks": 1 + rank}, **g)),
        error_of(lambda: irfft(mine[:, :1], distribution=Slab.X, **g)),
        error_of(lambda: rfft(mine, distribution=Slab.X, **g) if rank else fft(mine, distribution=Slab.X, **g)),
        error_of(lambda: rfft(torch.zeros(4, 4, dtype=torch.int32), distribution=Slab.X, **g)),
        error_of(lambda: fft(mine, distribution=Placements([shardwire.Partial()]), **g)),
        error_of(lambda: allocate_operand((4, 8), torch, distribution=Slab.X, memory_space="cuda" if rank else "cpu",
                                          **g)),
    ]
    with FFT(mine, distribution=[Slab.X, Slab.Y], **g) as f:
        f.plan()
        errors += [error_of(lambda: f.reset_operand(mine[:2] if rank else mine)),
                   error_of(lambda: f.reset_operand(mine, distribution=Pencil((1, 0)))),
                   error_of(lambda: f.reset_operand(None if rank else mine))]
        assert f.execute().shape == (8, 4)
    return errors


EXPECTED = [
    ("TypeError", "rank 1: operand is 'nothing'"), ("ValueError", "rank 1: C2C takes a complex operand"),
    ("MismatchError", "dtype differs"), ("BindDistributionError", "on rank 1"),
    ("BindDistributionError", "shape [3, 8] on rank 0"),
    ("MismatchError", "distribution differs"), ("MismatchError", "the result's distribution differs"),
    ("ValueError", "give a pair"), ("GapError", "leaves [4:8, 0:8]"), ("ValueError", "overlaps: ranks 0 and 1"),
    ("ValueError", "3 entries"), ("TypeError", "distribution is None"), ("ValueError", "does not have"),
    ("MismatchError", "axes differs"), ("ValueError", "give each axis once"), ("ValueError", "rank 1: norm is 'none'"),
    ("ValueError", "rank 1: last_axis_parity is 'prime'"), ("ValueError", "fft.fft is C2C"),
    ("ValueError", "rank 0: measure is 1"), ("TypeError", "rank 1: an argument cannot be sent to the other ranks"),
    ("ValueError", "rank 0: chunks is 0"), ("MismatchError", "chunks differs"),
    ("ValueError", "last_axis_parity='odd'"),
    ("MismatchError", "rank 0 called shardwire.distributed.fft.fft, rank 1 called shardwire.distributed.fft.rfft"),
    ("TypeError", "torch.int32"), ("UnsupportedError", "Partial"), ("ValueError", "rank 1: memory_space is 'cuda'"),
    ("ValueError", "rank 1: the new operand has shape [2, 8]"), ("ValueError", "it can be the operand's"),
    ("MismatchError", "given differs"),
]


def test_each_misuse_is_one_error_on_all_ranks() -> None:
    check_misuse(misuse, EXPECTED)


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    whole = data_of((6, 5, 7), torch.float64, 1)
    tensor = dt.distribute_tensor(whole, mesh, [dt.Shard(0), dt.Shard(2)]).requires_grad_()
    result = rfft(tensor)
    expected = naive(whole, "R2C", False, "even", None, None)
    assert result.placements == tensor.placements and result.shape == expected.shape
    assert torch.allclose(result.full_tensor(), expected, rtol=0, atol=1e-11)
    other = rfft(tensor, distribution=[None, [dt.Shard(1), dt.Replicate()]], options={"chunks": 2})
    assert (other.placements == (dt.Shard(1), dt.Replicate())
            and torch.allclose(other.full_tensor(), expected, rtol=0, atol=1e-11))
    weights = dt.distribute_tensor(data_of(expected.shape, torch.complex128, 2), mesh, other.placements)
    for spectrum in (result, other):
        tensor.grad = None
        part = spectrum.to_local() * weights.redistribute(placements=spectrum.placements).to_local()
        part.real.sum().backward()
        plain = whole.clone().requires_grad_()
        (torch.fft.rfftn(plain) * weights.full_tensor()).real.sum().backward()
        assert torch.allclose(tensor.grad.full_tensor(), plain.grad, rtol=0, atol=1e-10)


def test_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(4, dtensors, default_group=True)


def on_a_turned_mesh(rank: int) -> None:
    """Placements without a mesh are on the operand's mesh, whose ranks are in another order than the group's; and the
    result of a swapped transform is on the mesh of the former operand."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    whole = data_of((4, 6), torch.complex128, 1)
    turned = DeviceMesh("cpu", [1, 0])
    rows = Placements([dt.Shard(0)], turned)
    tensor = dtensor_of(whole, turned, [dt.Shard(0)], rank)
    check(fft(tensor, distribution=Placements([dt.Shard(0)])).to_local(), torch.fft.fftn(whole), rows, rank, 2, "turn")
    columns = Placements([dt.Shard(1)], DeviceMesh("cpu", [0, 1]))
    with FFT(tensor, distribution=[None, columns]) as f:
        f.plan()
        f.reset_operand(f.execute(), distribution=columns)
        back = f.execute(direction="inverse")
    check(back.to_local() / 24, whole, rows, rank, 2, "swapped")
    assert back.device_mesh == turned
    for first in (Placements([dt.Shard(0)], [1, 0]), Boxes([Box((2, 0), (4, 6)), Box((0, 0), (2, 6))])):
        with FFT(tensor, distribution=[first, columns]) as f:
            f.plan()
            f.reset_operand(f.execute(), distribution=columns)
            back = f.execute(direction="inverse")
        check(back.to_local() / 24, whole, rows, rank, 2, f"swapped from {first}")
        assert back.device_mesh == turned and back.placements == tensor.placements
    kind, text = error_of(lambda: fft(tensor, distribution=Placements([dt.Shard(0)], [1, 0])))
    assert kind == "TypeError" and "give a DeviceMesh" in text


def test_dtensors_on_a_turned_mesh() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(2, on_a_turned_mesh, default_group=True)


def other_placements(rank: int) -> list[tuple[str, str]]:
    import torch.distributed.tensor as dt
    whole = data_of((4, 4), torch.complex128, 1)
    (rows, everywhere), first, second, addends = differently_placed(whole)
    mesh = first.device_mesh
    errors = []
    with FFT(first) as f:
        f.plan()
        errors += [error_of(lambda: f.reset_operand(second)), error_of(lambda: f.reset_operand(addends))]
        f.reset_operand(dt.distribute_tensor(2 * whole, mesh, rows))
        assert torch.allclose(f.execute().full_tensor(), 2 * torch.fft.fftn(whole), rtol=0, atol=1e-12)
    for _ in range(2):  # a kept plan hides nothing
        assert torch.allclose(fft(first, distribution=Placements(rows, mesh)).full_tensor(), torch.fft.fftn(whole),
                              rtol=0, atol=1e-12)
        errors += [error_of(lambda: fft(second, distribution=Placements(rows, mesh))),
                   error_of(lambda: fft(addends, distribution=Placements(everywhere, mesh)))]
    return errors


def test_a_dtensors_own_placements_count() -> None:
    errors = check_other_placements(other_placements)
    assert "rank 1: the new operand is a DTensor, whose own placements give this rank [2:4, 0:4]" in errors[0][1]
    assert "whose own placements give rank 1 [2:4, 0:4]" in errors[2][1] and "Partial" in errors[3][1]


def on_a_part(rank: int) -> None:
    """A mesh of some of the ranks; all of the group call."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    few = DeviceMesh("cpu", torch.tensor([2, 0]))
    whole = data_of((5, 6, 4), torch.complex128, 1)
    expected = torch.fft.fftn(whole)
    rows, columns = Placements([dt.Shard(0)], few), Placements([dt.Shard(1)], few)
    tensor = dt.DTensor.from_local(take(rows, whole, rank, 3), few, [dt.Shard(0)], run_check=False, shape=whole.shape,
                                   stride=whole.stride())
    for chunks in (1, 2):
        result = fft(tensor, distribution=[None, columns], options={"chunks": chunks})
        assert result.device_mesh == few and result.placements == (dt.Shard(1),)
        check(result.to_local().reshape(take(columns, whole, rank, 3).shape), expected, columns, rank, 3,
              "a mesh of some ranks")
    with FFT(tensor) as f:
        f.plan()
        f.reset_operand(tensor * 2)
        check(f.execute().to_local().reshape(take(rows, whole, rank, 3).shape), 2 * expected, rows, rank, 3, "reset")
    tensor.requires_grad_()
    result = fft(tensor).to_local().detach()  # torch's to_local has no gradient outside of a mesh
    check(result.reshape(take(rows, whole, rank, 3).shape), expected, rows, rank, 3, "requires grad")


def test_dtensors_on_a_part_of_the_ranks() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(3, on_a_part, default_group=True)
