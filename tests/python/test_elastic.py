"""torchrun restarts a job with another number of workers, because an agent joined or left.

Each job has two agents. This process holds the store of the agents' rendezvous, so either agent may leave. A worker
whose first sums are right writes its agent, rank and world size into this store, and sums until this process writes
"stop".
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from conftest import TORCH

pytestmark = [
    pytest.mark.skipif(TORCH == (1, 13), reason="Debian 12's torchrun does not start ranks anew on Python 3.11"),
    pytest.mark.skipif(TORCH == (2, 6), reason="Debian 13's torchrun asks for libuv, which Debian's torch lacks"),
]

WORKER = """
import sys, time
import shardwire
import torch, torch.distributed as dist
agent, port = sys.argv[1:]
places = dist.TCPStore("127.0.0.1", int(port))
dist.init_process_group("shardwire")
rank, size = dist.get_rank(), dist.get_world_size()
for group in (None, dist.new_group()):
    tensor = torch.ones(3) * (rank + 1)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size * (size + 1) / 2] * 3, tensor
places.set(f"{agent}: rank {rank} of {size}", "")
stopped = torch.zeros(1)
while not stopped.item():
    stopped.fill_(places.check(["stop"]))
    dist.all_reduce(stopped)
    time.sleep(0.01)  # leaves the cores to processes that start
dist.destroy_process_group()
"""


class Job:
    def __init__(self, folder: Path) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.folder = folder
        self.agents: list[subprocess.Popen[bytes]] = []
        (folder / "worker.py").write_text(WORKER)

    def agent(self, name: str, address: str, workers: int = 1, last_call: int = 1,
              **more: str) -> subprocess.Popen[bytes]:
        """The agent waits for `last_call` seconds for further agents. The lowest address gets rank 0.

        An agent finds a free port for the store of rank 0, and rank 0 listens there later. Another process may take the
        port meanwhile, and the workers then need one more restart.
        """
        port = str(self.store.port)
        with open(self.folder / f"{name}.log", "wb") as log:
            self.agents.append(subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", str(workers),
                 "--max-restarts", "3", "--monitor-interval", "0.05", "--local-addr", address, "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0,keep_alive_interval=1,"
                 f"keep_alive_max_attempt=3,last_call_timeout={last_call}", str(self.folder / "worker.py"), name, port],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more},
                stdout=log, stderr=subprocess.STDOUT))
        return self.agents[-1]

    def await_keys(self, *keys: str) -> None:
        try:
            self.store.wait(list(keys), timedelta(seconds=100))
        except RuntimeError as error:
            logs = [f"{log.name}:\n{log.read_text()}" for log in sorted(self.folder.glob("*.log"))]
            raise AssertionError("\n".join([f"no {keys}: {error}", *logs])) from error

    def finish(self, agent: subprocess.Popen[bytes]) -> None:
        self.store.set("stop", "")
        assert agent.wait(100) == 0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for agent in made.agents:
        agent.terminate()
    for agent in made.agents:
        agent.wait()


def test_an_agent_joins_and_the_agent_of_rank_0_leaves(job: Job) -> None:
    # By default agents keep one store for all attempts, and a late agent does not learn the address (torch 2.13).
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    first = job.agent("first", "127.0.0.1", **own_store)
    job.await_keys("first: rank 0 of 1")
    second = job.agent("second", "127.0.0.2", **own_store)
    job.await_keys("first: rank 0 of 2", "second: rank 1 of 2")
    first.terminate()
    job.await_keys("second: rank 0 of 1")
    job.finish(second)


def test_an_agent_leaves_a_job_whose_store_is_kept(job: Job) -> None:
    """The store still has the addresses of all three workers of the attempt before."""
    leaving = job.agent("leaving", "127.0.0.2", last_call=100)  # waits for the other agent
    job.await_keys("torch.rendezvous.none")
    staying = job.agent("staying", "127.0.0.1", workers=2)
    job.await_keys("staying: rank 0 of 3", "staying: rank 1 of 3", "leaving: rank 2 of 3")
    leaving.terminate()
    job.await_keys("staying: rank 0 of 2", "staying: rank 1 of 2")
    job.finish(staying)
