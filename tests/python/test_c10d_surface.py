"""c10d beside the collectives: options, groups from groups, timing, hooks, monitored barriers, the profiler, debug
mode.
"""

import copy
import gc
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import TORCH, raises
from fork_ranks import meet
from shardwire.groups.mpi import tcp_store
from shardwire.launch import free_port

SECONDS = timedelta(seconds=1)
WRAPS = TORCH >= (2, 0)  # a ProcessGroup around a Backend
NEWEST = TORCH >= (2, 8)  # the backend's options, errors and allocator in torch's own binding


def backend_of(group=None):
    return shardwire.resolve_backend(group)


def torch_options(backend, timeout):
    """Options of torch's own class, which before 2.0 Python cannot make."""
    if WRAPS:
        return torch._C._distributed_c10d.Backend.Options(backend, timeout)
    return shardwire.Options(timeout) if backend == "shardwire" else object()


def total(group, value):
    """The sum over the group of each rank's value."""
    tensor = torch.tensor([float(value)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


# ---- options


def test_options_are_copied():
    options = shardwire.Options(timeout=timedelta(seconds=7))
    if WRAPS:
        assert isinstance(options, torch._C._distributed_c10d.Backend.Options)
    assert options.backend == "shardwire"
    twin = copy.deepcopy(options)
    twin._timeout = timedelta(seconds=9)
    assert options._timeout == timedelta(seconds=7) and copy.copy(twin)._timeout == timedelta(seconds=9)
    assert shardwire.Options()._timeout == timedelta(minutes=30)


def run_options(rank, size):
    own = shardwire.Options(timeout=timedelta(seconds=33))
    assert backend_of().options._timeout == timedelta(seconds=20)
    pair = dist.new_group([1, 2], pg_options=own)
    theirs = dist.new_group([0, 1, 2], pg_options=torch_options("shardwire", timedelta(seconds=44)))
    other = dist.new_group([0, 1, 2], timeout=timedelta(seconds=55),
                           pg_options=torch_options("nccl", timedelta(seconds=44)))
    assert backend_of(theirs).options._timeout == timedelta(seconds=44)
    assert backend_of(other).options._timeout == timedelta(seconds=55)
    if rank:
        options = backend_of(pair).options
        assert options._timeout == timedelta(seconds=33) and getattr(options, "group_name", "it has none")
        if hasattr(options, "global_ranks_in_group"):
            assert list(options.global_ranks_in_group) == [1, 2]
    assert isinstance(backend_of().options, shardwire.Options)


def test_options_of_a_group(run_ranks):
    run_ranks(3, run_options)


def test_set_timeout(run_ranks):
    def body(rank, size):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=50))
        backend_of(group).set_timeout(timedelta(seconds=0.5))
        assert backend_of(group).options._timeout == timedelta(seconds=0.5)
        if hasattr(dist.group.WORLD, "set_timeout"):
            group.set_timeout(timedelta(seconds=0.6))
            assert backend_of(group).options._timeout == timedelta(seconds=0.6)
        if rank == 0:
            start = time.monotonic()
            raises(shardwire.TimeoutError, lambda: dist.all_reduce(torch.ones(1), group=group), contains="rank 1")
            assert time.monotonic() - start < 10
        dist.barrier()

    run_ranks(2, body)


# ---- groups from groups


def test_split(run_ranks, tmp_path):
    def body(rank, size):
        store = dist.FileStore(str(tmp_path / "split"), -1)
        for round in range(2):  # twice the same ranks, one store
            mine = [0, 2] if rank in (0, 2) else [1, 3]
            part = backend_of().split(store, mine, shardwire.Options(timeout=timedelta(seconds=15)))
            assert ((part.rank(), part.size()) == (mine.index(rank), 2)
                    and part.options._timeout == timedelta(seconds=15))
            assert shardwire.global_ranks(part) == mine
            tensor = torch.tensor([float(rank)])
            part.allreduce([tensor]).wait()
            assert tensor.item() == sum(mine)
        swapped = backend_of().split(store, [3, 0])  # the order given is the order of the new ranks
        assert (swapped is None) == (rank in (1, 2))
        if swapped is not None:
            assert swapped.rank() == (0 if rank == 3 else 1) and shardwire.global_ranks(swapped) == [3, 0]
            again = swapped.split(store, [1])
            assert rank == 3 and again is None or shardwire.global_ranks(again) == [0]
        for wrong in ([], [0, 0], [0, 4], [-1]):
            raises(ValueError, lambda ranks=wrong: backend_of().split(store, ranks), contains="split")
        assert total(None, rank) == 6.0

    run_ranks(4, body)


