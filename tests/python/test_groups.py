"""Groups beside and without the default group, names, and the backend of any kind of group."""

import gc
import os
import resource
import signal
import tempfile
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire
from shardwire.groups.lookup import create_over_fresh_store, store_of
from conftest import TORCH, raises
from fork_ranks import meet
from shardwire import symm


def transpose(group, rank, size):
    """A compiled op over `group`, checked."""
    op = shardwire.compile_op(group, (size, size), torch.float32, [{"offset": [rank, 0], "shape": [1, size]}],
                              [{"offset": [0, rank], "shape": [size, 1]}])
    whole = torch.arange(float(size * size)).reshape(size, size)
    output = torch.zeros(size, 1)
    op([whole[rank:rank + 1]], [output]).wait()
    assert torch.equal(output, whole[:, rank:rank + 1])


def unprivileged(rank, size, folder):
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    os.seteuid(65534)  # without the right to exceed the limit
    try:
        group = shardwire.create_process_group(dist.FileStore(f"{folder}/store", size), rank, size, timeout=30)
        tensor = torch.empty(size)
        group.alltoall_base(tensor, torch.arange(float(size)) + rank, [], []).wait()
        assert tensor.tolist() == [float(rank + r) for r in range(size)]
    finally:
        os.seteuid(0)
    meet("all")


