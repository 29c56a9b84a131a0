"""Groups under foreign launchers: torchrun, mpirun, torch.multiprocessing, and by hand through tcp:// and file://; and
how shardwire reads the variables of srun, mpirun and mpiexec. Slurm: test_slurm.py.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import shardwire_autoload
from conftest import write_entry_points
from run_program import run_program
from tcp_store import NO_LIBUV_ENV
from shardwire import launch
from shardwire.groups import env
from shardwire.groups.launchers import (Place, address_of, expand_hostlist, expand_tasks_per_node, recognise, why_none,
                                        without_mpi)

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

SCRIPT = """
IMPORT
import torch, torch.distributed as dist
dist.init_process_group("shardwire")
tensor = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
assert tensor.tolist() == [3.0] * 3, tensor
dist.barrier()
if dist.get_rank() == 0:
    print("summed on", dist.get_world_size(), "ranks", flush=True)
dist.destroy_process_group()
"""


def _run(command: list[str], tmp_path: Path, script_text: str = SCRIPT.replace("IMPORT", "import shardwire"),
         **more: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(script_text)
    environment = {**os.environ, **NO_LIBUV_ENV,
                   "PYTHONPATH": os.pathsep.join([str(write_entry_points(tmp_path)), *sys.path]),
                   "OMP_NUM_THREADS": "1", **more}
    done = run_program([*command, str(script)], env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "summed on 2 ranks" in done.stdout + done.stderr


@pytest.mark.skipif(VERSION == (2, 6), reason="Debian 13's torchrun asks for libuv, which its torch was built without")
def test_torchrun(tmp_path: Path) -> None:
    options = ["-r", "1", "-t", "1"] if VERSION == (1, 13) else []  # 1.13 on Python 3.11 fails without these options
    _run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
          str(launch.free_port()), *options], tmp_path)


REPEATED = SCRIPT.split("dist.init")[0] + "for _ in range(20):\n" + "".join(
    f"    {line}\n" for line in ("dist.init" + SCRIPT.split("dist.init", 1)[1]).splitlines())


@pytest.mark.skipif(VERSION == (1, 13), reason="its init_process_group counts the ranks in the store, and waits for "
                                               "ever the second time, whatever the backend")
@pytest.mark.skipif(VERSION == (2, 6), reason="Debian 13's torchrun asks for libuv, which its torch was built without")
def test_the_default_group_is_made_again_and_again_by_torchrun(tmp_path: Path) -> None:
    """torchrun's agent keeps the store: the addresses of the groups before are still there."""
    _run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
          str(launch.free_port())], tmp_path, REPEATED.replace("IMPORT", "import shardwire"))


STARTED_ANEW = """
import os, sys
import shardwire
import torch, torch.distributed as dist
dist.init_process_group("shardwire")
restarts, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
half = dist.new_group([1, 2])
for group in (None, half) if rank else (None,):
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(dist.get_world_size(group))] * 3, tensor
if restarts == 0 and rank == 0:
    sys.exit(3)
dist.barrier()
if rank == 0:
    print("summed on 2 ranks after", restarts, "restart", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.skipif(VERSION == (1, 13), reason="Debian 12's torchrun does not start ranks anew on Python 3.11")
@pytest.mark.skipif(VERSION == (2, 6), reason="Debian 13's torchrun asks for libuv, which its torch was built without")
def test_torchrun_starts_a_job_anew(tmp_path: Path) -> None:
    """The agent keeps the store: the addresses of dead processes are still there, and the reasons of their failures."""
    _run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "3", "--max-restarts", "1",
          "--monitor-interval", "0.05"], tmp_path, STARTED_ANEW)


# torch loads backends on import from 2.5 on; a script for older versions imports shardwire.
WITHOUT_IMPORT = SCRIPT.replace("IMPORT", "" if VERSION >= (2, 5) else "import shardwire")
AGAIN = 'dist.init_process_group("shardwire", init_method="mpi://")\ndist.barrier()\ndist.destroy_process_group()\n'
MPIRUN = ["mpirun", "-n", "2", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here (Debian: openmpi-bin)")


@pytest.mark.any_torch
@needs_mpirun
@pytest.mark.parametrize("address", ["given", "mpirun's"])
def test_mpirun_without_rank(address: str, tmp_path: Path) -> None:
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launch.free_port())} if address == "given" else {}
    _run([*MPIRUN, sys.executable], tmp_path, WITHOUT_IMPORT, **more)


@pytest.mark.any_torch
@needs_mpirun
@pytest.mark.skipif(not env._HAS_MPI, reason="built without MPI (Debian: libopenmpi-dev)")
def test_mpirun_across_hosts_meets_by_mpi(tmp_path: Path) -> None:
    """mpirun's variables do not name the host of rank 0, which a rank of another host would need."""
    _run([*MPIRUN, "env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", sys.executable], tmp_path, WITHOUT_IMPORT + AGAIN)


