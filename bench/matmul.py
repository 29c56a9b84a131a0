"""Products of distributed matrices: shardwire beside DTensor's own product and ScaLAPACK, in turns, with the limit set
by local work.

    ./run bench matmul [--sizes 2048,4096] [--ranks 2,4] [--cases rows,scatter,reduce,grid,cyclic] [--rounds 3]
        [--repeats 5] [--dtype float32] [--panels auto,4] [--only shardwire,dtensor-shardwire,dtensor-gloo,scalapack]
        [--json FILE]

Square matrices. Every contestant runs in separate processes, one after the other, --rounds times in turns. A product
takes as long as its slowest rank, and the medians over all repeats are printed, in milliseconds. Cases: "rows": all
matrices in slabs of rows, so B is gathered. "scatter": the columns of A, the rows of B and of the result are cut, so
parts of the result are summed. "reduce": the same, and every rank gets the whole result. "grid": blocks over a grid of
ranks, as square as possible. "cyclic": blocks of 64 dealt in turns, ScaLAPACK's distribution and the one case that
ScaLAPACK runs.

The limit is the time of the slowest rank for an even share of the multiplications, by torch.mm, and for one strided
copy of the bytes that this rank must receive: no program with this work can be faster. DTensor needs torch 2.5, and is
measured over shardwire's collectives and over gloo. ScaLAPACK is found as libscalapack-openmpi.so (Debian:
libscalapack-openmpi-dev or libscalapack-openmpi2.2; SHARDWIRE_SCALAPACK names another file) and needs mpirun. Missing
contestants are reported and left out. --panels: MatmulOptions.panels, in turns in the same processes.
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

import processes
import record
from fft import timed

CASES = ("rows", "scatter", "reduce", "grid", "cyclic")
CONTESTANTS = ("shardwire", "dtensor-shardwire", "dtensor-gloo", "scalapack")
BLOCK = 64
LIBRARIES = ("libscalapack-openmpi.so", "libscalapack-openmpi.so.2.2", "libscalapack-openmpi.so.2.1")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="./run bench matmul", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2048,4096")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--panels", default="auto", help="some of auto and numbers from 1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, separated by commas")
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def grid_of(ranks):
    """The squarest grid."""
    rows = max(rows for rows in range(1, ranks + 1) if ranks % rows == 0 and rows * rows <= ranks)
    return rows, ranks // rows


# The ranks.

def start(backend, folder):
    """This rank and the number of ranks, in a default group."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    return dist.get_rank(), dist.get_world_size()


def shardwire_rank(options, size):
    import torch
    import torch.distributed as dist

    import shardwire
    from shardwire.distributed.distribution import Block, BlockCyclic, Placements, ProcessGrid, Slab
    from shardwire.distributed.linalg.advanced import Matmul
    rank, ranks = start("shardwire", options.folder)
    dtype, grid = getattr(torch, options.dtype), ProcessGrid(shape=grid_of(ranks), layout=ProcessGrid.Layout.ROW_MAJOR)
    everywhere, blocks = Placements([shardwire.Replicate()]), BlockCyclic(grid, [BLOCK, BLOCK])
    cuts = {"rows": [Slab.X] * 3, "scatter": [Slab.Y, Slab.X, Slab.X], "reduce": [Slab.Y, Slab.X, everywhere],
            "grid": [Block(grid)] * 3, "cyclic": [blocks] * 3}
    numbers = {}
    for case in options.cases.split(","):
        a, b = (shardwire.empty(cut.shape(rank, (size, size), ranks), dtype=dtype).normal_() for cut in cuts[case][:2])
        numbers[f"limit {case}"] = limit(case, size, ranks, dtype, dist.barrier, options.repeats)
        with contextlib.ExitStack() as stack:
            products = {}
            for panels in options.panels.split(","):
                product = products[panels] = stack.enter_context(Matmul(
                    a, b, distributions=cuts[case], options={"panels": None if panels == "auto" else int(panels)}))
                product.plan()
            for number in range(options.repeats + 1):  # the first is for warming up
                for panels, product in products.items():
                    took = timed(product.execute, dist.barrier, 1, 0)
                    name = case if options.panels == "auto" else f"{case}, panels {panels}"
                    numbers.setdefault(name, []).extend(took if number else [])
    dist.destroy_process_group()
    return rank, numbers


