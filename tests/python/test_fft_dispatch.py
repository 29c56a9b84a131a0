"""torch.fft on DTensors by dispatch_dtensors, against torch.fft of the whole array: random calls, gradients, meshes,
and misuse."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from ranks import error_of, outcome, run_ranks
from test_fft import data_of
from test_fft_long import favoured

import shardwire
from shardwire.distributed import fft

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20261126"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "40"))
NAMES = [begin + ending for ending in ("", "2", "n") for begin in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")]
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
needs_dtensor = pytest.mark.skipif(TORCH < (2, 5),
                                   reason="this torch has no DTensor")


def random_call(rng: random.Random, shape: tuple[int, ...]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A function of torch.fft, and its arguments behind the first; some by position."""
    ndim = len(shape)
    name = rng.choice(NAMES if ndim > 1 else [name for name in NAMES if not name.endswith("2")])
    given: dict[str, Any] = {}
    if name.endswith("2"):
        axes = rng.sample(range(ndim), 2)
        if rng.random() < 0.5:
            given["dim"] = tuple(axis - rng.choice((0, ndim)) for axis in axes)
        else:
            axes = [ndim - 2, ndim - 1]
    elif name.endswith("n"):
        axes = rng.sample(range(ndim), rng.randint(1, ndim))
        if rng.random() < 0.5:
            given["dim"] = tuple(axis - rng.choice((0, ndim)) for axis in axes)
        else:
            axes = list(range(ndim))
    else:
        axes = [rng.randrange(ndim)]
        given["dim"] = axes[0] - rng.choice((0, ndim))
    lengths = [rng.choice([shape[axis], rng.randint(1, 12)]) for axis in axes]
    to_real = name.startswith(("irfft", "hfft"))
    if rng.random() < 0.5 or (to_real and shape[axes[-1]] == 1):
        given["s" if name[-1] in "2n" else "n"] = tuple(lengths) if name[-1] in "2n" else lengths[0]
    if rng.random() < 0.7:
        given["norm"] = rng.choice([None, "backward", "forward", "ortho"])
    if rng.random() < 0.5:  # by position
        first = given.pop("s" if name[-1] in "2n" else "n", None)
        default = {"2": (-2, -1), "n": None}.get(name[-1], -1)
        return name, (first, given.pop("dim", default), given.pop("norm", None)), {}
    return name, (), given


def random_mesh(rng: random.Random, ndim: int, ranks: int) -> tuple[Any, list[Any]]:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    if ranks == 4 and rng.random() < 0.3:
        return DeviceMesh("cpu", torch.arange(4).reshape(2, 2)), [
            rng.choice([dt.Shard(rng.randrange(ndim)), dt.Replicate()]) for _ in range(2)]
    return DeviceMesh("cpu", torch.arange(ranks)), [rng.choice([dt.Shard(rng.randrange(ndim))] * 4 + [dt.Replicate()])]


def random_calls(rank: int, ranks: int, seed: int, cases: int) -> int:
    import torch.distributed.tensor as dt
    favoured()
    dispatched = counted()
    rng = random.Random(seed)
    with_gradient = 0
    for case in range(cases):
        ndim = rng.randint(1, 3)
        shape = tuple(rng.choice([1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 36]) for _ in range(ndim))
        name, given, named = random_call(rng, shape)
        mesh, placements = random_mesh(rng, ndim, ranks)
        dtype = rng.choice([torch.float32, torch.float64, torch.int64] + (
            [] if name.startswith(("rfft", "ihfft")) else [torch.complex64, torch.complex128]))
        whole = (data_of(shape, torch.float64, seed + case) * 9).to(dtype) if dtype == torch.int64 else data_of(
            shape, dtype, seed + case)
        plain, tensor = whole.clone(), dt.distribute_tensor(whole, mesh, placements)
        gradient = dtype != torch.int64 and rng.random() < 0.4
        if gradient:
            plain.requires_grad_()
            tensor.requires_grad_()
        note = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {name} of {shape} {dtype} {given} {named} "
                f"{placements}")
        expected = getattr(torch.fft, name)(plain, *given, **named)
        with fft.dispatch_dtensors():
            result = (getattr(torch.fft, name)(input=tensor, **named) if named and rng.random() < 0.2
                      else getattr(torch.fft, name)(tensor, *given, **named))
            assert torch.equal(torch.fft.fft(whole), torch.fft.fft(whole)), "plain tensors are torch's"
        assert result.placements == tuple(placements) and result.device_mesh == mesh, note
        assert (result.shape, result.dtype, result.stride()) == (
            expected.shape, expected.dtype, torch.empty(expected.shape).stride()), note
        close(result.full_tensor().detach(), expected.detach(), note)
        if gradient:
            # Of local tensors: torch 2.6's own gradients of complex DTensors are wrong, and some fail.
            weights = data_of(tuple(expected.shape), expected.dtype, 7)
            (expected * weights).sum().real.backward()
            (result.to_local() * dt.distribute_tensor(weights, mesh, placements).to_local()).sum().real.backward()
            close(tensor.grad.full_tensor(), plain.grad, f"gradient: {note}")
            with_gradient += 1
        assert dispatched[0] == case + 1, note
    return with_gradient


