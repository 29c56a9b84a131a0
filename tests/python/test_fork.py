"""Children of fork() in a rank: tensors of the shared heap, DataLoader workers, the parent's groups, and the peers'
view.
"""

import gc
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import shardwire
from conftest import raises
from fork_ranks import ForkedRanks, meet
from ranks import await_file, outcome
from run_program import run_program


def in_child(work, *args, timeout=30):
    """Runs work(*args) in a forked child; the text of the exception when the work raised. Fails when the child dies or
    hangs.
    """
    with ForkedRanks(1, lambda rank: rank.answer(outcome, work, *args)) as child:
        found = child.answers(timeout, to_the_end=True)[0]
    return ": ".join(found) if found else ""


def check_in_child(work, *args):
    text = in_child(work, *args)
    assert text == "", text


class Rows(Dataset):
    """Rows of a tensor in the shared heap. Each worker writes into rows before the worker returns the rows."""

    def __init__(self):
        self.whole = torch.arange(4000.0).reshape(40, 100)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        row = self.whole[index]
        row.mul_(2)
        return row, torch.full((3, 50), float(index))


def test_children_free_and_change_tensors_of_the_parents_heap(run_ranks):
    def body(rank, size):
        shardwire.enable_cpu_allocator()
        used = shardwire._C.heap_used_bytes()
        small, large = [torch.full((count,), 7.0) for count in (10, 1 << 20)]
        assert shardwire.in_shared_heap(small) and shardwire.in_shared_heap(large)

        def change_and_free():
            nonlocal small, large
            assert small.sum() == 70 and large[5] == 7
            small.fill_(1)
            large.fill_(1)
            more = small + small  # the child's own
            assert more.sum() == 20 and not shardwire.in_shared_heap(more)
            del small, large, more
            gc.collect()
            kept = [torch.ones(1 << 16) for _ in range(50)]
            assert sum(float(each.sum()) for each in kept) == 50 << 16

        for _ in range(3):
            check_in_child(change_and_free)
        assert small.eq(7).all() and large.eq(7).all(), "a child changed its parent's tensors"
        assert shardwire._C.heap_used_bytes() > used
        del small, large
        assert shardwire._C.heap_used_bytes() == used
        tensor = torch.full((1000,), float(rank))
        dist.all_reduce(tensor)
        assert tensor.eq(1).all()

    run_ranks(2, body)


def test_a_child_takes_no_part_in_an_agreement(run_ranks):
    def body(rank, size):
        shardwire.reconfigure_handles()
        text = in_child(lambda: shardwire.agree(timeout=5))
        assert text.startswith("UnsupportedError: this process is none of the group's ranks: it was forked"), text
        assert shardwire.agree(3)[:2] == (3, ())

    run_ranks(2, body)


def test_a_grandchild_frees_too(run_ranks):
    def body(rank, size):
        shardwire.enable_cpu_allocator()
        mine = torch.ones(100)

        def child():
            nonlocal mine
            own = torch.ones(100)

            def grandchild():
                nonlocal mine, own
                own.add_(1)
                del mine, own

            check_in_child(grandchild)
            assert own.sum() == 100
            shardwire.enable_cpu_allocator()  # the child's own heap
            third = torch.ones(5)
            assert shardwire.in_shared_heap(third) and not shardwire.in_shared_heap(own)
            del mine, own, third

        check_in_child(child)
        assert mine.sum() == 100

    run_ranks(1, body)


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_data_loader_workers(start, tmp_path):
    script = tmp_path / "loader.py"
    script.write_text(f'''
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
sys.path[:0] = {[str(os.path.dirname(__file__))]!r}
import shardwire
from test_fork import Rows

def main():
    dist.init_process_group("shardwire", init_method="file://{tmp_path}/store-{start}", rank=0, world_size=1)
    shardwire.enable_cpu_allocator()
    rows = Rows()
    assert shardwire.in_shared_heap(rows.whole)
    loader = DataLoader(rows, batch_size=8, num_workers=2, multiprocessing_context="{start}", persistent_workers=True)
    for epoch in range(2):
        count = 0
        for batch, (seen, made) in enumerate(loader):
            expected = torch.arange(4000.0).reshape(40, 100)[8 * batch:8 * batch + 8]
            factor = 2 ** (epoch + 1)  # each worker keeps its copy
            assert (seen == factor * expected).all(), (epoch, batch)
            assert made[:, 0, 0].tolist() == [float(i) for i in range(8 * batch, 8 * batch + 8)]
            tensor = seen.sum().reshape(1)
            dist.all_reduce(tensor)
            count += 1
        assert count == 5
    if "{start}" == "fork":
        assert (rows.whole == torch.arange(4000.0).reshape(40, 100)).all(), "a worker changed the parent's tensor"
    dist.destroy_process_group()
    print("all right")

if __name__ == "__main__":
    main()
''')
    done = run_program([sys.executable, str(script)], 240)
    assert done.returncode == 0 and "all right" in done.stdout, done.stdout + done.stderr


