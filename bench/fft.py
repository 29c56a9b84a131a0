"""Transforms over ranks: shardwire beside FFTW's own MPI transforms and mpi4py-fft, in turns, with the limit set by
local work.

    ./run bench fft [--shapes 64x64x64,128x128x128,256x256x256,512x512] [--ranks 2,4] [--ways shm,tcp,mpi]
        [--rounds 3] [--repeats 10] [--dtype complex64] [--chunks auto,1,2,4] [--rate 1gbit] [--json FILE]

Every contestant runs in separate processes, one after the other, --rounds times in turns. A transform takes as long as
its slowest rank, and the medians over all repeats are printed, in milliseconds. Forward, complex, out of place, from
slabs of the first axis. "transposed" leaves the result in slabs of the second axis, "natural" brings the result back.
The limit is the time of the slowest rank for the same local transforms and for copying its part, transposed, once: no
program with this work can be faster. A shape of one dimension, such as 1048576, is cut along this dimension:
"transposed" leaves shardwire's result block-cyclic and FFTW's scrambled, and mpi4py-fft has no such transform. FFTW is
found as libfftw3f_mpi.so.3 (Debian: libfftw3-mpi3; SHARDWIRE_FFTW_FOLDER names another place), mpi4py-fft as Python
finds the package; both need mpirun. Missing contestants are reported and left out. --ways: the transports of
shardwire's ranks, each a separate contestant; "auto" takes the fastest, and over mpi mpirun starts the ranks. --chunks:
into how many chunks exchanges are cut (FFTOptions.chunks), in turns in the same processes, repeat by repeat. --rate
puts shardwire's ranks, two of them, into two network namespaces with a cable of this rate, by tc's token bucket: a wire
slower than memory. --rate needs root and iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ctypes.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import processes
import record

ESTIMATE, MEASURE, TRANSPOSED, SCRAMBLED = 64, 0, 1 << 30, 1 << 28  # fftw3.h, fftw3-mpi.h
WARM_UP = 2
WAYS = ("auto", "shm", "tcp", "mpi")
CONTESTANTS = ("shardwire", "fftw-estimate", "fftw-measure", "mpi4py-fft")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="./run bench fft", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="64x64x64,128x128x128,256x256x256,512x512")
    parser.add_argument("--ranks", default="2", help="numbers of ranks, separated by commas")
    parser.add_argument("--ways", default="auto", help="some of auto, shm, tcp, mpi")
    parser.add_argument("--chunks", default="auto", help="some of auto and numbers from 1")
    parser.add_argument("--rate", help="of the cable between two network namespaces, as tc says it: 1gbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--dtype", default="complex64", choices=["complex64", "complex128"])
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, separated by commas")
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def shape_of(text):
    return tuple(int(part) for part in text.split("x"))


# The ranks.

def timed(call, barrier, repeats, warm_up=WARM_UP):
    """Seconds of each of `repeats` calls that all ranks begin together."""
    seconds = []
    for number in range(warm_up + repeats):
        barrier()
        begin = time.perf_counter()
        result = call()
        if number >= warm_up:
            seconds.append(time.perf_counter() - begin)
        del result
    return seconds


def shardwire_rank(options, shape):
    import torch
    import torch.distributed as dist

    import shardwire
    from shardwire.distributed import fft
    from shardwire.distributed.distribution import Slab
    torch.set_num_threads(1)
    if not dist.is_initialized():
        if "OMPI_COMM_WORLD_RANK" in os.environ:
            dist.init_process_group("shardwire", init_method="mpi://")
        else:  # through a file, so that no port can be taken by another program meanwhile
            dist.init_process_group("shardwire", init_method=f"file://{options.folder}/store",
                                    rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, options.dtype)
    operand = shardwire.empty(Slab.X.shape(rank, shape, size), dtype=dtype).normal_()
    numbers = {}
    for name, back in (("transposed", False), ("natural", True)):
        with contextlib.ExitStack() as stack:
            transforms = {}
            for chunks in options.chunks.split(","):
                begin = time.perf_counter()
                transform = transforms[chunks] = stack.enter_context(
                    fft.FFT(operand, distribution=Slab.X,
                            options={"redistribute": back, "chunks": None if chunks == "auto" else int(chunks)}))
                transform.plan()
                traffic, own = transform.traffic(), numbers.setdefault(f"chunks {chunks}", {})
                own.update(
                    {f"plan {name}": [time.perf_counter() - begin], name: [], "engine": traffic["engine"],
                     f"chunks {name}": ",".join(str(step["chunks"]) for step in traffic["steps"] if "move" in step)})
            for number in range(WARM_UP + options.repeats):
                for chunks, transform in transforms.items():
                    numbers[f"chunks {chunks}"][name] += (timed(transform.execute, dist.barrier, 1, 0)
                                                          if number >= WARM_UP
                                                          else timed(transform.execute, dist.barrier, 0, 1))
    next(iter(numbers.values())).update(
        limit(*(folded(operand, size) if len(shape) == 1 else (operand, shape, Slab.Y.shape(rank, shape, size))),
              dist.barrier, options.repeats))
    return rank, numbers


def folded(operand, size):
    """limit()'s arguments for an array of one dimension: a rank's rows of the best folding, and its columns."""
    from shardwire.distributed._fft_long import splits
    rows, width = splits(operand.numel() * size, size)[0]
    return operand.reshape(rows // size, width), (rows, width), (rows, width // size)


def limit(operand, shape, after, barrier, repeats):
    """The same local work without any exchange, with the engines that shardwire uses."""
    import torch

    import shardwire
    other = shardwire.empty(after, dtype=operand.dtype).normal_()
    result, rest = shardwire.empty(operand.shape, dtype=operand.dtype), tuple(range(1, len(shape)))
    calls = [alone(operand, result, rest), alone(other, other, (0,))]
    turned = torch.empty((operand.shape[1], operand.shape[0], *operand.shape[2:]), dtype=operand.dtype)
    return {"local transforms": [a + b
                                 for a, b in zip(timed(calls[0], barrier, repeats), timed(calls[1], barrier, repeats))],
            "local copy": timed(lambda: turned.copy_(operand.transpose(0, 1)), barrier, repeats)}


def alone(source, target, axes):
    """One local transform, by the engine chosen for the transform."""
    from shardwire.distributed import _engines
    from shardwire.distributed._local_call import Call, array_of
    call = Call("C2C", axes, array_of(source), array_of(target), source is target, False)
    if source is target:  # transformed over and over: the numbers must not grow
        lengths = 1
        for axis in axes:
            lengths *= source.shape[axis]
        call = call._replace(factor=lengths ** -0.5, norm="ortho")
    engine, careful = _engines.choose(_engines.find(), call, True)[:2]
    transform = engine.make(engine.library, call, careful)
    return lambda: transform.run(source, target if engine.writes else None)


def fftw_library(single):
    name = f"libfftw3{'f' if single else ''}"
    folder = os.environ.get("SHARDWIRE_FFTW_FOLDER", "")
    mpi = ctypes.CDLL(ctypes.util.find_library("mpi") or "libmpi.so.40", ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.path.join(folder, f"{name}.so.3"), ctypes.RTLD_GLOBAL)
    return mpi, ctypes.CDLL(os.path.join(folder, f"{name}_mpi.so.3"))


def fftw_rank(options, shape):
    """FFTW through its C interface. Open MPI's handles are addresses."""
    single = options.dtype == "complex64"
    mpi, library = fftw_library(single)
    prefix = "fftwf_" if single else "fftw_"
    mpi.MPI_Init(None, None)
    world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
    rank = ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))

    def function(name, result):
        found = getattr(library, prefix + name)
        found.restype = result
        return found

    function("mpi_init", None)()
    extents = (ctypes.c_ssize_t * len(shape))(*shape)
    places = [ctypes.c_ssize_t() for _ in range(4)]
    if len(shape) == 1:
        count = function("mpi_local_size_1d", ctypes.c_ssize_t)(ctypes.c_ssize_t(shape[0]), world, -1, ctypes.c_uint(0),
                                                                *map(ctypes.byref, places))
    else:
        count = function("mpi_local_size_transposed", ctypes.c_ssize_t)(len(shape), extents, world,
                                                                        *map(ctypes.byref, places))
    core = ctypes.CDLL(
        os.path.join(os.environ.get("SHARDWIRE_FFTW_FOLDER", ""), f"libfftw3{'f' if single else ''}.so.3"))
    allocate = getattr(core, prefix + "malloc")
    allocate.restype = ctypes.c_void_p
    item = 8 if single else 16
    source, target = (ctypes.c_void_p(allocate(ctypes.c_size_t(count * item))) for _ in range(2))
    execute = getattr(core, prefix + "execute")
    numbers = {}
    for name, flags in (("transposed", SCRAMBLED if len(shape) == 1 else TRANSPOSED), ("natural", 0)):
        flags |= ESTIMATE if options.child == "fftw-estimate" else MEASURE
        begin = time.perf_counter()
        plan = ctypes.c_void_p(function("mpi_plan_dft", ctypes.c_void_p)(
            len(shape), extents, source, target, world, -1, ctypes.c_uint(flags)))
        numbers[f"plan {name}"] = [time.perf_counter() - begin]
        ctypes.memset(source, 0, count * item)  # planning overwrites the array, and denormals would be slow
        numbers[name] = timed(lambda plan=plan: execute(plan), lambda: mpi.MPI_Barrier(world), options.repeats)
    mpi.MPI_Finalize()
    return rank.value, numbers


