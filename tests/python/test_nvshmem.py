"""shardwire.nvshmem.core: a program written for NVSHMEM4Py runs on CPU tensors with a changed import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

import shardwire
import shardwire.nvshmem.core as core
from shardwire import symm
from shardwire.nvshmem.core.team_table import _nodes_of

# A program as in the seed document (shared/seeds/004) and NVSHMEM4Py's documentation; only the import and the names of
# CUDA differ.
PROGRAM = """
import os
import sys

import numpy as np
import torch
import torch.distributed as dist

import shardwire.nvshmem as nvshmem


def torchrun_uid_init_bcast():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="gloo")
    num_ranks = dist.get_world_size()
    uid = nvshmem.core.get_unique_id(empty=(local_rank != 0))
    uid_bytes = uid._data.view(np.uint8).copy()
    uid_tensor = torch.from_numpy(uid_bytes)
    dist.broadcast(uid_tensor, src=0)
    dist.barrier()
    uid._data[:] = uid_tensor.cpu().numpy().view(uid._data.dtype)
    nvshmem.core.init(device=None, uid=uid, rank=local_rank, nranks=num_ranks, initializer_method="uid")


def torchrun_finalize():
    nvshmem.core.finalize()
    dist.destroy_process_group()


torchrun_uid_init_bcast()
M, N = 8, 6
rank, world_size = nvshmem.core.my_pe(), nvshmem.core.n_pes()
assert nvshmem.core.init_status() == nvshmem.core.InitStatus.STATUS_IS_INITIALIZED

# One-shot all-reduce over peer tensors.
local_tensor = nvshmem.core.tensor((M, N), dtype=torch.float32)
local_tensor.copy_(torch.arange(M * N, dtype=torch.float32).view(M, N) + 100 * rank)
tensor_list = [nvshmem.core.get_peer_tensor(local_tensor, pe) for pe in range(world_size)]
dist.barrier()
output = torch.zeros(M, N)
for each in tensor_list:
    output += each
wanted = torch.arange(M * N, dtype=torch.float32).view(M, N) * world_size + 100 * sum(range(world_size))
assert torch.equal(output, wanted)

