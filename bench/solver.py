"""Systems of linear equations with distributed matrices: shardwire's DirectSolver beside ScaLAPACK, in turns, with the
limit set by local work.

    ./run bench solver [--sizes 2048,4096] [--ranks 2,4] [--cases lu,cholesky] [--columns 1] [--rounds 3] [--repeats 3]
        [--dtype float64] [--block 64] [--panel-width N] [--only shardwire,scalapack] [--json FILE]

Case "lu": factorize() and solve(), and p?gesv. Case "cholesky": the same with factorization="cholesky", and p?posv.
Both contestants find the matrices in the same place: blocks of --block dealt in turns over a grid of ranks, as square
as possible, in Fortran order. Both write the factors and the solution over them. --columns: the right-hand sides. Every
contestant runs in separate processes, one after the other, --rounds times in turns. A run takes as long as its slowest
rank, and the medians over all repeats are printed, in milliseconds. The residual of each solution is checked.

The limit is the time of the slowest rank for an even share of the multiplications, by torch.mm. ScaLAPACK is found as
for ./run bench matmul (SHARDWIRE_SCALAPACK names its file) and needs mpirun. A missing contestant is reported and left
out. Both call the BLAS of the system: with Debian's reference BLAS the figures say nothing, so install libopenblas0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import processes
import record
from fft import timed
from matmul import grid_of, scalapack_library, start, why_not

CASES = ("lu", "cholesky")
CONTESTANTS = ("shardwire", "scalapack")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="./run bench solver", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2048,4096")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--columns", type=int, default=1, help="right-hand sides")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--block", type=int, default=64, help="rows and columns of a block of the layout")
    parser.add_argument("--panel-width", type=int, help="DirectSolverOptions.panel_width")
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, separated by commas")
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# The ranks.

def system(options, case, size):
    """A and B, whole, the same on every rank and for every contestant: A has a large diagonal where it is for
    Cholesky."""
    import numpy
    rng = numpy.random.default_rng(7)
    a = rng.random((size, size)) - 0.5
    b = rng.random((size, options.columns))
    if case == "cholesky":
        a = (a + a.T) / 2 + size * numpy.eye(size)
    return a.astype(options.dtype), b.astype(options.dtype)


def indices(count, block, place, parts):
    """The indices of place ``place`` of ``parts``."""
    return [index for index in range(count) if index // block % parts == place]


def measure(options, prepare, solve, barrier):
    """Seconds of each repeat; the first is for warming up."""
    took = []
    for number in range(options.repeats + 1):
        prepare()
        barrier()
        begin = time.perf_counter()
        solve()
        took += [time.perf_counter() - begin] if number else []
    return took


def check(options, case, size, x, rows, columns, gather):
    """The backward error of the solution, on all ranks alike. gather: adds arrays of all ranks."""
    import numpy
    a, b = system(options, case, size)
    whole = numpy.zeros_like(b)
    whole[numpy.ix_(rows, columns)] = x
    whole = gather(whole)
    error = abs(a @ whole - b).max() / (abs(a).sum(1).max() * abs(whole).max() + abs(b).max())
    if not error < 100 * size * numpy.finfo(options.dtype).eps:
        raise SystemExit(f"{options.child}, {case}: the backward error is {error}")


def shardwire_rank(options, size):
    import torch
    import torch.distributed as dist

    from shardwire.distributed.distribution import BlockCyclic, ProcessGrid
    from shardwire.distributed.linalg import DirectSolver
    rank, ranks = start("shardwire", options.folder)
    rows, cols = grid_of(ranks)
    cut = BlockCyclic(ProcessGrid(shape=(rows, cols), layout=ProcessGrid.Layout.ROW_MAJOR), [options.block] * 2)
    factors = [torch.ones(shape, dtype=getattr(torch, options.dtype))
               for shape in ((size, size // ranks), (size // ranks, size // 3))]
    limit = timed(lambda: torch.mm(*factors), dist.barrier, options.repeats, 1)
    numbers = {}
    for case in options.cases.split(","):
        wholes = [torch.from_numpy(whole) for whole in system(options, case, size)]
        at = [[indices(extent, options.block, place, parts) for extent, place, parts in
               zip(whole.shape, divmod(rank, cols), (rows, cols))] for whole in wholes]
        given = [whole[of_rank[0]][:, of_rank[1]].t().contiguous().t() for whole, of_rank in zip(wholes, at)]
        a, b = (each.clone() for each in given)
        with DirectSolver(a, b, distributions=[cut, cut],
                          options={"factorization": case, "panel_width": options.panel_width}) as solver:
            solver.plan()

            def prepare(a=a, b=b, given=given):
                a.copy_(given[0])
                b.copy_(given[1])

            def solve(solver=solver):
                solver.factorize()
                solver.solve()
            numbers[case] = measure(options, prepare, solve, dist.barrier)

        def gather(array):
            dist.all_reduce(torch.from_numpy(array))
            return array
        check(options, case, size, b.numpy(), *at[1], gather)
        numbers[f"limit {case}"] = [each / (1 if case == "lu" else 2) for each in limit]
    dist.destroy_process_group()
    return rank, numbers


def scalapack_rank(options, size):
    """p?gesv and p?posv through Fortran's interface: every argument is a pointer."""
    import numpy
    mpi, library = scalapack_library()
    rank, ranks, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.Cblacs_pinfo(ctypes.byref(rank), ctypes.byref(ranks))
    rows, cols = grid_of(ranks.value)
    library.Cblacs_get(-1, 0, ctypes.byref(context))
    library.Cblacs_gridinit(ctypes.byref(context), b"Row", rows, cols)
    at = divmod(rank.value, cols)

    def constant(name):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")))
    world = constant("comm_world")

    def number(value):
        return ctypes.byref(ctypes.c_int(value))

    def descriptor(columns, leading):
        made, failed = (ctypes.c_int * 9)(), ctypes.c_int()
        library.descinit_(made, number(size), number(columns), number(options.block), number(options.block), number(0),
                          number(0), ctypes.byref(context), number(max(1, leading)), ctypes.byref(failed))
        if failed.value:
            raise SystemExit(f"descinit: {failed.value}")
        return made

    def gather(array):
        total = numpy.empty_like(array)
        mpi.MPI_Allreduce(*(each.ctypes.data_as(ctypes.c_void_p) for each in (array, total)), array.size,
                          constant("float" if options.dtype == "float32" else "double"), constant("op_sum"), world)
        return total

    took, letter = {}, "s" if options.dtype == "float32" else "d"
    for case in options.cases.split(","):
        wholes = system(options, case, size)
        own = [[indices(extent, options.block, place, parts) for extent, place, parts in
                zip(whole.shape, at, (rows, cols))] for whole in wholes]
        given = [numpy.asfortranarray(whole[numpy.ix_(*of_rank)]) for whole, of_rank in zip(wholes, own)]
        a, b = (each.copy(order="F") for each in given)
        pivots, failed = (ctypes.c_int * (len(own[0][0]) + options.block))(), ctypes.c_int()
        of_a, of_b = descriptor(size, len(own[0][0])), descriptor(options.columns, len(own[1][0]))

        def prepare(a=a, b=b, given=given):
            a[...], b[...] = given

        def solve(case=case, a=a, b=b, of_a=of_a, of_b=of_b, pivots=pivots, failed=failed):
            pointers = [value.ctypes.data_as(ctypes.c_void_p) for value in (a, b)]
            head, tail = (number(size), number(options.columns), pointers[0], number(1), number(1), of_a), (
                pointers[1], number(1), number(1), of_b, ctypes.byref(failed))
            if case == "lu":
                getattr(library, f"p{letter}gesv_")(*head, pivots, *tail)
            else:
                getattr(library, f"p{letter}posv_")(b"L", *head, *tail)
            if failed.value:
                raise SystemExit(f"{case}: {failed.value}")
        took[case] = measure(options, prepare, solve, lambda: mpi.MPI_Barrier(world))
        check(options, case, size, b, *own[1], gather)
    library.Cblacs_exit(0)
    return rank.value, took