@pytest.mark.any_torch
@needs_mpirun
def test_mpirun_with_shardwires_launcher(tmp_path: Path) -> None:
    _run([*MPIRUN, sys.executable, str(Path(launch.__file__))], tmp_path)


def _by_hand(rank: int, method: str) -> None:
    os.environ.update(NO_LIBUV_ENV)
    dist.init_process_group("shardwire", init_method=method, rank=rank, world_size=2)
    for round_number in range(2):  # destroyed and made again
        tensor = torch.ones(3) * (rank + 1)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0] * 3
        dist.barrier()
        dist.destroy_process_group()
        if round_number == 0:
            again = (f"{method}.again" if method.startswith("file://")
                     else f"tcp://127.0.0.1:{int(method.rsplit(':', 1)[1]) + 1}")
            dist.init_process_group("shardwire", init_method=again, rank=rank, world_size=2)


@pytest.mark.any_torch
@pytest.mark.parametrize("how", ["tcp", "file"])
def test_multiprocessing_and_re_init(how: str, tmp_path: Path) -> None:
    method = f"tcp://127.0.0.1:{launch.free_port()}" if how == "tcp" else f"file://{tmp_path}/meeting"
    torch.multiprocessing.spawn(_by_hand, args=(method,), nprocs=2)


SRUN = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "4,2,1", "SLURM_STEP_NODELIST": "gpu[07-09]",
        "SLURM_JOB_NODELIST": "gpu[03-09]", "SLURM_NTASKS": "9", "SLURM_CPUS_PER_TASK": "6"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "865533953", "PMIX_RANK": "3"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def _place(environment: dict[str, str]) -> Place:
    place = recognise(environment)
    assert place is not None
    return place


