"""Life of the backend: registration, errors as Python classes, timeouts, abort, shutdown, interpreter exit, the shared
heap."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire
import shardwire_autoload
from conftest import TORCH, raises
from fork_ranks import meet
from ranks import await_file
from silent_stores import silent_store


def run_script(text, timeout=60, **environment):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **environment})


def test_import_registers_once():
    assert hasattr(dist.Backend, "SHARDWIRE")
    shardwire.register()
    shardwire_autoload.register()
    assert dist.Backend("shardwire").lower() == "shardwire"


def test_autoload_registers_without_importing_the_package():
    done = run_script("import sys, torch.distributed as d, shardwire_autoload as a; a.register(); a.register();"
                      "print(hasattr(d.Backend, 'SHARDWIRE'), 'shardwire' in sys.modules)")
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_autoload_group_without_importing_the_package(tmp_path):
    done = run_script("import shardwire_autoload, torch, torch.distributed as d; shardwire_autoload.register();"
                      f"d.init_process_group('shardwire', init_method='file://{tmp_path}/s', rank=0, world_size=1);"
                      "t = torch.ones(2); d.all_reduce(t); print(t.tolist())")
    assert done.returncode == 0 and "[1.0, 1.0]" in done.stdout, done.stderr


def test_wrong_torch_is_an_import_error(tmp_path):
    package = tmp_path / "shardwire"
    package.mkdir()
    for name in os.listdir(os.path.dirname(shardwire.__file__)):
        if name.endswith(".py"):
            (package / name).symlink_to(os.path.join(os.path.dirname(shardwire.__file__), name))
    (package / "_build_info.py").unlink()
    (package / "_build_info.py").write_text('VERSION = "0"\nTORCH = "9.9"\nPYTHON = "3.1"\n')
    done = subprocess.run([sys.executable, "-c", "import shardwire"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "ImportError: this build of shardwire is for torch 9.9" in done.stderr


def test_error_classes():
    assert issubclass(shardwire.TimeoutError, TimeoutError) and issubclass(shardwire.TimeoutError, RuntimeError)
    assert (issubclass(shardwire.UnsupportedError, NotImplementedError)
            and issubclass(shardwire.UnsupportedError, shardwire.ShardwireError))
    assert shardwire._C.torch_version == ".".join(torch.__version__.split(".")[:2])


def test_missing_rank_times_out_by_name(run_ranks, tmp_path):
    def body(rank, size):
        start = time.monotonic()
        error = raises(shardwire.TimeoutError, lambda: dist.init_process_group(
            "shardwire", store=dist.FileStore(str(tmp_path / "alone"), 1), rank=0, world_size=2,
            timeout=timedelta(seconds=1)), contains="1")
        assert time.monotonic() - start < 10  # the call's own 1 s, not the group's 20
        return str(error)

    if TORCH >= (2, 0):  # a store barrier of 1.13 needs all ranks first
        run_ranks(1, body, init=False)


@pytest.mark.parametrize("kind", ["python", "tcp"])
def test_a_store_that_does_not_answer(kind):
    errors = []

    def make():
        start = time.monotonic()
        with silent_store(kind) as store:
            for _ in range(2):  # the thread that waits for the first answer blocks no later call
                errors.append(raises(shardwire.TimeoutError, lambda: shardwire.create_process_group(store, 0, 2, 0.7),
                                     contains="the c10d store did not answer"))
        errors.append(time.monotonic() - start)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(30)
    assert len(errors) == 3, f"it did not end in time: {errors}"
    assert 1.4 <= errors[2] < 15, errors


def stay_away_until(path):
    """For a rank that must be missing: waits until the other ranks have reported this, then exits."""
    await_file(path)
    os._exit(0)


def give_one_second():
    """To be called on all ranks: a group made with this timeout might not be made in time."""
    meet("made")
    backend_of_default().set_timeout(timedelta(seconds=1))


def late(rank, size, missed):
    """Rank 1 stays away; the group's timeout holds and the error names the missing rank."""
    give_one_second()
    if rank == 1:
        stay_away_until(missed)
    start = time.monotonic()
    error = raises(shardwire.TimeoutError, lambda: dist.all_reduce(torch.ones(3)), contains="rank 1")
    taken = time.monotonic() - start
    missed.touch()
    assert 0.9 <= taken < 10, taken  # the group's 1 s
    assert isinstance(error, TimeoutError) and isinstance(error, RuntimeError)
    dist.destroy_process_group()


