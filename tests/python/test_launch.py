"""The launcher: environment, exit codes, output, signals, clean-up."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from run_program import run_program
from shardwire.launch import free_port

pytestmark = pytest.mark.any_torch


def launch(launcher, *arguments, timeout=60, **options):
    return run_program([sys.executable, launcher, *arguments], timeout, **options)


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text("import os, sys, time, signal\nrank = int(os.environ['RANK'])\n" + text)
        return str(path)
    return write


def test_environment_and_prefix(launcher, script):
    path = script("print(*(os.environ[k] for k in ('RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR "
                  "USE_LIBUV').split()), *sys.argv[1:])")
    environment = {k: v for k, v in os.environ.items() if k not in ("USE_LIBUV", "OMP_NUM_THREADS")}
    done = launch(launcher, "-n", "3", "--prefix", path, "--flag", "x", env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank {r}] {r} {r} 3 3 127.0.0.1 0 --flag x" for r in range(3)]


def test_collectives_over_env(launcher, script):
    path = script("import torch, torch.distributed as dist, shardwire\ndist.init_process_group('shardwire')\nt = "
                  "torch.ones(1) * rank\n"
                  "dist.all_reduce(t)\nsys.stdout.write(f'sum "
                  "{t.item()}\\n')\ndist.barrier()\ndist.destroy_process_group()")
    done = launch(launcher, "-n", "2", path)
    assert done.returncode == 0 and done.stdout.count("sum 1.0") == 2, done.stderr


def test_ranks_share_a_secret_that_no_other_job_has(launcher, script):
    # one write: lines of ranks do not mix
    path = script("os.write(1, (os.environ['SHARDWIRE_JOB_TOKEN'] + '\\n').encode())")
    environment = {k: v for k, v in os.environ.items() if k != "SHARDWIRE_JOB_TOKEN"}
    tokens = []
    for _ in range(2):
        done = launch(launcher, "-n", "3", path, env=environment)
        assert done.returncode == 0, done.stderr
        seen = set(done.stdout.split())
        assert len(seen) == 1
        tokens += seen
    assert tokens[0] != tokens[1] and all(len(token) == 32 for token in tokens)
    environment["SHARDWIRE_JOB_TOKEN"] = ""  # like an unset variable
    assert len(launch(launcher, "-n", "1", path, env=environment).stdout.strip()) == 32
    environment["SHARDWIRE_JOB_TOKEN"] = "the user's own"
    assert launch(launcher, "-n", "1", path, env=environment).stdout == "the user's own\n"


def test_failed_rank_stops_the_others_and_gives_its_code(launcher, script):
    path = script("if rank == 1: sys.exit(7)\ntime.sleep(60)")
    start = time.monotonic()
    done = launch(launcher, "-n", "3", path)
    assert done.returncode == 7 and time.monotonic() - start < 10
    assert "rank 1 (pid" in done.stderr and "exited with code 7; stopping the other 2" in done.stderr


def test_killed_rank_is_named_with_its_signal(launcher, script):
    path = script("if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(60)")
    done = launch(launcher, "-n", "2", path)
    assert done.returncode == 128 + signal.SIGSEGV
    assert "rank 0 (pid" in done.stderr and "SIGSEGV" in done.stderr


def test_the_end_of_the_reader_of_prefixed_output_ends_the_rank(launcher, script):
    path = script("while True: os.write(1, b'x' * 999 + b'\\n')")
    with subprocess.Popen([sys.executable, launcher, "-n", "1", "--prefix", path], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) != 0


SURVIVE = """
import torch, torch.distributed as dist, shardwire
dist.init_process_group('shardwire')
shardwire.reconfigure_handles()
ones = torch.ones(1)
try:
    for step in range(100000):
        if rank == DEAD and step == 3: os.kill(os.getpid(), 9)
        dist.all_reduce(ones, dist.ReduceOp.MAX)