@pytest.mark.any_torch
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_kernels_limit_of_descriptors_under_way_delays_links(run_ranks):
    """All ranks dial all others at once, and each answer has three descriptors: more than a user's processes may have
    under way together."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        run_ranks(28, unprivileged, folder, init=False, timeout=60)


def test_group_without_a_default_group(run_ranks, tmp_path):
    def body(rank, size):
        group = shardwire.create_process_group(dist.FileStore(str(tmp_path / "s"), size), rank, size, timeout=20,
                                               name="mine")
        assert not dist.is_initialized() and group.rank() == rank and group.size() == size
        transpose(group, rank, size)
        transpose("mine", rank, size)
        tensor = torch.full((2,), float(rank))
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [3.0, 3.0]
        dist.destroy_process_group(group)
        if TORCH >= (2, 8):  # before 2.8 torch only drops its references, and the group ends with the last reference
            raises(shardwire.AbortedError, lambda: transpose(group, rank, size))

    run_ranks(3, body, init=False)


def test_group_beside_the_default_group(run_ranks, tmp_path):
    def body(rank, size):
        group = shardwire.create_process_group(dist.FileStore(str(tmp_path / "s"), size), rank, size,
                                               timedelta(seconds=20))
        tensor = torch.full((2,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [1.0, 1.0]
        tensor.fill_(rank)
        dist.broadcast(tensor, src=1, group=group)
        assert tensor.tolist() == [1.0, 1.0]
        dist.barrier(group=group)
        transpose(group, rank, size)
        transpose(None, rank, size)
        assert shardwire.global_ranks(group) == [0, 1]
        dist.destroy_process_group(group)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0]

    run_ranks(2, body)


def test_one_store_serves_several_groups(run_ranks, tmp_path):
    def body(rank, size):
        store = dist.FileStore(str(tmp_path / "s"), size)
        groups = [shardwire.create_process_group(store, rank, size, 20) for _ in range(3)]
        for number, group in enumerate(groups):
            tensor = torch.full((1,), float(number))
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == number * size

    run_ranks(2, body, init=False)


def test_what_one_rank_makes_alone_takes_no_number_of_the_groups_of_all(run_ranks, tmp_path):
    def body(rank, size):
        if rank == 0:
            create_over_fresh_store(dist.HashStore(), 0, 1, 5, None, standalone=True)
            raises(ValueError, lambda: shardwire.create_process_group(dist.HashStore(), 0, 1, timeout=-1))
        transpose(shardwire.create_process_group(dist.FileStore(str(tmp_path / "s"), size), rank, size, 20), rank, size)

    run_ranks(2, body, init=False)


def test_each_group_has_keys_of_its_own(run_ranks, tmp_path):
    def body(rank, size):
        groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group([0, 1]),
                  shardwire.create_process_group(dist.FileStore(str(tmp_path / "s"), size), rank, size, 20)]
        for number, group in enumerate(groups):
            if rank == 0:
                store_of(group).set("whose", str(number))
        dist.barrier()
        assert [store_of(group).get("whose") for group in groups] == [b"0", b"1", b"2", b"3"]

    run_ranks(2, body)


def test_sub_groups(run_ranks):
    def body(rank, size):
        group = dist.new_group([1, 3])
        pair = dist.new_group([0, 2]) if rank >= 0 else None
        mine = group if rank in (1, 3) else pair
        assert shardwire.global_ranks(mine) == ([1, 3] if rank in (1, 3) else [0, 2])
        transpose(mine, rank // 2, 2)
        tensor = torch.full((1,), float(rank))
        dist.all_reduce(tensor, group=mine)
        assert tensor.item() == (4 if rank in (1, 3) else 2)
        other = pair if rank in (1, 3) else group
        raises(ValueError if TORCH >= (2, 0) else (ValueError, TypeError), lambda: shardwire.resolve_backend(other))

    run_ranks(4, body)


def test_a_group_with_a_dead_member_names_the_rank_at_once(run_ranks, links):
    def body(rank, size):
        dist.barrier()
        meet("all are joined")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()  # torch's timeout of new_group is half an hour
        raises(shardwire.PeerFailedError, dist.new_group, contains="rank 1 cannot arrive: rank 1 (pid ")
        if rank == 2:
            raises(shardwire.PeerFailedError, dist.new_group, [1, 2], contains="rank 0 cannot arrive: rank 1 (pid ")
        assert time.monotonic() - begin < 20
        meet("both saw it", 2)
        dist.destroy_process_group()

    run_ranks(3, body, may_die={1})


def test_names(run_ranks):
    def body(rank, size):
        shardwire.name_process_group(None, "everyone")
        world = dist.distributed_c10d._get_default_group()
        assert shardwire.find_process_group("everyone") is world
        assert shardwire.find_process_group("WORLD") is world
        group = dist.new_group([0, 1])
        shardwire.name_process_group(group, "pair")
        assert shardwire.find_process_group("pair") is group
        shardwire.name_process_group(world, "pair")  # moves
        assert shardwire.find_process_group("pair") is world
        assert shardwire.find_process_group("nobody") is None
        error = raises(ValueError, lambda: shardwire.resolve_backend("nobody"), contains="'nobody'")
        assert "'pair'" in str(error) and "'everyone'" in str(error)
        raises(TypeError, lambda: shardwire.find_process_group(3))
        raises(ValueError, lambda: shardwire.name_process_group(group, ""))
        if TORCH >= (2, 4):
            described = dist.new_group([0, 1], group_desc="described")
            assert shardwire.find_process_group("described") is described
            assert shardwire.find_process_group("default_pg") is world

    run_ranks(2, body)


def test_every_call_takes_the_default_group_when_none_is_given(run_ranks):
    def body(rank, size):
        assert shardwire.global_ranks() == [0, 1] and shardwire._C.is_backend(shardwire.resolve_backend())
        box = [{"offset": [rank], "shape": [1]}]
        out = torch.zeros(1)
        shardwire.compile_op(shape=(2,), dtype=torch.float32, inputs=box, outputs=box)([torch.ones(1)], [out]).wait()
        q = shardwire.Queue(location=0)
        q.put(rank)
        dist.barrier()
        assert out.item() == 1 and (rank == 1 or {q.get(), q.get()} == {0, 1})
        dist.barrier()
        shardwire.end_process_group()

    run_ranks(2, body)


def test_resolve_refuses_what_is_no_group(run_ranks):
    def body(rank, size):
        raises(TypeError, lambda: shardwire.resolve_backend(3), contains="int")
        raises(ValueError, lambda: shardwire.resolve_backend("none such"), contains="none such")
        gloo = dist.new_group([0, 1], backend="gloo")
        raises(ValueError, lambda: shardwire.resolve_backend(gloo), contains="is gloo, not shardwire")
        ended = dist.new_group([0, 1], backend="gloo")
        dist.barrier()  # gloo's new_group of a rank fails when its peer has destroyed the group already
        dist.destroy_process_group(ended)
        raises(ValueError, lambda: shardwire.resolve_backend(ended), contains="not shardwire")
        name = (dist.distributed_c10d._get_group_name(gloo) if hasattr(dist.distributed_c10d, "_get_group_name")
                else "gloo")
        assert shardwire.find_process_group(name) is None
        raises(ValueError, lambda: shardwire.resolve_backend(name), contains="no shardwire")
        backend = shardwire.resolve_backend(None)
        assert shardwire._C.is_backend(shardwire.resolve_backend(backend))

    run_ranks(2, body)


def test_no_default_group():
    with pytest.raises(ValueError, match="init_process_group"):
        shardwire.resolve_backend(None)


def test_bad_arguments():
    store = dist.HashStore()
    for rank, size, kind in ((0, 0, ValueError), (2, 2, ValueError), (-1, 2, ValueError), ("0", 1, TypeError),
                             (True, 1, TypeError)):
        with pytest.raises(kind):
            shardwire.create_process_group(store, rank, size)
    with pytest.raises(ValueError):
        shardwire.create_process_group(store, 0, 1, timeout=-1)
    with pytest.raises(TypeError):
        shardwire.create_process_group(store, 0, 1, timeout="soon")
    with pytest.raises(TypeError):
        shardwire.create_process_group(store, 0, 1, name=7)


def test_a_timeout_of_0_is_now_and_none_is_rounded_to_it():
    """Once 0 was an error, and less than a millisecond meant 30 minutes."""
    for timeout in (0, 1e-5, timedelta(microseconds=3)):
        with pytest.raises(shardwire.TimeoutError):
            shardwire.create_process_group(dist.HashStore(), 0, 2, timeout=timeout)


@pytest.mark.skipif(TORCH < (2, 0), reason="this torch takes no device:backend strings")
def test_mixed_device_string(run_ranks, tmp_path):
    def body(rank, size):
        dist.init_process_group("cpu:shardwire", init_method=f"file://{tmp_path}/mixed", rank=rank, world_size=size)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0]
        transpose(None, rank, size)
        dist.destroy_process_group()

    run_ranks(2, body, init=False)


@pytest.mark.skipif(TORCH < (2, 0), reason="this torch does not wrap plug-ins in its debug mode")
def test_debug_wrapper_is_seen_through(run_ranks, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")

    def body(rank, size):
        dist.set_debug_level_from_env()
        dist.init_process_group("shardwire", init_method=f"file://{store}", rank=rank, world_size=size)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0]
        transpose(None, rank, size)
        dist.destroy_process_group()

    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        store = folder + "/store"
        run_ranks(2, body, init=False)


def test_ended_groups_leave_nothing_behind(run_ranks):
    def body(rank, size):
        def threads_and_descriptors():
            gc.collect()
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        def make_and_end():
            group = dist.new_group([0, 1])
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2
            op = shardwire.compile_op(group, (2,), torch.float32, [{"offset": [rank], "shape": [1]}],
                                      [{"offset": [0], "shape": [2]}])
            op([tensor], [torch.zeros(2)]).wait()
            dist.destroy_process_group(group)

        dist.barrier()  # connects the default group, where links are late
        make_and_end()
        before = threads_and_descriptors()
        for _ in range(100):
            make_and_end()
        after = threads_and_descriptors()
        assert after == before, f"threads and descriptors: {before} before, {after} after 100 groups"

    run_ranks(2, body, timeout=120)


def test_peers_learn_of_a_groups_end_at_once(run_ranks):
    def body(rank, size):
        group = dist.new_group([0, 1])
        if rank == 0:
            dist.destroy_process_group(group)
            del group
        else:
            start = time.monotonic()
            raises(shardwire.PeerFailedError, lambda: dist.recv(torch.ones(1), 0, group=group), contains="rank 0")
            assert time.monotonic() - start < 40, "the end was noticed by the timeout"
        dist.barrier()

    run_ranks(2, body, group_timeout=60, timeout=90)


def test_a_group_that_is_dropped_while_callbacks_run_ends(run_ranks):
    """The end of the group joins the threads of the callbacks, which need the GIL."""
    def body(rank, size):
        for _ in range(5):
            group = dist.new_group([0, 1])
            begun, ended = threading.Event(), threading.Event()

            def callback(future):
                begun.set()
                for _ in range(20):
                    time.sleep(0.005)  # releases the GIL, and takes the GIL again
                ended.set()
                return future.value()

            tensor = torch.ones(1)
            work = dist.all_reduce(tensor, group=group, async_op=True)
            future = work.get_future().then(callback)
            begun.wait()
            dist.destroy_process_group(group)
            del group, work
            assert ended.wait(20)
            future.wait()

    run_ranks(2, body)


CALLS_THAT_WAIT = {
    "barrier": lambda group, backend: symm.barrier(group),
    "exchange": lambda group, backend: shardwire._C.exchange(backend, "x"),
    "empty": lambda group, backend: symm.empty(4, group=group),
}


@pytest.mark.parametrize("call", CALLS_THAT_WAIT)
def test_a_group_that_a_waiting_call_outlives_ends(run_ranks, tmp_path, call):
    """The call has the last reference to the group when the call gives up, and a callback that needs the GIL runs on
    the group's thread.
    """
    def body(rank, size):
        store = dist.FileStore(str(tmp_path / "store"), size)
        group = shardwire.create_process_group(store, rank, size, timeout=60, name="ended")
        backend = shardwire.resolve_backend(group)
        if rank == 1:
            store.wait(["callback is there"])
            dist.all_reduce(torch.ones(4), group=group)
            dist.barrier()
            return
        begun, end, errors = threading.Event(), threading.Event(), []

        def callback(future):
            begun.set()
            end.wait()  # waits without the GIL, and returns with the GIL

        def waits():
            try:
                CALLS_THAT_WAIT[call](group, backend)
            except shardwire.AbortedError as error:
                errors.append(error)

        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        work.get_future().then(callback)
        store.set("callback is there", "1")
        begun.wait()
        thread = threading.Thread(target=waits, daemon=True)
        thread.start()
        time.sleep(0.2)  # the thread is in the call by then; a later call would only find the group ended
        threading.Timer(0.3, end.set).start()
        backend.shutdown()  # waits for the callback, and the call gives up: a deadlock would happen here
        thread.join(30)
        assert not thread.is_alive() and len(errors) == 1
        dist.barrier()

    run_ranks(2, body)
