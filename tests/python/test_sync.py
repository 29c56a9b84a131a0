"""sync against the true values: random models over random meshes, different names, ties, and models without a match."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from ranks import RankFailed, error_of as raised, group, run_ranks

import shardwire
from shardwire import FusedLayout, Layout, NameMap, Part, Partial, Replicate, Shard, weights

F32 = torch.float32
WORLD = 4


def value_of(name: str, shape: Any, dtype: torch.dtype = F32) -> torch.Tensor:
    """The tensor of ``name``, the same on every rank."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)) * 7919 + len(name))
    return (torch.randn(tuple(shape), generator=generator) * 100).to(dtype)


def same_on_all(results: list[tuple[str, str]], kind: str, *texts: str) -> str:
    assert len(set(results)) == 1, results
    name, text = results[0]
    assert name == kind, results[0]
    for part in texts:
        assert part in text, (part, text)
    return text


# Random models.

def random_layout(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, ranks: list[int]) -> Any:
    """A Layout over some of ``ranks``, or a list of ranks with the whole tensor."""
    if rng.random() < 0.25 or not shape:
        return sorted(rng.sample(ranks, rng.randint(1, len(ranks))))
    count = rng.randint(1, len(ranks))
    mesh = np.array(rng.sample(ranks, count))
    if count == 4 and rng.random() < 0.6:
        mesh = mesh.reshape(2, 2)
    placements = [rng.choice([Replicate(), Shard(rng.randrange(len(shape))), Shard(0)]) for _ in mesh.shape]
    return Layout(mesh, placements, shape, dtype)


def local_of(layout: Any, whole: torch.Tensor, rank: int) -> torch.Tensor | None:
    """None where ``rank`` holds nothing."""
    if isinstance(layout, list):
        return whole.clone() if rank in layout else None
    taken = layout.take(whole, rank)
    return None if taken is None else taken.clone()


def random_model(rng: random.Random) -> list[tuple[str, tuple[int, ...], torch.dtype, Any, Any]]:
    sides = ([0, 1], [2, 3]) if rng.random() < 0.3 else ([0, 1, 2, 3], [0, 1, 2, 3])
    model = []
    for index in range(rng.randint(1, 6)):
        shape = tuple(rng.randint(1, 11) for _ in range(rng.randint(0, 3)))
        dtype = rng.choice([F32, torch.bfloat16, torch.int64])
        model.append((f"layer{index}.w", shape, dtype, *(random_layout(rng, shape, dtype, side) for side in sides)))
    return model


def random_models(rank: int, seeds: range) -> int:
    moved = 0
    for seed in seeds:
        rng = random.Random(seed)
        source, target, wanted, now = {}, {}, {}, {}
        for name, shape, dtype, out_of, into in random_model(rng):
            whole = value_of(name, shape, dtype)
            local = local_of(out_of, whole, rank)
            if local is not None:
                now[name] = local
                source[name] = local if isinstance(out_of, list) else (out_of, local)
            goal = local_of(into, whole, rank)
            if goal is not None:
                wanted[name] = goal
                if isinstance(into, list):
                    target[name] = torch.zeros_like(goal)
                else:
                    target[name] = into if rng.random() < 0.5 else (into, torch.zeros_like(goal))
            else:
                rng.random()
        op = shardwire.sync(source or None, target or None, group())
        for step in range(2):
            op.run().wait()
            got = op.target or {}
            assert set(got) == set(wanted), seed
            for name, goal in wanted.items():
                assert torch.equal(got[name], goal + step), f"seed {seed}, {name}: {got[name]} for {goal + step}"
                moved += 1
            for local in now.values():  # an optimizer's step
                local += 1
    return moved


@pytest.mark.parametrize("first", [0, 30, 60])
def test_random_models(first: int) -> None:
    assert sum(run_ranks(WORLD, random_models, range(first, first + 30), timeout=120)) > 200


# Modules.

class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(width, 2 * width)
        self.norm = torch.nn.BatchNorm1d(2 * width)
        self.register_buffer("angles", torch.arange(float(width)), persistent=False)


class Tied(torch.nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, width)
        self.blocks = torch.nn.ModuleList([Block(width), Block(width)])
        self.head = torch.nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight


def filled(module: torch.nn.Module) -> torch.nn.Module:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        tensor.data.copy_(value_of(name, tensor.shape, tensor.dtype))
    return module