@pytest.mark.skipif(not NEWEST, reason="this torch splits NCCL's groups only")
def test_split_group_of_torch(run_ranks):
    def body(rank, size):
        world = dist.group.WORLD
        mine = [0, 1] if rank < 2 else [2, 3]
        part = world.split_group(mine, timeout=timedelta(seconds=12), group_name=f"part{rank // 2}")
        assert (part.rank(), part.size()) == (rank % 2, 2) and part.group_name == f"part{rank // 2}"
        assert backend_of(part).options._timeout == timedelta(seconds=12) and shardwire.global_ranks(part) == mine
        tensor = torch.tensor([float(rank)])
        part.allreduce([tensor]).wait()
        assert tensor.item() == sum(mine)
        assert backend_of().supports_splitting
        shardwire._C.shutdown_all()  # as at the end of the program
        raises(shardwire.AbortedError, lambda: part.allreduce([tensor]).wait(), contains="was shut down")
        dist.destroy_process_group()

    run_ranks(4, body)


def test_merge(run_ranks, tmp_path):
    """Two groups unknown to each other become one."""
    def body(rank, size):
        part = shardwire.create_process_group(dist.FileStore(str(tmp_path / f"part{rank // 2}"), 2), rank % 2, 2)
        store = dist.FileStore(str(tmp_path / "whole"), 4)
        whole = backend_of(part).merge(store, rank, 4, shardwire.Options(timeout=timedelta(seconds=9)))
        assert (whole.rank(), whole.size(), whole.options._timeout) == (rank, 4, timedelta(seconds=9))
        tensor = torch.tensor([2.0**rank])
        whole.allreduce([tensor]).wait()
        assert tensor.item() == 15.0
        if hasattr(part, "merge_remote_group"):
            whole = part.merge_remote_group(dist.PrefixStore("again", store), 4, timeout=timedelta(seconds=9),
                                            group_name="merged")
            tensor = torch.tensor([2.0**rank])
            whole.allreduce([tensor]).wait()
            # torch numbers the ranks of the groups in any order; each rank is there once.
            assert tensor.item() == 15.0

    run_ranks(4, body, init=False)


def test_sub_groups_and_again(run_ranks, tmp_path):
    def body(rank, size):
        for life in range(2):
            dist.init_process_group("shardwire", init_method=f"file://{tmp_path}/life{life}", rank=rank,
                                    world_size=size, timeout=20 * SECONDS)
            assert dist.get_backend() == "shardwire" and total(None, rank) == 6.0
            if WRAPS:
                mine, all_groups = dist.new_subgroups(group_size=2)
                assert len(all_groups) == 2 and total(mine, rank) == (1.0 if rank < 2 else 5.0)
                mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
                assert (total(mine, rank) == 3.0
                        and shardwire.global_ranks(mine) == ([0, 3] if rank in (0, 3) else [1, 2]))
                # From 2.14 on torch counts these groups: the names of later groups differ on ranks with another count.
                own = dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True)
                assert total(own, rank) == 2.0 + 2 * (rank % 2)
            assert dist.get_backend(dist.new_group([0, 1, 2, 3])) == "shardwire"
            dist.barrier()
            dist.destroy_process_group()
            assert not dist.is_initialized()

    run_ranks(4, body, init=False)


def test_new_group_keeps_its_timeout(run_ranks):
    """A group without an own timeout has torch's default, not the timeout of init_process_group (docs/limits.md)."""
    def body(rank, size):
        if rank == 0:
            start = time.monotonic()
            raises(shardwire.TimeoutError, lambda: dist.new_group([0, 1], timeout=SECONDS / 2),
                   contains="rank 1 did not arrive")
            assert time.monotonic() - start < 10

    run_ranks(2, body)