def test_children_cannot_use_the_parents_group(run_ranks):
    def body(rank, size):
        mine = torch.full((4,), float(rank))
        got = torch.zeros(size * 4)
        op = shardwire.compile_op(None, (size * 4,), torch.float32, [{"offset": [rank * 4], "shape": [4]}],
                                  [{"offset": [0], "shape": [size * 4]}])
        bound = op.bind([mine], [got])
        pending = dist.irecv(torch.zeros(1), src=1 - rank)
        parent = str(os.getpid())

        def misuse():
            texts = []
            group = dist.distributed_c10d._get_default_group()
            calls = [lambda: dist.all_reduce(mine), lambda: dist.barrier(), lambda: dist.send(mine, 1 - rank),
                     lambda: dist.recv(mine, 1 - rank), lambda: dist.broadcast(mine, 0), lambda: op([mine], [got]),
                     bound, lambda: op.bind([mine], [got]), pending.wait,
                     lambda: shardwire.compile_op(None, (4,), torch.float32, [], [{"offset": [0], "shape": [4]}],
                                                  allow_gaps=True), lambda: dist.all_gather_object([None] * size, rank)]
            for number, call in enumerate(calls):
                try:
                    call()
                except Exception as error:
                    texts.append(str(error))
                else:
                    raise AssertionError(f"call {number} went through")
            for number, text in enumerate(texts):
                assert parent in text and str(os.getpid()) in text, f"call {number}: {text}"
            raises(shardwire.UnsupportedError, dist.barrier)
            backend = shardwire.resolve_backend(None)
            backend.abort()
            op.explain()
            backend.shutdown()
            dist.destroy_process_group()
            del group, backend
            gc.collect()
            shardwire._C.shutdown_all()

        for _ in range(2):
            check_in_child(misuse)
            tensor = torch.full((3000,), float(rank + 1))
            dist.all_reduce(tensor)
            assert tensor.eq(3).all(), tensor
            op([mine], [got]).wait()
            assert got.tolist() == [0.0] * 4 + [1.0] * 4
        dist.barrier()
        dist.send(torch.ones(1), 1 - rank)
        pending.wait()

    # the pending receive lasts as long as both children, which import and fork beside other work
    run_ranks(2, body, timeout=120, group_timeout=60)


def test_descriptions_in_a_child_that_was_forked_during_a_run(run_ranks):
    """A thread of the parent may hold the group's lock at that moment, and does not exist in the child."""
    def body(rank, size):
        count = 1 << 26
        box = [{"offset": [0], "shape": [count]}]
        op = shardwire.compile_op(None, (count,), torch.float32, box, box)
        source, target = torch.ones(count), torch.zeros(count)

        def child():
            assert "no links: this process was forked" in op.explain()
            raises(shardwire.UnsupportedError, shardwire.describe_transports)
            # A child that reads the count of its parent has taken the lock, which nobody may give back.
            assert op.stats()["num_runs"] == 0 and op.stats()["bytes_local"] == 4 * count

        for _ in range(5):
            running = op([source], [target])
            time.sleep(0.005)
            check_in_child(child)
            running.wait()

    run_ranks(1, body)


def test_a_child_ends_as_python_programs_do(tmp_path):
    """Destructors and atexit handlers of the child run; the parent's group goes on."""
    script = tmp_path / "child_exits.py"
    script.write_text(f'''
import os, subprocess, sys
import torch
import torch.distributed as dist
import shardwire
rank = int(sys.argv[1])
dist.init_process_group("shardwire", init_method="file://{tmp_path}/s", rank=rank, world_size=2)
shardwire.enable_cpu_allocator()
tensor = torch.ones(100)
op = shardwire.compile_op(None, (2,), torch.float32, [{{"offset": [rank], "shape": [1]}}], [{{"offset": [0], "shape": [2]}}])
future = op([torch.ones(1)], [torch.zeros(2)])
pid = os.fork()
if pid == 0:
    del tensor, op, future
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
assert subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True).stdout == "child\\n"
future.wait()
for _ in range(10):
    dist.all_reduce(tensor)
assert tensor[0] == 1024
dist.barrier()
dist.destroy_process_group()
print("all right")
''')
    ranks = [subprocess.Popen([sys.executable, str(script), str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) for rank in range(2)]
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0 and "all right" in out and "dropped" not in err, out + err


def test_a_child_makes_a_group_of_its_own(run_ranks, tmp_path):
    def body(rank, size):
        shardwire.enable_cpu_allocator()

        def child():
            dist.destroy_process_group()
            dist.init_process_group("shardwire", init_method=f"file://{tmp_path}/children", rank=rank, world_size=size)
            tensor = torch.full((5000,), float(rank))
            dist.all_reduce(tensor)
            assert tensor.eq(1).all()
            dist.barrier()
            dist.destroy_process_group()

        check_in_child(child)
        tensor = torch.full((5000,), float(rank))
        dist.all_reduce(tensor)
        assert tensor.eq(1).all()

    run_ranks(2, body)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_child_does_not_hide_its_parents_death(run_ranks, tmp_path, monkeypatch, transport):
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", transport)

    def body(rank, size):
        dist.barrier()
        meet("joined")
        if rank == 1:
            if os.fork() == 0:
                signal.alarm(60)
                await_file(tmp_path / "seen")  # the child keeps all inherited descriptors and mappings
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        try:
            raises(shardwire.PeerFailedError, lambda: dist.all_reduce(torch.ones(1)), contains="rank 1")
            assert time.monotonic() - start < 20, "the death was noticed by a timeout"
        finally:
            (tmp_path / "seen").touch()
        dist.destroy_process_group()

    run_ranks(2, body, may_die=(1,), group_timeout=40)
