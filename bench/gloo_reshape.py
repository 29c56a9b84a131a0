"""Today's ways to reshape Shard(0) -> Shard(1) in Python, on the torch at hand: gloo's all_gather and a slice, and
DTensor.redistribute over gloo.

Also torch's own strided copy inside each rank, all ranks at once, as a yardstick. Prints the keys of reshape_bench.
Buffers are rewritten before every iteration; a time is that of the slowest rank.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("-i", "--iterations", type=int, default=21)
    parser.add_argument("-w", "--warmup", type=int, default=3)
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    return parser.parse_args(arguments)


def share_of(extent, parts, part):
    """(first, number) of what `part` holds, as torch.chunk cuts."""
    chunk = -(-extent // parts)
    first = min(extent, chunk * part)
    return first, min(extent - first, chunk)


class Cases:
    """The tensors of one rank, and the ways to reshape them."""

    def __init__(self, rank, options):
        self.rank, self.options = rank, options
        self.first_row, self.rows = share_of(options.rows, options.ranks, rank)
        self.first_column, self.columns = share_of(options.columns, options.ranks, rank)
        self.input = torch.empty(self.rows, options.columns)
        self.index = torch.arange(self.first_row * options.columns,
                                  (self.first_row + self.rows) * options.columns).view_as(self.input)

    def rewrite(self, iteration):
        self.input.copy_((self.index + iteration) & 0xFFFF)

    def expected(self, iteration):
        rows = torch.arange(self.options.rows).unsqueeze(1) * self.options.columns
        return ((rows + torch.arange(self.first_column, self.first_column + self.columns) + iteration) & 0xFFFF).float()

    def names(self):
        names = ["torch_local_copy", "gloo_all_gather"]
        if self.mesh_module() is not None:
            names.append("dtensor_redistribute")
        return [name for name in names if not self.options.only or name in self.options.only.split(",")]

    @staticmethod
    def mesh_module():
        try:
            import torch.distributed.tensor as tensor
        except ImportError:
            return None
        return tensor if hasattr(tensor, "DTensor") and hasattr(tensor, "Shard") else None

    def torch_local_copy(self):
        """As many bytes in the same shape, from and to this rank."""
        if not hasattr(self, "local_output"):
            self.local_output = torch.zeros(self.options.rows, self.columns)
        for part in range(self.options.ranks):
            first, rows = share_of(self.options.rows, self.options.ranks, part)
            column, columns = share_of(self.options.columns, self.options.ranks, part)
            rows, columns = min(rows, self.rows), min(columns, self.columns)
            self.local_output[first : first + rows, :columns].copy_(self.input[:rows, column : column + columns])
        return None

    def gloo_all_gather(self):
        if not hasattr(self, "gathered"):
            self.gathered = [torch.zeros(share_of(self.options.rows, self.options.ranks, part)[1], self.options.columns)
                             for part in range(self.options.ranks)]
        dist.all_gather(self.gathered, self.input)
        return torch.cat([part[:, self.first_column : self.first_column + self.columns] for part in self.gathered])

    def dtensor_redistribute(self):
        tensor = self.mesh_module()
        if not hasattr(self, "mesh"):
            from torch.distributed.device_mesh import init_device_mesh

            self.mesh = init_device_mesh("cpu", (self.options.ranks,))
        shape = torch.Size([self.options.rows, self.options.columns])
        source = tensor.DTensor.from_local(self.input, self.mesh, [tensor.Shard(0)], run_check=False, shape=shape,
                                           stride=(self.options.columns, 1))
        return source.redistribute(self.mesh, [tensor.Shard(1)]).to_local()


def measure(cases, name, iteration):
    """Microseconds of the slowest rank. The result is checked."""
    cases.rewrite(iteration)
    dist.barrier()
    start = time.perf_counter()
    result = getattr(cases, name)()
    took = torch.tensor((time.perf_counter() - start) * 1e6, dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    if result is not None and not torch.equal(result, cases.expected(iteration)):
        raise RuntimeError(f"{name}: rank {cases.rank} has wrong values in iteration {iteration}")
    return took.item()


def run_rank(rank, options, store):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    cases = Cases(rank, options)
    times = {name: [] for name in cases.names()}
    for iteration in range(-options.warmup, options.iterations):
        for name in times:  # in turns: a slow spell of the machine hits all of them
            took = measure(cases, name, iteration)
            if iteration >= 0:
                times[name].append(took)
    if rank == 0:
        report(times, cases, options)
    dist.barrier()
    dist.destroy_process_group()


def report(times, cases, options):
    size = options.rows * cases.columns * 4
    if options.json:
        keys = {name: {"bytes": size, "us": values} for name, values in times.items()}
        line = {"bench": f"torch {torch.__version__}", "cases": keys, "counts": {}, "ranks": options.ranks,
                "rows": options.rows, "columns": options.columns}
        print(json.dumps(line), flush=True)
        return
    print(f"# torch {torch.__version__}: {options.ranks} ranks, f32 {options.rows} x {options.columns}; times of the "
          "slowest rank")
    print(f"# {'case':<26} {'bytes/rank':>12} {'n':>6} {'median(us)':>11} {'min(us)':>11} {'GB/s':>9}")
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {name:<26} {size:>12} {len(values):>6} {middle:>11.2f} {min(values):>11.2f} "
              f"{size / middle / 1e3:>9.2f}")


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="gloo_reshape-") as folder:
        mp.spawn(run_rank, args=(options, f"{folder}/store"), nprocs=options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