@pytest.mark.skipif(not WRAPS, reason="this torch takes no device:backend strings")
def test_backend_strings(run_ranks, tmp_path):
    def body(rank, size):
        for number, text in enumerate(("cpu:shardwire,cuda:nccl", "cpu:shardwire", "shardwire")):
            try:
                dist.init_process_group(text, init_method=f"file://{tmp_path}/{number}", rank=rank, world_size=size,
                                        timeout=20 * SECONDS)
            except (RuntimeError, ValueError) as error:
                # A torch without NCCL refuses before any group is made; with NCCL and without a GPU, NCCL refuses after
                # ours was made.
                assert "nccl" in str(error).lower() and text.endswith("nccl"), error
                continue
            config = dist.distributed_c10d._world.pg_backend_config[dist.group.WORLD]
            assert "cpu:shardwire" in config, config
            assert shardwire._C.is_backend(dist.group.WORLD._get_backend(torch.device("cpu")))
            assert total(None, rank + 1) == 3.0
            if hasattr(dist, "get_backend_config"):
                assert "shardwire" in dist.get_backend_config()
            dist.barrier()
            dist.destroy_process_group()

    run_ranks(2, body, init=False)


# ---- the end of a group


def test_shutdown_and_abort(run_ranks):
    def body(rank, size):
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        assert total(first, 1) == 2.0 and total(second, 1) == 2.0
        dist.barrier()
        backend_of(first).shutdown()
        backend_of(first).shutdown()
        raises(shardwire.AbortedError, lambda: total(first, 1))
        late = dist.irecv(torch.zeros(1), 1 - rank, group=second)
        backend_of(second).abort()
        raises(shardwire.AbortedError, late.wait)
        raises(shardwire.AbortedError, lambda: total(second, 1))
        assert total(None, 1) == 2.0  # other groups are not touched
        # torch 2.6 without NCCL has the function, which then looks for a missing class.
        if hasattr(dist.distributed_c10d, "_abort_process_group") and TORCH >= (2, 7):
            third = dist.new_group([0, 1])
            backend = backend_of(third)
            dist.distributed_c10d._abort_process_group(third)
            raises(shardwire.AbortedError, lambda: backend.allreduce([torch.ones(1)]))

    run_ranks(2, body)


@pytest.mark.skipif(not NEWEST, reason="this torch does not ask a backend for its error")
def test_get_error(run_ranks):
    def body(rank, size):
        kinds = torch._C._distributed_c10d.ErrorType
        group = dist.new_group([0, 1], timeout=SECONDS)
        assert backend_of(group).get_error() == kinds.SUCCESS
        # a wrong call changes nothing
        raises(ValueError, lambda: backend_of(group).allgather([[torch.ones(1)]], [torch.ones(1)]))
        assert backend_of(group).get_error() == kinds.SUCCESS
        if rank == 0:
            raises(shardwire.TimeoutError, lambda: total(group, 1))
            assert backend_of(group).get_error() == kinds.TIMEOUT
        dist.barrier()
        aborted = dist.new_group([0, 1])
        backend_of(aborted).abort()
        raises(shardwire.AbortedError, lambda: total(aborted, 1))
        assert backend_of(aborted).get_error() == kinds.COMM_ERROR

    run_ranks(2, body)


# ---- watching operations


@pytest.mark.skipif(not WRAPS, reason="this torch has no completion hooks")
def test_completion_hook(run_ranks):
    def body(rank, size):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        assert not group._has_hooks()
        seen, threads = [], set()

        def hook(info):
            seen.append((str(info.op_type).rsplit(".", 1)[-1], info.time_finished >= info.time_started,
                         info.active_duration.total_seconds() >= 0))
            threads.add(threading.get_ident())

        group._register_on_completion_hook(hook)
        works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(3)]
        works.append(dist.broadcast(torch.ones(5), 0, group=group, async_op=True))
        for work in works:
            work.wait()
        group._wait_for_pending_works()
        assert sorted(seen) == [("ALLREDUCE", True, True)] * 3 + [("BROADCAST", True, True)], seen
        raises(ValueError, lambda: group._register_on_completion_hook(hook), contains="already")
        assert group._has_hooks()

    run_ranks(2, body)