except shardwire.PeerFailedError:
    shardwire.shrink()
    dist.all_reduce(ones)
os.write(1, f'{int(ones.item())} of {dist.get_world_size()}\\n'.encode())
"""


@pytest.mark.parametrize("dead", [0, 2])
def test_survivors_of_a_killed_rank_go_on(launcher, script, dead):
    done = launch(launcher, "-n", "3", "--survive", script(SURVIVE.replace("DEAD", str(dead))))
    assert (done.returncode, done.stdout) == (0, "2 of 2\n" * 2), done.stderr
    assert f"rank {dead} (pid" in done.stderr and "signal 9 (SIGKILL); the other 2 go on" in done.stderr


def test_survivors_do_not_hide_an_error_or_the_death_of_all(launcher, script):
    assert launch(launcher, "-n", "2", "--survive", script("os.kill(os.getpid(), 9)")).returncode == 128 + 9
    done = launch(launcher, "-n", "2", "--survive", script("if rank == 1: sys.exit(7)\ntime.sleep(60)"))
    assert done.returncode == 7 and "stopping the other 1" in done.stderr


def test_stubborn_ranks_are_killed_after_the_grace_time(launcher, script):
    path = script("if rank == 0:\n  time.sleep(0.5); sys.exit(3)\nsignal.signal(signal.SIGTERM, "
                  "signal.SIG_IGN)\ntime.sleep(60)")
    start = time.monotonic()
    done = launch(launcher, "-n", "2", "--grace", "0.5", path)
    assert done.returncode == 3 and time.monotonic() - start < 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_all_ranks(launcher, script, number, tmp_path):
    path = script(f"signal.signal({int(number)}, lambda *_: (open('{tmp_path}/seen%d' % rank, 'w').close(), "
                  "sys.exit(0)))\n"
                  f"open('{tmp_path}/ready%d' % rank, 'w').close()\ntime.sleep(60)")
    process = subprocess.Popen([sys.executable, launcher, "-n", "2", path])
    deadline = time.monotonic() + 20
    while not all((tmp_path / f"ready{r}").exists() for r in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert all((tmp_path / f"seen{r}").exists() for r in range(2))


def test_an_ignored_hangup_stays_ignored(launcher, script, tmp_path):
    path = script(f"open('{tmp_path}/ready%d' % rank, 'w').close()\n"
                  f"while not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\n"
                  "sys.exit(0 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 4)")
    process = subprocess.Popen(["nohup", sys.executable, launcher, "-n", "1", path], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (tmp_path / "ready0").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert process.wait(timeout=20) == 0


def gone(pid):
    """Whether the process has ended; nobody may have waited for it yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_ranks_die_with_a_killed_launcher(launcher, script, tmp_path):
    path = script(f"open('{tmp_path}/pid%d' % rank, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    process = subprocess.Popen([sys.executable, launcher, "-n", "2", path])
    deadline = time.monotonic() + 20
    files = [tmp_path / f"pid{r}" for r in range(2)]
    while not all(f.exists() and f.read_text() for f in files):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait(timeout=20)
    pids = [int(f.read_text()) for f in files]
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_module_and_wrong_arguments(launcher):
    done = launch(launcher, "-n", "1", "-m", "platform")
    assert done.returncode == 0 and "Linux" in done.stdout
    assert "give at least 1" in launch(launcher, "-n", "0", "x.py").stderr
    assert "there is no file 'nothing.py'" in launch(launcher, "-n", "1", "nothing.py").stderr


def test_as_a_module():
    done = run_program([sys.executable, "-m", "shardwire.launch", "-n", "2", "-m", "platform"])
    assert done.returncode == 0 and done.stdout.count("Linux") == 2, done.stderr


SHOW = ("sys.stdout.write(' '.join(str(os.environ.get(k)) for k in 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "
        "MASTER_ADDR MASTER_PORT OMP_NUM_THREADS PMI_RANK'.split()) + f' {os.getppid()}\\n')")
SRUN = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "4,2,1", "SLURM_STEP_NODELIST": "gpu[07-09]",
        "SLURM_CPUS_PER_TASK": "6", "PMI_RANK": "5"}