def test_srun_is_recognised() -> None:
    place = _place(SRUN)
    assert (place.launcher, place.rank, place.size, place.local_rank, place.local_size, place.cpus) == (
        "srun", 5, 7, 1, 2, 6)
    assert address_of(place) == ("gpu07", 10000 + (1234 + 2 * 997) % 20000)
    assert "SLURM_PROCID=5" in place.describe() and "rank 5 of 7" in place.describe()
    # pmi2 adds the same values under other names; in old versions a step of the whole job has no node list
    assert _place({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "7", "PMI_JOBID": "1234.2"}) == place
    assert address_of(_place({**SRUN, "SLURM_STEP_NODELIST": ""}))[0] == "gpu03"
    assert address_of(_place({**SRUN, "SLURM_DISTRIBUTION": "arbitrary"}))[0] is None
    assert address_of(_place({**SRUN, "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "7"}))[0] == "127.0.0.1"


def test_ports_of_jobs_and_steps_differ() -> None:
    ports = [address_of(_place({**SRUN, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}))[1]
             for job in range(5_000_000, 5_000_900) for step in range(3)]
    assert len(set(ports)) == len(ports) and all(port is not None and 10000 <= port < 30000 for port in ports)


def test_the_innermost_launcher_counts() -> None:
    place = _place({**SRUN, **OPEN_MPI})  # mpirun inside of a Slurm job: SLURM_PROCID belongs to mpirun's daemon
    assert (place.launcher, place.rank, place.size, place.is_open_mpi) == ("Open MPI's mpirun", 3, 8, True)
    assert address_of(place)[0] == "gpu03"
    place = _place({**SRUN, **HYDRA})
    assert (place.launcher, place.rank, place.size, place.local_rank, place.local_size) == ("mpiexec (PMI)", 1, 2, 1, 2)


def test_mpirun_and_mpiexec_are_recognised() -> None:
    host, port = address_of(_place(OPEN_MPI))
    assert (host is None and port is not None
            and address_of(_place({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"})) == ("127.0.0.1", port))
    assert address_of(_place({**OPEN_MPI, "PMIX_NAMESPACE": "865533954"}))[1] != port
    assert address_of(_place(HYDRA)) == ("127.0.0.1", None)
    alone = _place({"PMIX_RANK": "4", "PMIX_NAMESPACE": "prterun-a-1@1"})
    assert (alone.rank, alone.size, alone.local_rank) == (4, None, None)


def test_nothing_is_recognised_in_shells_and_batch_scripts() -> None:
    assert recognise({}) is None and "none is set" in why_none({})
    batch = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    assert recognise(batch) is None and "Slurm job 17" in why_none(batch)


def test_children_of_an_mpi_process_are_not_mpis() -> None:
    assert without_mpi({**SRUN, **OPEN_MPI, **HYDRA, "PATH": "/bin"}) == {**SRUN, "PATH": "/bin"}


@pytest.mark.parametrize(("name", "value"), [("SLURM_PROCID", "x"), ("SLURM_STEP_NUM_TASKS", "-1"),
                                             ("SLURM_STEP_TASKS_PER_NODE", "2(x"), ("SLURM_STEP_NODELIST", "n[1-")])
def test_variables_that_make_no_sense_are_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="host list" if name.endswith("LIST") else name):
        recognise({**SRUN, name: value})


def test_host_lists_and_task_counts() -> None:
    assert (expand_hostlist("rack[1-2]node[08-10]-ib,login")
            == [f"rack{r}node{n}-ib" for r in (1, 2) for n in ("08", "09", "10")] + ["login"])
    assert expand_hostlist("n[1-2,5],127.0.0.[3-4]") == ["n1", "n2", "n5", "127.0.0.3", "127.0.0.4"]
    assert expand_hostlist("n[099-101]") == ["n099", "n100", "n101"] and expand_hostlist("") == []
    assert expand_tasks_per_node("4(x2),1,3") == [4, 4, 1, 3]


@pytest.mark.parametrize("text", ["n[1-2", "n]1[", "n[2-1]", "n[]", "n[1,]", "n[a-b]", "n[-2]", "n[[1]]",
                                  "n[1-99999999]", "n[0-9999]m[0-9999]"])
def test_broken_host_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand_hostlist(text)


def _without_launchers(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    for name in list(os.environ):
        if (name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
                or name.startswith(("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL"))):
            monkeypatch.delenv(name)
    for name, value in more.items():
        monkeypatch.setenv(name, value)


ACROSS = {**OPEN_MPI, "RANK": ""}


@pytest.mark.parametrize(("environment", "says"), [
    ({}, ["none of them is set", "none of them started this process", "python -m shardwire.launch -n N",
          "init_method='tcp://HOST:PORT'"]),
    ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR and MASTER_PORT are not set", "none of them started"]),
    ({"SLURM_JOB_ID": "17"}, ["batch script", "put srun before"]),
    (ACROSS, ["Open MPI's mpirun says rank 3 of 8",
              "but not where rank 0 runs: set MASTER_ADDR for all ranks (-x MASTER_ADDR=...)"]),
    (HYDRA, ["mpiexec (PMI) says rank 1 of 2", "but not which port its store can have: set MASTER_PORT"]),
    ({"PMIX_RANK": "1"}, ["how many ranks there are: set WORLD_SIZE", "init_method='mpi://'"]),
    ({**SRUN, "RANK": "2"},
     ["RANK is given as 2, but srun says rank 5 of 7", "or set WORLD_SIZE, MASTER_ADDR and MASTER_PORT as well"]),
    ({**SRUN, "MASTER_PORT": "http"}, ["MASTER_PORT is 'http'"]),
    ({**SRUN, "RANK": "first"}, ["RANK is 'first', not a number"]),
])
def test_what_is_missing_is_said(environment: dict[str, str], says: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _without_launchers(monkeypatch, **environment)
    monkeypatch.setattr(env, "_HAS_MPI", False)
    with pytest.raises(ValueError) as caught:
        dist.init_process_group("shardwire")
    assert not [part for part in says if part not in str(caught.value)], str(caught.value)


def test_a_busy_port_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        _without_launchers(monkeypatch, **{**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1",
                                           "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"},
                           MASTER_PORT=port, **NO_LIBUV_ENV)
        with pytest.raises(RuntimeError, match=f"could not open the ranks' store at 127.0.0.1:{port}.*MASTER_PORT"):
            dist.init_process_group("shardwire")


def test_other_backends_keep_torchs_own_env(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_launchers(monkeypatch, **{**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"})
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set"):
        dist.init_process_group("gloo")


def test_registering_again_changes_nothing() -> None:
    handlers = dict(sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers)  # type: ignore[attr-defined]
    shardwire_autoload.register()
    assert handlers == sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers  # type: ignore[attr-defined]
    assert handlers["mpi"].__module__ == handlers["env"].__module__ == "shardwire_autoload"
