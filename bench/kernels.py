"""Cold start of a kernel on several ranks: every rank compiles for itself, one compile is shipped, or the cache is
warm; each in fresh processes.

    ./run bench kernels [--ranks 4] [--rounds 3]

The ways take turns. Where every rank compiles for itself, every rank has a separate folder of inductor, as on separate
hosts. Folders are emptied unless the cache is meant to be warm. Time is from the call to the first result, of the
slowest rank; imports and the group are made before. Prints medians in seconds. torch below 2.6 has no AOTInductor and
no useful torch.compile: there the bench says so.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import processes
import record
import shardwire

WAYS = ("each rank: torch.compile", "each rank: DeviceKernel, is_spmd=False", "one compile, shipped", "warm cache")


def block(x: torch.Tensor, up: torch.Tensor, gate: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A feed-forward block with its norm."""
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return x + (torch.nn.functional.silu(normed @ gate) * (normed @ up)) @ down


def run_rank(way: str, folder: str) -> None:
    """One rank: prints the slowest rank's seconds."""
    dist.init_process_group("shardwire")
    if way == WAYS[0]:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor-{dist.get_rank()}"
    elif way == WAYS[1]:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor-mpmd-{dist.get_rank()}"
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor-spmd"
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.export  # noqa: F401: none of the ways pays for imports
    args = [torch.randn(8, 64), torch.randn(64, 256), torch.randn(64, 256), torch.randn(256, 64)]
    dist.barrier()
    begin = time.perf_counter()
    if way == WAYS[0]:
        with torch.no_grad():
            found = torch.compile(block)(*args)
    else:
        found = shardwire.DeviceKernel.compile_and_load(block, *args, build_dir=f"{folder}/kernels",
                                                        is_spmd=way != WAYS[1])(*args)
    seconds = torch.tensor(time.perf_counter() - begin)
    assert torch.allclose(found, block(*args), rtol=1e-3, atol=1e-3)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        sys.stdout.write(f"SECONDS {seconds.item()}\n")
    dist.destroy_process_group()


def measure(way: str, ranks: int, folder: str) -> float:
    command = [sys.executable, "-m", "shardwire.launch", "-n", str(ranks), str(pathlib.Path(__file__).resolve()),
               "--rank", way, folder]
    done = processes.run(command)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SECONDS")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{way}: {done.stdout}{done.stderr}")
    return float(lines[0].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the medians there")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        run_rank(*args.rank)
        return
    if not shardwire.kernels.machine.HAS_AOTI:
        print(f"torch {torch.__version__} has no AOTInductor; this bench needs torch 2.6")
        return
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        # the last way finds what the third one left
        with tempfile.TemporaryDirectory(prefix="shardwire-bench-") as folder:
            for way in WAYS:
                times[way].append(measure(way, args.ranks, folder))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {args.ranks} ranks; medians of {args.rounds} rounds, "
          "seconds until the first result of the slowest rank")
    for way, seconds in times.items():
        print(f"{way:40} {statistics.median(seconds):8.2f}")
    if args.json:
        cells = {(way,): {"s": statistics.median(seconds)} for way, seconds in times.items()}
        record.write(args.json, "kernels",
                     [record.table(f"Until the first result of the slowest of {args.ranks} ranks", ["way"], cells)])


if __name__ == "__main__":
    main()
