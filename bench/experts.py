"""Expert dispatch and combine: shardwire.distributed.experts beside index + all_to_all_single, in turns.

    ./run bench experts [--tokens 128,512,1024,4096] [--ranks 2,4] [--hidden 1024] [--top-k 2] [--experts 8]
        [--dtypes float32,bfloat16,float8_e4m3fn] [--rounds 3] [--repeats 15] [--only experts,shardwire,gloo]
        [--json FILE]

Every rank has the same number of tokens with random experts, and the experts return the rows that they receive. The
contestants "shardwire" and "gloo" are an ordinary program over this backend's all_to_all_single: the choices are
sorted, the counts exchanged, the rows indexed, exchanged and grouped by expert, and back the same way, with a bmm as
the sum over the top-k; gloo with float32 only. Tokens of float8_e4m3fn (torch 2.1 and later, not by default) travel
with a scale of each row, for which the ordinary program needs a second all_to_all_single. All contestants make bfloat16
of them when they arrive, a phase of its own: "experts" by Dispatched.dequantized(), the others by torch's cast. They
send bfloat16 back. "both" is the sum of all phases.

All contestants run in the same processes, one call each in turns. A call takes as long as its slowest rank. Medians
over rounds * repeats are printed, in milliseconds; the least in brackets; and how many times longer than "experts" each
takes, by medians and by the least. Results are compared before the times are taken.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import processes
import record

CONTESTANTS = ("experts", "shardwire", "gloo")
PHASES = ("dispatch", "dequantize", "combine", "both")
WARM_UP = 3


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="./run bench experts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="128,512,1024,4096", help="of each rank, separated by commas")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, separated by commas")
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# The ranks.

class IndexAndAllToAll:
    """The ordinary program, over any backend."""

    def __init__(self, options, group, size):
        self.options, self.group, self.size = options, group, size

    def dispatch(self, tokens, ids, scales):
        import torch
        import torch.distributed as dist
        flat = ids.view(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=self.options.experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.size, -1).sum(1).tolist()
        got = arriving.view(self.size, -1).sum(1).tolist()
        local = torch.arange(self.options.experts // self.size).repeat(self.size)
        regroup = torch.argsort(local.repeat_interleave(arriving), stable=True)

        def exchanged(values):
            rows = values.new_empty(sum(got), values.shape[1])
            dist.all_to_all_single(rows, values.index_select(0, order // self.options.top_k), got, sent,
                                   group=self.group)
            return rows.index_select(0, regroup)
        handle = order, regroup, sent, got
        if scales is None:
            return (exchanged(tokens), None), handle
        return (exchanged(tokens.view(torch.uint8)).view(tokens.dtype), exchanged(scales)), handle

    def dequantize(self, received):
        import torch
        rows, scales = received
        return rows if scales is None else rows.to(torch.bfloat16).mul_(scales.to(torch.bfloat16))

    def combine(self, outputs, handle, weights):
        import torch
        import torch.distributed as dist
        order, regroup, sent, got = handle
        back = torch.empty_like(outputs).index_copy_(0, regroup, outputs)
        rows = outputs.new_empty(sum(sent), outputs.shape[1])
        dist.all_to_all_single(rows, back, sent, got, group=self.group)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        chosen = rows.index_select(0, places).view(len(weights), -1, rows.shape[1])
        return torch.bmm(weights.to(rows.dtype).unsqueeze(1), chosen).squeeze(1)


class OurExperts:
    def __init__(self, options, tokens, dtype):
        from shardwire.distributed.experts import Experts
        self.experts = Experts(options.experts, options.hidden, options.top_k, tokens, dtype,
                               scale_width=int(is_narrow(dtype)))

    def dispatch(self, tokens, ids, scales):
        received = self.experts.dispatch(tokens, ids, None, scales)
        return received, received.handle

    def dequantize(self, received):
        return received.tokens if received.scales is None else received.dequantized()

    def combine(self, outputs, handle, weights):
        return self.experts.combine(outputs, handle, weights)


def is_narrow(dtype):
    return str(dtype).startswith("torch.float8")


def quantized(tokens, dtype):
    """The rows divided by a scale of each row, in an 8-bit dtype, and the scales."""
    import torch
    scales = tokens.abs().amax(1, keepdim=True) / torch.finfo(dtype).max
    return (tokens / scales).to(dtype), scales


def measure(options, contestants, num_tokens, dtype, rank):
    """Seconds by contestant and phase, for each repeat."""
    import torch
    import torch.distributed as dist
    torch.manual_seed(rank)
    wide = torch.randn(num_tokens, options.hidden)
    tokens, scales = quantized(wide, dtype) if is_narrow(dtype) else (wide.to(dtype), None)
    ids = torch.stack([torch.randperm(options.experts)[:options.top_k] for _ in range(num_tokens)])
    weights = torch.rand(num_tokens, options.top_k)
    results = {}
    for name, contestant in contestants.items():
        received, handle = contestant.dispatch(tokens, ids, scales)
        results[name] = contestant.combine(contestant.dequantize(received), handle, weights)
    first = next(iter(results.values())).float()
    for name, result in results.items():
        if not torch.allclose(result.float(), first, rtol=2e-2, atol=2e-2):
            raise SystemExit(f"{name} gives another result than {next(iter(results))}")
    taken = {name: {phase: [] for phase in PHASES} for name in contestants}
    for turn in range(WARM_UP + options.repeats):
        for name, contestant in contestants.items():
            dist.barrier()
            begin = time.perf_counter()
            received, handle = contestant.dispatch(tokens, ids, scales)
            arrived = time.perf_counter()
            rows = contestant.dequantize(received)
            middle = time.perf_counter()
            result = contestant.combine(rows, handle, weights)
            end = time.perf_counter()
            if turn >= WARM_UP:
                for phase, seconds in zip(PHASES, (arrived - begin, middle - arrived, end - middle, end - begin)):
                    taken[name][phase].append(seconds)
            del received, rows, handle, result
    return taken


def child(options):
    import torch
    import torch.distributed as dist

    import shardwire  # noqa: F401: registers the backend
    torch.set_num_threads(1)
    dist.init_process_group("shardwire", init_method=f"file://{options.folder}/store", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    names = options.only.split(",")
    gloo = dist.new_group(backend="gloo") if "gloo" in names else None
    numbers = {}
    for dtype in options.dtypes.split(","):
        if not hasattr(torch, dtype):
            raise SystemExit(f"experts.py: torch {torch.__version__} has no {dtype}")
        for tokens in map(int, options.tokens.split(",")):
            contestants = {name: OurExperts(options, tokens, getattr(torch, dtype)) if name == "experts" else
                           IndexAndAllToAll(options, gloo if name == "gloo" else None, size) for name in names
                           if name != "gloo" or dtype == "float32"}
            numbers[f"{dtype}, {tokens} tokens"] = measure(options, contestants, tokens, getattr(torch, dtype), rank)
    dist.barrier()
    pathlib.Path(options.folder, f"{rank}.json").write_text(json.dumps(numbers), encoding="utf-8")
    dist.destroy_process_group()


# The parent.

def run(options, ranks):
    """Of each case, contestant and phase the slowest rank's seconds, for each repeat."""
    given = ["--tokens", options.tokens, "--hidden", str(options.hidden), "--top-k", str(options.top_k), "--experts",
             str(options.experts), "--dtypes", options.dtypes, "--repeats", str(options.repeats), "--only",
             options.only]
    with tempfile.TemporaryDirectory(prefix="shardwire-experts-") as folder:
        done = processes.run([sys.executable, "-m", "shardwire.launch", "-n", str(ranks), __file__, "--child",
                              "--folder", folder, *given], env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise SystemExit(f"{ranks} ranks failed:\n{done.stdout}{done.stderr}")
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(folder).glob("*.json"))]
    return {case: {name: {phase: [max(each) for each in zip(*(rank[case][name][phase] for rank in found))]
                          for phase in PHASES} for name in found[0][case]} for case in found[0]}