def mpi4py_rank(options, shape):
    import numpy
    from mpi4py import MPI
    from mpi4py_fft import PFFT, newDistArray
    transform = PFFT(MPI.COMM_WORLD, shape, axes=tuple(range(len(shape))), dtype=numpy.dtype(options.dtype),
                     grid=(-1,) + (1,) * (len(shape) - 1))
    operand, result = newDistArray(transform, False), newDistArray(transform, True)
    operand[:] = 1
    numbers = {"transposed": timed(lambda: transform.forward(operand, result, normalize=False), MPI.COMM_WORLD.Barrier,
                                   options.repeats)}
    return MPI.COMM_WORLD.Get_rank(), numbers


def child(options):
    rank_of = {"shardwire": shardwire_rank, "mpi4py-fft": mpi4py_rank}.get(options.child, fftw_rank)
    rank, numbers = rank_of(options, shape_of(options.shapes))
    if options.child != "shardwire":
        numbers = {"": numbers}
    pathlib.Path(options.folder, f"{rank}.json").write_text(json.dumps(numbers), encoding="utf-8")


# The parent.

def why_not(name, single):
    """Why a contestant cannot run here, or None."""
    if name == "shardwire":
        return None
    if shutil.which("mpirun") is None:
        return "no mpirun here (Debian: openmpi-bin)"
    if name == "mpi4py-fft":
        found = subprocess.run([sys.executable, "-c", "import mpi4py_fft"], capture_output=True, check=False,
                               stdin=subprocess.DEVNULL)
        return None if found.returncode == 0 else f"{sys.executable} has no mpi4py_fft"
    probe = "import sys; sys.path.insert(0, sys.argv[1]); import fft; fft.fftw_library(sys.argv[2] == '1')"
    command = [sys.executable, "-c", probe, str(pathlib.Path(__file__).parent), str(int(single))]
    found = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return (None if found.returncode == 0
            else "no FFTW with MPI here (Debian: libfftw3-mpi3): " + (found.stderr.strip().splitlines() or ["?"])[-1])


