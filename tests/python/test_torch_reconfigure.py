"""torch's own calls for groups whose members change (torch 2.14 and later): init_process_group with enable_reconfigure,
dist._get_reconfigure_handle, dist._reconfigure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import shardwire
from conftest import raises
from fork_ranks import meet

pytestmark = pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure")


class _Members:
    """A rank's side: the default group, and the others' handles by files, which need no rank's life."""

    def __init__(self, folder, rank, size, backend="shardwire"):
        self.folder, self.rank, self.size = folder, rank, size
        self.store = dist.FileStore(str(folder / "store"), size)  # for sub-groups: torch makes these at this store
        dist.init_process_group(backend, store=self.store, rank=rank, world_size=size, enable_reconfigure=True,
                                timeout=timedelta(seconds=20))

    def handles(self, step, ranks=None):
        place = self.folder / step
        place.mkdir(exist_ok=True)
        (place / f"{self.rank}.new").write_text(dist._get_reconfigure_handle())
        (place / f"{self.rank}.new").rename(place / str(self.rank))
        ranks = list(range(self.size)) if ranks is None else ranks
        while not all((place / str(each)).exists() for each in ranks):
            time.sleep(0.002)
        return [(place / str(each)).read_text() for each in ranks]

    def reconfigure(self, uuid, handles):
        dist._reconfigure(uuid, handles, timeout=timedelta(seconds=20)).wait()
        assert _sum() == dist.get_world_size() == len(handles)


def _sum():
    ones = torch.ones(3)
    dist.all_reduce(ones)
    return ones[0].item()


def _first_members(rank, size, folder, backend):
    if backend == "gloo":
        shardwire.stand_in_for("gloo")
    me = _Members(folder, rank, size, backend)
    assert dist._supports_reconfigure() and c10d._get_default_group().supports_reconfigure
    raises(RuntimeError, dist.all_reduce, torch.ones(1), contains="has no members")
    handles = me.handles("first")
    me.reconfigure(1, handles[::-1])
    assert dist.get_rank() == size - 1 - rank
    raises(RuntimeError, dist._reconfigure, 1, handles, contains="already used")
    raises(ValueError, dist._reconfigure, 2, [each for each in handles if each != handles[rank]], contains="not in the")
    assert _sum() == size  # the refused calls left the group as it was
    ours = shardwire.resolve_backend(None)
    assert ours.options._timeout == timedelta(seconds=20) and ours.options.enable_reconfigure
    me.handles("before the abort")  # all ranks have the sum
    ours.abort()
    kinds = torch._C._distributed_c10d.ErrorType
    assert ours.get_error() == (kinds.SUCCESS if backend == "gloo" else kinds.COMM_ERROR)  # as gloo's, as NCCL's
    with pytest.raises(shardwire.AbortedError):
        _sum()
    me.reconfigure(3, set(handles))
    ranks = [None] * size
    dist.all_gather_object(ranks, rank)
    assert sorted(ranks) == list(range(size))


@pytest.mark.parametrize("backend", ["shardwire", "cpu:shardwire", "gloo"])
def test_members_come_by_reconfigure(run_ranks, tmp_path, backend):
    run_ranks(3, _first_members, tmp_path, backend, init=False)


def _move(rank, size, folder):
    me = _Members(folder, rank, size)
    handles = me.handles("all")
    if rank < 2:
        me.reconfigure(1, handles[:2])
    me.reconfigure(2, handles)  # ranks 2 and 3 join
    half = [each for each in range(size) if each % 2 == rank % 2]
    me.reconfigure(3, [handles[each] for each in half])
    assert dist.get_rank() == half.index(rank)
    me.reconfigure(4, handles)
    me.reconfigure(5, handles)
    me.reconfigure(6, [handles[rank]])


def test_groups_split_and_merge(run_ranks, tmp_path):
    run_ranks(4, _move, tmp_path, init=False)


def _die(rank, size, folder):
    me = _Members(folder, rank, size)
    handles = me.handles("all")
    me.reconfigure(1, handles)
    for dead in range(2):
        meet(f"made {dead}", size - dead)
        if rank == dead:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(shardwire.PeerFailedError):
            while True:
                _sum()
        assert shardwire.agree().dead == (0,)
        me.reconfigure(2 + dead, handles[dead + 1:])
        assert dist.get_rank() == rank - dead - 1


def test_survivors_of_rank_0_go_on(run_ranks, tmp_path):
    run_ranks(4, _die, tmp_path, init=False, may_die={0, 1})


def _absent(rank, size, folder):
    me = _Members(folder, rank, size)
    handles = me.handles("all")
    me.reconfigure(1, handles)
    if rank < 2:
        begin = time.monotonic()
        error = raises(shardwire.TimeoutError, lambda: dist._reconfigure(2, handles, timeout=timedelta(seconds=1)))
        assert "did not come" in str(error) and time.monotonic() - begin < 10
        raises(RuntimeError, dist.all_reduce, torch.ones(1), contains="has no members")
    me.handles("again")
    me.reconfigure(3, handles)


def test_a_timeout_leaves_a_group_that_can_be_made_again(run_ranks, tmp_path):
    run_ranks(3, _absent, tmp_path, init=False)


def test_a_program_may_end_without_destroying_the_group():
    program = ("import torch.distributed as dist, shardwire\n"
               "dist.init_process_group('shardwire', store=dist.HashStore(), rank=0, world_size=1, "
               "enable_reconfigure=True)\n"
               "dist._reconfigure(1, [dist._get_reconfigure_handle()]).wait()\n"
               "print('made')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr


def _use_everything():
    rank, size = dist.get_rank(), dist.get_world_size()
    op = shardwire.compile_op(None, [size], torch.float32, [{"offset": [rank], "shape": [1]}],
                              [{"offset": [0], "shape": [size]}])
    out = torch.zeros(size)
    op([torch.full((1,), rank + 1.0)], [out]).wait()
    assert out.tolist() == [each + 1.0 for each in range(size)]
    queue = shardwire.Queue(location=0)
    queue.put(rank)
    dist.barrier()
    if rank == 0:
        assert sorted(queue.get(timeout=10) for _ in range(size)) == list(range(size))
    block = shardwire.symm.empty(4)
    block.fill_(rank)
    dist.barrier()
    assert shardwire.symm.get_peer_tensor(block, (rank + 1) % size)[0] == (rank + 1) % size
    sub = dist.new_group(timeout=timedelta(seconds=20))
    ones = torch.ones(1)
    dist.all_reduce(ones, group=sub)
    assert ones.item() == size
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    dist.barrier()


def _everything(rank, size, folder):
    me = _Members(folder, rank, size)
    handles = me.handles("all")
    me.reconfigure(1, handles)
    _use_everything()
    if rank < 2:
        me.reconfigure(2, handles[:2])
        _use_everything()
    me.reconfigure(3, handles)
    _use_everything()


def test_all_parts_of_shardwire_follow_the_members(run_ranks, tmp_path):
    run_ranks(3, _everything, tmp_path, init=False)
