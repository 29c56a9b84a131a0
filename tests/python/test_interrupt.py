"""Ctrl-C interrupts every call that blocks, and the peers are notified. After a handler that does not raise the wait
goes on.
"""

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
from conftest import TORCH, raises
from ranks import await_file
from silent_stores import silent_store
from tcp_store import NO_LIBUV

SOON = 10  # seconds; the groups' timeouts are 60 and more


def until_main_thread_sleeps(pid):
    """Returns when the main thread slept at each of many looks: the thread is inside the announced call."""
    looks = 0
    while looks < 30:
        with open(f"/proc/{pid}/task/{pid}/stat") as file:
            looks = looks + 1 if file.read().rsplit(")", 1)[1].split()[0] == "S" else 0
        time.sleep(0.005)


class Interrupter:
    """Sends SIGINT to this process once the main thread blocks in the next call."""

    def __init__(self):
        self.sent = None
        self._about_to_call = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self._about_to_call.wait()
        until_main_thread_sleeps(os.getpid())
        self.sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def go(self):
        self._about_to_call.set()


def interrupted(call, *args):
    """call(*args) blocks; Ctrl-C ends the call soon."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupter = Interrupter()
    try:
        interrupter.go()
        call(*args)
    except KeyboardInterrupt:
        assert time.monotonic() - interrupter.sent < SOON, (f"it took {time.monotonic() - interrupter.sent:.1f} s to "
                                                            "end the call")
        return
    raise AssertionError("the call returned without a KeyboardInterrupt")


# Waits: the operation goes on. Rank 0 is interrupted before rank 1 makes the same call, and waits again.

def async_all_reduce(rank):
    tensor = torch.full((4,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    return work.wait, work.wait, lambda: tensor.tolist() == [3.0] * 4


def long_all_reduce(rank):
    tensor = torch.full((300000,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    return lambda: work.wait(timedelta(seconds=70)), work.wait, lambda: bool(tensor.eq(3).all())


def plain_all_reduce(rank):
    tensor = torch.full((4,), float(rank + 1))
    if rank == 1:
        dist.all_reduce(tensor)
        return None, lambda: None, lambda: tensor.tolist() == [3.0] * 4
    return lambda: dist.all_reduce(tensor), dist.barrier, lambda: tensor.tolist() == [3.0] * 4


def plain_barrier(rank):
    if rank == 1:
        dist.barrier()
        return None, lambda: None, lambda: True
    return dist.barrier, lambda: None, lambda: True


def async_recv(rank):
    tensor = torch.zeros(2)
    if rank == 1:
        return None, lambda: dist.send(torch.ones(2), 0), lambda: True
    work = dist.irecv(tensor, 1)
    return work.wait, work.wait, lambda: tensor.tolist() == [1.0, 1.0]


def recv_from_anybody(rank):
    tensor = torch.zeros(2)
    if rank == 1:
        return None, lambda: dist.send(torch.ones(2), 0), lambda: True
    return lambda: dist.recv(tensor), lambda: None, lambda: True


def run_of_an_op(rank):
    op = shardwire.compile_op(None, (2,), torch.float32, [{"offset": [rank], "shape": [1]}],
                              [{"offset": [0], "shape": [2]}])
    got = torch.zeros(2)
    if rank == 1:
        return None, lambda: op([torch.ones(1)], [got]).wait(), lambda: True
    future = op([torch.ones(1)], [got])
    return future.wait, future.synchronize, lambda: got.tolist() == [1.0, 1.0]


def wait_with_a_timeout(rank):
    op = shardwire.compile_op(None, (2,), torch.float32, [{"offset": [rank], "shape": [1]}],
                              [{"offset": [0], "shape": [2]}])
    got = torch.zeros(2)
    if rank == 1:
        return None, lambda: op([torch.ones(1)], [got]).wait(), lambda: True
    future = op([torch.ones(1)], [got])
    return lambda: future.wait(timeout=70), future.wait, lambda: got.tolist() == [1.0, 1.0]


def wait_of_a_dropped_future(rank):
    op = shardwire.compile_op(None, (2,), torch.float32, [{"offset": [rank], "shape": [1]}],
                              [{"offset": [0], "shape": [2]}])
    got = torch.zeros(2)
    if rank == 1:
        return None, lambda: op([torch.ones(1)], [got]).wait(), lambda: True
    return lambda: op([torch.ones(1)], [got]).synchronize(70), lambda: None, lambda: got.tolist() == [1.0, 1.0]


def coalesced(rank):
    tensors = [torch.full((3,), float(rank + 1)) for _ in range(3)]
    # Not dist.all_reduce_coalesced: torch returns a c10 future there, and the wait of a future checks no signals
    # (docs/limits.md).
    work = dist.distributed_c10d._get_default_group().allreduce_coalesced(tensors)
    return work.wait, work.wait, lambda: all(each.tolist() == [3.0] * 3 for each in tensors)


WAITS = [async_all_reduce, long_all_reduce, plain_all_reduce, plain_barrier, async_recv, recv_from_anybody,
         run_of_an_op, wait_with_a_timeout, wait_of_a_dropped_future, coalesced]


@pytest.mark.parametrize("case", WAITS, ids=lambda case: case.__name__)
def test_ctrl_c_ends_a_wait_and_the_operation_goes_on(run_ranks, tmp_path, case):
    path = tmp_path / "interrupted"

    def body(rank, size):
        # Both ranks are there; compile_op in the cases is a meeting too.
        dist.barrier()
        if rank == 1 and case in (async_all_reduce, long_all_reduce, plain_all_reduce, plain_barrier, coalesced):
            await_file(path)
        block, again, is_right = case(rank)
        if rank == 0:
            interrupted(block)
            path.touch()
        else:
            await_file(path)
        again()
        if case is plain_all_reduce and rank == 1:
            dist.barrier()
        dist.barrier()
        assert is_right()

    run_ranks(2, body, group_timeout=60, timeout=90)


# Calls that end half done: the group ends too, and the peers are notified at once.

def meet(rank):
    shardwire.compile_op(None, (2,), torch.float32, [{"offset": [rank], "shape": [1]}], [{"offset": [0], "shape": [2]}])


def sparse_all_reduce(rank):
    dist.all_reduce(torch.eye(3).to_sparse())


def monitored_barrier(rank):
    group = dist.distributed_c10d._get_default_group()
    backend = shardwire.resolve_backend(group)
    (group if TORCH >= (2, 0) else backend).monitored_barrier(timedelta(seconds=70), False)


@pytest.mark.parametrize("case", [meet, sparse_all_reduce, monitored_barrier], ids=lambda case: case.__name__)
def test_a_call_that_ends_half_done_notifies_the_peers(run_ranks, tmp_path, case):
    path = tmp_path / "interrupted"

    def body(rank, size):
        dist.barrier()
        pending = dist.irecv(torch.zeros(1), 0) if rank == 1 else None
        if rank == 0:
            interrupted(case, rank)
            raises(shardwire.AbortedError, dist.barrier)
            path.touch()
        else:
            start = time.monotonic()
            error = raises(shardwire.AbortedError, pending.wait, contains="rank 0")
            assert "interrupted" in str(error)
            assert time.monotonic() - start < 40
            await_file(path)
        dist.destroy_process_group()

    run_ranks(2, body, group_timeout=60, timeout=90)


def test_peers_learn_why_when_the_rank_then_leaves(run_ranks):
    def body(rank, size):
        dist.barrier()
        tensor = torch.ones(1)
        if rank == 0:
            pending = dist.irecv(torch.ones(1), 1)
            interrupted(pending.wait)
            dist.destroy_process_group()  # as at the end of the program; on torch 1.13 with the last reference
        else:
            start = time.monotonic()
            error = raises(shardwire.AbortedError, dist.all_reduce, tensor, contains="rank 0")
            assert "interrupted" in str(error), error
            assert time.monotonic() - start < 40
            dist.destroy_process_group()

    run_ranks(2, body, group_timeout=60, timeout=90)


def test_an_interrupted_program_ends_and_notifies_its_peers(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(f'''
import sys
import torch
import torch.distributed as dist
import shardwire
rank = int(sys.argv[1])
dist.init_process_group("shardwire", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
dist.barrier()
print("ready", flush=True)
if rank == 1:
    sys.stdin.readline()
dist.all_reduce(torch.ones(1))
''')
    # A shell that runs the tests in the background makes the tests and all their children ignore SIGINT.
    ranks = [subprocess.Popen([sys.executable, str(script), str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) for rank in range(2)]
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n"
        until_main_thread_sleeps(ranks[0].pid)
        ranks[0].send_signal(signal.SIGINT)
        _, error = ranks[0].communicate(timeout=60)
        assert "KeyboardInterrupt" in error and ranks[0].returncode in (-signal.SIGINT, 130), error
        _, error = ranks[1].communicate("go\n", timeout=60)
        assert ranks[1].returncode == 1 and "rank 0" in error and "interrupted" in error, error
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_ctrl_c_ends_making_a_group_and_notifies_the_others(run_ranks, tmp_path, store):
    def body(rank, size):
        def make():
            if store == "file":
                meeting = dist.FileStore(str(tmp_path / "meeting"), 3)
            else:
                if rank == 0:
                    meeting = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, **NO_LIBUV)
                    (tmp_path / "port.tmp").write_text(str(meeting.port))
                    (tmp_path / "port.tmp").rename(tmp_path / "port")
                else:
                    await_file(tmp_path / "port")
                    meeting = dist.TCPStore("127.0.0.1", int((tmp_path / "port").read_text()), None, False,
                                            wait_for_workers=False, **NO_LIBUV)
            stores.append(meeting)
            shardwire.create_process_group(meeting, rank, 3, 60)

        stores = []
        if rank == 0:
            interrupted(make)
            await_file(tmp_path / "notified")  # the store is rank 0's
        else:
            start = time.monotonic()
            error = raises(shardwire.AbortedError, make, contains="rank 0 gave up")
            assert "interrupted" in str(error)
            assert time.monotonic() - start < 40
            (tmp_path / "notified").touch()

    run_ranks(2, body, init=False, timeout=90)


def test_ctrl_c_while_the_store_does_not_answer(run_ranks):
    def body(rank, size):
        with silent_store("tcp") as store:
            interrupted(shardwire.create_process_group, store, 0, 2, 60)

    run_ranks(1, body, init=False, timeout=50)


def test_ctrl_c_ends_new_group(run_ranks, tmp_path):
    def body(rank, size):
        dist.barrier()
        if rank == 0:
            interrupted(dist.new_group, [0, 1])
            (tmp_path / "interrupted").touch()
        else:
            await_file(tmp_path / "interrupted")
        dist.barrier()  # the default group is unchanged

    run_ranks(2, body, group_timeout=60, timeout=90)


@pytest.mark.parametrize("what", ["wait", "group"])
def test_a_handler_that_does_not_raise_lets_the_wait_go_on(run_ranks, tmp_path, what):
    path = tmp_path / "handled"

    def body(rank, size):
        dist.barrier()
        if rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: path.touch())  # rank 1 comes only after the handler has run
            main = threading.main_thread().ident
            threading.Thread(target=lambda: (until_main_thread_sleeps(os.getpid()),
                                             signal.pthread_kill(main, signal.SIGUSR1)), daemon=True).start()
        else:
            await_file(path)
        if what == "group":
            dist.new_group([0, 1])
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2

    run_ranks(2, body, group_timeout=60, timeout=90)


def test_any_exception_of_a_handler_comes_out(run_ranks):
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop("enough")

    def stopped_soon():
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        dist.recv(torch.ones(1), 1)

    def body(rank, size):
        dist.barrier()
        if rank == 0:
            signal.signal(signal.SIGALRM, stop)
            raises(Stop, stopped_soon, contains="enough")
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0)

    run_ranks(2, body, group_timeout=60, timeout=90)


def test_a_wait_of_another_thread_is_not_interrupted(run_ranks, tmp_path):
    path = tmp_path / "interrupted"

    def body(rank, size):
        dist.barrier()
        if rank == 0:
            tensor = torch.zeros(1)
            outcome = []
            received = threading.Event()
            work = dist.irecv(tensor, 1)
            thread = threading.Thread(target=lambda: (outcome.append(work.wait()), received.set()))
            thread.start()
            interrupted(thread.join)
            path.touch()
            assert received.wait(60)  # not join(): after an interrupted join Python takes the thread for ended
            assert outcome and tensor.item() == 1
        else:
            await_file(path)
            dist.send(torch.ones(1), 0)

    run_ranks(2, body, group_timeout=60, timeout=90)
