"""One rank of a job on two nodes: shared memory inside, a wire between (SHARDWIRE_JOB_WIRE: tcp, or rdma in the
machines of tests/rig)."""

import os
import re
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import shardwire


def say(word: str) -> None:
    """On standard output, and as a file where the caller wants one: torchrun may lose the last words of a rank."""
    print(word, flush=True)
    if "SHARDWIRE_JOB_FOLDER" in os.environ:
        Path(os.environ["SHARDWIRE_JOB_FOLDER"], word).touch()


def registrations() -> int:
    """How often this rank has registered memory with RDMA devices."""
    counts = re.findall(r"(\d+) registrations so far", shardwire.describe_transports())
    assert counts, shardwire.describe_transports()
    return int(counts[-1])


def main() -> None:
    dist.init_process_group("shardwire", timeout=timedelta(seconds=60))
    rank, size, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    # The transport to each rank.
    for peer, line in zip(range(size), shardwire.describe_transports().splitlines()):
        if peer != rank:
            wanted = "shm" if peer // local == rank // local else os.environ.get("SHARDWIRE_JOB_WIRE", "tcp")
            assert line.startswith(f"rank {peer}: {wanted}"), line

    for elems in (1, 1000, 1 << 20):
        values = torch.arange(elems, dtype=torch.float32) + rank
        dist.all_reduce(values)
        assert torch.equal(values, torch.arange(elems, dtype=torch.float32) * size + sum(range(size)))
        gathered = [torch.empty(elems) for _ in range(size)]
        dist.all_gather(gathered, torch.full((elems,), float(rank)))
        assert all(torch.equal(part, torch.full((elems,), float(r))) for r, part in enumerate(gathered))
        sent = torch.arange(elems, dtype=torch.int64) if rank == 1 else torch.empty(elems, dtype=torch.int64)
        dist.broadcast(sent, src=1)
        assert torch.equal(sent, torch.arange(elems, dtype=torch.int64))

    # Rows to columns, across nodes and within.
    n = 512
    rows, columns = n // size, n // size
    whole = torch.arange(n * n, dtype=torch.float32).reshape(n, n)
    op = shardwire.compile_op(
        None,
        (n, n),
        torch.float32,
        [{"offset": (rank * rows, 0), "shape": (rows, n)}],
        [{"offset": (0, rank * columns), "shape": (n, columns)}],
    )
    out = torch.empty(n, columns)
    for _ in range(3):
        op([whole[rank * rows : (rank + 1) * rows].clone()], [out.zero_()]).wait()
        assert torch.equal(out, whole[:, rank * columns : (rank + 1) * columns])

    # A training loop's tensors: the memory is registered in the first rounds only. No op was bound.
    if os.environ.get("SHARDWIRE_JOB_WIRE") == "rdma":
        rows_of_mine, gradient = whole[rank * rows : (rank + 1) * rows].clone(), torch.ones(1 << 20)
        counts = []
        for _ in range(8):
            op([rows_of_mine], [out]).wait()
            dist.all_reduce(gradient)
            counts.append(registrations())
        assert counts[2] == counts[-1], counts
        say(f"REGISTERED {counts}")

    if "--kill" in sys.argv:
        # The last rank dies; the error on the other ranks, on both nodes, names this rank long before the timeout.
        start = time.monotonic()
        try:
            dist.barrier()  # no rank is in an earlier operation; some ranks may be in this barrier
            if rank == size - 1:
                os.kill(os.getpid(), 9)
            dist.all_reduce(torch.ones(1 << 20))
        except RuntimeError as error:
            assert f"rank {size - 1}" in str(error), error
            assert time.monotonic() - start < 30, "that was the timeout"
            say(f"NAMED {rank}")
            # This rank fails too, or torchrun would wait five minutes for the other node. The exit is late: torchrun
            # must not end a neighbour that has not looked yet.
            time.sleep(3)
            os._exit(1)
        raise AssertionError("a dead rank was not noticed")
    say(f"DONE {rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
