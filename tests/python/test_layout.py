"""Layouts against a naive model (lists of indices, cut as torch.chunk cuts), against torch's own DTensor arithmetic,
and DTensors in compile_op."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from ranks import group, run_ranks

import shardwire
from shardwire import _C, Layout, Partial, Replicate, Shard, StridedShard

F32 = torch.float32


def chunk(indices: list[int], pieces: int, which: int) -> list[int]:
    size = -(-len(indices) // pieces)
    return indices[which * size:(which + 1) * size]


def naive_indices(layout: Layout, rank: int) -> list[list[int]]:
    """The global indices of ``rank``, in local order, per dimension."""
    coordinates = np.unravel_index(layout.ranks.index(rank), layout.mesh_shape)
    held = [list(range(extent)) for extent in layout.shape]
    for placement, pieces, which in zip(layout.placements, layout.mesh_shape, coordinates):
        if isinstance(placement, Shard):
            held[placement.dim] = chunk(held[placement.dim], pieces, int(which))
        elif isinstance(placement, StridedShard):
            whole = held[placement.dim]
            parts = [chunk(chunk(whole, placement.split_factor, part), pieces, int(which))
                     for part in range(placement.split_factor)]
            held[placement.dim] = list(itertools.chain.from_iterable(parts))
    return held


def random_layout(rng: random.Random) -> Layout:
    mesh_shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
    count = int(np.prod(mesh_shape))
    ranks = rng.sample(range(count + 3), count)
    shape = [rng.randint(0, 13) for _ in range(rng.randint(1, 3))]
    placements: list[Any] = []
    for _ in mesh_shape:
        kind = rng.randrange(5)
        dim = rng.randrange(len(shape))
        placements.append((Shard(dim), Shard(dim), StridedShard(dim, rng.randint(1, 4)), Replicate(), Partial())[kind])
    return Layout(np.array(ranks).reshape(mesh_shape), placements, shape, F32)


def test_shares_equal_the_naive_model() -> None:
    for seed in range(600):
        layout = random_layout(random.Random(seed))
        whole = torch.arange(int(np.prod(layout.shape)), dtype=F32).reshape(layout.shape)
        for rank in range(max(layout.ranks) + 2):
            share = layout.share(rank)
            if rank not in layout.ranks:
                assert share is None and layout.take(whole, rank) is None, seed
                continue
            held = naive_indices(layout, rank)
            expected = whole[np.ix_(*held)] if whole.numel() else whole.new_empty([len(indices) for indices in held])
            taken = layout.take(whole, rank)
            assert share is not None and taken is not None
            assert share.local_shape == tuple(expected.shape) == layout.local_shape(rank), f"seed {seed}: {layout}"
            assert torch.equal(taken, expected), f"seed {seed}: {layout}, rank {rank}"


def test_replica_classes_distinguish_addends_and_not_replicas() -> None:
    layout = Layout([[0, 1], [2, 3]], [Partial(), Replicate()], (4,), F32)
    classes = [layout.share(rank).replica_class for rank in range(4)]  # type: ignore[union-attr]
    assert classes[0] == classes[1] != classes[2] == classes[3]
    assert 0 not in classes


def test_meshes_in_all_their_forms_are_equal() -> None:
    forms = [[[0, 2], [1, 3]], ((0, 2), (1, 3)), torch.tensor([[0, 2], [1, 3]]), np.array([[0, 2], [1, 3]])]
    made = [Layout(form, [Shard(0), Replicate()], (4, 4), F32) for form in forms]
    assert all(layout == made[0] and hash(layout) == hash(made[0]) for layout in made)
    assert made[0].ranks == (0, 2, 1, 3) and made[0].mesh_shape == (2, 2)
    assert Layout(range(3), [Shard(0)], (4,), F32).ranks == (0, 1, 2)


def test_negative_dims_count_from_the_end() -> None:
    assert Layout([0, 1], [Shard(-1)], (4, 6), F32) == Layout([0, 1], [Shard(1)], (4, 6), F32)


def test_a_layout_is_a_value() -> None:
    layout = Layout([[0, 1]], [Partial("avg"), StridedShard(0, 2)], (8, 3), torch.bfloat16)
    assert pickle.loads(pickle.dumps(layout)) == layout
    if hasattr(torch, "set_default_device"):
        with torch.device("meta"):
            assert pickle.loads(pickle.dumps(layout)) == layout
    assert layout.pending_reduction == "mean" and Layout([0], [Shard(0)], (1,), F32).pending_reduction is None
    assert layout != Layout([[0, 1]], [Partial("sum"), StridedShard(0, 2)], (8, 3), torch.bfloat16)
    assert "Partial" in repr(layout) and "[8, 3]" in repr(layout)
    with pytest.raises(AttributeError, match="does not change"):
        layout.shape = (1,)


def test_scalars_have_a_layout() -> None:
    share = Layout([0, 1], [Replicate()], (), F32).share(1)
    assert share is not None and share.local_shape == () and share.boxes == [_C.Box((), (), ())]


def test_torch_placements_are_read_by_class() -> None:
    dt = pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    from torch.distributed.tensor.placement_types import _StridedShard
    layout = Layout([[0, 1], [2, 3]], [_StridedShard(0, split_factor=2), dt.Shard(0)], (8,), F32)
    assert layout.placements == (StridedShard(0, 2), Shard(0))
    assert Layout([0], [dt.Partial("product")], (8,), F32).pending_reduction == "prod"
    assert Layout([0], [dt.Replicate()], (8,), F32).placements == (Replicate(),)

    class MyShard(dt.Shard):  # may mean anything
        pass

    with pytest.raises(NotImplementedError, match="MyShard"):
        Layout([0], [MyShard(0)], (8,), F32)


def test_shares_equal_torchs_own_arithmetic() -> None:
    utils = pytest.importorskip("torch.distributed.tensor._utils", reason="this torch has no DTensor")
    plain = getattr(utils, "_compute_local_shape_and_global_offset", None)
    if plain is None:
        pytest.skip("this torch has no plain-data form of its layout arithmetic")
    import torch.distributed.tensor as dt
    for seed in range(300):
        rng = random.Random(seed)
        mesh_shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        shape = [rng.randint(1, 19) for _ in range(rng.randint(1, 3))]
        placements = [rng.choice([dt.Replicate(), dt.Shard(rng.randrange(len(shape)))]) for _ in mesh_shape]
        layout = Layout(np.arange(int(np.prod(mesh_shape))).reshape(mesh_shape), placements, shape, F32)
        for rank in layout.ranks:
            coordinate = [int(c) for c in np.unravel_index(rank, mesh_shape)]
            local_shape, offset = plain(tuple(shape), mesh_shape, coordinate, placements)
            share = layout.share(rank)
            assert share is not None and tuple(local_shape) == share.local_shape, f"seed {seed}"
            if share.boxes:
                assert share.boxes == [_C.Box(tuple(offset), share.local_shape, (0,) * len(shape))], f"seed {seed}"


# Layouts and DTensors in an op.

def move_layouts(rank: int, seed: int, world: int) -> None:
    """Random pairs of layouts of one tensor; every rank checks the received values."""
    rng = random.Random(seed)
    shape = [rng.randint(0, 9) for _ in range(rng.randint(1, 3))]
    pair = []
    for side in range(2):
        mesh_shape = rng.choice([[world], [world - 1], [1, world], [world // 2, 2], [1]])
        ranks = rng.sample(range(world), int(np.prod(mesh_shape)))
        choices = ([Replicate()] + [Shard(dim) for dim in range(len(shape))]
                   + [StridedShard(dim, 2) for dim in range(len(shape))])
        if side == 0:
            choices.append(Partial())
        pair.append(Layout(np.array(ranks).reshape(mesh_shape), [rng.choice(choices) for _ in mesh_shape], shape,
                           torch.float64))
    source, target = pair
    whole = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape) + 1
    held = source.take(whole, rank)
    addends = int(np.prod(
        [size for size, placement in zip(source.mesh_shape, source.placements) if isinstance(placement, Partial)]))
    out = None if target.local_shape(rank) is None else torch.full(target.local_shape(rank),  # type: ignore[arg-type]
                                                                   -1.0, dtype=torch.float64)
    op = shardwire.compile_op(group(), inputs=[source], outputs=[target])
    op([held], [out]).wait()
    if out is not None:
        assert torch.equal(out, target.take(whole, rank) * addends), f"seed {seed}: {source} -> {target}"


def move_many(rank: int, world: int) -> None:
    for seed in range(60):
        move_layouts(rank, seed, world)


def test_random_layouts_move() -> None:
    run_ranks(4, move_many, 4, timeout=120)


def two_meshes(rank: int) -> None:
    source = Layout([0, 1], [Shard(0)], (5, 4), F32)
    target = Layout([2, 3], [Shard(1)], (5, 4), F32)
    op = shardwire.compile_op(group(), inputs=[source], outputs=[target])
    whole = torch.arange(20.0).reshape(5, 4)
    if rank < 2:
        op([source.take(whole, rank)], []).wait()
        op([source.take(whole, rank)], [None]).wait()
        op([source.take(whole, rank)], [torch.empty(0)]).wait()
        with pytest.raises(ValueError, match=r"outputs\[0\]: this rank holds nothing there"):
            op([source.take(whole, rank)], [torch.empty(1)])
    else:
        for inputs in ([], [None], None):
            out = torch.zeros(5, 2)
            op(inputs, [out]).wait()
            assert torch.equal(out, whole[:, (rank - 2) * 2:(rank - 1) * 2])


def test_two_meshes_in_one_group() -> None:
    run_ranks(4, two_meshes)


def replicas_count_once(rank: int) -> torch.Tensor:
    source = Layout([0, 1, 2], [Replicate()], (3,), F32)
    target = Layout([0, 1, 2], [Replicate()], (3,), F32)
    op = shardwire.compile_op(group(), inputs=[source, source], outputs=[target], reduction="sum")
    out = torch.zeros(3)
    op([torch.full((3,), 2.0), torch.full((3,), 5.0)], [out]).wait()
    return out


def test_a_reduction_counts_replicas_once_and_two_entries_twice() -> None:
    for out in run_ranks(3, replicas_count_once):
        assert out.tolist() == [7.0] * 3


def partial_average(rank: int) -> torch.Tensor:
    source = Layout([0, 1, 2], [Partial("avg")], (2,), F32)
    target = Layout([1], [Replicate()], (2,), F32)
    op = shardwire.compile_op(group(), inputs=[source], outputs=[target])
    out = torch.zeros(2)
    op([torch.full((2,), float(rank + 1))], [out if rank == 1 else None]).wait()
    return out


def test_partial_is_reduced_on_the_way() -> None:
    assert run_ranks(3, partial_average)[1].tolist() == [2.0, 2.0]


def dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(4))
    grid = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    part = DeviceMesh("cpu", torch.tensor([1, 3]))
    whole = torch.arange(35.0).reshape(7, 5)

    def local(layout: Layout) -> torch.Tensor:
        taken = layout.take(whole, rank)
        return torch.empty(0) if taken is None else taken.contiguous()

    cases = [(mesh, [dt.Shard(0)]), (mesh, [dt.Shard(1)]), (mesh, [dt.Replicate()]), (grid, [dt.Shard(0), dt.Shard(0)]),
             (grid, [dt.Shard(1), dt.Shard(0)]), (part, [dt.Shard(0)]), (part, [dt.Replicate()])]
    for (mesh_in, placed_in), (mesh_out, placed_out) in itertools.product(cases, cases):
        source, target = Layout(mesh_in, placed_in, (7, 5), F32), Layout(mesh_out, placed_out, (7, 5), F32)
        known = {"run_check": False, "shape": whole.shape, "stride": whole.stride()}
        tensor_in = dt.DTensor.from_local(local(source), mesh_in, placed_in, **known)
        tensor_out = dt.DTensor.from_local(torch.zeros_like(local(target)), mesh_out, placed_out, **known)
        op = shardwire.compile_op(group(), inputs=[tensor_in], outputs=[tensor_out])
        op([tensor_in.to_local()], [tensor_out.to_local()]).wait()
        assert torch.equal(tensor_out.to_local(), local(target)), (source, target)
        tensor_out.to_local().zero_()
        op([tensor_in], [tensor_out]).wait()  # a DTensor means the local tensor
        assert torch.equal(tensor_out.to_local(), local(target)), (source, target)
    keyed = shardwire.compile_op(group(), inputs={"w": tensor_in}, outputs={"w": [tensor_out]})
    keyed({"w": tensor_in}, {"w": [tensor_out]}).wait()


def test_dtensors_on_all_kinds_of_meshes() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(4, dtensors, default_group=True, timeout=120)


def meta_dtensors(rank: int) -> None:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    mesh = DeviceMesh("cpu", torch.arange(2))

    def meta(dim: int, local: tuple[int, int]) -> Any:
        return dt.DTensor.from_local(torch.empty(local, device="meta"), mesh, [dt.Shard(dim)], run_check=False)

    op = shardwire.compile_op(group(), inputs=[meta(0, (2, 4))], outputs=[meta(1, (4, 2))])
    whole = torch.arange(16.0).reshape(4, 4)
    out = torch.zeros(4, 2)
    op([whole[rank * 2:rank * 2 + 2]], [out]).wait()
    assert torch.equal(out, whole[:, rank * 2:rank * 2 + 2])
    with pytest.raises(ValueError, match=r"inputs\[0\]: the DTensor's local tensor has shape \[3, 4\], its placements "
                                         r"say \[2, 4\]"):
        lying = dt.DTensor.from_local(torch.empty(3, 4), mesh, [dt.Shard(0)], run_check=False, shape=torch.Size([4, 4]),
                                      stride=(4, 1))
        shardwire.compile_op(group(), inputs=[lying])
    from torch.distributed.tensor.placement_types import _StridedShard
    strided = dt.DTensor.from_local(torch.empty(2, 4), mesh, [_StridedShard(0, split_factor=2)], run_check=False,
                                    shape=torch.Size([4, 4]), stride=(4, 1))
    op = shardwire.compile_op(group(), inputs=[Layout([0, 1], [Shard(0)], (4, 4), F32)], outputs=[strided])
    out = torch.zeros(2, 4)
    op([whole[rank * 2:rank * 2 + 2]], [out]).wait()
    assert torch.equal(out, whole[[rank, 2 + rank]])


def test_meta_lying_and_strided_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    run_ranks(2, meta_dtensors, default_group=True)