def plain_modules(rank: int) -> None:
    source = filled(Tied()) if rank < 2 else None
    target = Tied() if rank >= 1 else None
    op = shardwire.sync(source, target, group())
    op.run().wait()
    names = [into for _, (into,) in op.pairs]
    assert "embed.weight" in names and "head.weight" not in names, "tied weights are moved once"
    assert "blocks.1.angles" in names and "blocks.0.norm.num_batches_tracked" in names
    if target is not None:
        expected = filled(Tied())
        for name, tensor in target.state_dict().items():
            assert torch.equal(tensor, expected.state_dict()[name]), name
        assert target.head.weight is target.embed.weight
    if source is not None:
        # Like an optimizer that exchanges storages: the present storage counts.
        source.embed.weight.data = torch.full_like(source.embed.weight.data, 3.0)
    op.run().wait()
    if target is not None:
        assert (target.head.weight == 3.0).all()


def test_plain_modules_with_tied_weights_and_buffers() -> None:
    run_ranks(3, plain_modules)


def meta_module(rank: int) -> None:
    target = None
    if rank == 1:
        target = Tied()
        shared = target.embed.weight.to("meta")
        target = target.to("meta")
        target.embed.weight = target.head.weight = torch.nn.Parameter(shared)
        target.blocks[1].fc.bias = kept = torch.nn.Parameter(torch.zeros(12))
    op = shardwire.sync(filled(Tied()) if rank == 0 else None, target, group())
    op.run().wait()
    if target is not None:
        expected = filled(Tied()).state_dict()
        assert target.blocks[1].fc.bias is kept, "what has storage keeps it"
        assert target.head.weight is target.embed.weight, "tied stays tied"
        for name, tensor in [*target.named_parameters(), *target.named_buffers()]:
            assert torch.equal(tensor, expected[name] if name in expected else value_of(name, tensor.shape)), name
        assert isinstance(target.embed.weight, torch.nn.Parameter) and target.embed.weight.requires_grad


def test_meta_modules_are_allocated_and_stay_tied() -> None:
    run_ranks(2, meta_module)


def parameters_of_one_storage(rank: int) -> None:
    target = None
    if rank == 1:
        target = Tied().to("meta")
        target.head.weight = torch.nn.Parameter(target.embed.weight.detach())
        assert target.head.weight is not target.embed.weight
    shardwire.sync(filled(Tied()) if rank == 0 else None, target, group()).run().wait()
    if target is not None:
        wanted = value_of("embed.weight", (11, 6))
        assert torch.equal(target.embed.weight, wanted) and torch.equal(target.head.weight, wanted)
        assert target.head.weight.data_ptr() == target.embed.weight.data_ptr(), "tied stays tied"


def test_meta_parameters_of_one_storage_stay_tied() -> None:
    run_ranks(2, parameters_of_one_storage)


class OptimizedModule(torch.nn.Module):
    """As torch.compile wraps a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


class DistributedDataParallel(torch.nn.Module):
    """As torch's class holds the module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def wrapped_modules(rank: int) -> None:
    for wrap in (OptimizedModule, DistributedDataParallel):
        target = torch.nn.Sequential(torch.nn.Linear(2, 3))
        other = DistributedDataParallel if wrap is OptimizedModule else OptimizedModule
        shardwire.sync(filled(torch.nn.Sequential(torch.nn.Linear(2, 3))) if rank == 0 else None,
                       wrap(other(target)) if rank == 1 else None, group()).run().wait()
        if rank == 1:
            assert torch.equal(target[0].weight, value_of("0.weight", (3, 2)))
    own = type("OptimizedModule", (torch.nn.Linear,), {})(2, 3)  # a class of the user by this name
    shardwire.sync({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, own, group()).run().wait()
    assert torch.equal(own.weight, torch.ones(3, 2))


def layouts_under_a_default_device(rank: int) -> None:
    layout = Layout([0, 1], [Shard(0)], (4, 2), F32)
    source = {"w": torch.arange(8.0).reshape(4, 2)}
    with torch.device("meta"):
        sync = shardwire.sync(source, {"w": layout}, group())
        sync.run().wait()
    assert torch.equal(sync.target["w"], source["w"][2 * rank:2 * rank + 2])


@pytest.mark.skipif(not hasattr(torch.device, "__enter__"), reason="this torch has no default device")
def test_tensors_for_layouts_lie_on_the_cpu_under_another_default_device() -> None:
    run_ranks(2, layouts_under_a_default_device)


def test_wrappers_enclose_each_other_in_any_order() -> None:
    run_ranks(2, wrapped_modules)


def pipeline(rank: int) -> None:
    """Two stages of a model, each on one rank, into a whole model on each of two other ranks."""
    whole = filled(torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(4))))
    names = {0: ("0.", "1."), 1: ("2.", "3.")}.get(rank)
    stage = None if names is None else {name: tensor for name, tensor in whole.state_dict().items()
                                        if name.startswith(names)}
    target = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(4))) if rank >= 2 else None
    shardwire.sync(stage, target, group()).run().wait()
    if target is not None:
        for name, tensor in target.state_dict().items():
            assert torch.equal(tensor, whole.state_dict()[name]), name


