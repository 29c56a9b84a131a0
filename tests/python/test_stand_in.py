"""shardwire under gloo's name: a request for gloo gives shardwire, torch's decisions by the name work, and gloo is
still there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import shardwire
from conftest import TORCH, raises, write_entry_points
from tcp_store import NO_LIBUV_ENV

WRAPS = TORCH >= (2, 0)
AUTOLOADS = TORCH >= (2, 5)


def joined(rank, size, store, backend="gloo", **more):
    shardwire.stand_in_for("gloo")
    shardwire.stand_in_for("gloo")  # twice is once
    named = {} if backend is None else {"backend": backend}
    dist.init_process_group(**named, init_method=f"file://{store}", rank=rank, world_size=size,
                            timeout=timedelta(seconds=20), **more)


def end():
    dist.barrier()
    dist.destroy_process_group()


def total(value, group=None):
    tensor = torch.tensor([float(value)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def is_ours(group=None):
    try:
        return shardwire.resolve_backend(group) is not None
    except ValueError:
        return False


def by_name(rank, size, store, backend):
    if backend is not None and "fake" in backend:
        # in the place of nccl, which torch for the CPU lacks
        from torch.testing._internal.distributed import fake_pg  # noqa: F401
    joined(rank, size, store, backend)
    assert is_ours() and (dist.get_backend() == backend or backend is None or ":" in backend)
    assert shardwire.global_ranks(None) == [0, 1]
    assert total(rank + 1) == 3.0
    pair = dist.new_group([1, 0] if TORCH >= (2, 0) else [0, 1], backend="GLOO" if backend == "gloo" else backend)
    assert is_ours(pair) and total(rank + 1, pair) == 3.0
    one = dist.new_group([1], backend="gloo")
    if rank == 1:
        assert is_ours(one) and shardwire.global_ranks(one) == [1] and dist.get_backend(one) == "gloo"
    end()


# Without any name: test_without_a_changed_line, in a separate process, since torch needs a name once other tests have
# registered a device.
@pytest.mark.parametrize("backend", ["gloo", "shardwire", *(["cpu:gloo", "cpu:gloo,cuda:fake"] if WRAPS else [])])
def test_who_asks_for_gloo_gets_shardwire(run_ranks, tmp_path, backend):
    run_ranks(2, by_name, str(tmp_path / "meet"), backend, init=False)


def by_its_own_name(rank, size, store):
    joined(rank, size, store, "torch_gloo")
    assert not is_ours()
    own = dist.new_group([0, 1], backend="torch_gloo")
    backend = own._get_backend(torch.device("cpu")) if WRAPS else own
    assert type(backend).__name__ == "ProcessGroupGloo" and type(backend) is not c10d.ProcessGroupGloo
    assert isinstance(backend, c10d.ProcessGroupGloo)
    assert total(rank, own) == 1.0
    ours = dist.new_group([0, 1], backend="gloo")
    assert is_ours(ours) and total(rank, ours) == 1.0
    # Some programs make gloo by its class: this remains gloo.
    direct = dist.ProcessGroupGloo(dist.PrefixStore("direct", dist.FileStore(store + ".direct", 2)), rank, size,
                                   timedelta(seconds=20))
    tensor = torch.ones(2)
    direct.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0, 2.0] and c10d.ProcessGroupGloo.create_default_device is not None
    end()


def test_gloo_itself_is_there_under_another_name(run_ranks, tmp_path):
    run_ranks(2, by_its_own_name, str(tmp_path / "meet"), init=False)


def by_what_torch_decides(rank, size, store):
    joined(rank, size, store)
    dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True)
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    assert total(1) == size
    assert group._get_sequence_number_for_group() > before
    other = dist.new_group([0, 1], timeout=timedelta(seconds=50))
    set_timeout = getattr(dist, "set_timeout", None) or getattr(c10d, "_set_pg_timeout", None)
    if set_timeout is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # set_timeout warns about an unknown backend
            set_timeout(timedelta(seconds=7), other)
        assert shardwire.resolve_backend(other).options._timeout == timedelta(seconds=7)
    if rank == 1:
        end()
        return
    # The error known to torch's users names the missing rank. Rank 1 waits in the barrier of end().
    error = raises(RuntimeError, lambda: dist.monitored_barrier(group=other, timeout=timedelta(seconds=0.5)),
                   contains="monitoredBarrier")
    assert "1" in str(error)
    end()


def test_what_torch_decides_by_the_name(run_ranks, tmp_path):
    run_ranks(2, by_what_torch_decides, str(tmp_path / "meet"), init=False)


def in_debug_mode(rank, size, store):
    if hasattr(dist, "set_debug_level"):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    joined(rank, size, store)
    assert total(rank) == 1.0
    assert is_ours() or not WRAPS  # before 2.0 torch does not show the wrapped backend
    end()


def test_debug_mode_still_has_its_helper(run_ranks, tmp_path):
    run_ranks(2, in_debug_mode, str(tmp_path / "meet"), init=False)


def made_in_another_way(rank, size, store):
    """A future torch, or a package that registers another gloo: a request for gloo gives this gloo, with a warning."""
    torchs = c10d.ProcessGroupGloo
    joined(rank, size, store)
    assert is_ours()
    if "GLOO" in c10d.Backend._plugins:
        c10d.Backend._plugins["GLOO"] = c10d.Backend._plugins["TORCH_GLOO"]
    c10d.ProcessGroupGloo = torchs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other = dist.new_group([0], backend="gloo")
        dist.new_group([0], backend="torch_gloo")
        dist.new_group([0], backend="shardwire")
    assert not is_ours(other)
    said = [str(each.message) for each in caught if "stands in" in str(each.message)]
    assert len(said) == 1 and "was asked for by the name gloo" in said[0] and "is not shardwire's" in said[0], said
    end()


def test_a_gloo_that_is_not_ours_is_reported(run_ranks, tmp_path):
    run_ranks(1, made_in_another_way, str(tmp_path / "meet"), init=False)


def ddp(rank, size, store):
    joined(rank, size, store)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    # DDP's logger takes what is called gloo in C++ for a ProcessGroupGloo, and would read the number of threads from
    # foreign memory.
    logged = model._get_ddp_logging_data()
    assert logged["backend_name"] == "gloo" and logged["gloo_num_threads"] == dist.ProcessGroupGloo._Options()._threads
    assert (logged["gloo_socket_ifname"] == os.environ.get("GLOO_SOCKET_IFNAME", "N/A")
            and logged["gloo_device_transport"] == "N/A")
    assert not WRAPS or dist.group.WORLD.name() == "gloo"
    model(torch.full((4, 3), rank + 1.0)).sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    end()
    return found


def test_ddp(run_ranks, tmp_path):
    first, second = run_ranks(2, ddp, str(tmp_path / "meet"), init=False)
    assert all(torch.equal(one, other) for one, other in zip(first, second))
    assert torch.equal(first[0], torch.full((2, 3), 6.0)) and torch.equal(first[1], torch.full((2,), 4.0))


def profiled(rank, size, store):
    joined(rank, size, store)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        total(rank)
        total(rank, dist.new_group([0, 1]))
        total(rank, dist.new_group([0, 1], backend="shardwire"))
    end()
    return sorted(event.name for event in profile.events() if event.name.endswith(":all_reduce"))


def test_profiles_show_the_name_that_was_asked_for(run_ranks, tmp_path):
    for names in run_ranks(2, profiled, str(tmp_path / "meet"), init=False):
        assert names == ["gloo:all_reduce"] * 2 + ["shardwire:all_reduce"]


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="stands in for gloo, not for 'nccl'"):
        shardwire.stand_in_for("nccl")


SCRIPT = """
IMPORT
import torch, torch.distributed as dist