def run(options, name, shape, ranks):
    """Numbers of one run by the cases measured in turns: for each repeat the slowest rank's time. name: a contestant;
    shardwire's with the way after a colon."""
    name, _, way = name.partition(":")
    arguments = [__file__, "--child", name, "--shapes", shape, "--repeats", str(options.repeats), "--dtype",
                 options.dtype, "--chunks", options.chunks]
    if name == "shardwire" and way != "mpi":
        command = [sys.executable, "-m", "shardwire.launch", "-n", str(ranks)]
    else:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable]
    environment = {**os.environ, **({} if way in ("", "auto") else {"SHARDWIRE_TRANSPORTS": way}),
                   "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory(prefix="shardwire-fft-") as folder:
        if options.hosts and name == "shardwire":
            run_on_hosts(options.hosts, [sys.executable, *arguments, "--folder", folder], environment)
        else:
            done = processes.run([*command, *arguments, "--folder", folder], env=environment)
            if done.returncode != 0:
                raise SystemExit(f"{name} failed on {shape}:\n{done.stdout}{done.stderr}")
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(folder).glob("*.json"))]
    return {kind: {
        key: value if isinstance(value, str) else [max(each) for each in zip(*(rank[kind][key] for rank in ranks))]
        for key, value in numbers.items()} for kind, numbers in ranks[0].items()}