def test_pipeline_stages() -> None:
    run_ranks(4, pipeline)


def replicas(rank: int) -> dict[str, Any]:
    """A plain module on ranks 0 to 2: rank 3 reads from all three ranks, and no rank sends to a rank that has the
    module.
    """
    big = torch.ones(1024, 1024)
    op = shardwire.sync({"w": big} if rank < 3 else None, {"w": torch.zeros(1024, 1024)} if rank != 1 else None,
                        group())
    op.run().wait()
    return op.traffic()


def test_replicas_share_the_sending() -> None:
    edges = {(edge["src"], edge["dst"]): edge["bytes"] for edge in run_ranks(4, replicas)[0]["edges"]}
    across = {ends: size for ends, size in edges.items() if ends[0] != ends[1]}
    assert set(across) == {(0, 3), (1, 3), (2, 3)} and sum(across.values()) == 4 << 20
    assert max(across.values()) - min(across.values()) < 1 << 18


# Names.

HIDDEN, HEADS = 8, {"q_proj": 8, "k_proj": 4, "v_proj": 4}


def llama(fused: bool, bias: bool = False) -> dict[str, torch.Tensor]:
    state = {"model.embed_tokens.weight": value_of("embed", (20, HIDDEN)),
             "model.norm.weight": value_of("norm", (HIDDEN,))}
    for layer in range(2):
        for kind in ("weight", "bias") if bias else ("weight",):
            def part(name: str, rows: int) -> torch.Tensor:
                return value_of(f"{layer}.{name}.{kind}", (rows, HIDDEN) if kind == "weight" else (rows,))  # noqa: B023
            parts = {name: part(name, rows) for name, rows in HEADS.items()}
            gates = {name: part(name, 12) for name in ("gate_proj", "up_proj")}
            if fused:
                parts, gates = ({"qkv_proj": torch.cat(list(parts.values()))},
                                {"gate_up_proj": torch.cat(list(gates.values()))})
            for where, tensors in (("self_attn", parts), ("mlp", gates)):
                state.update(
                    {f"model.layers.{layer}.{where}.{name}.{kind}": tensor for name, tensor in tensors.items()})
    return state


def sharded(state: dict[str, torch.Tensor], rank: int, ranks: list[int], dim: int) -> dict[str, Any]:
    result = {}
    for name, tensor in state.items():
        layout = Layout(ranks, [Shard(min(dim, tensor.dim() - 1))], tensor.shape, tensor.dtype)
        taken = layout.take(tensor, rank)
        result[name] = (layout, None if taken is None else taken.clone())
    return result


def fusing(rank: int, from_fused: bool, to_fused: bool, mapping: Any, bias: bool) -> None:
    source = sharded(llama(from_fused, bias), rank, [0, 1, 2], 0)
    wanted = sharded(llama(to_fused, bias), rank, [1, 2], 1)
    op = shardwire.sync(source, {name: layout for name, (layout, _) in wanted.items()}, group(), mapping)
    op.run().wait()
    for name, (_, tensor) in wanted.items():
        assert tensor is None or torch.equal(op.target[name], tensor), name


@pytest.mark.parametrize("from_fused, to_fused", [(False, True), (True, False), (False, False), (True, True)])
def test_the_ready_llama_map_works_in_all_directions(from_fused: bool, to_fused: bool) -> None:
    run_ranks(3, fusing, from_fused, to_fused, "llama", False)
    run_ranks(3, fusing, from_fused, to_fused, weights.QWEN, True)


