"""Collectives through torch.distributed on this machine: gloo, shardwire with ordinary tensors and with tensors in the
shared heap, and torch's fake backend where torch has the fake backend (which does nothing and shows the cost of Python
and torch). All take turns in one run.

The exit status is 1 when a way of shardwire's is missing or refuses a call.

Tensors are rewritten before every iteration; a time is the median of the slowest rank's; bandwidths as defined by
nccl-tests. Short calls are timed in rows of twenty. Use an otherwise quiet machine.
"""

import argparse
import functools
import importlib
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import record
import shardwire
from peers.table import size_words

WAYS = ("gloo", "shardwire", "shardwire_heap", "fake")
COLLECTIVES = ("all_reduce", "all_to_all_single", "all_gather_into_tensor", "broadcast", "reduce_scatter_tensor")
ROW_UP_TO, CALLS_IN_ROW = 4096, 20


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("-i", "--iterations", type=int, default=21)
    parser.add_argument("-w", "--warmup", type=int, default=3)
    parser.add_argument("--min-bytes", type=int, default=4)
    parser.add_argument("--max-bytes", type=int, default=64 << 20)
    parser.add_argument("--step", type=int, default=4, help="each size is so many times the one before")
    parser.add_argument("--only", default="", help="names of collectives (and latency), separated by commas")
    parser.add_argument("--device", default="cpu", help="where the tensors lie: cpu, or cuda (a time then ends when "
                        "the device is done; ranks share the devices)")
    parser.add_argument("--ways", default=",".join(WAYS), help="some of " + ", ".join(WAYS))
    parser.add_argument("--latency-calls", type=int, default=5000,
                        help="calls for the quantiles of a 4-byte all_reduce, of each backend")
    parser.add_argument("--json", metavar="FILE", help="also write all medians there")
    return parser.parse_args(arguments)


def bus_factor(name, ranks):
    others = (ranks - 1) / ranks
    return {"all_reduce": 2 * others, "broadcast": 1}.get(name, others)


def make_groups(ways):
    """The group of each way that this torch supports, and the reasons for the missing ways."""
    groups, missing = {}, {}
    for way in ways:
        backend = way.split("_")[0]
        try:
            if backend == "fake":
                importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
            groups[way] = dist.group.WORLD if backend == "gloo" else dist.new_group(backend=backend)
            dist.all_reduce(torch.ones(1), group=groups[way])
        except Exception as error:
            groups.pop(way, None)
            missing[way] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return groups, missing