@pytest.mark.skipif(not WRAPS, reason="this torch has no completion hooks")
def test_completion_hook_may_ask_the_group_at_the_end_of_a_batch(run_ranks):
    def body(rank, size):
        group = dist.distributed_c10d._get_default_group()
        backend, names = shardwire.resolve_backend(group), []
        group._register_on_completion_hook(lambda _: names.append(shardwire._C.group_name(backend)))
        works = [dist.P2POp(dist.isend, torch.ones(2), 1 - rank), dist.P2POp(dist.irecv, torch.zeros(2), 1 - rank)]
        for _ in range(20):
            for work in dist.batch_isend_irecv(works):
                work.wait()
        group._wait_for_pending_works()
        assert len(names) >= 20

    run_ranks(2, body)


@pytest.mark.skipif(not WRAPS, reason="this torch has no completion hooks")
def test_a_destroyed_group_drops_its_completion_hook(run_ranks):
    def body(rank, size):
        group = dist.new_group([0, 1])

        def hook(info):
            pass

        alive = weakref.ref(hook)
        group._register_on_completion_hook(hook)
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
        del group, hook
        gc.collect()
        wait_until(lambda: alive() is None)

    run_ranks(2, body)


@pytest.mark.skipif(not WRAPS, reason="this torch has no completion hooks")
def test_completion_hook_that_raises(run_ranks, capfd):
    def body(rank, size):
        group = dist.new_group([0, 1])
        calls = []

        def hook(info):
            calls.append(threading.get_ident())
            raise RuntimeError("the user's hook failed")

        group._register_on_completion_hook(hook)
        # rank 1 comes later: the hook runs in rank 0's wait, and then on its progress thread
        for waits in (True, False):
            if rank == 1:
                time.sleep(0.1)
            tensor = torch.ones(4)
            work = dist.all_reduce(tensor, group=group, async_op=True)
            if waits:
                work.wait()
            wait_until(work.is_completed)
            assert tensor[0].item() == size
        group._wait_for_pending_works()
        assert len(calls) == 2

    run_ranks(2, body, group_timeout=10)
    assert capfd.readouterr().err.count("the user's hook failed") == 4  # two calls on each rank


@pytest.mark.skipif(not WRAPS, reason="works of this torch have no duration")
def test_timing(run_ranks):
    def body(rank, size):
        group = dist.new_group([0, 1])
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        work.wait()
        raises(ValueError, work._get_duration, contains="timing")
        group._enable_collectives_timing()
        if rank == 1:
            meet("called")
            time.sleep(0.2)
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        if rank == 0:
            meet("called")
        work.wait()
        wait_until(lambda: duration(work) is not None)
        milliseconds = duration(work)
        assert 0 < milliseconds < 10000
        if rank == 0:
            assert milliseconds > 100  # the rank waited for the other rank
        # Rank 0 waits inside its call, in the exchange of the numbers of entries.
        meet("before the call")
        if rank == 1:
            time.sleep(0.3)
        work = dist.all_reduce(torch.ones(3).to_sparse(), group=group, async_op=True)
        work.wait()
        wait_until(lambda: duration(work) is not None)
        if rank == 0:
            assert duration(work) > 100

    run_ranks(2, body)


def duration(work):
    try:
        return work._get_duration()
    except ValueError:
        return None


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


def test_sequence_numbers(run_ranks):
    def body(rank, size):
        backend = backend_of()
        before = backend._get_sequence_number_for_group()
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)  # of two parts
        dist.barrier()
        work.wait()
        assert backend._get_sequence_number_for_group() == before + 2
        if hasattr(work, "_get_sequence_nr"):
            assert work._get_sequence_nr() == before + 1

    run_ranks(2, body)


@pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "WorkResult"), reason="this torch has no result futures")
def test_future_result(run_ranks):
    def body(rank, size):
        results = torch._C._distributed_c10d.WorkResult
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work.get_future_result().wait() == int(results.SUCCESS.value if hasattr(results.SUCCESS, "value")
                                                      else results.SUCCESS)
        group = dist.new_group([0, 1], timeout=SECONDS)
        if rank == 0:
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            assert work.get_future_result().wait() == int(results.TIMEOUT.value if hasattr(results.TIMEOUT, "value")
                                                          else results.TIMEOUT)
        dist.barrier()

    run_ranks(2, body)


