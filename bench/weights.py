"""shardwire.sync, publish, load and save on this machine, beside memcpy and the safetensors package. All ways take
turns in one run; medians.

sync: a Llama-shaped model of bf16 from n training ranks (every tensor cut along dimension 0, Hugging Face's names) to n
serving ranks (tensor parallel, fused names). memcpy: the serving ranks copy as many bytes each, all at once. gloo: each
trainer broadcasts its rows to all, and the serving ranks cut out what they want (the same parts, under Hugging Face's
names). jobs: the same from one job to another: a fetch of the committed version, and the time that a commit takes from
the trainer. staged: the same into a second copy (staged=True), and its two halves. load, save: the same model as one
safetensors file, page cache warm, by n ranks; safetensors' load_file and a copy into the parameters beside it, and
torch.distributed.checkpoint over gloo with DTensors (torch 2.5 and later). cold: load with nothing of the files in the
page cache. checkpoint-engine is not among them: its ParameterServer wants GPUs. Run it on an otherwise quiet machine.
"""

import argparse
import datetime
import functools
import importlib
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

import processes
import record
import shardwire
from shardwire import FusedLayout, Layout, Replicate, Shard

BF16 = torch.bfloat16
LIMIT_S = 300  # for one iteration of the slowest rank


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=1, help="of each side")
    parser.add_argument("-i", "--iterations", type=int, default=9)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--only", default="sync,jobs,staged,load,cold,save", help="some of %(default)s")
    parser.add_argument("--folder", help="for files; default: a temporary one")
    parser.add_argument("--json", metavar="FILE", help="also write all medians there")
    return parser.parse_args(arguments)