def under(more):
    """The environment of a process under a launcher that sets ``more``; no other variable names a rank."""
    prefixes = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMP_NUM", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(prefixes)}, **more}


def test_a_task_of_srun_becomes_the_rank(launcher, script):
    process = subprocess.Popen([sys.executable, launcher, script(SHOW + "\nsys.exit(9)")], env=under(SRUN),
                               stdout=subprocess.PIPE, text=True)
    output = process.communicate(timeout=60)[0].split()
    assert process.returncode == 9
    # no process between us and the rank
    assert output == ["5", "7", "1", "2", "gpu07", str(10000 + 1234 + 2 * 997), "6", "5", str(os.getpid())]


def test_a_task_of_srun_starts_ranks_of_the_job(launcher, script):
    done = launch(launcher, "-n", "3", "--prefix", "--master-addr", "head", "--master-port", "2", script(SHOW),
                  env=under(SRUN))
    assert done.returncode == 0, done.stderr
    lines = sorted(line.rsplit(" ", 1)[0] for line in done.stdout.splitlines())
    assert lines == [f"[rank {15 + k}] {15 + k} 21 {3 + k} 6 head 2 2 None" for k in range(3)]
    done = launch(launcher, "-n", "2", script("sys.exit(4 if rank == 11 else 0)"), env=under(SRUN))
    assert done.returncode == 4 and "shardwire.launch: rank 11 (pid" in done.stderr, done.stderr


def test_standalone_takes_no_notice_of_srun(launcher, script):
    done = launch(launcher, "--standalone", "-n", "1", "--master-port", "7", script(SHOW), env=under(SRUN))
    assert done.stdout.rsplit(" ", 1)[0] == "0 1 0 1 127.0.0.1 7 1 None", done.stderr


@pytest.mark.parametrize(("environment", "arguments", "says"), [
    ({}, [], "give -n N, how many ranks to start on this host; srun, mpirun and mpiexec would set SLURM_PROCID"),
    ({"SLURM_JOB_ID": "17"}, [], "batch script or the shell of Slurm job 17"),
    (SRUN, ["--standalone"], "give -n N"),
    ({**SRUN, "SLURM_PROCID": "x"}, [], "SLURM_PROCID is 'x', not a number"),
    ({**SRUN, "MASTER_PORT": "x"}, [], "MASTER_PORT is 'x'"),
    ({**SRUN, "SLURM_DISTRIBUTION": "arbitrary"}, [], "srun says rank 5 of 7 (SLURM_JOB_ID=1234"),
    ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, [],
     "but not where rank 0 runs (give --master-addr HOST"),
    ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, [],
     "but not which port rank 0's store can have (give --master-port PORT"),
    ({"PMIX_RANK": "1"}, [], "but not how many ranks there are"),
    ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ["-n", "2", "--master-addr", "h", "--master-port", "5"], "leave out -n"),
])
def test_what_a_launcher_does_not_state_is_asked_for(launcher, script, environment, arguments, says):
    done = launch(launcher, *arguments, script("print('ran')"), env=under(environment))
    assert done.returncode == 2 and says in done.stderr and "ran" not in done.stdout, done.stdout + done.stderr


