"""An operation for several test files to compile and run: rows on each rank become the whole on every rank."""

from __future__ import annotations

import torch

from shardwire import Layout, Replicate, Shard


def layouts(size, rows=6):
    return {"inputs": [Layout(torch.arange(size), [Shard(0)], [rows, 4], torch.float32)],
            "outputs": [Layout(torch.arange(size), [Replicate()], [rows, 4], torch.float32)]}


def run_op(op, rank, size, rows=6):
    each = rows // size
    whole = torch.empty(rows, 4)
    op([torch.full((each, 4), float(rank))], [whole]).wait()
    assert whole[:, 0].tolist() == [float(row // each) for row in range(rows)]
