"""compute_shards, local resharding and specs_from_dtensor against Layout.take on tensors with elements that encode
their places.
"""

from __future__ import annotations

import itertools
import math
import os
import random

import pytest
import torch
from ranks import error_of, group, run_ranks
from test_redistribute import has_dtensor

import shardwire
from shardwire import Layout, Replicate, Shard, StridedShard, apply_local_reshard, compute_local_reshard, compute_shards
from shardwire.plain.tensor_bytes import untyped

SEED = int(os.environ.get("SHARDWIRE_TEST_SEED", random.SystemRandom().randrange(1 << 30)))


def places_of(sizes):
    """Each place of a mesh: the number, and the (index, size) pairs."""
    for number, at in enumerate(itertools.product(*map(range, sizes))):
        yield number, list(zip(at, sizes))


def random_placements(rng, sizes, num_dims):
    return [rng.choice([Replicate(), Shard(rng.randrange(num_dims)), Shard(0), StridedShard(0, rng.randint(1, 3))])
            for _ in sizes]


def test_compute_shards_gives_what_layouts_take():
    print("seed", SEED)
    rng = random.Random(SEED)
    checked = 0
    for _ in range(200):
        shape = [rng.randint(0 if rng.random() < 0.1 else 1, 9) for _ in range(rng.randint(1, 3))]
        sizes = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
        placements = random_placements(rng, sizes, len(shape))
        whole = torch.arange(math.prod(shape)).reshape(shape)
        try:
            layout = Layout(torch.arange(math.prod(sizes)).reshape(sizes), placements, shape, torch.int64)
        except (ValueError, NotImplementedError):  # strided shards that have two readings
            continue
        for number, places in places_of(sizes):
            infos = compute_shards(shape, placements, places)
            local = layout.take(whole, number)
            assert infos and sum(math.prod(info.shape) for info in infos) == local.numel()
            assert torch.equal(apply_local_reshard(whole, infos), local), (shape, placements, places)
            assert shardwire.dtensor_shards(layout, [index for index, _ in places]) == infos
            checked += 1
    assert checked > 500
    assert compute_shards([3, 4], [], []) == [shardwire.ShardInfo([0, 0], [0, 0], [3, 4])]


def test_local_reshard_gives_the_target_layouts_local_tensor_or_refuses():
    print("seed", SEED)
    rng = random.Random(SEED)
    done = refused = without = 0
    for _ in range(600):
        shape = [rng.randint(1, 12) for _ in range(rng.randint(1, 2))]
        sizes = [rng.randint(1, 3) for _ in range(2)]
        current = random_placements(rng, sizes, len(shape))
        target = [rng.choice([placement, Shard(0), StridedShard(0, sizes[1])]) if isinstance(placement, Replicate) else
                  rng.choice([placement, placement, placement, Replicate()]) for placement in current]
        whole = torch.arange(math.prod(shape)).reshape(shape)
        mesh = torch.arange(math.prod(sizes)).reshape(sizes)
        try:
            have, want = Layout(mesh, current, shape, torch.int64), Layout(mesh, target, shape, torch.int64)
        except (ValueError, NotImplementedError):  # strided shards that have two readings
            continue
        for number, places in places_of(sizes):
            local, wanted = have.take(whole, number), want.take(whole, number)
            is_local = set(wanted.flatten().tolist()) <= set(local.flatten().tolist())
            try:
                chunks = compute_local_reshard(list(local.shape), current, target, places, shape)
            except ValueError as error:
                assert not is_local and "compile_op" in str(error), (shape, current, target, places, str(error))
                refused += 1
            else:
                assert is_local and torch.equal(apply_local_reshard(local, chunks), wanted), (
                    shape, current, target, places)
                done += 1
            try:
                chunks = compute_local_reshard(list(local.shape), current, target, places)
            except ValueError:
                continue
            assert torch.equal(apply_local_reshard(local, chunks), wanted), (
                "without shape", shape, current, target, places)
            without += 1
    assert done > 300 and refused > 100 and without > 200, (done, refused, without)


