"""The launcher: environment, exit codes, output, signals, clean-up."""

import os
import signal
import subprocess
import sys
import time

import pytest


def launch(launcher, *arguments, timeout=60, **options):
    return subprocess.run([sys.executable, launcher, *arguments], capture_output=True, text=True, timeout=timeout, **options)


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text("import os, sys, time, signal\nrank = int(os.environ['RANK'])\n" + text)
        return str(path)
    return write


def test_environment_and_prefix(launcher, script):
    path = script("print(*(os.environ[k] for k in ('RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR USE_LIBUV').split()), *sys.argv[1:])")
    environment = {k: v for k, v in os.environ.items() if k not in ("USE_LIBUV", "OMP_NUM_THREADS")}
    done = launch(launcher, "-n", "3", "--prefix", path, "--flag", "x", env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank {r}] {r} {r} 3 3 127.0.0.1 0 --flag x" for r in range(3)]


def test_collectives_over_env(launcher, script):
    path = script("import torch, torch.distributed as dist, shardwire\ndist.init_process_group('shardwire')\nt = torch.ones(1) * rank\n"
                  "dist.all_reduce(t)\nsys.stdout.write(f'sum {t.item()}\\n')\ndist.barrier()\ndist.destroy_process_group()")
    done = launch(launcher, "-n", "2", path)
    assert done.returncode == 0 and done.stdout.count("sum 1.0") == 2, done.stderr


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


def test_stubborn_ranks_are_killed_after_the_grace_time(launcher, script):
    path = script("if rank == 0:\n  time.sleep(0.5); sys.exit(3)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)")
    start = time.monotonic()
    done = launch(launcher, "-n", "2", "--grace", "0.5", path)
    assert done.returncode == 3 and time.monotonic() - start < 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_all_ranks(launcher, script, number, tmp_path):
    path = script(f"signal.signal({int(number)}, lambda *_: (open('{tmp_path}/seen%d' % rank, 'w').close(), sys.exit(0)))\n"
                  f"open('{tmp_path}/ready%d' % rank, 'w').close()\ntime.sleep(60)")
    process = subprocess.Popen([sys.executable, launcher, "-n", "2", path])
    deadline = time.monotonic() + 20
    while not all((tmp_path / f"ready{r}").exists() for r in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert all((tmp_path / f"seen{r}").exists() for r in range(2))


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
    while any(os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split(")")[1][:3] for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_module_and_wrong_arguments(launcher):
    done = launch(launcher, "-n", "1", "-m", "platform")
    assert done.returncode == 0 and "Linux" in done.stdout
    assert "give at least 1" in launch(launcher, "-n", "0", "x.py").stderr
    assert "there is no file 'nothing.py'" in launch(launcher, "-n", "1", "nothing.py").stderr


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "shardwire.launch", "-n", "2", "-m", "platform"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("Linux") == 2, done.stderr