def test_hosts_by_hand_make_one_job(launcher, script):
    shown = []
    for node in ("0", "1"):
        done = launch(launcher, "--nnodes", "2", "--node-rank", node, "-n", "3", "--master-addr", "head",
                      "--master-port", "29499", script(SHOW), env=under(SRUN))
        assert done.returncode == 0, done.stderr
        shown += sorted(line.rsplit(" ", 1)[0] for line in done.stdout.splitlines())
    # srun's variables do not count, and MPI's variables are hidden
    assert shown == [f"{rank} 6 {rank % 3} 3 head 29499 1 None" for rank in range(6)]
    pods = under({"MASTER_ADDR": "trainer-master-0", "MASTER_PORT": "23456"})
    done = launch(launcher, "--nnodes", "3", "--node-rank", "2", "-n", "1", script(SHOW), env=pods)
    assert done.stdout.rsplit(" ", 1)[0] == "2 3 0 1 trainer-master-0 23456 1 None", done.stderr
    done = launch(launcher, "--nnodes", "1", "-n", "1", "--master-port", "7", script(SHOW), env=under({}))
    assert done.stdout.rsplit(" ", 1)[0] == "0 1 0 1 127.0.0.1 7 1 None", done.stderr


def test_a_job_of_two_launchers(launcher, script):
    path = script("import torch, torch.distributed as dist, shardwire\ndist.init_process_group('shardwire')\nt = "
                  "torch.ones(1) * rank\n"
                  "dist.all_reduce(t)\nsys.stdout.write(f'sum "
                  "{t.item()}\\n')\ndist.barrier()\ndist.destroy_process_group()")
    command = [sys.executable, launcher, "--nnodes", "2", "-n", "2", "--master-addr", "127.0.0.1", "--master-port",
               str(free_port()), "--node-rank"]
    hosts = [subprocess.Popen([*command, node, path], env=under({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) for node in ("1", "0")]
    for host in hosts:
        output, errors = host.communicate(timeout=60)
        assert host.returncode == 0 and output.count("sum 6.0") == 2, errors


@pytest.mark.parametrize(("arguments", "says"), [
    (["--nnodes", "2", "-n", "1"],
     "--node-rank is not given; with --nnodes 2 each host has a number of its own, from 0 to 1"),
    (["--nnodes", "2", "--node-rank", "2", "-n", "1"], "--node-rank is 2; with --nnodes 2"),
    (["--nnodes", "0", "-n", "1"], "--nnodes is 0; give at least 1"),
    (["--nnodes", "2", "--node-rank", "1", "-n", "1"],
     "does not determine where rank 0 runs (give --master-addr HOST, or set MASTER_ADDR), nor which port"),
    (["--nnodes", "2", "--node-rank", "1", "-n", "1", "--master-addr", "h"],
     "does not determine which port its store can have (give --master-port PORT"),
    (["--nnodes", "2", "--node-rank", "1", "--master-addr", "h"], "give -n N"),
    (["--node-rank", "1", "-n", "1"], "--node-rank goes with --nnodes"),
    (["--nnodes", "2", "--standalone", "-n", "1"], "leave one of them out"),
])
def test_hosts_by_hand_say_what_is_missing(launcher, script, arguments, says):
    done = launch(launcher, *arguments, script("print('ran')"), env=under({}))
    assert done.returncode == 2 and says in " ".join(done.stderr.split()) and "ran" not in done.stdout, (
        done.stdout + done.stderr)


def test_a_busy_port_is_reported_by_rank_0(launcher, script):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = launch(launcher, "--master-port", str(port), script("print('ran')"),
                      env=under({**SRUN, "SLURM_PROCID": "0"}))
        node = launch(launcher, "--nnodes", "2", "--node-rank", "0", "-n", "1", "--master-addr", "h", "--master-port",
                      str(port), script("print('ran')"), env=under({}))
    for each in (done, node):
        assert (each.returncode == 2 and f"cannot have port {port}" in each.stderr
                and "Give --master-port" in each.stderr), each.stderr


def test_no_module_beside_it_hides_one_of_python(launcher):
    """When run by path, the launcher's folder comes first in sys.path."""
    folder = os.path.dirname(os.path.realpath(launcher))
    assert not {name.removesuffix(".py") for name in os.listdir(folder)} & set(sys.stdlib_module_names)
