"""fused and unfused: named slices of one tensor, against slicing and concatenating whole tensors."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from ranks import group, run_ranks

import shardwire
from shardwire import FusedLayout, Layout, Partial, Replicate, Shard, UnsupportedError, fused, unfused

F32, BF16 = torch.float32, torch.bfloat16


def whole_of(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def local_fused(wholes: dict[str, torch.Tensor], layouts: dict[str, Layout], rank: int,
                dim: int) -> torch.Tensor | None:
    """The fused tensor of a tensor-parallel module: the module's shares of the parts, one behind the other."""
    shares = [share for name, layout in layouts.items() if (share := layout.take(wholes[name], rank)) is not None]
    return torch.cat(shares, dim) if shares else None


def qkv(rank: int) -> None:
    """Rows of q, k and v over four trainers; two tensor-parallel servers, then four servers, where k and v have two
    heads only.
    """
    heads, kv_heads, head, hidden = 8, 2, 4, 12
    shapes = {"q": (heads * head, hidden), "k": (kv_heads * head, hidden), "v": (kv_heads * head, hidden)}
    wholes = {name: whole_of(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    train = {name: Layout([0, 1, 2, 3], [Shard(0)], shape, F32) for name, shape in shapes.items()}
    held = {name: train[name].take(wholes[name], rank) for name in shapes}
    two = {name: Layout([2, 3], [Shard(0)], shape, BF16) for name, shape in shapes.items()}
    grid = [[0, 1], [2, 3]]  # ranks of one row share a k and v head
    four = {name: Layout([0, 1, 2, 3], [Shard(0)], shape, BF16) if name == "q"
                  else Layout(grid, [Shard(0), Replicate()], shape, BF16) for name, shape in shapes.items()}
    for layouts in (two, four):
        item = fused(layouts)
        expected = local_fused(wholes, layouts, rank, 0)
        assert item.local_shape(rank) == (None if expected is None else tuple(expected.shape))
        forth = shardwire.compile_op(group(), inputs={"qkv": unfused(train)}, outputs={"qkv": item})
        out = None if expected is None else torch.zeros(expected.shape, dtype=BF16)
        forth({"qkv": list(held.values())}, {"qkv": [out]}).wait()
        if expected is not None and out is not None:
            assert torch.equal(out, expected.to(BF16))
            views = item.views(out, rank)
            assert (list(views) == ["q", "k", "v"]
                    and torch.equal(views["k"], layouts["k"].take(wholes["k"], rank).to(BF16)))
            assert views["v"].data_ptr() != out.data_ptr() and views["q"].data_ptr() == out.data_ptr()
        # And back.
        back = shardwire.compile_op(group(), inputs={"qkv": fused(layouts)}, outputs={"qkv": unfused(train)})
        outs = [torch.zeros(part.shape) for part in held.values()]
        back({"qkv": [out]}, {"qkv": outs}).wait()
        for part, expected_part in zip(outs, held.values()):
            assert torch.equal(part, expected_part.to(BF16).float())


def test_q_k_v_and_qkv() -> None:
    run_ranks(4, qkv)


def gate_up(rank: int) -> None:
    """Flat lists, another dim, a fused tensor with an ordinary layout, and one side given as boxes."""
    shape = (6, 10)
    wholes = {"gate": whole_of(shape, 1), "up": whole_of(shape, 2)}
    both = torch.cat([*wholes.values()], 1)
    parts = {name: Layout([0, 1], [Shard(1)], shape, F32) for name in wholes}
    mine = [parts[name].take(wholes[name], rank) for name in wholes]
    out = torch.zeros(6, 10)
    shardwire.compile_op(group(), inputs=unfused(parts, dim=-1), outputs=[fused(parts, dim=1)])(mine, [out]).wait()
    assert torch.equal(out, torch.cat(mine, 1))
    plain = Layout([0, 1], [Shard(0)], (6, 20), F32)
    rows = torch.zeros(3, 20)
    shardwire.compile_op(group(), inputs=unfused(parts, dim=1), outputs=[plain])(mine, [rows]).wait()
    assert torch.equal(rows, both[rank * 3:rank * 3 + 3])
    up = torch.zeros(6, 10)
    op = shardwire.compile_op(group(), inputs=[fused(parts, dim=1)], outputs=[{"offset": [0, 10], "shape": [6, 10]}])
    op([torch.cat(mine, 1)], [up]).wait()
    assert torch.equal(up, wholes["up"])


def test_gate_up_along_another_dim() -> None:
    run_ranks(2, gate_up)


def partial_parts(rank: int) -> None:
    """Partial parts are summed; other parts count once."""
    parts = {"a": Layout([0, 1], [Partial()], (2, 3), F32), "b": Layout([0, 1], [Replicate()], (4, 3), F32)}
    out = torch.zeros(6, 3)
    op = shardwire.compile_op(group(), inputs=unfused(parts), outputs=[Layout([0, 1], [Replicate()], (6, 3), F32)])
    op([torch.full((2, 3), rank + 1.0), torch.full((4, 3), 7.0)], [out]).wait()
    assert torch.equal(out, torch.cat([torch.full((2, 3), 3.0), torch.full((4, 3), 7.0)]))
    alike = {name: Layout([0, 1], [Partial()], (2, 3), F32) for name in "ab"}
    out = torch.zeros(4, 3)
    op = shardwire.compile_op(group(), inputs=[fused(alike)], outputs=[Layout([0, 1], [Replicate()], (4, 3), F32)])
    op([torch.full((4, 3), rank + 1.0)], [out]).wait()
    assert torch.equal(out, torch.full((4, 3), 3.0))


def test_parts_that_wait_for_a_reduction() -> None:
    run_ranks(2, partial_parts)


def one_word_everywhere(rank: int) -> None:
    """sync takes the result of fused(), compile_op a FusedLayout([...]); a fused Partial is summed in both."""
    shape, mesh = (4, 3), [0, 1]
    wholes = {name: whole_of(shape, index) for index, name in enumerate("qk")}
    cut = {name: Layout(mesh, [Shard(0)], shape, F32) for name in wholes}
    expected = torch.cat([wholes[name][2 * rank:2 * rank + 2] for name in wholes])
    op = shardwire.sync({"qk": torch.cat([*wholes.values()])}, {"qk": fused(cut)}, group())
    op.run().wait()
    assert torch.equal(op.target["qk"], expected)
    assert torch.equal(fused(cut).views(op.target["qk"], rank)["k"], wholes["k"][2 * rank:2 * rank + 2])
    out = torch.zeros(4, 3)
    mine = [cut[name].take(wholes[name], rank) for name in wholes]
    shardwire.compile_op(group(), inputs=unfused({"0": cut["q"], "1": cut["k"]}),
                         outputs=[FusedLayout([cut["q"], cut["k"]])])(mine, [out]).wait()
    assert torch.equal(out, expected)
    waiting = FusedLayout([Layout(mesh, [Partial()], shape, F32)] * 2)
    summed = torch.zeros(8, 3)
    shardwire.sync({"qk": (waiting, torch.full((8, 3), rank + 1.0))}, {"qk": summed}, group()).run().wait()
    assert torch.equal(summed, torch.full((8, 3), 3.0))


def test_one_word_for_what_a_fused_tensor_is() -> None:
    run_ranks(2, one_word_everywhere)


def random_layouts(rng: random.Random, shapes: dict[str, tuple[int, ...]], world: int, dim: int,
                   dtype: torch.dtype) -> dict[str, Layout]:
    """Layouts of unfused parts that fit behind each other: cut along ``dim`` or copied, each over a separate mesh."""
    layouts = {}
    for name, shape in shapes.items():
        ranks = rng.sample(range(world), rng.randint(1, world))
        layouts[name] = Layout(ranks, [rng.choice((Shard(dim), Replicate()))], shape, dtype)
    return layouts


def random_case(rank: int, world: int, seed: int) -> None:
    rng = random.Random(seed)
    dim, other = rng.randrange(2), rng.randint(1, 5)
    shapes = {}
    for name in "abcd"[:rng.randint(1, 4)]:
        extents = [other, other]
        extents[dim] = rng.randint(0, 9)
        shapes[name] = tuple(extents)
    wholes = {name: whole_of(shape, seed * 10 + number) for number, (name, shape) in enumerate(shapes.items())}
    source, target = (random_layouts(rng, shapes, world, dim, F32),
                      random_layouts(rng, shapes, world, dim, rng.choice((F32, torch.float16))))
    is_target_fused = rng.random() < 0.5
    inputs, outputs = ((unfused(source, dim), [fused(target, dim)]) if is_target_fused
                       else ([fused(source, dim)], unfused(target, dim)))

    def held(layouts: dict[str, Layout], is_fused: bool) -> list[torch.Tensor | None]:
        return ([local_fused(wholes, layouts, rank, dim)] if is_fused
                else [layout.take(wholes[name], rank) for name, layout in layouts.items()])

    expected = held(target, is_target_fused)
    dtype = next(iter(target.values())).dtype
    outs = [None if part is None else torch.zeros(part.shape, dtype=dtype) for part in expected]
    shardwire.compile_op(group(), inputs=inputs, outputs=outputs)(held(source, not is_target_fused), outs).wait()
    for out, part in zip(outs, expected):
        assert (out is None and part is None) or torch.equal(out, part.to(dtype)), f"seed {seed}"


def random_cases(rank: int, world: int, count: int) -> None:
    for seed in range(count):
        random_case(rank, world, seed)


@pytest.mark.parametrize("world", [1, 3, 4])
def test_random_parts(world: int) -> None:
    run_ranks(world, random_cases, world, 150)


def layout(shape: Any = (4, 2), placement: Any = Shard(0), dtype: torch.dtype = F32) -> Layout:
    return Layout([0, 1], [placement], shape, dtype)


@pytest.mark.parametrize(("parts", "dim", "kind", "text"), [
    ([layout()], 0, TypeError, "takes a dict of DTensors or Layouts keyed by name"), ({}, 0, TypeError, "takes a dict"),
    ({0: layout()}, 0, TypeError, "has the key 0"),
    ({"q": torch.zeros(2)}, 0, TypeError, "'q' is a Tensor; give a DTensor or a Layout"),
    ({"q": layout()}, 2, ValueError, "dim 2 does not exist in 'q' of 2 dimensions"),
    ({"q": layout()}, "0", TypeError, "dim is '0'"),
    ({"q": layout(), "k": layout((4, 3))}, 0, ValueError,
     r"'k' has the shape \[4, 3\], 'q' has \[4, 2\]; they must be equal but for dim 0"),
    ({"q": layout(), "k": layout((4,))}, 0, ValueError, r"'k' has the shape \[4\]"),
    ({"q": layout(), "k": layout(dtype=BF16)}, 0, ValueError, r"'k' has dtype torch\.bfloat16, 'q' has torch\.float32"),
])
def test_parts_that_do_not_fit_together(parts: Any, dim: Any, kind: type[Exception], text: str) -> None:
    for make in (fused, unfused):
        with pytest.raises(kind, match=text):
            make(parts, dim)


def test_fused_parts_that_wait_for_different_things() -> None:
    with pytest.raises(UnsupportedError, match=r"'k' has the placement Partial.*unfused"):
        fused({"q": layout(), "k": layout(placement=Partial())})
    assert "q, k of q, k" in repr(fused({"q": layout(), "k": layout()}))
    with pytest.raises(ValueError, match=r"the tensor has shape \[3\], rank 0 holds \[4, 2\]"):
        fused({"q": layout(), "k": layout()}).views(torch.zeros(3), 0)


def failing(rank: int) -> list[tuple[str, str]]:
    found = []
    q, k = layout(), layout((2, 2))
    cases: list[dict[str, Any]] = [
        {"inputs": unfused({"q": q, "k": k}), "outputs": [fused({"k": k, "q": q})]},
        {"inputs": [fused({"q": layout((4, 4)), "k": Layout([0, 1], [Shard(1)], (4, 4), F32)})]},
        {"inputs": [fused({"q": q})], "outputs": [layout((5, 2))]},
        {"inputs": [fused({"q": q})], "outputs": [fused({"q": layout(placement=Partial())})]},
        {"inputs": [fused({"q": Layout([0, 5], [Shard(0)], (4, 2), F32)})]},
    ]
    for case in cases:
        try:
            shardwire.compile_op(group(), **case)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
        else:
            found.append(("nothing", ""))
    return found


def test_errors_are_the_same_on_all_ranks() -> None:
    first, second = run_ranks(2, failing)
    assert first == second
    for (kind, text), (expected_kind, part) in zip(first, (
            ("ValueError", ("outputs[0] is made of 'k' from 0, 'q' from 2, but inputs[0] of 'q' from 0, 'k' from 4; "
                            "give the same names")),
            ("ValueError",
             "inputs[0]: rank 0 holds [2, 4] of 'q' and [4, 2] of 'k', which do not fit behind each other along dim 0"),
            ("ValueError", "outputs[0] has the global shape [5, 2], but inputs[0] says [4, 2]"),
            ("UnsupportedError", "outputs[0] has the placement Partial"),
            ("ValueError", "inputs[0]: the mesh holds global rank 5"))):
        assert kind == expected_kind and part in text, (kind, text)


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    wholes = {"q": whole_of((8, 3), 1), "k": whole_of((4, 3), 2)}
    held = {name: dt.distribute_tensor(whole, mesh, [dt.Shard(0)]) for name, whole in wholes.items()}
    out = torch.zeros(6, 3, dtype=BF16)
    meta = {name: dt.DTensor.from_local(torch.empty(tensor.to_local().shape, device="meta", dtype=BF16), mesh,
                                        [dt.Shard(0)], run_check=False) for name, tensor in held.items()}
    shardwire.compile_op(None, inputs={"qk": unfused(held)}, outputs={"qk": fused(meta)})(
        {"qk": [*held.values()]}, {"qk": [out]}).wait()
    assert torch.equal(out, torch.cat([tensor.to_local() for tensor in held.values()]).to(BF16))


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="no DTensor that reads the default group here")
def test_dtensors() -> None:
    run_ranks(2, dtensors, default_group=True)