def main():
    options = parse_arguments()
    if options.child:
        child(options)
        return
    unknown = [name for name in options.only.split(",") if name not in CONTESTANTS]
    if unknown:
        raise SystemExit(f"experts.py: --only has {', '.join(unknown)}; give some of {', '.join(CONTESTANTS)}")
    results, cells_of = {}, {}
    for ranks in map(int, options.ranks.split(",")):
        if options.experts % ranks:
            raise SystemExit(f"experts.py: {options.experts} experts do not divide by {ranks} ranks")
        gathered: dict = {}
        for _ in range(options.rounds):
            for case, names in run(options, ranks).items():
                for name, phases in names.items():
                    for phase, seconds in phases.items():
                        of_case = gathered.setdefault(case, {}).setdefault(name, {})
                        of_case.setdefault(phase, []).extend(seconds)
        print(f"# {ranks} ranks, hidden {options.hidden}, top-{options.top_k} of {options.experts} experts; ms, "
              f"medians of {options.rounds} rounds of {options.repeats} [least]")
        for case, names in gathered.items():
            for phase in PHASES if is_narrow(f"torch.{case}") else (each for each in PHASES if each != "dequantize"):
                ours = names.get("experts", {}).get(phase)
                cells = []
                row = cells_of.setdefault((ranks, case, phase), {})
                for name, taken in names.items():
                    times, best = statistics.median(taken[phase]), min(taken[phase])
                    row[name if name == "experts" else f"index + all_to_all, {name}"] = 1e3 * times
                    ratio = "" if ours is None or name == "experts" else (
                        f" ({times / statistics.median(ours):.1f} x, {best / min(ours):.1f} x)")
                    cells.append(f"{name} {1e3 * times:.3f} [{1e3 * best:.3f}]{ratio}")
                print(f"{case:<28}{phase:<10}{'   '.join(cells)}", flush=True)
        results[f"{ranks} ranks"] = gathered
    if options.json:
        title = f"Medians of the slowest rank, hidden {options.hidden}, top-{options.top_k}, ms"
        record.write(options.json, "experts",
                     [record.table(title, ["ranks", "case", "phase"], cells_of, ["experts"],
                                   [f"index + all_to_all, {name}" for name in CONTESTANTS[1:]])], results=results)


if __name__ == "__main__":
    main()