def child(options):
    rank, numbers = (shardwire_rank if options.child == "shardwire" else scalapack_rank)(options, int(options.sizes))
    pathlib.Path(options.folder, f"{rank}.json").write_text(json.dumps(numbers), encoding="utf-8")


# The parent.

def run(options, name, size, ranks):
    """Numbers of one run by cases: for each repeat the slowest rank's time."""
    command = ([sys.executable, "-m", "shardwire.launch", "-n", str(ranks)] if name == "shardwire"
               else ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory(prefix="shardwire-solver-") as folder:
        width = [] if options.panel_width is None else ["--panel-width", str(options.panel_width)]
        done = processes.run([*command, __file__, "--child", name, "--sizes", size, "--repeats", str(options.repeats),
                              "--dtype", options.dtype, "--cases", options.cases, "--columns", str(options.columns),
                              "--block", str(options.block), "--folder", folder, *width], env=environment)
        if done.returncode != 0:
            raise SystemExit(f"{name} failed on {size}:\n{done.stdout}{done.stderr}")
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(folder).glob("*.json"))]
    return {case: [max(each) for each in zip(*(rank[case] for rank in found))] for case in found[0]}


def main():
    options = parse_arguments()
    if options.child:
        child(options)
        return
    unknown = [case for case in options.cases.split(",") if case not in CASES]
    if unknown:
        raise SystemExit(f"solver.py: --cases has {', '.join(unknown)}; give some of {', '.join(CASES)}")
    names, absent, medians = [], {}, {}
    for name in options.only.split(","):
        missing = why_not(name)
        if missing:
            print(f"# without {name}: {missing}")
            absent[name] = missing
        else:
            names.append(name)
    results = {}
    for ranks in map(int, options.ranks.split(",")):
        print(f"# {ranks} ranks, {options.dtype}, {options.columns} right-hand sides, medians of {options.rounds} "
              f"rounds of {options.repeats}, in ms; the least in parentheses")
        for size in options.sizes.split(","):
            gathered = {}
            for _ in range(options.rounds):
                for name in names:
                    for case, times in run(options, name, size, ranks).items():
                        key = (case[6:], "limit") if case.startswith("limit ") else (case, name)
                        gathered.setdefault(key, []).extend(times)
            for case in options.cases.split(","):
                cells = [f"{who} {1e3 * statistics.median(times):.2f} ({1e3 * min(times):.2f})"
                         for (what, who), times in gathered.items() if what == case]
                print(f"{size:>6}  {case:<10}{'   '.join(cells)}", flush=True)
            for (what, who), times in gathered.items():
                medians.setdefault((ranks, size, what), {})[who] = 1e3 * statistics.median(times)
            results[f"{size}, {ranks} ranks"] = {f"{what}, {who}": times for (what, who), times in gathered.items()}
    if options.json:
        names = {name for row in medians.values() for name in row} - {"limit"}
        ours = [name for name in names if name.startswith("shardwire")]
        record.write(options.json, "solver",
                     [record.table(f"Medians of the slowest rank, {options.dtype}, ms", ["ranks", "n", "case"], medians,
                                   ours, names - {*ours})], absent, results=results)


if __name__ == "__main__":
    main()