def llama_shapes(hidden, layers):
    """Names and shapes of a Llama with hidden/64 heads, a quarter of them for k and v, and 32,000 tokens."""
    shapes = {"model.embed_tokens.weight": (32000, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (32000, hidden)}
    wide = hidden * 11 // 4
    for layer in range(layers):
        for name, shape in {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 4, hidden),
                            "self_attn.v_proj": (hidden // 4, hidden), "self_attn.o_proj": (hidden, hidden),
                            "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
                            "mlp.down_proj": (hidden, wide), "input_layernorm": (hidden,),
                            "post_attention_layernorm": (hidden,)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes


def served(shapes, ranks):
    """Layouts of a tensor parallel engine: fused names, rows of q, k, v, gate and up, columns of o and down."""
    layouts = {}

    def rows(name):
        return Layout(ranks, [Shard(0)], shapes[name], BF16)

    for name, shape in shapes.items():
        if "q_proj" in name:
            layouts[name.replace("q_proj", "qkv_proj")] = FusedLayout(
                [rows(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")])
        elif "gate_proj" in name:
            layouts[name.replace("gate_proj", "gate_up_proj")] = FusedLayout(
                [rows(name), rows(name.replace("gate_proj", "up_proj"))])
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            dim = 1 if "o_proj" in name or "down_proj" in name else 0
            layouts[name] = Layout(ranks, [Replicate() if len(shape) == 1 else Shard(dim)], shape, BF16)
    return layouts


class Rank:
    def __init__(self, rank, size, options, folder, barrier, pipe):
        self.rank, self.size, self.options, self.folder, self.barrier, self.pipe = (
            rank, size, options, folder, barrier, pipe)
        self.group = shardwire.create_process_group(dist.FileStore(os.path.join(folder, "store"), size), rank, size,
                                                    300)

    def timed(self, call):
        """Seconds from when all start until this rank is through; None where this rank has nothing to do."""
        self.barrier.wait()
        begin = time.perf_counter()
        if call is None:
            return None
        call()
        return time.perf_counter() - begin

    def measure(self, ways, before=None):
        """way -> seconds of each iteration; the ways take turns. before: what is called, not timed, on rank 0 before
        each."""
        seconds = {name: [] for name in ways}
        for iteration in range(self.options.iterations + 1):
            for name, call in ways.items():
                if before is not None:
                    self.barrier.wait()
                    if self.rank == 0:
                        before()
                taken = self.timed(call)
                if iteration:  # the first one warms up
                    seconds[name].append(taken)
        self.pipe.send(seconds)


def sync_ranks(self):
    half = self.size // 2
    shapes = llama_shapes(self.options.hidden, self.options.layers)
    ways = {}
    wanted = served(shapes, list(range(half, self.size)))
    keep = []
    for kind in ("heap", "ordinary"):
        make = shardwire.empty if kind == "heap" else torch.empty
        source = target = None
        if self.rank < half:
            source = {}
            for name, shape in shapes.items():
                layout = Layout(list(range(half)), [Shard(0)], shape, BF16)
                source[name] = (layout, make(layout.share(self.rank).local_shape, dtype=BF16).fill_(1.5))
        else:
            target = {name: (layout, make(layout.share(self.rank).local_shape, dtype=BF16).zero_())
                      for name, layout in wanted.items()}
        op = shardwire.sync(source, target, self.group, "llama")
        op.run().wait()
        if target is not None:
            assert all((tensor == 1.5).all() for tensor in op.target.values())
        ways[f"sync, {kind}"] = lambda op=op: op.run().wait()
        keep.append((source, target))
    ways["gloo's broadcast"] = gloo_broadcast(self, shapes)
    count = sum(tensor.numel() for _, tensor in keep[0][1].values()) * 2 if self.rank >= half else 0
    one, other = torch.ones(count, dtype=torch.uint8), torch.zeros(count, dtype=torch.uint8)
    ways["memcpy"] = (lambda: other.copy_(one)) if self.rank >= half else None
    self.measure(ways)


def gloo_broadcast(self, shapes):
    """The way without shardwire: everything goes to every serving rank, which cuts out its parts."""
    half = self.size // 2
    gloo = dist.ProcessGroupGloo(dist.FileStore(os.path.join(self.folder, "gloo"), self.size), self.rank, self.size,
                                 datetime.timedelta(seconds=300))
    have, wanted = {}, {}
    for name, shape in shapes.items():
        rows = Layout(list(range(half)), [Shard(0)], shape, BF16)
        have[name] = [torch.full(rows.share(rank).local_shape, 1.5, dtype=BF16) for rank in range(half)]
        dim = 1 if "o_proj" in name or "down_proj" in name else 0
        layout = Layout(list(range(half, self.size)), [Replicate() if len(shape) == 1 else Shard(dim)], shape, BF16)
        wanted[name] = (layout,
                        None if self.rank < half else torch.zeros(layout.share(self.rank).local_shape, dtype=BF16))

    def call():
        for name, parts in have.items():
            for root, part in enumerate(parts):
                options = dist.BroadcastOptions()
                options.rootRank = root
                gloo.broadcast([part.view(torch.uint8)], options).wait()
            if self.rank >= half:
                layout, target = wanted[name]
                target.copy_(layout.take(torch.cat(parts) if len(parts) > 1 else parts[0], self.rank))
    return call


def jobs_ranks(self, staged=False):
    """Two jobs, each with a group of its own. While the ranks of one job commit, the ranks of the other wait, and vice
    versa."""
    half = self.size // 2
    trains, mine = self.rank < half, list(range(half))
    group = shardwire.create_process_group(
        dist.FileStore(os.path.join(self.folder, "train" if trains else "serve"), half), self.rank % half, half, 300)
    url, shapes = f"file://{self.folder}/meeting", llama_shapes(self.options.hidden, self.options.layers)
    if trains:
        state = {}
        for name, shape in shapes.items():
            layout = Layout(mine, [Shard(0)], shape, BF16)
            state[name] = (layout, torch.full(layout.share(self.rank).local_shape, 1.5, dtype=BF16))
        publication = shardwire.publish(url, "bench", state, group)
        versions = iter(range(1 << 30))
        publication.commit(next(versions))
        fetch, commit = None, lambda: publication.commit(next(versions))
        count = 0
    else:
        subscription = shardwire.subscribe(url, "bench", served(shapes, mine), group, mapping="llama", staged=staged)
        subscription.fetch()
        assert all((tensor == 1.5).all() for tensor in subscription.target.values())
        fetch, commit = subscription.fetch, None
        count = 2 * sum(tensor.numel() for tensor in subscription.target.values())
    one, other = torch.ones(count, dtype=torch.uint8), torch.zeros(count, dtype=torch.uint8)
    ways = {"fetch": fetch, "commit": commit, "memcpy": None if trains else lambda: other.copy_(one)}
    if staged:
        ways = {"staged fetch": fetch, "stage": None if trains else subscription.stage,
                "apply": None if trains else subscription.apply, "memcpy": ways["memcpy"]}
    self.measure(ways)


def file_of(options, folder):
    """The model as a file of the safetensors package, or of shardwire where the package is missing."""
    path = os.path.join(folder, "model.safetensors")
    tensors = {name: torch.full(shape, 0.5, dtype=BF16)
               for name, shape in llama_shapes(options.hidden, options.layers).items()}
    group = shardwire.create_process_group(dist.HashStore(), 0, 1, 60)
    shardwire.save(tensors, folder, group)
    dist.destroy_process_group(group)
    return path


def package():
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        return None


def distributed_checkpoint(self, shapes):
    """Functions that write and read a checkpoint of torch, of DTensors of rows over gloo; None where this torch has no
    such checkpoints."""
    try:
        from torch.distributed import checkpoint, tensor as dtensors
    except ImportError:
        return None
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(self.folder, "dcp.store"), self.size),
                            rank=self.rank, world_size=self.size)
    mesh = dist.device_mesh.DeviceMesh("cpu", list(range(self.size)))
    state = {name: dtensors.distribute_tensor(torch.full(shape, 0.5, dtype=BF16), mesh, [dtensors.Shard(0)])
             for name, shape in shapes.items()}
    place = os.path.join(self.folder, "dcp")
    return lambda: checkpoint.save(state, checkpoint_id=place), lambda: checkpoint.load(state, checkpoint_id=place)


def drop_cache(folder):
    """Nothing of the folder's files is in the page cache then."""
    for at, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(at, name), os.O_RDONLY)
            try:
                until = time.monotonic() + 10
                # Linux keeps pages that are still being written, or stand in another processor's list of new pages.
                while (place := cached_at(descriptor)) is not None:
                    if time.monotonic() > until:
                        raise SystemExit(f"{name} is still in the page cache, at byte {place}")
                    time.sleep(0.02)
            finally:
                os.close(descriptor)


def cached_at(descriptor):
    """A place of a large file that is in the page cache after the cache was asked to drop the file; None: no place."""
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    size = os.fstat(descriptor).st_size
    for place in range(0, size if size > 1 << 20 else 0, 16 << 20):
        try:
            if os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT):
                return place
        except BlockingIOError:
            pass
    return None


def load_ranks(self, cold=False):
    """Into existing parameters: whole ones on one rank, rows on several."""
    shapes = llama_shapes(self.options.hidden, self.options.layers)
    path = os.path.join(self.folder, "model.safetensors")
    layouts = {name: Layout(list(range(self.size)), [Shard(0)], shape, BF16) for name, shape in shapes.items()}
    target = {name: (layout, torch.zeros(layout.share(self.rank).local_shape, dtype=BF16))
              for name, layout in layouts.items()}
    ways = {"shardwire.load": lambda: shardwire.load(path, target, self.group)}
    theirs = package()
    if theirs is not None:
        def load_file():
            for name, tensor in theirs.load_file(path).items():
                target[name][1].copy_(layouts[name].take(tensor, self.rank))
        ways["load_file and copy_"] = load_file
    torchs = distributed_checkpoint(self, shapes)
    if torchs is not None:
        torchs[0]()
        ways["DCP load"] = torchs[1]
    if cold:
        self.measure(ways, lambda: drop_cache(self.folder))
        return
    count = sum(tensor.numel() for _, tensor in target.values()) * 2
    one, other = torch.ones(count, dtype=torch.uint8), torch.zeros(count, dtype=torch.uint8)
    ways["memcpy"] = lambda: other.copy_(one)
    self.measure(ways)


def save_ranks(self):
    shapes = llama_shapes(self.options.hidden, self.options.layers)
    layouts = {name: Layout(list(range(self.size)), [Shard(0)], shape, BF16) for name, shape in shapes.items()}
    source = {name: (layout, torch.ones(layout.share(self.rank).local_shape, dtype=BF16))
              for name, layout in layouts.items()}
    place = os.path.join(self.folder, "saved")
    ways = {"shardwire.save": lambda: shardwire.save(source, place, self.group)}
    theirs = package()
    if theirs is not None and self.size == 1:
        def save_file():
            path = os.path.join(self.folder, "theirs.safetensors")
            theirs.save_file({name: tensor for name, (_, tensor) in source.items()}, path)
            descriptor = os.open(path, os.O_RDWR)
            os.fsync(descriptor)
            os.close(descriptor)
        ways["save_file and fsync"] = save_file
    torchs = distributed_checkpoint(self, shapes)
    if torchs is not None:
        ways["DCP save"] = torchs[0]
    self.measure(ways)


# The work of a rank, and the number of ranks for each of --ranks.
CASES = {"sync": (sync_ranks, 2), "jobs": (jobs_ranks, 2), "staged": (functools.partial(jobs_ranks, staged=True), 2),
         "load": (load_ranks, 1), "cold": (functools.partial(load_ranks, cold=True), 1), "save": (save_ranks, 1)}


# The program of each way with files.
FILES = {"shardwire.load": "shardwire", "load_file and copy_": "safetensors", "DCP load": "DCP",
         "shardwire.save": "shardwire", "save_file and fsync": "safetensors", "DCP save": "DCP", "memcpy": "memcpy"}


def child(case, rank, size, options, folder, barrier, pipe):
    processes.end_with_parent()
    torch.set_num_threads(1)
    try:
        CASES[case][0](Rank(rank, size, options, folder, barrier, pipe))
        barrier.wait()
    except BaseException:
        barrier.abort()  # the other ranks do not wait for this one
        raise
    pipe.close()
    os._exit(0)


def run(case, options, folder):
    """way -> median seconds of the slowest rank."""
    size = options.ranks * CASES[case][1]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(size, timeout=LIMIT_S)
    pipes, children = [], []
    for rank in range(size):
        reader, writer = context.Pipe(duplex=False)
        children.append(
            context.Process(target=child, args=(case, rank, size, options, folder, barrier, writer), daemon=True))
        children[-1].start()
        writer.close()
        pipes.append(reader)
    try:
        answers = [pipe.recv() for pipe in pipes]
    except EOFError:
        raise SystemExit(f"weights.py: a rank of {case} failed") from None
    finally:
        for process in children:
            process.join(20)
            process.kill()
    slowest = {}
    for name in answers[0]:
        rows = [[each for each in row if each is not None] for row in zip(*(seconds[name] for seconds in answers))]
        slowest[name] = statistics.median(max(row) for row in rows)
    return slowest


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    total = 2 * sum(torch.Size(shape).numel() for shape in llama_shapes(options.hidden, options.layers).values())
    print(f"{total / 1e9:.2f} GB of bf16, {len(llama_shapes(options.hidden, options.layers))} tensors; torch "
          f"{torch.__version__}; {options.ranks} ranks a side; medians of {options.iterations} of the slowest rank")
    folder = options.folder or tempfile.mkdtemp(prefix="shardwire-weights-")
    results, rows = {}, {}
    try:
        for case in options.only.split(","):
            place = os.path.join(folder, case)
            os.makedirs(place)
            if case in ("load", "cold"):
                file_of(options, place)
            medians = run(case, options, place)
            for name, seconds in medians.items():
                if name not in FILES or name == "memcpy":
                    rows[case, name] = {"ms": seconds * 1e3, "GB/s": total / seconds / 1e9,
                                        "of memcpy's rate": medians["memcpy"] / seconds if "memcpy" in medians else
                                        None}
                beside = f"{medians['memcpy'] / seconds:7.2f} of memcpy's rate" if "memcpy" in medians else ""
                print(f"{case:6} {name:22} {seconds * 1e3:9.1f} ms {total / seconds / 1e9:7.2f} GB/s {beside}",
                      flush=True)
            results[case] = medians
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        title = f"{total / 1e9:.2f} GB of bf16, {options.ranks} ranks a side, medians of the slowest rank"
        files = {(case,): {FILES[name]: 1e3 * seconds for name, seconds in results[case].items() if name in FILES}
                 for case in results if case in ("load", "cold", "save")}
        record.write(options.json, "weights", [record.table(title, ["case", "way"], rows),
                                               record.table("Files, ms", ["case"], files, ["shardwire"],
                                                            ["safetensors", "DCP"])],
                     {name: why for name, why in (("safetensors", "there is no package of this name"),
                                                  ("DCP", "torch.distributed.checkpoint needs torch 2.5 or later"))
                      if files and not any(name in row for row in files.values())},
                     ranks=options.ranks, bytes=total, seconds=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