def main():
    dist.init_process_group(BACKEND)
    import shardwire
    assert shardwire.resolve_backend(None) is not None
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3, tensor
    MORE
    dist.barrier()
    if dist.get_rank() == 0:
        print("done as", dist.get_backend(), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""
# Both ways of torch to write a checkpoint beside the training: by a thread over the given group, and by a process that
# makes another gloo group.
CHECKPOINTS = """
    import sys
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    state = {"weight": torch.full((4,), 5.0), "rank": torch.tensor(dist.get_rank())}
    dcp.async_save(state, checkpoint_id=sys.argv[1] + "/thread", process_group=dist.new_group(backend="gloo")).result()
    dcp.async_save(state, checkpoint_id=sys.argv[1] + "/process", async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
    for way in ("thread", "process"):
        back = {"weight": torch.zeros(4)}
        dcp.load(back, checkpoint_id=sys.argv[1] + "/" + way)
        assert back["weight"].tolist() == [5.0] * 4, way
"""


def run(tmp_path: Path, launcher: str, backend: str, more: str = "",
        **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    text = SCRIPT.replace("IMPORT", "" if AUTOLOADS else "import shardwire").replace("BACKEND", backend)
    script.write_text(text.replace("    MORE\n", more))
    path = os.pathsep.join([str(write_entry_points(tmp_path)), *sys.path])
    env = {**os.environ, **NO_LIBUV_ENV, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SHARDWIRE_AS": "gloo",
           **environment}
    return subprocess.run([sys.executable, launcher, "-n", "2", str(script), str(tmp_path)], capture_output=True,
                          text=True, timeout=120, check=False, env=env)


@pytest.mark.parametrize("backend", ['"gloo"', *(["", '"cpu:gloo"'] if AUTOLOADS else [])])
def test_without_a_changed_line(launcher: str, tmp_path: Path, backend: str) -> None:
    """By the environment alone. Before 2.5 torch does not load backends on import, so there the program imports
    shardwire.
    """
    done = run(tmp_path, launcher, backend)
    assert done.returncode == 0 and "done as " in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(TORCH < (2, 7), reason="torch's checkpoints by a process came with 2.7")
def test_asynchronous_checkpoints(launcher: str, tmp_path: Path) -> None:
    # Over the job's store: otherwise torch looks for a free port, which another test may take before torch binds it.
    done = run(tmp_path, launcher, '"gloo"', CHECKPOINTS, DCP_USE_PREFIX_STORE="1")
    assert done.returncode == 0 and "done as gloo" in done.stdout, done.stdout + done.stderr


def test_a_name_that_is_not_gloo_is_reported(tmp_path: Path) -> None:
    path = os.pathsep.join([str(write_entry_points(tmp_path)), *sys.path])
    done = subprocess.run([sys.executable, "-c", "import shardwire"], capture_output=True, text=True, timeout=60,
                          check=False, env={**os.environ, "PYTHONPATH": path, "SHARDWIRE_AS": "nccl"})
    assert done.returncode == 0 and "shardwire stands in for gloo, not for 'nccl'" in done.stderr, done.stderr
