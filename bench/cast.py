"""The cost of a cast on the way: ``./run python -m shardwire.launch -n 2 bench/cast.py``

Rank 1 gets rank 0's tensor, as another type, by one bound op; both tensors lie in the shared heap. Beside the op, in
the same run: torch's local ``.to`` on rank 1, into existing memory (``copy_``) and into new memory, and the same move
without a cast. The cases take turns. Buffers are larger than the caches and rewritten before each case. A time ends
when rank 1 is done, and figures are medians with the best in brackets. torch has one thread, as many as shardwire.
--exchange: both ranks get the other rank's tensor at once, and times are the slower rank's.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import record
import shardwire

PAIRS = (("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32"),
         ("float64", "float32"), ("float32", "float64"), ("bfloat16", "float16"), ("float32", "float8_e4m3fn"),
         ("bfloat16", "float8_e4m3fn"))
TO, COPY = "torch .to", "torch copy_"


class Cases:
    """name -> a function that moves once; and the tensors to be rewritten before each."""

    def __init__(self, source, target, options):
        rank = dist.get_rank()
        rows, cols = options.rows, options.cols

        def empty(dtype):
            return (torch.empty(rows, cols, dtype=dtype) if options.ordinary
                    else shardwire.empty((rows, cols), dtype=dtype))

        def box(of):
            return [{"offset": [of * rows, 0], "shape": [rows, cols]}]

        mine, out, same = empty(source), empty(target), empty(source)
        held = box(rank) if options.exchange or rank == 0 else []
        wanted = box(1 - rank) if options.exchange or rank == 1 else []
        shape = [2 * rows, cols]

        def bound(tensor, output_dtype):
            op = shardwire.compile_op(None, shape, source, held, wanted, output_dtype=output_dtype)
            return op.bind([mine] if held else [], [tensor] if wanted else [])

        cast, plain = bound(out, target), bound(same, source)
        works = options.exchange or rank == 1
        self.moves = {"move and cast": lambda: cast().wait(), COPY: lambda: works and out.copy_(mine),
                      TO: lambda: works and mine.to(target), "move, same dtype": lambda: plain().wait()}
        self.tensors = (mine, out, same)


def measure(cases, options):
    times = {name: [] for name in cases.moves}
    flush = torch.empty(64 << 20, dtype=torch.uint8)
    for iteration in range(options.iterations + 1):
        for name, move in cases.moves.items():
            for number, tensor in enumerate(cases.tensors):
                tensor.fill_(iteration + number + 0.5)
            flush.fill_(iteration % 256)
            dist.barrier()
            begin = time.perf_counter()
            move()
            mine = torch.tensor([time.perf_counter() - begin if options.exchange or dist.get_rank() == 1 else 0.0])
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            if iteration > 0:
                times[name].append(mine.item() * 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("-i", "--iterations", type=int, default=15)
    parser.add_argument("--pairs", default="", help="comma separated, such as float32:bfloat16 (default: several)")
    parser.add_argument("--ordinary", action="store_true", help="tensors in ordinary memory")
    parser.add_argument("--exchange", action="store_true", help="both ranks at once")
    parser.add_argument("--json", metavar="FILE", help="also write all samples there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("shardwire")
    if dist.get_world_size() != 2:
        raise SystemExit("cast.py: start it with two ranks")
    pairs = [tuple(pair.split(":")) for pair in options.pairs.split(",")] if options.pairs else PAIRS
    samples, rows = {}, {}
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {options.rows} x {options.cols}, medians (best) of {options.iterations}, ms")
    for source, target in pairs:
        if not (hasattr(torch, source) and hasattr(torch, target)):
            continue
        times = measure(Cases(getattr(torch, source), getattr(torch, target), options), options)
        samples[f"{source}:{target}"] = times
        if dist.get_rank() == 0:
            rows[f"{source} to {target}",] = medians = {name: statistics.median(values)
                                                        for name, values in times.items()}
            line = "".join(f"{name} {medians[name]:6.2f} ({min(values):5.2f}) | " for name, values in times.items())
            print(f"{source:>8} -> {target:<13} | {line}rate of copy_ {medians[COPY] / medians['move and cast']:.2f}, "
                  f"of .to {medians[TO] / medians['move and cast']:.2f}", flush=True)
    if options.json and dist.get_rank() == 0:
        title = f"Rank 1 gets rank 0's {options.rows} x {options.cols} elements, ms"
        record.write(options.json, "cast", [record.table(title, ["cast"], rows, ["move and cast"], [COPY, TO])],
                     samples=samples)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