def counted() -> list[int]:
    """The number of calls that were dispatched."""
    from shardwire.distributed import _fft_dispatch
    count, original = [0], _fft_dispatch.transform

    def transform(*given: Any, **named: Any) -> Any:
        count[0] += 1
        return original(*given, **named)

    _fft_dispatch.transform = transform
    return count


def close(got: torch.Tensor, wanted: torch.Tensor, note: str) -> None:
    bound = 1e-5 if wanted.dtype in (torch.float32, torch.complex64) else 1e-12
    largest = max(float(wanted.abs().max()), 1.0)
    error = float((got - wanted).abs().max())
    assert error <= bound * largest, f"{note}: off by {error / largest:.2g} of the largest value"


@needs_dtensor
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_calls(ranks: int) -> None:
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    results = run_ranks(ranks, random_calls, ranks, SEED + ranks, CASES, default_group=True, timeout=60 + CASES)
    assert results == [results[0]] * ranks and results[0] >= CASES // 6


def random_shifts(rank: int, ranks: int, seed: int, cases: int) -> None:
    import torch.distributed.tensor as dt
    rng = random.Random(seed)
    for case in range(cases):
        ndim = rng.randint(1, 4)
        shape = tuple(rng.choice([0] + [1, 2, 3, 4, 5, 6, 7, 9] * 4) for _ in range(ndim))
        if TORCH < (2, 13):  # torch 2.6's distribute_tensor() fails where an array without elements is cut
            shape = tuple(extent or 1 for extent in shape)
        name = rng.choice(["fftshift", "ifftshift"])
        axes = [rng.randrange(-ndim, ndim) for _ in range(rng.randint(1, ndim))]  # an axis may come twice
        given = rng.choice([(), (None,), (tuple(axes),), (axes[0],)])
        mesh, placements = random_mesh(rng, ndim, ranks)
        dtype = rng.choice([torch.float32, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool])
        whole = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
        note = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {case}: {name} of {shape} {dtype} {given} "
                f"{placements}")
        plain, tensor = whole.clone(), dt.distribute_tensor(whole, mesh, placements)
        gradient = dtype in (torch.float32, torch.float64) and rng.random() < 0.5
        if gradient:
            plain.requires_grad_(), tensor.requires_grad_()
        with fft.dispatch_dtensors():
            result = getattr(torch.fft, name)(tensor, *given) if rng.random() < 0.5 else getattr(torch.fft, name)(
                input=tensor, **({"dim": given[0]} if given else {}))
        expected = getattr(torch.fft, name)(plain, *given)
        assert result.placements == tuple(placements) and result.device_mesh == mesh, note
        assert result.dtype == dtype and torch.equal(result.full_tensor(), expected), note
        if gradient:
            weights = data_of(shape, dtype, 7)
            (expected * weights).sum().backward()
            (result.to_local() * dt.distribute_tensor(weights, mesh, placements).to_local()).sum().backward()
            assert torch.equal(tensor.grad.full_tensor(), plain.grad), f"gradient: {note}"


@needs_dtensor
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_shifts(ranks: int) -> None:
    run_ranks(ranks, random_shifts, ranks, SEED + 20 + ranks, CASES, default_group=True, timeout=60 + CASES)


