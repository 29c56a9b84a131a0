"""Makes, uses and destroys groups over and over: whatever stays behind shows as growth.

    ./run bench rounds [--rounds 100000] [--ranks 2] [--links auto|eager|lazy]

Each round is a group of all ranks over a store of its own, an all_reduce that is checked, and its end. Prints, of rank
0, resident memory, descriptors, threads and mappings after the first thousand rounds and at the end, and exits with 1
when one of the last three grew, or memory by more than 100 bytes a round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import record
import shardwire

SETTLED = 1000  # rounds until pools, caches and the allocator have what they keep


def footprint() -> dict[str, int]:
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * 4096
    with open("/proc/self/maps") as file:
        mappings = sum(1 for _ in file)
    return {"resident bytes": resident, "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")), "mappings": mappings}


def rank_main(rank: int, args: argparse.Namespace, folder: str) -> int:
    settled: dict[str, int] = {}
    begin = time.perf_counter()
    for i in range(args.rounds):
        path = f"{folder}/{i}"
        group = shardwire.create_process_group(dist.FileStore(path, args.ranks), rank, args.ranks, timeout=60)
        tensor = torch.full((16,), float(rank + i % 7))
        dist.all_reduce(tensor, group=group)
        expected = args.ranks * (args.ranks - 1) / 2 + args.ranks * (i % 7)
        if tensor[0].item() != expected:
            print(f"round {i}, rank {rank}: {tensor[0].item()} instead of {expected}", file=sys.stderr)
            return 1
        shardwire.end_process_group(group)
        del group
        if rank == 0 and i > 1 and os.path.exists(old := f"{folder}/{i - 2}"):
            os.unlink(old)
        if i + 1 == min(SETTLED, args.rounds // 2):
            settled = footprint()
    end = footprint()
    if rank > 0:
        return 0
    print(f"torch {torch.__version__}, {args.ranks} ranks, links {args.links}: {args.rounds} rounds, "
          f"{(time.perf_counter() - begin) / args.rounds * 1e3:.2f} ms each")
    for name, value in end.items():
        print(f"{name:<16} {settled[name]:>12} after {min(SETTLED, args.rounds // 2)} rounds {value:>12} at the end")
    grown = [name for name in ("descriptors", "threads", "mappings") if end[name] > settled[name]]
    if end["resident bytes"] - settled["resident bytes"] > 100 * args.rounds:
        grown.append("resident bytes")
    if args.json:
        cells = {(name,): {f"after {min(SETTLED, args.rounds // 2)} rounds": settled[name], "at the end": value}
                 for name, value in end.items()}
        took = (time.perf_counter() - begin) / args.rounds * 1e3
        title = f"{args.rounds} rounds of {args.ranks} ranks, {took:.2f} ms each"
        record.write(args.json, "rounds", [record.table(title, ["of rank 0"], cells)],
                     verdict=[f"{name} grew" for name in grown])
    if grown:
        print(f"grew: {', '.join(grown)}")
    return 1 if grown else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100000, help="groups, one after the other (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--links", choices=["auto", "eager", "lazy"], default="auto",
                        help="SHARDWIRE_LINKS (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the table there")
    args = parser.parse_args()
    os.environ["SHARDWIRE_LINKS"] = args.links
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        children = []
        for rank in range(args.ranks):
            if not (child := os.fork()):
                try:
                    code = rank_main(rank, args, folder)
                    sys.stdout.flush()
                    os._exit(code)
                except BaseException as error:  # a rank never comes back into the parent's code
                    print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            children.append(child)
        failed = [rank for rank, child in enumerate(children)
                  if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0]
    if failed:
        raise SystemExit(f"ranks {failed} failed")


if __name__ == "__main__":
    main()