def test_local_reshard_is_a_view_where_it_is_one_box_and_states_what_is_wrong():
    tensor = torch.arange(12.0).reshape(4, 3)
    view = apply_local_reshard(tensor, compute_local_reshard([4, 3], [Replicate()], [Shard(0)], [(1, 2)]))
    assert view.data_ptr() == tensor[2:].data_ptr() and view.shape == (2, 3)
    for call, text in ((lambda: compute_local_reshard([4], [Shard(0)], [Replicate()], [(0, 2)]), "needs other ranks"),
                       (lambda: compute_local_reshard([4], [Replicate(), Shard(0)], [Shard(0), Shard(0)],
                                                      [(0, 2), (0, 2)]), "give shape="),
                       (lambda: compute_shards([4], [Shard(0)], []), "1 placements, but 0 pairs"),
                       (lambda: compute_shards([4], [Shard(0)], [(2, 2)]), "index 2 is no place"),
                       (lambda: apply_local_reshard(tensor, []), "chunks is empty"),
                       (lambda: apply_local_reshard(tensor[:1], [shardwire.ShardInfo([2, 0], [0, 0], [2, 3])]),
                        "does not lie in")):
        with pytest.raises(ValueError, match=text):
            call()


def regions(rank):
    have = Layout([0, 1, 2], [Shard(0)], [7, 2], torch.float32)
    want = Layout([[0, 1], [2, 3]], [Replicate(), Shard(1)], [7, 2], torch.float32)
    whole = torch.arange(14.0).reshape(7, 2)
    ins, outs = (shardwire.specs_from_dtensor(layout, 3) for layout in (have, want))
    assert len(ins) == (rank < 3)
    op = shardwire.compile_op(group(), dtype=torch.float32, inputs=ins, outputs=outs)
    out = torch.empty(want.local_shape(rank))
    op([have.take(whole, rank)] if rank < 3 else [], [out]).wait()
    return torch.equal(out, want.take(whole, rank))


def test_specs_from_a_layout_compile():
    assert run_ranks(4, regions, default_group=True) == [True] * 4


# ---- cat

def cat(rank, seed):
    rng = random.Random(seed)
    for turn in range(6):
        dtype, rest = (rng.choice([torch.float32, torch.int64, torch.bool]),
                       [rng.randint(1, 4) for _ in range(rng.randint(0, 2))])
        numbers = rng.sample(range(100), rng.randint(1, 7))
        tensors = {number: (torch.arange(math.prod([rows, *rest])).reshape([rows, *rest]) * number % 7).to(dtype)
                   for number in numbers for rows in [rng.randint(0, 5)]}
        owners = {number: rng.randrange(3) for number in numbers}
        mine = [(number, tensors[number]) for number in numbers if owners[number] == rank]
        future = shardwire.cat(mine, group()) if turn % 2 else shardwire.resolve_backend(group()).cat(mine)
        assert torch.equal(future.result(20), torch.cat([tensors[number] for number in sorted(numbers)]))
    errors = []
    for mine in ([(0, torch.ones(2))], [(rank, torch.ones(rank + 1, rank + 1))], [(rank, "x")] if rank == 1 else [],
                 [(rank, torch.ones(2, dtype=torch.complex64).conj())] if rank == 1 else [], []):
        try:
            shardwire.cat(mine, group())
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    try:
        shardwire.cat(map({}.__getitem__, ["absent"] if rank == 0 else []), group(), timeout=20)
    except Exception as error:
        errors.append(str(error))
    return errors


def test_cat_joins_in_the_order_of_the_numbers():
    print("seed", SEED)
    results = run_ranks(3, cat, SEED)
    assert results[0] == results[1] == results[2] and len(results[0]) == 6
    for text, part in zip(results[0], ("ranks 0 and 1 both give tensor 0", "tensor 1 of rank 1 float32[2, 2]",
                                       "rank 1: tensor 1 is str",
                                       "rank 1: tensor 1 is sparse, meta, or a view", "no rank gave a tensor",
                                       "rank 0: KeyError: 'absent'")):
        assert part in text, text


def cat_of_tensors_without_own_memory(rank):
    """Tensors of rank 1 whose elements no op can read."""
    freed = torch.ones(2)
    untyped(freed).resize_(0)
    given = [freed]
    if has_dtensor():
        import torch.distributed.tensor as dt
        from torch.distributed.device_mesh import DeviceMesh
        given.append(dt.DTensor.from_local(torch.ones(2), DeviceMesh("cpu", [0, 1]), [dt.Shard(0)], run_check=False))
    return [error_of(shardwire.cat, [(rank, tensor)] if rank == 1 else [], group()) for tensor in given]


