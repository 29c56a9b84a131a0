"""torch's own symmetric memory API on the CPU (torch.distributed._symmetric_memory) over shardwire: handles, signals,
every op against naive results, refusals, and the errors after a death or a timeout.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import accelerator
import pytest
import torch
import torch.distributed as dist
from collective_model import BYTES, COMPLEX, NARROW, UNSIGNED, bytes_of, random_values, reduced
from fork_ranks import meet
from ranks import RankFailed, group, raised, run_ranks
from run_program import run_program

import shardwire
from shardwire import _C, symm

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", random.SystemRandom().randrange(1 << 30)))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", 30))
with_api = pytest.mark.skipif(not _C.has_torch_symmetric_memory,
                              reason=f"torch {torch.__version__}: its symmetric memory API is served with 2.6, and "
                                     "with 2.13 or later")
NEWER = hasattr(getattr(torch._C._distributed_c10d, "_SymmetricMemory", None), "get_backend")


def api():
    return symm.torch_api()


def met(t, group):
    """The handle of a tensor in a group. torch 2.6's own rendezvous() takes only groups made by torch.distributed."""
    if NEWER:
        return api().rendezvous(t, group)
    from torch._C._distributed_c10d import _SymmetricMemory
    return _SymmetricMemory.rendezvous(t, group if isinstance(group, str) else group.group_name)


def made(shape, dtype=torch.float32):
    return api().empty(*shape, dtype=dtype, device="cpu")


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bytes_of(one), bytes_of(other))


@pytest.mark.skipif(_C.has_torch_symmetric_memory, reason="this torch has the API")
def test_another_torch_is_one_clear_sentence():
    with pytest.raises(shardwire.UnsupportedError,
                       match=r"needs torch 2\.6, or 2\.13 or later, and this is .*: shardwire\.symm has"):
        symm.torch_api()


IMPORTED_AFTER = """
import torch, torch.distributed as dist
import shardwire_test_device
shardwire_test_device.register_symm_kernels(ARE_TORCHS)
import shardwire
dist.init_process_group("shardwire", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
try:
    api = shardwire.symm.torch_api()
    from torch._C._distributed_c10d import _SymmetricMemory
    t = api.empty(4, device="cpu")
    _SymmetricMemory.rendezvous(t, dist.group.WORLD.group_name).barrier()
    print("has it")
except shardwire.UnsupportedError as error:
    print("refused:", error)
dist.destroy_process_group()
"""


