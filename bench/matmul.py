"""Products of distributed matrices: shardwire beside DTensor's own product and ScaLAPACK, in turns, with the limit set
by local work.

    ./run bench matmul [--sizes 2048,4096] [--ranks 2,4] [--cases rows,scatter,reduce,grid,cyclic] [--rounds 3]
        [--repeats 5] [--dtype float32] [--panels auto,4] [--only shardwire,dtensor-shardwire,dtensor-gloo,scalapack]
        [--json FILE]

Square matrices. Every contestant runs in separate processes, one after the other, --rounds times in turns. A product
takes as long as its slowest rank, and the medians over all repeats are printed, in milliseconds. Cases: "rows": all
matrices in slabs of rows, so B is gathered. "scatter": the columns of A, the rows of B and of the result are cut, so
parts of the result are summed. "reduce": the same, and every rank gets the whole result. "grid": blocks over a grid of
ranks, as square as possible. "cyclic": blocks of 64 dealt in turns over this grid, as ScaLAPACK's users cut matrices.
ScaLAPACK runs "rows", "grid" and "cyclic": its matrices lie on one grid of ranks, and none has copies.

The limit is the time of the slowest rank for an even share of the multiplications, by torch.mm, and for one strided
copy of the bytes that this rank must receive: no program with this work can be faster. DTensor needs torch 2.5, and is
measured over shardwire's collectives and over gloo. ScaLAPACK is found as libscalapack-openmpi.so (Debian:
libscalapack-openmpi-dev or libscalapack-openmpi2.2; SHARDWIRE_SCALAPACK names another file) and needs mpirun. Missing
contestants are reported and left out. --panels: MatmulOptions.panels, in turns in the same processes. --dtype: float32,
float64, or both.
"""

from __future__ import annotations

import contextlib
import ctypes

import matrices
from fft import timed
from matrices import grid_of, number, pointer, start

CASES = ("rows", "scatter", "reduce", "grid", "cyclic")
OF_SCALAPACK = ("rows", "grid", "cyclic")
CONTESTANTS = ("shardwire", "dtensor-shardwire", "dtensor-gloo", "scalapack")
BLOCK = 64


def parse_arguments(arguments=None):
    parser = matrices.parser_of("matmul", __doc__, CASES, CONTESTANTS, 5, "float32")
    parser.add_argument("--panels", default="auto", help="some of auto and numbers from 1")
    return parser.parse_args(arguments)


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


def scalapack_rank(options, size):
    """p?gemm. Square blocks as large as a slab of rows, or as a block of "grid", lie where shardwire's parts lie."""
    import numpy
    scalapack = matrices.Scalapack()
    library, took = scalapack.library, {}
    gemm = library.psgemm_ if options.dtype == "float32" else library.pdgemm_
    real = ctypes.c_float if options.dtype == "float32" else ctypes.c_double
    one, zero = real(1), real(0)
    for case in (case for case in options.cases.split(",") if case in OF_SCALAPACK):
        scalapack.arrange((scalapack.ranks, 1) if case == "rows" else grid_of(scalapack.ranks))
        block = BLOCK if case == "cyclic" else -(-size // max(scalapack.grid))
        extents = [library.numroc_(number(size), number(block), number(place), number(0), number(count))
                   for place, count in zip(scalapack.at, scalapack.grid)]
        descriptor = scalapack.descriptor(size, size, block, extents[0])
        a, b, c = (numpy.asfortranarray(numpy.random.rand(*extents).astype(options.dtype)) for _ in range(3))
        at = number(1), number(1), descriptor

        def multiply(a=a, b=b, c=c, at=at):
            gemm(b"N", b"N", number(size), number(size), number(size), ctypes.byref(one), pointer(a), *at, pointer(b),
                 *at, ctypes.byref(zero), pointer(c), *at)
        took[case] = timed(multiply, scalapack.barrier, options.repeats, 1)
    scalapack.end()
    return scalapack.rank, took


def main():
    options = parse_arguments()
    if options.child:
        rank_of = {"shardwire": shardwire_rank, "scalapack": scalapack_rank}.get(options.child, dtensor_rank)
        matrices.write_numbers(options, *rank_of(options, int(options.sizes)))
        return
    matrices.compare(__file__, options, CASES, ["--panels", options.panels],
                     takes=lambda name: name != "scalapack" or {*OF_SCALAPACK} & {*options.cases.split(",")})


if __name__ == "__main__":
    main()