@contextlib.contextmanager
def shaped_hosts(rate):
    """Two network namespaces whose cable carries ``rate`` in each direction: their names."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
    import network_namespaces
    with network_namespaces.two_namespaces("10.84.0") as names:
        for name in names:  # the interface has the namespace's name
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", name, "root", "tbf", "rate", rate, "burst",
                            "256kb", "latency", "50ms"], check=True)
        yield names


def run_on_hosts(hosts, command, environment):
    """One rank on each."""
    environment = {**environment, "WORLD_SIZE": str(len(hosts)), "SHARDWIRE_JOB_TOKEN": "bench"}
    ranks = [subprocess.Popen(["ip", "netns", "exec", host, *command], env={**environment, "RANK": str(rank)},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
             for rank, host in enumerate(hosts)]
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed:\n" + "\n".join(said))


def contestants(options):
    """Those that can run here, shardwire once for each way; and why the others cannot."""
    ways = options.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        raise SystemExit(f"fft.py: --ways has {', '.join(unknown)}; give some of {', '.join(WAYS)}")
    names, absent = [], {}
    for name in options.only.split(","):
        missing = why_not(name, options.dtype == "complex64")
        if missing:
            print(f"# without {name}: {missing}")
            absent[name] = missing
        else:
            names += [f"{name}:{way}" for way in ways] if name == "shardwire" else [name]
    return names, absent


def main():
    options = parse_arguments()
    if options.child:
        child(options)
        return
    names, absent = contestants(options)
    results, cells = {}, {}
    with shaped_hosts(options.rate) if options.rate else contextlib.nullcontext() as options.hosts:
        measure(options, names, results, cells)
    if options.json:
        columns = {name for row in cells.values() for name in row} - {"limit"}
        ours = [name for name in columns if name.startswith("shardwire")]
        record.write(options.json, "fft", [record.table(f"Medians of the slowest rank, {options.dtype}, ms",
                                                        ["ranks", "shape", "output"], cells, ours, columns - {*ours})],
                     absent, results=results)


def measure(options, names, results, cells):
    """All contestants on all shapes, printed, and kept in ``results`` and as medians in ``cells``."""
    if options.hosts:
        print(f"# shardwire's ranks in two network namespaces, {options.rate} between them")
    for ranks in map(int, options.ranks.split(",")):
        print(f"# {ranks} ranks, {options.dtype}, medians of {options.rounds} rounds of {options.repeats}, in ms; "
              "plan: seconds")
        print(f"{'shape':>14}  {'what':<24}{'transposed':>12}{'natural':>12}{'plan':>9}")
        for shape in options.shapes.split(","):
            results[f"{shape}, {ranks} ranks"] = gathered = compare(options, names, shape, ranks)
            for output, medians in medians_of(gathered).items():
                cells[ranks, shape, output] = medians


def compare(options, names, shape, ranks):
    """All contestants on one shape, in turns."""
    gathered = {}
    if "x" not in shape:
        names = [name for name in names if name != "mpi4py-fft"]
    for _ in range(options.rounds):
        for name in names:
            for kind, numbers in run(options, name, shape, ranks).items():
                row = gathered.setdefault(name if options.chunks == "auto" or not kind else f"{name}, {kind}", {})
                for key, value in numbers.items():
                    if isinstance(value, str):
                        row[key] = value
                    else:
                        row.setdefault(key, []).extend(value)
    for name, numbers in gathered.items():
        print_row(shape, name, numbers)
    ours = [numbers for name, numbers in gathered.items() if name.startswith("shardwire:")]
    if ours:
        transforms, copy = limit_of(gathered)
        print(f"{shape:>14}  {'limit':<24}{transforms + copy:>12.2f}{transforms + 2 * copy:>12.2f}   transforms "
              f"{transforms:.2f}, copy {copy:.2f}; {ours[0]['engine']}", flush=True)
    return gathered


def limit_of(gathered):
    """Milliseconds of the local transforms, and of one local copy."""
    ours = next(numbers for name, numbers in gathered.items() if name.startswith("shardwire:"))
    return [1e3 * statistics.median(ours[key]) for key in ("local transforms", "local copy")]


def medians_of(gathered):
    """output -> {contestant: milliseconds}, with the limit."""
    found = {}
    for copies, output in enumerate(("transposed", "natural"), 1):
        row = {name: 1e3 * statistics.median(numbers[output]) for name, numbers in gathered.items()
               if output in numbers}
        if any(name.startswith("shardwire:") for name in row):
            transforms, copy = limit_of(gathered)
            row["limit"] = transforms + copies * copy
        found[output] = row
    return found


def print_row(shape, name, numbers):
    cells = [f"{1e3 * statistics.median(numbers[key]):>12.2f}" if key in numbers else f"{'-':>12}"
             for key in ("transposed", "natural")]
    plan = f"{statistics.median(numbers['plan transposed']):>9.2f}" if "plan transposed" in numbers else f"{'-':>9}"
    cut = (f"   exchanges in {numbers['chunks transposed']}; {numbers['chunks natural']} chunks"
           if "chunks natural" in numbers else "")
    print(f"{shape:>14}  {name:<24}{''.join(cells)}{plan}{cut}", flush=True)
    if "chunks natural" in numbers:
        cells = [f"{1e3 * min(numbers[key]):>12.2f}" for key in ("transposed", "natural")]
        print(f"{'':>14}  {'   the least':<24}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
