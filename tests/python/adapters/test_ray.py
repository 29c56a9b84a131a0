"""Ray's actors as ranks, as in docs/launching.md: by our name, and by gloo's under SHARDWIRE_AS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed: ./run frameworks makes an environment that has it")

SCRIPT = """
import json
import ray

@ray.remote(num_cpus=1)
class Worker:
    def port(self):
        from shardwire.launch import free_port
        return free_port()

    def join(self, rank, size, port, backend):
        import torch, torch.distributed as dist
        import shardwire
        dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        tensor = torch.ones(3) * (rank + 1)
        dist.all_reduce(tensor)
        found = [tensor.tolist(), dist.get_backend(), shardwire.global_ranks(None)]
        dist.barrier()
        dist.destroy_process_group()
        return found

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
results = []
for backend, variables in (("shardwire", {}), ("gloo", {"SHARDWIRE_AS": "gloo"})):
    workers = [Worker.options(runtime_env={"env_vars": variables}).remote() for _ in range(2)]
    port = ray.get(workers[0].port.remote())
    results.append(ray.get([worker.join.remote(rank, 2, port, backend) for rank, worker in enumerate(workers)], timeout=120))
    for worker in workers:
        ray.kill(worker)
ray.shutdown()
print("results " + json.dumps(results))
"""


def test_actors_make_a_group(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    # Ray keeps a token there
    home = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(tmp_path / "job.py")], capture_output=True, text=True, timeout=240,
                          check=False, env=home, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout.split("results ", 1)[1])
    assert results == [[[[3.0] * 3, backend, [0, 1]]] * 2 for backend in ("shardwire", "gloo")]
