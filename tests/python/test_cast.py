"""Casts on the way: a dtype for each side of an op, against torch's own ``.to``, over every path."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
import torch
from ranks import group, run_ranks

import shardwire
from shardwire import Layout, Partial, Replicate, Shard, UnsupportedError

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
REAL = [getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
                                          "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
        if hasattr(torch, name)]
if hasattr(torch, "float8_e4m3fn") and torch.isnan(torch.tensor(1000.0).to(torch.float8_e4m3fn).float()):
    REAL.remove(torch.float8_e4m3fn)  # beyond 448 torches below 2.13 give NaN (docs/limits.md)
COMPLEX = [torch.complex64, torch.complex128] + ([torch.complex32] if hasattr(torch, "complex32") else [])
PATHS: dict[str, dict[str, str]] = {
    "as_is": {},
    "direct": {"SHARDWIRE_INLINE_BYTES": "0"},
    "cross_memory": {"SHARDWIRE_INLINE_BYTES": "0", "SHARDWIRE_ORDINARY_PATH": "cross_memory"},
    "staged": {"SHARDWIRE_INLINE_BYTES": "0", "SHARDWIRE_ORDINARY_PATH": "staged", "SHARDWIRE_RING_BYTES": "65536"},
    "tcp": {"SHARDWIRE_INLINE_BYTES": "0", "SHARDWIRE_TRANSPORTS": "tcp"},
}


def box(offset: Any, shape: Any) -> dict[str, Any]:
    return {"offset": offset, "shape": shape}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.contiguous()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).view(
        BITS[tensor.element_size() // (2 if tensor.is_complex() else 1)])


def assert_same(got: torch.Tensor, expected: torch.Tensor, what: Any) -> None:
    """Bit for bit. torch's own NaN depends on the length of the row and on the version: any NaN equals any other NaN.
    """
    if got.is_complex():
        got, expected = torch.view_as_real(got.to(torch.complex128)), torch.view_as_real(expected.to(torch.complex128))
    same = (bits_of(got) == bits_of(expected)) | (
        torch.isnan(got.to(torch.float64)) & torch.isnan(expected.to(torch.float64)))
    assert (got.shape == expected.shape
            and bool(same.all())), f"{what}: {int((~same).sum())} of {same.numel()} elements differ"


def sample(dtype: torch.dtype, elements: int, seed: int) -> torch.Tensor:
    """Any bits: every code of the narrow types occurs, and most values of the wide types lie where the narrow types
    round.
    """
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        part = torch.empty((), dtype=dtype).real.dtype
        return torch.view_as_complex(sample(part, 2 * elements, seed).reshape(-1, 2)) if part != torch.float16 else (
            sample(torch.complex64, elements, seed).to(dtype))
    size = torch.empty((), dtype=dtype).element_size()
    if size <= 2:
        return torch.arange(elements).to(BITS[size]).view(dtype)
    any_bits = torch.randint(-2**63, 2**63 - 1, (elements,), generator=generator).to(BITS[size]).view(dtype)
    near = torch.randn(elements, generator=generator, dtype=torch.float64) * torch.exp2(
        torch.randint(-30, 18, (elements,), generator=generator).double())
    # Half of the values lie in the middle between two values of bfloat16 or float16, or one step beside the middle.
    coarse = near.to(torch.bfloat16 if seed % 2 else torch.float16).double()
    middle = coarse * (
        1 + 2.0**-(9 if seed % 2 else 12) * (1 + 2.0**-30 * torch.randint(-1, 2, (elements,), generator=generator)))
    values = torch.where(torch.rand(elements, generator=generator) < 0.5, near, middle).to(dtype)
    return torch.where(torch.rand(elements, generator=generator) < 0.2, any_bits, values)


def place(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    """The same values in the heap or outside, with other strides."""
    heap = kind % 2 == 0
    shape = tuple(tensor.shape)
    if kind // 2 == 1:
        room = (*shape[:-1], shape[-1] * 2)
        target = (shardwire.empty(room, dtype=tensor.dtype) if heap else torch.empty(room, dtype=tensor.dtype))[
            ..., ::2]
    elif kind // 2 == 2:
        target = (shardwire.empty(shape[::-1], dtype=tensor.dtype) if heap
                  else torch.empty(shape[::-1], dtype=tensor.dtype)).t()
    else:
        target = shardwire.empty(shape, dtype=tensor.dtype) if heap else torch.empty(shape, dtype=tensor.dtype)
    return target.copy_(tensor)


def every_pair(rank: int, types: list[torch.dtype], rows: int) -> int:
    """Both ranks hold half of the rows and want half of the columns: local copies and copies from the other rank at
    once.
    """
    done = 0
    for number, (source, target) in enumerate(itertools.permutations(types, 2)):
        whole = sample(source, rows * 256, number).reshape(rows, 256)
        expected = whole.to(target)
        half = rows // 2
        op = shardwire.compile_op(group(), [rows, 256], source, [box([rank * half, 0], [half, 256])],
                                  [box([0, rank * 128], [rows, 128])], output_dtype=target)
        for kind in range(6):
            out = place(torch.zeros(rows, 128, dtype=target) if target in COMPLEX
                        else torch.zeros(rows, 128).to(target), (kind + 1) % 6)
            op([place(whole[rank * half:(rank + 1) * half], kind)], [out]).wait()
            assert_same(out, expected[:, rank * 128:(rank + 1) * 128], (source, target, kind))
            done += 1
    return done


@pytest.mark.parametrize("path", list(PATHS))
def test_every_pair_is_torchs_to(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PATHS[path].items():
        monkeypatch.setenv(name, value)
    done = run_ranks(2, every_pair, REAL, 256, timeout=240)
    assert done[0] == 6 * len(REAL) * (len(REAL) - 1)
    complex_types = [dtype for dtype in COMPLEX
                     if dtype != getattr(torch, "complex32", None) or hasattr(torch, "float8_e8m0fnu")]
    run_ranks(2, every_pair, complex_types, 32)


def large(rank: int) -> None:
    """Long enough for streamed stores, several segments and rows that do not begin at a cache line."""
    rows, cols = 1025, 4099
    for source, target in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32),
                           (torch.float64, torch.float16)):
        whole = sample(source, rows * cols, 5).reshape(rows, cols)
        mine = [box([0, 0], [600, cols])] if rank == 0 else [box([600, 0], [425, cols])]
        op = shardwire.compile_op(group(), [rows, cols], source, mine, [box([0, 0], [rows, cols])], output_dtype=target)
        held = whole[:600] if rank == 0 else whole[600:]
        for heap in (True, False):
            source_tensor = shardwire.empty(tuple(held.shape), dtype=source).copy_(held) if heap else held
            out = shardwire.empty((rows, cols), dtype=target) if heap else torch.zeros(rows, cols, dtype=target)
            op([source_tensor], [out]).wait()
            assert_same(out, whole.to(target), (source, target, heap))


@pytest.mark.any_torch
@pytest.mark.parametrize("path", list(PATHS))
def test_large_tensors(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PATHS[path].items():
        monkeypatch.setenv(name, value)
    run_ranks(2, large)


def reductions(rank: int) -> None:
    """Computed as without a cast (the 16 bit types in float32), and then rounded once into the other type."""
    for source, target in itertools.permutations((torch.float16, torch.bfloat16, torch.float32, torch.float64), 2):
        wide = torch.float32 if source in (torch.float16, torch.bfloat16) else source
        addends = [torch.randn(3000, generator=torch.Generator().manual_seed(r)).to(source) for r in range(3)]
        for reduction, expected in (("sum", addends[0].to(wide) + addends[1].to(wide) + addends[2].to(wide)),
                                    ("mean", (addends[0].to(wide) + addends[1].to(wide) + addends[2].to(wide)) / 3),
                                    ("max", torch.stack(addends).amax(0).to(wide))):
            op = shardwire.compile_op(group(), [3000], source, [box([0], [3000])], [box([0], [3000])], reduction,
                                      output_dtype=target)
            for heap in (True, False):
                out = shardwire.empty(3000, dtype=target) if heap else torch.empty(3000, dtype=target)
                op([place(addends[rank][None], 0 if heap else 1)[0]], [out]).wait()
                assert_same(out, expected.to(target), (source, target, reduction))


@pytest.mark.parametrize("path", list(PATHS))
def test_a_reduction_is_rounded_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PATHS[path].items():
        monkeypatch.setenv(name, value)
    run_ranks(3, reductions)


def layouts(rank: int) -> None:
    """Layouts carry the dtypes; so does a Partial layout, and so does a rank with one side only."""
    whole = torch.arange(48.0).reshape(8, 6) * 1.0078125
    rows, cols = (Layout([0, 1], [Shard(0)], [8, 6], torch.float32),
                  Layout([0, 1, 2], [Shard(1)], [8, 6], torch.bfloat16))
    # In the second case rank 2 declares the outputs' dtype only; in the third rank 0 declares the inputs' dtype only.
    for inputs, outputs in (([rows], [cols]), ([rows] if rank < 2 else None, [cols]),
                            ([rows], [cols] if rank else None)):
        op = shardwire.compile_op(group(), inputs=inputs, outputs=outputs, allow_gaps=True)
        tensor = op.tensors[0]
        assert (tensor.dtype, tensor.output_dtype) == (torch.float32, torch.bfloat16)
        out = torch.zeros(8, 2, dtype=torch.bfloat16)
        op([whole[rank * 4:rank * 4 + 4]] if rank < 2 else [], [out] if outputs else []).wait()
        if outputs:
            assert torch.equal(out, whole.to(torch.bfloat16)[:, rank * 2:rank * 2 + 2])
    # dtype= gives the inputs' dtype, the layout the outputs' dtype.
    op = shardwire.compile_op(group(), dtype=torch.float64, inputs=[box([0, 0], [8, 6])] if rank == 1 else [],
                              outputs=[cols])
    out = torch.zeros(8, 2, dtype=torch.bfloat16)
    op([whole.double()] if rank == 1 else [], [out]).wait()
    assert torch.equal(out, whole.to(torch.bfloat16)[:, rank * 2:rank * 2 + 2])
    partial = Layout([0, 1, 2], [Partial()], [8, 6], torch.bfloat16)
    op = shardwire.compile_op(group(), inputs=[partial],
                              outputs=[Layout([0, 1, 2], [Replicate()], [8, 6], torch.float32)])
    total = torch.zeros(8, 6)
    op([whole.to(torch.bfloat16)], [total]).wait()
    assert torch.equal(total, whole.to(torch.bfloat16).float() * 3)


def test_layouts_of_two_dtypes() -> None:
    run_ranks(3, layouts)


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.randn(10, 6, generator=torch.Generator().manual_seed(1))
    source = dt.distribute_tensor(whole, mesh, [dt.Shard(0)])
    target = dt.distribute_tensor(torch.zeros(10, 6, dtype=torch.bfloat16), mesh, [dt.Shard(1)])
    shardwire.compile_op(None, inputs={"w": source}, outputs={"w": target})({"w": source}, {"w": target}).wait()
    assert torch.equal(target.full_tensor(), whole.to(torch.bfloat16))


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="no DTensor that reads the default group here")
def test_dtensors_of_two_dtypes() -> None:
    run_ranks(2, dtensors, default_group=True)


def several_tensors(rank: int) -> None:
    """One op, some tensors cast and some not; tensors without a cast keep the dtype."""
    op = shardwire.compile_op(group(), {"w": [4], "b": [4], "n": [4]},
                              {"w": torch.float32, "b": torch.float32, "n": torch.int64},
                              {name: [box([rank * 2], [2])] for name in "wbn"},
                              {name: [box([0], [4])] for name in "wbn"}, output_dtype={"w": torch.float16})
    assert [tensor.output_dtype for tensor in op.tensors] == [torch.float16, torch.float32, torch.int64]
    values = torch.tensor([1.0001, 2.0002, 3.0003, 70000.0])
    out: dict[str, Any] = {"w": torch.zeros(4, dtype=torch.float16), "b": torch.zeros(4),
                           "n": torch.zeros(4, dtype=torch.int64)}
    mine = values[rank * 2:rank * 2 + 2]
    op({"w": mine, "b": mine, "n": mine.long()}, out).wait()
    assert (torch.equal(out["w"], values.half()) and torch.equal(out["b"], values)
            and torch.equal(out["n"], values.long()))
    bound = op.bind({"w": mine, "b": mine, "n": mine.long()}, out)
    out["w"].zero_()
    bound().wait()
    assert torch.equal(out["w"], values.half())


def test_several_tensors_with_and_without_a_cast() -> None:
    run_ranks(2, several_tensors)


def inspection(rank: int) -> dict[str, Any]:
    """The narrower type travels, and traffic counts bytes of this type."""
    op = shardwire.compile_op(group(), [1000], torch.float32, [box([0], [1000])] if rank == 0 else [],
                              [box([0], [1000])] if rank else [], output_dtype=torch.bfloat16)
    assert "float32[1000], cast to bfloat16" in op.explain(), op.explain()
    assert "cast to bfloat16" in repr(op.tensors[0])
    return dict(op.traffic(), stats=op.stats())


def test_inspection_shows_the_cast() -> None:
    sender, receiver = run_ranks(2, inspection)
    assert (sender["tensors"][0]["dtype"] == "float32"
            and sender["tensors"][0]["output_dtype"] == "bfloat16"), json.dumps(sender)
    assert sender["edges"] == [{"src": 0, "dst": 1, "bytes": 2000, "pieces": 1}] and sender["lower_bound_bytes"] == 2000
    assert sender["stats"]["bytes_sent"] == receiver["stats"]["bytes_received"] == 2000


def failing(rank: int, specs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = []
    for spec in specs:
        mine = {name: value[rank] if isinstance(value, list) else value for name, value in spec.items()}
        try:
            shardwire.compile_op(group(), [4], inputs=[box([0], [4])], outputs=[box([0], [4])], **mine)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
        else:
            found.append(("nothing", ""))
    op = shardwire.compile_op(group(), [4], torch.float32, [box([0], [4])], [box([0], [4])], output_dtype=torch.float16)
    for tensors in (([torch.zeros(4)], [torch.zeros(4)]), ([torch.zeros(4).half()], [torch.zeros(4).half()])):
        with pytest.raises(TypeError, match=r"(outputs|inputs)\[0\].*float"):
            op(*tensors)
    if rank == 1:  # rank 1's input wins, and is read here; elements of two sizes may never share memory
        shared = torch.zeros(4)
        with pytest.raises(ValueError, match="share memory"):
            op([shared], [shared.view(torch.float16)[:4]])
    op([torch.ones(4)], [torch.zeros(4).half()]).wait()  # and stays usable
    return found


def test_what_cannot_be_cast_is_refused_by_name() -> None:
    f32, bf16, i64 = torch.float32, torch.bfloat16, torch.int64
    specs: list[dict[str, Any]] = [
        {"dtype": f32, "output_dtype": i64}, {"dtype": torch.bool, "output_dtype": f32},
        {"dtype": f32, "output_dtype": torch.complex64}, {"dtype": torch.int32, "output_dtype": i64},
        {"dtype": [f32, None], "output_dtype": [None, i64]}, {"dtype": f32, "output_dtype": [f32, bf16]},
        {"dtype": f32, "output_dtype": "bfloat16"}, {"output_dtype": [bf16, None]}]
    first, second = run_ranks(2, failing, specs)
    assert first == second
    texts = [text for _, text in first]
    assert [kind for kind, _ in first] == ["UnsupportedError"] * 5 + ["ValueError", "TypeError", "TypeError"], first
    assert ("the tensor goes from torch.float32 (dtype) to torch.int64 (output_dtype); elements are cast between "
            "floating types" in texts[0])
    assert ("rank 0 gives the tensor dtype float32 for inputs, rank 1 gives it int64 for outputs" in texts[4]
            and ".to()" in texts[4])
    assert "rank 0 gives the tensor dtype float32 for outputs, rank 1 gives it bfloat16" in texts[5]
    assert "output_dtype is 'bfloat16'; give a torch.dtype" in texts[6]
    assert "rank 1: the tensor has no dtype" in texts[7]


# Random geometry.

def random_case(rank: int, world: int, seed: int) -> None:
    rng = random.Random(seed)
    shape = [rng.randint(1, 40) for _ in range(rng.choice((1, 2, 3)))]
    source, target = rng.choice(REAL), rng.choice(REAL)
    whole = sample(source, max(1, torch.Size(shape).numel()), seed).reshape(shape)
    axis, cut = rng.randrange(len(shape)), sorted(rng.randint(0, 40) for _ in range(world - 1))
    edges = [0, *(min(at, shape[axis]) for at in cut), shape[axis]]
    held = [0] * len(shape), list(shape)
    held[0][axis], held[1][axis] = edges[rank], edges[rank + 1] - edges[rank]
    wanted = [[rng.randrange(extent) for extent in shape] for _ in range(world)]
    extents = [[rng.randint(1, extent - start) for extent, start in zip(shape, starts)] for starts in wanted]
    op = shardwire.compile_op(group(), shape, source, [box(*held)], [box(wanted[rank], extents[rank])],
                              output_dtype=target)
    mine = whole.narrow(axis, held[0][axis], held[1][axis])
    expected = whole.to(target)
    for dim, (start, extent) in enumerate(zip(wanted[rank], extents[rank])):
        expected = expected.narrow(dim, start, extent)
    out = torch.zeros(extents[rank]).to(target)
    op([mine if seed % 2 else shardwire.empty(tuple(mine.shape), dtype=source).copy_(mine)], [out]).wait()
    assert_same(out, expected, f"seed {seed}: {source} to {target}")


def random_cases(rank: int, world: int, count: int) -> None:
    for seed in range(count):
        random_case(rank, world, seed)


@pytest.mark.parametrize("path", list(PATHS))
def test_random_boxes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PATHS[path].items():
        monkeypatch.setenv(name, value)
    run_ranks(3, random_cases, 3, 60, timeout=120)


def test_unsupported_is_a_not_implemented_error() -> None:
    assert issubclass(UnsupportedError, NotImplementedError)