def tensor_parallel_fused(rank: int) -> None:
    """A serving engine's qkv_proj over two ranks: each rank has a part of q, then of k, then of v."""
    parts = {name: value_of(name, (rows, HIDDEN)) for name, rows in HEADS.items()}
    source = {f"attn.{name}.weight": tensor for name, tensor in parts.items()} if rank == 0 else None
    # k has one head only: both ranks hold this head.
    cut = [Layout([1, 2], [Replicate() if name == "k_proj" else Shard(0)], tensor.shape, F32)
           for name, tensor in parts.items()]
    layout = FusedLayout(cut)
    op = shardwire.sync(source, {"attn.qkv_proj.weight": layout} if rank else None, group(), "llama")
    op.run().wait()
    if rank:
        local = torch.cat([each.take(tensor, rank) for each, tensor in zip(cut, parts.values())])
        assert torch.equal(op.target["attn.qkv_proj.weight"], local)
    # And back, from the fused local tensors to whole q, k and v.
    source = {"attn.qkv_proj.weight": (layout, op.target["attn.qkv_proj.weight"] if rank else None)}
    back = {f"attn.{name}.weight": torch.zeros_like(tensor) for name, tensor in parts.items()}
    shardwire.sync(source, back, group(), "llama").run().wait()
    for name, tensor in parts.items():
        assert torch.equal(back[f"attn.{name}.weight"], tensor), name


def test_fused_layouts_of_tensor_parallel_engines() -> None:
    run_ranks(3, tensor_parallel_fused)


def test_a_fused_layout_says_what_is_wrong_with_its_parts() -> None:
    layout = Layout([0], [Replicate()], (4, 2), F32)
    with pytest.raises(ValueError, match=r"'1' has the shape \[4, 3\], '0' has \[4, 2\]"):
        FusedLayout([layout, Layout([0], [Replicate()], (4, 3), F32)])
    with pytest.raises(NotImplementedError,
                       match=r"'1' has the placement Partial.* and other parts are laid out otherwise"):
        FusedLayout([layout, Layout([0], [Partial()], (4, 2), F32)])
    with pytest.raises(TypeError, match=r"'1' is a Tensor"):
        FusedLayout([layout, torch.ones(2)])
    with pytest.raises(TypeError, match="at least one, not"):
        FusedLayout([])
    with pytest.raises(ValueError, match=r"held is \['k'\]; give some of \['q'\]"):
        FusedLayout({"q": layout}, held=["k"])
    assert FusedLayout([layout, layout], -1) == FusedLayout([layout, layout], 1) != FusedLayout([layout, layout])
    assert FusedLayout([layout, layout], 1).shape == (4, 4)


def gpt2(rank: int) -> None:
    hugging_face = {"h.0.attn.c_attn.weight": value_of("a", (4, 12)), "h.0.attn.c_attn.bias": value_of("b", (12,)),
                    "h.0.attn.c_proj.weight": value_of("p", (4, 4)), "h.0.attn.bias": torch.ones(1, 1, 8, 8),
                    "wte.weight": value_of("w", (9, 4))}
    served = {name: tensor.t().contiguous() if name.endswith(("c_attn.weight", "c_proj.weight")) else tensor
              for name, tensor in hugging_face.items() if name != "h.0.attn.bias"}
    source = sharded(hugging_face, rank, [0, 1, 2], 0)
    wanted = sharded(served, rank, [2, 0], 0)
    op = shardwire.sync(source, {name: layout for name, (layout, _) in wanted.items()}, group(), "gpt2")
    op.run().wait()
    for name, (_, tensor) in wanted.items():
        assert tensor is None or torch.equal(op.target[name], tensor), name
    back = {name: torch.zeros_like(tensor) for name, tensor in hugging_face.items() if name in served}
    shardwire.sync(wanted, back, group(), weights.GPT2.inverse).run().wait()
    for name, tensor in back.items():
        assert torch.equal(tensor, hugging_face[name]), name


def test_gpt2_is_transposed_in_the_direction_that_is_asked_for() -> None:
    run_ranks(3, gpt2)