class Tensors:
    """Case of one collective of `size` bytes, as counted by nccl-tests: the longer of input and output."""

    def __init__(self, name, way, size, ranks, device):
        part = max(1, size // 4 // ranks)
        whole = max(1, size // 4) if name in ("all_reduce", "broadcast") else part * ranks
        make = shardwire.empty if way == "shardwire_heap" else functools.partial(torch.empty, device=device)
        self.input = make((part if name == "all_gather_into_tensor" else whole,))
        self.output = (make((part if name == "reduce_scatter_tensor" else whole,))
                       if name not in ("all_reduce", "broadcast") else None)
        self.bytes = whole * 4

    def rewrite(self, value):
        self.input.fill_(value)
        if self.output is not None:
            self.output.fill_(-1)


def caller(name, tensors, group):
    call = getattr(dist, name)
    if name == "all_reduce":
        return lambda: call(tensors.input, group=group)
    if name == "broadcast":
        return lambda: call(tensors.input, 0, group=group)
    return lambda: call(tensors.output, tensors.input, group=group)


def expected(name, rank, ranks, iteration):
    """The first element after one call; rank r writes r + iteration."""
    if name in ("all_reduce", "reduce_scatter_tensor"):
        return ranks * (ranks - 1) / 2 + ranks * iteration
    return float(iteration)


class Bench:
    def __init__(self, rank, options):
        self.rank, self.options = rank, options
        self.groups, self.missing = make_groups(options.ways.split(","))
        self.refused = {}
        # The tightest barrier there is: ranks should start together.
        self.pace = self.groups.get("shardwire") or self.groups.get("shardwire_heap")

    def synchronize(self):
        if self.options.device != "cpu":
            torch.cuda.synchronize()

    def barrier(self):
        dist.barrier(group=self.pace) if self.pace is not None else dist.barrier()

    def slowest(self, times):
        values = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)  # the default group, gloo
        return values.tolist()

    def ways_of(self, name, size):
        """The collectives that work, with their tensors: one trial call each, checked."""
        found = {}
        for way, group in self.groups.items():
            tensors = Tensors(name, way, size, self.options.ranks, self.options.device)
            tensors.rewrite(float(self.rank))
            call = caller(name, tensors, group)
            try:
                call()
            except Exception as error:
                self.refused.setdefault((name, way), f"{type(error).__name__}: {str(error).splitlines()[0]}")
                continue
            result = tensors.input if tensors.output is None else tensors.output
            if way != "fake" and result[0].item() != expected(name, self.rank, self.options.ranks, 0):
                raise RuntimeError(f"{name} by {way}: rank {self.rank} got {result[0].item()}")
            found[way] = (tensors, call)
        return found

    def measure(self, name, size):
        found = self.ways_of(name, size)
        times = {way: [] for way in found}
        bytes_ = max((tensors.bytes for tensors, _ in found.values()), default=size)
        calls = CALLS_IN_ROW if bytes_ <= ROW_UP_TO else 1
        for iteration in range(-self.options.warmup, self.options.iterations):
            for way, (tensors, call) in found.items():
                tensors.rewrite(float(self.rank + iteration))
                self.synchronize()
                self.barrier()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                self.synchronize()
                took = (time.perf_counter() - start) * 1e6 / calls
                if iteration >= 0:
                    times[way].append(took)
        return bytes_, {way: statistics.median(self.slowest(values)) for way, values in times.items()}

    def latency(self):
        """(p50, p99) of single calls, in blocks by turns, as this rank sees them; and the share of a core that an idle
        wait costs."""
        times = {way: [] for way in self.groups if way != "shardwire_heap"}
        tensor = torch.ones(1, device=self.options.device)
        for _ in range(max(1, self.options.latency_calls // 250)):
            for way in times:
                self.barrier()
                for _ in range(250):
                    start = time.perf_counter()
                    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.groups[way])
                    self.synchronize()
                    times[way].append((time.perf_counter() - start) * 1e6)
        found = {}
        for way, values in times.items():
            values = sorted(values[250:] or values)
            found[way] = {"p50_us": values[len(values) // 2], "p99_us": values[len(values) * 99 // 100]}
            if way != "fake":
                found[way]["idle_wait_cores"] = self.idle_wait(self.groups[way])
        return found

    def idle_wait(self, group):
        self.barrier()
        if self.rank != 0:
            time.sleep(2)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        dist.all_reduce(torch.ones(1), group=group)
        after, took = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - start
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took


def print_head(bench, options):
    print(f"# torch {torch.__version__}: {options.ranks} ranks on {os.cpu_count()} cores; {options.device} tensors, "
          "f32, sum; time of the slowest rank")
    for way, why in bench.missing.items():
        print(f"# left out: {way}: {why}")
    columns = "".join(f" | {way + ' us':>17} {'busGB/s':>8}" for way in bench.groups)
    print(f"# {'collective':<23} {'bytes':>9}{columns}" + "".join(f" {'x ' + way:>12}" for way in ratios(bench.groups)))


def ratios(ways):
    """Which ways are compared with which: shardwire with gloo."""
    return [f"{way}/gloo" for way in ways if way.startswith("shardwire") and "gloo" in ways]


def print_row(bench, name, size, medians, options):
    cells = []
    for way in bench.groups:
        if way not in medians:
            cells.append(f" | {'-':>17} {'-':>8}")
            continue
        rate = size / medians[way] / 1e3 * bus_factor(name, options.ranks)
        cells.append(f" | {medians[way]:>17.2f} " + (f"{'-':>8}" if way == "fake" else f"{rate:>8.2f}"))
    compared = [f"{medians[way] / medians['gloo']:>{max(12, len(way) + 7)}.3f}" if way in medians and "gloo" in medians
                else f"{'-':>12}" for way in bench.groups if way.startswith("shardwire") and "gloo" in bench.groups]
    print(f"  {name:<23} {size:>9}{''.join(cells)} {' '.join(compared)}", flush=True)


def run_rank(rank, options, folder):
    torch.set_num_threads(1)
    if options.device != "cpu":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    bench = Bench(rank, options)
    wanted = [name for name in options.only.split(",") if name]
    rows, latency = [], {}
    if rank == 0:
        print_head(bench, options)
    for name in COLLECTIVES:
        size = options.min_bytes
        while size <= options.max_bytes and (not wanted or name in wanted):
            bytes_, medians = bench.measure(name, size)
            rows.append({"collective": name, "bytes": bytes_, **medians})
            if rank == 0:
                print_row(bench, name, bytes_, medians, options)
            size *= options.step
    if not wanted or "latency" in wanted:
        latency = bench.latency()
    if rank == 0:
        for way, found in latency.items():
            idle = (f"; a wait of 2 s for sleeping ranks uses {found['idle_wait_cores']:.4f} of a core"
                    if "idle_wait_cores" in found else "")
            print(f"# all_reduce of 4 B, {way:<10}: p50 {found['p50_us']:.2f} us, p99 {found['p99_us']:.2f} us{idle}")
        for (name, way), why in bench.refused.items():
            print(f"# {way} has no {name}: {why}")
        faults = faults_of(bench)
        if options.json:
            write_record(options, bench.missing, rows, latency, faults)
        if faults:
            pathlib.Path(folder, "faults").write_text("; ".join(faults), encoding="utf-8")
    bench.barrier()
    dist.destroy_process_group()


def faults_of(bench):
    """The ways of shardwire's that are missing, and the calls that they refused."""
    return ([f"{way} is missing: {why}" for way, why in bench.missing.items() if way.startswith("shardwire")]
            + [f"{way} has no {name}: {why}" for (name, way), why in bench.refused.items()
               if way.startswith("shardwire")])


def write_record(options, missing, rows, latency, faults):
    cells = {(row["collective"], size_words(row["bytes"])): {way: row[way] for way in WAYS if way in row}
             for row in rows}
    tables = [record.table("Median of the slowest rank, us", ["call", "bytes"], cells, WAYS[1:3], WAYS[:1])]
    if latency:
        singles = {(quantile,): {way: found[f"{quantile}_us"] for way, found in latency.items()}
                   for quantile in ("p50", "p99")}
        tables.append(record.table("Single calls of all_reduce of 4 bytes on rank 0, us", [""], singles, WAYS[1:2],
                                   WAYS[:1]))
    record.write(options.json, "torch-collectives" if options.device == "cpu" else options.device, tables, missing,
                 verdict=faults or None, ranks=options.ranks, rows=rows, latency=latency)


def main():
    options = parse_arguments()
    unknown = [way for way in options.ways.split(",") if way not in WAYS]
    if unknown:
        sys.exit(f"collectives.py: no way named {unknown[0]!r}; there are " + ", ".join(WAYS))
    if options.device != "cpu":  # the heap is the CPU's, and the fake backend takes its tensors alone
        options.ways = ",".join(way for way in options.ways.split(",") if way in ("gloo", "shardwire"))
    with tempfile.TemporaryDirectory(prefix="shardwire-bench-") as folder:
        mp.spawn(run_rank, args=(options, folder), nprocs=options.ranks)
        faults = pathlib.Path(folder, "faults")
        if faults.exists():
            sys.exit(f"collectives.py: {faults.read_text(encoding='utf-8')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
