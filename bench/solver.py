"""Systems of linear equations with distributed matrices: shardwire's DirectSolver beside ScaLAPACK, in turns, with the
limit set by local work.

    ./run bench solver [--sizes 2048,4096] [--ranks 2,4] [--cases lu,cholesky,lu-rows,cholesky-rows] [--columns 1]
        [--rounds 3] [--repeats 3] [--dtype float64] [--block 64] [--panel-width N] [--only shardwire,scalapack]
        [--json FILE]

Case "lu": factorize() and solve(), and p?gesv. Case "cholesky": the same with factorization="cholesky", and p?posv.
Both contestants find the matrices in the same place: blocks of --block dealt in turns over a grid of ranks, as square
as possible, in Fortran order; in the cases with "rows" over a column of ranks, so each rank has whole rows. Both write
the factors and the solution over them. --columns: the right-hand sides. Every contestant runs in separate processes,
one after the other, --rounds times in turns. A run takes as long as its slowest rank, and the medians over all repeats
are printed, in milliseconds. The residual of each solution is checked. --dtype: float32, float64, or both.

The limit is the time of the slowest rank for an even share of the multiplications, by torch.mm. ScaLAPACK is found as
for ./run bench matmul (SHARDWIRE_SCALAPACK names its file) and needs mpirun. A missing contestant is reported and left
out. Both call the BLAS of the system: with Debian's reference BLAS the figures say nothing, so install libopenblas0.
"""

from __future__ import annotations

import ctypes
import time

import matrices
from fft import timed
from matrices import grid_of, number, pointer, start

CASES = ("lu", "cholesky", "lu-rows", "cholesky-rows")
CONTESTANTS = ("shardwire", "scalapack")


def parse_arguments(arguments=None):
    parser = matrices.parser_of("solver", __doc__, CASES, CONTESTANTS, 3, "float64")
    parser.add_argument("--columns", type=int, default=1, help="right-hand sides")
    parser.add_argument("--block", type=int, default=64, help="rows and columns of a block of the layout")
    parser.add_argument("--panel-width", type=int, help="DirectSolverOptions.panel_width")
    return parser.parse_args(arguments)


# The ranks.

def system(options, case, size):
    """A and B, whole, the same on every rank and for every contestant: A has a large diagonal where it is for
    Cholesky."""
    import numpy
    rng = numpy.random.default_rng(7)
    a = rng.random((size, size)) - 0.5
    b = rng.random((size, options.columns))
    if case.startswith("cholesky"):
        a = (a + a.T) / 2 + size * numpy.eye(size)
    return a.astype(options.dtype), b.astype(options.dtype)


def grid_for(case, ranks):
    return (ranks, 1) if case.endswith("-rows") else grid_of(ranks)


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
    factors = [torch.ones(shape, dtype=getattr(torch, options.dtype))
               for shape in ((size, size // ranks), (size // ranks, size // 3))]
    limit = timed(lambda: torch.mm(*factors), dist.barrier, options.repeats, 1)
    numbers = {}
    for case in options.cases.split(","):
        rows, cols = grid_for(case, ranks)
        cut = BlockCyclic(ProcessGrid(shape=(rows, cols), layout=ProcessGrid.Layout.ROW_MAJOR), [options.block] * 2)
        wholes = [torch.from_numpy(whole) for whole in system(options, case, size)]
        at = [[indices(extent, options.block, place, parts) for extent, place, parts in
               zip(whole.shape, divmod(rank, cols), (rows, cols))] for whole in wholes]
        given = [whole[of_rank[0]][:, of_rank[1]].t().contiguous().t() for whole, of_rank in zip(wholes, at)]
        a, b = (each.clone() for each in given)
        chosen = {"factorization": case.partition("-")[0], "panel_width": options.panel_width}
        with DirectSolver(a, b, distributions=[cut, cut], options=chosen) as solver:
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
        numbers[f"limit {case}"] = [each / (1 if case.startswith("lu") else 2) for each in limit]
    dist.destroy_process_group()
    return rank, numbers


def scalapack_rank(options, size):
    """p?gesv and p?posv."""
    import numpy
    scalapack = matrices.Scalapack()

    def gather(array):
        total = numpy.empty_like(array)
        scalapack.mpi.MPI_Allreduce(pointer(array), pointer(total), array.size, scalapack.constant(
            "float" if options.dtype == "float32" else "double"), *map(scalapack.constant, ("op_sum", "comm_world")))
        return total

    took, letter = {}, "s" if options.dtype == "float32" else "d"
    for case in options.cases.split(","):
        scalapack.arrange(grid_for(case, scalapack.ranks))
        wholes = system(options, case, size)
        own = [[indices(extent, options.block, place, parts) for extent, place, parts in
                zip(whole.shape, scalapack.at, scalapack.grid)] for whole in wholes]
        given = [numpy.asfortranarray(whole[numpy.ix_(*of_rank)]) for whole, of_rank in zip(wholes, own)]
        a, b = (each.copy(order="F") for each in given)
        pivots, failed = (ctypes.c_int * (len(own[0][0]) + options.block))(), ctypes.c_int()
        of_a, of_b = (scalapack.descriptor(*whole.shape, options.block, len(of_rank[0]))
                      for whole, of_rank in zip(wholes, own))

        def prepare(a=a, b=b, given=given):
            a[...], b[...] = given

        def solve(case=case, a=a, b=b, of_a=of_a, of_b=of_b, pivots=pivots, failed=failed):
            head, tail = (number(size), number(options.columns), pointer(a), number(1), number(1), of_a), (
                pointer(b), number(1), number(1), of_b, ctypes.byref(failed))
            if case.startswith("lu"):
                getattr(scalapack.library, f"p{letter}gesv_")(*head, pivots, *tail)
            else:
                getattr(scalapack.library, f"p{letter}posv_")(b"L", *head, *tail)
            if failed.value:
                raise SystemExit(f"{case}: {failed.value}")
        took[case] = measure(options, prepare, solve, scalapack.barrier)
        check(options, case, size, b, *own[1], gather)
    scalapack.end()
    return scalapack.rank, took


def main():
    options = parse_arguments()
    if options.child:
        rank_of = shardwire_rank if options.child == "shardwire" else scalapack_rank
        matrices.write_numbers(options, *rank_of(options, int(options.sizes)))
        return
    width = [] if options.panel_width is None else ["--panel-width", str(options.panel_width)]
    matrices.compare(__file__, options, CASES,
                     ["--columns", str(options.columns), "--block", str(options.block), *width],
                     f", {options.columns} right-hand sides")


if __name__ == "__main__":
    main()