def ranges(profile):
    events = profile.events() if isinstance(profile, torch.profiler.profile) else profile.function_events
    return {event.name: event.input_shapes for event in events if event.name.startswith("shardwire:")}


def test_profiler(run_ranks):
    def body(rank, size):
        ones = torch.ones(4, 3)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            dist.all_reduce(ones)
            dist.broadcast(ones, 0)
            dist.all_gather([torch.zeros(4, 3) for _ in range(size)], ones)
            dist.reduce_scatter(torch.zeros(2), [torch.ones(2)] * size)
            dist.all_to_all_single(torch.zeros(4, 3), ones)
            dist.reduce(ones, 0)
            dist.barrier()
            request = dist.isend(ones, 1 - rank)
            dist.recv(torch.zeros(4, 3), 1 - rank)
            request.wait()
        assert ranges(profile) == {
            "shardwire:all_reduce": [[4, 3]], "shardwire:broadcast": [[4, 3]], "shardwire:all_gather": [[4, 3]],
            "shardwire:reduce_scatter": [[2], [2]], "shardwire:all_to_all": [[4, 3]], "shardwire:reduce": [[4, 3]],
            "shardwire:barrier": [], "shardwire:send": [[4, 3]], "shardwire:recv": [[4, 3]],
        }, ranges(profile)
        with torch.autograd.profiler.profile(record_shapes=True) as profile:
            for _ in range(20):
                dist.all_reduce(ones)
        # Each range is closed when wait() returns; any thread may notice the end.
        closed = [event for event in profile.function_events if event.name == "shardwire:all_reduce"]
        assert len(closed) == 20 and all(event.is_async and event.input_shapes == [[4, 3]] for event in closed)

    run_ranks(2, body)


# ---- barriers that name the late ranks


def monitored(group, seconds, wait_all_ranks=False):
    group.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks=wait_all_ranks)


def test_monitored_barrier_passes(run_ranks):
    def body(rank, size):
        group = dist.new_group(list(range(size)))
        for round in range(3):
            if rank == round % size:
                time.sleep(0.05)
            monitored(group, 20, wait_all_ranks=round == 1)
        monitored(dist.new_group(list(range(size))), 20)

    for size in (1, 2, 4):
        run_ranks(size, body)


def test_monitored_barrier_names_the_late(run_ranks):
    def body(rank, size):
        world = dist.distributed_c10d._get_default_group()
        meet("here")  # a rank that comes out of init late would be named too
        if rank in (0, 3):
            start = time.monotonic()
            error = raises(shardwire.TimeoutError, lambda: monitored(world, 2, wait_all_ranks=True),
                           contains="Ranks 1, 2 failed to pass")
            assert isinstance(error, RuntimeError) and time.monotonic() - start < 10
            assert ("Rank 3 successfully reached" in str(error)) == (rank == 3)
            error = raises(shardwire.TimeoutError, lambda: monitored(world, 1), contains="Rank 1 failed to pass")
            assert "Ranks" not in str(error)
            dist.barrier()
        else:
            dist.barrier()  # no monitored barrier: the group is as usable as before
            for _ in range(2):
                raises(shardwire.TimeoutError, lambda: monitored(world, 5),
                       contains=f"Rank {rank} failed to pass monitoredBarrier")
        assert total(None, rank) == 6.0
        monitored(world, 20)  # and the late messages do not count for this one

    run_ranks(4, body)


def test_the_group_outlives_who_missed_a_monitored_barrier(run_ranks):
    """Rank 2 misses the barrier of a group and leaves normally: the wait of the barrier does not matter any more."""
    def body(rank, size):
        group = dist.new_group(list(range(size)))
        meet("here")
        if rank != 2:
            raises(shardwire.TimeoutError, lambda: monitored(group, 1), contains="Rank 2 failed to pass")
        dist.barrier()
        if rank == 2:
            backend_of(group).shutdown()
        dist.barrier()
        if rank != 2:
            if rank == 1:
                time.sleep(0.05)  # rank 0 waits, and looks for ranks that have left
            tensor = torch.full((4,), float(rank))
            for _ in range(3):
                dist.send(tensor, 0, group=group) if rank == 1 else dist.recv(tensor, 1, group=group)
            assert tensor[0].item() == 1.0

    run_ranks(3, body)