def test_timeout_names_the_late_rank(run_ranks, tmp_path):
    run_ranks(2, lambda rank, size: late(rank, size, tmp_path / "missed"), may_die=(1,))


def die(rank, size):
    def until_it_fails():
        dist.barrier()  # this barrier may fail already: other ranks may still be inside
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            dist.all_reduce(torch.ones(3))

    start = time.monotonic()
    raises(shardwire.PeerFailedError, until_it_fails, contains=f"rank {size - 1}")
    assert time.monotonic() - start < 30  # half of the group's timeout
    raises(shardwire.PeerFailedError, dist.barrier)  # and every later operation
    dist.destroy_process_group()
    return "survived"


def test_killed_peer_is_named(run_ranks):
    assert run_ranks(3, die, group_timeout=60, timeout=120, may_die=(2,)) == ["survived", "survived", None]


def recv_from_any_of_the_dead(rank, size):
    if rank != 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    raises(shardwire.PeerFailedError, dist.recv, torch.zeros(1), contains="rank 0")
    raises(shardwire.PeerFailedError, dist.recv, torch.zeros(1), contains="rank 2")
    assert time.monotonic() - begin < 30
    dist.destroy_process_group()
    return "survived"


def test_recv_from_any_rank_ends_once_all_other_ranks_are_dead(run_ranks):
    assert run_ranks(3, recv_from_any_of_the_dead, group_timeout=60, may_die=(0, 2)) == [None, "survived", None]


def mismatched(rank, size):
    error = raises(shardwire.ShardwireError, lambda: dist.all_reduce(torch.ones(3 + rank)))
    assert isinstance(error, shardwire.MismatchError), repr(error)
    dist.destroy_process_group()
    return str(error)


def test_different_shapes_are_a_mismatch_on_all_ranks(run_ranks):
    run_ranks(2, mismatched)


def backend_of_default():
    return shardwire.resolve_backend(None)


def aborted(rank, size, seen):
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        backend_of_default().abort()
        backend_of_default().abort()
        raises(shardwire.AbortedError, work.wait)
        raises(shardwire.AbortedError, dist.barrier)
        seen.touch()
    else:
        await_file(seen)
    dist.destroy_process_group()


def test_abort_unblocks_and_is_idempotent(run_ranks, tmp_path):
    run_ranks(2, aborted, tmp_path / "seen")


def future_error(rank, size, missed):
    give_one_second()
    if rank == 1:
        stay_away_until(missed)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    future = work.get_future()
    raises(RuntimeError, future.wait, contains="rank 1")
    raises(shardwire.TimeoutError, work.wait, contains="rank 1")
    missed.touch()
    assert not work.is_success()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_future_carries_the_error(run_ranks, tmp_path):
    run_ranks(2, lambda rank, size: future_error(rank, size, tmp_path / "missed"), may_die=(1,))


def again(rank, size):
    for _ in range(3):
        backend = backend_of_default()
        group = shardwire.create_process_group(dist.HashStore(), 0, 1)
        dist.destroy_process_group(group)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == size
        assert shardwire._C.rank(backend) == rank and shardwire._C.size(backend) == size
    assert "rank" in shardwire.describe_transports()
    assert "all_reduce" in shardwire.describe_collectives() or size == 1


def test_groups_come_and_go(run_ranks):
    run_ranks(2, again)


@pytest.mark.any_torch
@pytest.mark.parametrize("isa, why", [("baseline", "by SHARDWIRE_ISA"), ("", "the widest of this CPU")])
def test_the_kernels_are_described(isa, why):
    script = ("import shardwire, torch.distributed as dist\n"
              "dist.init_process_group('shardwire', store=dist.HashStore(), rank=0, world_size=1)\n"
              "print(shardwire.describe_transports().splitlines()[-1])")
    line = subprocess.run([sys.executable, "-c", script], env={**os.environ, "SHARDWIRE_ISA": isa}, text=True,
                          check=True, stdout=subprocess.PIPE).stdout
    assert line.startswith(f"kernels: {isa}") and f"({why}); large moves: " in line, line
    assert "(measured on this host, GB/s: ordinary " in line, line