def own_mappings(rank: int) -> None:
    source = ({"module.a": value_of("a", (6, 2)), "module.b": value_of("b", (4,)), "step": torch.ones(1)} if rank == 0
              else None)

    def renamed(name: str) -> Any:
        if name == "step":
            return None
        return ["a.top", "a.bottom"] if name == "module.a" else name.removeprefix("module.")

    target = {"a.top": torch.zeros(2, 2), "a.bottom": torch.zeros(4, 2), "b": torch.zeros(4)} if rank else None
    shardwire.sync(source, target, group(), renamed).run().wait()
    if target is not None:
        assert (torch.equal(torch.cat([target["a.top"], target["a.bottom"]]), value_of("a", (6, 2)))
                and torch.equal(target["b"], value_of("b", (4,))))
    op = shardwire.sync(source, {"b2": torch.zeros(4)} if rank else None, group(), {"module.b": "b2"}, strict=False)
    op.run().wait()
    assert op.unused == ["module.a", "step"] and op.missing == [] and op.pairs == [(["module.b"], ["b2"])]
    assert not rank or torch.equal(op.target["b2"], value_of("b", (4,)))
    columns = NameMap(lambda name: Part("w", int(name[-1]), 2, dim=1), lambda name: name)
    assert (repr(NameMap(str.lower, str.upper)) == "<shardwire.NameMap source=str.lower, target=str.upper>"
            and repr(weights.LLAMA) == "<shardwire.NameMap weights.LLAMA>")
    target = {"w": torch.zeros(3, 5)}
    shardwire.sync({"w0": value_of("l", (3, 2)), "w1": value_of("r", (3, 3))}, target, group(), columns).run().wait()
    assert torch.equal(target["w"], torch.cat([value_of("l", (3, 2)), value_of("r", (3, 3))], 1))
    # The same models again, without one name on both sides.
    shardwire.sync({"w0": value_of("l", (3, 2)), "w1": value_of("r", (3, 3)), "x": torch.ones(1)}, target, group(),
                   columns.without("x")).run().wait()


def test_functions_tables_and_maps_of_the_caller() -> None:
    run_ranks(2, own_mappings)


# Ties.

def ties(rank: int) -> list[tuple[str, str]]:
    one, two = value_of("one", (5, 3)), value_of("two", (5, 3))
    shared = torch.zeros(5, 3)
    # Tied in the source only: both targets are written.
    target = {"a": torch.zeros(5, 3), "b": torch.zeros(5, 3)}
    shardwire.sync({"a": one, "b": one}, target, group()).run().wait()
    assert torch.equal(target["a"], one) and torch.equal(target["b"], one)
    # Tied in the target, and the source has only one of the names.
    for name in ("a", "b"):
        shared.zero_()
        shardwire.sync({name: one}, {"a": shared, "b": shared}, group()).run().wait()
        assert torch.equal(shared, one)
    # Tied in the target, absent, and in dicts: one storage is made.
    layout = Layout([0, 1], [Replicate()], (5, 3), F32)
    meta = torch.empty(5, 3, device="meta")
    op = shardwire.sync({"a": one, "b": one, "c": one}, {"a": meta, "b": meta, "c": layout}, group())
    op.run().wait()
    assert op.target["a"] is op.target["b"] and torch.equal(op.target["b"], one) and torch.equal(op.target["c"], one)
    # One tied tensor in the target and two in the source: the choice is undefined. And ranks contradict each other.
    apart = {"a": torch.zeros(5, 3), "b": torch.zeros(5, 3)}
    return [raised(lambda: shardwire.sync({"a": one, "b": two}, {"a": shared, "b": shared}, group())), raised(
        lambda: shardwire.sync({"a": one, "b": one}, {"a": shared, "b": shared} if rank == 0 else apart, group()))]


def test_ties() -> None:
    results = run_ranks(2, ties)
    same_on_all([each[1] for each in results], "ValueError",
                "target 'a' and 'b' are tied on some ranks, but not on rank 1")
    same_on_all([each[0] for each in results], "ValueError",
                "tied in the target, but two tensors in the source, which may differ", "(1): 'a' and 'b'")


def partials(rank: int) -> None:
    layout = Layout([0, 1], [Partial()], (3,), F32)
    target = {"w": torch.zeros(3)}
    shardwire.sync({"w": (layout, torch.full((3,), float(rank + 1)))}, target, group()).run().wait()
    assert target["w"].tolist() == [3.0] * 3


def test_partial_sources_are_reduced() -> None:
    run_ranks(2, partials)