@with_api
@pytest.mark.parametrize("are_torchs", [True, False])
def test_kernels_that_were_registered_before(are_torchs):
    """CUDA builds of torch bring kernels of these ops, and an op has one C++ signature: with torch's all works, with
    another this feature alone is missing."""
    accelerator.build()
    done = subprocess.run([sys.executable, "-c", IMPORTED_AFTER.replace("ARE_TORCHS", str(are_torchs))],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    if are_torchs:
        assert done.stdout == "has it\n" and "symmetric memory" not in done.stderr, done
    else:
        assert done.stdout.startswith("refused: torch ") and "_low_contention_all_gather" in done.stdout, done
        assert (done.stderr.count("torch's symmetric memory for the CPU is not available") == 1
                and "_low_contention_all_gather" in done.stderr), done


DAEMON_AT_THE_END = """
import atexit, sys, threading, time
import torch.distributed as dist, shardwire
from shardwire.process import ending
from torch._C._distributed_c10d import _SymmetricMemory

dist.init_process_group("shardwire", store=dist.HashStore(), rank=0, world_size=1)
atexit.unregister(ending._at_exit.close)  # otherwise the wait would end before the interpreter ends
t = shardwire.symm.torch_api().empty(4, device="cpu")
handle = _SymmetricMemory.rendezvous(t, dist.group.WORLD.group_name)
entered = threading.Event()

def waits():
    entered.set()
    handle.wait_signal(0)

class Last:
    def __del__(self, put=handle.put_signal, sleep=time.sleep):  # the interpreter is ending
        put(0)
        sleep(0.5)  # the daemon thread takes the GIL

sys.setswitchinterval(1000)  # so main goes on when the daemon thread has released the GIL in its wait
threading.Thread(target=waits, daemon=True).start()
entered.wait()
last = Last()
"""


@with_api
def test_a_daemon_thread_may_be_in_a_wait_at_the_end_of_the_program():
    """The thread needs the GIL when the interpreter gives the GIL to no other thread any more."""
    done = run_program([sys.executable, "-c", DAEMON_AT_THE_END], 60)
    assert done.returncode == 0, done


# ---- handles

def handle_body(rank):
    name = group().group_name
    from torch._C._distributed_c10d import _SymmetricMemory
    t = made((6, 5)).fill_(rank)
    assert t.device.type == "cpu" and t.is_contiguous() and shardwire.in_shared_heap(t)
    assert _SymmetricMemory.rendezvous(torch.empty(3), name) is None
    h = met(t, name)
    assert (h.rank, h.world_size, h.buffer_size) == (rank, 3, 120)
    assert (h.buffer_ptrs == met(t[2:], group()).buffer_ptrs and h.buffer_ptrs[rank] == t.data_ptr()
            and len(set(h.buffer_ptrs)) == 3)
    assert h.multicast_ptr == 0 and not _SymmetricMemory.has_multicast_support(torch._C._autograd.DeviceType.CPU, 0)
    h.barrier()
    for peer in range(3):
        assert torch.equal(h.get_buffer(peer, (6, 5), torch.float32), torch.full((6, 5), float(peer)))
        assert torch.equal(h.get_buffer(peer, (2, 2), torch.float32, 10), torch.full((2, 2), float(peer)))
    tensors = torch.ops.symm_mem.get_remote_tensors(t.t()[1:3], name)
    assert ([each.stride() for each in tensors] == [t.t()[1:3].stride()] * 3
            and [each.sum().item() for each in tensors] == [0.0, 12.0, 24.0])
    h.barrier(channel=1)
    right = (rank + 1) % 3
    h.get_buffer(right, (6, 5), torch.float32)[rank].fill_(10 + rank)
    tensors[right][0, 5] = -1.0
    h.barrier(channel=0, timeout_ms=20000)
    assert t[(rank - 1) % 3].tolist() == [10.0 + (rank - 1) % 3] * 5 and t[5, 1] == -1.0
    pads = [h.get_signal_pad(peer) for peer in range(3)]
    assert all(pad.dtype == torch.uint32 and pad.numel() == h.signal_pad_size // 4 and not pad.view(torch.int32).any()
               for pad in pads)
    assert (pads[rank].data_ptr() == h.signal_pad_ptrs[rank]
            and h.get_signal_pad(right, (8, 8), torch.uint64).shape == (8, 8))
    for call in ((0, (7, 5), torch.float32), (3, (1,), torch.float32), (0, (6, 5), torch.float32, 1),
                 (0, (4, 1 << 62), torch.float32)):  # the bytes do not fit 64 bits
        assert raised(h.get_buffer, *call)[0] is RuntimeError, call
    assert raised(h.get_signal_pad, right, (h.signal_pad_size // 4 + 1,))[0] is RuntimeError
    assert h.get_buffer(right, (0, 1 << 40), torch.float32).numel() == 0
    h.barrier()
    # The handle alone keeps all parts.
    del t
    gc.collect()
    h.get_buffer(rank, (30,), torch.float32).fill_(rank + 7)
    h.barrier()
    assert h.get_buffer(right, (30,), torch.float32).tolist() == [right + 7.0] * 30
    h.barrier()
    met(made((0, 4)), name).barrier()
    return True


@with_api
def test_handles_reach_every_part():
    run_ranks(3, handle_body)


def newer_body(rank):
    name = group().group_name
    t = made((6, 5)).fill_(rank)
    assert (api().is_symm_mem_tensor(t) and not api().is_symm_mem_tensor(torch.empty(3))
            and api().get_backend("cpu") == "shardwire")
    assert api().get_backend("cuda") != "shardwire"  # the backends of other devices are unchanged
    h = api().rendezvous(t, name)
    assert (h.offset, h.device, h.signal_pad_size) == (0, torch.device("cpu"), api().get_signal_pad_size())
    h.barrier()
    for peer in range(3):
        assert torch.equal(h.get_remote_tensor(peer, (5,), torch.float32), torch.full((5,), float(peer)))
    h.barrier()
    torch.ops.symm_mem._barrier(torch.ops.symm_mem._rendezvous(made((0, 4)), name))
    return True


@with_api
@pytest.mark.skipif(not NEWER, reason="torch 2.6 lacks is_symm_mem_tensor, get_backend, get_signal_pad_size, "
                                      "get_remote_tensor, offset, device, ops.symm_mem._rendezvous and _barrier")
def test_what_later_versions_add_to_handles():
    run_ranks(3, newer_body)


def kept_body(rank):
    t = made((6,)).fill_(rank)
    name = group().group_name
    h = met(t, name)
    h.barrier()
    theirs, pad = h.get_buffer(1 - rank, (6,), torch.float32), h.get_signal_pad(1 - rank)
    del t, h
    gc.collect()
    symm.barrier(group())
    made((1,))  # would release memory that no rank holds
    assert theirs.tolist() == [1.0 - rank] * 6 and not pad.view(torch.int32).any()
    symm.barrier(group())
    return True


@with_api
@pytest.mark.skipif(NEWER, reason="this torch makes these tensors itself, and they keep nothing")
def test_tensors_of_a_handle_keep_the_parts():
    run_ranks(2, kept_body)


def signal_body(rank):
    t = made((4,), torch.int64)
    h = met(t, group())
    channels = h.signal_pad_size // 4 // h.world_size
    right, left = (rank + 1) % 3, (rank - 1) % 3
    for turn in range(200):
        channel = (0, 1, channels - 1)[turn % 3]
        h.get_buffer(right, (4,), torch.int64).fill_(100 * turn + rank)
        h.put_signal(right, channel)
        h.wait_signal(left, channel, timeout_ms=30000)
        assert t.tolist() == [100 * turn + left] * 4
        h.put_signal(left, channel)  # the left rank may write again
        h.wait_signal(right, channel)
    h.put_signal(rank, 2)
    assert h.get_signal_pad(rank)[2 * 3 + rank].item() == 1
    h.wait_signal(rank, 2)
    h.barrier(channels - 1)
    assert not h.get_signal_pad(rank).view(torch.int32).any()  # as torch asks
    kinds = [raised(h.barrier, channel=channels), raised(h.put_signal, right, -1),
             raised(h.wait_signal, left, channels), raised(h.put_signal, 3), raised(h.wait_signal, -1)]
    assert all(kind is ValueError and "out of range" in text for kind, text in kinds), kinds
    # A waiting thread releases Python to other threads, such as the thread that signals.
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(h.wait_signal, rank, 5)
        h.put_signal(rank, 5)
        waiting.result(20)
    h.barrier()
    return True


@with_api
def test_signals_of_every_channel_carry_what_was_written_before():
    run_ranks(3, signal_body)


def persistent_body(rank):
    from torch._C._distributed_c10d import _SymmetricMemory

    def make():
        return _SymmetricMemory.empty_strided_p2p((8,), (1,), torch.float32, torch.device("cpu"), group().group_name,
                                                  alloc_id=77)

    t = make()
    place = t.data_ptr()
    assert "still active" in raised(make)[1]
    pointers = _SymmetricMemory.rendezvous(t).buffer_ptrs  # in the group of the allocation
    del t
    gc.collect()
    t = make()
    assert t.data_ptr() == place and _SymmetricMemory.rendezvous(t).buffer_ptrs == pointers
    # allocated without a group, and no group is given
    assert raised(_SymmetricMemory.rendezvous, made((3,)))[0] is ValueError
    torch.ops.symm_mem.two_shot_all_reduce_(t.fill_(rank + 1), "sum", group().group_name)
    return t.tolist() == [3.0] * 8


@with_api
def test_a_persistent_allocation_is_the_same_memory():
    assert all(run_ranks(2, persistent_body))


def memory_body(rank):
    world = group()
    part = symm.team(world).split_strided(0, 1, 2)
    names = world.group_name
    symm.barrier(world)
    before = _C.heap_used_bytes()
    for turn in range(30):
        t = made((1000 + turn * 5000,)).fill_(rank)
        whole = met(t, names)
        torch.ops.symm_mem.one_shot_all_reduce(t, "sum", names)
        del t, whole
    symm.barrier(world)
    gc.collect()
    symm.barrier(world)
    del part
    made((1,))  # finds the memory that the other ranks released
    return _C.heap_used_bytes() - before, _C.symm_num_deferred()


@with_api
def test_memory_comes_back():
    for used, _ in run_ranks(2, memory_body):
        assert used < 1 << 20, used


def two_groups_body(rank):
    world = dist.group.WORLD
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[rank // 2]
    t = made((16,)).fill_(rank)
    whole, half = api().rendezvous(t, world), api().rendezvous(t, mine)
    assert (half.rank, half.world_size, whole.world_size) == (rank % 2, 2, 4)
    whole.barrier()
    other = rank ^ 1
    assert half.get_buffer(1 - half.rank, (16,), torch.float32).tolist() == [float(other)] * 16
    half.barrier()
    half.get_buffer(1 - half.rank, (16,), torch.float32)[3] = 50.0 + rank
    half.barrier()
    assert t[3].item() == 50.0 + other
    small = made((4,))
    one = api().rendezvous(small, mine)
    two = api().rendezvous(small, world)
    del one
    gc.collect()
    two.barrier()
    two.get_buffer(other, (4,), torch.float32).fill_(rank)  # still writable: the world holds the tensor
    two.barrier()
    assert small.tolist() == [float(other)] * 4
    two.barrier()
    sums = torch.ops.symm_mem.one_shot_all_reduce(small.fill_(rank), "sum", mine.group_name)
    assert sums.tolist() == [float(rank + other)] * 4
    return True


@with_api
def test_one_tensor_meets_in_several_groups():
    run_ranks(4, two_groups_body, default_group=True)


def recycled_body(rank, folder):
    t = made((4,)).fill_(rank + 1)
    for turn in range(2):  # the groups have one name, "0"
        dist.init_process_group("shardwire", init_method=f"file://{folder}/store{turn}", rank=rank, world_size=2)
        assert torch.ops.symm_mem.one_shot_all_reduce(t, "sum", dist.group.WORLD.group_name).tolist() == [3.0] * 4
        dist.destroy_process_group()
    return True


@with_api
def test_a_group_that_has_the_name_of_an_ended_one_is_another(tmp_path):
    run_ranks(2, recycled_body, str(tmp_path), join=False)


def renamed_body(rank, folder):
    from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
    t = made((4,)).fill_(rank + 1)
    groups = [shardwire.create_process_group(dist.FileStore(f"{folder}/store{turn}", 2), rank, 2, 30)
              for turn in range(2)]
    name = groups[0].group_name
    assert torch.ops.symm_mem.one_shot_all_reduce(t, "sum", name).tolist() == [3.0] * 4
    symm.barrier(groups[1])
    # Rank 0 keeps the first group alive, as any variable does where torch's destroy_process_group() shuts no backend
    # down (before 2.8).
    if rank == 0:
        _unregister_process_group(name)
    else:
        dist.destroy_process_group(groups.pop(0))
        gc.collect()
    _register_process_group(name, groups[-1])
    symm.barrier(groups[-1])
    assert torch.ops.symm_mem.one_shot_all_reduce(t, "sum", name).tolist() == [3.0] * 4
    symm.barrier(groups[-1])
    return True


@with_api
def test_a_handle_is_its_groups_not_its_names(tmp_path):
    run_ranks(2, renamed_body, str(tmp_path), join=False)


# ---- ops against naive results

def ops_body(rank, size, seed, cases):
    name = group().group_name
    ops = torch.ops.symm_mem
    rng = random.Random(seed)  # the same on all ranks
    for case in range(cases):
        salt = f"{seed}/{case}"
        dtype = rng.choice([*BYTES, *BYTES, *UNSIGNED, *NARROW, *COMPLEX])
        # The reductions of the model: torch cannot average unsigned numbers, nor multiply complex numbers bit for bit.
        allowed = (
            ["sum"] + ([] if dtype in UNSIGNED else ["avg"]) + ([] if dtype.is_complex else ["prod", "min", "max"])
            + ([] if dtype.is_complex or dtype.is_floating_point else ["band", "bor", "bxor"]))
        op = rng.choice(allowed)
        shape = (tuple(rng.choice([0, 1, 2, 3, 7, 16, 33]) for _ in range(rng.randrange(1, 4))) if rng.random() < 0.8
                 else (rng.randrange(1, 1 << 17),))
        skip = rng.choice([0, 1, 5])
        values = [random_values(f"{salt}/{peer}", shape, dtype) for peer in range(size)]
        wanted = reduced({"prod": "PRODUCT"}.get(op, op.upper()), values, 1.0)
        count = torch.Size(shape).numel()
        base = made((skip + count + 3,), dtype)
        t = base[skip:skip + count].view(shape)
        t.copy_(values[rank])
        kind = rng.randrange(7)
        text = f"seed {seed}, case {case}: {kind} {op} {dtype} {shape} at {skip}, {size} ranks"
        if kind == 0:
            got = rng.choice([ops.one_shot_all_reduce, ops.multimem_one_shot_all_reduce])(t, op, name)
        elif kind == 1:
            out = torch.empty(shape, dtype=dtype)
            got = rng.choice([ops.one_shot_all_reduce_out, ops.multimem_one_shot_all_reduce_out])(t, op, name, out)
            assert got.data_ptr() == out.data_ptr()
        elif kind == 2:
            t.copy_(values[0])
            out = torch.empty(shape, dtype=dtype)
            got = ops.one_shot_all_reduce_copy(base, values[rank], op, name) if rng.random() < 0.5 else \
                ops.one_shot_all_reduce_copy_out(base, values[rank], op, name, out)
        elif kind == 3:
            got = rng.choice([ops.two_shot_all_reduce_, ops.multimem_all_reduce_])(t, op, name)
            assert got.data_ptr() == t.data_ptr() or count == 0
        elif kind == 4:
            got = ops.two_shot_all_reduce_out(t, op, name, torch.empty(shape, dtype=dtype))
        elif kind == 5:
            turned = t if t.dim() < 2 else t.transpose(0, 1)  # any strides, the same on all ranks
            got = ops.one_shot_all_reduce(turned, op, name)
            wanted = wanted if t.dim() < 2 else wanted.transpose(0, 1)
        else:
            root = rng.randrange(size)
            out = torch.empty(shape, dtype=dtype)
            got = ops.multimem_one_shot_reduce_out(t, op, root, name, out)
            wanted = wanted if rank == root else got
        assert same(got, wanted), text
    return True


@with_api
@pytest.mark.parametrize("size", [2, 3, 4])
def test_reductions_of_random_tensors_against_a_model(size):
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    run_ranks(size, ops_body, size, SEED + size, CASES, timeout=120)


def scatter_body(rank, size, seed):
    name = group().group_name
    ops = torch.ops.symm_mem
    rng = random.Random(seed)
    for case in range(20):
        salt = f"{seed}/s{case}"
        dtype = rng.choice([*BYTES, *NARROW, *COMPLEX])
        split = rng.random() < 0.6
        shape = ((*(rng.randrange(0, 5) for _ in range(rng.randrange(0, 3))), size * rng.randrange(0, 9)) if split
                 else (size * rng.randrange(0, 3000),))
        values = [random_values(f"{salt}/{peer}", shape, dtype) for peer in range(size)]
        t = made(shape, dtype).copy_(values[rank])
        wanted = (reduced("SUM", values, 1.0).chunk(size, -1)[rank].contiguous() if shape[-1]
                  else torch.empty(shape, dtype=dtype))
        got = ops.reduce_scatter_out(t, name, split, torch.empty(wanted.shape, dtype=dtype))
        assert same(got, wanted), f"seed {seed}, case {case}: {dtype} {shape} {split}"
        rows = (rng.randrange(0, 6), *(rng.randrange(1, 5) for _ in range(rng.randrange(0, 3))))
        pieces = [random_values(f"{salt}/g{peer}", rows, dtype) for peer in range(size)]
        out = made((size * rows[0], *rows[1:]), dtype)
        piece = pieces[rank]
        if rng.random() < 0.5:  # in place: the piece lies in the output
            piece = out[rank * rows[0]:(rank + 1) * rows[0]].copy_(piece)
        ops.multimem_all_gather_out(piece, name, out)
        assert same(out, torch.cat(pieces)), f"seed {seed}, case {case}: {dtype} {rows}"
    return True


@with_api
@pytest.mark.parametrize("size", [2, 3])
def test_scatters_and_gathers_against_a_model(size):
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    run_ranks(size, scatter_body, size, SEED)


def vdev_body(rank, size, seed):
    name = group().group_name
    ops = torch.ops.symm_mem
    rng = random.Random(seed)
    for case in range(12):
        experts = rng.randrange(1, 5)
        align = rng.choice([None, 1, 4, 16])
        width, dtype = rng.randrange(1, 6), rng.choice([torch.float32, torch.int16, torch.bool])
        # of each rank
        splits = torch.tensor([[rng.choice([0, 1, 2, 5, 9]) for _ in range(size * experts)] for _ in range(size)])
        most = int(splits.sum(1).max())
        room = int(splits.sum()) + 20 * size * experts
        inputs = [random_values(f"{seed}/{case}/{peer}", (most, width), dtype) for peer in range(size)]
        text = f"seed {seed}, case {case}"
        t, counts = (made((most, width), dtype).copy_(inputs[rank]),
                     made((size * experts,), torch.int64).copy_(splits[rank]))
        out, given = made((room, width), dtype), made((2, size * experts), torch.int64)
        ops.all_to_all_vdev_2d(t, out, counts, given, name, align)
        offsets = splits.cumsum(1) - splits
        place = 0
        chunks = []
        for expert in range(experts):
            begin = place
            for source in range(size):
                column = rank * experts + expert
                rows, first = int(splits[source, column]), int(offsets[source, column])
                assert given[:, expert * size + source].tolist() == [rows, place], text
                assert same(out[place:place + rows], inputs[source][first:first + rows]), text
                chunks.append((source, expert, rows, place))
                place += rows
            step = align or 1
            place = begin + max(1, -(-(place - begin) // step)) * step
        # And back, from the present places: each rank has its own rows again.
        back, again = made((most, width), dtype), made((2, size * experts), torch.int64)
        ops.all_to_all_vdev_2d_offset(out, back, given, again, name)
        assert torch.equal(again, torch.stack([splits[rank], offsets[rank]])), text
        total = int(splits[rank].sum())
        assert same(back[:total], inputs[rank][:total]), text
        # Without experts.
        plain = splits[:, :size].contiguous()
        one, into = made((size,), torch.int64).copy_(plain[rank]), made((2, size), torch.int64)
        gathered = torch.empty(room, width, dtype=dtype)  # need not be symmetric: no peer accesses the output
        ops.all_to_all_vdev(t, gathered, one, into, name)
        begins = plain.cumsum(1) - plain
        rows = torch.cat(
            [inputs[source][begins[source, rank]:begins[source, rank] + plain[source, rank]] for source in range(size)])
        assert same(gathered[:len(rows)], rows) and into[0].tolist() == plain[:, rank].tolist(), text
        assert into[1].tolist() == (plain[:, rank].cumsum(0) - plain[:, rank]).tolist(), text
    return True


@with_api
@pytest.mark.parametrize("size", [2, 3])
def test_all_to_all_by_splits_against_a_model(size):
    print(f"SHARDWIRE_ORACLE_SEED={SEED}")
    run_ranks(size, vdev_body, size, SEED)


def fused_body(rank):
    name = group().group_name
    api()  # torch defines these ops there
    ops = torch.ops.symm_mem
    size = 2
    for seed, (leading, gather) in enumerate(
            [((4, 6), 0), ((4, 6), 1), ((3, 4, 6), 1), ((3, 4, 6), 2), ((2, 3, 4, 6), 2)]):
        shards = [random_values(f"{seed}/{peer}", leading, torch.float64) for peer in range(size)]
        whole = torch.cat(shards, gather)
        Bs = [random_values(f"{seed}/B{i}", (whole.shape[-1], 3 + i), torch.float64) for i in range(2)]
        A, products = ops.fused_all_gather_matmul(shards[rank], Bs, gather, name)
        assert same(A, whole) and len(products) == 2
        assert all(torch.allclose(got, whole @ B) for got, B in zip(products, Bs))
        if NEWER:  # 2.6 lacks return_A
            none, _ = ops.fused_all_gather_matmul(shards[rank], Bs, gather, name, return_A=False)
            assert none is None
    for op in ("sum", "avg", "max"):
        for dim in range(3):
            As = [random_values(f"{op}{dim}/{peer}", (4, 6, 5), torch.float64) for peer in range(size)]
            B = random_values(f"{op}{dim}", (5, 8), torch.float64)
            products = torch.stack([A @ B for A in As])
            wanted = {"sum": products.sum(0), "avg": products.mean(0), "max": products.amax(0)}[op].chunk(size, dim)[
                rank]
            got = ops.fused_matmul_reduce_scatter(As[rank], B, op, dim, name)
            assert got.is_contiguous() and torch.allclose(got, wanted), (op, dim)
    for t in (torch.full((4, 3), float(rank)), made((4, 3)).fill_(rank)):
        got = torch.ops._c10d_functional.wait_tensor(ops._low_contention_all_gather(t, name))
        assert torch.equal(got, torch.arange(2.0).repeat_interleave(4)[:, None].expand(8, 3))
        for op, wanted in (("sum", 1.0), ("avg", 0.5), ("min", 0.0)):
            got = torch.ops._c10d_functional.wait_tensor(ops._low_contention_reduce_scatter(t, op, name))
            assert torch.equal(got, torch.full((2, 3), wanted)), op
    words = torch.zeros(8, dtype=torch.uint32)
    ops.memset32_(words, 2, 7, 3)
    ops.stream_write_value32_(words, 7, 0xffffffff)
    assert words.tolist() == [0, 0, 7, 7, 7, 0, 0, 0xffffffff]
    for call in (lambda: ops.memset32_(words, 6, 1, 3), lambda: ops.memset32_(words, -1, 1, 1),
                 lambda: ops.memset32_(words, 0, 1 << 32, 1),
                 lambda: ops.stream_write_value32_(words.view(torch.int32), 0, 1)):
        assert raised(call)[0] is RuntimeError
    texts = [raised(ops.fused_matmul_reduce_scatter, torch.ones(3, 4), torch.ones(4, 4), "sum", 0, name),
             raised(ops.fused_matmul_reduce_scatter, torch.ones(4, 4), torch.ones(4, 4), "first", 0, name)]
    assert (texts[0] == (ValueError, "fused_matmul_reduce_scatter: dimension 0 of 3 does not divide by 2 ranks")
            and texts[1][0] is ValueError)
    return True


@with_api
def test_products_and_low_contention_collectives():
    run_ranks(2, fused_body)


# ---- what is refused

def misuse_body(rank):
    name = group().group_name
    ops = torch.ops.symm_mem
    t = made((12,)).fill_(1)
    other = made((12,), torch.complex64)
    texts = []

    def note(call):
        texts.append(raised(call))
        assert ops.one_shot_all_reduce(t, "sum", name).tolist() == [3.0] * 12  # the group and the tensor are usable

    out = torch.empty(12)
    note(lambda: ops.one_shot_all_reduce(t, "first", name))
    note(lambda: ops.one_shot_all_reduce(t, "sum" if rank else "max", name))
    note(lambda: ops.one_shot_all_reduce(t[:6 + (rank == 1)], "sum", name))
    note(lambda: ops.one_shot_all_reduce(t[rank % 2:6 + rank % 2], "sum", name))
    note(lambda: ops.one_shot_all_reduce(t.view(3, 4).t() if rank == 2 else t.view(4, 3), "sum", name))
    note(lambda: (ops.one_shot_all_reduce if rank else ops.two_shot_all_reduce_)(t, "sum", name))
    note(lambda: ops.one_shot_all_reduce_out(t, "sum", name, torch.empty(11 if rank == 1 else 12)))
    note(lambda: ops.one_shot_all_reduce_out(t, "sum", name, t))
    note(lambda: ops.two_shot_all_reduce_(t[::2], "sum", name))
    note(lambda: ops.one_shot_all_reduce(other, "max", name))
    note(lambda: ops.one_shot_all_reduce_copy_out(t, torch.ones(13), "sum", name, torch.empty(13)))
    note(lambda: ops.reduce_scatter_out(t[:11], name, False, torch.empty(4)))
    note(lambda: ops.multimem_all_gather_out(torch.ones(4), name, made((12,)) if False else t[:11]))
    note(lambda: ops.multimem_one_shot_reduce_out(t, "sum", 3, name, out))
    rows, splits, into = (made((8, 2)), made((3,), torch.int64).copy_(torch.tensor([1, 2, 3 + 90 * (rank == 1)])),
                          made((2, 3), torch.int64))
    note(lambda: ops.all_to_all_vdev(rows, torch.empty(9, 2), splits, into, name))
    splits[2] = 3
    note(lambda: ops.all_to_all_vdev(rows, torch.empty(2 if rank == 2 else 20, 2), splits, into, name))
    note(lambda: met(made((3 + rank,)), name))
    note(lambda: ops.two_shot_all_reduce_out(t, "sum", name, t if rank == 1 else out))
    for call in (lambda: ops.one_shot_all_reduce(torch.ones(3), "sum", name),
                 lambda: ops.one_shot_all_reduce(symm.zeros(3, group=group()), "sum", name)):
        kind, text = raised(call)
        assert kind is ValueError and "does not lie in torch's symmetric memory" in text
    return texts


def one_alone_body(rank):
    name = group().group_name
    ops = torch.ops.symm_mem
    t, fresh, later = made((12,)).fill_(1), made((12,)).fill_(2), made((12,)).fill_(3)
    plain = torch.ones(12)
    assert ops.one_shot_all_reduce(t, "sum", name).tolist() == [3.0] * 12
    texts = []
    # other ranks wait in the op, or in the rendezvous of the tensor
    for alone, mine in ((1, t), (0, fresh), (2, t), (2, t)):
        texts.append(raised(ops.one_shot_all_reduce, plain if rank == alone else mine, "sum", name))
        for each, value in ((t, 3.0), (later, 9.0)):
            # the group and the tensors are usable
            assert ops.one_shot_all_reduce(each, "sum", name).tolist() == [value] * 12
    texts.append(raised(ops.two_shot_all_reduce_, plain if rank == 1 else t, "sum", name))
    # The error also names the call of another rank instead of the op.
    texts.append(raised(lambda: met(made((5,)), name) if rank == 0 else ops.one_shot_all_reduce(t, "sum", name)))
    assert ops.one_shot_all_reduce(t, "sum", name).tolist() == [3.0] * 12
    return texts


@with_api
def test_a_tensor_that_is_not_symmetric_on_one_rank_alone_is_the_same_error_on_all():
    results = run_ranks(3, one_alone_body)
    assert results[0] == results[1] == results[2], results
    assert [kind.__name__ for kind, _ in results[0]] == ["ValueError"] * 5 + ["MismatchError"], results[0]
    for (_, text), rank in zip(results[0][:5], (1, 0, 2, 2, 1)):
        assert f"rank {rank}: " in text and "does not lie in torch's symmetric memory" in text, text


@with_api
def test_misuse_is_the_same_error_on_all_ranks():
    results = run_ranks(3, misuse_body)
    assert results[0] == results[1] == results[2], [pair for pair in zip(*results) if len(set(pair)) > 1]
    kinds, texts = zip(*results[0])
    assert [kind.__name__ for kind in kinds] == ["ValueError", *["MismatchError"] * 5, *["ValueError"] * 10,
                                                 "MismatchError", "MismatchError"], texts
    assert ("'first' is not a reduction" in texts[0]
            and "rank 0 gave one_shot_all_reduce max, input float32[12]" in texts[1])
    assert ("rank 1: one_shot_all_reduce: out is float32[11], and float32[12] is needed" in texts[6]
            and "the other ranks read" in texts[7])
    assert "must be contiguous" in texts[8] and "max is not defined on complex64" in texts[9]
    assert "the splits of rank 1 say that 93 rows from row 3 on go to rank 2" in texts[14], texts[14]
    assert ("rank 2: all_to_all_vdev: out has 2 rows on rank 2, and 9 are needed" in texts[15]
            and "rank 1 gave 16 bytes" in texts[16]), texts
    assert ("at byte 0, in place 0, rank 1 gave two_shot_all_reduce_out sum" in texts[17]
            and "at byte 0, in place 1" in texts[17]), texts[17]


def gloo_body(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    kind, text = raised(api().rendezvous, made((3,)), dist.group.WORLD)
    assert (kind is TypeError
            and "is 'gloo'; symmetric memory on the CPU needs a group of backend 'shardwire'" in text), text
    assert raised(api().rendezvous, made((3,)), "nobody")[0] is RuntimeError
    return True


@with_api
@pytest.mark.skipif(not dist.is_gloo_available() if hasattr(dist, "is_gloo_available") else True,
                    reason="this torch has no gloo")
def test_a_group_of_another_backend_is_named(tmp_path):
    run_ranks(2, gloo_body, str(tmp_path / "store"), join=False)


def hosts_body(rank, store):
    os.environ["SHARDWIRE_HOST_ID"] = "b" if rank == 2 else "a"
    world = shardwire.create_process_group(dist.FileStore(store, 3), rank, 3, 60)
    result = raised(met, made((3,)), world)
    again = raised(torch.ops.symm_mem.one_shot_all_reduce, made((3,)), "sum", world.group_name)
    # Ops that need no memory of a peer work over wires, too.
    gathered = torch.ops._c10d_functional.wait_tensor(
        torch.ops.symm_mem._low_contention_all_gather(torch.ones(2) * rank, world.group_name))
    assert gathered.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    return result, again


@with_api
def test_ranks_on_two_hosts_are_a_typed_error_on_all(tmp_path):
    results = run_ranks(3, hosts_body, str(tmp_path / "store"), join=False)
    assert results[0] == results[1] == results[2]
    for kind, text in results[0]:
        assert kind is shardwire.UnsupportedError and "rank 0: rank 2 is reached by tcp" in text, text


# ---- time and death

def timeout_body(rank):
    t = made((4,))
    h = met(t, group())
    if rank == 0:
        kind, text = raised(h.wait_signal, 1, 3, timeout_ms=50)
        assert (kind is shardwire.TimeoutError and "wait_signal" in text
                and "rank 1 did not take the matching step" in text), text
        h.put_signal(1, 4)
        kind, text = raised(h.put_signal, 1, 4, timeout_ms=50)  # the first signal was not taken
        assert (kind is shardwire.TimeoutError and "put_signal" in text
                and "rank 1 did not take the matching step" in text), text
    h.barrier()  # the group is usable
    if rank == 1:
        h.wait_signal(0, 4)
    h.barrier()
    if rank < 2:
        kind, text = raised(h.barrier, timeout_ms=50)
        assert kind in (shardwire.TimeoutError, shardwire.PeerFailedError) and "rank 2" in text, text
        assert raised(h.barrier)[0] is not None  # the group has failed
        return True
    return "TimeoutError" in raised(h.wait_signal, 0)[0].__name__ or True


@with_api
def test_timeouts_name_the_rank():
    run_ranks(3, timeout_body)


def killed_body(rank, kind):
    name = group().group_name
    t = made((4,)).fill_(1)
    h = met(t, name)
    h.put_signal(2, 1)
    meet("put")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    calls = {"barrier": h.barrier, "wait_signal": lambda: h.wait_signal(2), "put_signal": lambda: h.put_signal(2, 1),
             "op": lambda: torch.ops.symm_mem.one_shot_all_reduce(t, "sum", name),
             "rendezvous": lambda: met(made((5,)), name)}
    error, text = raised(calls[kind])
    assert error is shardwire.PeerFailedError and "rank 2" in text, (error, text)
    assert h.get_buffer(2, (4,), torch.float32).tolist() == [1.0] * 4  # stays readable
    return True


@with_api
@pytest.mark.parametrize("kind", ["barrier", "wait_signal", "put_signal", "op", "rendezvous"])
def test_death_is_named_in_every_wait(kind):
    with pytest.raises(RankFailed) as failure:
        run_ranks(3, killed_body, kind, timeout=30)
    text = str(failure.value)
    assert "--- rank 2" in text and "SIGKILL" in text and "--- rank 0" not in text and "--- rank 1" not in text, text


def interrupt_body(rank):
    h = met(made((4,)), group())
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            h.wait_signal(1, timeout_ms=25000)
        h.put_signal(1)
        return True
    h.wait_signal(0, timeout_ms=30000)
    return True


@with_api
def test_ctrl_c_ends_the_wait():
    run_ranks(2, interrupt_body)


@with_api
def test_importing_registers_without_importing_torchs_module():
    code = ("import sys, torch, torch.distributed\nfrom torch._C._distributed_c10d import _SymmetricMemory as S\n"
            "cuda = hasattr(S, 'get_backend') and S.get_backend(torch.device('cuda'))\nbefore = "
            "set(sys.modules)\nimport shardwire\n"
            "new = [name for name in set(sys.modules) - before if "
            "name.startswith('torch.distributed._symmetric')]\nassert not new, new\n"
            "if hasattr(S, 'get_backend'):\n    assert (S.get_backend(torch.device('cpu')), "
            "S.get_backend(torch.device('cuda'))) == ('shardwire', cuda)\n"
            "t = S.empty_strided_p2p((3,), (1,), torch.float32, torch.device('cpu'))\nt.fill_(1)\nkept = t\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
