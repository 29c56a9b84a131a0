"""shardwire.nvshmem.core: the names of NVSHMEM4Py 0.4.1 beyond test_nvshmem.py's program, on 2 PEs."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch
from ranks import run_ranks

import shardwire
import shardwire.nvshmem.core as core


def arrays_body(rank, _):
    core.init()
    other = 1 - rank
    a = core.array((2, 3), dtype="float32")
    f = core.array((2, 3), np.int64, morder="F")
    assert isinstance(a, np.ndarray) and a.flags.c_contiguous and f.flags.f_contiguous and f.dtype == np.int64
    a[:] = np.arange(6).reshape(2, 3) + 10 * rank
    f[:] = rank
    core.barrier_all()
    assert core.get_peer_array(a[:, 1:], other).tolist() == [[1 + 10 * other, 2 + 10 * other],
                                                             [4 + 10 * other, 5 + 10 * other]]
    core.get_peer_array(f, other)[1, 2] = 7  # a write into the other PE's part
    core.barrier_all()
    assert f[1, 2] == 7 and f[0, 0] == rank
    core.barrier_all()
    raw, size, name = core.array_get_buffer(f)
    assert (raw.dtype, raw.numel(), size, name) == (torch.uint8, 48, 48, "int64")
    with pytest.raises(core.NvshmemInvalid):
        core.array_get_buffer(a[:, 1:])
    with pytest.raises(core.NvshmemInvalid, match="not made by"):
        core.array_get_buffer(np.zeros(3))
    # Tensors' functions on arrays.
    core.put(a[0], np.full(3, 50 + rank, np.float32), other)
    core.atomic_add(f, 5, other, offset=0)
    core.barrier_all()
    assert a[0].tolist() == [50 + other] * 3 and f[0, 0] == rank + 5
    total = np.zeros(2)
    core.reduce(core.Teams.TEAM_WORLD, total, np.array([1.0, rank]), "sum")
    assert total.tolist() == [2.0, 1.0]
    assert core.get_multicast_array(core.Teams.TEAM_WORLD, f[:1, :1]).ld_reduce("add").tolist() == [[11]]
    b = core.bytearray((16,), device_id=0)
    assert b.dtype == np.uint8 and b.shape == (16,)
    with pytest.raises(ValueError, match="rank 0: morder is 'A'"):
        core.array((3,), morder="A" if rank == 0 else "C")
    # Unsigned integers, which torch does not have before 2.3: NVSHMEM4Py's programs have their signals in such arrays
    signals, box = core.array((2, 2), "uint64"), core.array((3,), "uint16")
    signals[:], box[:] = 0, 40000 + rank
    core.barrier_all()
    core.put_signal(box[:2], np.array([50000 + rank, 65535], np.uint16), core.array_get_buffer(signals)[0], 2,
                    core.SignalOp.SIGNAL_SET, other)
    core.signal_op(signals[1:, 1], 5, core.SignalOp.SIGNAL_ADD, other)
    core.signal_wait(signals[1, 1:], 5, core.ComparisonType.CMP_EQ)
    assert box.tolist() == [50000 + other, 65535, 40000 + rank] and signals.tolist() == [[2, 0], [0, 5]]
    theirs = core.get_peer_array(signals.T, other)
    assert theirs.dtype == np.uint64 and theirs.tolist() == [[2, 0], [0, 5]]
    gathered = np.zeros(6, np.uint16)
    core.fcollect(core.Teams.TEAM_WORLD, gathered, box)
    assert gathered.reshape(2, 3)[:, 2].tolist() == [40000, 40001]
    for each in (signals, box):
        core.free_array(each)
    empty = core.array((0, 3))
    core.put(a[0:0], a[0:0], other)
    for each in (a, f, b, empty):
        core.free_array(each)
    with pytest.raises(core.NvshmemInvalid):
        core.free_array(a)
    core.finalize()


def test_symmetric_arrays_of_numpy():
    run_ranks(2, arrays_body, None, default_group=True)


def dlpack_body(rank, _):
    core.init()
    other = 1 - rank
    buffer = core.buffer(64)
    array = np.from_dlpack(buffer).view("int32")
    again = torch.from_dlpack(torch.utils.dlpack.to_dlpack(buffer[8:24]))  # 16 bytes
    for same in (array, again, array[3:], array.reshape(4, 4).T):
        assert core.type_of(same) is core.BufferTypes.NORMAL
    buffer.fill_(rank)
    core.barrier_all()
    core.put(again, torch.full((16,), 10 + rank, dtype=torch.uint8), other)
    core.put(array[6:8], np.full(2, rank, np.int32), other)
    core.atomic_add(array, 7, other, offset=9)
    core.signal_op(array[12:], 5, core.SignalOp.SIGNAL_SET, other)
    core.barrier_all()
    of_other = (10 + other) * 0x01010101
    assert buffer.view(torch.int32).tolist()[2:8] == [of_other] * 4 + [other] * 2
    assert array[9] == 0x01010101 * rank + 7 and core.signal_fetch(array[12:]) == 5
    core.barrier_all()
    got = torch.empty(16, dtype=torch.uint8)
    core.get(got, again, other)
    assert got.tolist() == [10 + rank] * 16
    theirs = core.get_peer_array(array[2:6], other)
    assert theirs.tolist() == [(10 + rank) * 0x01010101] * 4
    assert core.type_of(np.from_dlpack(core.get_peer_buffer(buffer, other))) is core.BufferTypes.PEER
    assert core.get_multicast_tensor(again).ld_reduce("add").tolist() == [21] * 16
    with pytest.raises(core.NvshmemInvalid, match="not made by"):
        core.type_of(torch.from_dlpack(torch.utils.dlpack.to_dlpack(torch.zeros(64, dtype=torch.uint8))))
    core.barrier_all()
    del buffer, again, got, theirs  # the array alone holds the memory
    assert core.type_of(array) is core.BufferTypes.NORMAL
    core.free_array(array)
    with pytest.raises(ValueError, match="was freed"):
        core.get_peer_array(array, other)
    del array, same
    kept, listed = core.buffer(8), shardwire.nvshmem.core.memory._storages
    assert listed._begins == [kept.data_ptr()]  # no ended storage
    assert listed.over(kept.data_ptr() - 1) is None and listed.over(kept.data_ptr() + 7) is not None
    core.finalize()


def test_memory_that_came_through_dlpack():
    run_ranks(2, dlpack_body, None, default_group=True)


def access_body(rank, _):
    core.init()
    other = 1 - rank
    box, signal = core.tensor((4,), dtype=torch.int32), core.buffer(8)
    signal.zero_()
    core.barrier_all()
    mine = torch.full((4,), rank + 1, dtype=torch.int32)
    core.put_nbi(box, mine, other, stream=None)
    core.flush(stream=None)
    mine.zero_()  # allowed after flush
    core.barrier_all()
    assert box.tolist() == [other + 1] * 4
    got = torch.empty(4, dtype=torch.int32)
    core.get_nbi(got, box, other)
    core.quiet()
    assert got.tolist() == [rank + 1] * 4
    assert core.signal_fetch(signal) == 0
    core.barrier_all()
    core.put_signal_nbi(box, torch.full((4,), 9 + rank, dtype=torch.int32), signal, 3, core.SignalOp.SIGNAL_ADD, other)
    assert core.signal_wait(signal, 3, core.ComparisonType.CMP_EQ) == 3
    assert box.tolist() == [9 + other] * 4 and core.signal_fetch(signal_var=signal) == 3
    core.barrier_all()
    assert core.query_thread() is core.ThreadSupport.THREAD_MULTIPLE and core.get_name() == "shardwire"
    assert core.NvshmemInvalid(msg="text").msg == str(core.NvshmemError("text")) == "text"
    mc = core.get_multicast_tensor(team=core.Teams.TEAM_WORLD, tensor=box)
    assert mc.ld_reduce("add").tolist() == [19] * 4
    assert [core.type_of(each) for each in (box, core.get_peer_tensor(box, other), mc)] == [
        core.BufferTypes.NORMAL, core.BufferTypes.PEER, core.BufferTypes.MULTIMEM]
    core.finalize()


def test_calls_without_waiting_and_what_they_report():
    run_ranks(2, access_body, None, default_group=True)


def bytes_body(rank, _):
    core.init()
    other = 1 - rank
    box, numbers = core.buffer(32), core.tensor((4,), torch.float32)
    box.zero_()
    core.barrier_all()
    core.put(box, torch.tensor([1.5, 2.5]) + rank, other)  # of another dtype: the bytes
    core.put_nbi(box[8:], np.array([[7, 8 + rank]], np.int64), other)
    core.put(numbers, torch.arange(16, dtype=torch.uint8) + rank, other)
    core.quiet()
    core.barrier_all()
    assert box[:8].view(torch.float32).tolist() == [1.5 + other, 2.5 + other]
    assert box[8:24].view(torch.int64).tolist() == [7, 8 + other] and not box[24:].any()
    assert numbers.view(torch.uint8).tolist() == [i + other for i in range(16)]
    got = torch.zeros(3, dtype=torch.float32)
    core.get(got, box, other)
    assert got[:2].tolist() == [1.5 + rank, 2.5 + rank]
    for wrong in ([1.0], 3, None):
        with pytest.raises(core.NvshmemInvalid, match=f"src is a {type(wrong).__name__}; give a tensor"):
            core.put(box, wrong, other)
    core.barrier_all()
    # Atomics on a buffer of bytes, by NVSHMEM's, torch's and numpy's names of the elements' type
    for index, dtype in enumerate(("int64", "long", "ptrdiff", torch.int64, "torch.int64", np.dtype("int64"))):
        assert core.atomic_fetch_add(box, 10, other, offset=1, dtype=dtype) == 7 + 10 * index
    core.barrier_all()
    core.atomic_set(box, 2.25, other, offset=0, dtype="float")
    core.barrier_all()
    assert box[:4].view(torch.float32).item() == 2.25 and box[8:16].view(torch.int64).item() == 67
    core.atomic_add(numbers, 1, other, dtype="float32")  # that of the target
    for wrong in ("int64", "quad", float):
        with pytest.raises(core.NvshmemInvalid, match="dtype is .*, and the target's"):
            core.atomic_add(numbers, 1, other, dtype=wrong)
    core.finalize()


def test_bytes_of_any_dtype_are_put_and_buffers_have_atomics_by_name():
    run_ranks(2, bytes_body, None, default_group=True)


def register_body(rank, _):
    core.init()
    other = 1 - rank
    ordinary = torch.arange(6.0) + rank
    symmetric = core.register_external_tensor(ordinary)
    assert core.type_of(symmetric) is core.BufferTypes.EXTERNAL and symmetric.tolist() == [rank + i for i in range(6)]
    assert core.get_peer_tensor(symmetric, other).tolist() == [other + i for i in range(6)]
    core.barrier_all()
    core.put(symmetric[2:3], torch.tensor([77.0]), other)
    core.barrier_all()
    assert ordinary[2] == 77.0  # the same memory
    ordinary[3] = -1.0
    core.barrier_all()
    assert core.get_peer_tensor(symmetric, other)[3] == -1.0
    core.barrier_all()
    with pytest.raises(core.NvshmemInvalid, match="unregister"):
        core.free_tensor(symmetric)
    with pytest.raises(core.NvshmemInvalid, match="already"):
        core.register_external_tensor(symmetric)
    with pytest.raises(core.NvshmemInvalid, match="rank 0: a tensor that is registered is contiguous"):
        core.register_external_tensor(torch.zeros(4)[1:] if rank == 0 else torch.zeros(3))
    # A wrong tensor of one PE is an error of all PEs, and nothing has ended
    made = core.tensor((3,))
    for wrong in (torch.zeros(3), made, torch.ones(1).to_sparse()):
        with pytest.raises(core.NvshmemError, match="rank 0: the tensor was not registered"):
            core.unregister_external_tensor(wrong if rank == 0 else symmetric)
    with pytest.raises(core.NvshmemInvalid, match="rank 1: the tensor is registered: end it with unregister"):
        core.free_tensor(symmetric if rank == 1 else made)
    core.free_tensor(made)
    assert core.type_of(symmetric) is core.BufferTypes.EXTERNAL
    core.unregister_external_tensor(symmetric)
    assert ordinary.tolist() == [rank, rank + 1, 77.0, -1.0, rank + 4, rank + 5]
    with pytest.raises(core.NvshmemError, match="was not registered"):
        core.unregister_external_tensor(symmetric)
    again = core.register_external_tensor(ordinary)  # an ordinary tensor again
    assert core.get_peer_tensor(again, other)[0] == other and core.type_of(again[2:]) is core.BufferTypes.EXTERNAL
    core.barrier_all()
    with pytest.raises(core.NvshmemInvalid, match="rank 0: the tensor is registered"):
        core.free_tensor(again[2:])
    core.unregister_external_tensor(again)
    empties = [core.register_external_tensor(torch.empty(0)) for _ in range(2)]
    made = core.tensor((0,))
    assert [core.type_of(each) for each in (*empties, made)] == [core.BufferTypes.EXTERNAL] * 2 + [
        core.BufferTypes.NORMAL]
    core.free_tensor(made)
    for each in empties:
        core.unregister_external_tensor(each)
    block = core.register_external_buffer(torch.full((8,), rank, dtype=torch.uint8), preferred_address=0)
    assert core.get_peer_buffer(block, other).tolist() == [other] * 8
    core.barrier_all()
    core.unregister_external_buffer(block)
    core.finalize()


def test_an_ordinary_tensor_becomes_symmetric():
    run_ranks(2, register_body, None, default_group=True)


def collective_body(rank, _):
    core.init()
    world = core.Teams.TEAM_WORLD

    def made(values, dtype):
        values = values.to(dtype)
        buffer = core.buffer(values.numel() * values.element_size())
        buffer.copy_(values.view(torch.uint8))
        return buffer

    src = made(torch.tensor([1 + rank, 2, 3, 4]), torch.int32)
    dest = made(torch.zeros(2), torch.int32)
    assert core.collective_on_buffer("reduce", world, dest, src, dtype="int32", op="sum") == 0
    assert dest.view(torch.int32).tolist() == [3, 4]
    took = core.collective_on_buffer("reducescatter", world, dest, src, "int32", "max", enable_timing=True)
    assert took > 0 and dest.view(torch.int32).tolist() == ([2, 2] if rank == 0 else [3, 4])
    both = made(torch.zeros(8), torch.float32)
    core.collective_on_buffer("fcollect", world, both, made(torch.full((4,), rank), torch.float32), "float")
    assert both.view(torch.float32).tolist() == [0.0] * 4 + [1.0] * 4
    swapped = made(torch.zeros(4), torch.int64)
    core.collective_on_buffer("alltoall", world, swapped, made(torch.arange(4) + 10 * rank, torch.int64), "int64")
    assert swapped.view(torch.int64).tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank]
    core.collective_on_buffer("broadcast", world, dest, made(torch.tensor([7, 8]) + rank, torch.int32), "int32", root=1)
    assert dest.view(torch.int32).tolist() == [8, 9]
    # The shorter buffer counts, as NVSHMEM4Py's tests and perftests have buffers of two lengths
    five = made(torch.tensor([1, 2, 3, 4, 5]) + rank, torch.int16)
    for coll, length, wanted in (("reduce", 7, [3, 5, 7, 9, 11, -1, -1]), ("reduce", 2, [3, 5]),
                                 ("reducescatter", 7, [3 + 4 * rank, 5 + 4 * rank] + [-1] * 5),
                                 ("alltoall", 5, [1 + 2 * rank, 2 + 2 * rank, 2 + 2 * rank, 3 + 2 * rank, -1]),
                                 ("fcollect", 5, [1, 2, 2, 3, -1]), ("broadcast", 7, [1, 2, 3, 4, 5, -1, -1])):
        other_length = made(torch.full((length,), -1), torch.int16)
        core.collective_on_buffer(coll, world, other_length, five, "short", "sum")
        assert other_length.view(torch.int16).tolist() == wanted, coll
    for wrong in ({"coll": "gather"}, {"dtype": "quad"}, {"op": None}):
        with pytest.raises(core.NvshmemInvalid):
            core.collective_on_buffer(**{"coll": "reduce", "team": world, "dest": dest, "src": src, "dtype": "int32",
                                         "op": "sum", **wrong})
    # Teams: their configurations, and other names for them.
    config = core.TeamConfig()
    config.num_contexts, config.uniqueid = 3, core.TeamUniqueId(12348)
    team = core.team_init(team_config=config, config_mask=0, npes=2, pe_idx_in_team=1 - rank, new_team_name="PAIR")
    assert core.team_my_pe("PAIR") == 1 - rank and "PAIR" in core.Teams.keys()
    assert core.team_get_config(team).num_contexts == 3 and core.team_get_config(world).num_contexts == 0
    # A name that one member has already is an error of all PEs
    if rank == 0:
        core.Teams.add("MINE", 999)
        core.Teams.add("GRID_Y", 999)
    config.uniqueid = 12349
    for call in (lambda: core.team_split_strided(world, 0, 1, 2, new_team_name="MINE"),
                 lambda: core.team_split_strided(world, 0, 1, 2, new_team_name=3 if rank == 0 else "NEW"),
                 lambda: core.team_split_2d(world, 1, new_team_name="GRID"),
                 lambda: core.team_init(config, 0, 2, rank, new_team_name="MINE")):
        with pytest.raises(core.NvshmemInvalid, match="rank 0: (there is a team named|new_team_name is a int)"):
            call()
    lone = core.team_split_strided(world, 1, 1, 1, new_team_name="MINE")
    assert (lone is None) == (rank == 0) and "GRID_X" not in core.Teams and "NEW" not in core.Teams
    core.Teams.add("SAME", team)
    assert core.team_n_pes("SAME") == 2
    core.team_destroy("PAIR")
    assert "SAME" not in core.Teams
    assert core.get_team_unique_id().value != core.get_team_unique_id().value
    core.finalize()


def again_body(rank, _):
    core.init()
    core.init()
    kept = core.buffer(np.int64(4))
    core.init(uid=core.get_unique_id(empty=True), rank=rank, nranks=2, initializer_method="uid")
    with pytest.raises(core.NvshmemInvalid, match=f"this is PE {rank} of 2 already, and not 0 of 1"):
        core.init(uid=core.get_unique_id(empty=True), rank=0, nranks=1, initializer_method="uid")
    with pytest.raises(core.NvshmemInvalid, match="initializer_method is 'nccl'"):
        core.init(initializer_method="nccl")
    for _ in range(2):
        core.finalize()
        assert core.init_status() is core.InitStatus.STATUS_IS_INITIALIZED
    kept.fill_(rank)
    core.barrier_all()
    assert core.get_peer_buffer(kept, 1 - rank).tolist() == [1 - rank] * 4
    core.finalize()
    assert core.init_status() is core.InitStatus.STATUS_NOT_INITIALIZED
    with pytest.raises(core.NvshmemInvalid, match="not initialized"):
        core.finalize()
    core.init()
    assert core.buffer(8.0).numel() == 8  # as the perftests of NVSHMEM4Py ask for memory
    for wrong in (8.5, float("inf"), True):
        with pytest.raises(ValueError, match="rank 0: shape has a (float|bool) in it"):
            core.buffer(wrong if rank == 0 else 8)
    core.finalize()


def test_init_counts_its_calls():
    run_ranks(2, again_body, None, default_group=True)


def test_sizes():
    assert core.utils.get_size((2, 3), "bfloat16") == core.utils.get_size([np.int64(2), 3], torch.float16) == 12
    assert core.utils.get_size(5, "half") == 10 and core.utils.get_size((), np.float64) == 8
    assert [core.utils.dtype_nbytes(name) for name in ("half", "float", "size", "uint32_t")] == [2, 4, 8, 4]
    assert core.utils.dtype_nbytes("uint") == 4 and core.utils.dtype_nbytes("ulong") == 8
    with pytest.raises(ValueError, match="'quad'; give one of bf16, bfloat16, char"):
        core.utils.dtype_nbytes("quad")


def unequal_body(rank, _):
    core.init()
    world = core.Teams.TEAM_WORLD
    square = torch.arange(4.0).view(2, 2)
    core.reduce(world, square, square.t(), "sum")  # two views of one memory
    assert square.tolist() == [[0.0, 4.0], [2.0, 6.0]]
    line = torch.arange(6.0)
    core.broadcast(world, line[1:5], line[2:] + 10 if rank else line[2:], root=0)
    assert line.tolist() == [0.0, 2.0, 3.0, 4.0, 5.0, 5.0]
    four = torch.zeros(4)
    for wrong in (torch.ones(1), torch.ones(4, dtype=torch.float64)):  # of all PEs: nothing is converted or repeated
        with pytest.raises(core.NvshmemInvalid, match="give two of one shape and dtype"):
            core.reduce(world, four, wrong, "sum")
    # A wrong destination of one PE alone: the other PE has its result
    if rank == 0:
        with pytest.raises(core.NvshmemInvalid, match="shape .5,., and the source torch.float32 of shape .4,."):
            core.reduce(world, torch.zeros(5), torch.ones(4), "sum")
        with pytest.raises(core.NvshmemInvalid, match="give two of one shape and dtype"):
            core.broadcast(world, torch.zeros(5), torch.ones(4), root=0)
    else:
        core.reduce(world, four, torch.ones(4), "sum")
        assert four.tolist() == [2.0] * 4
        core.broadcast(world, four, torch.empty(0), root=0)
        assert four.tolist() == [1.0] * 4
    core.barrier_all()
    # A wrong source of one PE alone is an error of all PEs
    with pytest.raises(shardwire.MismatchError):
        core.reduce(world, four, torch.ones(3 if rank == 0 else 4), "sum")


def test_a_source_that_does_not_fit_keeps_no_pe_waiting():
    run_ranks(2, unequal_body, None, default_group=True, timeout=20)


def longer_body(rank, _):
    core.init()
    world, line = core.Teams.TEAM_WORLD, torch.arange(8.0) + rank
    square = torch.zeros(2, 2)
    core.reduce(world, square, line, "sum")  # the first four
    assert square.tolist() == [[1.0, 3.0], [5.0, 7.0]]
    core.broadcast(world, square, line, root=1)
    assert square.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    three = np.zeros((3, 1), np.float32)
    core.reducescatter(world, three, line.view(4, 2), "sum")
    assert three.ravel().tolist() == [1.0 + 6 * rank, 3.0 + 6 * rank, 5.0 + 6 * rank]
    room = torch.full((3, 3), -1.0)
    core.fcollect(world, room, square)
    assert room.view(-1).tolist() == [1.0, 2.0, 3.0, 4.0] * 2 + [-1.0]
    core.alltoall(world, room, line[2:6].view(2, 2))
    assert room.view(-1)[:4].tolist() == [2 * rank + 2.0, 2 * rank + 3.0, 2 * rank + 3.0, 2 * rank + 4.0]
    assert room.view(-1)[4:].tolist() == [1.0, 2.0, 3.0, 4.0, -1.0]
    with pytest.raises(core.NvshmemInvalid, match="rank 0: morder is 'A'; give 'C' or 'F'"):
        core.tensor((3,), morder="A")
    for split in (lambda: core.team_split_strided(world, 0, 1, 3), lambda: core.team_split_2d(world, 0),
                  lambda: core.team_translate_pe(world, -1, world), lambda: core.team_n_pes(99)):
        with pytest.raises(core.NvshmemError):
            split()
    assert core.team_translate_pe(world, 5, world) == -1
    kept, block, array = core.tensor((2,)), core.buffer(8), core.array((2,))
    core.finalize()
    core.free_tensor(kept), core.free(block), core.free_array(array)  # nothing is left to free


def test_lengths_that_differ_errors_of_teams_and_frees_after_the_end():
    run_ranks(2, longer_body, None, default_group=True)


def test_collectives_over_buffers_and_teams():
    run_ranks(2, collective_body, None, default_group=True)


def team_numbers_body(rank, _):
    teams = core.Teams
    assert teams["TEAM_WORLD"] == teams.TEAM_WORLD_INDEX == 0 and "TEAM_NODE" in teams  # before init, too
    core.init()
    assert [core.team_n_pes(team) for team in (teams.TEAM_SAME_GPU, "TEAM_GPU_LEADERS", teams.TEAM_MC_SHARED)] == [
        1, 2, 2]
    assert core.team_translate_pe(teams.TEAM_SAME_GPU, 0, teams.TEAM_WORLD) == rank
    both = core.team_split_strided(teams.TEAM_WORLD, 0, 1, 2, core.TeamConfig(), 0, new_team_name="BOTH")
    core.barrier_all()
    assert core.team_destroy(both) is None and "BOTH" not in teams
    core.team_destroy(both)  # a team that has ended, and none at all
    core.team_destroy(teams.TEAM_INVALID)
    with pytest.raises(KeyError):
        core.team_destroy("BOTH")
    for wrong in (teams.TEAM_GPU_LEADERS, "TEAM_WORLD", 1.5, None):
        with pytest.raises(core.NvshmemInvalid, match="is no team that can be destroyed"):
            core.team_destroy(wrong)
    uid, copy = core.get_unique_id(), core.get_unique_id(empty=True)
    assert uid != copy and uid.version == copy.version == 1
    copy._data[:] = uid._data
    assert uid == copy and uid != 3
    core.finalize()
    assert dict(teams.items()) == {name: value for name, value in teams.items() if name.startswith("TEAM")}


def test_the_numbers_of_teams_and_the_ends_of_teams():
    run_ranks(2, team_numbers_body, None, default_group=True)


def test_an_enumeration_that_can_change():
    names = core.MutableEnum.from_enum(enum.Enum("Colour", "RED GREEN"))
    names.add("BLUE", 9)
    assert names.BLUE == names["BLUE"] == 9 and list(names) == ["RED", "GREEN", "BLUE"] and "RED=1" in repr(names)
    with pytest.raises(ValueError):
        names.add("RED", 5)
    names.remove("RED")
    names.remove_by_value(2)
    names.remove_by_value(100)
    assert list(names.items()) == [("BLUE", 9)] and list(names.values()) == [9]
    with pytest.raises(ValueError):
        names.remove("RED")
    with pytest.raises(AttributeError):
        names.RED
    with pytest.raises(KeyError):
        names["RED"]
