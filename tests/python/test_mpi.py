"""Groups that meet by MPI, in processes started by mpirun: init_method="mpi://", and communicators of mpi4py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shardwire

HAS_MODULE = (Path(shardwire.__file__).parent / "libshardwire_mpi.so").exists()
needs_mpi = [
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here (Debian: openmpi-bin)"),
    pytest.mark.skipif(not HAS_MODULE, reason="built without MPI (Debian: libopenmpi-dev)"),
]
HAS_MPI4PY = subprocess.run([sys.executable, "-c", "import mpi4py"], capture_output=True, check=False).returncode == 0

RENDEZVOUS = """
import torch, torch.distributed as dist, shardwire
for round_number in range(2):  # destroyed and made again
    dist.init_process_group("shardwire", init_method="mpi://")
    tensor = torch.ones(300_000) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    assert (tensor == 6.0).all(), tensor
    text = shardwire.describe_transports()
    assert ("mpi" in text) == WANTS_MPI, text
    dist.barrier()
    dist.destroy_process_group()
print("met", flush=True)
"""

COMMUNICATOR = """
from mpi4py import MPI
import torch, torch.distributed as dist, shardwire
world = MPI.COMM_WORLD
if world.rank == 0:  # a group that the others know nothing of: the numbers of groups differ
    shardwire.create_process_group(dist.HashStore(), 0, 1)
part = world.Split(color=world.rank == 0, key=-world.rank)  # ranks 2 and 1, in this order
group = shardwire.create_process_group_from_mpi(part, timeout=60, name="part")
assert (group.rank(), group.size()) == (part.rank, part.size)
tensor = torch.tensor([float(world.rank)])
group.allreduce([tensor]).wait()
assert tensor.item() == (0.0 if world.rank == 0 else 3.0)
assert world.allreduce(1) == 3  # MPI goes on beside us
whole = shardwire.create_process_group_from_mpi(world)
work = whole.barrier()
work.wait()
dist.destroy_process_group(whole)
print("met", flush=True)
"""


def _run(script: str, tmp_path: Path, ranks: int = 3, **more: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "job.py"
    file.write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more}
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return subprocess.run(["mpirun", "-n", str(ranks), "--oversubscribe", *root, sys.executable, str(file)],
                          capture_output=True, text=True, timeout=120, check=False, env=environment)


# Rank 0 is late: rank 1 times out, first in MPI_Init_thread and then in MPI_Bcast, and tries again.
LATE = """
import time, torch, torch.distributed as dist, shardwire
from datetime import timedelta
from pathlib import Path
late = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
for call in ("MPI_Init_thread", "MPI_Bcast"):
    timed_out = Path(__file__).with_name(f"{call} timed out")
    if late:
        while not timed_out.exists():
            time.sleep(0.01)
    else:
        begin = time.monotonic()
        try:
            dist.init_process_group("shardwire", init_method="mpi://", timeout=timedelta(seconds=1))
        except shardwire.TimeoutError as error:
            assert f"{call} did not end in time: another rank" in str(error), error
        else:
            raise AssertionError(call)
        assert time.monotonic() - begin < 3
        timed_out.touch()
    dist.init_process_group("shardwire", init_method="mpi://", timeout=timedelta(seconds=40))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    dist.destroy_process_group()
print("met", flush=True)
"""

# A rank that fails ends the job: mpi4py would wait in MPI_Finalize for the other ranks, which wait for the failed rank.
SERIALIZED = """
import sys, traceback
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
def end(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
sys.excepthook = end
"""


def _expect_met(done: subprocess.CompletedProcess[str], ranks: int = 3) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("met") == ranks, done.stdout + done.stderr


def _marked(test):
    for mark in needs_mpi:
        test = mark(test)
    return test


# Torch numbers groups, before or after the rendezvous: with each torch.
@_marked
def test_after_a_timeout_for_a_late_rank_the_next_call_waits_on(tmp_path: Path) -> None:
    _expect_met(_run("import os\n" + LATE, tmp_path, ranks=2, SHARDWIRE_TRANSPORTS="mpi"), ranks=2)


@_marked
@pytest.mark.any_torch
@pytest.mark.parametrize("transports", ["", "mpi"])
def test_mpi_rendezvous_needs_no_address(transports: str, tmp_path: Path) -> None:
    script = RENDEZVOUS.replace("WANTS_MPI", str(transports == "mpi"))
    _expect_met(_run(script, tmp_path, SHARDWIRE_TRANSPORTS=transports))


@_marked
@pytest.mark.any_torch
def test_a_rank_that_is_not_mpis_is_refused(tmp_path: Path) -> None:
    script = RENDEZVOUS.replace('"mpi://")', '"mpi://", rank=7, world_size=9)')
    done = _run(script, tmp_path)
    assert done.returncode != 0
    assert "rank=7 was given, but MPI says" in done.stderr


@_marked
@pytest.mark.any_torch
@pytest.mark.skipif(not HAS_MPI4PY, reason="this Python has no mpi4py (Debian: python3-mpi4py)")
@pytest.mark.parametrize("transports", ["", "mpi"])
def test_mpi4py_communicators_make_groups(transports: str, tmp_path: Path) -> None:
    _expect_met(_run(COMMUNICATOR, tmp_path, SHARDWIRE_TRANSPORTS=transports))


@_marked
@pytest.mark.any_torch
@pytest.mark.skipif(not HAS_MPI4PY, reason="this Python has no mpi4py (Debian: python3-mpi4py)")
def test_mpi_of_a_low_thread_level_is_refused_with_the_fix(tmp_path: Path) -> None:
    done = _run(SERIALIZED + COMMUNICATOR, tmp_path, SHARDWIRE_TRANSPORTS="mpi")
    assert done.returncode != 0
    assert "MPI_THREAD_SERIALIZED" in done.stderr and "MPI_THREAD_MULTIPLE" in done.stderr, done.stderr


@pytest.mark.any_torch
def test_what_is_no_communicator_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="give a communicator of mpi4py"):
        shardwire.create_process_group_from_mpi(object())


@pytest.mark.any_torch
@pytest.mark.skipif(any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")),
                    reason="this is an MPI job")
def test_without_an_mpi_job_the_error_says_so() -> None:
    with pytest.raises(shardwire.UnsupportedError, match="neither by mpirun nor"):
        torch.distributed.init_process_group("shardwire", init_method="mpi://")


NVSHMEM = """
import torch, shardwire.nvshmem.core as core
core.init(initializer_method="mpi")
t = core.tensor((4,), dtype=torch.int32)
t.zero_()
core.barrier_all()
core.atomic_inc(t, 0, offset=core.my_pe())
core.barrier_all()
assert core.get_peer_tensor(t, 0).tolist() == [1] * core.n_pes() + [0], t
core.finalize()
print("met", flush=True)
"""


@_marked
@pytest.mark.any_torch
def test_nvshmems_names_begin_by_mpi(tmp_path: Path) -> None:
    _expect_met(_run(NVSHMEM, tmp_path))
