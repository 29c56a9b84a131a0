"""A group made under other people's launchers: torchrun, mpirun, torch.multiprocessing, and by hand through tcp:// and file://."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# 2.6 is Debian 13's, built without the libuv that it asks for by default.
NO_LIBUV = {"USE_LIBUV": "0"} if VERSION == (2, 6) else {}

SCRIPT = """
import os
for ours, theirs in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
    os.environ.setdefault(ours, os.environ.get(theirs, ""))
import torch, torch.distributed as dist, shardwire
dist.init_process_group("shardwire")
tensor = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
assert tensor.tolist() == [3.0] * 3, tensor
dist.barrier()
if dist.get_rank() == 0:
    print("summed on", dist.get_world_size(), "ranks", flush=True)
dist.destroy_process_group()
"""


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _run(command: list[str], tmp_path: Path, **more: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, **NO_LIBUV, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "summed on 2 ranks" in done.stdout + done.stderr


@pytest.mark.skipif(VERSION == (2, 6), reason="Debian 13's torchrun asks for libuv, which its torch was built without")
def test_torchrun(tmp_path: Path) -> None:
    options = ["-r", "1", "-t", "1"] if VERSION == (1, 13) else []  # 1.13 on Python 3.11 fails without them
    _run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(_free_port()), *options], tmp_path)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here")
def test_mpirun(tmp_path: Path) -> None:
    port = str(_free_port())
    _run(["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "PYTHONPATH", sys.executable],
         tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


def _by_hand(rank: int, method: str) -> None:
    os.environ.update(NO_LIBUV)
    import torch.distributed as dist

    import shardwire
    dist.init_process_group("shardwire", init_method=method, rank=rank, world_size=2)
    for round_number in range(2):  # destroyed and made again
        tensor = torch.ones(3) * (rank + 1)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0] * 3
        dist.barrier()
        dist.destroy_process_group()
        if round_number == 0:
            again = f"{method}.again" if method.startswith("file://") else f"tcp://127.0.0.1:{int(method.rsplit(':', 1)[1]) + 1}"
            dist.init_process_group("shardwire", init_method=again, rank=rank, world_size=2)
    assert shardwire.__version__


@pytest.mark.parametrize("how", ["tcp", "file"])
def test_multiprocessing_and_re_init(how: str, tmp_path: Path) -> None:
    method = f"tcp://127.0.0.1:{_free_port()}" if how == "tcp" else f"file://{tmp_path}/meeting"
    torch.multiprocessing.spawn(_by_hand, args=(method,), nprocs=2)