def test_monitored_barrier_without_rank_0(run_ranks):
    def body(rank, size):
        world = dist.distributed_c10d._get_default_group()
        if rank == 1:
            raises(shardwire.TimeoutError, lambda: monitored(world, 0.2), contains="rank 0: no answer in 400 ms")
        dist.barrier()
        assert total(None, rank) == 1.0

    run_ranks(2, body)


def test_monitored_barriers_of_plugins_by_torch(run_ranks):
    """Before 2.14 dist.monitored_barrier asks for gloo by name: the method of the group is the way (docs/limits.md)."""
    def body(rank, size):
        if TORCH >= (2, 14):
            dist.monitored_barrier(timeout=20 * SECONDS, wait_all_ranks=True)
        else:
            raises((ValueError, RuntimeError), dist.monitored_barrier, contains="only implemented for GLOO")

    run_ranks(2, body)


# ---- batches


def test_batches(run_ranks):
    def body(rank, size):
        right, left = (rank + 1) % size, (rank - 1) % size
        for count in (4, 100_000):  # small messages are sent at once, long messages wait for the recv
            sent = [torch.full((count,), float(10 * rank + i)) for i in range(3)]
            received = [torch.zeros(count) for _ in range(3)]
            operations = ([dist.P2POp(dist.isend, tensor, right) for tensor in sent]
                          + [dist.P2POp(dist.irecv, tensor, left) for tensor in received])
            works = dist.batch_isend_irecv(operations)
            for work in works:
                work.wait()
            assert ([(t[0].item(), t[-1].item()) for t in received]
                    == [(10.0 * left + i, 10.0 * left + i) for i in range(3)])
        if NEWEST:
            assert backend_of().supports_coalescing and len(works) == 1  # the batch is one work

    run_ranks(3, body)


def test_batch_that_fails(run_ranks):
    def body(rank, size):
        group = dist.new_group([0, 1], timeout=SECONDS)
        if rank == 0:
            operations = [dist.P2POp(dist.irecv, torch.zeros(2), 1, group=group) for _ in range(2)]
            works = dist.batch_isend_irecv(operations)
            raises(shardwire.TimeoutError, lambda: [work.wait() for work in works], contains="rank 1")
        dist.barrier()

    run_ranks(2, body)


@pytest.mark.skipif(not WRAPS, reason="this torch has no coalescing manager with results")
def test_coalescing_manager(run_ranks):
    def body(rank, size):
        tensors = [torch.full((3,), float(rank + i)) for i in range(3)]
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        assert [tensor[0].item() for tensor in tensors] == [1.0, 3.0, 5.0]
        halves = [torch.zeros(4) for _ in range(2)]
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for i, half in enumerate(halves):
                dist.all_gather_into_tensor(half, torch.full((2,), float(10 * i + rank)))
        manager.wait()
        assert [half.tolist() for half in halves] == [[0.0, 0.0, 1.0, 1.0], [10.0, 10.0, 11.0, 11.0]]

    run_ranks(2, body)


@pytest.mark.skipif(not NEWEST, reason="this torch does not coalesce the calls of a backend")
def test_a_batch_that_is_open_when_the_group_ends_fails(run_ranks):
    """Another thread ends the group between the calls of the batch and its end."""
    def body(rank, size):
        group = dist.new_group([0, 1])
        coalescing = dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True)
        with coalescing as manager:
            dist.irecv(torch.zeros(2), 1 - rank, group=group)
            ending = threading.Thread(target=backend_of(group).shutdown)
            ending.start()
            ending.join()
        raises(shardwire.AbortedError, manager.wait)

    run_ranks(2, body)


# ---- point to point


