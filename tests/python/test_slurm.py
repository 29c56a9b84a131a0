"""Groups and shardwire.launch under Slurm's srun, on a Slurm of two nodes, started by this file: with pmix, with pmi2
and without either.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwire
from conftest import TORCH, write_entry_points
from shardwire.groups.launchers import expand_hostlist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import slurm_cluster  # noqa: E402

pytestmark = pytest.mark.skipif(slurm_cluster.why_not() is not None, reason=f"no Slurm: {slurm_cluster.why_not()}")

HAS_MPI = (Path(shardwire.__file__).parent / "libshardwire_mpi.so").exists()

# Without RANK, and without import shardwire where torch loads backends on import.
MEET = """
import os, sys, torch, torch.distributed as dist
def meet(**more):
    dist.init_process_group("shardwire", **more)
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(100_000) * (rank + 1)
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all(), tensor
    dist.barrier()
    dist.destroy_process_group()
    os.write(1, f"met {rank} of {size}\\n".encode())
"""
IMPORT = "" if TORCH >= (2, 5) else "import shardwire\n"

SHOW = """
import os, sys
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR PMI_RANK".split()
os.write(1, (" ".join(str(os.environ.get(name)) for name in names) + "\\n").encode())
sys.exit(int(sys.argv[1]) if sys.argv[1:] and os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as stack:
        try:
            environment = stack.enter_context(slurm_cluster.cluster())
        except OSError as error:
            pytest.skip(str(error))
        yield environment


class Steps:
    """Runs srun's steps; the scripts lie in a folder of the test."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_", "PMI_", "PMIX_",
                     "USE_LIBUV")
        self.environment = {key: value for key, value in environment.items() if not key.startswith(launchers)}
        self.environment.update(PYTHONPATH=os.pathsep.join([str(write_entry_points(folder)), *sys.path]),
                                OMP_NUM_THREADS="1")
        self._folder = folder

    def script(self, text: str) -> str:
        path = self._folder / "job.py"
        path.write_text(text)
        return str(path)

    def __call__(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["srun", "--quiet", *words], capture_output=True, text=True, timeout=300, check=False,
                              env={**self.environment, **more})


@pytest.fixture
def srun(slurm: dict[str, str], tmp_path: Path) -> Steps:
    return Steps(slurm, tmp_path)


def _expect(done: subprocess.CompletedProcess[str], *lines: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(lines), done.stdout + done.stderr


@pytest.mark.any_torch
def test_pmix_gives_ranks_by_env_and_by_mpi(srun: Steps) -> None:
    text = MEET + "meet()\n" + ("meet(init_method='mpi://')\n" if HAS_MPI else "")
    _expect(srun("-N", "1", "-n", "2", "--mpi=pmix", sys.executable, srun.script(IMPORT + text)),
            *["met 0 of 2", "met 1 of 2"] * (1 + HAS_MPI))


@pytest.mark.any_torch
def test_pmi2_gives_ranks_and_mpi_says_what_to_call(srun: Steps) -> None:
    text = MEET + """
meet()
try:
    meet(init_method="mpi://")
except NotImplementedError as error:
    os.write(1, f"{'srun says rank' in str(error)} {'without init_method' in str(error)}\\n".encode())
"""
    _expect(srun("-N", "1", "-n", "2", "--mpi=pmi2", sys.executable, srun.script(IMPORT + text)), "met 0 of 2",
            "met 1 of 2", *["True True"] * 2)


@pytest.mark.any_torch
def test_one_task_for_each_node_starts_ranks_of_one_job(srun: Steps, launcher: str) -> None:
    script = srun.script("import shardwire\n" + MEET + "meet()\n")
    _expect(srun("-N", "2", "--ntasks-per-node=1", sys.executable, launcher, "-n", "2", script),
            *(f"met {rank} of 4" for rank in range(4)))


@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_a_task_becomes_the_rank(srun: Steps, launcher: str, plugin: str) -> None:
    done = srun("-N", "2", "-n", "3", f"--mpi={plugin}", sys.executable, launcher, srun.script(SHOW))
    _expect(done, *(f"{rank} 3 {local} {here} 127.0.0.1 {rank if plugin == 'pmi2' else None}"
                    for rank, local, here in ((0, 0, 2), (1, 1, 2), (2, 0, 1))))


def test_placement_decides_the_local_rank(srun: Steps, launcher: str) -> None:
    script = srun.script(SHOW)
    _expect(srun("-N", "2", "-n", "3", "--distribution=cyclic", sys.executable, launcher, script),
            "0 3 0 2 127.0.0.1 None", "1 3 0 1 127.0.0.1 None", "2 3 1 2 127.0.0.1 None")
    _expect(srun("-w", slurm_cluster.NODES[1], "-n", "2", "--mpi=pmi2", sys.executable, launcher, "-n", "2", script),
            *(f"{rank} 4 {rank} 4 127.0.0.1 None" for rank in range(4)))


def test_what_the_user_names_goes_before_slurms(srun: Steps, launcher: str) -> None:
    script = srun.script(SHOW)
    _expect(srun("-n", "2", sys.executable, launcher, script, MASTER_ADDR="here"),
            *(f"{rank} 2 {rank} 2 here None" for rank in range(2)))
    _expect(srun("-n", "2", sys.executable, launcher, "--standalone", "-n", "1", script),
            *["0 1 0 1 127.0.0.1 None"] * 2)


@pytest.mark.parametrize("how", [(), ("-n", "1"), ("-n", "2")])
def test_a_failed_rank_gives_srun_its_code(srun: Steps, launcher: str, how: tuple[str, ...]) -> None:
    done = srun("-n", "2", sys.executable, launcher, *how, srun.script(SHOW), "7")
    assert done.returncode == 7, done.stdout + done.stderr


def test_steps_of_one_job_get_ports_of_their_own(srun: Steps, launcher: str) -> None:
    """Two steps at one time, as in a batch script: the second step must meet on another port, or the ranks would join a
    foreign store.
    """
    script = srun.script("import os\nos.write(1, (os.environ['MASTER_PORT'] + chr(10)).encode())\n")
    step = f"srun -n 2 --overlap {sys.executable} {launcher} {script}"
    done = subprocess.run(["salloc", "-n", "2", "sh", "-c", f"{step} & {step}; wait"], capture_output=True, text=True,
                          timeout=60, check=False, env=srun.environment)
    ports = done.stdout.split()
    assert done.returncode == 0 and len(ports) == 4, done.stdout + done.stderr
    assert sorted(ports.count(port) for port in set(ports)) == [2, 2], ports


def test_a_batch_script_is_asked_to_use_srun(srun: Steps, launcher: str) -> None:
    done = subprocess.run(["salloc", "-n", "2", sys.executable, launcher, srun.script(SHOW)], capture_output=True,
                          text=True, timeout=60, check=False, env=srun.environment)
    assert done.returncode != 0
    assert ("give -n N" in done.stderr
            and "not a task that srun started: put srun before the command" in done.stderr), done.stderr


@pytest.mark.parametrize("text",
                         ["n1", "n[1-3,7]", "n[08-11]", "n[001-3]", "n[98-101]", "n[1-010]", "n[09,010]", "a,a,b",
                          "a,,b,", "n[3,1],login-2", "127.0.0.[1-2]", "gpu-a[0-1],gpu-b[00-02]", "n1-3"])
def test_host_lists_are_read_as_scontrol_reads_them(slurm: dict[str, str], text: str) -> None:
    done = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, timeout=60,
                          check=True, env=slurm)
    assert expand_hostlist(text) == done.stdout.split()