def in_a_subgroup(rank: int) -> None:
    """Layouts name the job's ranks, not the numbers in the group; a rank outside the group does not call."""
    import torch.distributed as dist
    some = dist.new_group([1, 3], backend="shardwire")
    if rank not in (1, 3):
        return
    whole = value_of("w", (7, 3))
    source, target = Layout([3, 1], [Shard(0)], (7, 3), F32), Layout([1], [Replicate()], (7, 3), F32)
    taken = source.take(whole, rank)
    assert taken is not None
    op = shardwire.sync({"w": (source, taken.clone())}, {"w": target}, some)
    op.run().wait()
    assert rank == 3 or torch.equal(op.target["w"], whole)


def test_a_group_of_some_ranks() -> None:
    run_ranks(4, in_a_subgroup, default_group=True)


def dies(rank: int) -> tuple[str, str] | None:
    op = shardwire.sync({"w": torch.ones(1 << 16)} if rank == 0 else None,
                        {"w": torch.zeros(1 << 16)} if rank else None, group())
    op.run().wait()
    if rank == 0:
        os._exit(0)
    return raised(lambda: op.run().wait())


def test_a_source_that_dies_is_named() -> None:
    with pytest.raises(RankFailed) as caught:
        run_ranks(2, dies)
    assert "rank 0:\nthe process ended" in str(caught.value) and "rank 1:" not in str(caught.value)


# Models that do not match.

def cast(rank: int) -> None:
    """Floating weights of one dtype into weights of another, rounded like torch's .to; other weights are moved
    unchanged.
    """
    for source_dtype, target_dtype in ((F32, torch.bfloat16), (torch.bfloat16, F32), (torch.float64, torch.float16),
                                       (torch.float16, torch.bfloat16)):
        full = {"q_proj.weight": value_of("q", (8, 6), source_dtype),
                "k_proj.weight": value_of("k", (4, 6), source_dtype),
                "v_proj.weight": value_of("v", (4, 6), source_dtype), "norm.weight": value_of("n", (6,), source_dtype),
                "step": torch.tensor([7])}
        target = {"qkv_proj.weight": torch.zeros(16, 6, dtype=target_dtype),
                  "norm.weight": torch.zeros(6, dtype=target_dtype), "step": torch.zeros(1, dtype=torch.int64)}
        op = shardwire.sync(full if rank == 0 else None, target, group(), "llama")
        for _ in range(2):
            op.run().wait()
            joined = torch.cat([full[f"{name}_proj.weight"] for name in "qkv"])
            assert torch.equal(target["qkv_proj.weight"], joined.to(target_dtype)), (source_dtype, target_dtype)
            assert (torch.equal(target["norm.weight"], full["norm.weight"].to(target_dtype))
                    and target["step"].item() == 7)
            for weight in full.values():
                # the second run reads the new values of the source; the other ranks compute the same values
                weight.add_(1)
            full["step"].sub_(1)


def test_dtypes_differ_and_are_cast_on_the_way() -> None:
    run_ranks(2, cast)


def wrong(rank: int) -> list[tuple[str, str]]:
    a = torch.ones(4, 4)
    layout = Layout([0, 1], [Shard(0)], (4, 4), F32)

    def call(source: Any, target: Any, mapping: Any = None, **options: Any) -> tuple[str, str]:
        return raised(lambda: shardwire.sync(source, target, group(), mapping, **options))

    first = rank == 0
    results = [
        call({"a": a, "b": a.clone(), "extra": torch.ones(1)}, {"a": torch.ones(4, 2), "c": a, "d": a.clone()}),
        call({"a": a}, {"a": a.int()}),
        call({"w": a if first else torch.ones(3, 3)}, {"w": a.clone()}),
        call({"w": 5} if first else {"w": a}, {"w": a.clone()}),
        call({"w": layout}, {"w": a.clone()}),
        call({"w": (layout, torch.ones(3, 4))}, {"w": a.clone()}),
        call({"w": a}, {"w": a.clone()}, (lambda name: {}[name]) if rank == 1 else None),
        call({"w": a}, {"w": a.clone()}, "llama2"),
        call({"q_proj.weight": a, "v_proj.weight": a.clone()}, {"qkv_proj.weight": torch.ones(12, 4)}, "llama"),
        call({"q_proj.weight": a, "k_proj.weight": a.clone(), "v_proj.weight": a.clone()},
             {"qkv_proj.weight": torch.ones(10, 4)}, "llama"),
        call(None, {"w": a}),
        call(torch.nn.Linear(2, 2).to("meta"), {"w": a}),
        call({"w": a}, [a]),
        call({"w": (Layout([0, 5], [Replicate()], (4, 4), F32), a)}, {"w": a.clone()}),
        call({"w": a, "x": a.clone()}, {"w": a.clone()}, (lambda name: "w")),
        call({"w": a.to_sparse()}, {"w": a}),
        call({"w": a}, {"w": a.clone()}, timeout=-1 if first else None),
        call({"w": a}, {"w": a.clone()}, name=3 if first else "sync"),
    ]
    # The group is as usable as before.
    target = {"w": torch.zeros(4, 4)}
    shardwire.sync({"w": a}, target, group()).run().wait()
    assert torch.equal(target["w"], a)
    return results