# The same by multimem.ld_reduce, each rank its rows, and multimem.st to all.
local_mc = nvshmem.core.get_multicast_tensor(nvshmem.core.Teams.TEAM_WORLD, local_tensor)
flag = nvshmem.core.tensor((1,), dtype=torch.int32)
flag.zero_()
flag_mc = nvshmem.core.get_multicast_tensor(flag)
dist.barrier()
rows = slice(rank * M // world_size, (rank + 1) * M // world_size)
local_mc[rows].store(local_mc[rows].ld_reduce("add", accumulate=torch.float32))
flag_mc.red("add", 1)  # multimem.red.release.sys.global.add.u32
assert nvshmem.core.signal_wait(flag, world_size, nvshmem.core.ComparisonType.CMP_EQ, stream=None) == world_size
assert torch.equal(local_tensor, wanted)

for t in tensor_list:
    nvshmem.core.free_tensor(t)
nvshmem.core.free_tensor(local_mc)
nvshmem.core.free_tensor(flag_mc)
nvshmem.core.free_tensor(flag)
torchrun_finalize()
assert nvshmem.core.init_status() == nvshmem.core.InitStatus.STATUS_NOT_INITIALIZED
print("done", rank)
"""


@pytest.mark.any_torch
def test_the_documents_program_runs_with_its_import_changed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "shardwire.launch", "-n", "3", str(path)], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == 3


def all_names_body(rank, _):
    core.init()
    assert (core.my_pe(), core.n_pes()) == (rank, 4) and "shardwire" in repr(core.get_version())
    # Memory.
    t = core.tensor((4, 3), dtype=torch.int16, morder="F")
    assert t.stride() == (1, 4) and t.shape == (4, 3)
    b = core.bytetensor((16,))
    assert b.dtype == torch.uint8 and core.buffer(64).numel() == 64
    t.copy_(torch.arange(12, dtype=torch.int16).view(4, 3) + 100 * rank)
    core.barrier_all()
    for pe in range(4):
        theirs = core.get_peer_tensor(t[1:, 1], pe)  # an offset view: refused or wrong in NVSHMEM4Py
        assert theirs.tolist() == [4 + 100 * pe, 7 + 100 * pe, 10 + 100 * pe]
    assert core.get_peer_buffer(b, 1).shape == b.shape
    with pytest.raises(core.NvshmemInvalid):
        core.get_peer_tensor(t)
    with pytest.raises(ValueError, match="rank 0: morder is 'A'"):
        core.tensor((3,), morder="A" if rank == 0 else "C")
    for wrong in ("no dtype", torch.bfloat16, None):
        arguments = ((3,), "float32" if rank else wrong) if wrong else ((3, 1 if rank else -1),)
        with pytest.raises(ValueError, match="rank 0: "):
            core.array(*arguments)
    raw, size, name = core.tensor_get_buffer(b)
    assert (raw.dtype, size, name) == (torch.uint8, 16, "torch.uint8")
    raw, size, name = core.tensor_get_buffer(t[1::2, 2][:1])
    assert (raw.view(torch.int16).tolist(), size, name) == (t[1, 2:].tolist(), 2, "torch.int16")
    with pytest.raises(core.NvshmemInvalid, match="is not contiguous"):
        core.tensor_get_buffer(t[::2, 0])
    # Puts, gets and signals; a signal in a buffer of bytes.
    sig = core.buffer(8)
    sig.zero_()
    v = core.tensor((10,), dtype=torch.float64)
    v.zero_()
    core.barrier_all()
    right = (rank + 1) % 4
    # the shorter one counts
    core.put_signal(v, torch.full((4,), rank + 1.0, dtype=torch.float64), sig, 5, core.SignalOp.SIGNAL_ADD, right,
                    stream=None)
    core.signal_wait(sig, 5, core.ComparisonType.CMP_GE, stream=None)
    left = (rank - 1) % 4
    assert v.tolist() == [left + 1.0] * 4 + [0.0] * 6
    core.signal_op(sig, 77, core.SignalOp.SIGNAL_SET, remote_pe=right)
    assert core.signal_wait(sig, 77, core.ComparisonType.CMP_EQ) == 77
    got = torch.zeros(10, dtype=torch.float64)
    core.get(got, v, remote_pe=right)
    assert got[0] == rank + 1
    core.put(v[2:4], got[:2], remote_pe=rank)
    assert v[2:4].tolist() == [rank + 1.0] * 2
    core.quiet()
    with pytest.raises(core.NvshmemInvalid):
        core.put(v, got)
    with pytest.raises(core.NvshmemInvalid):
        core.signal_op(got, 1, core.SignalOp.SIGNAL_SET, 0)
    with pytest.raises(shardwire.TimeoutError):
        core.signal_wait(sig, 1, core.ComparisonType.CMP_EQ, timeout=0.05)
    # Atomics.
    a = core.tensor((2, 5), dtype=torch.int32)
    a.zero_()
    core.barrier_all()
    core.atomic_add(a, 3, 0, offset=7)
    core.atomic_inc(a, 0, offset=7)
    core.atomic_fetch_add(a.t(), 1, 0, offset=1)  # row-major of the view: a[1, 0]
    core.atomic_or(sig, 1 << 40, 0, offset=0, dtype=torch.int64)
    core.barrier_all()
    assert core.atomic_fetch(a, 0, offset=7) == 16 and core.atomic_fetch(a, 0, offset=5) == 4
    core.barrier_all()
    if rank == 2:
        assert (core.atomic_fetch_inc(a, 0) == 0 and core.atomic_swap(a, 6, 0) == 1
                and core.atomic_compare_swap(a, 6, 12, 0) == 6)
        assert (core.atomic_fetch_and(a, 4, 0) == 12 and core.atomic_fetch_or(a, 3, 0) == 4
                and core.atomic_fetch_xor(a, 1, 0) == 7)
        core.atomic_set(a, 15, 0)
        core.atomic_and(a, 12, 0)
        core.atomic_xor(a, 4, 0)
        assert core.atomic_fetch(a, 0) == 8
    with pytest.raises(core.NvshmemInvalid):
        core.atomic_fetch(a, 0, offset=10)
    # Teams.
    config = core.TeamConfig()
    even = core.team_split_strided(core.Teams.TEAM_WORLD, 0, 2, 2, config, 0, new_team_name="even")
    assert (even is None) == (rank % 2 == 1)
    row, column = core.team_split_2d(core.Teams.TEAM_WORLD, 2, config, 0, config, 0, new_team_name="grid")
    assert (core.Teams["grid_X"] == core.Teams.grid_X == row and "grid_Y" in core.Teams and "even" in core.Teams
            or even is None)
    assert (core.team_my_pe(row), core.team_n_pes(row)) == (rank % 2, 2) and core.team_my_pe("grid_Y") == rank // 2
    assert core.team_translate_pe(column, 1, core.Teams.TEAM_WORLD) == rank % 2 + 2
    assert core.team_translate_pe(core.Teams.TEAM_WORLD, (rank + 2) % 4, row) == -1
    # The existing teams, and a team of any PEs.
    assert (core.Teams.TEAM_SHARED in (1,)
            and core.team_n_pes(core.Teams.TEAM_NODE) == core.team_n_pes("TEAM_SHARED") == 4
            and core.team_my_pe("TEAM_NODE") == rank)
    assert core.team_n_pes(core.Teams.TEAM_SAME_MYPE_NODE) == 1
    with pytest.raises(core.NvshmemInvalid):
        core.team_destroy(core.Teams.TEAM_NODE)
    uids = [core.team_get_uniqueid()]
    dist.broadcast_object_list(uids)
    config.uniqueid = uids[0]
    if rank != 1:
        own = core.team_init(config, 0, 3, {3: 0, 0: 1, 2: 2}[rank], new_team_name="own")
        assert (core.team_my_pe("own") == {3: 0, 0: 1, 2: 2}[rank]
                and core.team_translate_pe(own, 0, core.Teams.TEAM_WORLD) == 3)
        ones = torch.ones(2)
        core.reduce(own, ones, ones, "sum")
        assert ones.tolist() == [3.0, 3.0]
    with pytest.raises(core.NvshmemInvalid):
        core.team_init(config, 0, 5, 0)
    # Collectives.
    world = core.Teams.TEAM_WORLD
    src, dst = core.tensor((8,)), core.tensor((8,))
    src.copy_(torch.arange(8.0) + rank)
    core.reduce(world, dst, src, "sum")
    assert dst.tolist() == [4.0 * i + 6 for i in range(8)] and src.tolist() == [float(i + rank) for i in range(8)]
    core.reducescatter(world, dst[:2], src, "max")
    assert dst[:2].tolist() == [2.0 * rank + 3, 2.0 * rank + 4]
    lone = (torch.arange(4.0) + rank)[::2][:1]
    core.collective_on_buffer("reduce", world, lone, lone, "float", "sum")
    assert lone.item() == 6
    core.alltoall(world, dst, src)
    assert dst.tolist() == [float(2 * rank + i + pe) for pe in range(4) for i in range(2)]
    core.fcollect(row, dst[:4], src[:2])
    core.broadcast(column, dst, src, root=1)
    assert dst.tolist() == [float(i + rank % 2 + 2) for i in range(8)]
    core.sync(row)
    core.barrier("grid_Y")
    core.sync_all()
    mc = core.get_multicast_tensor(row, src)
    assert mc.ld_reduce("add")[0].item() == (rank // 2 * 2) * 2 + 1
    core.barrier_all()
    core.team_destroy("grid_X")
    with pytest.raises(core.NvshmemInvalid):
        core.team_my_pe(row)
    core.free_tensor(src)
    core.free(b)
    with pytest.raises(core.NvshmemInvalid):
        core.free_tensor(torch.zeros(3))
    core.finalize()
    with pytest.raises(core.NvshmemInvalid):
        core.my_pe()
    dist.barrier()
    core.init()  # once more
    core.finalize()
    return True


def node_teams_body(rank, store):
    os.environ["SHARDWIRE_HOST_ID"] = "b" if rank in (1, 3) else "a"
    dist.init_process_group("shardwire", store=dist.FileStore(store, 5), rank=rank, world_size=5)
    core.init()
    near = [1, 3] if rank in (1, 3) else [0, 2, 4]
    teams = core.Teams
    assert [core.team_translate_pe(teams.TEAM_NODE, pe, teams.TEAM_WORLD)
            for pe in range(core.team_n_pes(teams.TEAM_NODE))] == near
    same = [[0, 1], [2, 3], [4]][near.index(rank)]
    assert [core.team_translate_pe(teams.TEAM_SAME_MYPE_NODE, pe, 0)
            for pe in range(core.team_n_pes(teams.TEAM_SAME_MYPE_NODE))] == same
    x = torch.ones(1) * rank
    core.reduce(teams.TEAM_SHARED, x, x, "sum")
    assert x.item() == sum(near)
    # By requests between the two.
    t = core.tensor((4,), dtype=torch.float64)
    sig = core.tensor((1,), dtype=torch.int64)
    sig.zero_()
    core.barrier_all()
    right = (rank + 1) % 5
    core.put_signal(t, torch.full((4,), rank + 1.0, dtype=torch.float64), sig, 1, core.SignalOp.SIGNAL_ADD, right)
    core.signal_wait(sig, 1, core.ComparisonType.CMP_EQ)
    assert t.tolist() == [(rank - 1) % 5 + 1.0] * 4
    core.quiet()
    core.finalize()
    return True


def test_teams_of_the_nodes_and_puts_between_them(tmp_path):
    run_ranks(5, node_teams_body, str(tmp_path / "store"), join=False)


def test_a_node_has_only_pes_that_address_each_other():
    def nodes(*missing):
        return _nodes_of([[int((pe, other) not in missing) for other in range(4)] for pe in range(4)])

    assert nodes() == [[0, 1, 2, 3]]
    assert nodes((1, 0)) == [[0, 2, 3], [1]]  # PE 1 does not map the memory of PE 0
    assert nodes(*((pe, other) for pe in (0, 2) for other in (1, 3))) == [[0, 2], [1, 3]]
    assert nodes((0, 1), (3, 2)) == [[0, 2], [1, 3]]


def after_a_death_body(rank, _):
    core.init()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(shardwire.PeerFailedError):
        core.finalize()
    with pytest.raises(shardwire.PeerFailedError):
        core.init()
    assert core.init_status() == core.InitStatus.STATUS_NOT_INITIALIZED
    core.init(uid=core.get_unique_id(), rank=0, nranks=1, initializer_method="uid")
    core.finalize()


def test_a_death_leaves_nothing_that_keeps_a_new_job_out():
    run_ranks(2, after_a_death_body, None, default_group=True, may_die=(1,))


def test_every_name():
    run_ranks(4, all_names_body, None, default_group=True)


def test_init_says_what_does_not_fit():
    for arguments in ({}, {"initializer_method": "uid"}, {"initializer_method": "nccl"},
                      {"initializer_method": "uid", "uid": core.get_unique_id(empty=True), "rank": 0, "nranks": 1}):
        with pytest.raises(core.NvshmemInvalid):
            core.init(**arguments)
    with pytest.raises(core.NvshmemInvalid):
        core.tensor((3,))


def test_it_is_an_attribute_of_the_package():
    names = subprocess.run([sys.executable, "-c", ("import shardwire; print(shardwire.nvshmem.core.my_pe.__name__, "
                                                   "'nvshmem' in shardwire.__all__)")],
                           check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert names == ["my_pe", "True"]


def test_what_it_exports_is_there():
    for module in (core, symm):
        for name in module.__all__:
            assert getattr(module, name) is not None