def limit(case, size, ranks, dtype, barrier, repeats):
    """An even share of the multiplications, and one strided copy of what arrives."""
    import torch
    rows, cols = grid_of(ranks)
    shape, arrives = {"rows": ((size // ranks, size, size), size * size * (ranks - 1) // ranks),
                      "scatter": ((size, size // ranks, size), size * size * (ranks - 1) // ranks),
                      "reduce": ((size, size // ranks, size), size * size * 2 * (ranks - 1) // ranks)}.get(
        case, ((size // rows, size, size // cols),
               size * size * (cols - 1) // (rows * cols) + size * size * (rows - 1) // (rows * cols)))
    a, b = torch.randn(shape[:2], dtype=dtype), torch.randn(shape[1:], dtype=dtype)
    out = torch.empty((shape[0], shape[2]), dtype=dtype)
    lines = max(1, arrives // size)
    source, target = torch.randn((lines, 2 * size), dtype=dtype)[:, :size], torch.empty((lines, size), dtype=dtype)
    return [first + second for first, second in zip(timed(lambda: torch.mm(a, b, out=out), barrier, repeats, 1),
                                                    timed(lambda: target.copy_(source), barrier, repeats, 1))]


def dtensor_rank(options, size):
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh

    import shardwire  # noqa: F401: registers the backend
    rank, ranks = start(options.child.partition("-")[2], options.folder)
    rows, cols = grid_of(ranks)
    flat, square = DeviceMesh("cpu", torch.arange(ranks)), DeviceMesh("cpu", torch.arange(ranks).reshape(rows, cols))
    placements = {"rows": (flat, [[dt.Shard(0)]] * 3), "scatter": (flat, [[dt.Shard(1)], [dt.Shard(0)], [dt.Shard(0)]]),
                  "reduce": (flat, [[dt.Shard(1)], [dt.Shard(0)], [dt.Replicate()]]),
                  "grid": (square, [[dt.Shard(0), dt.Shard(1)]] * 3)}
    numbers = {}
    for case in options.cases.split(","):
        if case not in placements:
            continue
        mesh, cuts = placements[case]
        # not random: dt.rand raised AssertionError on a mesh of CPUs with torch 2.13
        a, b = (dt.ones(size, size, dtype=getattr(torch, options.dtype), device_mesh=mesh, placements=cut)
                for cut in cuts[:2])

        def multiply(a=a, b=b, cut=cuts[2]):
            return (a @ b).redistribute(placements=cut).to_local()
        numbers[case] = timed(multiply, dist.barrier, options.repeats, 1)
    dist.destroy_process_group()
    return rank, numbers


def scalapack_library():
    mpi = ctypes.CDLL(ctypes.util.find_library("mpi") or "libmpi.so.40", ctypes.RTLD_GLOBAL)
    names, failure = [os.environ.get("SHARDWIRE_SCALAPACK", "")], OSError("no name")
    for name in filter(None, [*names, *LIBRARIES]):
        try:
            return mpi, ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError as error:
            failure = error
    raise failure


def scalapack_rank(options, size):
    """p?gemm through Fortran's interface: every argument is a pointer."""
    import numpy
    mpi, library = scalapack_library()
    rank, ranks, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.Cblacs_pinfo(ctypes.byref(rank), ctypes.byref(ranks))
    rows, cols = grid_of(ranks.value)
    library.Cblacs_get(-1, 0, ctypes.byref(context))
    library.Cblacs_gridinit(ctypes.byref(context), b"Row", rows, cols)
    at = [divmod(rank.value, cols)[axis] for axis in range(2)]

    def number(value):
        return ctypes.byref(ctypes.c_int(value))
    extents = [library.numroc_(number(size), number(BLOCK), number(place), number(0), number(count))
               for place, count in zip(at, (rows, cols))]
    descriptor, failed = (ctypes.c_int * 9)(), ctypes.c_int()
    library.descinit_(descriptor, number(size), number(size), number(BLOCK), number(BLOCK), number(0), number(0),
                      ctypes.byref(context), number(max(1, extents[0])), ctypes.byref(failed))
    if failed.value:
        raise SystemExit(f"descinit: {failed.value}")
    a, b, c = (numpy.asfortranarray(numpy.random.rand(*extents).astype(options.dtype)) for _ in range(3))
    gemm = library.psgemm_ if options.dtype == "float32" else library.pdgemm_
    real = ctypes.c_float if options.dtype == "float32" else ctypes.c_double
    one, zero = real(1), real(0)

    def multiply():
        pointers = [value.ctypes.data_as(ctypes.c_void_p) for value in (a, b, c)]
        gemm(b"N", b"N", number(size), number(size), number(size), ctypes.byref(one), pointers[0], number(1), number(1),
             descriptor, pointers[1], number(1), number(1), descriptor, ctypes.byref(zero), pointers[2], number(1),
             number(1), descriptor)
    world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
    took = {"cyclic": timed(multiply, lambda: mpi.MPI_Barrier(world), options.repeats, 1)}
    library.Cblacs_exit(0)
    return rank.value, took


def child(options):
    rank_of = {"shardwire": shardwire_rank, "scalapack": scalapack_rank}.get(options.child, dtensor_rank)
    rank, numbers = rank_of(options, int(options.sizes))
    pathlib.Path(options.folder, f"{rank}.json").write_text(json.dumps(numbers), encoding="utf-8")


# The parent.

def why_not(name):
    """Why a contestant cannot run here, or None."""
    if name == "shardwire":
        return None
    if name == "scalapack" and shutil.which("mpirun") is None:
        return "no mpirun here (Debian: openmpi-bin)"
    probe = ("import sys; sys.path.insert(0, sys.argv[1]); import matmul; matmul.scalapack_library()"
             if name == "scalapack" else "import torch.distributed.tensor")
    found = subprocess.run([sys.executable, "-c", probe, str(pathlib.Path(__file__).parent)], capture_output=True,
                           text=True, check=False, stdin=subprocess.DEVNULL)
    return None if found.returncode == 0 else (found.stderr.strip().splitlines() or ["?"])[-1]


def run(options, name, size, ranks):
    """Numbers of one run by cases: for each repeat the slowest rank's time."""
    command = ([sys.executable, "-m", "shardwire.launch", "-n", str(ranks)] if name != "scalapack"
               else ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory(prefix="shardwire-matmul-") as folder:
        done = processes.run([*command, __file__, "--child", name, "--sizes", size, "--repeats", str(options.repeats),
                              "--dtype", options.dtype, "--cases", options.cases, "--panels", options.panels,
                              "--folder", folder], env=environment)
        if done.returncode != 0:
            raise SystemExit(f"{name} failed on {size}:\n{done.stdout}{done.stderr}")
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(folder).glob("*.json"))]
    return {case: [max(each) for each in zip(*(rank[case] for rank in found))] for case in found[0]}


def compare(options, names, size, ranks):
    """All contestants on one size, in turns: the times by case and contestant."""
    gathered = {}
    for _ in range(options.rounds):
        for name in names:
            for case, times in run(options, name, size, ranks).items():
                what, _, rest = case.partition(", ")
                key = (what[6:], "limit") if what.startswith("limit ") else (what, f"{name} {rest}".strip())
                gathered.setdefault(key, []).extend(times)
    return gathered


def main():
    options = parse_arguments()
    if options.child:
        child(options)
        return
    unknown = [case for case in options.cases.split(",") if case not in CASES]
    if unknown:
        raise SystemExit(f"matmul.py: --cases has {', '.join(unknown)}; give some of {', '.join(CASES)}")
    names, absent, medians = [], {}, {}
    for name in options.only.split(","):
        missing = why_not(name)
        if missing:
            print(f"# without {name}: {missing}")
            absent[name] = missing
        elif name != "scalapack" or "cyclic" in options.cases.split(","):
            names.append(name)
    results = {}
    for ranks in map(int, options.ranks.split(",")):
        print(f"# {ranks} ranks, {options.dtype}, medians of {options.rounds} rounds of {options.repeats}, in ms; the "
              "least in parentheses")
        for size in options.sizes.split(","):
            gathered = compare(options, names, size, ranks)
            for case in options.cases.split(","):
                cells = [f"{who} {1e3 * statistics.median(times):.2f} ({1e3 * min(times):.2f})"
                         for (what, who), times in gathered.items() if what == case]
                print(f"{size:>6}  {case:<8}{'   '.join(cells)}", flush=True)
            for (what, who), times in gathered.items():
                medians.setdefault((ranks, size, what), {})[who] = 1e3 * statistics.median(times)
            results[f"{size}, {ranks} ranks"] = {f"{what}, {who}": times for (what, who), times in gathered.items()}
    if options.json:
        names = {name for row in medians.values() for name in row} - {"limit"}
        ours = [name for name in names if name.startswith("shardwire")]
        record.write(options.json, "matmul",
                     [record.table(f"Medians of the slowest rank, {options.dtype}, ms", ["ranks", "n", "case"], medians,
                                   ours, names - {*ours})], absent, results=results)


if __name__ == "__main__":
    main()