def calls_again(rank: int) -> None:
    """Equal calls compile once, and their gradients once; finalize() drops the plans."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh

    from shardwire.distributed import _fft_shift, _meeting
    compile_op, compiled = _fft_shift.compile_op, []

    def counted_compile(*given: Any, **named: Any) -> Any:
        compiled.append(named["name"])
        return compile_op(*given, **named)

    _fft_shift.compile_op = counted_compile
    whole = data_of((5, 6), torch.float64, 1)
    for _ in range(3):
        tensor = dt.distribute_tensor(whole, DeviceMesh("cpu", torch.arange(2)), [dt.Shard(0)]).requires_grad_()
        with fft.dispatch_dtensors():
            padded, moved = torch.fft.rfft(tensor, n=9, dim=0), torch.fft.fftshift(tensor)
        close(padded.full_tensor(), torch.fft.rfft(whole, n=9, dim=0), "padded")
        assert torch.equal(moved.full_tensor(), torch.fft.fftshift(whole))
        padded.to_local().abs().sum().backward()
        moved.to_local().sum().backward()
    assert compiled == ["padding of torch.fft.rfft", "torch.fft.fftshift", "padding of torch.fft.rfft.backward",
                        "torch.fft.fftshift.backward"], compiled
    _meeting.forget()
    with fft.dispatch_dtensors():
        torch.fft.fftshift(tensor)
        torch.fft.ifftshift(tensor)
    assert compiled[4:] == ["torch.fft.fftshift", "torch.fft.ifftshift"], compiled


@needs_dtensor
def test_equal_calls_compile_once() -> None:
    run_ranks(2, calls_again, default_group=True)


def compiled_calls(rank: int, backend: str) -> None:
    """Inside of torch.compile, with the context inside and outside: values and gradients of the calls without it."""
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh, whole = DeviceMesh("cpu", torch.arange(2)), data_of((5, 6), torch.float64, 1)

    def function(x: Any) -> Any:
        return torch.fft.fftshift(torch.fft.rfft(x * 2, n=9, dim=0)) + 1

    def with_context(x: Any) -> Any:
        with fft.dispatch_dtensors():
            y = torch.fft.fftshift(torch.fft.rfft(x * 2, n=9, dim=0))
        return y + 1

    plain = whole.clone().requires_grad_()
    expected = function(plain)
    expected.abs().sum().backward()
    for called in (function, with_context):
        compiled = torch.compile(called, backend=backend)
        for _ in range(2):
            tensor = dt.distribute_tensor(whole, mesh, [dt.Shard(0)]).requires_grad_()
            if called is function:
                with fft.dispatch_dtensors():
                    result = compiled(tensor)
            else:
                result = compiled(tensor)
            assert result.placements == (dt.Shard(0),)
            close(result.full_tensor().detach(), expected.detach(), "compiled")
            result.to_local().abs().sum().backward()
            close(tensor.grad.full_tensor(), plain.grad, "the gradient of a compiled call")
    torch._dynamo.reset()
    kind, text = error_of(torch.compile(with_context, backend=backend, fullgraph=True), tensor)
    assert kind == "Unsupported", (kind, text)


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="tried with torch 2.13")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_calls_inside_of_torch_compile(backend: str) -> None:
    run_ranks(2, compiled_calls, backend, default_group=True)


def meshes(rank: int) -> None:
    """A mesh of some ranks, on which a rank outside gets an empty part; two dimensions; and a mesh of some ranks in two
    dimensions, whose group is given."""
    import torch.distributed as dist
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    few = DeviceMesh("cpu", torch.tensor([0, 2, 3]))
    whole = data_of((6, 60), torch.complex128, 1)
    tensor = dt.distribute_tensor(whole, few, [dt.Shard(1)])
    with fft.dispatch_dtensors():
        for name, dtype in (("fft2", torch.complex128), ("irfft2", torch.float64)):
            result = getattr(torch.fft, name)(tensor, s=(5, 72))
            assert result.placements == (dt.Shard(1),) and result.shape == (5, 72) and result.dtype == dtype
            moved = torch.fft.fftshift(tensor)
            assert moved.placements == (dt.Shard(1),) and moved.shape == whole.shape
            if rank == 1:
                assert result.to_local().numel() == moved.to_local().numel() == 0
            else:
                close(result.full_tensor(), getattr(torch.fft, name)(whole, s=(5, 72)), name)
                assert torch.equal(moved.full_tensor(), torch.fft.fftshift(whole))
        grid = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
        tensor = dt.distribute_tensor(whole, grid, [dt.Shard(1), dt.Shard(1)])
        close(torch.fft.hfft(tensor).full_tensor(), torch.fft.hfft(whole), "two dimensions of the mesh")
    pair = dist.new_group([3, 1], backend="shardwire")
    narrow = DeviceMesh("cpu", torch.tensor([[1], [3]]))
    if rank in (1, 3):
        tensor = dt.distribute_tensor(whole, narrow, [dt.Shard(1), dt.Replicate()])
        with fft.dispatch_dtensors(group=pair):
            result = torch.fft.fft(tensor)
        close(result.full_tensor(), torch.fft.fft(whole), "a given group")
    dist.barrier()


@needs_dtensor
def test_meshes() -> None:
    run_ranks(4, meshes, default_group=True)


def misuse(rank: int) -> list[tuple[str, str]]:
    import torch.distributed as dist
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(2))
    tensor = dt.distribute_tensor(data_of((4, 6), torch.complex128, 1), mesh, [dt.Shard(0)])
    addends = dt.DTensor.from_local(torch.ones(4, 6), mesh, [dt.Partial()])
    other = dt.distribute_tensor(data_of((4, 6), torch.complex128, 1), mesh, [dt.Shard(rank)])
    function = torch.fft
    with fft.dispatch_dtensors():
        errors = [error_of(lambda: function.fft(tensor, out=torch.empty(4, 6) if rank else None)),
                  error_of(lambda: function.fft(tensor, dim=2)), error_of(lambda: function.fft2(tensor, dim=(0, -2))),
                  error_of(lambda: function.fft(tensor, n=rank)), error_of(lambda: function.fft(tensor, n=5 + rank)),
                  error_of(lambda: function.fftn(tensor, s=(4,), dim=(0, 1))),
                  error_of(lambda: function.fft(tensor, norm="none" if rank else None)),
                  error_of(lambda: function.fft(tensor, norm="ortho" if rank else None)),
                  error_of(lambda: function.rfft(tensor)), error_of(lambda: function.fft(addends)),
                  error_of(lambda: function.fft(other)), error_of(lambda: function.irfft(tensor[:, :1])),
                  error_of(lambda: function.fft(tensor) if rank else function.ifft(tensor)),
                  error_of(lambda: function.fftn(tensor, s=5, dim=(0, 1))),
                  error_of(lambda: function.fftshift(tensor, dim=2 if rank else 1)),
                  error_of(lambda: function.ifftshift(tensor, dim=rank)), error_of(lambda: function.fftshift(addends))]
        close(function.fft(tensor).full_tensor(), function.fft(data_of((4, 6), torch.complex128, 1)), "afterwards")
    count = counted()
    outcome(lambda: function.fft(tensor))  # outside of the context torch's own rules hold: 2.11 refuses
    assert count == [0]
    dist.barrier()
    return errors


EXPECTED = [("ValueError", "rank 1: torch.fft.fft: out= is given"), ("ValueError", "dim is [2] for 2 dimensions"),
            ("ValueError", "give each axis once"), ("ValueError", "each axis needs at least one"),
            ("MismatchError", "torch.fft.fft: the lengths differs"), ("ValueError", "1 lengths are given for 2 axes"),
            ("ValueError", "rank 1: torch.fft.fft: norm is 'none'"), ("MismatchError", "norm differs"),
            ("TypeError", "takes a real DTensor"), ("UnsupportedError", "Partial"),
            ("MismatchError", "the placements differs"), ("ValueError", "each axis needs at least one"),
            ("MismatchError", "rank 0 called shardwire.distributed.fft.dispatch_dtensors: torch.fft.ifft"),
            ("ValueError", "1 lengths are given for 2 axes"),
            ("ValueError", "rank 1: torch.fft.fftshift: dim is [2] for 2 dimensions"),
            ("MismatchError", "torch.fft.ifftshift: the dim differs"), ("UnsupportedError", "Partial")]


@needs_dtensor
def test_each_misuse_is_one_error_on_all_ranks() -> None:
    first, second = run_ranks(2, misuse, default_group=True)
    assert first == second and len(first) == len(EXPECTED)
    for got, (kind, text) in zip(first, EXPECTED):
        assert got[0] == kind and text in got[1], got


@pytest.mark.skipif(needs_dtensor.args[0] is False, reason="this torch has DTensors")
def test_a_torch_without_dtensors() -> None:
    with pytest.raises(shardwire.UnsupportedError, match="needs torch 2.5 or later, and this is 1.13"):
        fft.dispatch_dtensors()
