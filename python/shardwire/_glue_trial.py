"""Tries a wheel's native part for one torch with a newer torch: two processes make a group and use it.

The two processes run this file as a script, with SHARDWIRE_GLUE naming the part. So a crash ends a process of the
trial, and not the user's. A file in the user's cache notes that a part passed, under the exact torch and the part's
times of change; the next import reads the note. Ranks that start together wait at the lock of this file while one rank
tries.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO

_TRIAL_S = 120.0  # two imports of torch on a busy machine
_GROUP_S = 30
# Of a launcher, or the user's choices: the two processes are a job of their own.
_LEFT_OUT = ("SHARDWIRE_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_")


def problem_with(folder: str, built_for: str, torch_version: str) -> str:
    """Why the native part in ``folder`` does not work with the running torch; "" where the part works."""
    try:
        note: IO[str] = _open_alone(_note_path(folder, torch_version))
    except OSError:  # without a writable cache every import tries
        return _tried(built_for)
    with note:
        if note.read():
            return ""
        problem = _tried(built_for)
        if not problem:
            note.write(f"the part for torch {built_for} works with torch {torch_version}\n")
        return problem


def _note_path(folder: str, torch_version: str) -> str:
    import torch
    about = [folder, torch_version, getattr(torch.version, "git_version", ""), torch.__file__, sys.version,
             *(f"{name} {os.stat(os.path.join(folder, name)).st_mtime_ns}" for name in sorted(os.listdir(folder)))]
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "shardwire", "glue", hashlib.sha256("\n".join(about).encode()).hexdigest()[:32])


def _open_alone(path: str) -> IO[str]:
    """The file, made where there is none, for one process at a time."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = open(path, "a+")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    return file


def _tried(built_for: str) -> str:
    """The last line of a process that failed; "" where both succeeded."""
    if not sys.executable:
        return "no Python interpreter is known that could try the part"
    with tempfile.TemporaryDirectory(prefix="shardwire-glue-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        environment |= {"SHARDWIRE_GLUE": built_for, "PYTHONPATH": os.pathsep.join(sys.path)}
        ranks = []
        for rank in range(2):
            with open(os.path.join(folder, str(rank)), "wb") as said:
                ranks.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), folder, str(rank)],
                                              stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment))
        deadline = time.monotonic() + _TRIAL_S
        for process in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
        for rank, process in enumerate(ranks):
            if process.returncode:
                with open(os.path.join(folder, str(rank)), errors="replace") as said:
                    lines = said.read().split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
                return f"the trial ended with {_ending(process.returncode)} ({last})"
    return ""


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def _use(folder: str, rank: int) -> None:
    """A rank of the trial: each virtual function that torch calls of a backend, with checked results."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    import shardwire

    dist.init_process_group("shardwire", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                            timeout=timedelta(seconds=_GROUP_S))
    own, other = float(rank + 1), float(2 - rank)

    def full(value: float, count: int = 4) -> torch.Tensor:
        return torch.full((count,), value, dtype=torch.float32)

    def expect(what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise AssertionError(f"{what} gave {found}, not {wanted}")

    tensor = full(own)
    work = dist.all_reduce(tensor, async_op=True)
    expect("the future", work.get_future().wait()[0].tolist(), [3.0] * 4)
    work.wait()
    expect("all_reduce", tensor.tolist(), [3.0] * 4)
    dist.broadcast(tensor := full(own), 1)
    expect("broadcast", tensor.tolist(), [2.0] * 4)
    dist.reduce(tensor := full(own), 0)
    expect("reduce", tensor.tolist(), [3.0 if rank == 0 else own] * 4)
    dist.all_gather(rows := [full(0), full(0)], full(own))
    expect("all_gather", [row[0].item() for row in rows], [1.0, 2.0])
    dist.all_gather_into_tensor(tensor := full(0, 8), full(own))
    expect("all_gather_into_tensor", tensor.tolist(), [1.0] * 4 + [2.0] * 4)
    dist.reduce_scatter_tensor(tensor := full(0), full(own, 8))
    expect("reduce_scatter_tensor", tensor.tolist(), [3.0] * 4)
    dist.reduce_scatter(tensor := full(0), [full(own), full(own)])
    expect("reduce_scatter", tensor.tolist(), [3.0] * 4)
    dist.all_to_all_single(tensor := full(0, 2), full(own, 2))
    expect("all_to_all_single", tensor.tolist(), [1.0, 2.0])
    dist.all_to_all(rows := [full(0), full(0)], [full(own), full(own)])
    expect("all_to_all", [row[0].item() for row in rows], [1.0, 2.0])
    dist.gather(full(own), rows if rank == 0 else None, 0)
    dist.scatter(tensor := full(0), [full(5), full(6)] if rank == 0 else None, 0)
    expect("scatter", tensor.tolist(), [5.0 + rank] * 4)
    for turn in (0, 1):
        if rank == turn:
            dist.send(full(own), 1 - rank)
        else:
            dist.recv(tensor := full(0), 1 - rank)
            expect("recv", tensor.tolist(), [other] * 4)
    dist.barrier()
    said: list[object] = [None, None]
    dist.all_gather_object(said, {"rank": rank})
    expect("all_gather_object", said, [{"rank": 0}, {"rank": 1}])
    pair = dist.new_group([0, 1])
    dist.all_reduce(tensor := full(own), group=pair)
    expect("all_reduce of a sub-group", tensor.tolist(), [3.0] * 4)
    dist.destroy_process_group(pair)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.full((1, 3), own)).sum().backward()
    expect("the gradient of DDP", model.module.weight.grad.tolist(), [[1.5] * 3] * 2)
    cut = shardwire.Layout([0, 1], [shardwire.Shard(0)], (4,), torch.float32)
    whole = shardwire.Layout([0, 1], [shardwire.Replicate()], (4,), torch.float32)
    moved = shardwire.compile_op(None, (4,), torch.float32, inputs=[cut], outputs=[whole])
    moved(full(own, 2), tensor := full(0)).wait()
    expect("compile_op", tensor.tolist(), [1.0, 1.0, 2.0, 2.0])
    dist.destroy_process_group()


if __name__ == "__main__":
    # As a script, Python looks for modules in this file's folder first, where shardwire's modules would hide others.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]
    _use(sys.argv[1], int(sys.argv[2]))