def test_cat_refuses_tensors_without_own_memory_on_every_rank():
    results = run_ranks(2, cat_of_tensors_without_own_memory, default_group=True, timeout=20)
    assert results[0] == results[1], results
    for (kind, text), (wanted, part) in zip(results[0], (("ValueError", "rank 1: tensor 1 "),
                                                         ("TypeError", "rank 1: tensor 1 is a DTensor"))):
        assert kind == wanted and part in text, text


def cat_under_another_default_device(rank):
    with torch.device("meta"):
        joined = shardwire.cat([(0, torch.ones(2, device="cpu"))] if rank == 0 else [], group()).result(20)
    return joined.tolist()


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_cat_does_not_use_the_default_device():
    assert run_ranks(2, cat_under_another_default_device) == [[1.0, 1.0]] * 2


# ---- overlap, gaps, results

def overlaps(rank):
    mine, whole = [{"offset": [rank], "shape": [3]}], [{"offset": [0], "shape": [4]}]
    reported = []
    for options in ({"overlap": "error"}, {"overlap": "last" if rank else "any"}, {"overlap": "each"}, {"overlap": 3}):
        try:
            shardwire.compile_op(group(), [4], torch.float32, mine, whole, **options)
        except (TypeError, ValueError) as error:
            reported.append((type(error).__name__, str(error)))
    for overlap in (None, "last"):
        out = torch.empty(4)
        shardwire.compile_op(group(), [4], torch.float32, mine, whole, overlap=overlap)(
            [torch.full((3,), float(rank))], [out]).wait()
        assert out.tolist() == [0, 1, 1, 1]
    out = torch.empty(4)
    future = shardwire.compile_op(group(), [4], torch.float32, mine, whole, overlap="any")(
        [torch.arange(3.0) + rank], [out])
    assert future.result()[0] is out or torch.equal(future.result()[0], out)
    assert out.tolist() == [0, 1, 2, 3]
    try:
        shardwire.compile_op(group(), [4], torch.float32, [], whole)
    except shardwire.GapError as error:
        assert isinstance(error, ValueError) and isinstance(error, RuntimeError)
        reported.append(("gap", str(error)))
    op = shardwire.compile_op(group(), dtype=torch.float32,
                              inputs=[shardwire.TensorRegion([rank], [1], tensor_id=rank)],
                              outputs=[{"offset": [rank], "shape": [1], "tensor_id": str(rank)}])
    assert [tensor.name for tensor in op.tensors] == ["0", "1"]
    assert shardwire.cpu_allocator_owns(shardwire.empty(3)) and not shardwire.cpu_allocator_owns(torch.empty(3))
    return reported


def test_overlaps_and_gaps_are_reported_with_regions_and_ranks():
    one, other = run_ranks(2, overlaps)
    assert one == other
    assert [kind for kind, _ in one] == ["ValueError", "ValueError", "ValueError", "TypeError", "gap"]
    texts = [text for _, text in one]
    assert ("rank 0, inputs[0] [0:3] and rank 1, inputs[0] [1:4]" in texts[0]
            and "rank 0 gives overlap='any', rank 1 gives overlap='last'" in texts[1])
    assert ("overlap is 'each'" in texts[2] and "no input covers 2 regions" in texts[4]
            and "rank 1, outputs[0] [0:4]" in texts[4])


def standalone(rank, size):
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    store = c10d._get_default_store()
    ours = shardwire.create_process_group(store, rank, size, 20, "apart", standalone=True)
    known = c10d._world.pg_map if hasattr(getattr(c10d, "_world", None), "pg_map") else c10d._pg_map
    assert ours not in known and shardwire.find_process_group("apart") is ours
    dist.barrier()
    dist.destroy_process_group()
    tensor = torch.full((4,), float(rank + 1))
    ours.allreduce([tensor]).wait()
    q = shardwire.Queue(ours, 0)
    op = shardwire.compile_op("apart", [size], torch.float32, [{"offset": [rank], "shape": [1]}],
                              [{"offset": [0], "shape": [size]}])
    out = torch.empty(size)
    op([tensor[:1]], [out]).wait()
    if rank == 1:
        q.put("over")
    else:
        assert q.get(timeout=10) == "over"
    ours.barrier().wait()
    shardwire.end_process_group(ours)
    try:
        ours.allreduce([tensor])
    except shardwire.AbortedError:
        return tensor.tolist(), out.tolist()
    return "still there"


def test_standalone_groups_survive_destroy_process_group(run_ranks):
    assert run_ranks(2, standalone) == [([3.0] * 4, [3.0, 3.0])] * 2