def test_any_source_returns_the_source(run_ranks):
    def body(rank, size):
        group = dist.new_group([1, 2, 3])
        if rank == 1:
            seen = set()
            for _ in range(2):
                tensor = torch.zeros(2)
                source = dist.recv(tensor, group=group)  # the job's rank, not the group's
                assert tensor.tolist() == [float(source)] * 2
                seen.add(source)
            assert seen == {2, 3}
            tensor = torch.zeros(2)
            work = dist.irecv(tensor)
            work.wait()
            assert work._source_rank() == 0 and tensor.tolist() == [5.0, 5.0]
        elif rank == 0:
            dist.send(torch.full((2,), 5.0), 1)
        else:
            dist.send(torch.full((2,), float(rank)), 1, group=group)

    run_ranks(4, body)


# ---- memory


@pytest.mark.skipif(not NEWEST, reason="this torch does not allocate by a backend")
def test_allocation(run_ranks):
    def body(rank, size):
        backend = backend_of()
        assert backend.supports_tensor_alloc(torch.device("cpu"))
        tensor = backend.allocate_tensor(12, dtype=torch.float64, device=torch.device("cpu"))
        assert tensor.shape == (12,) and tensor.dtype == torch.float64 and shardwire.in_shared_heap(tensor)
        tensor.fill_(rank)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0] * 12
        raises(NotImplementedError,
               lambda: backend.allocate_tensor(1, dtype=torch.float32, device=torch.device("meta")), contains="meta")

    run_ranks(2, body)


# ---- debug mode


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_debug_levels(run_ranks, tmp_path, monkeypatch, level):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", level)

    def body(rank, size):
        dist.set_debug_level_from_env()
        dist.init_process_group("shardwire", init_method=f"file://{tmp_path}/store", rank=rank, world_size=size,
                                timeout=20 * SECONDS)
        assert total(None, rank) == 3.0
        gathered = [None] * size
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": r} for r in range(size)]
        group = dist.new_group([0, 2])
        if rank != 1:
            assert total(group, rank) == 2.0
        output = torch.zeros(size)
        (dist.all_gather_into_tensor(output, torch.tensor([float(rank)])) if WRAPS
         else dist._all_gather_base(output, torch.tensor([float(rank)])))
        assert output.tolist() == [0.0, 1.0, 2.0]
        request = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
        received = torch.zeros(1)
        dist.recv(received, (rank - 1) % size)
        request.wait()
        assert received.item() == (rank - 1) % size
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        model(torch.full((1, 2), float(rank))).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.0, 1.0]]
        if level == "DETAIL" and WRAPS:  # torch's wrapper reports a desync before our backend is called
            raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2 + rank)),
                   contains="Detected mismatch between collectives")

    run_ranks(3, body, init=False)


# ---- objects


def test_object_collectives_in_groups(run_ranks):
    def body(rank, size):
        group = dist.new_group([1, 2])
        if rank == 0:
            return
        gathered = [None] * 2
        dist.all_gather_object(gathered, ("rank", rank), group=group)
        assert gathered == [("rank", 1), ("rank", 2)]
        objects = [{"a": torch.arange(3).tolist()}, None, "text"] if rank == 2 else [None] * 3
        dist.broadcast_object_list(objects, src=2, group=group)
        assert objects == [{"a": [0, 1, 2]}, None, "text"]
        if WRAPS:  # before, torch compares the source with the rank in the group
            received = [None]
            dist.scatter_object_list(received, ["one", ("two",)] if rank == 1 else None, src=1, group=group)
            assert received == ["one"] if rank == 1 else received == [("two",)]
        collected = [None] * 2 if rank == 1 else None
        dist.gather_object(rank * 11, collected, dst=1, group=group)
        assert rank == 2 or collected == [11, 22]

    run_ranks(3, body)


def test_what_a_tcp_store_says_of_a_missing_key() -> None:
    """backend/c10d/store_adapter.cc asks a TCPStore in one step: what torch does there is written down nowhere."""
    store = tcp_store("127.0.0.1", free_port(), 1, True, timedelta(seconds=20))
    prefixed = dist.PrefixStore("group", store)
    before = store.num_keys()
    assert prefixed.compare_set("key", "nothing", "nothing") == b"nothing"
    assert store.num_keys() == before
    prefixed.set("key", "value")
    assert prefixed.compare_set("key", "nothing", "nothing") == b"value"
    assert prefixed.get("key") == b"value"