def test_what_does_not_fit_is_listed_by_name_on_every_rank() -> None:
    cases = list(zip(*run_ranks(2, wrong)))
    text = same_on_all(cases[0], "ValueError", "shapes differ (1): 'a' [4, 4] in the source, 'a' [4, 2] in the target",
                       "missing from the source (2): 'c'; 'd'", "not wanted by the target (2): 'b'; 'extra'",
                       "strict=False")
    assert len(text.splitlines()) == 5
    same_on_all(cases[1], "UnsupportedError", "'a' torch.float32 in the source, 'a' torch.int32 in the target")
    same_on_all(cases[2], "ValueError", "source 'w': shape [4, 4] on rank 0, [3, 3] on rank 1")
    same_on_all(cases[3], "TypeError", "rank 0: source 'w' is 5; give a tensor")
    same_on_all(cases[4], "ValueError", "rank 0: source 'w': this rank holds a part of it",
                "(1 more of 2 ranks have errors too)")
    same_on_all(cases[5], "ValueError",
                "the local tensor has shape [3, 4] and dtype torch.float32, its layout says [2, 4]")
    same_on_all(cases[6], "ShardwireError", "rank 1: KeyError: 'w'")
    same_on_all(cases[7], "ValueError", "mapping is 'llama2'; the ready ones are 'llama', 'qwen', 'bert', 'gpt2'")
    same_on_all(cases[8], "ValueError", "missing from the source (1): 'qkv_proj.weight'",
                "not wanted by the target (2): 'q_proj.weight'; 'v_proj.weight'")
    same_on_all(cases[9], "ValueError", "'q_proj.weight' [4, 4] + 'k_proj.weight' [4, 4] + 'v_proj.weight' [4, 4] in "
                                        "the source, 'qkv_proj.weight' [10, 4]")
    same_on_all(cases[10], "ValueError", "no rank has a source")
    same_on_all(cases[11], "ValueError", "source 'weight' is a meta tensor")
    same_on_all(cases[12], "TypeError", "target is a list; give a module")
    same_on_all(cases[13], "ValueError", "its mesh holds global rank 5")
    same_on_all(cases[14], "ValueError", "source 'w' and 'x' are both 'w'")
    same_on_all(cases[15], "UnsupportedError", "only dense tensors")
    same_on_all(cases[16], "ValueError", "rank 0: timeout is -1")
    same_on_all(cases[17], "TypeError", "rank 0: name is 3; give a str or None")


def many_dimensions(rank: int) -> tuple[str, str]:
    """Rank 2 has neither side."""
    sides = [{"w": torch.ones([1] * 17)} if rank == side else None for side in (0, 1)]
    return raised(lambda: shardwire.sync(*sides, group()))


def test_more_dimensions_than_supported_are_refused_on_every_rank() -> None:
    same_on_all(run_ranks(3, many_dimensions, timeout=20), "UnsupportedError",
                "rank 0: source 'w' has 17 dimensions; at most 16 are supported")


def absent_rank(rank: int) -> tuple[str, str] | None:
    if rank == 1:
        return None
    result = raised(lambda: shardwire.sync({"w": torch.ones(2)}, None, group(), timeout=0.5))
    return result


def test_a_rank_that_never_calls_is_named() -> None:
    kind, text = run_ranks(2, absent_rank)[0]
    assert kind == "TimeoutError" and "rank 1" in text


def changed_module(rank: int) -> None:
    module = torch.nn.Linear(2, 2)
    op = shardwire.sync(module, torch.nn.Linear(2, 2), group())
    del module.bias
    module.bias = None
    with pytest.raises(ValueError, match="the source has no 'bias' any more"):
        op.run()


def test_a_module_that_lost_a_parameter() -> None:
    run_ranks(2, changed_module)