def of_one_name(rank, size):
    for _ in range(20):
        if rank < 2:
            group = dist.new_group([0, 1], use_local_synchronization=True)
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2
            dist.destroy_process_group(group)
            del group  # before torch 2.8 a group ends with the last reference


@pytest.mark.skipif(TORCH < (2, 6), reason="this torch names no group by its ranks")
def test_groups_of_one_name_come_and_go(run_ranks):
    """torch names such a group by the ranks, so each group has the store keys of the group before."""
    run_ranks(3, of_one_name)


EXIT_SCRIPT = """
import os, sys, torch, torch.distributed as dist, shardwire
dist.init_process_group("shardwire", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
keep = []
for _ in range(20):
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    keep.append(work.get_future().then(lambda f: f.value()[0].sum()))
work.wait()
if sys.argv[2] == "0":
    keep.append(dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda f: print("late")))  # nobody answers this one
print("end")
"""


def test_exit_without_destroy_is_clean(tmp_path):
    """Futures with Python callbacks pending, no destroy_process_group: the process must end with code 0, without help.
    """
    ranks = [subprocess.Popen([sys.executable, "-c", EXIT_SCRIPT, str(tmp_path / "store"), str(rank)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        out, err = rank.communicate(timeout=60)
        assert rank.returncode == 0 and "end" in out, (rank.returncode, err)


def test_heap_tensors(run_ranks):
    def body(rank, size):
        tensor = shardwire.empty(4, 3)
        assert tensor.shape == (4, 3) and tensor.dtype == torch.float32 and shardwire.in_shared_heap(tensor)
        assert shardwire.empty((2,), dtype=torch.int16).dtype == torch.int16
        assert not shardwire.in_shared_heap(torch.ones(3))
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [[3.0] * 3] * 4
        used = shardwire._C.heap_used_bytes()
        tensor.resize_(1 << 20)
        assert shardwire.in_shared_heap(tensor) and tensor[:12].tolist() == [3.0] * 12
        assert shardwire._C.heap_used_bytes() >= used + (4 << 20) - 4096
        del tensor
        assert shardwire._C.heap_used_bytes() <= used
        raises(TypeError, lambda: shardwire.empty(3, dtype=int))

    run_ranks(2, body)


def test_cpu_allocator(run_ranks):
    def body(rank, size):
        before = torch.ones(100)
        assert not shardwire.cpu_allocator_enabled()
        shardwire.enable_cpu_allocator()
        assert shardwire.cpu_allocator_enabled()
        after = torch.full((100,), float(rank))
        assert shardwire.in_shared_heap(after) and not shardwire.in_shared_heap(before)
        assert shardwire.in_shared_heap(torch.nn.Linear(3, 4).weight)
        dist.all_reduce(after)
        before += after
        assert before.tolist() == [2.0] * 100
        torch.randn(200, 200).matmul(torch.randn(200, 200)).svd()  # LAPACK work space and the like

    run_ranks(2, body)


def test_tensors_live_until_the_end(run_ranks):
    def body(rank, size):
        works = [dist.all_reduce(torch.full((1 << 16,), float(rank)), async_op=True) for _ in range(8)]
        sends = dist.isend(torch.full((1 << 16,), 7.0), 1 - rank)
        received = torch.zeros(1 << 16)
        dist.recv(received, 1 - rank)
        for work in works:
            assert work.get_future().wait()[0].sum() == 1 << 16
        sends.wait()
        assert received.sum() == 7 << 16

    run_ranks(2, body)


def test_wait_can_be_interrupted(run_ranks, tmp_path):
    interrupted = tmp_path / "interrupted"

    def body(rank, size):
        op = shardwire.compile_op(None, (2,), torch.float32, [{"offset": [rank], "shape": [1]}],
                                  [{"offset": [0], "shape": [2]}])
        if rank == 1:
            await_file(interrupted)
            op([torch.ones(1)], [torch.zeros(2)]).wait()
            return
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        future = op([torch.ones(1)], [torch.zeros(2)])
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        raises(KeyboardInterrupt, future.wait)
        raises(TimeoutError, lambda: future.wait(0.05))
        assert not future.done() and future.exception() is None
        interrupted.touch()
        future.wait()

    run_ranks(2, body)
