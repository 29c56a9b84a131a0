"""``python -m shardwire.demo --jobs 2``: a training job and a serving job, started apart, that meet by a URL.

The trainer commits version after version and continues. Each version has other values in every byte (the weights' bytes
xor the version), so the servers, which check every byte, would notice a mixture. This file starts both jobs and is the
program of their ranks.
"""

from __future__ import annotations

import argparse
import datetime
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

import shardwire

from .checkpoint import load_checkpoint
from .gpt2 import make_gpt2
from .job import Source, bytes_of, count_mismatches
from .tensor_parallel import inference_placement, training_placement

_NAME = "demo"


def start(num_ranks: int, runs: int, checkpoint: str | None, timeout: float) -> int:
    """Starts both jobs on this host, each with its own launcher; returns the exit status of the first failed job, else
    0."""
    with tempfile.TemporaryDirectory(prefix="shardwire-demo-") as folder:
        return _run(f"file://{folder}/meeting", folder, num_ranks, [
            "--runs", str(runs), "--timeout", str(timeout), *(["--checkpoint", checkpoint] if checkpoint else [])])


def _run(url: str, folder: str, num_ranks: int, options: list[str]) -> int:
    environment = {**os.environ, "SHARDWIRE_JOB_TOKEN": secrets.token_hex(16)}
    jobs = {}
    for role, count in (("train", num_ranks // 2), ("serve", num_ranks - num_ranks // 2)):
        command = [sys.executable, "-m", "shardwire.launch", "--standalone", "-n", str(count), "-m",
                   "shardwire.demo.two_jobs", role, url, f"{folder}/{role}"]
        jobs[role] = subprocess.Popen([*command, *options], env=environment)
    print(f"two jobs: {num_ranks // 2} ranks train, {num_ranks - num_ranks // 2} serve; they meet at {url}", flush=True)
    try:
        while all(job.poll() is None for job in jobs.values()):
            time.sleep(0.02)
        if not any(job.returncode for job in jobs.values()):  # when one job failed, the other has no partner
            for job in jobs.values():
                job.wait()
        failed = next((job.returncode for job in jobs.values() if job.returncode), 0)
    finally:
        for job in jobs.values():
            if job.poll() is None:
                job.terminate()
            job.wait()
    return failed


def _train(url: str, runs: int, source: Source) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    state, originals = {}, {}
    for name, tensor in source.items():
        layout = shardwire.Layout(list(range(size)), [training_placement(tuple(tensor.shape))], tuple(tensor.shape),
                                  tensor.dtype)
        part = layout.take(tensor, rank)
        assert part is not None
        originals[name] = bytes_of(part)
        state[name] = (layout, part.clone())
    publication = shardwire.publish(url, _NAME, state)
    pauses: list[float] = []
    came, here, version = False, 0.0, 0
    while here or not came:
        version += 1
        for name, (_, local) in state.items():  # a training step
            torch.bitwise_xor(originals[name], _mask(local.dtype, version), out=local.reshape(-1).view(torch.uint8))
        begin = time.perf_counter()
        publication.commit(version)
        pauses.append(time.perf_counter() - begin)
        subscribers = torch.tensor(float(publication.subscribers))
        dist.all_reduce(subscribers)  # a step's collective; all ranks stop together, once the servers came and left
        here = subscribers.item()
        came = came or here > 0
    if rank == 0:
        print(f"trainer: {version} versions committed; a commit took {1e3 * statistics.median(pauses):.1f} ms of the "
              "trainer's time (median)", flush=True)
    return 0


def _serve(url: str, runs: int, source: Source) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    layouts = {}
    for name, tensor in source.items():
        placement, _ = inference_placement(name, tuple(tensor.shape), size)
        layouts[name] = shardwire.Layout(list(range(size)), [placement], tuple(tensor.shape), tensor.dtype)
    begin = time.perf_counter()
    subscription = shardwire.subscribe(url, _NAME, layouts)
    joined = time.perf_counter() - begin
    took, versions, wrong = [], [], 0
    for _ in range(runs):
        subscription.fetch(newer=True)  # may wait for the trainer, so this fetch is not timed
        begin = time.perf_counter()
        versions.append(subscription.fetch())
        took.append(time.perf_counter() - begin)
        for name, layout in layouts.items():
            part = layout.take(source[name], rank)
            assert part is not None
            wrong += count_mismatches(subscription.target[name].reshape(-1).view(torch.uint8),
                                      bytes_of(part) ^ _mask(part.dtype, versions[-1]))
    subscription.fetch(newer=True)  # after this fetch the trainer has seen this subscriber
    subscription.close()
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in subscription.target.values())
    received = torch.tensor([num_bytes, wrong], dtype=torch.float64)
    dist.all_reduce(received)
    if rank == 0:
        seconds = statistics.median(took)
        print(f"server: joined in {1e3 * joined:.0f} ms; {runs} fetches, versions {', '.join(map(str, versions))}\n"
              f"server: {received[0] / 2**20:.1f} MiB in {1e3 * seconds:.1f} ms (median), "
              f"{received[0] / seconds / 1e9:.2f} GB/s; {int(received[1])} bytes differ", flush=True)
    return 1 if received[1] else 0


def _mask(dtype: torch.dtype, version: int) -> int:
    """The byte of the version for this dtype. 0 for bool: a byte other than 0 and 1 is no bool."""
    return 0 if dtype == torch.bool else version % 256


def main(argv: Sequence[str] | None = None) -> int:
    """The program of each rank of either job."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwire.demo.two_jobs",
        description="One rank of the demo's two jobs; use python -m shardwire.demo --jobs 2.")
    parser.add_argument("role", choices=("train", "serve"))
    parser.add_argument("url")
    parser.add_argument("meeting", help="a file for this job's own group")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--checkpoint")
    parser.add_argument("--timeout", type=float, default=300)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("shardwire", init_method=f"file://{arguments.meeting}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]),
                            timeout=datetime.timedelta(seconds=arguments.timeout))
    source = load_checkpoint(arguments.checkpoint) if arguments.checkpoint else make_gpt2(lambda count: None)
    status = (_train if arguments.role == "train" else _serve)(arguments.url, arguments.runs, source)
    dist.barrier()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
